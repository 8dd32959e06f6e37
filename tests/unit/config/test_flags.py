"""Parameters as words of a command line, which give the same parameters again."""

import re
import shlex
from pathlib import Path

import pytest

from octane.config.flags import Parser
from octane.config.params import (
    STEPS,
    ExecutionParameters,
    InputParameters,
    LeaseParameters,
    N4Parameters,
    PhantomParameters,
    PyramidParameters,
    ResampleParameters,
    StackParameters,
    StitchParameters,
)
from octane.core.errors import OctaneError

CHANGED = {
    InputParameters: {"input_unit": "micrometer", "missing_chunks": "fill"},
    ExecutionParameters: {"backend": "cpu", "prefetch": 0, "pinned": False},
    ResampleParameters: {"resolution": [10, 3.14159265, 1e-7], "dtype": "uint16", "codec": "none"},
    StitchParameters: {
        "overlap": [0.2, 0.25],
        "subpixel": False,
        "refine": True,
        "flat_field": "a flat; $(date) 'of mine'.tif",
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
    PhantomParameters: {"tiles": [2, 3], "dtype": "uint16", "seed": 7},
}


def arguments(model, *words):
    """What a command with a model makes of its words."""

    def main(sources: list[Path], /, *, parameters, names: list[Path] | None = None):
        """Take a model.

        Parameters
        ----------
        sources
            Files.
        names
            Other files.
        """

    main.__annotations__["parameters"] = model
    return Parser(main).arguments(list(words)).arguments


def parsed(model, words):
    """The model that a command line gives."""
    return arguments(model, "x", *words)["parameters"]


@pytest.mark.parametrize("model", CHANGED, ids=lambda model: model.__name__)
def test_flags_give_the_same_parameters_again(model):
    values = model.model_validate(CHANGED[model])
    words = values.flags()
    assert parsed(model, shlex.split(shlex.join(words))) == values
    assert {word for word in words if word.startswith("--")}
    assert model().flags() == []


def test_what_follows_from_the_data_is_said_to():
    values = N4Parameters(shrink_factor="auto", iterations="auto")
    assert values.flags() == ["--shrink-factor", "auto", "--iterations", "auto"]
    assert parsed(N4Parameters, values.flags()) == values
    assert set(STEPS.values()) - set(CHANGED) == {STEPS["workflow"], STEPS["lease"]}


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        ("--threads 3 --no-pinned", {"workers": 3, "pinned": False}),
        ("--workers=3 --pinned --overwrite", {"workers": 3, "overwrite": True}),
        ("--backend cpu --backend gpu", {"backend": "gpu"}),
    ],
)
def test_a_flag_is_written_in_several_ways(words, changed):
    expected = ExecutionParameters(**changed)
    assert parsed(ExecutionParameters, words.split()) == expected


def test_words_without_a_flag_stand_before_and_after_flags():
    given = arguments(
        PyramidParameters, "--codec", "none", "a", "b", "--names", "c", "--names", "d"
    )
    assert given["sources"] == [Path("a"), Path("b")]
    assert given["names"] == [Path("c"), Path("d")]
    assert arguments(PyramidParameters, "--", "-a", "b")["sources"] == [Path("-a"), Path("b")]


def test_shares_of_a_gpu_are_read_from_the_environment_too(monkeypatch):
    monkeypatch.setenv("OCTANE_GPU_SLOTS", "3")
    monkeypatch.setenv("OCTANE_CODEC", "none")
    assert parsed(LeaseParameters, []).gpu_slots == 3
    assert parsed(LeaseParameters, ["--gpu-slots", "2"]).gpu_slots == 2
    assert parsed(PyramidParameters, []).codec == "zstd"
    monkeypatch.setenv("OCTANE_GPU_SLOTS", "none")
    with pytest.raises(OctaneError, match="--gpu-slots is 'none'"):
        parsed(LeaseParameters, [])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--resoluton=10", "Unknown parameter --resoluton; did you mean --resolution?"),
        ("--res 10", "Unknown parameter --res"),
        ("--no-allow-upsampling", "did you mean --allow-upsampling?"),
        ("--scale", "Argument --scale: expected at least one argument. See --help."),
        ("--dtype", "Argument --dtype: expected one argument. See --help."),
        (
            "--allow-upsampling=true",
            "Argument --allow-upsampling takes no value: give it alone, or leave it out. See",
        ),
        ("--dtype= --layout pile", "--layout is 'pile': input should be .* --dtype is '': "),
    ],
)
def test_a_wrong_flag_is_named_with_the_remedy(words, sentence):
    with pytest.raises(OctaneError, match=sentence.replace("?", r"\?")):
        parsed(ResampleParameters, words.split())


def test_the_help_says_where_words_stand_and_shows_units_and_a_default_of_0():
    def main(source: Path, command: list[str] | None = None, /, *, parameters: PhantomParameters):
        """Run a command."""

    text = Parser(main).format_help()
    assert text.splitlines()[0].endswith(" SOURCE [OPTIONS] [-- COMMAND]")
    assert re.search(r"--seed INT\s+Seed; .*?\[default:\s+1\]", text, re.DOTALL)
    assert re.search(
        r"--shift FLOAT\s+Largest displacement .*\[micrometer\] \[default: 0", text, re.DOTALL
    )
    assert "[default: False]" not in text
    with pytest.raises(
        OctaneError, match=r"--sed; did you .* A command's own flags come after --\.$"
    ):
        Parser(main).arguments(["source", "python", "--sed", "3"])


@pytest.mark.parametrize("number", ["-1e-3", "-5E+2", "-.5e1", "-7"])
def test_a_negative_number_is_a_value_and_no_flag(number):
    with pytest.raises(OctaneError, match=f"--dark-offset is '{re.escape(number)}': input should"):
        parsed(StitchParameters, ["--dark-offset", number])
