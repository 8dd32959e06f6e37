"""PHANTOM: values depend only on position, so that tiles agree; positions, and the truth."""

import csv
import json

import numpy as np
import pytest
from noisy_overlaps import fill_overlaps
from refusals import refused
from uneven_sections import surfaces

from octane.config.parameters import ExecutionParameters, InputParameters
from octane.layout.mosaic import MosaicGrid
from octane.processes.phantom.parameters import PhantomParameters
from octane.processes.phantom.step import (
    CONTRASTS,
    SCALE,
    WATER,
    Subject,
    bias_field,
    displacements,
    fiber_angle,
    make_phantom,
    speckle,
    stage_errors,
    tissue,
)
from octane.processes.stack.layout.displacement import Displacement
from octane.store.image import open_image

SECTION = "mosaics/section_01.ome.zarr"


def first_section(folder):
    return open_image(folder / SECTION)


def positions_of(folder):
    with (folder / "positions.csv").open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_a_phantom_is_replaced_and_not_what_others_put_there(tmp_path):
    made = PhantomParameters(sections=1, tiles=(1, 1), tile_shape=(8, 16, 16))
    again = ExecutionParameters(backend="cpu", workers=1, overwrite=True)
    for _ in range(2):
        make_phantom(tmp_path / "p", made, again)
    for name in ("notes.txt", "mosaics/notes.txt", f"{SECTION}/0/notes.txt", "truth/my.tif"):
        (tmp_path / "p" / name).write_text("years of work")
        with refused(name):
            make_phantom(tmp_path / "p", made, again)
        (tmp_path / "p" / name).unlink()
    (tmp_path / "p" / "mosaics/mine.ome.zarr").mkdir()
    with refused("mine.ome.zarr"):
        make_phantom(tmp_path / "p", made, again)


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
    assert type(parameters)(**noted) == parameters


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


def rows_of(folder):
    with (folder / "truth/displacements.csv").open(newline="") as stream:
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
        down, across = Displacement(*move).undo(*np.meshgrid(y, x, indexing="ij"), middle)
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


def test_sections_lie_under_water_as_deep_and_tilted_as_given(write_phantom):
    folder, p = write_phantom(**CUT, surface=50.0, surface_jitter=20.0, tilt=3.0)
    subject = Subject.of(p)
    z, y, x = ((np.arange(n) + 0.5) * 10 for n in p.tile_shape)
    for section, (depth, tilt, _) in enumerate(surfaces(p)):
        assert (np.abs([depth - 50, *tilt]) <= (20, 3, 3)).all()
        slopes = np.tan(np.deg2rad(tilt))
        surface = depth + slopes[0] * (y[:, None] - 300) + slopes[1] * (x - 400)
        below = z[:, None, None] - surface
        voxels = voxels_of(folder, section + 1) / SCALE
        assert voxels[below < -5] == pytest.approx(WATER)
        expected = tissue(subject, section * 60 + below, y, x)
        np.testing.assert_allclose(voxels[below > 5], expected[below > 5], rtol=1e-4)
        # A voxel on the surface holds as much tissue as lies below it.
        on = np.abs(below) < 5
        part = below[on] / 10 + 0.5
        mixed = part * expected[on] + (1 - part) * WATER
        np.testing.assert_allclose(voxels[on], mixed, rtol=1e-4)


def test_scattered_light_leaves_the_rest_for_the_voxels_below(write_phantom):
    folder, p = write_phantom(**CUT, scattering=8.0)
    z, y, x = ((np.arange(n) + 0.5) * 10 for n in p.tile_shape)
    reflectivity = tissue(Subject.of(p), z, y, x)
    # Of a depth-resolved attenuation coefficient: what is measured is what the voxels above left.
    passed = np.cumsum(reflectivity, axis=0) - reflectivity / 2
    expected = SCALE * reflectivity * np.exp(-2 * 8.0 * 0.01 * passed)
    np.testing.assert_allclose(voxels_of(folder, 1), expected, rtol=1e-4)


TILED = {"channels": 4, "position_error": 7.0, "shift": 20.0, "rotation": 2.0, "surface": 15.0}
SHADED = {"shading": 0.3, "bias": 0.4, "speckle_looks": 16.0, "attenuation": 1.0}


def channel_of(folder, channel, number=1):
    store = folder / f"mosaics/section_{number:02d}.ome.zarr"
    return open_image(store, InputParameters(channel=channel))


def seen_by_first_tile(p):
    """The subject, and positions in its tissue of the first section's first tile."""
    subject = Subject.of(p)
    z, y, x = ((np.arange(n) + 0.5) * s for n, s in zip(p.tile_shape, p.voxel_size, strict=True))
    middle = (subject.extent[1] / 2, subject.extent[2] / 2)
    return subject, z - p.surface, *displacements(p)[0].undo(y[:, None], x[None, :], middle)


def whole(image):
    return image.read(tuple(slice(n) for n in image.grid.shape))


