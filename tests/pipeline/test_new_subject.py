"""What the command writes for a new subject is run as it is written."""

import shutil

from runs import voxels


def test_the_config_runs_as_it_is_written(succeeding, command, project, phantom, tmp_path):
    name, data = "two (b) é", tmp_path / "it's the data é"
    shutil.copytree(phantom / "mosaics", data)
    done = command("new_subject", data, "--name", name, cwd=tmp_path, code=project)
    assert done.returncode == 0, done.stderr
    assert f"nextflow run {project}/main.nf -c " in done.stdout.splitlines()[-1]
    run = succeeding(
        *(tmp_path, "-c", project / "conf" / "subjects" / f"{name}.config"),
        *("--skip_n4", "--skip_report", "--skip_pyramid"),
        outdir=tmp_path / "results",
        give_outdir=False,
    )
    # 70 micrometre a section and voxels of 10, as the data and the suggestion have it.
    assert voxels(run.outdir / name / f"{name}_stack.ome.zarr").shape[0] == 14
    assert (run.outdir / "pipeline_info" / "report.html").is_file()
    assert f"STACK ({name})" in run.tasks("COMPLETED")
