"""A subject with a failed task is called incomplete in its report and the run's last lines."""

import json
import os
import shutil

import pytest
from runs import checksums, last_words

pytestmark = pytest.mark.fault

IGNORE = "process.errorStrategy = 'ignore'\n"


@pytest.fixture(scope="module")
def cohort(phantom, tmp_path_factory):
    """A folder with a samplesheet of a volume and two subjects with their own mosaics.

    ``two.csv`` lacks the last one.
    """
    folder = tmp_path_factory.mktemp("cohort")
    shutil.copytree(phantom / "truth" / "tissue.ome.zarr", folder / "a")
    for name in ("b", "c"):
        shutil.copytree(phantom / "mosaics", folder / name)
    rows = [f"{name},{folder / name}\n" for name in ("a", "b", "c")]
    for name, lines in (("two.csv", rows[:2]), ("sheet.csv", rows)):
        (folder / name).write_text(f"subject,input\n{''.join(lines)}", encoding="utf-8")
    (folder / "ignore.config").write_text(IGNORE, encoding="utf-8")
    return folder


@pytest.fixture
def damage():
    """Cut chunks short, and restore them at the end."""
    kept = {}

    def cut(*chunks):
        for chunk in chunks:
            kept[chunk] = (chunk.read_bytes(), chunk.stat())
            chunk.write_bytes(kept[chunk][0][:-100])

    yield cut
    for chunk, (content, times) in kept.items():
        chunk.write_bytes(content)
        os.utime(chunk, ns=(times.st_atime_ns, times.st_mtime_ns))


def chunk(folder, section):
    return folder / f"section_{section:02d}.ome.zarr" / "0" / "c" / "0" / "0" / "0"


def twin(outdir, subject):
    path = outdir / subject / f"{subject}_report.json"
    return json.loads(path.read_text(encoding="utf-8"))


WAYS = {"--keep_going": ("--keep_going",), "ignore": ("-c", "ignore.config")}


@pytest.mark.parametrize("way", ["--keep_going", pytest.param("ignore", marks=pytest.mark.soak)])
def test_a_failed_subject_is_incomplete_and_the_others_are_finished(
    nextflow, succeeding, cohort, quick, damage, way
):
    folder, outdir = cohort, cohort / f"out {way.strip('-')}"
    given = (folder, *quick, "-resume", "--samplesheet")
    first = succeeding(*given, folder / "two.csv", outdir=outdir)
    assert "\nb: Good" in first.output or "\nb: Look" in first.output
    earlier = (outdir / "b" / "b.ome.zarr").resolve()

    # One of two sections of b fails, and both of c, which is new.
    damage(chunk(folder / "b", 2), chunk(folder / "c", 1), chunk(folder / "c", 2))
    run = nextflow(*given, folder / "sheet.csv", *WAYS[way], outdir=outdir)
    assert run.code == 1
    report = twin(outdir, "b")
    assert report["state"] == "incomplete"
    assert report["verdict"].startswith("Incomplete: RESAMPLE of section_02 failed: ")
    assert "chunk 0/c/0/0/0 cannot be decoded" in report["verdict"]
    assert "Not started: STITCH of section_02, STACK, N4 and PYRAMID." in report["verdict"]
    page = (outdir / "b" / "b_report.html").read_text(encoding="utf-8")
    assert '<p class="verdict incomplete">Incomplete: ' in page
    lost = twin(outdir, "c")
    assert lost["state"] == "incomplete"
    assert lost["verdict"].startswith("Incomplete: RESAMPLE of section_01 failed: ")
    assert twin(outdir, "a")["state"] != "incomplete"

    # Results of the first run are not mistaken for this one's, and none are lost.
    assert sorted(path.name for path in (outdir / "b").glob("*.ome.zarr")) == []
    (aside,) = (outdir / "b").glob("earlier_*")
    assert (aside / "b.ome.zarr").resolve() == earlier
    assert (aside / "metrics" / "n4_metrics.json").is_file()
    names = {path.name for path in (outdir / "b" / "metrics").iterdir()}
    assert names == {"section_01_resample_metrics.json", "section_01_stitch_metrics.json"}
    assert (outdir / "a" / "a.ome.zarr" / "zarr.json").exists()
    assert not list((outdir / "a").glob("earlier_*"))

    cohort_page = (outdir / "cohort_report.html").read_text(encoding="utf-8")
    assert "incomplete" in cohort_page
    words = run.output
    assert "\nb: Incomplete: RESAMPLE of section_02 failed: " in words
    assert "\nc: Incomplete: RESAMPLE of section_01 failed: " in words
    assert "\na: Incomplete" not in words
    assert "\n3 subjects: 2 incomplete, 1 " in words
    assert "run again with -resume" in words


