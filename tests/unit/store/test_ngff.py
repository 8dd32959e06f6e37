"""Metadata of other writers: read if valid, else refused in one sentence."""

import json
import os
import shutil
from math import nan

import numpy as np
import pytest
import zarr

from octane.config.parameters import InputParameters
from octane.core.errors import OctaneError
from octane.store.image import open_image

VOXELS = np.ones((8, 8, 8), np.float32)


@pytest.fixture
def change_multiscale(write_foreign):
    """Write an image as other programs do, and change its metadata."""

    def write(change):
        path = write_foreign("a.zarr", VOXELS)
        content = json.loads((path / ".zattrs").read_text())
        change(content["multiscales"][0])
        (path / ".zattrs").write_text(json.dumps(content))
        return path

    return write


def scale(*values):
    return {"type": "scale", "scale": list(values)}


def shift(*values):
    return {"type": "translation", "translation": list(values)}


def read(path, missing="error"):
    open_image(path, InputParameters(missing_chunks=missing)).read((slice(0, 8),) * 3)


def refused(path, words, missing="error"):
    with pytest.raises(OctaneError, match=words) as caught:
        read(path, missing)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("unit", "micrometers"),
    [
        ("mm", 1000),
        ("um", 1),
        ("µm", 1),
        ("\u03bcm", 1),
        ("micron", 1),
        ("nanometer", 1e-3),
        ("meter", 1e6),
        ("decimeter", 1e5),
        ("dm", 1e5),
        ("hectometer", 1e8),
        ("angstrom", 1e-4),
        ("picometer", 1e-6),
        ("inch", 25_400),
        ("foot", 304_800),
        ("yard", 914_400),
    ],
)
def test_a_unit_in_another_spelling_means_the_same(write_foreign, unit, micrometers):
    given = {"unit": unit, "transforms": (scale(10, 4, 5), shift(1, 2, 3))}
    grid = open_image(write_foreign("a.zarr", VOXELS, **given)).grid
    assert grid.spacing == pytest.approx([10 * micrometers, 4 * micrometers, 5 * micrometers])
    assert grid.origin == pytest.approx([micrometers, 2 * micrometers, 3 * micrometers])


def test_each_axis_has_its_own_unit_which_wins_over_the_one_given(change_multiscale):
    path = change_multiscale(lambda multiscale: multiscale["axes"][0].update(unit="millimeter"))
    assert open_image(path, None).grid.spacing == (10_000.0, 10.0, 10.0)
    assert open_image(path, None).overruled == ""
    # --input_unit overrules them.
    image = open_image(path, InputParameters(input_unit="meter"))
    assert image.grid.spacing == (1e7, 1e7, 1e7)
    assert image.overruled.startswith("The store states lengths in millimeter and micrometer; ")
    assert open_image(path, InputParameters(input_unit=None)).overruled == ""
    # A scale without a unit is not trusted if other axes have one.
    path = change_multiscale(lambda multiscale: multiscale["axes"][0].pop("unit"))
    with pytest.raises(OctaneError, match="not for z"):
        open_image(path, InputParameters(input_unit="micrometer"))


@pytest.mark.parametrize(
    ("transforms", "common", "spacing", "origin"),
    [
        ((scale(1, 2, 3), shift(1, 2, 3)), [scale(2, 2, 2), shift(5, 0, 0)], (2, 4, 6), (7, 4, 6)),
        ((shift(1, 2, 3), scale(1, 2, 3), scale(2, 2, 2)), None, (2, 4, 6), (2, 8, 18)),
        ([{"type": "identity"}], [scale(1, 2, 3)], (1, 2, 3), (0, 0, 0)),
    ],
)
def test_transformations_apply_in_their_order_and_those_of_the_whole_last(
    write_foreign, transforms, common, spacing, origin
):
    grid = open_image(write_foreign("a.zarr", VOXELS, transforms=transforms, common=common)).grid
    assert (grid.spacing, grid.origin) == (spacing, origin)


