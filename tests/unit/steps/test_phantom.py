"""PHANTOM: values depend only on position, so that tiles agree; positions, and the truth."""

import csv
import json

import numpy as np
import pytest

from octane.config.params import ExecutionParameters, PhantomParameters
from octane.core.errors import InputError
from octane.layout.displacement import Displacement
from octane.steps.phantom import (
    SCALE,
    WATER,
    Subject,
    bias_field,
    displacements,
    make_phantom,
    speckle,
    stage_errors,
    tissue,
)
from octane.store.image import open_image

SECTION = "mosaics/section_01.ome.zarr"


def first_section(folder):
    return open_image(folder / SECTION)


def positions_of(folder):
    with (folder / "positions.csv").open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_the_seed_decides_and_not_the_workers(tmp_path):
    made = []
    for workers, seed in ((1, 9), (3, 9), (4, 10)):
        given = {"tiles": (2, 3), "tile_shape": (4, 32, 32), "position_error": 5}
        given |= {"sections": 1, "seed": seed}
        parameters = PhantomParameters.model_validate(given)
        folder = tmp_path / f"{workers}"
        make_phantom(folder, parameters, ExecutionParameters(backend="cpu", workers=workers))
        made.append((first_section(folder).array.opened[:], positions_of(folder)))
    np.testing.assert_array_equal(made[1][0], made[0][0])
    assert made[1][1] == made[0][1]
    assert (made[2][0] != made[0][0]).mean() > 0.9


def test_the_truth_is_tissue_and_bias_on_the_volumes_grid(write_phantom):
    folder, parameters = write_phantom(sections=2, bias=0.4, truth_resolution=15.0)
    subject = Subject.of(parameters)
    images = {name: open_image(folder / f"truth/{name}.ome.zarr") for name in ("tissue", "bias")}
    grid = images["tissue"].grid
    assert grid.spacing == (15.0, 15.0, 15.0)
    assert grid.shape[0] == 8
    z, y, x = ((np.arange(n) + 0.5) * 15.0 for n in grid.shape)
    expected = {
        "tissue": tissue(subject, z, y, x) * SCALE,
        "bias": bias_field(subject, 0.4, z, y, x),
    }
    for name, image in images.items():
        np.testing.assert_allclose(np.asarray(image.array.opened[:]), expected[name], rtol=1e-5)
    logarithm = np.log(expected["bias"])
    assert 0.48 < logarithm.max() - logarithm.min() <= 0.8
    noted = json.loads((folder / "truth/truth.json").read_text())
    assert PhantomParameters(**noted) == parameters


@pytest.mark.parametrize("looks", [1, 4, 16])
def test_speckle_has_mean_1_and_the_variance_of_its_looks(looks):
    values = speckle(looks, (60, 60, 60), [1, 2, 3])
    assert values.mean(dtype=float) == pytest.approx(1, abs=0.01)
    assert values.var(dtype=float) == pytest.approx(1 / looks, rel=0.05)


def test_the_stage_errs_within_its_limits_and_not_at_the_first_tile():
    tiles = [(r, c) for r in range(4) for c in range(5)]
    errors = stage_errors(PhantomParameters(position_error=12.0), 0, tiles)
    values = np.array(list(errors.values()))
    assert errors[0, 0] == (0.0, 0.0)
    assert np.abs(values).max() <= 12
    assert np.abs(values[1:]).mean() > 3


def voxels_of(folder, number):
    return np.asarray(open_image(folder / f"mosaics/section_{number:02d}.ome.zarr").array.opened[:])


def rows_of(folder, name="displacements"):
    with (folder / f"truth/{name}.csv").open(newline="") as stream:
        return [[float(v) for v in row.values()] for row in csv.DictReader(stream)]


