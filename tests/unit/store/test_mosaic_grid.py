"""How a mosaic grid is cut into tiles, and what of that travels through resampling."""

import numpy as np
import pytest

from octane.core.errors import OctaneError
from octane.store.image import open_image
from octane.store.mosaic_grid import Tiling


@pytest.fixture
def cut_mosaic(write_mosaic):
    """Three rows and two columns; the last of each is cut."""
    return write_mosaic(
        "section_01.ome.zarr",
        np.zeros((6, 50, 36), np.float32),
        (6, 20, 24),
        (10.0, 5.0, 2.0),
        pitch=(80.0, 40.0),
    )


@pytest.fixture
def tiling(cut_mosaic):
    return Tiling.of(open_image(cut_mosaic))


def test_a_tile_is_a_chunk_and_cut_ones_are_kept(tiling):
    assert (tiling.rows, tiling.columns) == (3, 2)
    assert tiling.tiles == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    assert tiling.region((0, 1)) == (slice(0, 6), slice(0, 20), slice(24, 36))
    assert tiling.region((2, 0)) == (slice(0, 6), slice(40, 50), slice(0, 24))


def test_the_tiles_cover_the_grid_once(tiling):
    seen = np.zeros(tiling.shape, int)
    for tile in tiling.tiles:
        seen[tiling.region(tile)] += 1
    assert (seen == 1).all()


def test_sizes_are_physical_and_smaller_at_a_cut_edge(tiling):
    assert tiling.extent_of((0, 0)) == (60.0, 100.0, 48.0)
    assert tiling.extent_of((2, 1)) == (60.0, 50.0, 24.0)


def test_positions_follow_from_the_pitch(tiling):
    assert tiling.pitch == (80.0, 40.0)
    assert tiling.positions(tiling.pitch)[2, 1] == (160.0, 40.0)


def test_voxels_that_do_not_divide_a_tile_are_centred_on_it(write_mosaic):
    # A tile of 100 um in voxels of 30: three of them, with 5 um to either side.
    path = write_mosaic("a.zarr", np.zeros((2, 6, 6), np.float32), (2, 3, 3), (30.0, 30.0, 30.0))
    image = open_image(path)
    image.attributes["mosaic"] = {
        "edge": [0.0, 0.0, 0.0],
        "tile_extent": [60.0, 100.0, 100.0],
        "extent": [60.0, 200.0, 190.0],
    }
    tiling = Tiling.of(image)
    assert tiling.margin((0, 0)) == (0.0, 5.0, 5.0)
    assert tiling.margin((0, 1)) == (0.0, 5.0, 0.0)


def test_a_mosaic_of_others_is_taken_as_it_stands(write_foreign):
    path = write_foreign("a.zarr", np.zeros((4, 20, 30), np.float32), chunks=(4, 10, 20))
    tiling = Tiling.of(open_image(path))
    assert tiling.tile == (4, 10, 20)
    assert tiling.tile_extent == (40.0, 100.0, 200.0)
    assert tiling.extent == (40.0, 200.0, 300.0)
    assert tiling.pitch is None


def test_what_is_noted_is_read_again(tiling, write_image):
    path = write_image(
        "b.zarr",
        np.zeros(tiling.shape, np.float32),
        tiling.spacing,
        chunks=tiling.tile,
        attributes={"mosaic": tiling.attributes()},
    )
    assert Tiling.of(open_image(path)) == tiling


def test_a_chunk_larger_than_the_grid_is_one_tile(write_foreign):
    path = write_foreign("a.zarr", np.zeros((4, 20, 30), np.float32), chunks=(8, 64, 64))
    tiling = Tiling.of(open_image(path))
    assert tiling.tile == (4, 20, 30)
    assert tiling.tiles == [(0, 0)]


def test_the_tile_of_a_sharded_mosaic_is_the_inner_chunk(write_image):
    voxels = np.zeros((4, 20, 40), np.float32)
    path = write_image("a.zarr", voxels, chunks=(4, 10, 10), shards=(4, 20, 20))
    assert Tiling.of(open_image(path)).tile == (4, 10, 10)


def test_chunks_that_do_not_span_the_depth_are_refused(write_image):
    path = write_image("a.zarr", np.zeros((8, 20, 20), np.float32), chunks=(4, 10, 10))
    with pytest.raises(OctaneError, match="full Z") as caught:
        Tiling.of(open_image(path))
    assert str(path) in str(caught.value)
