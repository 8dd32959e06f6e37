"""Gains in the workflow: estimated, published as a table, and fed back."""

import csv

import numpy as np
import pytest
from made_faults import spoil
from runs import checksums

from octane.config.parameters import ExecutionParameters
from octane.processes.phantom.parameters import PhantomParameters
from octane.processes.phantom.step import make_phantom

QUICK = ("--input", "made/mosaics", "--subject", "brain", "--skip_n4", "--skip_pyramid")
GAINS = {(0, 0): 1.3, (0, 1): 0.9, (1, 0): 0.75, (1, 1): 1.1}


def drifted(voxels, grid, _):
    """Multiply each tile by its gain."""
    changed = voxels.copy()
    for tile, gain in GAINS.items():
        changed[grid.region(tile)] *= gain
    return changed


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a phantom of two sections, whose tiles differ in brightness."""
    folder = tmp_path_factory.mktemp("gains")
    made = {"sections": 2, "tiles": (2, 2), "tile_shape": (8, 96, 96), "overlap": (0.25, 0.25)}
    parameters = PhantomParameters.model_validate({**made, "section_thickness": 20.0})
    make_phantom(folder / "made", parameters, ExecutionParameters(workers=1))
    for mosaic in (folder / "made" / "mosaics").iterdir():
        spoil(mosaic, drifted, parameters)
    return folder


@pytest.mark.soak
def test_a_table_fed_back_gives_the_same_bits_and_a_changed_row_one_section(succeeding, folder):
    first = succeeding(folder, *QUICK, "--stitch_gain", "estimate")
    own = first.outdir / "brain" / "brain_gains.csv"
    with own.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    true = [GAINS[int(row["row"]), int(row["column"])] for row in rows]
    assert np.log([float(row["gain"]) for row in rows] / np.array(true)).std() < 0.02
    bits, table = checksums(first.outdir), own.read_bytes()
    (folder / "own.csv").write_bytes(table)
    given = ("-resume", "--stitch_gain", "own.csv")
    assert checksums(succeeding(folder, *QUICK, *given).outdir) == bits
    assert own.read_bytes() == table
    lines = table.decode().splitlines()
    (folder / "own.csv").write_text("\n".join([*lines[:-1], "2,1,1,2.5"]), encoding="utf-8")
    run = succeeding(folder, *QUICK, *given)
    assert run.tasks("COMPLETED") == [
        *("PREFLIGHT (run)", "REPORT (brain)", "STACK (brain)", "STITCH (brain:section_02)")
    ]
    assert checksums(run.outdir) != bits