def test_a_stopped_run_says_the_state_of_every_subject(nextflow, cohort, quick, damage):
    damage(chunk(cohort / "b", 2))
    outdir = cohort / "stopped"
    run = nextflow(cohort, *quick, "--samplesheet", cohort / "sheet.csv", "-resume", outdir=outdir)
    assert run.code == 1
    assert "chunk 0/c/0/0/0 cannot be decoded" in last_words(run.output)
    assert "\nb: failed: RESAMPLE of section_02" in run.output
    for other in ("a", "c"):
        states = ("not begun", "unfinished", "Good", "Look")
        assert any(f"\n{other}: {state}" in run.output for state in states), run.output
    assert "run again with -resume" in run.output


@pytest.mark.soak
@pytest.mark.parametrize("way", [(), ("--keep_going",)], ids=["stopped", "kept going"])
def test_a_subject_that_needs_what_was_emptied_begins_again(
    nextflow, succeeding, quick, phantom, way, tmp_path
):
    def write(dtype):
        rows = [f"a,{phantom / 'mosaics'},input", f"b,{phantom / 'mosaics'},{dtype}"]
        text = "\n".join(["subject,input,n4_dtype", *rows]) + "\n"
        (tmp_path / "cohort.csv").write_text(text, encoding="utf-8")

    given = (
        *(*quick, "--skip_report", "--samplesheet", "cohort.csv"),
        *("--keep_intermediates", "false", *way),
    )
    write("input")
    before = checksums(succeeding(tmp_path, *given).outdir)
    write("float64")
    run = nextflow(tmp_path, *given, "-resume")
    assert run.code == 1
    assert run.tasks("FAILED") == ["N4 (b)"]
    words = last_words(run.output) if not way else run.output
    assert "b_stack.ome.zarr was emptied after use (--keep_intermediates false)" in words
    assert "run again with -resume, which makes it again." in words
    again = succeeding(tmp_path, *given, "-resume")
    assert {task for task in again.tasks("COMPLETED") if "PREFLIGHT" not in task} == {
        *("RESAMPLE (b:section_01)", "RESAMPLE (b:section_02)", "STITCH (b:section_01)"),
        *("STITCH (b:section_02)", "STACK (b)", "N4 (b)", "PYRAMID (b)"),
    }
    after = checksums(again.outdir)
    assert {name for name in after if after[name] != before[name]} == {
        name for name in before if name.startswith("b.")
    }
    assert len(list(tmp_path.glob("work/??/*/*.ome.zarr/0/emptied.json"))) == 10


@pytest.mark.soak
@pytest.mark.parametrize("mode", ["symlink", "copy"])
def test_a_result_is_not_published(nextflow, succeeding, quick, phantom, tmp_path, mode):
    (tmp_path / "fault.config").write_text(
        "process { withName: PYRAMID { publishDir = [] } }\n", encoding="utf-8"
    )
    volume = phantom / "truth" / "tissue.ome.zarr"
    given = (*quick, "--input", volume, "--subject", "brain", "--skip_n4", "--resolution", "none")
    given += ("--publish_dir_mode", mode)
    result = tmp_path / "out" / "brain" / "brain.ome.zarr"
    run = nextflow(tmp_path, *given, "-c", "fault.config")
    assert run.code == 1
    assert f"brain: Incomplete: {result.parent} lacks {result.name}" in run.output
    # Nextflow has kept what it knows.
    again = succeeding(tmp_path, *given, "-resume")
    assert again.processes("CACHED") == {"PYRAMID"}
    assert list(checksums(again.outdir)) != []
    # That of an earlier run is not the result.
    changed = (*given, "--pyramid_resolutions", "10 40", "-resume")
    run = nextflow(tmp_path, *changed, "-c", "fault.config")
    assert run.code == 1
    assert f"{result.parent} lacks {result.name}" in run.output
