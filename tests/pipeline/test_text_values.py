"""Switches and numbers that come as text: on Nextflow 26.04 all values of the command line do.

A params file with quoted values has the same effect on every version.
"""

import re
from pathlib import Path

import numpy as np
import pytest
import zarr

from octane.config.params import WorkflowParameters
from octane.config.schema import entries

PROJECT = Path(__file__).resolve().parents[2]

SWITCHES = [
    name
    for name, field in WorkflowParameters.model_fields.items()
    if field.annotation is bool and name not in ("help", "phantom")
]


def text_of(value):
    """A value as the command line has it."""
    if isinstance(value, bool):
        return str(value).lower()
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


@pytest.fixture
def as_text(tmp_path):
    """Write a params file in which every parameter that has a default is quoted text."""

    def write(**values):
        defaults = {
            entry.name: entry.default
            for entry in entries()
            if entry.default is not None and entry.name not in ("outdir", "scratch_dir")
        }
        lines = [f'{name}: "{text_of(v)}"\n' for name, v in {**defaults, **values}.items()]
        path = tmp_path / "text.yml"
        path.write_text("".join(lines), encoding="utf-8")
        return ("-params-file", path)

    return write


def test_a_run_with_every_value_as_text_is_the_run_without(nextflow, phantom, as_text, tmp_path):
    given = ("--input", phantom / "mosaics", "--resolution", "10", "--n4_iterations", "3")
    run, plain = (
        nextflow(folder, *given, *values)
        for folder, values in (
            (tmp_path, as_text(save_bias_field=True, gpu_slots=2, max_cpus=2, n4_iterations="3")),
            (phantom.parent, ("--save_bias_field", "--max_cpus", "2")),
        )
    )
    assert run.code == plain.code == 0, run.output + plain.output
    assert run.tasks() == plain.tasks()
    assert {row["cpus"] for row in run.trace} == {row["cpus"] for row in plain.trace}
    for name in ("mosaics.ome.zarr", "mosaics_bias.ome.zarr"):
        one, other = (zarr.open_array(r.outdir / "mosaics" / name, path="0") for r in (run, plain))
        np.testing.assert_array_equal(one[:], other[:])


@pytest.mark.parametrize(
    "switched",
    [
        pytest.param(("skip_resample", "skip_report", "save_bias_field"), id="resample-report"),
        pytest.param(("skip_stitch", "skip_n4"), id="stitch-n4"),
        pytest.param(("skip_n4", "skip_pyramid"), id="n4-pyramid"),
    ],
)
def test_each_switch_as_text(nextflow, phantom, as_text, switched, tmp_path):
    values = dict.fromkeys(SWITCHES, False) | dict.fromkeys(switched, True)
    given = as_text(**{**values, "trace_report": True}, gpu_count=2, gpu_slots=3)
    run = nextflow(tmp_path, "-stub", "--input", phantom / "mosaics", "--resolution", "10", *given)
    assert run.code == 0, run.output
    steps = {"RESAMPLE", "STITCH", "STACK", "N4", "PYRAMID", "REPORT"}
    skipped = {name.removeprefix("skip_").upper() for name in switched}
    assert run.processes() == {"PREFLIGHT", *steps} - skipped
    result = "mosaics_stack" if {"skip_n4", "skip_pyramid"} <= {*switched} else "mosaics"
    assert (run.outdir / "mosaics" / f"{result}.ome.zarr").exists()


def test_help_and_no_records_as_text(nextflow, phantom, as_text, tmp_path):
    run = nextflow(tmp_path, *as_text(help=True))
    assert run.code == 0
    assert "--n4_convergence_threshold" in run.output
    quiet = nextflow(
        *(tmp_path, "-stub", "--input", phantom / "mosaics"),
        *as_text(help=False, trace_report=False),
    )
    assert quiet.code == 0, quiet.output
    assert [path.name for path in (quiet.outdir / "pipeline_info").iterdir()] == [".lock"]


def test_a_switch_that_is_no_switch_is_refused_once_and_by_name(nextflow, phantom, tmp_path):
    run = nextflow(tmp_path, "--input", phantom / "mosaics", "--skip_n4", "perhaps")
    assert run.code == 1
    assert "--skip_n4 is 'perhaps': write true or false." in run.output
    assert not run.processes() - {"PREFLIGHT"}


def test_switches_and_numbers_are_read_in_one_place():
    # Whatever is compared, counted or asked for its truth goes through `switched`, or says which
    # type it makes of text.
    numbers = [
        name
        for name, field in WorkflowParameters.model_fields.items()
        if name in ("gpu_count", "max_cpus") or "int" in str(field.annotation)
    ]
    names = "|".join([*SWITCHES, "help", "phantom", *numbers, "gpu_slots"])
    bare = re.compile(rf"params\.({names})\b")
    allowed = re.compile(
        r"\(params\.\w+ \?: \d\) as Integer|params\.\w+ as Integer|: params\.\w+,$"
    )
    found = []
    for folder, pattern in (
        ("", "main.nf"),
        ("lib", "*.nf"),
        ("subworkflows", "*.nf"),
        ("modules", "*.nf"),
        ("conf", "*.config"),
    ):
        for path in (PROJECT / folder).glob(pattern):
            for line in path.read_text(encoding="utf-8").splitlines():
                if bare.search(allowed.sub("", line)):
                    found.append(f"{path.name}: {line.strip()}")
    assert found == []
