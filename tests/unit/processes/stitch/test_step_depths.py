"""STITCH of tiles at other depths: refinement or a table puts their planes where they belong."""

import numpy as np
import pytest
from refusals import refused

from octane.config.parameters import ExecutionParameters, InputParameters
from octane.core.errors import InputError
from octane.layout.mosaic import MosaicGrid
from octane.pipeline.workers import PROCESS_BYTES
from octane.processes.phantom.step import speckle
from octane.processes.report.step import _position_table
from octane.processes.stitch.parameters import StitchParameters
from octane.processes.stitch.record import StitchFigures
from octane.processes.stitch.step import stitch_section
from octane.store import writer
from octane.store.image import open_image

SPARE = 4
"""Planes above and below those of unmoved tiles."""
EDGE, PITCH = 64, 48
WET = {
    "tiles": (3, 3),
    "tile_shape": (32 + 2 * SPARE, EDGE, EDGE),
    "voxel_size": (3.5, 4.0, 4.0),
    "section_thickness": 120.0,
    "surface": 40,
    "tilt": 2,
    "bias": 0.5,
}
DEPTHS = {(1, 1): -3, (0, 2): 2}


@pytest.fixture
def mosaic(write_phantom, write_mosaic):
    """Write the mosaic of a phantom whose tiles begin deeper or higher than the others."""

    def write(name="moved", depths=None, *, planes=32, looks=0, times=1, noted=None, **given):
        folder, _ = write_phantom(f"whole_{name}", **{**WET, **given})
        image = open_image(folder / "mosaics" / "section_01.ome.zarr")
        grid, whole = MosaicGrid.of(image), np.asarray(image.array.opened[:])
        voxels = np.empty((planes, *whole.shape[1:]), whole.dtype)
        for tile in grid.tiles:
            region = grid.region(tile)
            first = SPARE + (depths or {}).get(tile, 0)
            voxels[:, *region[1:]] = whole[first : first + planes, *region[1:]]
            if looks:
                shape = voxels[:, *region[1:]].shape
                voxels[:, *region[1:]] *= speckle(looks, shape, [7, *tile])
        return write_mosaic(
            f"{name}.ome.zarr", times * voxels, (planes, *grid.tile[1:]), grid.spacing,
            pitch=grid.pitch, section={"number": 1}, **(noted or {}),
        )  # fmt: skip

    return write


@pytest.fixture
def stitch(tmp_path):
    """Stitch a mosaic; returns the voxels, the image, the figures and the record's path."""

    def run(
        source, name="out", *, positions=None, reference=None, kinds=(), memory="4GB", **settings
    ):
        destination = tmp_path / "sections" / f"{name}.ome.zarr"
        metrics = stitch_section(
            source,
            destination,
            StitchParameters(**settings),
            InputParameters(channel_kind=kinds),
            ExecutionParameters(backend="cpu", workers=2, memory=memory, overwrite=True),
            positions,
            reference_record=reference,
        )
        record = tmp_path / f"{name}.json"
        metrics.save(record, None)
        image = open_image(destination)
        return image.array.opened[:], image, metrics, record

    return run


def alone(tile):
    """Pixels that only this tile shows, but for its border."""
    ends = [
        slice(
            n * PITCH + (EDGE - PITCH if n else 0), (n + 1) * PITCH if n < 2 else 2 * PITCH + EDGE
        )
        for n in tile
    ]
    return tuple(ends)


def test_a_section_is_that_of_tiles_at_one_depth_where_planes_exist(mosaic, stitch):
    even, _, plain, _ = stitch(mosaic("even"), "even", refine=True)
    moved, image, metrics, _ = stitch(source := mosaic(depths=DEPTHS), refine=True)
    assert plain.figures["depths"] == {}
    assert metrics.figures["depths"] == {f"{y},{x}": by for (y, x), by in DEPTHS.items()}
    assert metrics.figures["misplaced"] == []
    assert metrics.figures["positions"] == plain.figures["positions"]
    for tile, depth in DEPTHS.items():
        (y, x), shown = alone(tile), np.s_[max(0, depth) : 32 + min(0, depth)]
        assert np.array_equal(moved[shown, y, x], even[shown, y, x])
        lacking = np.ones(32, bool)
        lacking[shown] = False
        assert lacking.sum() == abs(depth)
        assert not moved[lacking][:, y, x].any()
        assert even[lacking][:, y, x].all()
    # Elsewhere, neighbours fill in.
    rest = np.ones(moved.shape[1:], bool)
    for tile in DEPTHS:
        rest[alone(tile)] = False
    np.testing.assert_allclose(moved[:, rest], even[:, rest], rtol=1e-5)
    # Negative control: without refinement, all of the tile differs.
    stays, _, named, _ = stitch(source)
    assert {(own["row"], own["column"]) for own in named.figures["misplaced"]} == DEPTHS.keys()
    y, x = alone((1, 1))
    assert (stays[:, y, x] != even[:, y, x]).mean() > 0.9
    assert image.attributes["section"]["not_compared"]


