"""Manifests: what is listed, what is found wrong, and what is said of it."""

import re
import shutil
import subprocess
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octane.core.errors import OctaneError
from octane.core.manifests import (
    PLACE,
    Stamp,
    check,
    differing,
    files_of,
    manifest_text,
    measured,
    read_manifest,
    restore,
    stamped,
    task_folder,
)
from octane.steps.verifying import verify_stores
from octane.store.image import open_image

TASK = Path("work/ab/0123456789abcdef0123456789abcd")


@pytest.fixture
def store(write_image):
    """A store of eight chunks."""
    voxels = np.random.default_rng(1).random((8, 8, 8), np.float32)
    return write_image("a.ome.zarr", voxels, chunks=(4, 4, 4))


@pytest.fixture
def listed(tmp_path):
    """A folder with some files and its manifest."""
    for key, content in {"zarr.json": b"{}", "0/zarr.json": b"{ }", "0/c/0": b"abc"}.items():
        (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / key).write_bytes(content)
    (tmp_path / PLACE).write_bytes(manifest_text(tmp_path, {}))
    return tmp_path


def test_every_file_of_a_store_is_listed_with_size_and_checksum(store):
    lines = (store / PLACE).read_text().splitlines()
    files = [p for p in store.rglob("*") if p.is_file() and p != store / PLACE]
    assert len(files) == 10
    keys = sorted(p.relative_to(store).as_posix() for p in files)
    assert [line.split("\t")[2] for line in lines] == [*keys, "10 files"]
    for line, key in zip(lines, keys, strict=False):
        content = (store / key).read_bytes()
        assert line == f"{google_crc32c.value(content):08x}\t{len(content)}\t{key}"
    assert int(lines[-1].split("\t")[1]) == sum(p.stat().st_size for p in files)


def test_zarr_does_not_see_it_as_a_part_of_the_hierarchy(store):
    # A warning is an error here.
    image = open_image(store)
    assert image.array.nchunks_initialized == 8
    assert image.manifest == check(store)


def test_a_store_of_others_has_none(write_foreign):
    path = write_foreign("a.zarr", np.ones((4, 4, 4), np.float32))
    assert check(path) is None
    assert open_image(path).manifest is None


def test_a_file_in_place_of_a_store_has_none(tmp_path):
    (tmp_path / "a").write_text("")
    assert read_manifest(tmp_path / "a") is None
    assert read_manifest(tmp_path / "b") is None


def test_a_known_stamp_is_taken_and_its_size_is_compared(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    assert manifest_text(tmp_path, {"a": Stamp(3, 0xABC)}).startswith(b"00000abc\t3\ta\n")
    with pytest.raises(OctaneError, match="4 bytes were written and 3 are there"):
        manifest_text(tmp_path, {"a": Stamp(4, 0xABC)})


def test_hidden_files_are_not_listed(tmp_path):
    for name in ("b", ".partial-1-b", ".DS_Store", "a"):
        (tmp_path / name).touch()
    assert list(files_of(tmp_path)) == ["a", "b"]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda f: f.unlink(), "chunk 0/c/0 is missing, of 3 bytes"),
        (lambda f: f.write_bytes(b"ab"), "chunk 0/c/0 is cut short: 2 bytes are there of 3"),
        (lambda f: f.write_bytes(b"abcd"), "chunk 0/c/0 was changed since: 4 bytes are there, 3"),
        (lambda f: shutil.rmtree(f.parent), "chunk 0/c/0 is missing"),
    ],
)
def test_what_is_wrong_with_a_chunk_is_said(listed, damage, words):
    damage(listed / "0/c/0")
    with pytest.raises(OctaneError, match=re.escape(f"{listed}: {words}")) as caught:
        check(listed)
    assert f"bin/materialize.py --accept-changes {listed}" in str(caught.value)


def test_changed_metadata_is_seen_at_its_checksum(listed):
    (listed / "zarr.json").write_bytes(b"[]")
    with pytest.raises(OctaneError, match=r"zarr\.json was changed since: its 2 bytes have"):
        check(listed)


def test_of_several_files_the_first_is_named_and_the_others_are_counted(listed):
    (listed / "0/c/0").unlink()
    (listed / "0/zarr.json").unlink()
    with pytest.raises(OctaneError, match=r"0/c/0 is missing.* \(and 1 more of its files\)"):
        check(listed)