def test_the_scale_of_time_does_not_matter(write_foreign):
    given = {"axes": "tczyx", "transforms": [scale(0, -1, 1, 2, 3), shift(0, 0, 4, 5, 6)]}
    grid = open_image(write_foreign("a.zarr", VOXELS[None, None], **given)).grid
    assert (grid.spacing, grid.origin) == ((1, 2, 3), (4, 5, 6))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        *(({"axes": axes}, "axes") for axes in ("yx", "czyx", "xyz")),
        ({"axes": ""}, "does not list its axes, as OME-Zarr 0.4 to 0.6 do"),
        *(({"unit": u}, f"unit '{u}'") for u in ("furlong", "pixel", "reference frame", "second")),
        ({"unit": "parsec"}, "which is not plausible"),
        ({"array": None}, "dataset 0"),
        *(
            ({"transforms": transforms}, words)
            for transforms, words in (
                ([], "does not state a scale"),
                ([shift(1, 2, 3)], "does not state a scale"),
                ([scale(1, 1)], "invalid scale"),
                ([{"type": "scale"}], "invalid scale"),
                ([scale(1, 1, 1), shift(1, 2)], "invalid translation"),
                ([scale(1, 1, 1), shift(nan, 1, 1)], r"translation\.0"),
                ([scale(1e12, 1, 1)], "which is not plausible"),
                ([scale(1, 0, 1)], "which is not plausible"),
                (
                    [scale(1, 1, 1), {"type": "affine"}],
                    "'affine'",
                ),
                ([{"type": 5}], "type"),
            )
        ),
    ],
)
def test_an_image_without_axes_unit_or_scale_is_refused(write_foreign, given, words):
    refused(write_foreign("a.zarr", VOXELS, **given), words)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("compressor", {"id": "foo"}),
        ("filters", [{"id": "foo"}]),
        ("dtype", "foo"),
        ("dtype", "|V8"),
        ("shape", [8, 8]),
        ("shape", [0, 8, 8]),
        ("chunks", [8, 8]),
        ("zarr_format", 99),
    ],
)
def test_an_array_that_zarr_does_not_read_is_refused(write_foreign, field, value):
    path = write_foreign("a.zarr", VOXELS)
    content = json.loads((path / "0/.zarray").read_text())
    (path / "0/.zarray").write_text(json.dumps(content | {field: value}))
    refused(path, "dataset 0|holds an array of")


@pytest.mark.parametrize(
    ("noted", "field"),
    [
        ({"kind": "grid"}, "kind"),
        ({"mosaic": None}, "mosaic"),
        ({"mosaic": {"pitch": 120}}, "mosaic.pitch"),
        ({"mosaic": {"pitch": ["120", "120"]}}, "mosaic.pitch"),
        ({"mosaic": {"edge": [0, 0]}}, "mosaic.edge"),
        ({"section": {"number": "two"}}, "section.number"),
        ({"sections": 5}, "sections"),
        ({"sections": [{"name": "a", "number": 1, "start": 0}]}, "sections.0.stop"),
    ],
)
def test_facts_that_a_converter_writes_wrong_are_named(write_foreign, noted, field):
    path = write_foreign("a.zarr", VOXELS)
    content = json.loads((path / ".zattrs").read_text())
    (path / ".zattrs").write_text(json.dumps(content | {"octane": noted}))
    refused(path, rf"\(octane\.{field}")


@pytest.mark.parametrize(
    "content", [b"{", b"[]", b"5", b"null", b"\xff\xfe", b"[" * 100_000], ids=lambda c: c[:9]
)
@pytest.mark.parametrize("name", ["zarr.json", "0/zarr.json"])
def test_metadata_that_is_not_json_is_refused(write_foreign, name, content):
    path = write_foreign("a.zarr", VOXELS, version="0.5")
    (path / name).write_bytes(content)
    refused(path, "is not a JSON object")


def test_a_path_without_an_image_is_refused(tmp_path):
    refused(tmp_path / "none.zarr", "does not exist")
    path = tmp_path / "a.zarr"
    path.mkdir()
    refused(path, "not an OME-Zarr")
    zarr.open_group(path, mode="w")
    refused(path, "lacks OME-Zarr metadata")
    shutil.rmtree(path)
    zarr.create_array(path, shape=(4, 4, 4), dtype="f4")
    refused(path, "not an OME-Zarr image .* give the image's own folder, copy it again")
    shutil.rmtree(path)
    path.write_text("no")
    refused(path, "not an OME-Zarr")


def test_unreadable_metadata_are_not_taken_for_missing_ones(write_foreign, denied):
    path = write_foreign("a.zarr", VOXELS, version="0.5")
    with denied(os, "open", "a.zarr/zarr.json"):
        refused(path, r"cannot be read \(Permission denied\); check")


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("version", "name"), [("0.5", "zarr.json"), ("0.5", "0/zarr.json"), ("0.4", "0/.zattrs")]
)
def test_a_fifo_as_metadata_is_refused(write_foreign, version, name):
    path = write_foreign("a.zarr", VOXELS, version=version)
    (path / name).unlink(missing_ok=True)
    os.mkfifo(path / name)
    with pytest.raises(OctaneError, match=rf"{name} cannot be read \(a FIFO or device is in its"):
        open_image(path)


@pytest.mark.parametrize(
    ("version", "is_noted"), [("0.5", False), ("0.6.dev2", False), ("1.0", True)]
)
def test_a_version_that_octane_does_not_know_is_noted(write_foreign, version, is_noted):
    image = open_image(write_foreign("a.zarr", VOXELS, version=version))
    assert image.overruled.startswith(f"The store states OME-Zarr {version}, newer") == is_noted