def test_the_first_channel_is_that_of_a_phantom_with_one(write_phantom):
    several, _ = write_phantom(**TILED, **SHADED)
    alone, _ = write_phantom("alone", **TILED | {"channels": 1}, **SHADED)
    image = channel_of(several, "reflectance")
    assert image.channels == ["reflectance", "retardance", "attenuation", "axis"]
    assert image.array.chunks == (1, 8, 48, 48)
    (one,) = (alone / "mosaics").iterdir()
    assert "omero" not in (one / "zarr.json").read_text()
    assert open_image(one).array.shape == image.grid.shape
    np.testing.assert_array_equal(whole(image), whole(open_image(one)))
    for name in ("positions.csv", "truth/displacements.csv"):
        assert (several / name).read_bytes() == (alone / name).read_bytes()


def test_other_contrasts_lie_where_the_first_does_with_light_of_their_own(write_phantom):
    folder, p = write_phantom(**TILED, shading=0.3)
    plain, _ = write_phantom("plain", **TILED)
    subject, *seen = seen_by_first_tile(p)
    for contrast in CONTRASTS[:3]:
        image = channel_of(plain, contrast.name)
        region = MosaicGrid.of(image).region((0, 0))
        voxels = image.read(region)
        expected = SCALE * tissue(subject, *seen, contrast.layers)
        np.testing.assert_allclose(voxels[2:], expected[2:], rtol=1e-4)
        prefix = "" if contrast.name == "reflectance" else f"{contrast.name}_"
        flat = np.load(folder / f"truth/{prefix}flat_field.npy")
        assert flat.min() == pytest.approx(0.7, abs=0.02)
        brightest = np.unravel_index(flat.argmax(), flat.shape)
        found = np.add(brightest, 0.5) / flat.shape
        np.testing.assert_allclose(found, contrast.centre, atol=0.02)
        shaded = channel_of(folder, contrast.name).read(region)
        np.testing.assert_allclose(shaded, voxels * flat, rtol=1e-5)


def test_channels_have_their_own_speckle_bias_and_brightness_of_sections(write_phantom):
    given = {"channels": 2, "tile_shape": (8, 60, 60), "sections": 2}
    folder, _ = write_phantom(**given, speckle_looks=4.0, section_steps=0.5)
    plain, _ = write_phantom("plain", **given)
    light = {
        (name, number): whole(channel_of(folder, name, number))
        / whole(channel_of(plain, name, number))
        for name in ("reflectance", "retardance")
        for number in (1, 2)
    }
    noise = [light[name, 1].ravel() for name in ("reflectance", "retardance")]
    assert abs(np.corrcoef(*noise)[0, 1]) < 0.02
    steps = [
        np.log(light[name, 2].mean() / light[name, 1].mean())
        for name in ("reflectance", "retardance")
    ]
    assert abs(steps[0] - steps[1]) > 0.1
    subject = Subject.of(PhantomParameters())
    y, x = (np.linspace(0, extent, 20) for extent in subject.extent[1:])
    first = bias_field(subject, 0.4, np.zeros(1), y, x)
    second = bias_field(subject, 0.4, np.zeros(1), y, x, 1)
    np.testing.assert_allclose(second, first[:, ::-1], rtol=1e-5)
    assert abs(np.log(second / first)).max() > 0.1


def test_the_axis_is_an_angle_without_noise_and_its_truth(write_phantom):
    folder, p = write_phantom(**TILED | {"channels": 3}, **SHADED, truth_resolution=20.0)
    subject, *seen = seen_by_first_tile(p)
    image = channel_of(folder, "axis")
    voxels = image.read(MosaicGrid.of(image).region((0, 0)))
    np.testing.assert_array_equal(voxels, fiber_angle(subject, *seen))
    truth = open_image(folder / "truth/axis.ome.zarr")
    angles = whole(truth)
    z, y, x = ((np.arange(n) + 0.5) * 20.0 for n in truth.grid.shape)
    np.testing.assert_array_equal(angles, fiber_angle(subject, z, y, x))
    assert angles.min() >= 0
    assert angles.max() < 180
    # They wrap: neighbours differ by a few degrees, or by almost 180.
    apart = np.abs(np.diff(angles, axis=2))
    assert apart.max() > 150
    assert np.minimum(apart, 180 - apart).max() < 30
    retardance = open_image(folder / "truth/retardance.ome.zarr")
    expected = SCALE * tissue(subject, z, y, x, CONTRASTS[1].layers)
    np.testing.assert_array_equal(whole(retardance), expected)


def test_overlaps_of_one_channel_become_noise(write_phantom):
    given = {"channels": 2, "position_error": 7.0, "shift": 20.0, "rotation": 2.0}
    folder, _ = write_phantom(**given)
    before = [whole(channel_of(folder, name)) for name in "01"]
    fill_overlaps(folder, 1)
    after = [whole(channel_of(folder, name)) for name in "01"]
    np.testing.assert_array_equal(after[0], before[0])
    changed = (after[1] != before[1]).all(axis=0)
    grid = MosaicGrid.of(channel_of(folder, "1"))
    tile = changed[grid.region((0, 0))[1:]]
    # Tiles of 48 pixels with a pitch of 36, displaced by at most 1.4 pixels.
    assert not tile[:34, :34].any()
    assert tile[38:].all()
    assert tile[:, 38:].all()
