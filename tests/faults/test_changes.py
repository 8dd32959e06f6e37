"""Inputs that change, between runs and during one, and clocks that jump."""

import datetime
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
def test_the_input_changes_between_runs(
    succeeding, volume, phantom, undisturbed, observed, tmp_path
):
    store = phantom / "truth" / "tissue.ome.zarr"
    chunk = store / "0" / "c" / "0" / "0" / "0"
    other = store.with_name("bias.ome.zarr") / chunk.relative_to(store)
    given = (undisturbed.folder, *volume, "-resume")
    with changed(chunk, other.read_bytes()):
        run = succeeding(*given, outdir=tmp_path / "other")
    assert run.tasks("CACHED") == []
    ran = run.tasks("COMPLETED")
    assert {"N4 (tissue)", "PYRAMID (tissue)"} <= set(ran)
    assert checksums(run.outdir) != undisturbed.sums
    again = succeeding(*given, outdir=tmp_path / "other")
    assert {"N4 (tissue)", "PYRAMID (tissue)"} <= set(again.tasks("CACHED"))
    assert checksums(again.outdir) == undisturbed.sums
    observed(
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


def test_the_input_changes_during_a_run(started, on_source, source, observed, plain, tmp_path):
    words = touched(started(tmp_path, *on_source), source)
    observed(plain(words, INPUT=source))


@pytest.mark.soak
def test_a_mask_changes_during_a_run(
    started, succeeding, volume, phantom, observed, plain, tmp_path
):
    mask = shutil.copytree(phantom / "truth" / "bias.ome.zarr", tmp_path / "mask.ome.zarr")
    zarr.open_array(mask, path="0", mode="r+")[:] = 1
    given = [*volume, "--n4_mask", mask]
    words = touched(started(tmp_path, *given), mask)
    again = succeeding(tmp_path, *given, "-resume")
    assert "N4 (tissue)" in again.tasks("COMPLETED")
    straight = succeeding(tmp_path / "elsewhere", *given)
    assert checksums(again.outdir) == checksums(straight.outdir)
    observed(plain(words, MASK=mask))


@pytest.mark.soak
def test_the_clock_jumps(succeeding, on_source, source, undisturbed, observed, tmp_path):
    def at(year, paths):
        second = datetime.datetime(year, 1, 1, tzinfo=datetime.UTC).timestamp()
        for path in paths:
            os.utime(path, (second, second), follow_symlinks=False)

    at(2100, source.rglob("*"))
    at(1971, [source / "zarr.json"])
    first = succeeding(tmp_path, *on_source)
    assert checksums(first.outdir) == undisturbed.sums
    # As a clock that is set back by decades between two runs leaves them.
    at(2090, (tmp_path / "work").rglob("*"))
    again = succeeding(tmp_path, *on_source, "-resume")
    assert checksums(again.outdir) == undisturbed.sums
    assert "N4 (tissue)" in again.tasks("CACHED")
    observed(
        f"with `-resume`, {', '.join(again.tasks('CACHED'))} were cached and "
        f"{', '.join(again.tasks('COMPLETED')) or 'nothing'} ran again"
    )
