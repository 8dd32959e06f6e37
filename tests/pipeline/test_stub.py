"""The wiring of the workflow, with stubs that need no data."""

import re

import pytest

from octane.processes.preflight.parameters import WorkflowParameters

STEPS = {"PREFLIGHT", "RESAMPLE", "STITCH", "STACK", "N4", "PYRAMID", "REPORT"}

SWITCHES = [
    name
    for name, field in WorkflowParameters.model_fields.items()
    if field.annotation is bool and name not in ("help", "phantom")
]


def test_the_demo_without_nextflows_pages(succeeding, environment, tmp_path):
    # Also on one core, and with Turkish, whose lower case of I is not i.
    env = {**environment, "NXF_OPTS": "-XX:ActiveProcessorCount=1 -Duser.language=tr"}
    pages = ("trace", "timeline", "report", "dag")
    config = tmp_path / "off.config"
    config.write_text("".join(f"{name}.enabled = false\n" for name in pages), encoding="utf-8")
    run = succeeding(tmp_path, "-profile", "test", "-stub", "-c", config, env=env)
    started = re.findall(r"Submitted process > (?:\w+:)*(\w+)", run.output)
    assert set(started) == {"PHANTOM", *STEPS}
    assert started.count("STITCH") == 2
    assert [path.name for path in (run.outdir / "pipeline_info").iterdir()] == [".lock"]


@pytest.mark.parametrize(
    "switched",
    [
        pytest.param(("skip_report", "save_bias_field"), id="report"),
        pytest.param(("skip_n4",), id="n4", marks=pytest.mark.soak),
        pytest.param(("skip_n4", "skip_pyramid"), id="n4-pyramid", marks=pytest.mark.soak),
        pytest.param(("skip_pyramid",), id="pyramid", marks=pytest.mark.soak),
    ],
)
def test_steps_that_are_switched_off_are_passed_through(succeeding, switched, tmp_path):
    # Names are enough.
    for number in (1, 2):
        (tmp_path / "mosaics" / f"section_{number}.ome.zarr").mkdir(parents=True)
    # Nextflow 26.04 passes all command-line values as text.
    values = dict.fromkeys(SWITCHES, "false") | dict.fromkeys(switched, "true")
    values |= {"gpu_count": "2", "gpu_slots": "3"}
    text = "".join(f'{name}: "{value}"\n' for name, value in values.items())
    (tmp_path / "text.yml").write_text(text, encoding="utf-8")
    run = succeeding(
        *(tmp_path, "-stub", "--input", "mosaics", "--resolution", "10"),
        *("-params-file", "text.yml"),
    )
    assert run.processes() == STEPS - {name.removeprefix("skip_").upper() for name in switched}
    end = "" if "skip_pyramid" not in switched else "_stack" if "skip_n4" in switched else "_n4"
    result = f"mosaics{end}.ome.zarr"
    assert (run.outdir / "mosaics" / result).exists()
    report = run.outdir / "mosaics" / "mosaics_report.html"
    assert report.exists() == ("skip_report" not in switched)
