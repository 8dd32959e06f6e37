"""What the command writes for a new subject is run as it is written."""

import json
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


@pytest.mark.soak
def test_what_is_to_be_decided_is_asked_for_by_the_run(
    nextflow, succeeding, config_of, phantom, tmp_path
):
    data = tmp_path / "mosaics"
    shutil.copytree(phantom / "mosaics", data)
    (data / "section_02.ome.zarr").rename(data / "section_03.ome.zarr")
    for store in data.iterdir():
        metadata = json.loads((store / "zarr.json").read_text(encoding="utf-8"))
        noted = metadata["attributes"]["octane"]
        noted.pop("section")
        noted["mosaic"].pop("pitch")
        (store / "zarr.json").write_text(json.dumps(metadata), encoding="utf-8")
    config = config_of(data, "asked")
    text = config.read_text(encoding="utf-8")
    run = nextflow(tmp_path, "-c", config)
    assert run.code == 1
    assert "does not say how its tiles overlap; give --overlap" in run.output
    assert "lacks section 2 of 1 to 3" in run.output
    # With the slashes away from what was asked, it runs.
    for line in ("overlap = '0.2'", "allow_missing_sections = 1"):
        assert f"    // {line}\n" in text
        text = text.replace(f"    // {line}\n", f"    {line}\n")
    config.write_text(text, encoding="utf-8")
    succeeding(tmp_path, "-c", config, "-stub")
