"""Inputs that change, between runs and during one, and clocks that jump."""

import datetime
import gzip
import json
import os
import shutil

import pytest
import zarr
from runs import changed, checksums, last_words

pytestmark = pytest.mark.fault


@pytest.fixture
def source(phantom, tmp_path):
    """A volume of this test's own."""
    return shutil.copytree(phantom / "truth" / "tissue.ome.zarr", tmp_path / "tissue.ome.zarr")


@pytest.fixture
def on_source(volume, source):
    """Arguments of a run on it."""
    return [*volume[:-1], source]


@pytest.mark.soak
def test_the_input_changes_between_runs(nextflow, volume, phantom, undisturbed, told, tmp_path):
    store = phantom / "truth" / "tissue.ome.zarr"
    chunk = store / "0" / "c" / "0" / "0" / "0"
    other = store.with_name("bias.ome.zarr") / chunk.relative_to(store)
    given = (undisturbed.folder, *volume, "-resume")
    with changed(chunk, other.read_bytes()):
        run = nextflow(*given, outdir=tmp_path / "other")
    assert run.code == 0, run.output
    assert run.tasks("CACHED") == []
    ran = run.tasks("COMPLETED")
    assert {"N4 (tissue)", "PYRAMID (tissue)"} <= set(ran)
    assert checksums(run.outdir) != undisturbed.sums
    again = nextflow(*given, outdir=tmp_path / "other")
    assert again.code == 0, again.output
    assert {"N4 (tissue)", "PYRAMID (tissue)"} <= set(again.tasks("CACHED"))
    assert checksums(again.outdir) == undisturbed.sums
    told(
        f"with the other chunk {', '.join(ran)} ran; with the first one "
        f"{', '.join(again.tasks('CACHED'))} were cached"
    )


def touched(run, store):
    """Write a store while N4 reads it; the last words of the run."""
    run.of_task("python", "n4.py")
    os.utime(store / "0" / "c" / "0" / "0" / "0")
    assert run.wait().code == 1
    words = last_words(run.output)
    assert f"{store} changed while the run read it" in words
    assert "Results:" not in run.output
    return words


def test_the_input_changes_during_a_run(started, on_source, source, told, plain, tmp_path):
    words = touched(started(tmp_path, *on_source), source)
    told(plain(words, INPUT=source))


@pytest.mark.soak
def test_a_mask_changes_during_a_run(started, succeeding, volume, phantom, told, plain, tmp_path):
    mask = shutil.copytree(phantom / "truth" / "bias.ome.zarr", tmp_path / "mask.ome.zarr")
    zarr.open_array(mask, path="0", mode="r+")[:] = 1
    given = [*volume, "--n4_mask", mask]
    words = touched(started(tmp_path, *given), mask)
    again = succeeding(tmp_path, *given, "-resume")
    assert "N4 (tissue)" in again.tasks("COMPLETED")
    straight = succeeding(tmp_path / "elsewhere", *given)
    assert checksums(again.outdir) == checksums(straight.outdir)
    told(plain(words, MASK=mask))


BEHIND = 10 * 365.25 * 86400
CLOCK = f"""\
import sys, time

if any(word.endswith("/n4.py") for word in sys.orig_argv):
    now, now_ns = time.time, time.time_ns
    time.time = lambda: now() - {BEHIND}
    time.time_ns = lambda: now_ns() - {round(BEHIND * 1e9)}
"""
"""What Python reads before a program: N4's clock is ten years behind the others'."""


def recorded(outdir):
    """When N4 and PYRAMID began, by their own clocks; their places in the subject's trace."""
    folder = outdir / "tissue"
    assert "<html" in (folder / "tissue_report.html").read_text(encoding="utf-8")
    trace = json.loads(gzip.decompress((folder / "tissue_trace.json.gz").read_bytes()))
    starts, places = [], []
    for name in ("n4", "pyramid"):
        record = json.loads((folder / "metrics" / f"{name}_metrics.json").read_text("utf-8"))
        starts.append(record["timeline"]["started"])
        (process,) = (
            event["pid"]
            for event in trace["traceEvents"]
            if event["name"] == "process_name" and name in event["args"]["name"].lower()
        )
        events = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["pid"] == process]
        places.append(min(event["ts"] for event in events) / 1e6)
    return starts, places


@pytest.mark.soak
def test_the_clock_jumps(nextflow, on_source, source, undisturbed, told, tmp_path):
    def at(year, paths):
        second = datetime.datetime(year, 1, 1, tzinfo=datetime.UTC).timestamp()
        for path in paths:
            os.utime(path, (second, second), follow_symlinks=False)

    at(2100, source.rglob("*"))
    at(1971, [source / "zarr.json"])
    (tmp_path / "clock").mkdir()
    (tmp_path / "clock" / "sitecustomize.py").write_text(CLOCK, encoding="utf-8")
    given = [word for word in on_source if word != "--skip_report"]
    first = nextflow(tmp_path, *given, env={"PYTHONPATH": str(tmp_path / "clock")})
    assert first.code == 0, first.output
    assert checksums(first.outdir) == undisturbed.sums
    (n4, pyramid), places = recorded(first.outdir)
    assert pyramid - n4 == pytest.approx(BEHIND, abs=600)
    assert places == [pytest.approx(0, abs=60), pytest.approx(BEHIND, abs=600)]
    # As a clock that is set back by decades between two runs leaves them.
    at(2090, (tmp_path / "work").rglob("*"))
    again = nextflow(tmp_path, *given, "-resume")
    assert again.code == 0, again.output
    assert checksums(again.outdir) == undisturbed.sums
    assert "N4 (tissue)" in again.tasks("CACHED")
    assert recorded(again.outdir)[0][0] == n4
    told(
        "report and trace were built both times; with `-resume`, "
        f"{', '.join(again.tasks('CACHED'))} were cached and "
        f"{', '.join(again.tasks('COMPLETED')) or 'nothing'} ran again"
    )
