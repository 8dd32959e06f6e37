"""Sections whose surfaces lie at different depths and are tilted: measured, and levelled."""

import csv
import json

import numpy as np
import pytest
from runs import voxels

from octane.config.params import ExecutionParameters, PhantomParameters
from octane.steps.phantom import make_phantom

QUICK = ("--input", "made/mosaics", "--resolution", "10", "--skip_n4", "--skip_pyramid")
MADE = {
    "sections": 3, "tiles": (2, 2), "tile_shape": (44, 96, 96), "voxel_size": (5.0, 5.0, 5.0),
    "section_thickness": 90.0, "surface": 60.0, "surface_jitter": 15.0, "tilt": 2.0,
    "attenuation": 0.0, "shading": 0.0, "bias": 0.0,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a phantom of three sections under water."""
    folder = tmp_path_factory.mktemp("surfaces")
    parameters = PhantomParameters.model_validate(MADE)
    make_phantom(folder / "made", parameters, ExecutionParameters(workers=1))
    return folder


def test_measured_surfaces_bring_the_volume_closer_to_the_truth(succeeding, folder):
    truth, wrong = voxels(folder / "made/truth/tissue.ome.zarr"), []
    for given in (("60",), ("auto", "--section_level", "true")):
        run = succeeding(folder, *QUICK, "--section_surface", *given, "-resume")
        results = run.outdir / "mosaics"
        difference = voxels(results / "mosaics_stack.ome.zarr") - truth
        wrong.append(float(np.sqrt(np.mean(difference**2))))
    # Nothing before STACK runs again.
    assert run.processes("CACHED") == {"RESAMPLE", "STITCH"}
    assert wrong[1] < 0.7 * wrong[0]
    record = json.loads((results / "metrics/stack_metrics.json").read_text())
    with (folder / "made/truth/sections.csv").open(newline="") as stream:
        cuts = [{name: float(cell) for name, cell in row.items()} for row in csv.DictReader(stream)]
    for own, cut in zip(record["figures"]["sections"], cuts, strict=True):
        assert own["surface_from"] == "measured"
        assert own["surface"] == pytest.approx(cut["surface"], abs=5)
        assert own["levelled"] == pytest.approx([cut["tilt_y"], cut["tilt_x"]], abs=0.3)
