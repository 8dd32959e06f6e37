"""STITCH with gains: tiles of any brightness become what one brightness shows."""

import numpy as np
import pytest
import zarr
from made_faults import brightened, clipped, one

from octane.config.parameters import ExecutionParameters, InputParameters
from octane.layout.mosaic import MosaicGrid
from octane.processes.stitch.parameters import StitchParameters
from octane.processes.stitch.record import StitchFigures
from octane.processes.stitch.step import stitch_section
from octane.store.image import open_image

TILES = {"tiles": (3, 3), "tile_shape": (12, 96, 96), "overlap": (0.2, 0.2), "speckle_looks": 4}
GAINS = dict(zip(np.ndindex(3, 3), (1.3, 0.8, 1, 0.75, 1.2, 1.1, 0.9, 1.4, 0.7), strict=True))


def drifted(voxels, grid, _):
    """Multiply each tile by its gain."""
    changed = voxels.astype(np.float64)
    for tile, gain in GAINS.items():
        changed[grid.region(tile)] *= gain
    return np.rint(changed).astype(voxels.dtype) if voxels.dtype.kind == "u" else changed


@pytest.fixture
def stitch(tmp_path):
    """Stitch a section; returns its voxels, its metrics and their figures."""

    def run(source, *, workers=2, channel=None, kinds=(), reference=None, **settings):
        destination = tmp_path / "stitched.ome.zarr"
        execution = ExecutionParameters(backend="cpu", workers=workers, overwrite=True)
        reading = InputParameters(channel=channel, channel_kind=kinds)
        given = (source, destination, StitchParameters(**settings), reading, execution)
        metrics = stitch_section(*given, reference_record=reference)
        metrics.save(tmp_path / "record.json", None)
        figures = StitchFigures.model_validate(metrics.figures)
        return open_image(destination).array.opened[:], metrics, figures

    return run


@pytest.fixture
def section(write_phantom):
    """Write a phantom's section."""

    def make(name="even", **given):
        folder, _ = write_phantom(name, **{**TILES, **given})
        return folder / "mosaics" / "section_01.ome.zarr"

    return make


@pytest.fixture
def write_gains(tmp_path):
    """Write the gains of a record as a table."""

    def write(figures):
        rows = [f"{figures.number},{tile},{gain}" for tile, gain in figures.gains.items()]
        table = tmp_path / "gains.csv"
        table.write_text("\n".join(["section,row,column,gain", *rows]), encoding="utf-8")
        return str(table)

    return write


def differing(image, even):
    """Root mean square of the difference without speckle, over the mean, at any scale."""
    ratio = image.mean(axis=0, dtype=float) / even.mean(axis=0, dtype=float)
    return ratio.std() / ratio.mean()


@pytest.mark.parametrize("light", [{}, {"flat_field": "estimate"}])
def test_seams_vanish_and_the_table_gives_the_same_bits(section, stitch, write_gains, light):
    shading = 0.3 if light else 0.0
    even, _, sound = stitch(section(shading=shading), **light)
    source = section("drifted", shading=shading, change=drifted)
    before, _, noted = stitch(source, **light)
    after, metrics, made = stitch(source, gain="estimate", **light)
    assert differing(before, even) > 0.1
    assert differing(after, even) < 0.015
    assert noted.uneven
    assert not made.uneven
    assert made.seam_median == pytest.approx(sound.seam_median, rel=0.05)
    assert made.gains_held_out.lowers_seams
    assert (made.flat_held_out is not None) == bool(light)
    assert not metrics.warnings
    again, _, given = stitch(source, gain=write_gains(made), **light)
    np.testing.assert_array_equal(again, after)
    assert given.gains == made.gains
    assert given.gains_held_out is None
    one_thread, _, _ = stitch(source, gain="estimate", workers=1, **light)
    np.testing.assert_array_equal(one_thread, after)


def test_a_dark_offset_is_taken_away_first(section, stitch, write_gains):
    def change(*given):
        return brightened(100)(drifted(*given), *given[1:])

    source = section("dark", dtype="uint16", change=change)
    image, _, made = stitch(source, gain="estimate", dark_offset=100.0)
    even, _, _ = stitch(section(dtype="uint16"))
    assert made.gains_held_out.lowers_seams
    lit = even.mean(axis=0) > 300
    assert differing(image[:, lit], even[:, lit]) < 0.02
    again, _, _ = stitch(source, gain=write_gains(made), dark_offset=100.0)
    np.testing.assert_array_equal(again, image)


@pytest.mark.parametrize("light", [{}, {"flat_field": "estimate"}])
def test_tiles_of_one_brightness_keep_their_bits(section, stitch, light):
    source = section(shading=0.1)
    before, _, _ = stitch(source, **light)
    after, metrics, made = stitch(source, gain="estimate", **light)
    np.testing.assert_array_equal(after, before)
    assert {*made.gains.values()} == {1.0}
    assert not made.gains_held_out.lowers_seams
    (remark,) = metrics.figures["remarks"]
    assert "--stitch_gain" in remark


def test_tiles_whose_gain_is_unknown_are_named(section, stitch):
    def change(*given):
        return one(clipped, (0, 2))(drifted(*given), *given[1:])

    _, metrics, made = stitch(section("clipped", change=change), gain="estimate")
    assert made.gains_held_out.lowers_seams
    assert made.gains["0,2"] == 1
    assert [text for text in metrics.warnings if "row 0, column 2" in text and "gain 1" in text]
    blank, metrics, made = stitch(
        section("blank", change=lambda voxels, *_: 0 * voxels), gain="estimate"
    )
    assert not blank.any()
    assert {*made.gains.values()} == {1.0}
    assert [text for text in metrics.warnings if "too few overlaps" in text]


def test_each_channel_has_gains_of_its_own(section, stitch, tmp_path):
    source = section("channels", channels=2)
    grid = MosaicGrid.of(open_image(source, InputParameters(channel="1")))
    array = zarr.open_array(source / "0")
    for tile, gain in GAINS.items():
        region = (1, *grid.region(tile))
        array[region] = gain * np.asarray(array[region])
    _, _, first = stitch(source, channel="0", gain="estimate")
    record = (tmp_path / "record.json").rename(tmp_path / "first.json")
    _, _, second = stitch(source, channel="1", gain="estimate", reference=record)
    assert {*first.gains.values()} == {1.0}
    logs = np.log([[second.gains[f"{y},{x}"], gain] for (y, x), gain in GAINS.items()])
    assert np.diff(logs).std() < 0.01
    _, _, labels = stitch(source, channel="1", kinds=["1=nearest"], gain="estimate")
    assert labels.gains == {}
