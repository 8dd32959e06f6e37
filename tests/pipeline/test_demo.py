"""The demo from end to end, and a second run that finds all tasks cached."""

import gzip
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from urllib.parse import unquote

import pytest
from runs import voxels

pytestmark = pytest.mark.slow

PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def demo(succeeding, tmp_path_factory):
    """The first run."""
    return succeeding(tmp_path_factory.mktemp("demo"), "-profile", "test")


@pytest.fixture(scope="module")
def results(demo):
    """The subject's folder of results."""
    return demo.outdir / "phantom"


def content(path):
    """Content of a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def test_every_step_ran_once_for_each_of_its_inputs(demo):
    assert demo.tasks() == [
        "N4 (phantom)",
        "PHANTOM (phantom)",
        # Of the parameters before there are data, then of the data.
        "PREFLIGHT (run)",
        "PREFLIGHT (run)",
        "PYRAMID (phantom)",
        "REPORT (phantom)",
        *(f"RESAMPLE (phantom:section_0{number})" for number in range(1, 5)),
        "STACK (phantom)",
        *(f"STITCH (phantom:section_0{number})" for number in range(1, 5)),
    ]
    # The truth is on the run's grid.
    script = demo.task_file("PHANTOM", ".command.sh").read_text(encoding="utf-8")
    assert "--truth_resolution 10 " in script
    # Only RESAMPLE and N4 may look for a GPU.
    for process in ("STITCH", "STACK", "PYRAMID", "REPORT"):
        assert "--backend cpu" in demo.task_file(process, ".command.sh").read_text(encoding="utf-8")
    assert "WARN" not in demo.output
    assert re.search(r"^phantom: Good: \d+ checks passed\.$", demo.output, re.MULTILINE)


def test_the_results_are_these_and_no_others(demo, results):
    assert sorted(path.name for path in results.iterdir()) == [
        "flat_fields",
        "input.json",
        "metrics",
        "phantom.ome.zarr",
        "phantom_bias.ome.zarr",
        "phantom_displacements.csv",
        "phantom_positions.csv",
        "phantom_report.html",
        "phantom_report.json",
        "phantom_trace.json.gz",
        "previews",
    ]
    assert (results / "phantom.ome.zarr").is_symlink()
    assert f"  {results / 'phantom.ome.zarr'}" in demo.output
    assert f"They are links into {demo.folder / 'work'}" in demo.output
    assert f"/bin/materialize.py {shlex.quote(str(demo.outdir))}" in demo.output


def test_the_volume_has_the_resolutions_asked_for_and_the_field_its_grid(results):
    store = results / "phantom.ome.zarr"
    (multiscale,) = content(store / "zarr.json")["attributes"]["ome"]["multiscales"]
    scales = [
        dataset["coordinateTransformations"][0]["scale"] for dataset in multiscale["datasets"]
    ]
    assert scales == [[s, s, s] for s in (10.0, 25.0, 50.0, 100.0)]
    assert {axis["unit"] for axis in multiscale["axes"]} == {"micrometer"}
    volume, field = voxels(store), voxels(results / "phantom_bias.ome.zarr")
    # Four sections of 150 micrometres.
    assert volume.shape[0] == 60
    assert volume.min() >= 0
    assert volume.std() > 0
    assert field.shape == volume.shape
    assert field.min() > 0
    assert field.std() > 0


def test_the_report_holds_the_metrics_of_every_step(results):
    html = (results / "phantom_report.html").read_text(encoding="utf-8")
    links = {unquote(link) for link in re.findall('href="([^"#][^"]*)"', html)}
    assert {"phantom.ome.zarr/", "flat_fields/"} <= links
    fields = [f"section_0{number}_flat_field.tif" for number in range(1, 5)]
    assert sorted(path.name for path in (results / "flat_fields").iterdir()) == fields
    files = [link for link in links if not link.startswith("data:")]
    assert [link for link in files if not (results / link).exists()] == []
    twin = content(results / "phantom_report.json")
    records, run = twin["records"], twin["run"]
    assert run["command"].split()[:2] == ["nextflow", "run"]
    assert all(f'<span class="word">{word}</span>' in html for word in run["command"].split())
    assert Path(run["input"]).name == "mosaics"
    assert f"<dd>{run['input']}</dd>" in html
    steps = [record["step"] for record in records]
    assert sorted(steps) == sorted(["resample", "stitch"] * 4 + ["stack", "n4", "pyramid"])
    (n4,) = (record for record in records if record["step"] == "n4")
    truth = n4["figures"]["truth"]
    assert truth["cv_against_truth_after"] < truth["cv_against_truth_before"]
    assert n4["figures"]["field_min"] > 0
    assert n4["versions"]["octane"]
    assert list((results / "previews").glob("*.png"))


def test_the_trace_has_every_task_by_its_name(results):
    trace = json.loads(gzip.decompress((results / "phantom_trace.json.gz").read_bytes()))
    events = trace["traceEvents"]
    tasks = {e["pid"] for e in events if e["ph"] == "X"}
    # RESAMPLE and STITCH of four sections; STACK, N4 and PYRAMID.
    assert len(tasks) == 11
    for name in ("process_name", "thread_name"):
        assert {e["pid"] for e in events if e["name"] == name} == tasks


def test_nextflow_records_stand_beside_the_results(demo):
    info = demo.outdir / "pipeline_info"
    assert sorted(path.name for path in info.iterdir()) == [
        ".lock",
        "dag.html",
        "report.html",
        "timeline.html",
        "trace.txt",
    ]
    fields = {"peak_rss", "rchar", "wchar", "read_bytes", "write_bytes", "cpus", "memory"}
    assert fields <= demo.trace[0].keys()
    assert all(row["rchar"] not in ("", "-") for row in demo.trace)


def links(folder):
    """Links in a folder."""
    return [path for path in folder.rglob("*") if path.is_symlink()]


def test_results_are_made_real_resumed_cleaned_and_verified(
    demo, results, succeeding, command, environment
):
    assert links(demo.outdir)
    made = command("materialize", demo.outdir)
    assert made.returncode == 0, made.stderr
    assert not links(demo.outdir)

    options = ("-resume", "-name", "octane-again", "-ansi-log", "false")
    again = succeeding(demo.folder, "-profile", "test", *options)
    # REPORT is cached too: the command line that it shows lacks these options.
    assert again.processes("COMPLETED") == {"PREFLIGHT"}
    assert len(again.tasks()) == 15
    # Cached results are published again, so that none of another run stays in their place.
    assert (results / "phantom.ome.zarr").is_symlink()
    assert command("materialize", demo.outdir).returncode == 0

    subprocess.run(
        ["bash", "-c", "nextflow clean -f $(nextflow log -q)"],
        cwd=demo.folder, env=environment, check=True, capture_output=True, timeout=300,
    )  # fmt: skip
    assert not list(demo.folder.glob("work/??/*"))
    verified = command("materialize", demo.outdir, "--verify")
    assert verified.returncode == 0, verified.stderr
    assert "2 stores with " in verified.stderr
    store = results / "phantom.ome.zarr"
    chunk = next(path for path in store.glob("0/c/**/*") if path.is_file())
    chunk.write_bytes(bytes(chunk.stat().st_size))
    damaged = command("materialize", demo.outdir, "--verify")
    assert damaged.returncode == 1
    assert f"error: {store}: chunk {chunk.relative_to(store)}" in damaged.stderr


def test_only_a_repeated_make_demo_resumes(tmp_path):
    (tmp_path / "tools").mkdir()
    scripts = {
        "tools/setup.sh": "#!/bin/sh\n",
        "tools/env.sh": f'PATH="{tmp_path}:$PATH"\n',
        "nextflow": '#!/bin/sh\nmkdir -p .nextflow\necho "$@" | tee -a .nextflow/history\n',
    }
    for name, text in scripts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    shutil.copy(PROJECT / "Makefile", tmp_path)
    said = [
        subprocess.run(
            ["make", "-s", "demo"], cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout
        for _ in range(2)
    ]
    assert ["-profile test" in words for words in said] == [True, True]
    assert [" -resume " in words for words in said] == [False, True]
