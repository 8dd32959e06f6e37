import json
import re

import pytest
from rocrate.rocrate import ROCrate

from octane.config.schema import WorkflowModel
from octane.core.records import Record
from octane.report.crate import CRATE, crate

RUN = {"Nextflow": "24.10.0", "octane": "0.1.0", "script": "/code/main.nf", "container": "docker"}


def record(step: str, start: float, source: str, **settings: object) -> Record:
    staged = [f"input/{source}", "mask/m.tif"] if step == "n4" else [f"input/{source}"]
    return Record(
        step=step, command=[f"{step}.py", f"input/{source}"], settings=settings,
        inputs={name: {"path": f"/data/{name.partition('/')[2]}"} for name in staged},
        device={"backend": "gpu", "device": "A GPU", "driver": "550.1", "memory_bytes": 8},
        seconds={"total": 10.0}, peak_memory_bytes=1000,
        versions={"octane": "0.1.0", "numpy": "2.4.6"}, timeline={"started": start, "tracks": []},
    )  # fmt: skip


RECORDS = [
    record("n4", 1.7e9 + 100, "s.ome.zarr", strength=1.0, mask="mask/m.tif", weights=None),
    record("resample", 1.7e9, "a.ome.zarr", resolution=[9, 8, 8]),
    record("resample", 1.7e9 + 5, "b c.ome.zarr", resolution=[9, 8, 8]),
]
FILES = {
    "sub-01_n4.ome.zarr/": "the corrected volume",
    "the report.html": "the report",
    "metrics/section 01_resample_metrics.json": "a record",
}


def entities_of(records=RECORDS, **run):
    """The crate's entities as a program reads them, by name."""
    graph = json.loads(json.dumps(crate("sub-01", RUN | run, records, FILES)))["@graph"]
    named = {entity["@id"]: entity for entity in graph}
    assert len(named) == len(graph)
    return named


@pytest.fixture(scope="module")
def entities():
    return entities_of()


def of(entities, kind):
    return [e for e in entities.values() if kind in e["@type"]]


def test_the_crate_describes_itself_and_names_the_profiles(entities):
    assert entities[CRATE]["about"] == {"@id": "./"}
    root = entities["./"]
    assert {"name", "description", "datePublished", "license"} <= root.keys()
    profiles = {profile["@id"] for profile in root["conformsTo"]}
    for kind in ("process", "workflow"):
        assert f"https://w3id.org/ro/wfrun/{kind}/0.5" in profiles
    files = {name.replace(" ", "%20") for name in FILES}
    assert {part["@id"] for part in root["hasPart"]} == files | {"file:///code/main.nf"}
    assert entities[root["mainEntity"]["@id"]]["@type"][-1] == "ComputationalWorkflow"


def test_every_reference_within_the_crate_leads_to_an_entity(entities):
    names = set(re.findall('"@id": "([^"]+)"', json.dumps(list(entities.values()))))
    assert all(name.startswith("http") for name in names - entities.keys())


def test_the_run_has_its_inputs_its_settings_and_its_result(entities):
    run = entities["#run"]
    assert "containerImage" not in run
    told = [entities[part["@id"]] for part in run["object"]]
    assert {e["@id"]: e["name"] for e in told if e["@type"] == "CreativeWork"} == {
        "file:///data/a.ome.zarr": "a.ome.zarr",
        "file:///data/b%20c.ome.zarr": "b c.ome.zarr",
        "file:///data/m.tif": "m.tif",
    }
    values = {e["name"]: e["value"] for e in told if e["@type"] == "PropertyValue"}
    # Unset parameters are left out; the others are written as in a params file.
    assert values == {"n4_strength": 1.0, "n4_mask": "/data/m.tif", "resolution": "9 8 8"}
    WorkflowModel.model_validate(values)
    assert run["result"] == {"@id": "sub-01_n4.ome.zarr/"}
    assert run["startTime"] == "2023-11-14T22:13:20+00:00"
    assert run["endTime"] == "2023-11-14T22:15:10+00:00"


def test_a_workflow_of_a_repository_has_its_address():
    place = "https://example.org/lab/octane.git"
    root = entities_of(repository=place, revision="abc")["./"]
    assert root["mainEntity"]["@id"] == "https://example.org/lab/octane/blob/abc/main.nf"


@pytest.mark.parametrize(
    ("image", "kind"),
    [("ghcr.io/a/b:1@sha256:0af", "DockerImage"), ("/images/a:b.sif", "SIFImage")],
)
def test_a_run_in_a_container_names_its_image(image, kind):
    entities = entities_of(container="docker", image=image)
    found = entities["#container"]
    assert (found["@type"], found["name"]) == ("ContainerImage", image)
    assert found["additionalType"]["@id"].endswith(f"#{kind}")
    assert entities["#run"]["containerImage"] == {"@id": "#container"}


def test_settings_that_differ_in_a_sign_alone_are_several():
    masks = ["/a/b c.tif", "/a/b_c.tif", "/a/b%20c.tif"]
    found = entities_of([record("n4", 0, "a.zarr", mask=mask) for mask in masks])
    assert [e["value"] for e in of(found, "PropertyValue") if e["name"] == "n4_mask"] == masks


def test_the_library_of_ro_crates_reads_it(tmp_path):
    for name in FILES:
        place = tmp_path / name
        place.mkdir(parents=True) if name.endswith("/") else place.parent.mkdir(exist_ok=True)
        place.is_dir() or place.touch()
    (tmp_path / CRATE).write_text(json.dumps(crate("sub-01", RUN, RECORDS, FILES)))
    read = ROCrate(tmp_path)
    assert read.mainEntity["programmingLanguage"]["name"] == "Nextflow"
    assert {part.id for part in read.root_dataset["hasPart"]} >= {"sub-01_n4.ome.zarr/"}
    assert [run["instrument"]["name"] for run in read.get_by_type("CreateAction")] == ["octane"]
