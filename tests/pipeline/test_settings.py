"""Where parameters may be given, and what those of the run itself do. The tasks are stubs."""

import os

import pytest


def scratch_of(run, task="STACK"):
    """What Nextflow's wrapper of a task does for its scratch folder; empty: there is none."""
    wrapper = run.task_file(task, ".command.run").read_text(encoding="utf-8")
    (line,) = (line for line in wrapper.splitlines() if "NXF_SCRATCH=" in line)
    return line.strip().removeprefix("NXF_SCRATCH=").strip("'\"")


def bytes_of(size):
    """Bytes in a size as the trace writes it."""
    number, unit = size.split()
    return float(number) * 1024 ** ("B", "KB", "MB", "GB", "TB").index(unit)


def test_a_params_file(nextflow, phantom, tmp_path):
    (tmp_path / "scratch").mkdir()
    (tmp_path / "params.yml").write_text(
        f"input: {phantom}/mosaics\n"
        f"outdir: {tmp_path}/from-file\n"
        "subject: sub-01\n"
        "publish_dir_mode: copy\n"
        f"scratch_dir: {tmp_path}/scratch\n"
        "max_cpus: 1\n"
        "max_memory: 1 GB\n",
        encoding="utf-8",
    )
    run = nextflow(
        *(tmp_path, "-stub", "-params-file", "params.yml"),
        outdir=tmp_path / "from-file",
        give_outdir=False,
    )
    assert run.code == 0, run.output
    result = run.outdir / "sub-01" / "sub-01.ome.zarr"
    assert result.is_dir()
    assert not result.is_symlink()
    assert f"nxf_mktemp {tmp_path}/scratch" in scratch_of(run)
    assert not scratch_of(run, "PREFLIGHT")
    assert not list((tmp_path / "scratch").iterdir())
    assert {row["cpus"] for row in run.trace} == {"1"}
    assert {row["memory"] for row in run.trace} == {"1 GB"}


@pytest.fixture
def subject_config(phantom, project, tmp_path):
    """A subject's config as the template has it."""
    text = (project / "conf" / "subjects" / "template.config").read_text(encoding="utf-8")
    assert text.count("includeConfig") == 1
    settings = f"""params {{
    subject = 'sub-02'
    input = '{phantom}/mosaics'
    outdir = '{tmp_path}/from-config'
    publish_dir_mode = 'copy'
    scratch_dir = true
    gpu_count = 1
}}
"""
    path = tmp_path / "sub-02.config"
    path.write_text(settings + text[text.index("includeConfig") :], encoding="utf-8")
    return path


def test_a_config_of_the_subject(nextflow, subject_config, tmp_path):
    run = nextflow(
        *(tmp_path, "-stub", "-c", subject_config),
        outdir=tmp_path / "from-config",
        give_outdir=False,
    )
    assert run.code == 0, run.output
    result = run.outdir / "sub-02" / "sub-02.ome.zarr"
    assert result.is_dir()
    assert not result.is_symlink()
    assert "nxf_mktemp" in scratch_of(run)
    assert (run.outdir / "pipeline_info" / "report.html").is_file()
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == [
        ".nextflow",
        "from-config",
        "work",
    ]


def test_the_command_line_wins_over_the_config(nextflow, subject_config, tmp_path):
    run = nextflow(
        *(tmp_path, "-stub", "-c", subject_config, "--scratch_dir", "false"),
        *("--publish_dir_mode", "symlink"),
    )
    assert run.code == 0, run.output
    assert not (tmp_path / "from-config").exists()
    assert (run.outdir / "sub-02" / "sub-02.ome.zarr").is_symlink()
    assert not scratch_of(run)


def test_text_that_means_false_on_a_machine_of_one_core(nextflow, phantom, tmp_path):
    (tmp_path / "params.yml").write_text('scratch_dir: "false"\n', encoding="utf-8")
    run = nextflow(
        *(tmp_path, "-stub", "-params-file", "params.yml", "--input", f"{phantom}/mosaics"),
        env={"NXF_OPTS": "-XX:ActiveProcessorCount=1"},
    )
    assert run.code == 0, run.output
    assert not scratch_of(run)
    # No profile: the labels ask for up to 8 cores and 16 GB, and get what the machine has.
    assert {row["cpus"] for row in run.trace} == {"1"}
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert all(bytes_of(row["memory"]) < total for row in run.trace)


def test_no_records_when_they_are_not_wanted(nextflow, phantom, tmp_path):
    run = nextflow(
        *(tmp_path, "-stub", "--trace_report", "false", "--input", f"{phantom}/mosaics"),
        *("--skip_n4", "--skip_pyramid", "--skip_report"),
    )
    assert run.code == 0, run.output
    assert sorted(path.name for path in run.outdir.iterdir()) == ["mosaics", "pipeline_info"]
    assert [path.name for path in (run.outdir / "pipeline_info").iterdir()] == [".lock"]
    assert sorted(path.name for path in (run.outdir / "mosaics").iterdir()) == [
        "input.json",
        "metrics",
        "mosaics_stack.ome.zarr",
    ]


@pytest.fixture
def slurm(stand_in_slurm):
    """A PATH with a Slurm that runs each job at once."""
    return stand_in_slurm('bash "${@: -1}" > /dev/null 2>&1 || true\necho "Submitted batch job $$"')


def test_options_of_slurm_reach_every_job(nextflow, phantom, slurm, tmp_path):
    run = nextflow(
        *(tmp_path, "-stub", "-profile", "slurm,gpu", "-c", "fast.config"),
        *("--slurm_options=--account=mine --qos=low", "--input", f"{phantom}/mosaics"),
        *("--resolution", "10"),
        env=slurm,
    )
    assert run.code == 0, run.output
    with_gpu = set()
    for task in run.tasks():
        wrapper = run.task_file(task, ".command.run").read_text(encoding="utf-8")
        asked = [line for line in wrapper.splitlines() if line.startswith("#SBATCH")]
        assert [line for line in asked if "--account=mine --qos=low" in line], task
        if any("--gres=gpu:1" in line for line in asked):
            with_gpu.add(task.split(" ", maxsplit=1)[0])
    assert with_gpu == {"RESAMPLE", "N4"}
