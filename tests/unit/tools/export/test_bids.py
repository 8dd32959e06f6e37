"""BIDS derivatives, as bids-validator reads them."""

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import bids_validator_deno
import numpy as np
import pytest
from refusals import refused

from octane.core.errors import NoSpaceError, OctaneError
from octane.tools.export.bids import VERSION, add_row, write_derivative
from octane.tools.export.parameters import BidsParameters

VALIDATOR = Path(sys.executable).with_name("bids-validator-deno")
SECTIONS = [
    {"name": f"s{n}.ome.zarr", "number": n, "start": 2 * k, "stop": 2 * k + 2, "top": top}
    for k, (n, top) in enumerate([(1, 0.0), (2, 62.5), (4, 187.5)])
]


@pytest.fixture
def store(write_image, rng):
    """A volume of three sections, whose orientation is known."""
    noted = {
        "kind": "volume",
        "sections": SECTIONS,
        "orientation": ["anterior-to-posterior", "superior-to-inferior", "left-to-right"],
    }
    voxels = rng.random((6, 8, 10)).astype("float32")
    return write_image("sub-a1.ome.zarr", voxels, (30.0, 10.0, 5.0), attributes=noted)


@pytest.fixture
def add(tmp_path):
    """Add a store to the dataset."""

    def to_dataset(
        store, subject=None, sample="01", suffix="OCT", *, dataset=None, overwrite=False
    ):
        named = BidsParameters(bids_subject=subject, bids_sample=sample, bids_suffix=suffix)
        place = dataset or tmp_path / "dataset"
        return write_derivative(store, place, named, overwrite=overwrite)

    return to_dataset


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def contents(folder):
    """Bytes of all files in a folder."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder): path.read_bytes() for path in files}


def issues(dataset):
    """Severity, code and place of the validator's findings, without a network."""
    nowhere = {name: "http://localhost:9" for name in ("HTTP_PROXY", "HTTPS_PROXY")}
    made = subprocess.run(
        [VALIDATOR, "--format", "json", dataset],
        env={**os.environ, **nowhere}, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    found = json.loads(made.stdout)
    assert found["summary"]["dataTypes"] == ["micr"]
    return sorted((i["severity"], i["code"], i["location"]) for i in found["issues"]["issues"])


def test_the_version_is_the_newest_that_the_validator_knows():
    schema = Path(bids_validator_deno.__file__).with_name("bids-validator.js")
    known = re.search(r'bids_version: "([\d.]+)"', schema.read_text(encoding="utf-8"))
    assert known is not None
    assert known[1] == VERSION


def test_two_subjects_make_a_valid_derivative(store, add, tmp_path):
    add(store)
    add(store, "b2", "left", "SPIM")
    # Authors are the user's to name, and descriptions of tables would say what BIDS says.
    assert issues(tmp_path / "dataset") == [
        ("warning", "SIDECAR_KEY_RECOMMENDED", "/participants.tsv"),
        ("warning", "SIDECAR_KEY_RECOMMENDED", "/samples.tsv"),
        ("warning", "TOO_FEW_AUTHORS", "/dataset_description.json"),
    ]
    # Of raw data, the validator also requires what the specification asks of microscopy.
    described = tmp_path / "dataset" / "dataset_description.json"
    described.write_text(described.read_text().replace('"derivative"', '"raw"'))
    assert "error" not in {severity for severity, *_ in issues(tmp_path / "dataset")}
    (tmp_path / "dataset" / "sub-b2" / "micr" / "sub-b2_sample-left_SPIM.json").unlink()
    errors = {code for severity, code, _ in issues(tmp_path / "dataset") if severity == "error"}
    assert errors == {"SIDECAR_KEY_REQUIRED"}


def test_the_volume_is_linked_as_it_is(store, add):
    made = add(store)
    assert made.name == "sub-a1_sample-01_OCT.ome.zarr"
    assert contents(made) == contents(store)
    for name in contents(store):
        # An edit of the metadata must not change the original.
        is_linked = name.name != "zarr.json"
        assert (made / name).samefile(store / name) == is_linked


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["file", "folder", "device", "FIFO", "loops"])
def test_what_is_no_file_of_the_store_is_not_linked(store, add, odd_entry, tmp_path, kind):
    entry = odd_entry(store, kind)
    with pytest.raises(OctaneError, match=f"^{entry}.*;"):
        add(store)
    assert not (tmp_path / "dataset").exists()


