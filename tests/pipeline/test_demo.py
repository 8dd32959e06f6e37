"""The demonstration subject from end to end, and a second run that has nothing to do."""

import gzip
import json
import re
from pathlib import Path
from urllib.parse import unquote, urlparse

import numpy as np
import ome_zarr_models
import pytest
import zarr

from octane import __version__

pytestmark = pytest.mark.slow


def voxels_of(path):
    """All voxels of a store's finest level."""
    return np.asarray(zarr.open_array(path, path="0", mode="r")[:])


@pytest.fixture(scope="module")
def demo(nextflow, tmp_path_factory):
    """The first run."""
    run = nextflow(tmp_path_factory.mktemp("demo"), "-profile", "test")
    assert run.code == 0, run.output
    return run


@pytest.fixture(scope="module")
def results(demo):
    """Folder of the subject's results."""
    return demo.outdir / "phantom"


def test_another_resolution_takes_the_truth_along(nextflow, tmp_path):
    run = nextflow(
        *(tmp_path, "-profile", "test", "--resolution", "20", "--n4_iterations", "3"),
        *("--skip_pyramid", "--skip_report"),
    )
    assert run.code == 0, run.output
    assert voxels_of(run.outdir / "phantom" / "phantom_n4.ome.zarr").shape[0] == 30


def test_n4_by_section_is_reached_from_the_workflow(nextflow, tmp_path):
    run = nextflow(
        *(tmp_path, "-profile", "test", "--resolution", "20", "--n4_iterations", "auto"),
        *("--n4_shrink_factor", "auto", "--n4_mode", "two_pass", "--n4_z_profile_gain"),
        *("--n4_histogram_matching", "section", "--skip_pyramid"),
    )
    assert run.code == 0, run.output
    folder = run.outdir / "phantom"
    figures = json.loads((folder / "metrics" / "n4_metrics.json").read_text())["figures"]
    assert [section["name"] for section in figures["sections"]] == [
        f"section_0{number}.ome.zarr" for number in range(1, 5)
    ]
    assert figures["levels"]
    truth = figures["truth"]
    assert truth["cv_against_truth_after"] < truth["cv_against_truth_before"]
    assert "Fields of sections" in (folder / "phantom_report.html").read_text(encoding="utf-8")


def test_every_step_ran_once_for_each_of_its_inputs(demo):
    assert demo.tasks() == [
        "N4 (phantom)",
        "PHANTOM (phantom)",
        "PREFLIGHT (phantom)",
        "PYRAMID (phantom)",
        "REPORT (phantom)",
        *(f"RESAMPLE (phantom:section_0{number})" for number in range(1, 5)),
        "STACK (phantom)",
        *(f"STITCH (phantom:section_0{number})" for number in range(1, 5)),
    ]


def test_the_results_are_these_and_no_others(results):
    assert sorted(path.name for path in results.iterdir()) == [
        "input.json",
        "metrics",
        "phantom.ome.zarr",
        "phantom_bias.ome.zarr",
        "phantom_report.html",
        "phantom_report.json",
        "phantom_trace.json.gz",
        "previews",
        "ro-crate-metadata.json",
    ]


@pytest.mark.parametrize("name", ["phantom", "phantom_bias"])
def test_volumes_are_valid_ome_zarr(results, name):
    group = ome_zarr_models.open_ome_zarr(zarr.open_group(results / f"{name}.ome.zarr", mode="r"))
    assert group.ome_zarr_version == "0.5"


def test_the_volume_has_the_resolutions_asked_for_and_coarser_ones(results):
    store = results / "phantom.ome.zarr"
    metadata = json.loads((store / "zarr.json").read_text(encoding="utf-8"))
    (multiscale,) = metadata["attributes"]["ome"]["multiscales"]
    scales = [
        dataset["coordinateTransformations"][0]["scale"] for dataset in multiscale["datasets"]
    ]
    assert scales == [[s, s, s] for s in (10.0, 25.0, 50.0, 100.0)]
    assert {axis["unit"] for axis in multiscale["axes"]} == {"micrometer"}
    voxels = voxels_of(store)
    # Four sections of 150 micrometres.
    assert voxels.shape[0] == 60
    assert voxels.min() >= 0
    assert voxels.std() > 0


