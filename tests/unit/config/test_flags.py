"""Parameters as words of a command line, which parse to the same parameters."""

import re
import shlex
from pathlib import Path

import pytest
from pydantic import ValidationError
from refusals import refused

from octane.config.flags import Parser, sentences
from octane.config.parameters import (
    ExecutionParameters,
    InputParameters,
    LeaseParameters,
    StepParameters,
)
from octane.core.errors import InputError
from octane.processes.mosaic.parameters import TileParameters
from octane.processes.n4.parameters import N4Parameters
from octane.processes.phantom.parameters import PhantomParameters
from octane.processes.preflight.parameters import STEPS
from octane.processes.preflight.schema import WorkflowModel
from octane.processes.pyramid.parameters import PyramidParameters
from octane.processes.resample.parameters import ResampleParameters
from octane.processes.stack.parameters import StackParameters
from octane.processes.stitch.parameters import StitchParameters

CHANGED = {
    InputParameters: {
        "input_unit": "micrometer",
        "missing_chunks": "fill",
        "orientation": "p,i r",
    },
    ExecutionParameters: {"backend": "cpu"},
    ResampleParameters: {"resolution": [10, 3.14159265, 1e-7], "dtype": "uint16", "codec": "none"},
    StitchParameters: {
        "overlap": [0.2, 0.25],
        "max_shift": 12.5,
        "refine": True,
        "flat_field": "a flat; $(date) 'of mine'.tif",
        "gain": "estimate",
        "dark_offset": 100,
        "attenuation": "coefficient",
    },
    StackParameters: {
        "section_thickness": 150.25,
        "section_surface": "auto",
        "section_level": True,
        "allow_missing_sections": 3,
        "excluded_sections": "7 12-14",
        "blend": 62.5,
        "flip_sections": "3: x, 7-9: yx",
    },
    N4Parameters: {
        "mask": "none",
        "iterations": [40, 20],
        "levels": "auto",
        "shrink_factor": [1, 2, 3],
        "section_starts": [0, 30, 60],
        "strength": 0.1,
        "control_points": [4, 5, 6],
        "z_profile_gain": True,
    },
    TileParameters: {
        "pattern": "{section}/x{column} y{row}*.tif",
        "rows": 3,
        "order": "rows-snake-top-left",
        "flip": "transpose-yx",
        "raw_shape": [64, 128, 96],
        "raw_type": ">u2",
    },
    PyramidParameters: {"resolutions": [10, 25, 50]},
    PhantomParameters: {"tiles": [2, 3], "dtype": "uint16", "seed": 7},
}


def arguments(model, *words):
    """Parse the words of a command with a model."""

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
    assert values.flags() == ["--n4_shrink_factor", "auto", "--n4_iterations", "auto"]
    assert parsed(N4Parameters, values.flags()) == values
    assert set(STEPS.values()) - set(CHANGED) == {STEPS["workflow"], STEPS["lease"]}


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        ("--threads 3 --overwrite false", {"workers": 3}),
        ("--workers=3 --overwrite=true", {"workers": 3, "overwrite": True}),
        ("--overwrite --threads 3", {"workers": 3, "overwrite": True}),
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
    assert parsed(LeaseParameters, ["--gpu_slots", "2"]).gpu_slots == 2
    assert parsed(PyramidParameters, []).codec == "zstd"
    monkeypatch.setenv("OCTANE_GPU_SLOTS", "none")
    with refused("--gpu_slots", "'none'", error=InputError):
        parsed(LeaseParameters, [])


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("--resoluton=10", ("--resoluton;", "--resolution?")),
        ("--res 10", ("--res;",)),
        ("--no-allow-upsampling", ("--no-allow-upsampling", "--allow_upsampling?")),
        ("--scale", ("--scale", "--help")),
        ("--resample_dtype", ("--resample_dtype", "--help")),
        ("--allow_upsampling=yes", ("--allow_upsampling", "'yes'", "--help")),
        ("--resample_dtype= --layout pile", ("--layout", "'pile'", "--resample_dtype", "''")),
        ("--allow_upsampling y", ("'y'", "--help")),
    ],
)
def test_a_wrong_flag_is_named_with_the_remedy(words, names):
    with refused(*names, error=InputError):
        parsed(ResampleParameters, words.split())


@pytest.mark.parametrize(
    ("model", "given", "meant"),
    [
        (N4Parameters, "--shrink-factor", "--n4_shrink_factor"),
        (N4Parameters, "--mask", "--n4_mask"),
        (ResampleParameters, "--allow-upsampling", "--allow_upsampling"),
        (ResampleParameters, "--dtype", "--resample_dtype"),
        (StitchParameters, "--dark_offset", "--stitch_dark_offset"),
        (StackParameters, "--section-thickness", "--section_thickness"),
        (StackParameters, "--align", "--stack_align"),
        (PhantomParameters, "--tile-shape=3", "--tile_shape"),
        (LeaseParameters, "--gpu-slots", "--gpu_slots"),
        (StepParameters, "--vers", "--version"),
    ],
)
def test_a_flag_with_hyphens_or_without_its_step_is_named_in_full(model, given, meant):
    name = given.partition("=")[0]
    with pytest.raises(InputError) as caught:
        parsed(model, [given, "2"])
    assert str(caught.value) == f"Unknown parameter {name}; did you mean {meant}?"