def test_a_published_store_is_linked_as_the_one_in_the_work_directory(store, add, tmp_path):
    (tmp_path / "published").mkdir()
    (tmp_path / "published" / store.name).symlink_to(store)
    assert contents(add(tmp_path / "published" / store.name)) == contents(store)


def test_a_dataset_in_the_store_itself_is_refused(store, add, tmp_path):
    before = contents(store)
    (tmp_path / "link").symlink_to(store)
    for dataset in (store / "bids", tmp_path / "link" / "0" / "bids"):
        with refused(dataset, f" {store} "):
            add(store, dataset=dataset)
    assert contents(store) == before
    assert not [*store.rglob("bids")]


def test_across_file_systems_the_volume_is_copied(store, add, monkeypatch):
    def refused(*_):
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refused)
    made = add(store)
    assert contents(made) == contents(store)
    chunk = next(name for name in contents(store) if name.name != "zarr.json")
    assert not (made / chunk).samefile(store / chunk)


def test_the_sidecar_states_the_volume_and_how_it_was_made(store, add):
    (store.parent / "metrics").mkdir()
    for name, step, channel, settings in (
        ("n4", "n4", "intensity", {"mode": "global", "weights": None}),
        ("axis_n4", "n4", "axis", {"mode": "of another volume"}),
        ("section_02_stitch", "stitch", "", {"overlap": [0.2, 0.3]}),
        ("section_01_stitch", "stitch", "", {"overlap": [0.2, 0.2]}),
    ):
        record = {"step": step, "settings": settings, "versions": {"octane": "0.0.9"}}
        record["channel"] = channel
        (store.parent / "metrics" / f"{name}_metrics.json").write_text(json.dumps(record))
    made = read(add(store).with_name("sub-a1_sample-01_OCT.json"))
    assert made.pop("Description")
    assert made == {
        "PixelSize": [5.0, 10.0, 30.0],
        "PixelSizeUnits": "um",
        "SliceThickness": 62.5,
        "AxisOrientation": {
            "z": "anterior-to-posterior",
            "y": "superior-to-inferior",
            "x": "left-to-right",
        },
        "ProcessingSteps": [
            {"Name": "stitch", "Software": "octane 0.0.9", "Parameters": {"overlap": [0.2, 0.2]}},
            {
                "Name": "n4",
                "Channel": "intensity",
                "Software": "octane 0.0.9",
                "Parameters": {"mode": "global"},
            },
        ],
    }


def test_what_a_volume_does_not_state_is_left_out(write_image, add, caplog):
    store = write_image("plain.ome.zarr", np.ones((4, 4, 4), "uint8"))
    made = read(add(store).with_name("sub-plain_sample-01_OCT.json"))
    assert made.keys() == {"Description", "PixelSize", "PixelSizeUnits"}
    assert "plain.ome.zarr: no records in metrics/" in caplog.text


def test_an_existing_volume_is_replaced_only_when_told_to(store, add, write_image, tmp_path):
    add(store)
    before = contents(tmp_path / "dataset")
    other = write_image("other.ome.zarr", np.ones((4, 4, 4), "uint8"))
    with refused("OCT.ome.zarr", "--overwrite"):
        add(other, "a1")
    assert contents(tmp_path / "dataset") == before
    made = add(other, "a1", overwrite=True)
    assert contents(made) == contents(other)
    assert read(made.with_name("sub-a1_sample-01_OCT.json"))["PixelSize"] == [10.0, 10.0, 10.0]
    assert len((tmp_path / "dataset" / "samples.tsv").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (("a-1",), ("--bids_subject", "'a-1'")),
        (("a1", ""), ("--bids_sample", "''")),
        ((None,), ("my brain.ome.zarr", "--bids_subject")),
    ],
)
def test_labels_that_bids_does_not_allow_are_refused(store, add, tmp_path, labels, names):
    renamed = store.rename(tmp_path / "my brain.ome.zarr")
    with refused(*names):
        add(renamed, *labels)
    assert not (tmp_path / "dataset").exists()


