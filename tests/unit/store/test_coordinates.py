"""Coordinate systems of OME-Zarr 0.6, and one grid from 0.4, 0.5 and 0.6 of one image."""

import json

import ngff_zarr
import numpy as np
import pytest
from refusals import refused

from octane.config.parameters import InputParameters
from octane.store.image import open_image, open_levels

VOXELS = np.arange(2 * 4 * 6 * 8, dtype=np.uint16).reshape(2, 4, 6, 8)
AXES = [{"name": name, "type": "space", "unit": "micrometer"} for name in "zyx"]
SCALE = {"type": "scale", "scale": [4, 2, 1]}
SHIFT = {"type": "translation", "translation": [10, 20, 30]}


def step(*transformations, output="own", **more):
    """One transformation of a dataset, a sequence if of several."""
    own = {"type": "sequence", "transformations": transformations}
    own = own if len(transformations) != 1 else transformations[0]
    return {**own, "input": {"path": "0"}, "output": {"name": output}, **more}


@pytest.fixture
def write_placed(write_foreign):
    """Write an image of OME-Zarr 0.6 with these transformations of its dataset and the whole."""

    def write(given, whole=None, systems=("own", "other")):
        path = write_foreign("a.zarr", VOXELS[0], version="0.6", chunks=(2, 6, 8))
        content = json.loads((path / "zarr.json").read_text())
        multiscale = content["attributes"]["ome"]["multiscales"][0]
        del multiscale["axes"]
        other = [{**axis, "unit": "millimeter"} for axis in AXES]
        multiscale["coordinateSystems"] = [
            {"name": name, "axes": AXES if name == "own" else other} for name in reversed(systems)
        ]
        multiscale["datasets"][0]["coordinateTransformations"] = given
        multiscale["coordinateTransformations"] = whole
        (path / "zarr.json").write_text(json.dumps(content))
        return path

    return write


def test_one_image_in_each_version_has_one_grid(tmp_path):
    image = ngff_zarr.to_ngff_image(
        VOXELS,
        dims="czyx",
        scale={"c": 1, "z": 3, "y": 0.5, "x": 0.25},
        translation={"c": 0, "z": 10, "y": -20, "x": 0.125},
        axes_units=dict.fromkeys("zyx", "micrometer"),
    )
    image.axes_orientations = ngff_zarr.RAS
    method = ngff_zarr.Methods.DASK_BIN_SHRINK
    pyramid = ngff_zarr.to_multiscales(image, scale_factors=[2], chunks=4, method=method)
    found = []
    for version in ("0.4", "0.5", "0.6"):
        path = tmp_path / f"{version}.zarr"
        ngff_zarr.to_ngff_zarr(str(path), pyramid, version=version)
        one = open_image(path, InputParameters(channel="1"))
        np.testing.assert_array_equal(one.read((slice(None),) * 3), VOXELS[1])
        levels = [(level.grid, level.place) for level in open_levels(path)]
        found.append((one.grid, one.attributes["orientation"], levels, one.overruled))
    grid, orientation, levels, _ = found[0]
    assert (grid.spacing, grid.origin) == ((3, 0.5, 0.25), (10, -20, 0.125))
    # That of z, y and x.
    ras = "inferior-to-superior", "posterior-to-anterior", "left-to-right"
    assert orientation == ras
    # The centres of the coarse voxels.
    assert [grid.origin for grid, _ in levels] == [grid.origin] * 2 + [(11.5, -19.75, 0.25)] * 2
    assert found[1:] == [found[0]] * 2


@pytest.mark.parametrize(
    ("given", "spacing", "origin"),
    [
        (step(SCALE), (4, 2, 1), (0, 0, 0)),
        (step({"type": "identity"}), (1, 1, 1), (0, 0, 0)),
        (step(SCALE, SHIFT), (4, 2, 1), (10, 20, 30)),
        (step(SHIFT, SCALE), (4, 2, 1), (40, 40, 30)),
        (step({"type": "sequence", "transformations": [SCALE]}, SHIFT), (4, 2, 1), (10, 20, 30)),
        # Drafts of 0.6 name the systems without an object.
        ({**SCALE, "input": "0", "output": "own"}, (4, 2, 1), (0, 0, 0)),
    ],
)
def test_the_grid_is_that_in_the_intrinsic_coordinate_system(write_placed, given, spacing, origin):
    grid = open_image(write_placed([given])).grid
    assert (grid.spacing, grid.origin) == (spacing, origin)


def test_other_coordinate_systems_are_noted(write_placed):
    rotation = {"type": "rotation", "rotation": np.eye(3)[::-1].tolist()}
    labels = {"type": "identity", "input": {"name": "own"}}
    whole = [
        {**rotation, "input": {"name": "own", "path": None}, "output": {"name": "other"}},
        {**labels, "output": {"name": "own", "path": "labels/cells"}},
    ]
    image = open_image(write_placed([step(SCALE)], whole))
    assert image.grid.spacing == (4, 2, 1)
    assert image.overruled.startswith("The store relates its coordinates to 'other' (rotation); ")


@pytest.mark.parametrize(
    ("given", "names"),
    [
        *(
            ([step(SCALE, {"type": kind})], ("dataset 0", f"'{kind}'"))
            for kind in (
                "rotation",
                "affine",
                "mapAxis",
                "projectAxis",
                "byDimension",
                "bijection",
                "displacements",
                "coordinates",
            )
        ),
        ([step({"type": "affine", "affine": np.eye(3, 4).tolist()})], ("dataset 0", "'affine'")),
        ([step(SHIFT)], ("scale (voxel size)", "dataset 0")),
        ([step(SHIFT, {"type": "scale", "path": "sizes"})], ("scale for dataset 0", "z y x")),
        ([step(SCALE), step(SCALE)], ("2 transformations", "dataset 0", "0.6")),
        ([step(SCALE, output="none")], ("'none'", "coordinateSystems")),
        ([step(SCALE), step(SCALE, output="other")], ("'own' and 'other'", "coordinateSystems")),
        ([{**SCALE, "input": {"path": "0"}}], ("''", "coordinateSystems")),
        ([], (" none ", "coordinateSystems")),
    ],
)
def test_another_place_than_a_scale_and_a_translation_is_refused(write_placed, given, names):
    path = write_placed(given)
    with refused(path, *names):
        open_image(path)


def test_a_coordinate_system_that_is_named_twice_is_refused(write_placed):
    path = write_placed([step(SCALE)], systems=("own", "own"))
    with refused(path, "own"):
        open_image(path)
