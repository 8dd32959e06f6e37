"""STITCH with a flat field: what it makes of shaded tiles, what it records, what it refuses."""

from functools import cache

import numpy as np
import pytest
import tifffile

from octane.config.params import ExecutionParameters, StitchParameters
from octane.core.errors import OctaneError
from octane.steps.stitch import stitch_section
from octane.store.image import open_image

TILES = {"tiles": (3, 3), "tile_shape": (16, 96, 96), "overlap": (0.2, 0.2), "speckle_looks": 4}


@pytest.fixture
def stitch(tmp_path, reading):
    """Stitch a phantom's section; gives its voxels and the metrics."""

    def run(source, name="out", *, workers=1, saved=None, **settings):
        destination = tmp_path / f"{name}.ome.zarr"
        execution = ExecutionParameters(backend="cpu", workers=workers, overwrite=True)
        given = (source, destination, StitchParameters(**settings), reading, execution)
        metrics = stitch_section(*given, save_flat_field=saved)
        return open_image(destination).array.opened[:], metrics

    return run


@pytest.fixture
def section(write_phantom):
    """A section of a phantom of which only what is given is wrong."""

    @cache
    def make(**given):
        name = "_".join(map(str, given.values())) or "even"
        folder, _ = write_phantom(name, **{**TILES, **given})
        return folder / "mosaics" / "section_01.ome.zarr"

    return make


def differing(image, even):
    """Root mean square of the difference without speckle, over the mean; scale does not count."""
    ratio = image.mean(axis=0, dtype=float) / even.mean(axis=0, dtype=float)
    return ratio.std() / ratio.mean()


def test_shaded_tiles_become_what_even_light_shows(section, stitch, tmp_path):
    even, _ = stitch(section(), "even")
    shaded = section(shading=0.3)
    before, noted = stitch(shaded, "before")
    saved = tmp_path / "flat.tif"
    after, made = stitch(shaded, "after", flat_field="estimate", saved=saved)
    assert differing(before, even) > 0.05
    assert differing(after, even) < 0.015
    assert noted.figures["shading_before"] == pytest.approx(0.3, abs=0.03)
    assert made.figures["shading_before"] == noted.figures["shading_before"]
    assert 0.001 < made.figures["shading_after"] < 0.03
    assert made.figures["seam_x"] < noted.figures["seam_x"] / 2
    assert made.previews["flat_field"].shape == (96, 96)
    np.testing.assert_array_equal(tifffile.imread(saved), made.previews["flat_field"])
    # What was written is taken back.
    again, given = stitch(shaded, "again", flat_field=str(saved))
    np.testing.assert_allclose(again, after, rtol=1e-6)
    assert given.figures["shading_after"] < 0.01
    # Another one leaves what it does not even out.
    tifffile.imwrite(saved, np.ones((96, 96), np.float32))
    _, given = stitch(shaded, "uneven", flat_field=str(saved))
    assert given.figures["shading_after"] == pytest.approx(given.figures["shading_before"])


def test_a_file_that_fits_leaves_nothing(write_mosaic, stitch, rng, tmp_path):
    light = np.outer(np.linspace(0.8, 1.2, 20), np.linspace(1.2, 0.8, 20)).astype(np.float32)
    np.save(tmp_path / "light.npy", light)
    # One row of tiles, whose overlaps say little of the light along y.
    tissue = rng.gamma(2, 300, (2, 20, 50))
    voxels = np.concatenate([tissue[..., k : k + 20] * light for k in (0, 15, 30)], axis=2)
    source = write_mosaic("section_01.ome.zarr", voxels.astype(np.float32), (2, 20, 20))
    _, made = stitch(source, overlap=0.25, flat_field=str(tmp_path / "light.npy"))
    assert made.figures["shading_before"] > 0.1
    assert made.figures["shading_after"] < 1e-5


def test_even_tiles_change_by_less_than_noise(section, stitch):
    before, _ = stitch(section(), "before")
    after, made = stitch(section(), "after", flat_field="estimate")
    assert made.figures["shading_before"] < 0.03
    assert differing(after, before) < 0.01


def test_a_dark_offset_is_taken_away(section, stitch):
    even, _ = stitch(section(), "even")
    shaded = section(shading=0.3, dark_offset=100.0, dtype="uint16")
    after, _ = stitch(shaded, "after", flat_field="estimate", dark_offset=100.0)
    assert after.dtype == np.uint16
    lit = even.mean(axis=0) > 300
    assert differing(after[:, lit], even[:, lit]) < 0.02


