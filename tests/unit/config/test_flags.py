"""Parameters as words of a command line, which give the same parameters again."""

import shlex
from typing import Annotated

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octane.config.cli import FLAT, command
from octane.config.params import (
    STEPS,
    ExecutionParameters,
    InputParameters,
    N4Parameters,
    PhantomParameters,
    PyramidParameters,
    ReportParameters,
    ResampleParameters,
    StackParameters,
    StitchParameters,
)

CHANGED = {
    InputParameters: {"input_unit": "micrometer", "missing_chunks": "fill"},
    ExecutionParameters: {"backend": "cpu", "prefetch": 0, "pinned": False},
    ResampleParameters: {"resolution": [10, 12.5, 1e-7], "dtype": "uint16", "codec": "none"},
    StitchParameters: {
        "overlap": [0.2, 0.25],
        "subpixel": False,
        "refine": True,
        "flat_field": "a flat.tif",
        "dark_offset": 100,
    },
    StackParameters: {"section_thickness": 150.25, "allow_missing_sections": 3},
    N4Parameters: {
        "mask": "none",
        "iterations": [40, 20],
        "shrink_factor": [1, 2, 3],
        "section_starts": [0, 30, 60],
        "strength": 0.1,
        "control_points": [4, 5, 6],
        "z_profile_gain": True,
    },
    PyramidParameters: {"resolutions": [10, 25, 50]},
    ReportParameters: {"heading": "a brain; $(date) 'of mine'"},
    PhantomParameters: {"tiles": [2, 3], "sharded": True, "seed": 7},
}


def parsed(model, words):
    """The model that a command line gives."""
    app = command("test")
    found = []

    def main(source: str, /, *, parameters=None):
        found.append(parameters)

    main.__annotations__["parameters"] = Annotated[model | None, FLAT]
    app.default(main)
    app(["x", *words], exit_on_error=False, print_error=False, result_action="return_value")
    return found[0] or model()


@pytest.mark.parametrize("model", CHANGED, ids=lambda model: model.__name__)
def test_flags_give_the_same_parameters_again(model):
    values = model.model_validate(CHANGED[model])
    words = values.flags()
    assert parsed(model, shlex.split(shlex.join(words))) == values
    assert {word for word in words if word.startswith("--")}
    assert model().flags() == []


@given(st.floats(1e-6, 1e6, allow_nan=False), st.integers(1, 50))
def test_numbers_keep_their_digits(length, count):
    values = ResampleParameters(resolution=length, tiles_per_shard=count)
    assert parsed(ResampleParameters, values.flags()) == values


def test_what_follows_from_the_data_is_said_to():
    values = N4Parameters(shrink_factor="auto", iterations="auto")
    assert values.flags() == ["--shrink-factor", "auto", "--iterations", "auto"]
    assert parsed(N4Parameters, values.flags()) == values
    assert set(STEPS.values()) - set(CHANGED) == {STEPS["workflow"], STEPS["lease"]}
