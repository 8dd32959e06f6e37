"""A flat field in the workflow: recommended by the report, given as a file, and refused."""

import json

import numpy as np
import pytest

from octane.config.parameters import ExecutionParameters
from octane.processes.phantom.parameters import PhantomParameters
from octane.processes.phantom.step import make_phantom

QUICK = ("--input", "made/mosaics", "--resolution", "10", "--skip_n4", "--skip_pyramid")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a phantom of two sections, whose tiles are shaded."""
    folder = tmp_path_factory.mktemp("flat_field")
    made = {"sections": 2, "tiles": (2, 2), "tile_shape": (12, 96, 96), "shading": 0.3}
    parameters = PhantomParameters.model_validate({**made, "section_thickness": 40.0})
    make_phantom(folder / "made", parameters, ExecutionParameters(workers=1))
    return folder


@pytest.mark.soak
def test_one_file_serves_all_sections_and_is_part_of_what_is_cached(succeeding, folder):
    first = succeeding(folder, *QUICK, "--stitch_flat_field", "none")
    assert first.processes("COMPLETED") == {"PREFLIGHT", "RESAMPLE", "STITCH", "STACK", "REPORT"}
    results = first.outdir / "mosaics"
    assert not (results / "flat_fields").exists()
    assert "give --stitch_flat_field estimate" in " ".join(
        json.loads((results / "mosaics_report.json").read_text())["warnings"]
    )
    light = np.load(folder / "made" / "truth" / "flat_field.npy")
    shading = []
    for given in (np.ones_like(light), light):
        np.save(folder / "own.npy", given)
        run = succeeding(folder, *QUICK, "-resume", "--stitch_flat_field", "own.npy")
        # Nothing before STITCH runs again.
        assert run.processes("COMPLETED") == {"PREFLIGHT", "STITCH", "STACK", "REPORT"}
        assert run.processes("CACHED") == {"RESAMPLE"}
        record = json.loads((results / "metrics" / "section_02_stitch_metrics.json").read_text())
        shading.append(record["figures"]["shading_after"])
    assert shading[1] < 0.03 < shading[0]


@pytest.mark.soak
@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("wide.npy", "wide.npy has 20 x 40 pixels and a tile 96 x 96; give"),
        ("lost.tif", "lost.tif does not exist; check --stitch_flat_field, which accepts a file,"),
    ],
)
def test_an_unusable_flat_field_is_refused_before_any_work(nextflow, folder, name, sentence):
    np.save(folder / "wide.npy", np.ones((20, 40)))
    run = nextflow(folder, *QUICK, "--stitch_flat_field", name)
    assert run.code == 1
    assert sentence in " ".join(run.output.split())
    assert run.processes("COMPLETED") <= {"PREFLIGHT"}
