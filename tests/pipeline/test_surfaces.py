"""Sections whose surfaces lie at different depths and are tilted: measured, and levelled."""

import json

import numpy as np
import pytest
from runs import voxels
from uneven_sections import UnevenParameters, make_phantom, surfaces

from octane.config.parameters import ExecutionParameters, InputParameters
from octane.processes.stack.parameters import StackParameters
from octane.processes.stack.step import stack_sections
from octane.processes.stitch.parameters import StitchParameters
from octane.processes.stitch.step import stitch_section

PHANTOM = UnevenParameters.model_validate({
    "sections": 3, "tiles": (2, 2), "tile_shape": (24, 64, 64), "voxel_size": (10.0, 10.0, 10.0),
    "section_thickness": 90.0, "surface": 60.0, "surface_jitter": 15.0, "tilt": 2.0,
    "speckle_looks": 0.0, "attenuation": 0.0, "shading": 0.0, "bias": 0.0,
})  # fmt: skip


@pytest.mark.soak
def test_levelled_sections_are_closer_to_the_truth(succeeding, tmp_path):
    execution = ExecutionParameters(backend="cpu", workers=1)
    make_phantom(tmp_path / "made", PHANTOM, execution)
    sections = []
    for mosaic in sorted((tmp_path / "made/mosaics").iterdir()):
        sections.append(tmp_path / mosaic.name)
        stitch_section(mosaic, sections[-1], StitchParameters(), InputParameters(), execution)
    constant = (StackParameters(section_surface=60.0), InputParameters(), execution)
    stack_sections(sections, tmp_path / "constant.ome.zarr", *constant)
    given = ("--section_surface", "auto", "--section_level", "true", "--skip_n4", "--skip_pyramid")
    run = succeeding(tmp_path, "--input", "made/mosaics", *given)
    results, truth = run.outdir / "mosaics", voxels(tmp_path / "made/truth/tissue.ome.zarr")
    wrong = [
        float(np.sqrt(np.mean((voxels(volume) - truth) ** 2)))
        for volume in (tmp_path / "constant.ome.zarr", results / "mosaics_stack.ome.zarr")
    ]
    assert wrong[1] < 0.5 * wrong[0]
    record = json.loads((results / "metrics/stack_metrics.json").read_text())
    for own, true in zip(record["figures"]["sections"], surfaces(PHANTOM), strict=True):
        assert own["surface_from"] == "measured"
        assert own["surface"] == pytest.approx(true.depth, abs=5)
        assert own["levelled"] == pytest.approx(true.tilt, abs=0.3)
