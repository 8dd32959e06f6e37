"""Places from a record: the same bits as those that were measured."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octane.core.geometry import Grid, vector
from octane.core.metrics import Metrics
from octane.layout.mosaic import MosaicGrid
from octane.layout.placement import TilePlacement
from octane.processes.stitch.record import MisplacedFigures, StitchFigures, SurfaceFigures
from octane.processes.stitch.reference import reference_of
from octane.store.image import open_image
from octane.store.writer import Level, create_image

NUMBERS = st.floats(-20, 20)


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    """An image of section 7."""
    path = tmp_path_factory.mktemp("records") / "section_07.ome.zarr"
    grid = Grid((1, 1, 1), vector(1, 1, 1), vector(0, 0, 0))
    with create_image(path, [Level.volume(grid)], "uint8") as (writer,):
        writer[(slice(1),) * 3] = np.ones((1, 1, 1), np.uint8)
    return open_image(path)


@settings(max_examples=100)
@given(
    size=st.tuples(*[st.integers(1, 3)] * 2),
    pitch=st.tuples(*[st.floats(0.3, 1.2)] * 2),
    spacing=st.floats(0.37, 31.7),
    depth=NUMBERS,
    data=st.data(),
)
def test_places_from_a_record_are_those_measured_to_the_bit(
    image, size, pitch, spacing, depth, data
):
    pixels = (4, 24, 17)
    full = (4 * spacing, 24 * spacing, 17 * spacing)
    mosaic = (full[0], full[1] * size[0], full[2] * size[1])
    shape = (4, 24 * size[0], 17 * size[1])
    tiling = MosaicGrid(
        shape, pixels, vector(spacing, spacing, spacing), vector(0, 0, 0), full, mosaic, None
    )
    positions = {
        (row, column): (
            full[1] * pitch[0] * row + data.draw(NUMBERS),
            full[2] * pitch[1] * column + data.draw(NUMBERS),
        )
        for row, column in tiling.tiles
    }
    measured = TilePlacement(tiling, positions)
    surface = SurfaceFigures(depth=depth, tilt=(0.1, -0.0), tilt_std=(1 / 3, 1e-17))
    moved = MisplacedFigures(row=0, column=0, shift=(1.0, 2.0))
    metrics = Metrics("stitch")
    metrics.add_figures(
        StitchFigures(
            section=7,
            tiles=len(positions),
            shape=measured.grid.shape,
            voxel_size=tiling.spacing,
            positions={f"{row},{column}": place for (row, column), place in positions.items()},
            surface=surface,
            # A deeper tile lies in its place all the same.
            misplaced=[moved, MisplacedFigures(row=0, column=1, planes=2)],
            tile_extent=full[1:],
            mosaic_extent=mosaic[1:],
        )
    )
    record = image.path.parent / "record.json"
    metrics.save(record, None)
    found = reference_of(record, image, tiling)
    placement = TilePlacement(tiling, found.positions)
    assert [*found.positions.items()] == [*positions.items()]
    assert (placement.places, placement.grid) == (measured.places, measured.grid)
    assert (placement.edge, placement.extent) == (measured.edge, measured.extent)
    assert (found.surface, found.odd) == (surface, {(0, 0)})
