"""Inputs that change during a run, and clocks that jump."""

import datetime
import os
import shutil

import pytest
import zarr
from runs import checksums, last_words

pytestmark = pytest.mark.fault


@pytest.fixture
def source(phantom, tmp_path):
    """A volume of this test's own."""
    return shutil.copytree(phantom / "truth" / "tissue.ome.zarr", tmp_path / "tissue.ome.zarr")


@pytest.fixture
def on_source(volume, source):
    """Arguments of a run on it."""
    return [*volume[:-1], source]


def test_the_input_and_a_mask_change_during_a_run(
    start_nextflow, on_source, source, phantom, tmp_path
):
    mask = shutil.copytree(phantom / "truth" / "bias.ome.zarr", tmp_path / "mask.ome.zarr")
    zarr.open_array(mask, path="0", mode="r+")[:] = 1
    run = start_nextflow(tmp_path, *on_source, "--n4_mask", mask)
    run.of_task("python", "n4.py")
    for store in (source, mask):
        os.utime(store / "0" / "c" / "0" / "0" / "0")
    assert run.wait().code == 1
    assert f"{source}, {mask} changed while the run read it" in last_words(run.output)
    assert "Results:" not in run.output


@pytest.mark.soak
def test_the_clock_jumps(succeeding, on_source, source, undisturbed, tmp_path):
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
