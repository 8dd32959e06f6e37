"""A disk that is full: a sentence with place and remedy, and the same results afterwards."""

import contextlib
import subprocess

import pytest
from runs import checksums, last_words, partial_files, whole

pytestmark = [pytest.mark.soak, pytest.mark.fault]


def fill(place):
    """Leave no byte free, and give what takes the space."""
    filler = place / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as stream:
        while True:
            stream.write(b"\0" * 4096)
    return filler


def test_the_work_directory_fills_up(
    start_nextflow, succeeding, small_disk, volume, undisturbed, tmp_path
):
    work = small_disk("work", "size=64m")
    run = start_nextflow(tmp_path, *volume, "-w", work)
    run.of_task("python", "n4.py")
    filler = fill(work)
    assert run.wait().code != 0
    words = last_words(run.output)
    assert "o space left" in words
    assert str(work) in words
    assert "-resume" in words
    assert whole(work) == []
    assert partial_files(work) == []
    filler.unlink()
    again = succeeding(tmp_path, *volume, "-w", work, "-resume")
    assert "PREFLIGHT (tissue)" in again.tasks("CACHED")
    assert checksums(again.outdir) == undisturbed.sums


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


def test_the_output_is_full_when_results_are_copied_there(
    nextflow, succeeding, small_disk, volume, undisturbed
):
    out = small_disk("out", "size=100k")
    # All tasks are cached: only the results are copied. PREFLIGHT would refuse so small a disk; one
    # that others fill meanwhile it cannot foresee.
    arguments = (*volume, "--publish_dir_mode", "copy", "--check_space", "false", "-resume")
    run = nextflow(undisturbed.folder, *arguments, outdir=out / "results")
    assert run.code != 0
    words = last_words(run.output)
    assert str(out / "results") in words
    assert "no space left on device" in words
    assert "-resume" in words
    assert "Results:" not in run.output
    subprocess.run(["mount", "-o", "remount,size=20m", str(out)], check=True)
    again = succeeding(undisturbed.folder, *arguments, outdir=out / "results")
    assert {"N4 (tissue)", "PYRAMID (tissue)"} <= set(again.tasks("CACHED"))
    assert not any(path.is_symlink() for path in (out / "results").rglob("*"))
    assert checksums(out / "results") == undisturbed.sums
