"""A flat field in the workflow: estimated, published, given back as a file, and refused."""

import json
import re

import numpy as np
import pytest
import tifffile
from runs import changed

from octane.config.params import ExecutionParameters, PhantomParameters
from octane.steps.phantom import make_phantom

QUICK = ("--input", "made/mosaics", "--resolution", "10", "--skip_n4", "--skip_pyramid")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where a phantom of two sections lies, whose tiles are shaded."""
    folder = tmp_path_factory.mktemp("flat_field")
    made = {"sections": 2, "tiles": (2, 2), "tile_shape": (12, 96, 96), "shading": 0.3}
    parameters = PhantomParameters.model_validate({**made, "section_thickness": 40.0})
    make_phantom(folder / "made", parameters, ExecutionParameters(workers=1))
    return folder


@pytest.fixture(scope="module")
def estimated(succeeding, folder):
    """A run without a flat field, and what runs it again with one."""
    first = succeeding(folder, *QUICK)
    assert first.processes("COMPLETED") == {"PREFLIGHT", "RESAMPLE", "STITCH", "STACK", "REPORT"}
    results = first.outdir / "mosaics"
    assert not (results / "flat_fields").exists()
    assert "give --stitch_flat_field estimate" in " ".join(
        json.loads((results / "mosaics_report.json").read_text())["warnings"]
    )
    return succeeding(folder, *QUICK, "-resume", "--stitch_flat_field", "estimate")


def test_a_flat_field_is_published_and_nothing_before_it_runs_again(estimated):
    assert estimated.processes("COMPLETED") == {"PREFLIGHT", "STITCH", "STACK", "REPORT"}
    assert estimated.processes("CACHED") == {"RESAMPLE"}
    results = estimated.outdir / "mosaics"
    files = sorted((results / "flat_fields").iterdir())
    assert [f.name for f in files] == [f"section_0{n}_flat_field.tif" for n in (1, 2)]
    flat = tifffile.imread(files[0])
    assert flat.mean() == pytest.approx(1, abs=1e-5)
    assert flat[0, 0] < 0.85 < 1.05 < flat[19, 19]
    twin = json.loads((results / "mosaics_report.json").read_text())
    (check,) = [check for check in twin["checks"] if check["name"] == "Shading of tiles"]
    assert check["state"] == "good"
    assert re.fullmatch(r"[0-2]\.\d %, (2[6-9]|3\d)\.\d % before", check["value"])
    assert (results / "previews" / "flat_field.png").exists()
    assert 'href="flat_fields/"' in (results / "mosaics_report.html").read_text()


def test_one_file_serves_all_sections_and_is_part_of_what_is_cached(succeeding, estimated, folder):
    made = next((estimated.outdir / "mosaics" / "flat_fields").iterdir())
    (folder / "own.tif").write_bytes(made.read_bytes())
    given = (*QUICK, "-resume", "--stitch_flat_field", "own.tif")
    first = succeeding(folder, *given)
    assert first.processes("CACHED") == {"RESAMPLE"}
    record = json.loads(
        (first.outdir / "mosaics" / "metrics" / "section_02_stitch_metrics.json").read_text()
    )
    assert record["figures"]["shading_after"] < 0.03 < record["figures"]["shading_before"]
    with changed(folder / "own.tif", None):
        np.save(folder / "other.npy", np.ones((48, 48)))
        (folder / "other.npy").rename(folder / "own.npy")
        again = succeeding(folder, *QUICK, "-resume", "--stitch_flat_field", "own.npy")
    assert "STITCH" in again.processes("COMPLETED")
    assert again.processes("CACHED") == {"RESAMPLE"}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            ("--stitch_flat_field", "wide.npy"),
            "wide.npy has 20 x 40 pixels and a tile 96 x 96; give",
        ),
        (
            ("--stitch_flat_field", "lost.tif"),
            "lost.tif does not exist; check --stitch_flat_field.",
        ),
        (("--stitch_dark_offset", "100"), "give --stitch_flat_field as well"),
    ],
)
def test_what_is_no_flat_field_stops_before_any_work(nextflow, folder, given, sentence):
    np.save(folder / "wide.npy", np.ones((20, 40)))
    run = nextflow(folder, *QUICK, *given)
    assert run.code == 1
    assert sentence in " ".join(run.output.split())
    assert run.processes("COMPLETED") <= {"PREFLIGHT"}
