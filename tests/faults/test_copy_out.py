"""A copy-out that a full disk cuts short fails its task by name, and leaves nothing cut behind."""

import re
import subprocess
from pathlib import Path

import pytest
from runs import checksums

from octane.steps.materialize import verify

LEFT = 50_000
"""Bytes left on the disk when N4's results are copied there: less than they take."""


@pytest.mark.soak
@pytest.mark.fault
def test_a_copy_that_is_cut_short_fails_by_name_and_is_made_good_by_resume(
    nextflow, succeeding, volume, small_disk, undisturbed, tmp_path
):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    disk = small_disk("disk", "size=64m")
    given = (*volume, "--scratch_dir", scratch, "-w", disk / "work")
    free = "$(df --output=avail -B1 . | tail -n 1)"
    fill = f"head -c $(({free} - {LEFT})) /dev/zero > {disk}/ballast"
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
    assert f"octane stopped: {message}" in words
    assert re.search(message + r"tissue_\w+.ome.zarr/0/c/0/0/0 has \d+ of \d+ bytes", words)
    assert "run again with -resume" in words
    (task,) = (disk / "work").glob(f"{row['hash']}*")
    assert all(path.name.startswith(".") for path in task.iterdir())
    assert message in (task / ".command.err").read_text()
    assert not list(scratch.iterdir())

    (disk / "ballast").unlink()
    resumed = succeeding(tmp_path, *given, "-resume")
    assert resumed.processes("COMPLETED") == {"N4", "PYRAMID"}
    for store in (disk / "work").glob("*/*/*.ome.zarr"):
        assert verify(store) == 1
    assert checksums(resumed.outdir) == undisturbed.sums


def wrapper(folder, copies):
    """What Nextflow's wrapper does after a task, with a copy-out of one's own."""
    guard = Path(__file__).resolve().parents[2] / "lib" / "scratch_copy_check.sh"
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
    nxf_unstage() {{
        cp .command.out {folder}/task/ || true
        [[ ${{nxf_main_ret:=0}} != 0 ]] && return
        IFS=$'\\n'
        for name in 'a store' records linked.json; do
            nxf_fs_copy "$name" {folder}/task || true
        done
        unset IFS
    }}
    echo said > .command.out
    {copies}
    source {guard}
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
def test_whatever_is_cut_short_is_named_and_removed(tmp_path, damage, words):
    done = wrapper(tmp_path, f"nxf_unstage\n(cd {tmp_path} && {damage})")
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
def test_all_else_is_left_alone(tmp_path, then, code):
    done = wrapper(tmp_path, f"nxf_unstage\n{then}")
    assert (done.returncode, done.stderr) == (code, "")
    left = sorted(path.name for path in (tmp_path / "task").iterdir())
    assert left == [".command.out", "a store", "linked.json", "records"]
