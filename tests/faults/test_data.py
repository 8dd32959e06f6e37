"""Damaged, missing or changed data, in the input and between steps, and clocks that jump."""

import datetime
import os
import shutil
import unicodedata

import pytest
import zarr
from runs import changed, checksums, last_words

pytestmark = pytest.mark.fault


@pytest.mark.soak
@pytest.mark.parametrize(
    ("kept", "step", "words"),
    [
        (None, "PREFLIGHT", "chunk 0/c/0/0/0"),
        (slice(-100), "N4", "chunk 0/c/0/0/0 cannot be decoded"),
    ],
    ids=["gone", "cut short"],
)
def test_a_chunk_of_the_input(
    nextflow, succeeding, phantom, volume, undisturbed, tmp_path, kept, step, words
):
    out = tmp_path / "out"
    chunk = phantom / "truth" / "tissue.ome.zarr" / "0" / "c" / "0" / "0" / "0"
    with changed(chunk, kept and chunk.read_bytes()[kept]):
        run = nextflow(undisturbed.folder, *volume, "-resume", outdir=out)
    assert run.code == 1
    assert f"tissue.ome.zarr: {words}" in last_words(run.output)
    # PREFLIGHT's task succeeds, but no task follows it.
    assert (run.processes("FAILED") or run.processes()) == {step}
    assert checksums(run.outdir) == {}
    again = succeeding(undisturbed.folder, *volume, "-resume", outdir=out)
    assert {"N4 (tissue)", "PYRAMID (tissue)"} <= set(again.tasks("CACHED"))
    assert checksums(again.outdir) == undisturbed.sums


@pytest.mark.parametrize(
    ("kept", "words"),
    [
        pytest.param(None, "is missing", id="gone", marks=pytest.mark.soak),
        pytest.param(slice(-100), "cannot be decoded", id="cut short"),
    ],
)
def test_a_chunk_between_two_steps(
    nextflow, succeeding, volume, undisturbed, tmp_path, kept, words
):
    out = tmp_path / "out"
    task, chunk = undisturbed.n4.parent, undisturbed.n4 / "0/c/0/0/0"
    # N4 is cached; PYRAMID must run again.
    other = ("--pyramid_resolutions", "10 20")
    with changed(chunk, kept and chunk.read_bytes()[kept]):
        run = nextflow(undisturbed.folder, *volume, *other, "-resume", outdir=out)
    assert run.code == 1
    assert "N4 (tissue)" in run.tasks("CACHED")
    assert run.tasks("FAILED") == ["PYRAMID (tissue)"]
    said = last_words(run.output)
    assert f".ome.zarr: chunk 0/c/0/0/0 {words}" in said
    # The remedy: remove the folder of the task that made the chunk, so that it runs again.
    assert f"remove {task} and run again with -resume" in said
    shutil.rmtree(task)
    again = succeeding(undisturbed.folder, *volume, "-resume", outdir=out)
    assert "N4 (tissue)" in again.tasks("COMPLETED")
    assert checksums(again.outdir) == undisturbed.sums


def test_a_link_of_the_input_leads_nowhere(nextflow, phantom, mosaics, tmp_path):
    (tmp_path / "in").mkdir()
    for section in (phantom / "mosaics").iterdir():
        (tmp_path / "in" / section.name).symlink_to(section)
    (tmp_path / "in" / "section_03.ome.zarr").symlink_to(tmp_path / "gone.ome.zarr")
    run = nextflow(tmp_path, *mosaics, "--input", tmp_path / "in")
    assert run.code == 1
    said = "section_03.ome.zarr links to a file that does not exist"
    assert said in last_words(run.output)
    assert run.processes() <= {"PREFLIGHT"}


