"""Parameters: their spellings, limits and descriptions."""

from contextlib import suppress

import pytest
from pydantic import ValidationError

from octane.config.parameters import ExecutionParameters, InputParameters, LeaseParameters
from octane.core.units import bytes_of
from octane.processes.n4.parameters import N4Parameters
from octane.processes.preflight.parameters import WorkflowParameters
from octane.processes.pyramid.parameters import PyramidParameters
from octane.processes.resample.parameters import ResampleParameters
from octane.processes.stitch.parameters import StitchParameters
from octane.tools.export.parameters import ExportParameters

TENS = [
    *(10, 10.0, "10", "10 10 10", "10,10,10", " 10, 10 ,10 ", "x=10, y=10, z=10"),
    *([10], [10, 10, 10], (10,), ["10 10 10"], ["10,10", "10"]),
]


@pytest.mark.parametrize(
    ("model", "field", "given", "expected"),
    [
        *((ResampleParameters, "resolution", given, (10.0, 10.0, 10.0)) for given in TENS),
        (ResampleParameters, "resolution", "3.5 4 5", (3.5, 4.0, 5.0)),
        (ResampleParameters, "resolution", ["x=5", "z=3.5,Y=4"], (3.5, 4.0, 5.0)),
        (N4Parameters, "shrink_factor", [1, 2, 3], (1, 2, 3)),
        # ITK's order.
        (N4Parameters, "shrink_factor", "z=4,y=3,x=2", (2, 3, 4)),
        (N4Parameters, "spline_distance_mm", ["none"], None),
        (N4Parameters, "section_starts", ["0 30", "60"], (0, 30, 60)),
        (StitchParameters, "overlap", "x=0.1,y=0.2", (0.2, 0.1)),
        (StitchParameters, "overlap", "0.1 0.2", (0.1, 0.2)),
        (N4Parameters, "iterations", "30", (30,)),
        (N4Parameters, "iterations", "30 20 10", (30, 20, 10)),
        (PyramidParameters, "resolutions", 25, (25.0,)),
        *((N4Parameters, "mask", word, "tissue") for word in ("tissue", "Tissue", ["TISSUE"])),
        *((N4Parameters, "mask", none, None) for none in (None, "none", "null", "", " NONE ")),
        (N4Parameters, "mask", "Tissue.nii", "Tissue.nii"),
        (N4Parameters, "shrink_factor", "AUTO", None),
        (StitchParameters, "flat_field", "Estimate", "estimate"),
    ],
)
def test_values_are_read_as_they_are_written(model, field, given, expected):
    assert getattr(model.model_validate({field: given}), field) == expected


@pytest.mark.parametrize(
    ("model", "values"),
    [
        (ResampleParameters, {"resolution": 0}),
        (ResampleParameters, {"resolution": "10 10"}),
        (ResampleParameters, {"resolution": "10 10 10 10"}),
        (ResampleParameters, {"resolution": "z=10,y=10"}),
        (ResampleParameters, {"resolution": "z=10,y=10,z=10"}),
        (ResampleParameters, {"resolution": "inf"}),
        (ResampleParameters, {"resolution": "nan"}),
        (ResampleParameters, {"resolution": ""}),
        (StitchParameters, {"overlap": 1}),
        (N4Parameters, {"shrink_factor": 1.5}),
        (N4Parameters, {"control_points": 3}),
        (ExecutionParameters, {"memory": "much"}),
        (ExecutionParameters, {"memory": "4"}),
        *((WorkflowParameters, {"publish_dir_mode": m}) for m in ("move", "link", "rellink")),
        *((WorkflowParameters, {"gpu_count": n}) for n in ("x", -1, 1.5, 10**12)),
        *((LeaseParameters, {"gpu_slots": n}) for n in ("0", "", 10**12)),
    ],
)
def test_what_is_out_of_range_is_refused(model, values):
    with pytest.raises(ValidationError) as caught:
        model(**values)
    assert {str(problem["loc"][0]) for problem in caught.value.errors()} == set(values)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ("4GB", 4_000_000_000),
        ("4 GB", 4_000_000_000),
        ("500 MB", 500_000_000),
        ("2GiB", 2 * 1024**3),
        ("1.5kb", 1500),
        ("1T", 10**12),
        ("123 B", 123),
        ("0B", 0),
    ],
)
def test_a_size_is_read_with_its_unit(size, expected):
    assert bytes_of(size) == expected


def test_the_command_follows_itk():
    values = N4Parameters()
    assert (values.mask, values.shrink_factor, values.iterations) == (None, (4,) * 3, (50,) * 4)
    assert (values.convergence_threshold, values.bias_field_fwhm) == (0.001, 0.15)
    assert (values.wiener_filter_noise, values.number_of_histogram_bins) == (0.01, 200)
    assert values.control_points == (4, 4, 4)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("model", "name", "value"),
    [
        (InputParameters, "channel_kind", ",a" * 30_000),
        (ExportParameters, "region", "z=1:2" + " " * 60_000 + "b x=3:4"),
        (ExportParameters, "region", f"z={'1' * 60_000}x:2"),
    ],
)
def test_a_long_value_takes_no_long_time(model, name, value):
    with suppress(ValidationError):
        model.model_validate({name: value})


def test_kinds_of_channels_are_read_by_their_ending():
    read = InputParameters.model_validate(
        {"channel_kind": "slow axis=nearest, 2=Nearest"}
    ).channel_kind
    assert read == ("slow axis=nearest", "2=Nearest")
    for wrong in ("axis", "axis=near", "=nearest", "a=b=nearest", "axis=nearest b"):
        with pytest.raises(ValidationError):
            InputParameters.model_validate({"channel_kind": wrong})
