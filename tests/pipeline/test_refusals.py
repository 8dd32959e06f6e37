"""Invalid runs are refused before any work, with sentences that reach the user."""

import json
import os
import re
import shutil
import signal

import numpy as np
import pytest
import SimpleITK as sitk
from runs import last_words

from octane.core.geometry import Grid, vector
from octane.store.ngff import read_metadata
from octane.store.writer import Level, create_image

LAUNCH = {
    "no-input": ([], "--input is missing; give a folder of tiles"),
    # As a pattern, study[1] would match study1 and use its data.
    "pattern": (
        ["--input", "{studies}/study1/vol.nii", "--n4_mask", "{studies}/study[1]/vol.nii"],
        "{studies}/study[1]/vol.nii has a [ in its path, which Nextflow cannot hand to tasks",
    ),
    "subject-number": (
        ["-profile", "test", "-params-file", "params.yml"],
        "--subject was read as the number 1, which loses leading zeros",
    ),
    # Nextflow would download a plugin for it.
    "remote": (
        ["--input", "s3://bucket/brain.ome.zarr"],
        "--input s3://bucket/brain.ome.zarr is an address, but octane reads and writes files only: "
        "mount or copy it, as in docs/faq.md#remote.",
    ),
    # From an empty shell variable.
    "outdir": (["--outdir", ""], "--outdir is missing; give a folder for the results"),
    # From --input sub-*/mosaics, expanded by the shell.
    "more": (
        ["--input", "{studies}/study1/vol.nii", "b"],
        "'b' does not belong to a parameter; put quotes around",
    ),
    "file": (
        ["-profile", "test", "--outdir", "params.yml"],
        "/params.yml is a file, not a folder; choose another --outdir.",
    ),
    "tilde": (["--outdir", "~/out"], "--outdir is ~/out, in which no shell expanded the ~;"),
    # Nextflow itself reads these before any task.
    "values": (
        ["-profile", "test", *("--gpu_slots", "0", "--gpu_count", "x")],
        "--gpu_count is 'x': input should be a valid integer, unable to parse string as an "
        "integer.\n--gpu_slots is 0: input should be greater than or equal to 1.\n",
    ),
    "unknown": (["-profile", "test", "--n4_shrink_facto", "4"], "--n4_shrink_facto"),
    "mount": (
        ["-profile", "test,docker", "--outdir", "10:30"],
        "--outdir {studies}/10:30 contains a :, which containers cannot mount; give another.",
    ),
    "work": (
        ["-profile", "test,docker", "-work-dir", "{studies}/10:30"],
        "-work-dir {studies}/10:30 contains a :, which containers cannot mount; give another.",
    ),
    "work-pattern": (
        ["-profile", "test", "-work-dir", "{studies}/study[1]"],
        "{studies}/study[1] has a [ in its path, which Nextflow cannot hand to tasks; rename it.",
    ),
    "sheet": (
        ["--samplesheet", "{studies}/many.csv"],
        "{studies}/many.csv has more than 10001 lines; check",
    ),
}
"""Arguments refused at the launch, and the sentence."""
QUICK = ("no-input", "pattern", "values")
"""Those that are not left to soak."""


@pytest.fixture
def studies(tmp_path):
    """Two volumes, one in a folder whose name is a shell pattern that matches the other."""
    for name in ("study[1]", "study1"):
        (tmp_path / name).mkdir()
        image = sitk.GetImageFromArray(np.ones((8, 8, 8), np.float32))
        sitk.WriteImage(image, str(tmp_path / name / "vol.nii"))
    (tmp_path / "params.yml").write_text("subject: 01\n", encoding="utf-8")
    with (tmp_path / "many.csv").open("w") as file:
        file.write("subject,input\n" + "a,b\n" * 10**6)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        pytest.param(*case, id=name, marks=() if name in QUICK else pytest.mark.soak)
        for name, case in LAUNCH.items()
    ],
)
def test_the_launch_refuses(nextflow, studies, arguments, sentence):
    words = [word.format(studies=studies) for word in arguments]
    run = nextflow(studies, *words)
    assert run.code == 1
    # With the strict parser, numbers of the command line are texts.
    assert sentence.format(studies=studies) in run.output.replace("'0'", "0")
    # PREFLIGHT's task succeeds; its findings end the run, before a phantom is made.
    assert run.processes() <= {"PREFLIGHT"}
    assert not (run.outdir / "pipeline_info").exists()