def test_sections_are_displaced_as_the_truth_says(write_phantom):
    whole = {"tiles": (1, 1), "tile_shape": (4, 60, 80), "edge_fraction": 0.0, "sections": 3}
    voxels = {"voxel_size": (10.0, 10.0, 10.0), "section_thickness": 40.0}
    folder, p = write_phantom(**whole, **voxels, shift=60.0, rotation=4.0)
    subject, rows = Subject.of(p), rows_of(folder)
    assert [row[0] for row in rows] == [1, 2, 3]
    moves = np.array(rows)[:, 1:]
    assert (np.abs(moves) <= (60, 60, 4)).all()
    assert len(np.unique(moves)) == 9
    z, y, x = ((np.arange(n) + 0.5) * 10 for n in p.tile_shape)
    for (number, *move), displacement in zip(rows, displacements(p), strict=True):
        assert move == list(displacement)
        # Tissue at q is seen where a displacement moves it.
        middle = (300.0, 400.0)
        down, across = Displacement(*move).before(*np.meshgrid(y, x, indexing="ij"), middle)
        expected = SCALE * tissue(subject, z + (number - 1) * 40, down, across)
        np.testing.assert_allclose(voxels_of(folder, int(number)), expected, rtol=1e-4)


CUT = {
    "sections": 3,
    "tiles": (1, 1),
    "tile_shape": (16, 60, 80),
    "voxel_size": (10.0, 10.0, 10.0),
    "edge_fraction": 0.0,
    "section_thickness": 60.0,
}


def test_sections_lie_under_water_as_deep_and_tilted_as_the_truth_says(write_phantom):
    given = {"surface": 50.0, "surface_jitter": 20.0, "tilt": 3.0, "thickness_jitter": 15.0}
    folder, p = write_phantom(**CUT, **given)
    subject, rows = Subject.of(p), np.array(rows_of(folder, "sections"))
    assert (np.abs(rows[:, 1:] - (50, 0, 0, 60)) <= (20, 3, 3, 15)).all()
    assert len(np.unique(rows[:, 1:])) == 12
    assert subject.extent[0] == pytest.approx(rows[:, 4].sum())
    z, y, x = ((np.arange(n) + 0.5) * 10 for n in p.tile_shape)
    start = 0.0
    for number, depth, tilt_y, tilt_x, thickness in rows:
        slopes = np.tan(np.deg2rad([tilt_y, tilt_x]))
        surface = depth + slopes[0] * (y[:, None] - 300) + slopes[1] * (x - 400)
        below = z[:, None, None] - surface
        voxels = voxels_of(folder, int(number)) / SCALE
        assert voxels[below < -5] == pytest.approx(WATER)
        expected = tissue(subject, start + below, y, x)
        np.testing.assert_allclose(voxels[below > 5], expected[below > 5], rtol=1e-4)
        # A voxel on the surface holds as much tissue as lies below it.
        on = np.abs(below) < 5
        part = below[on] / 10 + 0.5
        mixed = part * expected[on] + (1 - part) * WATER
        np.testing.assert_allclose(voxels[on], mixed, rtol=1e-4)
        start += thickness


def test_scattered_light_leaves_the_rest_for_the_voxels_below(write_phantom):
    folder, p = write_phantom(**CUT, scattering=8.0)
    z, y, x = ((np.arange(n) + 0.5) * 10 for n in p.tile_shape)
    reflectivity = tissue(Subject.of(p), z, y, x)
    # Of a depth-resolved attenuation coefficient: what is measured is what the voxels above left.
    passed = np.cumsum(reflectivity, axis=0) - reflectivity / 2
    expected = SCALE * reflectivity * np.exp(-2 * 8.0 * 0.01 * passed)
    np.testing.assert_allclose(voxels_of(folder, 1), expected, rtol=1e-4)


def test_one_tile_is_rolled_along_z(write_phantom):
    given = {"tiles": (3, 3), "tile_shape": (8, 16, 16), "edge_fraction": 0.0, "sections": 3}
    folder, _ = write_phantom(**given)
    rolled, _ = write_phantom("rolled", **given, rolled_planes=2)
    middle = np.s_[:, 16:32, 16:32]
    for number in (1, 2, 3):
        expected = voxels_of(folder, number)
        if number == 2:
            expected[middle] = np.roll(expected[middle], 2, axis=0)
        np.testing.assert_array_equal(voxels_of(rolled, number), expected)


def test_sections_keep_some_thickness(tmp_path):
    parameters = PhantomParameters(section_thickness=20.0, thickness_jitter=20.0)
    with pytest.raises(InputError, match="give less than --section_thickness, 20"):
        make_phantom(tmp_path / "made", parameters, ExecutionParameters(backend="cpu"))
    assert not (tmp_path / "made").exists()