@pytest.mark.soak
def test_names_differ_only_in_how_an_accent_is_stored(nextflow, phantom, mosaics, tmp_path):
    # As in copies from macOS and from Windows.
    names = [unicodedata.normalize(form, "coupé") for form in ("NFC", "NFD")]
    for name in names:
        place = tmp_path / "in" / f"{name}_01.ome.zarr"
        if place.exists():
            pytest.skip("this file system treats both names as the same")
        shutil.copytree(phantom / "mosaics" / "section_01.ome.zarr", place)
    utf8 = {"LC_ALL": "C.UTF-8"}
    run = nextflow(tmp_path, *mosaics, "--input", tmp_path / "in", env=utf8)
    assert run.code == 1
    assert "_01.ome.zarr are both section 1; rename one" in last_words(run.output)
    assert run.processes() == {"PREFLIGHT"}
    sheet = tmp_path / "cohort.csv"
    rows = "".join(f"{name},{phantom}/mosaics\n" for name in names)
    sheet.write_text(f"subject,input\n{rows}", encoding="utf-8")
    run = nextflow(tmp_path, *mosaics[:-2], "--samplesheet", sheet, env=utf8)
    assert run.code == 1
    said = f"{sheet}, line 3: the subject {names[1]} is already in line 2"
    assert said in last_words(run.output)
    assert run.processes() == {"PREFLIGHT"}


@pytest.mark.soak
def test_the_work_directory_is_deleted_after_a_run(succeeding, volume, undisturbed, tmp_path):
    first = succeeding(tmp_path, *volume)
    assert f"They are links into {tmp_path / 'work'}, which must stay." in first.output
    shutil.rmtree(tmp_path / "work")
    result = first.outdir / "tissue" / "tissue.ome.zarr"
    assert result.is_symlink()
    assert not result.exists()
    again = succeeding(tmp_path, *volume, "-resume")
    assert again.tasks("CACHED") == []
    assert checksums(again.outdir) == undisturbed.sums


@pytest.mark.soak
def test_the_input_and_a_mask_change_during_a_run(start_nextflow, volume, phantom, tmp_path):
    stores = [shutil.copytree(volume[-1], tmp_path / "tissue.ome.zarr"), tmp_path / "mask.ome.zarr"]
    shutil.copytree(phantom / "truth" / "bias.ome.zarr", stores[1])
    zarr.open_array(stores[1], path="0", mode="r+")[:] = 1
    run = start_nextflow(tmp_path, *volume, "--input", stores[0], "--n4_mask", stores[1])
    run.of_task("python", "n4.py")
    for store in stores:
        os.utime(store / "0" / "c" / "0" / "0" / "0")
    ended = run.wait()
    assert ended.code == 1
    words = f"{stores[0]}, {stores[1]} changed while the run read it"
    assert words in last_words(ended.output)
    assert "Results:" not in ended.output
    assert f"tissue: Incomplete: {words}" in ended.output
    # These results mix two states of the input. If they stayed, and the first state was restored,
    # -resume would reuse what a task made from the second.
    assert not [*ended.outdir.glob("tissue/*.ome.zarr")]
    assert not [*tmp_path.glob("work/??/*/n4_metrics.json")]


@pytest.mark.soak
def test_the_clock_jumps(succeeding, volume, undisturbed, tmp_path):
    source = shutil.copytree(volume[-1], tmp_path / "tissue.ome.zarr")
    given = (tmp_path, *volume, "--input", source)

    def at(year, paths):
        second = datetime.datetime(year, 1, 1, tzinfo=datetime.UTC).timestamp()
        for path in paths:
            os.utime(path, (second, second), follow_symlinks=False)

    at(2100, source.rglob("*"))
    at(1971, [source / "zarr.json"])
    first = succeeding(*given)
    assert checksums(first.outdir) == undisturbed.sums
    # As if the clock was set back by decades between two runs.
    at(2090, (tmp_path / "work").rglob("*"))
    again = succeeding(*given, "-resume")
    assert checksums(again.outdir) == undisturbed.sums
    assert "N4 (tissue)" in again.tasks("CACHED")
