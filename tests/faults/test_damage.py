"""Chunks that are cut short or gone, in the input and between steps, and links to nothing."""

import os
import shutil
from contextlib import contextmanager

import pytest
from runs import checksums, last_words

pytestmark = [pytest.mark.slow, pytest.mark.fault]


@pytest.fixture(scope="module")
def folder(undisturbed):
    """Where the undisturbed run was launched, whose tasks are cached."""
    return undisturbed.folder


@contextmanager
def changed(path, content):
    """A file with other content, or gone; all is put back at the end, its times as well."""
    kept, own, above = path.read_bytes(), path.stat(), path.parent.stat()
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    try:
        yield
    finally:
        path.write_bytes(kept)
        os.utime(path, ns=(own.st_atime_ns, own.st_mtime_ns))
        os.utime(path.parent, ns=(above.st_atime_ns, above.st_mtime_ns))


def damaged(chunk, how):
    """What a chunk holds when it is damaged; None where it is gone."""
    content = bytearray(chunk.read_bytes())
    content[len(content) // 2] ^= 1
    return {"gone": None, "cut short": bytes(content[:-100]), "altered": bytes(content)}[how]


@pytest.mark.parametrize(
    ("how", "step", "words"),
    [
        ("gone", "PREFLIGHT", "chunk 0/c/0/0/0"),
        ("cut short", "N4", "chunk 0/c/0/0/0 cannot be decoded"),
    ],
    ids=["gone", "cut short"],
)
def test_a_chunk_of_the_input(
    nextflow, folder, phantom, volume, undisturbed, told, plain, tmp_path, how, step, words
):
    out = tmp_path / "out"
    chunk = phantom / "truth" / "tissue.ome.zarr" / "0" / "c" / "0" / "0" / "0"
    with changed(chunk, damaged(chunk, how)):
        run = nextflow(folder, *volume, "-resume", outdir=out)
    assert run.code == 1
    said = last_words(run.output)
    assert f"tissue.ome.zarr: {words}" in said
    assert run.processes("FAILED") == {step}
    assert checksums(run.outdir) == {}
    again = nextflow(folder, *volume, "-resume", outdir=out)
    assert again.code == 0, again.output
    assert {"N4 (tissue)", "PYRAMID (tissue)"} <= set(again.tasks("CACHED"))
    assert checksums(again.outdir) == undisturbed.sums
    told(
        "lost and damaged data",
        f"a chunk of the input is {how}",
        f"{step} names it" + (" before any work is queued" if step == "PREFLIGHT" else ""),
        "error; restored, and with `-resume`, the same checksums",
        plain(said),
    )


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("gone", "chunk 0/c/0/0/0 is missing"),
        ("cut short", "chunk 0/c/0/0/0 cannot be decoded"),
        ("altered", "chunk 0/c/0/0/0 cannot be decoded"),
    ],
    ids=["gone", "cut short", "altered"],
)
def test_a_chunk_between_two_steps(
    nextflow, folder, volume, undisturbed, told, plain, tmp_path, how, words
):
    out = tmp_path / "out"
    made = undisturbed.n4
    task, chunk = made.parent, made / "0/c/0/0/0"
    # N4 is cached, and PYRAMID has to run again.
    other = ("--pyramid_resolutions", "10 20")
    with changed(chunk, damaged(chunk, how)):
        run = nextflow(folder, *volume, *other, "-resume", outdir=out)
    assert run.code == 1
    assert "N4 (tissue)" in run.tasks("CACHED")
    assert run.tasks("FAILED") == ["PYRAMID (tissue)"]
    said = last_words(run.output)
    assert f".ome.zarr: {words}" in said
    # The remedy: without its folder, the task that made it runs again.
    assert f"remove {task} and run again with -resume" in said
    shutil.rmtree(task)
    again = nextflow(folder, *volume, "-resume", outdir=out)
    assert again.code == 0, again.output
    assert "N4 (tissue)" in again.tasks("COMPLETED")
    assert checksums(again.outdir) == undisturbed.sums
    told(
        "lost and damaged data",
        f"a chunk of N4's output in the work directory is {how} before PYRAMID reads it",
        "PYRAMID names it; without that task's folder, `-resume` makes it again",
        "error; with `-resume` the same checksums",
        plain(said, TASK=task),
    )


def test_a_link_of_the_input_leads_nowhere(nextflow, phantom, mosaics, told, plain, tmp_path):
    (tmp_path / "in").mkdir()
    for section in (phantom / "mosaics").iterdir():
        (tmp_path / "in" / section.name).symlink_to(section)
    (tmp_path / "in" / "section_03.ome.zarr").symlink_to(tmp_path / "gone.ome.zarr")
    run = nextflow(tmp_path, *mosaics, "--input", tmp_path / "in")
    assert run.code == 1
    words = last_words(run.output)
    assert "section_03.ome.zarr is a link to a file that is not there" in words
    assert run.processes() <= {"PREFLIGHT"}
    told(
        "lost and damaged data",
        "a section of the input is a link to what is gone",
        "it is named before any work is queued",
        "error",
        plain(words, IN=tmp_path / "in"),
    )


def test_the_work_directory_is_deleted_after_a_run(
    nextflow, volume, undisturbed, told, plain, tmp_path
):
    first = nextflow(tmp_path, *volume)
    assert first.code == 0, first.output
    shutil.rmtree(tmp_path / "work")
    result = first.outdir / "tissue" / "tissue.ome.zarr"
    assert result.is_symlink()
    assert not result.exists()
    again = nextflow(tmp_path, *volume, "-resume")
    assert again.code == 0, again.output
    assert again.tasks("CACHED") == []
    assert checksums(again.outdir) == undisturbed.sums
    told(
        "lost and damaged data",
        "the work directory is deleted, and the results are links into it",
        "each run's last words say that it must stay; `-resume` makes everything again",
        "recovery with `-resume`; the same checksums",
        next(line for line in plain(first.output).splitlines() if "links into" in line),
    )