def test_a_lost_tile_does_no_harm(section, stitch):
    even, _ = stitch(section(lost_tiles=1), "even")
    after, _ = stitch(section(lost_tiles=1, shading=0.3), "after", flat_field="estimate")
    kept = even.mean(axis=0) > 1
    assert 0.5 < kept.mean() < 0.97
    ratio = after.mean(axis=0)[kept] / even.mean(axis=0)[kept]
    assert ratio.std() / ratio.mean() < 0.02


@pytest.mark.parametrize("settings", [{}, {"refine": True}, {"blend": "none"}])
def test_the_number_of_threads_changes_no_bit(section, stitch, settings):
    made = [
        stitch(section(shading=0.3), f"w{n}", workers=n, flat_field="estimate", **settings)[0]
        for n in (1, 3)
    ]
    np.testing.assert_array_equal(*made)


def test_positions_are_refined_by_evened_tiles(section, stitch):
    given = {"shading": 0.3, "position_error": 12.0}
    seen = {}
    for chosen in ("none", "estimate"):
        _, made = stitch(section(**given), chosen, refine=True, flat_field=chosen)
        seen[chosen] = np.array([*made.figures["positions"].values()])
    _, made = stitch(section(position_error=12.0), "even", refine=True)
    even = np.array([*made.figures["positions"].values()])
    errors = {name: np.abs(own - even).mean() for name, own in seen.items()}
    assert errors["estimate"] < errors["none"]


def test_a_blank_section_is_left_as_it_is(write_mosaic, stitch):
    source = write_mosaic("section_01.ome.zarr", np.zeros((2, 40, 40), np.float32), (2, 20, 20))
    image, made = stitch(source, overlap=0.25, flat_field="estimate")
    assert not image.any()
    assert made.figures["shading_before"] is None
    assert "fewer than two pairs of tiles" in made.warnings[0]


def text(folder):
    (folder / "flat.tif").write_text("no picture")
    return folder / "flat.tif"


def several(folder):
    with (folder / "flat.npy").open("wb") as stream:
        np.savez(stream, flat=np.ones((20, 20)))
    return folder / "flat.npy"


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        (lambda folder: folder / "none.tif", "none.tif cannot be .* or estimate"),
        (text, "flat.tif cannot be read as a flat field; give"),
        (several, "flat.npy cannot be read as a flat field; give"),
    ],
)
def test_a_file_that_is_no_flat_field_is_refused(write_mosaic, stitch, tmp_path, made, sentence):
    source = write_mosaic("section_01.ome.zarr", np.ones((2, 40, 40), np.float32), (2, 20, 20))
    with pytest.raises(OctaneError, match=sentence):
        stitch(source, overlap=0.25, flat_field=str(made(tmp_path)))
    assert not (tmp_path / "out.ome.zarr").exists()


@pytest.mark.parametrize(
    ("dtype", "settings", "sentence"),
    [
        ("float32", {"overlap": 0, "flat_field": "estimate"}, "do not overlap.*give --flat-field"),
        ("float32", {"overlap": 0.25, "dark_offset": 3}, "give --flat-field as well"),
        (
            "complex64",
            {"overlap": 0.25, "flat_field": "estimate", "dark_offset": 3},
            "on real voxels; give",
        ),
    ],
)
def test_what_cannot_be_evened_is_refused(write_mosaic, stitch, dtype, settings, sentence):
    source = write_mosaic("section_01.ome.zarr", np.ones((2, 40, 40), dtype), (2, 20, 20))
    with pytest.raises(OctaneError, match=sentence):
        stitch(source, **settings)


@pytest.mark.parametrize("blend", ["linear", "none"])
def test_the_dark_offset_is_taken_away_before_the_light(write_mosaic, stitch, tmp_path, blend):
    light = np.outer(np.linspace(0.8, 1.2, 20), np.linspace(1.2, 0.8, 20))
    np.save(tmp_path / "light.npy", light)
    voxels = np.tile(500 * light + 100, (2, 1, 2)).astype(np.float32)
    source = write_mosaic("section_01.ome.zarr", voxels, (2, 20, 20))
    given = {"flat_field": str(tmp_path / "light.npy"), "dark_offset": 100.0, "blend": blend}
    np.testing.assert_allclose(stitch(source, overlap=0.25, **given)[0], 500, rtol=1e-5)
