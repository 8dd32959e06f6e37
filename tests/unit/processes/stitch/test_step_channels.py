"""STITCH of further channels: where the reference's tiles lie, with light of their own."""

import csv
import json
import re

import numpy as np
import pytest
import zarr
from noisy_overlaps import fill_overlaps
from tiles_left_out import leave_out

from octane.config.parameters import ExecutionParameters, InputParameters
from octane.core.errors import InputError
from octane.layout.mosaic import MosaicGrid
from octane.processes.resample.parameters import ResampleParameters
from octane.processes.resample.step import resample_image
from octane.processes.stitch.flat_field import shading_of
from octane.processes.stitch.parameters import StitchParameters
from octane.processes.stitch.step import stitch_section
from octane.store import writer
from octane.store.image import open_image

PHANTOM = {
    "tiles": (3, 3),
    "tile_shape": (8, 96, 96),
    "overlap": (0.25, 0.25),
    "speckle_looks": 4,
    "bias": 0.5,
}


@pytest.fixture
def stitch(tmp_path):
    """Stitch one channel into ``out/NAME.ome.zarr``; returns voxels, image, metrics and record."""

    def run(
        source, name, *, channel=None, kinds=(), reference=None, table=None, workers=2, **given
    ):
        reading = InputParameters(channel=channel, channel_kind=kinds, missing_chunks="fill")
        execution = ExecutionParameters(backend="cpu", workers=workers, overwrite=True)
        destination = tmp_path / "out" / f"{name}.ome.zarr"
        metrics = stitch_section(
            *(source, destination, StitchParameters(**given), reading, execution, table),
            reference_record=reference,
        )
        metrics.save(tmp_path / f"{name}.json", None)
        image = open_image(destination)
        return image.array.opened[:], image, metrics, tmp_path / f"{name}.json"

    return run


@pytest.fixture
def mosaic(write_phantom):
    """Write a phantom's mosaic, of two channels unless told otherwise, and its table."""

    def write(name="phantom", **given):
        folder, _ = write_phantom(name, **{**PHANTOM, "channels": 2, **given})
        return folder / "mosaics" / "section_01.ome.zarr", folder / "positions.csv"

    return write


def scaled(source, channel, light):
    """Multiply each tile of a channel by ``light(tile)``, an image (y, x) of a full tile."""
    grid = MosaicGrid.of(open_image(source, InputParameters(channel=str(channel))))
    array = zarr.open_array(source / "0")
    for tile in grid.tiles:
        region = (channel, *grid.region(tile))
        voxels = np.asarray(array[region])
        array[region] = voxels * light(tile)[: voxels.shape[1], : voxels.shape[2]]


def without_own(attributes):
    """Attributes but for those that each channel has of its own."""
    section = {k: v for k, v in attributes["section"].items() if k != "not_compared"}
    return {**attributes, "section": section, "channel": ""}


# Places


@pytest.mark.parametrize("seed", [pytest.param(1, marks=pytest.mark.soak), 2])
@pytest.mark.parametrize("overlap", [pytest.param(0.2, marks=pytest.mark.soak), 0.31])
def test_a_channel_without_structure_lies_where_the_reference_does(mosaic, stitch, overlap, seed):
    source, _ = mosaic(overlap=overlap, position_error=15.0, shading=0.1, seed=seed, surface=20)
    fill_overlaps(source.parents[1], 1)
    given = {"overlap": overlap, "refine": True, "flat_field": "estimate"}
    _, image, metrics, record = stitch(source, "first", channel="0", **given)
    _, other, made, _ = stitch(source, "second", channel="1", reference=record, **given)
    assert made.figures["positions"] == metrics.figures["positions"]
    assert made.figures["surface"] == metrics.figures["surface"]
    assert other.grid == image.grid
    assert without_own(other.attributes) == without_own(image.attributes)
    assert [own.attributes["channel"] for own in (image, other)] == ["reflectance", "retardance"]
    assert (made.channel, made.figures["misplaced"], made.figures["overlaps"]) == (
        *("retardance", [], []),
    )
    # Negative control: measured in its own overlaps, the channel would lie elsewhere.
    given["check_overlap"] = "warning"
    alone = stitch(source, "alone", channel="1", **given)[2].figures["positions"]
    moves = [
        np.subtract(alone[tile], place) for tile, place in metrics.figures["positions"].items()
    ]
    assert np.abs(moves).max() > 5


