"""A copy-out that a full disk cuts short fails its task by name, and leaves nothing cut behind."""

import re
import subprocess
from pathlib import Path

import pytest

from octane.steps.materialize import verify

pytestmark = pytest.mark.slow

LEFT = 50_000
"""Bytes left on the disk when N4's results are copied there: less than they take."""


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 64 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", folder],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"a file system can be mounted by root alone: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.fixture
def run(nextflow, phantom, quick, small_disk, tmp_path):
    """Run with the work folder on the small disk and a scratch folder on another."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()

    def started(*arguments, folder):
        folder.mkdir(exist_ok=True)
        return nextflow(
            *(folder, *quick, "--input", phantom / "mosaics", "--subject", "s"),
            *("--skip_report", "--scratch_dir", scratch, "-w", small_disk / "work", *arguments),
        )

    return started


def contents(store):
    """Contents of all files of a store."""
    store = store.resolve()
    return {p.relative_to(store): p.read_bytes() for p in store.rglob("*") if p.is_file()}


@pytest.mark.fault
def test_a_copy_that_is_cut_short_fails_by_name_and_is_made_good_by_resume(
    run, small_disk, told, tmp_path
):
    ballast = small_disk / "ballast"
    full = tmp_path / "full.config"
    free = "$(df --output=avail -B1 . | tail -n 1)"
    fill = f"head -c $(({free} - {LEFT})) /dev/zero > {ballast}"
    full.write_text(
        f"""process {{
            errorStrategy = 'terminate'
            withName: N4 {{
                beforeScript = '{fill}'
            }}
        }}"""
    )
    folder = tmp_path / "launch"
    failed = run("-c", full, folder=folder)
    assert failed.code != 0
    (row,) = (row for row in failed.trace if "N4" in row["name"])
    assert (row["status"], row["exit"]) == ("FAILED", "28")
    message = "error: The results could not be copied from the scratch folder: "
    words = " ".join(failed.output.split())
    assert message in words
    assert re.search(r"scratch folder: s_n4.ome.zarr/0/c/0/0/0 has \d+ of \d+ bytes", words)
    assert "run again with -resume" in words
    assert "octane stopped: The results could not be copied" in words
    (task,) = (small_disk / "work").glob(f"{row['hash']}*")
    assert all(path.name.startswith(".") for path in task.iterdir())
    assert message in (task / ".command.err").read_text()
    assert not list((tmp_path / "scratch").iterdir())

    ballast.unlink()
    resumed = run("-resume", folder=folder)
    assert resumed.code == 0, resumed.output
    assert "N4" not in resumed.processes("CACHED")
    assert resumed.processes("COMPLETED") == {"N4", "PYRAMID"}
    for store in (small_disk / "work").glob("*/*/*.ome.zarr"):
        assert verify(store) == 1
    undisturbed = run(folder=tmp_path / "undisturbed")
    assert undisturbed.code == 0, undisturbed.output
    results = [made.outdir / "s" / "s.ome.zarr" for made in (resumed, undisturbed)]
    assert contents(results[0]) == contents(results[1])
    said = re.findall(r"The results could not be copied .*? bytes", words)
    told(
        "no space",
        "the work directory fills up while N4's results are copied there from the scratch folder, "
        "which Nextflow does not notice",
        "each file is held against what was made; the task fails by name and leaves nothing cut",
        "error; with space and `-resume` the same files",
        f"exit {row['exit']}: {said[0]}",
    )


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
    echo told > .command.out
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


@pytest.mark.parametrize("code", [0, 1])
def test_a_copy_that_is_whole_and_a_task_that_failed_are_let_be(tmp_path, code):
    done = wrapper(tmp_path, f"nxf_unstage\nnxf_main_ret={code}")
    assert (done.returncode, done.stderr) == (code, "")
    assert sorted(p.name for p in (tmp_path / "task").iterdir()) == [
        ".command.out", "a store", "linked.json", "records",
    ]  # fmt: skip


def test_nothing_is_looked_at_where_there_was_no_scratch(tmp_path):
    done = wrapper(tmp_path, "nxf_unstage\nNXF_SCRATCH=\ntruncate -s 0 ../task/linked.json")
    assert (done.returncode, done.stderr) == (0, "")