@pytest.mark.soak
def test_a_task_that_never_began_says_why(nextflow, environment, tmp_path):
    docker = tmp_path / "bin" / "docker"
    docker.parent.mkdir()
    docker.write_text(
        "#!/bin/sh\necho 'WARNING: IPv4 forwarding is disabled.' >&2\n"
        "echo 'Cannot connect to the Docker daemon.' >&2\nexit 125\n"
    )
    docker.chmod(0o755)
    path = f"{docker.parent}{os.pathsep}{environment['PATH']}"
    run = nextflow(tmp_path, "-profile", "test,docker", env={"PATH": path})
    assert run.code == 1
    assert "octane stopped: PREFLIGHT (run): Cannot connect to the Docker daemon.\n" in run.output


@pytest.mark.soak
def test_an_interrupted_run_says_how_it_goes_on(start_nextflow, phantom, quick, tmp_path):
    run = start_nextflow(tmp_path, *quick, "--input", phantom / "mosaics")
    run.says("OCTANE:STITCH")
    os.kill(run.launcher(), signal.SIGINT)
    run = run.wait()
    assert run.code == 1
    # Nextflow may report below it that it ends the other tasks.
    words = last_words(run.output).splitlines()[0]
    assert words == "interrupted (SIGINT); run again with -resume to go on."


@pytest.mark.soak
def test_a_folder_of_the_input_is_closed(nextflow, quick, phantom, environment, tmp_path):
    store = tmp_path / "tissue.ome.zarr"
    shutil.copytree(phantom / "truth" / "tissue.ome.zarr", store)
    closed = store / "0" / "c"
    closed.chmod(0)
    path = environment["PATH"]
    if os.geteuid() == 0:
        # Root without the capability to read every file.
        words = "exec setpriv --bounding-set -dac_override,-dac_read_search -- nextflow"
        os.chown(closed, 1, 1)
        launcher = tmp_path / "bin" / "nextflow"
        launcher.parent.mkdir()
        launcher.write_text(f'#!/bin/sh\nPATH="{path}" {words} "$@"\n', encoding="utf-8")
        launcher.chmod(0o755)
        path = f"{launcher.parent}{os.pathsep}{path}"
    try:
        run = nextflow(tmp_path, *quick, "--input", store, env={"PATH": path})
    finally:
        closed.chmod(0o755)
    assert run.code == 1
    refusal = f"{store}: chunk 0/c/0/0/0 cannot be read (Permission denied); check permissions"
    assert refusal in run.output
    assert "Exception" not in run.output


# The default in a user's shell: Nextflow's own launcher draws its progress display even to a file.
DRAWN = {"env": {"NXF_ANSI_LOG": ""}}


