"""What the command writes for a new subject is run as it is written."""

import shutil

import pytest
from runs import voxels


@pytest.fixture
def config_of(project, command, tmp_path):
    """Make a config with the command of the project's copy; it is removed after the test."""
    made = []

    def make(data, name):
        done = command("new_subject", data, "--name", name, cwd=tmp_path, code=project)
        assert done.returncode == 0, done.stderr
        made.append(project / "conf" / "subjects" / f"{name}.config")
        shown = done.stdout.splitlines()[-1].strip()
        assert shown.startswith(f"nextflow run {project}/main.nf -c ")
        return made[-1]

    yield make
    for config in made:
        config.unlink()


@pytest.mark.parametrize("name", [pytest.param("01", marks=pytest.mark.soak), "two (b) é"])
def test_the_config_runs_as_it_is_written(succeeding, config_of, phantom, name, tmp_path):
    data = tmp_path / "it's the data é"
    shutil.copytree(phantom / "mosaics", data)
    run = succeeding(
        *(tmp_path, "-c", config_of(data, name), "--skip_n4", "--skip_report", "--skip_pyramid"),
        outdir=tmp_path / "results",
        give_outdir=False,
    )
    # 70 micrometre a section and voxels of 10, as the data and the suggestion have it.
    assert voxels(run.outdir / name / f"{name}_stack.ome.zarr").shape[0] == 14
    assert (run.outdir / "pipeline_info" / "report.html").is_file()
    assert f"STACK ({name})" in run.tasks("COMPLETED")
