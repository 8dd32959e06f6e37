"""A subject's folder belongs to one input, and nothing that is read is replaced."""

import json
import os

import pytest
from plans import launched
from refusals import refused

from octane.core.errors import InputError
from octane.processes.preflight.claim import claim_folder
from octane.processes.preflight.states import PlanContent, State


@pytest.fixture
def claim(tmp_path):
    """Claim the folder of a subject for an input; returns the claim."""

    def run(name="data", state="1", parts=("",), files=(), **changes):
        source = tmp_path / name
        if not source.exists():
            source.mkdir(parents=True)
        asked = {"id": "brain", "input": str(source)}
        changes["parameters"] = {**changes.get("parameters", {}), **dict(files)}
        own = launched(tmp_path, asked, **changes)
        (subject,) = own.subjects()
        data = {"brain/input": [source]}
        data |= {f"brain/input/{part}": [source / part] for part in parts if part}
        plan = PlanContent("brain", [], data, [State("input", str(source), parts, state)])
        return claim_folder(own, subject, plan)

    return run


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "results" / "brain"


def noted(folder):
    return json.loads((folder / "input.json").read_text(encoding="utf-8"))


REPLACE = {"parameters": {"overwrite_subject": True}}


def test_a_folder_is_claimed_for_its_input(claim, folder, tmp_path):
    assert not folder.exists()
    claim().take()
    assert noted(folder)["input"] == str(tmp_path / "data")
    assert not noted(folder)["stub"]


def test_an_input_that_was_moved_or_corrected_is_the_same(claim, folder):
    claim().take()
    (folder / "brain.ome.zarr").mkdir()
    for name, state in (("data", "2"), ("moved", "2")):
        own = claim(name, state)
        assert not own.earlier
        own.take()
        assert (folder / "brain.ome.zarr").is_dir()
        assert noted(folder)["input"].endswith(name)


def test_another_input_replaces_results_only_if_asked(claim, folder, tmp_path):
    claim().take()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").touch()
    (folder / "brain.ome.zarr").symlink_to(elsewhere)
    for name in (
        "metrics/n4_metrics.json",
        "earlier_2/brain.ome.zarr/0/c/0/0/0",
        "brain_report.html",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    with refused(folder, "/data", "--overwrite_subject", error=InputError):
        claim("other", "2")
    own = claim("other", "2", **REPLACE)
    assert own.earlier == str(tmp_path / "data")
    # Nothing is deleted before all subjects are right.
    assert (folder / "metrics").is_dir()
    own.take()
    assert [path.name for path in folder.iterdir()] == ["input.json"]
    assert (elsewhere / "kept").exists()


def test_what_is_no_result_is_never_deleted(claim, folder):
    claim().take()
    (folder / "notes.txt").touch()
    with refused(f"{folder}/notes.txt", "--overwrite_subject", "--outdir", error=InputError):
        claim("other", "2", **REPLACE)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("results/brain", ("section_01.ome.zarr",)),
        ("results/brain/inner", ("section_01.ome.zarr",)),
        # The folder is in a part of the input.
        (".", ("results",)),
    ],
)
def test_results_never_replace_the_input(claim, folder, tmp_path, name, parts):
    folder.mkdir(parents=True)
    for part in parts:
        (tmp_path / name / part).mkdir(parents=True, exist_ok=True)
    with refused(folder, (tmp_path / name).resolve(), "--outdir", error=InputError):
        claim(name, parts=parts)


def test_results_are_not_made_inside_of_what_tasks_read(claim, folder, tmp_path):
    store = tmp_path / "results"
    store.mkdir()
    # The folder does not exist yet.
    with refused(folder, store, "--outdir", error=InputError):
        claim("results", parts=("../results",))
    assert not [*store.iterdir()]


def test_results_may_be_in_a_folder_of_data(claim, folder, tmp_path):
    folder.mkdir(parents=True)
    (tmp_path / "section_01.ome.zarr").mkdir()
    claim(".", parts=("section_01.ome.zarr",)).take()
    assert noted(folder)["input"] == str(tmp_path)


def test_a_mask_in_a_folder_that_is_emptied_is_seen_through_links(claim, folder, tmp_path):
    claim().take()
    (folder / "metrics").mkdir()
    (folder / "metrics" / "mask.json").touch()
    link = tmp_path / "mask"
    link.symlink_to(folder / "metrics" / "mask.json")
    files = {"n4_mask": str(link)}
    assert not claim(files=files).earlier
    with refused(folder, link, "--outdir", error=InputError):
        claim("other", "2", files=files, **REPLACE)


@pytest.mark.parametrize(("name", "end"), [("positions", "positions"), ("stitch_gain", "gains")])
def test_a_table_of_results_is_not_read_while_it_is_replaced(claim, folder, name, end):
    claim().take()
    table = folder / f"brain_{end}.csv"
    table.touch()
    with refused(table, error=InputError):
        claim(files={name: str(table)})


def test_stubs_never_replace_results(claim, folder):
    claim(is_stub=True).take()
    claim(is_stub=True).take()
    claim().take()
    with refused(folder, "-stub-run", error=InputError):
        claim(is_stub=True)


def test_what_the_run_made_is_the_same_input_wherever_it_is(claim, folder):
    claim("work/1/subject", "1").take()
    assert noted(folder)["input"] == "made by the run"
    assert not claim("work/2/subject", "2").earlier
    with pytest.raises(InputError, match="has the results of another input, made by the run"):
        claim()


@pytest.mark.parametrize("content", ["{", "\x00"])
def test_a_record_that_cannot_be_read_is_named_and_an_empty_one_is_none(claim, folder, content):
    folder.mkdir(parents=True)
    record = folder / "input.json"
    record.touch()
    claim().take()
    record.write_text(content)
    with refused(record, "--outdir", error=InputError):
        claim()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
@pytest.mark.parametrize("closed", ["results", "results/brain", "results/brain/metrics"])
def test_a_folder_that_cannot_be_written_is_named(claim, tmp_path, closed):
    path = tmp_path / closed
    path.mkdir(parents=True)
    path.chmod(0o500)
    try:
        with refused(path, "--outdir", error=InputError):
            claim()
    finally:
        path.chmod(0o700)