def test_a_name_of_several_steps_is_asked_for():
    with pytest.raises(ValidationError) as caught:
        WorkflowModel.model_validate({"strength": 1.0, "dtype": "uint8"})
    first, second = sentences(caught.value, WorkflowModel)
    assert first.endswith("--strength; did you mean --n4_strength?")
    assert second.endswith("--dtype; did you mean --resample_dtype or --n4_dtype?")


def test_a_switch_takes_a_value_only_where_it_is_one():
    def main(source: Path, /, *, dry_run: bool = False):
        """Look."""

    for given in (["--dry_run", "a"], ["--dry_run", "true", "a"], ["a", "--dry_run=true"]):
        assert Parser(main).arguments(given).arguments == {"source": Path("a"), "dry_run": True}
    assert Parser(main).arguments(["a", "--dry_run=false"]).arguments["dry_run"] is False
    with refused("'-1'", error=InputError):
        Parser(main).arguments(["a", "--dry_run", "-1"])


def test_a_last_path_with_a_default_may_be_missing_or_follow_a_flag():
    def main(source: Path, made: Path | None = None, /, *, dry_run: bool = False):
        """Look."""

    assert Parser(main).format_help().splitlines()[0].endswith(" SOURCE [MADE] [OPTIONS]")
    assert Parser(main).arguments(["a", "--dry_run"]).args == (Path("a"), None)
    for given in (["a", "b", "--dry_run"], ["a", "--dry_run", "b"], ["--dry_run", "a", "b"]):
        found = Parser(main).arguments(given)
        assert (found.args, found.kwargs) == ((Path("a"), Path("b")), {"dry_run": True})
    with refused("'c'", error=InputError):
        Parser(main).arguments(["a", "--dry_run", "b", "c"])


def test_the_help_says_where_words_stand_and_shows_units_and_a_default_of_0():
    def main(source: Path, command: list[str] | None = None, /, *, parameters: PhantomParameters):
        """Run a command."""

    text = Parser(main).format_help()
    assert text.splitlines()[0].endswith(" SOURCE [OPTIONS] [-- COMMAND]")
    assert re.search(r"--seed INT\s+Seed; .*?\[default:\s+1\]", text, re.DOTALL)
    assert re.search(
        r"--shift FLOAT\s+Maximum displacement .*\[micrometer\] \[default: 0", text, re.DOTALL
    )
    assert "[default: False]" not in text
    with refused("--sed", error=InputError):
        Parser(main).arguments(["source", "python", "--sed", "3"])


@pytest.mark.parametrize("number", ["-1e-3", "-5E+2", "-.5e1", "-7"])
def test_a_negative_number_is_a_value_and_no_flag(number):
    with refused("--stitch_dark_offset", number, error=InputError):
        parsed(StitchParameters, ["--stitch_dark_offset", number])


@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [
        *(("overlap", value, "such as 0.2 for 20 %.") for value in (20, "20", "20%", "20 %", 1)),
        *(
            ("resolution", value, "give the number of micrometres without a unit.")
            for value in ("10um", "10 µm", "10 10 10um", "z=10um,y=10,x=10")
        ),
        ("n4_spline_distance_mm", "5mm", "give the number of millimetres without a unit."),
        *(("overlap", value, "has a comma; write 0.25.") for value in ("0,25", ["0,25"])),
        ("section_thickness", "0,25", "has a comma; write 0.25."),
        ("n4_strength", "0,5", "has a comma; write 0.5."),
        ("section_thickness", "thick", "give a number from 0 on, or auto."),
        ("overlap", -1, "should be greater than or equal to 0"),
        ("section_surface", "100um", "give the number of micrometres without a unit."),
        *(
            ("section_surface", value, "give a number from 0 on, or auto.")
            for value in ("automatic", -1, "nan", "inf")
        ),
    ],
)
def test_a_percentage_and_a_unit_get_a_hint(name, value, hint):
    with pytest.raises(ValidationError) as caught:
        WorkflowModel.model_validate({name: value})
    (sentence,) = sentences(caught.value, WorkflowModel)
    assert sentence.startswith(f"--{name} is ")
    assert hint in sentence


@pytest.mark.parametrize("address", ["s3://bucket/a.ome.zarr", "https://lab.org/a.ome.zarr"])
def test_an_address_is_refused_as_such(address):
    def step(source: Path, /, *, mask: Path | None = None) -> None:
        """Do nothing."""

    for words in ([address], ["a.ome.zarr", "--mask", address]):
        with refused(address, "docs/faq.md#remote", error=InputError):
            Parser(step).arguments(words)
