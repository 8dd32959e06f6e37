"""What the command writes for a new subject is run as it is written."""

import json
import shutil
import subprocess
import sys

import pytest
import zarr


@pytest.fixture
def new_subject(project, environment, tmp_path):
    """Run the command of the project's copy, from a folder of its own."""

    def run(*arguments):
        return subprocess.run(
            [sys.executable, str(project / "bin" / "new_subject.py"), *map(str, arguments)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    return run


@pytest.mark.slow
@pytest.mark.parametrize("name", ["01", "two (b) é"])
def test_the_config_runs_as_it_is_written(nextflow, new_subject, project, phantom, name, tmp_path):
    data = tmp_path / "it's the data é"
    shutil.copytree(phantom / "mosaics", data)
    made = new_subject(data, "--name", name)
    assert made.returncode == 0, made.stderr
    config = project / "conf" / "subjects" / f"{name}.config"
    shown = made.stdout.splitlines()[-1].strip()
    assert shown.startswith(f"nextflow run {project}/main.nf -c ")
    try:
        run = nextflow(
            *(tmp_path, "-c", config, "--n4_iterations", "2", "--n4_shrink_factor", "2"),
            *("--skip_report", "--skip_pyramid"),
            outdir=tmp_path / "results",
            give_outdir=False,
        )
    finally:
        config.unlink()
    assert run.code == 0, run.output
    # 70 micrometre a section and voxels of 10, as the data and the suggestion have it.
    volume = zarr.open_array(run.outdir / name / f"{name}_n4.ome.zarr", path="0", mode="r")
    assert volume.shape[0] == 14
    assert (run.outdir / "pipeline_info" / "report.html").is_file()
    assert f"STACK ({name})" in run.tasks("COMPLETED")


def test_what_is_to_be_decided_is_asked_for_by_the_run(
    nextflow, new_subject, project, phantom, tmp_path
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
    assert new_subject(data, "--name", "asked").returncode == 0
    config = project / "conf" / "subjects" / "asked.config"
    text = config.read_text(encoding="utf-8")
    try:
        run = nextflow(tmp_path, "-c", config)
        assert run.code == 1
        assert "does not say how its tiles overlap; give --overlap" in run.output
        assert "lacks section 2 of 1 to 3" in run.output
        # With the slashes away from what was asked, it runs.
        for line in ("overlap = '0.2'", "allow_missing_sections = 1"):
            assert f"    // {line}\n" in text
            text = text.replace(f"    // {line}\n", f"    {line}\n")
        config.write_text(text, encoding="utf-8")
        run = nextflow(tmp_path, "-c", config, "-stub")
        assert run.code == 0, run.output
    finally:
        config.unlink()


def test_data_at_fault_leave_nothing(new_subject, project, tmp_path):
    (tmp_path / "empty").mkdir()
    made = new_subject(tmp_path / "empty", "--name", "sub-01")
    assert made.returncode == 1
    assert made.stderr.startswith(f"error: {tmp_path}/empty holds no OME-Zarr store; give")
    assert made.stdout == ""
    assert not (project / "conf" / "subjects" / "sub-01.config").exists()