def test_the_field_is_positive_on_the_grid_of_the_volume(results):
    field = voxels_of(results / "phantom_bias.ome.zarr")
    assert field.shape == voxels_of(results / "phantom.ome.zarr").shape
    assert field.min() > 0
    assert field.std() > 0


def test_the_report_holds_the_metrics_of_every_step(results):
    assert "phantom" in (results / "phantom_report.html").read_text(encoding="utf-8")
    told = json.loads((results / "phantom_report.json").read_text(encoding="utf-8"))
    steps = [record["step"] for record in told["records"]]
    assert sorted(steps) == sorted(["resample", "stitch"] * 4 + ["stack", "n4", "pyramid"])
    (n4,) = (record for record in told["records"] if record["step"] == "n4")
    assert n4["figures"]["truth"]
    assert n4["figures"]["field_min"] > 0
    assert n4["versions"]["octane"]
    assert list((results / "previews").glob("*.png"))


def test_the_trace_is_as_viewers_take_it(results):
    trace = json.loads(gzip.decompress((results / "phantom_trace.json.gz").read_bytes()))
    events = trace["traceEvents"]
    named = {(e["ph"], e["name"], e["pid"]) for e in events if e["ph"] == "M"}
    pieces = [e for e in events if e["ph"] == "X"]
    assert {"read", "compute", "write"} <= {e["name"] for e in pieces}
    for event in pieces:
        assert event["ts"] >= 0
        assert event["dur"] >= 0
        assert ("M", "process_name", event["pid"]) in named
        assert ("M", "thread_name", event["pid"]) in named
    # The five steps, of four sections each where they work on sections.
    assert len({e["pid"] for e in pieces}) == 11


def test_every_link_of_the_report_leads_to_a_result(results):
    html = (results / "phantom_report.html").read_text(encoding="utf-8")
    links = {unquote(link) for link in re.findall('href="([^"#][^"]*)"', html)}
    assert "phantom.ome.zarr/" in links
    assert [link for link in links if not (results / link).exists()] == []


def test_the_provenance_names_the_results_and_every_task(results):
    crate = json.loads((results / "ro-crate-metadata.json").read_text(encoding="utf-8"))
    entities = {entity["@id"]: entity for entity in crate["@graph"]}
    assert len(entities) == len(crate["@graph"])
    parts = [part["@id"] for part in entities["./"]["hasPart"]]
    (workflow,) = (name for name in parts if name.startswith("file://"))
    assert workflow.endswith("/main.nf")
    assert [p for p in parts if p != workflow and not (results / p).exists()] == []
    tasks = {path.name.removesuffix("_metrics.json") for path in (results / "metrics").iterdir()}
    assert {f"#action-{task}" for task in tasks} <= entities.keys()
    read = [part["@id"] for part in entities["#run"]["object"] if "file:" in part["@id"]]
    assert read
    for name in read:
        assert Path(unquote(urlparse(name).path), "0", "zarr.json").exists()
    assert re.fullmatch(rf"{re.escape(__version__)} [0-9a-f]{{12}}", entities[workflow]["version"])


def test_the_provenance_has_the_parameters_by_the_names_that_the_workflow_knows(results, project):
    crate = json.loads((results / "ro-crate-metadata.json").read_text(encoding="utf-8"))
    named = {e["name"] for e in crate["@graph"] if e["@type"] == "FormalParameter"}
    schema = json.loads((project / "nextflow_schema.json").read_text(encoding="utf-8"))
    known = {name for group in schema["$defs"].values() for name in group["properties"]}
    assert named <= known, named - known
    assert {"resolution", "missing_chunks", "n4_shrink_factor"} <= named


def test_results_are_links_and_the_last_words_say_so(demo, results):
    assert (results / "phantom.ome.zarr").is_symlink()
    assert f"  {results / 'phantom.ome.zarr'}" in demo.output
    assert f"They are links into {demo.folder / 'work'}" in demo.output
    assert f"/bin/materialize.py '{demo.outdir}'" in demo.output


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


def test_nothing_warns(demo):
    assert "WARN" not in demo.output


def test_a_second_run_is_all_cached(demo, nextflow):
    again = nextflow(demo.folder, "-profile", "test", "-resume")
    assert again.code == 0, again.output
    assert again.tasks() == again.tasks("CACHED")
    assert len(again.tasks()) == 14
