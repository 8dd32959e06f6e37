"""Chunks that are cut short or gone, in the input and between steps, and links to nothing."""

import shutil

import pytest
from runs import changed, checksums, last_words

pytestmark = pytest.mark.fault


def damaged(chunk, how):
    """What a chunk holds when it is damaged; None where it is gone."""
    content = bytearray(chunk.read_bytes())
    content[len(content) // 2] ^= 1
    return {"gone": None, "cut short": bytes(content[:-100]), "altered": bytes(content)}[how]


@pytest.mark.soak
@pytest.mark.parametrize(
    ("how", "step", "words"),
    [
        ("gone", "PREFLIGHT", "chunk 0/c/0/0/0"),
        ("cut short", "N4", "chunk 0/c/0/0/0 cannot be decoded"),
    ],
    ids=["gone", "cut short"],
)
def test_a_chunk_of_the_input(
    nextflow, succeeding, phantom, volume, undisturbed, observed, plain, tmp_path, how, step, words
):
    out = tmp_path / "out"
    chunk = phantom / "truth" / "tissue.ome.zarr" / "0" / "c" / "0" / "0" / "0"
    with changed(chunk, damaged(chunk, how)):
        run = nextflow(undisturbed.folder, *volume, "-resume", outdir=out)
    assert run.code == 1
    said = last_words(run.output)
    assert f"tissue.ome.zarr: {words}" in said
    # PREFLIGHT itself ends well: nothing follows it.
    assert (run.processes("FAILED") or run.processes()) == {step}
    assert checksums(run.outdir) == {}
    again = succeeding(undisturbed.folder, *volume, "-resume", outdir=out)
    assert {"N4 (tissue)", "PYRAMID (tissue)"} <= set(again.tasks("CACHED"))
    assert checksums(again.outdir) == undisturbed.sums
    observed(plain(said))


@pytest.mark.parametrize(
    ("how", "words"),
    [
        pytest.param("gone", "chunk 0/c/0/0/0 is missing", id="gone", marks=pytest.mark.soak),
        pytest.param("cut short", "chunk 0/c/0/0/0 cannot be decoded", id="cut short"),
        pytest.param(
            "altered", "chunk 0/c/0/0/0 cannot be decoded", id="altered", marks=pytest.mark.soak
        ),
    ],
)
def test_a_chunk_between_two_steps(
    nextflow, succeeding, volume, undisturbed, observed, plain, tmp_path, how, words
):
    out = tmp_path / "out"
    made = undisturbed.n4
    task, chunk = made.parent, made / "0/c/0/0/0"
    # N4 is cached, and PYRAMID has to run again.
    other = ("--pyramid_resolutions", "10 20")
    with changed(chunk, damaged(chunk, how)):
        run = nextflow(undisturbed.folder, *volume, *other, "-resume", outdir=out)
    assert run.code == 1
    assert "N4 (tissue)" in run.tasks("CACHED")
    assert run.tasks("FAILED") == ["PYRAMID (tissue)"]
    said = last_words(run.output)
    assert f".ome.zarr: {words}" in said
    # The remedy: without its folder, the task that made it runs again.
    assert f"remove {task} and run again with -resume" in said
    shutil.rmtree(task)
    again = succeeding(undisturbed.folder, *volume, "-resume", outdir=out)
    assert "N4 (tissue)" in again.tasks("COMPLETED")
    assert checksums(again.outdir) == undisturbed.sums
    observed(plain(said, TASK=task))


def test_a_link_of_the_input_leads_nowhere(nextflow, phantom, mosaics, observed, plain, tmp_path):
    (tmp_path / "in").mkdir()
    for section in (phantom / "mosaics").iterdir():
        (tmp_path / "in" / section.name).symlink_to(section)
    (tmp_path / "in" / "section_03.ome.zarr").symlink_to(tmp_path / "gone.ome.zarr")
    run = nextflow(tmp_path, *mosaics, "--input", tmp_path / "in")
    assert run.code == 1
    words = last_words(run.output)
    assert "section_03.ome.zarr is a link to a file that is not there" in words
    assert run.processes() <= {"PREFLIGHT"}
    observed(plain(words, IN=tmp_path / "in"))


@pytest.mark.soak
def test_the_work_directory_is_deleted_after_a_run(
    succeeding, volume, undisturbed, observed, plain, tmp_path
):
    first = succeeding(tmp_path, *volume)
    shutil.rmtree(tmp_path / "work")
    result = first.outdir / "tissue" / "tissue.ome.zarr"
    assert result.is_symlink()
    assert not result.exists()
    again = succeeding(tmp_path, *volume, "-resume")
    assert again.tasks("CACHED") == []
    assert checksums(again.outdir) == undisturbed.sums
    observed(next(line for line in plain(first.output).splitlines() if "links into" in line))