def test_other_folders_and_files_are_refused(store, add, tmp_path):
    raw, photos = tmp_path / "raw", tmp_path / "photos"
    for folder in (raw, photos):
        folder.mkdir()
    (raw / "dataset_description.json").write_text('{"Name": "raw", "BIDSVersion": "1.10.0"}')
    (photos / "a.png").touch()
    for folder, name in ((raw, "derivatives/octane"), (photos, "dataset_description.json")):
        before = contents(folder)
        with refused(folder, name):
            add(store, dataset=folder)
        assert contents(folder) == before
    with refused("a.png", "bin/export.py"):
        add(photos / "a.png")


def test_a_users_table_and_description_are_kept(store, add, tmp_path):
    table = tmp_path / "dataset" / "participants.tsv"
    add(store)
    # Edited, without a last line break.
    table.write_text("species\tparticipant_id\nmus musculus\tsub-a1")
    described = tmp_path / "dataset" / "dataset_description.json"
    described.write_text(json.dumps({**read(described), "Authors": ["A", "B"]}))
    add(store, sample="02")
    add(store, "b2")
    assert table.read_text().splitlines() == [
        "species\tparticipant_id",
        "mus musculus\tsub-a1",
        "n/a\tsub-b2",
    ]
    assert read(described)["Authors"] == ["A", "B"]


def test_a_table_without_its_key_is_refused(tmp_path):
    (tmp_path / "samples.tsv").write_text("sample_id\nsample-01\n")
    with refused("samples.tsv", "participant_id"):
        add_row(tmp_path / "samples.tsv", {"sample_id": "1", "participant_id": "2"})


def test_the_command_takes_a_file_or_a_dataset(command, call, store, tmp_path):
    dataset = tmp_path / "dataset"
    made = command("export", store, "--bids", dataset)
    assert (
        made.stdout == f"Wrote {dataset / 'sub-a1' / 'micr' / 'sub-a1_sample-01_OCT.ome.zarr'}.\n"
    )
    archive = tmp_path / "a.ozx"
    for words in ([], [archive, "--bids", dataset], [archive, "--bids_sample", "02"]):
        assert call("export", store, *words)[1].startswith("error: Give either DESTINATION")
    for word in ("orientation", "input_unit", "region"):
        value = {"orientation": "PIR", "input_unit": "millimeter", "region": "z=:1"}[word]
        _, sentence = call("export", store, "--bids", dataset, f"--{word}", value)
        assert sentence.startswith("error: --bids links a whole store as it is;")


def test_a_store_that_lacks_chunks_is_refused(store, add, tmp_path):
    chunk = next(path for path in (store / "0" / "c").rglob("*") if path.is_file())
    chunk.unlink()
    with refused(store, chunk.relative_to(store), "--exclude_sections"):
        add(store)
    assert not (tmp_path / "dataset").exists()


def test_rows_of_several_processes_are_all_kept(run_python, tmp_path):
    table = tmp_path / "participants.tsv"
    script = """
from multiprocessing import Process
from pathlib import Path
from octane.tools.export.bids import VERSION, add_row

def rows(first):
    for n in range(first, first + 40):
        add_row(Path("participants.tsv"), {"participant_id": f"sub-{n % 50}"})

processes = [Process(target=rows, args=(first,)) for first in (0, 20, 40)]
for process in processes:
    process.start()
for process in processes:
    process.join()
    assert process.exitcode == 0
"""
    run_python(script, cwd=tmp_path)
    head, *found = table.read_text(encoding="utf-8").splitlines()
    assert head == "participant_id"
    assert sorted(found) == sorted(f"sub-{n}" for n in range(50))


def test_a_full_disk_or_another_encoding_leaves_no_volume(store, add, monkeypatch, tmp_path):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "link", full)
        with refused("OCT.ome.zarr", os.strerror(errno.ENOSPC), error=NoSpaceError):
            add(store)
    assert not (tmp_path / "dataset").exists()
    add(store, "other")
    samples = tmp_path / "dataset" / "samples.tsv"
    samples.write_bytes(samples.read_bytes() + "sample-02\tsub-é\ttissue\n".encode("latin-1"))
    with refused("samples.tsv", "UTF-8"):
        add(store, "third")
    assert not (tmp_path / "dataset" / "sub-third").exists()


def test_a_mosaic_grid_is_refused(write_image, add):
    mosaic = write_image("m.ome.zarr", np.ones((2, 8, 8), "u1"), attributes={"kind": "mosaic"})
    with refused(mosaic, "STITCH"):
        add(mosaic)
