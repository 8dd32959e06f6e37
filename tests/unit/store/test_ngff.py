"""Metadata of other writers: read if valid, else refused in one sentence."""

import errno
import json
import os
import shutil
from math import nan

import numpy as np
import pytest
import zarr
from refusals import refused

from octane.config.parameters import InputParameters
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


def refusal_of(path, *names):
    with refused(path, *names):
        read(path)


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
    with refused(path, " z,", "bioformats2raw"):
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
    ("given", "names"),
    [
        *(({"axes": axes}, (f" {' '.join(axes)};",)) for axes in ("yx", "xyz")),
        ({"axes": "czyx"}, ("(8, 8, 8)", "4 axes")),
        ({"axes": ""}, ("axes", "0.4 to 0.6")),
        *(
            ({"unit": unit}, (f"unit '{unit}'",))
            for unit in ("furlong", "pixel", "reference frame", "second")
        ),
        ({"unit": "parsec"}, ("(3.085677581491368e+23, ", "dataset 0")),
        ({"array": None}, ("dataset 0", "array")),
        *(
            ({"transforms": transforms}, names)
            for transforms, names in (
                ([], ("scale (voxel size)", "dataset 0")),
                ([shift(1, 2, 3)], ("scale (voxel size)", "dataset 0")),
                ([scale(1, 1)], ("scale for dataset 0", "z y x")),
                ([{"type": "scale"}], ("scale for dataset 0", "z y x")),
                ([scale(1, 1, 1), shift(1, 2)], ("translation for dataset 0", "z y x")),
                ([scale(1, 1, 1), shift(nan, 1, 1)], ("translation.0",)),
                ([scale(1e12, 1, 1)], ("(1000000000000.0, 1.0, 1.0)", "dataset 0")),
                ([scale(1, 0, 1)], ("(1.0, 0.0, 1.0)", "dataset 0")),
                ([scale(1, 1, 1), {"type": "affine"}], ("dataset 0", "'affine'")),
                ([{"type": 5}], ("coordinateTransformations.0.type",)),
            )
        ),
    ],
)
def test_an_image_without_axes_unit_or_scale_is_refused(write_foreign, given, names):
    refusal_of(write_foreign("a.zarr", VOXELS, **given), *names)


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
    refusal_of(path, "(0, 8, 8)" if value == [0, 8, 8] else "dataset 0")


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
    refusal_of(path, f"(octane.{field}")


@pytest.mark.parametrize(
    "content", [b"{", b"[]", b"5", b"null", b"\xff\xfe", b"[" * 100_000], ids=lambda c: c[:9]
)
@pytest.mark.parametrize("name", ["zarr.json", "0/zarr.json"])
def test_metadata_that_is_not_json_is_refused(write_foreign, name, content):
    path = write_foreign("a.zarr", VOXELS, version="0.5")
    (path / name).write_bytes(content)
    refusal_of(path, path / name, "JSON")


def test_a_path_without_an_image_is_refused(tmp_path):
    refusal_of(tmp_path / "none.zarr")
    path = tmp_path / "a.zarr"
    path.mkdir()
    refusal_of(path, "zarr group")
    zarr.open_group(path, mode="w")
    refusal_of(path, "multiscales")
    shutil.rmtree(path)
    zarr.create_array(path, shape=(4, 4, 4), dtype="f4")
    refusal_of(path, "zarr group")
    shutil.rmtree(path)
    path.write_text("no")
    refusal_of(path, "zarr group")


def test_unreadable_metadata_are_not_taken_for_missing_ones(write_foreign, denied):
    path = write_foreign("a.zarr", VOXELS, version="0.5")
    with denied(os, "open", "a.zarr/zarr.json"):
        refusal_of(path, path / "zarr.json", os.strerror(errno.EACCES))


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("version", "name"), [("0.5", "zarr.json"), ("0.5", "0/zarr.json"), ("0.4", "0/.zattrs")]
)
def test_a_fifo_as_metadata_is_refused(write_foreign, version, name):
    path = write_foreign("a.zarr", VOXELS, version=version)
    (path / name).unlink(missing_ok=True)
    os.mkfifo(path / name)
    with refused(path / name, "FIFO"):
        open_image(path)


@pytest.mark.parametrize(
    ("version", "is_noted"), [("0.5", False), ("0.6.dev2", False), ("1.0", True)]
)
def test_a_version_that_octane_does_not_know_is_noted(write_foreign, version, is_noted):
    image = open_image(write_foreign("a.zarr", VOXELS, version=version))
    assert image.overruled.startswith(f"The store states OME-Zarr {version}, newer") == is_noted
