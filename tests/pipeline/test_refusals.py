"""What cannot work is refused before any work, in words that reach the user."""

import json

import numpy as np
import pytest
import SimpleITK as sitk


def last_words(run):
    """The sentence that a stopped run ends with."""
    marker = "octane stopped: "
    assert marker in run.output, run.output
    return run.output[run.output.rindex(marker) + len(marker) :].split("\n\n")[0]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        pytest.param(
            ["--publish_dir_mode", "move"],
            "--publish_dir_mode is 'move': input should be 'symlink', 'rellink', 'link' or 'copy'.",
            id="move",
        ),
        pytest.param(
            ["--subject", "../../elsewhere"],
            "'../../elsewhere' is no name for a subject: use letters, digits, blanks and ._()-",
            id="subject-outside",
        ),
        pytest.param(
            ["--n4_strenght", "0.5"],
            "Unknown parameter --n4_strenght; did you mean --n4_strength?",
            id="misspelt",
        ),
        pytest.param(
            ["--scratch_dir", "/no/such/folder", "--resolution", "2"],
            "--scratch_dir /no/such/folder does not exist; make it, or end it in / to have tasks "
            "make it (/no/such/folder/), or give true for the node's TMPDIR, or false.\n",
            id="scratch-and-resolution",
        ),
    ],
)
def test_preflight_refuses_before_any_other_task(
    nextflow, phantom, quick, arguments, sentence, tmp_path
):
    run = nextflow(tmp_path, *quick, "--input", phantom / "mosaics", *arguments)
    assert run.code == 1
    assert last_words(run).startswith(sentence)
    assert run.processes() == {"PREFLIGHT"}
    if "--resolution" in arguments:
        # One line for each problem, with the workflow's spelling of the flags.
        assert len(last_words(run).splitlines()) == 3
        assert last_words(run).count("give a coarser --resolution, or --allow_upsampling.") == 2
    # All parameters would bury what matters.
    assert "n4_wiener_filter_noise" not in run.output


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        pytest.param([], "--input is missing; give a folder of mosaics", id="no-input"),
        pytest.param(
            ["--input", "nowhere"], "nowhere does not exist; check the path.", id="nowhere"
        ),
        # Any text is true to Groovy.
        pytest.param(
            ["--input", ".", "--skip_n4", "no"],
            "--skip_n4 is 'no': write true or false.",
            id="no-switch",
        ),
        pytest.param(
            ["--phantom", "no"], "--phantom is 'no': write true or false.", id="phantom-no"
        ),
        pytest.param(
            ["-params-file", "params.yml"],
            "--help is 'perhaps': write true or false.",
            id="help-text",
        ),
        pytest.param(
            ["-profile", "test", "-params-file", "subject.yml"],
            "--subject was read as 1 and not as text, which loses the zeros before a number",
            id="subject-number",
        ),
    ],
)
def test_the_launch_refuses_what_is_not_there(nextflow, arguments, sentence, tmp_path):
    (tmp_path / "params.yml").write_text('help: "perhaps"\n', encoding="utf-8")
    (tmp_path / "subject.yml").write_text("subject: 01\n", encoding="utf-8")
    run = nextflow(tmp_path, *arguments)
    assert run.code == 1
    assert f"\n{sentence}" in run.output
    assert not run.trace


def test_a_step_that_fails_says_why_and_leaves_no_result(nextflow, quick, tmp_path):
    image = sitk.GetImageFromArray(np.full((12, 16, 16), 7, np.float32))
    image.SetSpacing((0.01, 0.01, 0.01))
    sitk.WriteImage(image, str(tmp_path / "flat.nii"))
    run = nextflow(
        *(tmp_path, *quick, "--input", "flat.nii", "--skip_resample", "--n4_mask", "none"),
    )
    assert run.code == 1
    assert "holds the one value 7 everywhere that is to be fitted" in last_words(run)
    assert run.tasks("FAILED") == ["N4 (flat)"]
    assert [path.name for path in (run.outdir / "flat").iterdir()] == ["input.json"]
    assert "Results:" not in run.output


def test_help_prints_every_parameter_and_runs_nothing(nextflow, project, tmp_path):
    run = nextflow(tmp_path, "--help", give_outdir=False)
    assert run.code == 0
    schema = json.loads((project / "nextflow_schema.json").read_text(encoding="utf-8"))
    names = [name for group in schema["$defs"].values() for name in group["properties"]]
    assert len(names) > 50
    assert [name for name in names if f"  --{name} " not in run.output] == []
    # Nothing but what every launch leaves.
    assert {path.name.split(".log")[0] for path in tmp_path.iterdir()} <= {".nextflow", "work"}