def test_files_that_are_not_listed_are_let_be(listed):
    (listed / "labels").mkdir()
    (listed / "labels/zarr.json").write_text("{}")
    assert len(check(listed) or ()) == 3


def test_a_chunk_of_the_same_size_is_not_read_until_it_is_verified(listed):
    (listed / "0/c/0").write_bytes(b"abd")
    assert check(listed) is not None
    assert differing(str(listed), "0/c/0", stamped([b"abc"]), read=False) is None
    assert "another checksum" in (
        differing(str(listed), "0/c/0", stamped([b"abc"]), read=True) or ""
    )


@given(st.integers(0, 10_000))
def test_a_manifest_that_is_cut_short_anywhere_is_refused(tmp_path_factory, cut):
    folder = tmp_path_factory.getbasetemp() / "cut"
    (folder / "0").mkdir(parents=True, exist_ok=True)
    (folder / "a").write_bytes(b"abc")
    content = manifest_text(folder, {})
    (folder / PLACE).write_bytes(content[: cut % len(content)])
    with pytest.raises(OctaneError, match="is cut short or changed"):
        read_manifest(folder)
    (folder / PLACE).write_bytes(content)
    assert check(folder) == {"a": stamped([b"abc"])}


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_manifest_with_another_byte_anywhere_is_refused(tmp_path_factory, place, other):
    folder = tmp_path_factory.getbasetemp() / "other"
    (folder / "0").mkdir(parents=True, exist_ok=True)
    (folder / "a").write_bytes(b"abc")
    content = bytearray(manifest_text(folder, {}))
    content[place % len(content)] ^= other
    (folder / PLACE).write_bytes(content)
    with pytest.raises(OctaneError, match="is cut short or changed"):
        read_manifest(folder)


@given(st.lists(st.binary(max_size=50), max_size=5))
def test_a_stamp_is_the_same_in_pieces_and_from_the_file(tmp_path_factory, pieces):
    file = tmp_path_factory.getbasetemp() / "pieces"
    file.write_bytes(b"".join(pieces))
    assert stamped(pieces) == measured(file) == stamped([b"".join(pieces)])


def test_a_store_that_lost_its_manifest_is_refused(store):
    (store / PLACE).unlink()
    with pytest.raises(OctaneError, match=f"has lost {PLACE}"):
        open_image(store)
    with pytest.raises(OctaneError, match=f"has lost {PLACE}"):
        verify_stores(store)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda s: shutil.rmtree(s / "0"), "has lost 0/octane-manifest.tsv"),
        (lambda s: (s / PLACE).write_bytes(b""), "octane-manifest.tsv, the list of"),
        (lambda s: (s / "zarr.json").write_bytes(b""), "zarr.json is cut short: 0 bytes are there"),
        (lambda s: (s / "0/zarr.json").unlink(), "0/zarr.json is missing"),
    ],
)
def test_whatever_a_store_has_lost_is_named_when_it_is_opened(store, damage, words):
    damage(store)
    with pytest.raises(OctaneError, match=words):
        open_image(store)


def test_the_output_of_a_task_is_made_again_by_the_workflow(store, tmp_path):
    task = tmp_path / TASK
    task.mkdir(parents=True)
    inside = store.rename(task / store.name)
    link = tmp_path / "staged.ome.zarr"
    link.symlink_to(inside)
    assert task_folder(link) == task
    assert task_folder(tmp_path) is None
    assert restore(link).endswith(f"remove {task} and run again with -resume.")
    file = inside / "0/c/0/0/0"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    whole = (slice(0, 8),) * 3
    with pytest.raises(OctaneError, match=f"cannot be decoded .* remove {task}"):
        open_image(link).read(whole)


def test_the_command_of_the_page_of_outputs_compares_by_hand(store, project):
    page = (project / "docs" / "output.md").read_text()
    (command,) = re.findall(r"^    (diff <\(head.*\n.*\))$", page, re.MULTILINE)

    def compared():
        done = subprocess.run(
            ["bash", "-c", command], cwd=store, capture_output=True, text=True, check=False
        )
        assert not done.stderr
        return done.stdout

    assert compared() == ""
    size = (store / "0/c/0/0/0").stat().st_size
    (store / "0/c/0/0/0").write_bytes(b"abc")
    assert f"< {size}\t0/c/0/0/0" in compared()
    assert "> 3\t0/c/0/0/0" in compared()