def test_what_is_measured_is_that_of_tiles_at_one_depth(mosaic, stitch):
    _, _, plain, _ = stitch(mosaic("even"), refine=True)
    _, _, metrics, _ = stitch(source := mosaic(depths=DEPTHS), refine=True)
    _, _, stays, _ = stitch(source)
    one, other = (StitchFigures.model_validate(own.figures) for own in (plain, metrics))
    assert one.surface is not None
    assert other.surface is not None
    known, found = one.surface, other.surface
    assert found.depth == pytest.approx(known.depth, abs=0.1 * 3.5)
    assert found.tilt == pytest.approx(known.tilt, abs=0.05)
    assert found.used > 0.95 * known.used
    for axis in "yx":
        mismatch, unmoved = other.mismatch(axis), stays.figures[f"worst_{axis}"]["mismatch"]
        assert mismatch is not None
        assert mismatch < 0.002
        assert unmoved > 2 * metrics.figures[f"worst_{axis}"]["mismatch"]
    assert other.uncovered_pixels == 0
    ratio = metrics.previews["thumbnail"] / plain.previews["thumbnail"]
    assert 0.8 < ratio.min() < ratio.max() < 1.25


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"gain": "estimate", "flat_field": "estimate", "dark_offset": 0.001},
        {"attenuation": "compensate"},
    ],
    ids=["plain", "light", "attenuation"],
)
def test_the_table_of_a_run_gives_the_same_bits(mosaic, stitch, tmp_path, given):
    source = mosaic(depths=DEPTHS, looks=4, position_error=9.0, shading=0.2)
    refined, image, metrics, record = stitch(source, refine=True, **given)
    figures = StitchFigures.model_validate(metrics.figures)
    assert figures.depths
    assert figures.largest_move > 0
    table = tmp_path / "positions.csv"
    table.write_text(_position_table([figures]))
    again, other, repeated, _ = stitch(source, "again", positions=table, **given)
    assert np.array_equal(again, refined)
    assert other.attributes == image.attributes
    own = {"nominal_positions", "refinement_micrometer", "not_refined"}
    assert {k: v for k, v in repeated.figures.items() if k not in own} == (
        {k: v for k, v in metrics.figures.items() if k not in own}
    )
    # So does the record, as on another channel.
    third, _, _, _ = stitch(source, "third", reference=record, **given)
    assert np.array_equal(third, refined)


def test_other_channels_are_moved_as_well(mosaic, stitch):
    _, _, metrics, record = stitch(mosaic(depths=DEPTHS), refine=True)
    even, _, _, _ = stitch(mosaic("even", times=3), "even", refine=True)
    for name, kind in (("mean", {}), ("nearest", {"channel_kind": "nearest"})):
        source = mosaic(name, DEPTHS, times=3, noted=kind)
        moved, _, made, _ = stitch(source, name, reference=record)
        assert made.figures["depths"] == metrics.figures["depths"]
        for tile, depth in DEPTHS.items():
            (y, x), shown = alone(tile), np.s_[max(0, depth) : 32 + min(0, depth)]
            assert np.array_equal(moved[shown, y, x], even[shown, y, x])
        assert (moved > 0).mean() > 0.9


@pytest.mark.soak
def test_blocks_and_memory_change_no_bit(mosaic, stitch, monkeypatch):
    source = mosaic(depths=DEPTHS, looks=4)
    whole, _, metrics, _ = stitch(source, refine=True)
    assert metrics.figures["kept_in_memory"]
    # Memory for one worker's block, but not for the mosaic as well.
    least = PROCESS_BYTES + (2 * 144 * 144 + 3 * EDGE**2) * 32 * 4
    read, _, metrics, _ = stitch(source, memory=f"{least}B", refine=True)
    assert not metrics.figures["kept_in_memory"]
    assert np.array_equal(read, whole)
    whole, _, _, _ = stitch(source, refine=True, attenuation="compensate")
    monkeypatch.setattr(writer, "CHUNK", 16)
    monkeypatch.setattr(writer, "SHARD", 32)
    cut, image, _, _ = stitch(source, refine=True, attenuation="compensate")
    assert image.array.shards == (32, 32, 32)
    assert np.array_equal(cut, whole)


def test_attenuation_is_undone_where_planes_exist(mosaic, stitch):
    given = {"attenuation": 3.0, "surface": 0, "tilt": 0}
    even, _, _, _ = stitch(mosaic("even", **given), refine=True, attenuation="coefficient")
    depths = {(1, 1): -4}
    source = mosaic(depths=depths, **given)
    table = source.parent / "positions.csv"
    rows = [
        (1, y, x, y * 192, x * 192, -14 if (y, x) == (1, 1) else 0) for y, x in np.ndindex(3, 3)
    ]
    lines = ["section,row,column,y,x,z", *(",".join(map(str, row)) for row in rows)]
    table.write_text("\n".join(lines))
    moved, _, metrics, _ = stitch(source, positions=table, attenuation="coefficient")
    assert metrics.figures["depths"] == {"1,1": -4}
    # Away from other tiles, with which light is averaged.
    y, x = (slice(part.start + 4, part.stop - 4) for part in alone((1, 1)))
    assert not moved[28:, y, x].any()
    # The light from below is extrapolated from other planes, and as far off in all of them.
    np.testing.assert_allclose(moved[:28, y, x], even[:28, y, x], rtol=0.2)


@pytest.mark.parametrize(
    ("tiles", "planes"), [((1, 1), 32), ((3, 3), 20)], ids=["one tile", "few planes"]
)
def test_what_cannot_be_compared_stays(mosaic, stitch, tiles, planes):
    depths = {(0, 0): 0, (1, 1): -3}
    source = mosaic(depths=depths, tiles=tiles, planes=planes)
    refined, _, metrics, _ = stitch(source, refine=True)
    assert metrics.figures["depths"] == {}
    assert refined.all()


@pytest.mark.parametrize("z", [60, -56, "nan", "1e12", "deep"])
def test_a_depth_that_is_none_is_refused(mosaic, stitch, tmp_path, z):
    table = tmp_path / "positions.csv"
    rows = [
        f"1,{y},{x},{y * 192},{x * 192},{z if x == y == 1 else ''}" for y, x in np.ndindex(3, 3)
    ]
    table.write_text("\n".join(["section,row,column,y,x,z", *rows]))
    with refused("positions.csv", error=InputError):
        stitch(mosaic(), positions=table)