CHANGES = {
    "nominal": ({}, {}),
    "refined": ({"position_error": 12.0}, {"refine": True, "flat_field": "estimate"}),
    "attenuated": ({}, {"attenuation": "compensate", "dark_offset": 3.0}),
    "uneven": ({"surface": 20, "tilt": 1}, {}),
}


@pytest.mark.parametrize(("made", "given"), CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("scale", [None, pytest.param((0.5, 0.7, 0.7), marks=pytest.mark.soak)])
def test_the_reference_s_own_record_changes_no_bit(
    mosaic, stitch, tmp_path, reading, execution, made, given, scale
):
    source, _ = mosaic(channels=1, shading=0.1, tile_shape=(16, 96, 96), **made)
    leave_out(source, [(0, 0)])
    # A tile that is twice as bright as its neighbours.
    array = zarr.open_array(source / "0")
    array[:, 96:192, 96:192] = 2 * np.asarray(array[:, 96:192, 96:192])
    if scale is not None:
        resampled = tmp_path / "section_01.ome.zarr"
        resample_image(source, resampled, ResampleParameters(scale=scale), reading, execution)
        source = resampled
    given = {"overlap": 0.25, **given}
    first, image, metrics, record = stitch(source, "first", **given)
    assert len(image.attributes["section"]["not_compared"]) == 2
    again, other, repeated, _ = stitch(source, "again", reference=record, **given)
    np.testing.assert_array_equal(again, first)
    assert (other.grid, other.attributes) == (image.grid, image.attributes)
    own = {"nominal_positions", "refinement_micrometer", "overlaps", "misplaced", "not_in_z"}
    assert {k: v for k, v in repeated.figures.items() if k not in own} == (
        {k: v for k, v in metrics.figures.items() if k not in own}
    )


def test_a_table_s_places_are_taken_from_the_record(mosaic, stitch):
    source, table = mosaic(position_error=12.0)
    _, image, metrics, record = stitch(source, "first", channel="0", table=table)
    # The overlap, which says otherwise, is not used.
    _, other, made, _ = stitch(source, "second", channel="1", reference=record, overlap=0.1)
    assert made.figures["positions"] == metrics.figures["positions"]
    assert (other.grid, made.settings["positions"]) == (image.grid, "from the reference channel")
    with table.open(newline="") as stream:
        rows = {(row["row"], row["column"]): float(row["y"]) for row in csv.DictReader(stream)}
    assert all(made.figures["positions"][",".join(t)][0] == y for t, y in rows.items())


# Light


def test_each_channel_has_a_flat_field_of_its_own(mosaic, stitch):
    even, _ = mosaic("even")
    shaded, _ = mosaic("shaded")
    light = np.outer(np.linspace(0.8, 1.2, 96), np.linspace(1.1, 0.9, 96)).astype(np.float32)
    scaled(shaded, 1, lambda _: light)
    given = {"overlap": 0.25, "flat_field": "estimate"}
    true = stitch(even, "even", channel="1", overlap=0.25)[0].mean(axis=0)
    _, _, first, record = stitch(shaded, "first", channel="0", **given)
    found, left = (
        stitch(shaded, name, channel="1", reference=record, **{**given, "flat_field": name})
        for name in ("estimate", "none")
    )
    ratios = [np.log(own[0].mean(axis=0) / true)[true > 10].std() for own in (found, left)]
    assert ratios[1] > 0.05
    assert ratios[0] < 0.02
    assert first.figures["shading_before"] < 0.04
    assert found[2].figures["shading_before"] == pytest.approx(shading_of(light), abs=0.03)


def test_a_tile_without_light_is_left_out_of_its_own_channel(mosaic, stitch):
    source, _ = mosaic()
    scaled(source, 1, lambda tile: np.full((96, 96), float(tile != (1, 2))))
    given = {"overlap": 0.25}
    _, image, _, record = stitch(source, "first", channel="0", **given)
    second, other, metrics, _ = stitch(source, "second", channel="1", reference=record, **given)
    assert "not_compared" not in image.attributes["section"]
    assert len(other.attributes["section"]["not_compared"]) == 1
    assert without_own(other.attributes) == without_own(image.attributes)
    assert ["1 of 9 tiles" in text for text in metrics.warnings] == [True]
    # Its neighbours' overlaps are not darkened.
    whole, _ = mosaic("whole")
    lit = stitch(whole, "whole", channel="1", reference=record, **given)[0]
    shown = (second > 0) & (lit > 0)
    overlaps = slice(72, 96), slice(150, 160)
    assert shown[:, *overlaps].mean() > 0.5
    assert np.median(second[:, *overlaps] / np.maximum(lit[:, *overlaps], 1)) > 0.9


# Values that must not be averaged


NEAREST = {"channel_kind": "nearest"}


def test_the_tile_whose_border_is_farther_gives_each_voxel(write_mosaic, stitch):
    # Angles of 179 and 1 degree, between which is 0, not 90.
    voxels = np.full((2, 12, 40), 179, np.float32)
    voxels[:, :, 20:] = 1
    source = write_mosaic("a.ome.zarr", voxels, (2, 12, 20), pitch=(120.0, 101.0), **NEAREST)
    stitched, image, metrics, record = stitch(source, "a")
    # The second tile begins at 10.1; in the middle of the overlap, the first is as far.
    np.testing.assert_array_equal(stitched[1, 5], [179] * 15 + [1] * 15)
    assert image.attributes["channel_kind"] == "nearest"
    assert metrics.figures["seams"] == {}
    for name in ("seam_median", "shading_before"):
        assert metrics.figures[name] is None
    assert metrics.figures["surface"]["reason"] == "values that must not be averaged"
    # The picture keeps the values.
    np.testing.assert_array_equal(metrics.previews["thumbnail"], stitched[1])
    assert image.attributes["section"]["surface"] == {"reason": "values that must not be averaged"}
    assert json.loads(record.read_text())["warnings"] == []


@pytest.mark.parametrize("dtype", ["float32", "uint64", "complex64"])
def test_every_voxel_is_one_of_the_input_at_its_place(rng, write_mosaic, stitch, tmp_path, dtype):
    voxels = rng.integers(2**62, 2**63, (3, 60, 60), np.uint64).astype(dtype)
    if dtype == "complex64":
        voxels += np.complex64(1j) * rng.random(voxels.shape, np.float32)
    source = write_mosaic("a_01.ome.zarr", voxels, (3, 20, 20), **NEAREST)
    table = tmp_path / "t.csv"
    places = {
        (row, column): np.add(rng.uniform(-12, 12, 2), (150 * row, 140 * column))
        for row in range(3)
        for column in range(3)
    }
    rows = [f"1,{r},{c},{y},{x}" for (r, c), (y, x) in places.items()]
    table.write_text("\n".join(["section,row,column,y,x", *rows, ""]))
    stitched, *_ = stitch(source, "a", table=table)
    assert stitched.dtype == dtype
    first = np.min([*places.values()], axis=0)
    found = {}
    covered = np.zeros(stitched.shape[1:], bool)
    for (row, column), place in places.items():
        y, x = (int(n) for n in np.round((place - first) / 10))
        tile = voxels[:, 20 * row : 20 * row + 20, 20 * column : 20 * column + 20]
        here = (slice(y, y + 20), slice(x, x + 20))
        # By rounding, the last tiles may end beyond the grid.
        part = stitched[:, *here]
        found[row, column] = np.zeros(covered.shape, bool)
        found[row, column][here] = (part == tile[:, : part.shape[1], : part.shape[2]]).all(axis=0)
        covered[here] = True
    # A column of voxels is of one tile, and each tile gives more than what it alone covers.
    assert covered.mean() > 0.9
    np.testing.assert_array_equal(np.any([*found.values()], axis=0), covered)
    assert min(same.sum() for same in found.values()) > 12**2


def test_the_axis_of_a_phantom_has_the_values_of_its_tiles(mosaic, stitch, monkeypatch):
    source, _ = mosaic(channels=3, position_error=12.0, tiles=(2, 3))
    given = {"overlap": 0.25, "refine": True, "flat_field": "estimate", "dark_offset": 2.0}
    _, image, _, record = stitch(source, "first", channel="0", **given)
    as_axis = {"channel": "axis", "kinds": ("axis=nearest",), "reference": record}
    angles, other, metrics, _ = stitch(source, "axis", **as_axis, **given)
    assert other.grid == image.grid
    assert other.attributes["section"] == image.attributes["section"]
    given_angles = np.append(zarr.open_array(source / "0")[2], 0)
    # 0 only outside the ragged outline.
    assert np.isin(angles, given_angles).all()
    assert (angles[:, 12:-12, 12:-12] != 0).mean() > 0.99
    assert metrics.warnings == []
    # In blocks, on other threads, from the store, and with what has no meaning for it.
    monkeypatch.setattr(writer, "CHUNK", 16)
    monkeypatch.setattr(writer, "SHARD", 32)
    for workers, more in ((1, {}), (3, {"attenuation": "compensate"})):
        again = stitch(source, f"w{workers}", workers=workers, **as_axis, **given, **more)[0]
        np.testing.assert_array_equal(again, angles)
    # Negative control: blended, most voxels in overlaps are no angle of a tile.
    blended = stitch(source, "blended", channel="axis", reference=record, overlap=0.25)[0]
    assert not np.isin(blended, given_angles).all()


def test_values_that_must_not_be_averaged_cannot_be_refined(write_mosaic, stitch, tmp_path):
    source = write_mosaic("a.ome.zarr", np.ones((2, 40, 40)), (2, 20, 20), **NEAREST)
    with pytest.raises(InputError, match=r"a.ome.zarr: --stitch_refine cannot .*; choose another"):
        stitch(source, "a", overlap=0.25, refine=True)
    assert not (tmp_path / "out").exists()


# Records that do not fit


def other_section(write_mosaic, voxels):
    return write_mosaic("section_02.ome.zarr", voxels, (2, 20, 20))


def other_tiles(write_mosaic, voxels):
    return write_mosaic("other_01.ome.zarr", voxels, (2, 20, 40))


def other_size(write_mosaic, voxels):
    return write_mosaic("other_01.ome.zarr", voxels[:, :, :-4], (2, 20, 20))


def other_voxels(write_mosaic, voxels):
    return write_mosaic("other_01.ome.zarr", voxels, (2, 20, 20), (10.0, 10.0, 10.1))


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (other_section, r"section 1, but .* is section 2; give --reference the"),
        (other_tiles, r"4 tiles of 200 x 200 .*, but .* has 2 tiles of 200 x 400 .*; give"),
        (other_size, r".*\(in all 400 x 400\) .* \(in all 400 x 360\) .* same mosaic at the same"),
        (other_voxels, r".* voxels of 10 x 10 x 10, but .* voxels of 10 x 10 x 10.1; give"),
    ],
)
def test_a_record_of_other_tiles_is_refused(write_mosaic, stitch, tmp_path, source, sentence):
    voxels = np.ones((2, 40, 40), np.float32)
    first = write_mosaic("section_01.ome.zarr", voxels, (2, 20, 20))
    *_, record = stitch(first, "first", overlap=0.25)
    with pytest.raises(InputError, match=f"first.json is the record of {sentence}"):
        stitch(source(write_mosaic, voxels), "second", reference=record, overlap=0.25)
    assert not (tmp_path / "out" / "second.ome.zarr").exists()


def test_two_sources_of_places_are_refused(write_mosaic, stitch, tmp_path):
    source = write_mosaic("a.ome.zarr", np.ones((2, 40, 40), np.float32), (2, 20, 20))
    given = {"reference": tmp_path / "r.json", "table": tmp_path / "t.csv"}
    sentence = re.escape(f"{given['reference']} places the tiles; omit --positions, or --reference")
    with pytest.raises(InputError, match=sentence):
        stitch(source, "a", **given)
