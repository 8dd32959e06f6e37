"""Full disks: the error names the place and the remedy, and -resume gives the same results."""

import contextlib
import re
import subprocess
from functools import partial

import pytest
from runs import checksums, last_words, partial_files, whole

from octane.tools.materialize.step import verify


def fill(place):
    """Fill a file system completely; return the file that fills it."""
    filler = place / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as stream:
        while True:
            stream.write(b"\0" * 4096)
    return filler


@pytest.mark.soak
@pytest.mark.fault
def test_the_work_directory_fills_up(
    start_nextflow, succeeding, small_disk, volume, undisturbed, tmp_path
):
    work = small_disk("work", "size=64m")
    run = start_nextflow(tmp_path, *volume, "-w", work)
    run.of_task("python", "n4.py")
    filler = fill(work)
    assert run.wait().code == 1
    words = last_words(run.output)
    assert str(work) in words
    assert "-resume" in words
    assert whole(work) == []
    assert partial_files(work) == []
    filler.unlink()
    again = succeeding(tmp_path, *volume, "-w", work, "-resume")
    assert checksums(again.outdir) == undisturbed.sums


@pytest.mark.soak
@pytest.mark.fault
def test_the_scratch_folder_fills_up(
    start_nextflow, succeeding, small_disk, volume, undisturbed, tmp_path
):
    scratch = small_disk("scratch", "size=64m")
    run = start_nextflow(tmp_path, *volume, "--scratch_dir", scratch)
    run.of_task("python", "n4.py")
    filler = fill(scratch)
    code = run.wait().code
    # Tasks remove their own folders.
    assert list(scratch.iterdir()) == [filler]
    assert partial_files(tmp_path / "work") == []
    if code:
        assert whole(tmp_path / "work") == []
        assert "o space left on device" in last_words(run.output)
    filler.unlink()
    again = succeeding(tmp_path, *volume, "--scratch_dir", scratch, "-resume")
    assert checksums(again.outdir) == undisturbed.sums
    assert list(scratch.iterdir()) == []


@pytest.mark.soak
@pytest.mark.fault
@pytest.mark.parametrize(
    ("mode", "least", "enough"),
    [
        ("copy", "size=100k", "size=20m"),
        pytest.param("symlink", "nr_inodes=9", "nr_inodes=99", marks=pytest.mark.soak),
    ],
)
def test_the_output_is_full_when_results_are_copied_there(
    nextflow, succeeding, small_disk, volume, undisturbed, mode, least, enough
):
    out = small_disk("out", least)
    # All tasks are cached, so results are only copied.
    arguments = (*volume, "--publish_dir_mode", mode, "-resume")
    run = nextflow(undisturbed.folder, *arguments, outdir=out / "results")
    assert run.code != 0
    # Nextflow may report below it that other results could not be published either.
    words = run.output.partition("octane stopped: ")[2]
    assert str(out / "results") in words
    assert "no space left on device" in words
    assert "-resume" in words
    assert "Results:" not in run.output
    subprocess.run(["mount", "-o", f"remount,{enough}", str(out)], check=True)
    again = succeeding(undisturbed.folder, *arguments, outdir=out / "results")
    assert {"N4 (tissue)", "PYRAMID (tissue)"} <= set(again.tasks("CACHED"))
    linked = any(path.is_symlink() for path in (out / "results").rglob("*"))
    assert linked == (mode == "symlink")
    assert checksums(out / "results") == undisturbed.sums


@pytest.mark.soak
@pytest.mark.fault
def test_a_copy_that_is_cut_short_fails_by_name_and_is_made_good_by_resume(
    nextflow, succeeding, volume, small_disk, undisturbed, tmp_path
):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    disk = small_disk("disk", "size=64m")
    given = (*volume, "--scratch_dir", scratch, "-w", disk / "work")
    # Leave less space than N4's results need.
    free = "$(df --output=avail -B1 . | tail -n 1)"
    fill = f"head -c $(({free} - 50000)) /dev/zero > {disk}/ballast"
    (tmp_path / "full.config").write_text(
        f"""process {{
            errorStrategy = 'terminate'
            withName: N4 {{
                beforeScript = '{fill}'
            }}
        }}"""
    )
    failed = nextflow(tmp_path, *given, "-c", "full.config")
    assert failed.code != 0
    (row,) = (row for row in failed.trace if "N4" in row["name"])
    assert (row["status"], row["exit"]) == ("FAILED", "28")
    words = " ".join(failed.output.split())
    message = "The results could not be copied from the scratch folder: "
    assert f"octane stopped: N4 (tissue): {message}" in words
    assert re.search(message + r"tissue_\w+.ome.zarr/0/c/0/0/0 has \d+ of \d+ bytes", words)
    assert "run again with -resume" in words
    (task,) = (disk / "work").glob(f"{row['hash']}*")
    assert all(path.name.startswith(".") for path in task.iterdir())
    assert message in (task / ".command.err").read_text()
    assert not list(scratch.iterdir())

    (disk / "ballast").unlink()
    resumed = succeeding(tmp_path, *given, "-resume")
    assert resumed.processes("COMPLETED") == {"PREFLIGHT", "N4", "PYRAMID"}
    for store in (disk / "work").glob("*/*/*.ome.zarr"):
        assert verify(store) == 1
    assert checksums(resumed.outdir) == undisturbed.sums


