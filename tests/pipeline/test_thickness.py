"""Sections cut thinner or thicker than stated: measured, and their table fed back."""

import json
import shutil

import pytest
from runs import checksums
from uneven_sections import UnevenParameters, make_phantom, thicknesses

from octane.config.parameters import ExecutionParameters

QUICK = ("--input", "made/mosaics", "--skip_n4", "--skip_pyramid")
PHANTOM = UnevenParameters.model_validate({
    "sections": 3, "tiles": (1, 2), "tile_shape": (24, 100, 100), "voxel_size": (10.0, 10.0, 10.0),
    "section_thickness": 160.0, "thickness_jitter": 30.0, "seed": 3,
})  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a phantom of three sections that were imaged deeper than they are thick."""
    folder = tmp_path_factory.mktemp("thickness")
    make_phantom(folder / "made", PHANTOM, ExecutionParameters(workers=1))
    return folder


@pytest.mark.soak
def test_measured_thicknesses_are_used_and_their_table_gives_the_same_bits(succeeding, folder):
    first = succeeding(folder, *QUICK, "--section_thickness", "auto")
    results = first.outdir / "mosaics"
    record = json.loads((results / "metrics/stack_metrics.json").read_text())
    sections = record["figures"]["sections"]
    assert [own["thickness"] for own in sections[:2]] == pytest.approx(
        thicknesses(PHANTOM)[:2], abs=5
    )
    assert [own["thickness_from"] for own in sections] == [
        *("measured", "measured", "from the metadata")
    ]
    before = checksums(first.outdir)
    shutil.copy(results / "mosaics_displacements.csv", folder / "given.csv")
    second = succeeding(folder, *QUICK, "--displacements", "given.csv", "-resume")
    assert second.processes("COMPLETED") == {"PREFLIGHT", "STACK", "REPORT"}
    assert checksums(second.outdir) == before