@pytest.mark.parametrize("resumed", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_preflight_refuses_before_any_other_task(nextflow, phantom, quick, tmp_path, resumed):
    scratch = tmp_path / "scratch"
    words = ("--input", phantom / "mosaics", "--scratch_dir", scratch, "--resolution", "2")
    run = nextflow(tmp_path, *quick, *words, **DRAWN)
    assert run.code == 1
    assert run.processes() == {"PREFLIGHT"}
    # One line per problem, with the workflow's spelling of the flags, and nothing else.
    refusal, too_fine = run.output.splitlines()[-2:]
    assert refusal.startswith(f"--scratch_dir {scratch} does not exist; create it, or ")
    assert too_fine.startswith(f"{phantom}/mosaics/section_01.ome.zarr (and 1 more) has voxels of ")
    assert too_fine.endswith("give a coarser --resolution, or --allow_upsampling.")
    for noise in ("executor >", "Command executed", "ERROR", "Exception", "-resume", refusal):
        assert run.output.count(noise) == (noise == refusal), noise
    if resumed:
        scratch.mkdir()
        again = nextflow(tmp_path, *quick, *words, "-resume")
        assert last_words(again.output) == too_fine


HOSTILE = "<img src=x onerror=alert(1)>"
"""A name that a browser would read as HTML."""


@pytest.mark.soak
@pytest.mark.parametrize("refused", [True, False], ids=["refused", "real"])
def test_hostile_names_put_no_html_into_nextflows_pages(
    nextflow, phantom, quick, tmp_path, refused
):
    # Nextflow does not escape tags, errors, the command line and the tasks' scripts in its pages.
    folder = tmp_path / HOSTILE / f"brain {HOSTILE}" if refused else tmp_path / HOSTILE / "brain"
    shutil.copytree(phantom / "mosaics", folder)
    first = folder / "section_01.ome.zarr"
    if refused:
        first = first.rename(folder / f"section_01 {HOSTILE}.ome.zarr")
    # Next to other results, the pages of a refused run stay.
    (tmp_path / "out" / "other").mkdir(parents=True)
    given = ("--input", folder, "--skip_n4", "--skip_pyramid")
    run = nextflow(tmp_path, *quick, *given, outdir=tmp_path / "out")
    assert run.code == refused
    pages = [run.outdir / "pipeline_info" / f"{name}.html" for name in ("timeline", "report")]
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert "PREFLIGHT (run" in text
        assert "<img src=x" not in text
    if refused:
        words = last_words(run.output)
        assert f"'brain {HOSTILE}' is not a subject name" in words
        assert f"'{first.name}' has a < in its name; rename it." in words


def test_hostile_names_of_a_channel_and_a_folder_reach_their_task_and_no_page(
    nextflow, quick, tmp_path
):
    level = Level.volume(Grid((12, 16, 16), vector(10.0, 10.0, 10.0)))
    names = [f"</script>{HOSTILE}", "R&D's"]
    path = tmp_path / HOSTILE / "brain.ome.zarr"
    path.parent.mkdir()
    with create_image(path, [level], np.uint8, channels=names) as (writer,):
        writer[0:2, 0:12, 0:16, 0:16] = np.arange(6144, dtype=np.uint8).reshape(2, 12, 16, 16)
    run = nextflow(
        *(tmp_path, *quick, "--input", path, "--channel", "1", "--channels", "all"),
        *("--skip_n4", "--skip_pyramid"),
    )
    assert run.code == 0, run.output
    report, timeline = (
        (run.outdir / "pipeline_info" / f"{name}.html").read_text(encoding="utf-8")
        for name in ("report", "timeline")
    )
    assert "--channel" in report
    for text in (report, timeline):
        assert "PREFLIGHT (run" in text
        assert not [name for name in ("<img src=x", "</script><img", "R&D") if name in text]
    written = read_metadata(run.outdir / "brain" / "brain.ome.zarr", None)
    assert list(written.labels) == names


@pytest.mark.soak
def test_a_hostile_name_of_another_file_is_refused(nextflow, quick, tmp_path):
    (tmp_path / f"a{HOSTILE}").touch()
    sitk.WriteImage(sitk.Image((8, 8, 8), sitk.sitkUInt8), str(tmp_path / "volume.nii"))
    run = nextflow(tmp_path, *quick, "--input", "volume.nii", "--n4_mask", f"a{HOSTILE}")
    assert run.code == 1
    assert f"a{HOSTILE} has a < in its name; rename it." in last_words(run.output)


def test_a_step_that_fails_says_why_and_leaves_no_result(nextflow, quick, tmp_path):
    image = sitk.GetImageFromArray(np.full((12, 16, 16), 7, np.float32))
    image.SetSpacing((0.01, 0.01, 0.01))
    sitk.WriteImage(image, str(tmp_path / "flat.nii"))
    run = nextflow(
        *(tmp_path, *quick, "--input", "flat.nii", "--resolution", "none", "--n4_mask", "none"),
        **DRAWN,
    )
    assert run.code == 1
    assert "executor >" not in run.output
    # Nextflow may add warnings below.
    words = [line for line in run.output.splitlines() if not line.startswith("WARN: ")]
    says = f"octane stopped: N4 (flat): {tmp_path}/flat.nii has the same value, 7, in every voxel"
    assert words[-1].startswith(says)
    assert run.tasks("FAILED") == ["N4 (flat)"]
    assert [path.name for path in (run.outdir / "flat").iterdir()] == ["input.json"]
    assert "Results:" not in run.output


@pytest.mark.parametrize("asked", ["true", "all"])
def test_help_prints_parameters_and_runs_nothing(succeeding, project, tmp_path, asked):
    # Nextflow 26.04 passes command-line switches as text.
    (tmp_path / "help.yml").write_text(f'help: "{asked}"\n', encoding="utf-8")
    run = succeeding(tmp_path, "-params-file", "help.yml", give_outdir=False)
    schema = json.loads((project / "nextflow_schema.json").read_text(encoding="utf-8"))
    groups = [group["properties"] for group in schema["$defs"].values()]
    hidden = {name: "hidden" in own for group in groups for name, own in group.items()}
    assert 15 <= [*hidden.values()].count(False) <= 25
    printed = re.findall(r"^  --(\w+) ", run.output, re.MULTILINE)
    assert printed == [
        name for name, is_hidden in hidden.items() if asked == "all" or not is_hidden
    ]
    shown = run.output[run.output.index("nextflow run main.nf --input") :]
    assert max(map(len, shown.splitlines())) <= 100
    # Every launch leaves these.
    left = {path.name.split(".log")[0] for path in tmp_path.iterdir()}
    assert left <= {".nextflow", "work", "help.yml"}