UNSTAGING = {
    "24.10": """
    nxf_unstage() {
        nxf_unstage_controls
        [[ ${nxf_main_ret:=0} != 0 ]] && return""",
    "25.10": """
    nxf_unstage() {
        if [[ ${nxf_main_ret:=0} == 0 ]]; then
            (
                set -e -o pipefail
                (nxf_unstage_outputs | tee -a .command.out) 3>&1 1>&2 2>&3 | tee -a .command.err
            )
        fi
        nxf_unstage_controls
    }
    nxf_unstage_outputs() {""",
}
"""How versions of Nextflow copy a task's results out of scratch, up to the list of results."""


@pytest.fixture(params=UNSTAGING)
def wrapper(request, project, tmp_path):
    """Run the end of Nextflow's wrapper, with given shell code as its copying step."""
    return partial(_wrapper, tmp_path, project, UNSTAGING[request.param])


def _wrapper(folder, project, unstaging, copies):
    (folder / "scratch").mkdir()
    (folder / "task").mkdir()
    script = f"""
    set -u
    NXF_SCRATCH={folder}/scratch
    cd $NXF_SCRATCH
    mkdir -p 'a store/0' records
    head -c 5000 /dev/zero > 'a store/0/chunk 1'
    head -c 7000 /dev/zero > 'a store/0/chunk 2'
    echo noted > records/metrics.json
    ln -s records/metrics.json linked.json
    nxf_fs_copy() {{ cp -fRL "$1" "$2"; }}
    nxf_unstage_controls() {{ cp .command.out {folder}/task/ || true; }}
    {unstaging}
        IFS=$'\\n'
        for name in 'a store' records linked.json; do
            nxf_fs_copy "$name" {folder}/task || true
        done
        unset IFS
    }}
    echo said > .command.out
    {copies}
    source {project}/lib/scratch_copy_check.sh
    exit $nxf_main_ret
    """
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (
            "truncate -s 999 'task/a store/0/chunk 2'",
            "a store/0/chunk 2 has 999 of 7000 bytes, and 0 other",
        ),
        ("rm -r 'task/a store/0'", "a store/0/chunk 2 has 0 of 7000 bytes, and 1 other"),
        ("rm task/records/metrics.json", "records/metrics.json has 0 of 6 bytes, and 0 other"),
        ("truncate -s 0 task/linked.json", "linked.json has 0 of 6 bytes"),
        ("rm -r task/records 'task/a store' task/linked.json", "and 3 other"),
    ],
)
def test_truncated_results_are_named_and_removed(tmp_path, wrapper, damage, words):
    done = wrapper(f"nxf_unstage\n(cd {tmp_path} && {damage})")
    assert done.returncode == 28
    assert words in done.stderr
    left = [path.name for path in (tmp_path / "task").iterdir()]
    assert sorted(left) == [".command.err", ".command.out"]
    assert words in (tmp_path / "task" / ".command.err").read_text()


@pytest.mark.parametrize(
    ("then", "code"),
    [
        ("", 0),
        ("nxf_main_ret=1", 1),
        ("NXF_SCRATCH=\ntruncate -s 0 ../task/linked.json", 0),
    ],
    ids=["whole", "failed", "no scratch"],
)
def test_other_results_are_left_alone(tmp_path, wrapper, then, code):
    done = wrapper(f"nxf_unstage\n{then}")
    assert (done.returncode, done.stderr) == (code, "")
    left = sorted(path.name for path in (tmp_path / "task").iterdir())
    assert left == [".command.out", "a store", "linked.json", "records"]
