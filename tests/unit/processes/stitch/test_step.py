"""STITCH: a phantom's section is reconstructed, and missing information is an error."""

import csv
import os
import re
from functools import cache

import numpy as np
import pytest
import tifffile
from made_faults import brightened, one
from PIL import Image
from resampling import apply
from scipy import ndimage
from tiles_left_out import leave_out
from uneven_sections import surfaces

from octane.config.parameters import ExecutionParameters, InputParameters
from octane.core.errors import OctaneError
from octane.pipeline.workers import PROCESS_BYTES
from octane.processes.mosaic.parameters import TileParameters
from octane.processes.mosaic.step import write_mosaics
from octane.processes.phantom.step import Subject, render_tile
from octane.processes.resample.parameters import ResampleParameters
from octane.processes.resample.step import resample_image
from octane.processes.stitch.attenuation import MOST_STEADY, compensate_light
from octane.processes.stitch.parameters import OverlapParameters, StitchParameters
from octane.processes.stitch.record import COMPENSATION, StitchFigures
from octane.processes.stitch.step import stitch_section
from octane.resample.operator import interpolator
from octane.store import writer
from octane.store.image import open_image


@pytest.fixture
def stitch(tmp_path, reading):
    """Stitch into ``out/NAME.ome.zarr``; returns the voxels, the image and the metrics."""

    def run(
        source,
        name="section_01",
        *,
        positions=None,
        saved=None,
        workers=2,
        reading=reading,
        **settings,
    ):
        destination = tmp_path / "out" / f"{name}.ome.zarr"
        execution = ExecutionParameters(backend="cpu", workers=workers, overwrite=True)
        given = (source, destination, StitchParameters(**settings), reading, execution, positions)
        metrics = stitch_section(*given, save_flat_field=saved)
        image = open_image(destination)
        return image.array.opened[:], image, metrics

    return run


@pytest.fixture
def reconstruct(tmp_path, write_phantom, reading, execution, stitch):
    """A phantom's first section, resampled if a target is given, and stitched."""

    def run(target=None, *, table=False, settings=None, **phantom):
        folder, parameters = write_phantom(**phantom)
        source = folder / "mosaics" / "section_01.ome.zarr"
        if target is not None:
            resampled = tmp_path / "resampled.ome.zarr"
            wanted = ResampleParameters(resolution=target)
            resample_image(source, resampled, wanted, reading, execution)
            source = resampled
        positions = folder / "positions.csv" if table else None
        _, image, metrics = stitch(source, positions=positions, **(settings or {}))
        return image, metrics, parameters, folder

    return run


def untiled(parameters, grid):
    """The same section seen by one large tile and resampled by the same operator onto ``grid``."""
    extent = Subject.of(parameters).extent
    shape = [
        parameters.tile_shape[0],
        # Slightly larger than the section, whose border is then not the tile's.
        *(int(e / s) + 12 for e, s in zip(extent[1:], parameters.voxel_size[1:], strict=True)),
    ]
    values = render_tile(parameters, 0, (0, 0), tuple(shape), (0.0, 0.0))
    for axis, (o, t, m, s) in enumerate(
        zip(grid.origin, grid.spacing, grid.shape, parameters.voxel_size, strict=True)
    ):
        positions = np.round((o + np.arange(m) * t) / s - 0.5, 9)
        operator = interpolator(positions, shape[axis], max(0.0, (t / s - 1) / 2))
        values = apply(operator, values, axis)
    return values


def errors_of(image, parameters, overlap):
    """Errors of a stitched section relative to the mean of the truth, at seams and elsewhere.

    The outermost pixels are left out: there a Gaussian sees the border of the imaged area, which
    the larger tile of the truth lacks.
    """
    truth = untiled(parameters, image.grid)
    error = np.abs(image.array.opened[:] - truth) / truth.mean()
    subject = Subject.of(parameters)
    at_seam = np.zeros(truth.shape[1:], bool)
    for axis in (0, 1):
        t = image.grid.spacing[axis + 1]
        centres = image.grid.origin[axis + 1] + np.arange(truth.shape[axis + 1]) * t
        width = subject.tile_extent[axis + 1] * overlap
        into = centres[:, None] - np.arange(1, 9) * subject.pitch[axis]
        near = ((into > -t) & (into < width + t)).any(axis=1)
        at_seam |= near[:, None] if axis == 0 else near[None]
    found = [error[:, 4:-4, 4:-4][:, near[4:-4, 4:-4]] for near in (at_seam, ~at_seam)]
    assert min(part.shape[1] for part in found) > 200
    return [part.max() for part in found]


PHANTOM = {
    "tiles": (3, 3),
    "tile_shape": (24, 64, 64),
    "voxel_size": (3.5, 4.0, 4.0),
    "attenuation": 1.0,
    "bias": 0.5,
    "section_thickness": 70.0,
}


@pytest.mark.parametrize(
    # Measured: the largest error is 0.045 of the mean at seams and 0.053 away at 10 um (edges of
    # the tissue, 15 um wide, interpolated twice); 0.0094 and 0.0094 at the native resolution.
    ("target", "overlap", "bound"),
    [(10.0, 0.2, 0.06), (None, 0.2, 0.011), (11.7, 0.2, 0.1), (10.0, 0.25, 0.06)],
)
def test_there_are_no_seams(reconstruct, target, overlap, bound):
    image, metrics, parameters, _ = reconstruct(target, **{**PHANTOM, "overlap": overlap})
    seam, away = errors_of(image, parameters, overlap)
    assert away < bound
    assert seam < 1.05 * away
    assert metrics.figures["uncovered_pixels"] == 0
    extent = Subject.of(parameters).extent[1:]
    assert image.grid.extent[1:] == pytest.approx(extent, abs=image.grid.spacing[1] / 2)
    noted = image.attributes["section"]
    assert (noted["number"], noted["thickness"], noted["edge"]) == (1, 70.0, [0.0, 0.0, 0.0])
    assert noted["extent"][1:] == pytest.approx(extent)
    assert (image.attributes["kind"], "mosaic" in image.attributes) == ("section", False)


@pytest.mark.parametrize(
    ("target", "changed", "most"),
    [
        (None, {}, 1e-6),
        # Pitch and target are integer multiples of the voxel, so that nothing is interpolated: only
        # the border of each tile differs, beyond which its Gaussian sees a reflection.
        # Measured: at most 0.0016 of the mean at seams, below 1e-6 away from them.
        (10.0, {"tile_shape": (24, 48, 48), "voxel_size": (5.0, 5.0, 5.0)}, 0.003),
    ],
)
def test_tiles_on_whole_voxels_are_the_section_exactly(reconstruct, target, changed, most):
    image, _, parameters, _ = reconstruct(target, **{**PHANTOM, **changed}, overlap=0.25)
    seam, away = errors_of(image, parameters, 0.25)
    assert away < 2e-6
    assert seam < most


def test_a_step_between_tiles_would_be_seen(reconstruct):
    # Negative control: shading makes seams, and the same figures must show them.
    image, _, parameters, _ = reconstruct(None, **PHANTOM, overlap=0.2, shading=0.2)
    flat = parameters.model_copy(update={"shading": 0.0})
    assert errors_of(image, flat, 0.2)[0] > 0.05


@pytest.fixture
def microscope_tiles(extract_tiles, write_mosaic):
    """A mosaic of 4 x 3 tiles that overlap by 0.1133 and are displaced by up to 3 px."""
    folder = extract_tiles("microscopestitching", r"notebooks/r\d-c\d\.png")
    rows = [
        [np.asarray(Image.open(folder / f"r{row}-c{column}.png")) for column in range(3)]
        for row in range(4)
    ]
    return write_mosaic("section_01.ome.zarr", np.block(rows)[None], (1, 512, 512), (1.0, 1.0, 1.0))


@pytest.mark.soak
def test_the_seam_of_real_tiles_falls_as_they_fit_better(microscope_tiles, stitch):
    made = [
        stitch(microscope_tiles, overlap=(given, given), refine=refine, check_overlap="warning")[2]
        for given, refine in ((0.2, False), (0.1133, False), (0.1133, True))
    ]
    figures = [StitchFigures.model_validate(metrics.figures) for metrics in made]
    _, near, fitting = (own.figures["seam_median"] for own in made)
    assert fitting < 0.6 * near
    for axis in "yx":
        wrong, near, fitting = (own.figures[f"seam_{axis}"] for own in made)
        assert wrong > 1.2 * near > 1.2 * 1.1 * fitting
        wrong, near, fitting = (own.mismatch(axis) or 0.0 for own in figures)
        assert wrong > near >= fitting
    # To 3 decimals, or half a pixel.
    (words,) = made[0].warnings
    numbers = re.findall(r"(?:overlap of|and|overlap|,)\ ?(0\.\d{3})", words)
    assert [float(number) for number in numbers] == [own.found for own in figures[0].overlaps] * 2
    assert [own.found for own in figures[0].overlaps] == pytest.approx([0.1133] * 2, abs=0.006)


PIXEL = 0.24050019550342
"""Size of a pixel of Leica's tiles, micrometres."""
REGISTERED = (936.7469, 3.2326183)
"""Place of the second of Leica's tiles, pixels, as Fiji registered channel 1."""
CORRELATED = {0: (936.95, 3.80), 1: (936.26, 3.75)}
"""The same by channel, at the maximum of the overlaps' correlation, shifted by cubic splines."""


@pytest.mark.parametrize("channel", [pytest.param(0, marks=pytest.mark.soak), 1])
def test_real_tiles_of_leica_lie_where_fiji_puts_them(
    extract_tiles, stitch, execution, tmp_path, channel
):
    # A file holds one channel, whose number is beyond the number of channels that it states.
    tiles = extract_tiles("leicaexperiment", r"image-[^/]*-X00-[^/]*\.ome\.tif")
    size = InputParameters(voxel_size=(1.0, PIXEL, PIXEL))
    near = OverlapParameters(overlap=(0.1, 0.1))
    write_mosaics(tiles, tmp_path / "mosaics", TileParameters(), size, near, execution)
    reading = InputParameters(channel=str(channel))
    source = tmp_path / "mosaics" / "section_01.ome.zarr"
    _, image, metrics = stitch(source, overlap=(0.1, 0.1), refine=True, reading=reading)
    assert image.array.shape[0] == 1
    first, second = StitchFigures.model_validate(metrics.figures).positions.values()
    place = np.subtract(second, first) / PIXEL
    np.testing.assert_allclose(place, CORRELATED[channel], rtol=0, atol=0.25)
    if channel == 1:
        np.testing.assert_allclose(place, REGISTERED, rtol=0, atol=0.6)


@pytest.fixture
def two_tiles(write_mosaic):
    """100 on the left, 200 on the right, which overlap by 10 of 20 voxels."""

    def write(dtype="float32", unit=1):
        voxels = np.full((2, 12, 40), 100 * unit, dtype)
        voxels[:, :, 20:] *= 2
        return write_mosaic("section_01.ome.zarr", voxels, (2, 12, 20), pitch=(120.0, 100.0))

    return write


@pytest.mark.parametrize(("dtype", "unit"), [("float32", 1), ("uint16", 1), ("complex64", 1 - 2j)])
def test_weights_taper_linearly_across_an_overlap(two_tiles, stitch, tmp_path, dtype, unit):
    source = two_tiles(dtype, unit)
    stitched, _, _ = stitch(source)
    assert stitched.dtype == dtype
    expected = unit * np.array([100] * 10 + [105 + 10 * n for n in range(10)] + [200] * 10)
    np.testing.assert_allclose(stitched[0, 5], expected, rtol=1e-5)
    table = tmp_path / "backwards.csv"
    table.write_text("section,row,column,y,x\n1,0,0,0,0\n1,0,1,0,-100\n")
    stitched, _, _ = stitch(source, positions=table)
    np.testing.assert_allclose(stitched[0, 5, ::-1], expected, rtol=1e-5)


@pytest.mark.parametrize("lost", [0, np.nan])
def test_a_tile_that_was_not_imaged_darkens_no_other(write_mosaic, stitch, lost):
    voxels = np.full((2, 12, 40), 100, np.float32)
    voxels[:, :, 20:] = lost
    source = write_mosaic("section_01.ome.zarr", voxels, (2, 12, 20), pitch=(120.0, 100.0))
    stitched, image, metrics = stitch(source)
    np.testing.assert_array_equal(stitched[0, 5], [100] * 20 + [0] * 10)
    assert metrics.warnings == [
        "1 of 2 tiles of section_01.ome.zarr were not imaged: they hold only 0 or NaN and are "
        "left out."
    ]
    # STACK ignores this area: y and x in micrometres.
    assert image.attributes["section"]["not_compared"] == [[0, 100, 120, 300]]


HALF = ResampleParameters(scale=(0.5, 0.5, 0.5))


@pytest.mark.parametrize(
    "settings", [{}, {"refine": True, "flat_field": "estimate"}], ids=["placed", "refined"]
)
def test_declared_tiles_give_the_voxels_of_tiles_of_zeros(
    write_phantom, tmp_path, execution, stitch, settings
):
    lost = [(0, 0), (1, 2)]
    made = {"tiles": (3, 4), "bias": 0.5, "shading": 0.1, "speckle_looks": 4, "overlap": 0.2}

    def change(voxels, grid, parameters):
        for tile in lost:
            voxels = one(np.zeros_like, tile)(voxels, grid, parameters)
        return voxels

    source = write_phantom("declared", **made)[0] / "mosaics/section_01.ome.zarr"
    leave_out(source, lost)
    twin = write_phantom("zeroed", **made, change=change)[0] / "mosaics/section_01.ome.zarr"
    found = []
    # The twin's tiles of zeros are not stored either, but that is not declared.
    filled = InputParameters(missing_chunks="fill")
    for name, mosaic, reading in (
        ("declared", source, InputParameters()),
        ("zeroed", twin, filled),
    ):
        made = tmp_path / f"{name}_resampled.ome.zarr"
        noted = resample_image(mosaic, made, HALF, reading, execution)
        stitched, image, metrics = stitch(made, name, workers=1, **settings)
        noted_tiles = noted.figures["tiles"]
        stored = {tuple(p.relative_to(made / "0/c/0").parts) for p in made.glob("0/c/0/*/*")}
        found.append((stitched, image.attributes, metrics, noted_tiles, stored))
    (declared, attributes, metrics, tiles, stored), (zeros, others, twins, *_) = found
    assert tiles == len(stored) == 10
    assert not stored & {(str(row), str(column)) for row, column in lost}
    np.testing.assert_array_equal(declared, zeros)
    assert attributes == others
    assert len(attributes["section"]["not_compared"]) == 2
    assert metrics.figures["positions"] == twins.figures["positions"]
    assert metrics.figures["not_imaged"] == [[0, 0], [1, 2]]
    assert [1, 2] in metrics.figures["holes"]
    # Seams with tiles of zeros would hide those of the others.
    assert {pair for pair in twins.figures["seams"] if "0,0" in pair or "1,2" in pair} == (
        twins.figures["seams"].keys() - metrics.figures["seams"].keys()
    )
    assert metrics.figures["seam_max"] < twins.figures["seam_max"]
    assert metrics.figures["uneven"] == []
    # What is declared is no surprise; what is only dark is.
    assert not any("were not imaged" in text for text in metrics.warnings)
    assert any("2 of 12 tiles" in text for text in twins.warnings)


@pytest.mark.parametrize(
    ("lost", "holes"),
    [
        # A column that no tile of this section reaches: other sections are wider.
        ([(0, 2), (1, 2), (2, 2)], []),
        ([(0, 2), (1, 2)], [[1, 2]]),
    ],
)
def test_columns_outside_a_smaller_section_are_no_holes(write_phantom, stitch, lost, holes):
    folder, _ = write_phantom(tiles=(3, 3), edge_fraction=0.0)
    source = leave_out(folder / "mosaics" / "section_01.ome.zarr", lost)
    *_, metrics = stitch(source, "smaller")
    assert metrics.figures["not_imaged"] == [list(tile) for tile in lost]
    assert [tile for tile in metrics.figures["holes"] if tile != [0, 2]] == holes


def test_a_tile_that_is_lost_beside_declared_ones_is_refused(
    write_phantom, tmp_path, reading, execution, stitch
):
    folder, _ = write_phantom(tiles=(2, 3))
    source = leave_out(folder / "mosaics" / "section_01.ome.zarr", [(0, 0)])
    (source / "0/c/0/1/2").unlink()
    made = tmp_path / "resampled.ome.zarr"
    for run in (
        lambda: stitch(source),
        lambda: resample_image(source, made, HALF, reading, execution),
    ):
        with pytest.raises(OctaneError, match="chunk 0/c/0/1/2 is missing"):
            run()
    assert not made.exists()


@pytest.mark.parametrize("lost", [[], [(2, 1)]])
def test_a_tile_without_light_is_noted_for_stack(reconstruct, lost):
    def change(voxels, grid, made):
        for tile in lost:
            voxels = one(np.zeros_like, tile)(voxels, grid, made)
        return brightened(50)(voxels, grid, made)

    image, _, parameters, _ = reconstruct(tiles=(3, 3), tile_shape=(8, 96, 96), change=change)
    boxes = image.attributes["section"].get("not_compared", [])
    assert len(boxes) == len(lost)
    for box, tile in zip(boxes, lost, strict=True):
        first = np.multiply(tile, Subject.of(parameters).pitch)
        np.testing.assert_allclose(box[:2], first, atol=parameters.voxel_size[1])


def test_a_mismatch_is_the_seam(two_tiles, stitch):
    *_, metrics = stitch(two_tiles())
    # The rms difference, 100, over the mean of both, 150.
    assert metrics.figures["seam_median"] == pytest.approx(100 / 150)
    assert metrics.figures["seams"] == {"0,0-0,1": pytest.approx(100 / 150)}


def test_tiles_between_voxels_are_interpolated(rng, write_mosaic, stitch):
    voxels = rng.integers(1, 1000, (2, 20, 40)).astype(np.float32)
    source = write_mosaic("a.ome.zarr", voxels, (2, 20, 20), pitch=(200.0, 136.0))
    stitched, _, _ = stitch(source)
    # The second tile begins at 13.6 voxels; beyond the overlap it is the only one.
    second = voxels[:, :, 20:]
    between = 0.6 * second[:, :, 6:-1] + 0.4 * second[:, :, 7:]
    np.testing.assert_allclose(stitched[:, :, 20:33], between, rtol=1e-5)


@pytest.mark.parametrize(
    ("second", "shape", "row"),
    [
        ((0, 250), (2, 20, 45), [1] * 20 + [0] * 5 + [1] * 20),
        ((0, -250), (2, 20, 45), [1] * 20 + [0] * 5 + [1] * 20),
        ((-30, 150), (2, 23, 35), [1] * 35),
    ],
    ids=["a gap is zero and reported", "the same backwards", "a tile before the first one counts"],
)
def test_tiles_lie_where_the_table_says(write_mosaic, stitch, tmp_path, caplog, second, shape, row):
    source = write_mosaic("section_01.ome.zarr", np.ones((2, 20, 40), np.float32), (2, 20, 20))
    table = tmp_path / "t.csv"
    table.write_text(f"section,row,column,y,x\n1,0,0,0,0\n1,0,1,{second[0]},{second[1]}\n")
    stitched, image, metrics = stitch(source, positions=table)
    assert image.grid.shape == shape
    assert image.grid.edge == pytest.approx((0, *np.minimum(second, 0)))
    np.testing.assert_array_equal(stitched[0, 7], row)
    missing = row.count(0) * 20
    assert metrics.figures["uncovered_pixels"] == missing
    assert (f"{missing} pixels lie between tiles" in caplog.text) == bool(missing)
    assert len(metrics.warnings) == bool(missing)


@pytest.mark.parametrize(("second", "span"), [("0,1e6", 1e6), ("-8e8,0", 8e8)])
def test_tiles_that_spread_far_beyond_what_they_cover_are_refused(
    write_mosaic, stitch, tmp_path, second, span
):
    source = write_mosaic("section_01.ome.zarr", np.ones((2, 20, 40), np.float32), (2, 20, 20))
    table = tmp_path / "t.csv"
    table.write_text(f"section,row,column,y,x\n1,0,0,0,0\n1,0,1,{second}\n")
    words = re.escape(f"over {span:g} micrometre, but side by side they cover 400: give positions")
    with pytest.raises(OctaneError, match=rf"t.csv spreads .*section_01.ome.zarr {words}"):
        stitch(source, positions=table)
    source = write_mosaic("b.ome.zarr", np.ones((2, 20, 40)), (2, 20, 20), pitch=(1, 1e300))
    with pytest.raises(OctaneError, match=r"metadata spreads .* 1e\+300 micrometre, .* cover 400"):
        stitch(source)


def test_a_table_numbers_a_mosaic_without_a_number_1(write_mosaic, stitch, tmp_path):
    source = write_mosaic("brain.ome.zarr", np.ones((2, 20, 40), np.float32), (2, 20, 20))
    table = tmp_path / "t.csv"
    table.write_text("section,row,column,y,x\n1,0,0,0,0\n1,0,1,0,150\n")
    assert stitch(source, positions=table)[0].shape == (2, 20, 35)


def position_error(positions, table, pixel):
    """Mean distance from the true positions in pixels, without the common displacement."""
    with table.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    own = [positions[int(r["row"]), int(r["column"])] for r in rows]
    wrong = np.array(own) - [(float(r["y"]), float(r["x"])) for r in rows]
    return np.hypot(*(wrong - wrong.mean(axis=0)).T).mean() / pixel


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="nominal"),
        pytest.param({"refine": True}, id="refined", marks=pytest.mark.soak),
    ],
)
def test_a_mosaic_that_does_not_fit_the_memory_gives_the_same(
    rng, write_mosaic, tmp_path, reading, settings
):
    tile = (8, 32, 32)
    voxels = rng.random((8, 256, 256), np.float32) + 1
    source = write_mosaic("a.zarr", voxels, tile)
    parameters = StitchParameters(overlap=(0.25, 0.25), **settings)
    made = []
    # Memory for one worker's block, but not for the mosaic as well.
    least = PROCESS_BYTES + (2 * 8 * 208 * 208 + 3 * 8 * 32 * 32) * 4
    for name, memory in (("kept", least + voxels.nbytes), ("read", least + voxels.nbytes // 2)):
        execution = ExecutionParameters(backend="cpu", workers=1, memory=f"{memory}B")
        destination = tmp_path / f"{name}.ome.zarr"
        metrics = stitch_section(source, destination, parameters, reading, execution)
        assert metrics.figures["kept_in_memory"] == (name == "kept")
        made.append(open_image(destination).array.opened[:])
    np.testing.assert_array_equal(made[0], made[1])


# Measured: 1.1 to 1.3 px before; after, 0.14 to 0.23 with 16 or 4 looks and 0.26 to 0.44 with one.
@pytest.mark.parametrize(
    ("looks", "bound"), [(16, 0.35), pytest.param(4, 0.35, marks=pytest.mark.soak), (1, 0.6)]
)
@pytest.mark.parametrize("seed", [pytest.param(1, marks=pytest.mark.soak), 2])
def test_refinement_finds_the_positions_through_speckle(reconstruct, looks, bound, seed):
    stage = {"overlap": 0.25, "position_error": 20.0, "shading": 0.1, "seed": seed}
    tiles = {"tiles": (3, 3), "tile_shape": (8, 128, 128), "voxel_size": (4.0, 4.0, 4.0)}
    _, metrics, parameters, folder = reconstruct(
        10.0, settings={"refine": True}, speckle_looks=looks, **stage, **tiles
    )
    noted = metrics.figures["positions"]
    assert metrics.settings["positions"] == "unset"
    found = {tuple(map(int, name.split(","))): place for name, place in noted.items()}
    nominal = {tile: np.multiply(tile, Subject.of(parameters).pitch) for tile in found}
    table = folder / "positions.csv"
    before, after = (position_error(p, table, 10.0) for p in (nominal, found))
    assert before > 1.0
    assert after < bound
    assert metrics.figures["refinement_micrometer"]["max"] > 10.0


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (2, 3))]
)
@pytest.mark.parametrize("edge", [64, 128])
def test_heavy_speckle_leaves_tiles_no_further_off_than_stated(reconstruct, edge, seed):
    stage = {"overlap": 0.2, "position_error": 10.5, "shading": 0.1, "seed": seed}
    tiles = {"tiles": (3, 3), "tile_shape": (8, edge, edge), "voxel_size": (3.5, 4.0, 4.0)}
    _, metrics, parameters, folder = reconstruct(
        settings={"refine": True}, speckle_looks=2, **stage, **tiles
    )
    named = metrics.figures["positions"].items()
    found = {tuple(map(int, name.split(","))): place for name, place in named}
    nominal = {tile: np.multiply(tile, Subject.of(parameters).pitch) for tile in found}
    before, after = (position_error(p, folder / "positions.csv", 4.0) for p in (nominal, found))
    assert after < 1.1 * before
    # The record says why tiles stay, which is no fault.
    stays = metrics.figures["refinement_micrometer"]["max"] == 0
    assert stays == bool(metrics.figures["not_refined"])
    assert not metrics.warnings


def fringed(voxels, grid, _):
    """Multiply each tile by the same fringes."""
    y, x = np.indices(grid.tile[1:])
    fringes = (1 + 0.5 * np.cos(2 * np.pi * (y / 17 + x / 23))).astype(np.float32)
    changed = voxels.copy()
    for tile in grid.tiles:
        own = changed[grid.region(tile)]
        own *= fringes[: own.shape[1], : own.shape[2]]
    return changed


@pytest.mark.parametrize("change", [None, fringed])
def test_a_pattern_of_all_tiles_moves_none_unasked(write_phantom, stitch, change):
    made = {"tiles": (3, 3), "tile_shape": (8, 96, 96), "position_error": 15.0}
    folder, _ = write_phantom(change=change, speckle_looks=16.0, **made)
    source = folder / "mosaics" / "section_01.ome.zarr"
    _, _, metrics = stitch(source, refine="auto")
    stays = metrics.figures["refinement_micrometer"]["max"] == 0
    assert stays == bool(metrics.figures["not_refined"]) == (change is not None)


def test_refinement_moves_no_tile_further_than_it_may(reconstruct):
    _, metrics, _, _ = reconstruct(
        None, tiles=(2, 2), position_error=40.0, settings={"refine": True, "max_shift": 5.0}
    )
    moved = metrics.figures["refinement_micrometer"]["max"]
    assert 0 < moved <= 5.0 * np.sqrt(2) + 1e-6
    assert "of 4 tiles reached --stitch_max_shift" in metrics.warnings[0]


def test_a_tile_that_lies_too_deep_is_named_and_stays(reconstruct, stitch):
    rolled = one(lambda tile: np.roll(tile, 3, axis=0))
    made = {**PHANTOM, "surface": 20, "tilt": 2, "overlap": 0.25, "speckle_looks": 4}
    image, metrics, _, folder = reconstruct(None, change=rolled, **made)
    (warning,) = (text for text in metrics.warnings if "planes" in text)
    assert warning == "section_01.ome.zarr: row 1, column 1 fits 3 planes higher."
    deep = image.array.opened[:]
    source = folder / "mosaics" / "section_01.ome.zarr"
    again, _, alone = stitch(source, name="alone", workers=1)
    assert np.array_equal(again, deep)
    assert alone.figures["misplaced"] == metrics.figures["misplaced"]
    image, metrics, _, _ = reconstruct(None, name="good", **made)
    assert metrics.figures["misplaced"] == []
    # The middle tile alone differs.
    changed = (image.array.opened[:] != deep).any(axis=0)
    assert changed[50:90, 50:90].mean() > 0.9
    assert not changed[:48].any()
    assert not changed[:, :48].any()


def test_voxels_that_are_no_numbers_stay_where_they_are(rng, write_mosaic, stitch):
    tissue = ndimage.gaussian_filter(rng.random((4, 84, 84), np.float32), (0, 2, 2)) + 1
    parts = (slice(0, 48), slice(36, 84))
    voxels = np.block([[tissue[:, y, x] for x in parts] for y in parts])
    # A voxel in an overlap, two outside, and a pixel without any number.
    lost = np.zeros(voxels.shape, bool)
    lost[1, 40, 44] = lost[2, 70:72, 20] = lost[:, 60, 60] = True
    made = []
    for name, where in (("whole.zarr", False), ("lacking.zarr", lost)):
        source = write_mosaic(name, np.where(where, np.float32(np.nan), voxels), (4, 48, 48))
        stitched, _, metrics = stitch(source, overlap=(0.25, 0.25), refine=True)
        made.append((stitched, metrics))
    (whole, metrics), (lacking, other) = made
    unknown = ~np.isfinite(lacking)
    # Interpolated between four pixels in its plane.
    assert lost.sum() <= unknown.sum() <= 4 * lost.sum()
    np.testing.assert_allclose(lacking[~unknown], whole[~unknown], rtol=0.02)
    assert np.isfinite(list(other.figures["seams"].values())).all()
    for tile, place in metrics.figures["positions"].items():
        np.testing.assert_allclose(other.figures["positions"][tile], place, atol=1)


def test_a_section_cut_into_blocks_gives_the_same_bits(reconstruct, stitch, monkeypatch):
    image, _, _, folder = reconstruct(None, **PHANTOM, overlap=0.2)
    whole = image.array.opened[:]
    monkeypatch.setattr(writer, "CHUNK", 16)
    monkeypatch.setattr(writer, "SHARD", 32)
    source = folder / "mosaics" / "section_01.ome.zarr"
    cut, again, metrics = stitch(source)
    assert again.array.shards == (32, 32, 32)
    np.testing.assert_array_equal(cut, whole)
    assert metrics.previews["thumbnail"].shape == whole.shape[1:]
    np.testing.assert_allclose(metrics.previews["thumbnail"], whole.mean(axis=0), rtol=1e-5)


# The surface

WET = {
    "tiles": (3, 3),
    "tile_shape": (24, 64, 64),
    "voxel_size": (10.0, 10.0, 10.0),
    "section_thickness": 120.0,
    "speckle_looks": 1,
}


@pytest.mark.parametrize(("target", "settings"), [(None, {}), (20, {"refine": True})])
def test_the_surface_of_a_section_is_measured(reconstruct, target, settings):
    given = {"surface": 80, "surface_jitter": 10, "tilt": 0.6, "seed": 3}
    image, metrics, parameters, _ = reconstruct(target, settings=settings, **WET, **given)
    true, noted = surfaces(parameters)[0], image.attributes["section"]["surface"]
    voxel = image.grid.spacing[0]
    assert abs(noted["depth"] - true.depth) < 0.2 * voxel
    assert np.abs(np.subtract(noted["tilt"], true.tilt)).max() < 0.1
    figures = StitchFigures.model_validate(metrics.figures).surface
    assert figures is not None
    assert noted == figures.model_dump(mode="json", include={"depth", "tilt", "tilt_std"})
    assert figures.used > figures.columns / 2


def test_a_section_without_a_surface_says_why(reconstruct):
    image, metrics, *_ = reconstruct(**WET)
    reason = "data begin within the tissue"
    assert image.attributes["section"]["surface"] == {"reason": reason}
    figures = StitchFigures.model_validate(metrics.figures).surface
    assert figures is not None
    assert figures.reason == reason
    assert not metrics.warnings


# Flat fields

TILES = {"tiles": (3, 3), "tile_shape": (16, 96, 96), "overlap": (0.2, 0.2), "speckle_looks": 4}


@pytest.fixture
def section(write_phantom):
    """A phantom's section in which only the given properties are wrong."""

    @cache
    def make(**given):
        name = "_".join(given) or "even"
        folder, _ = write_phantom(name, **{**TILES, **given})
        return folder / "mosaics" / "section_01.ome.zarr"

    return make


def differing(image, even):
    """Root mean square of the difference without speckle, over the mean, at any scale."""
    ratio = image.mean(axis=0, dtype=float) / even.mean(axis=0, dtype=float)
    return ratio.std() / ratio.mean()


def test_shaded_tiles_become_what_even_light_shows(section, stitch, tmp_path):
    even, _, _ = stitch(section(), "even")
    shaded = section(shading=0.3)
    before, _, noted = stitch(shaded, "before")
    saved = tmp_path / "flat.tif"
    after, _, made = stitch(shaded, "after", flat_field="estimate", saved=saved)
    assert differing(before, even) > 0.05
    assert differing(after, even) < 0.015
    assert noted.figures["shading_before"] == pytest.approx(0.3, abs=0.03)
    assert made.figures["shading_before"] == noted.figures["shading_before"]
    assert 0.001 < made.figures["shading_after"] < 0.03
    # Shading does not count as a seam.
    assert noted.figures["seam_x"] == pytest.approx(made.figures["seam_x"], rel=0.1)
    assert made.previews["flat_field"].shape == (96, 96)
    np.testing.assert_array_equal(tifffile.imread(saved), made.previews["flat_field"])
    # The saved flat field is accepted as an input.
    again, _, given = stitch(shaded, "again", flat_field=str(saved))
    np.testing.assert_allclose(again, after, rtol=1e-6)
    assert given.figures["shading_after"] < 0.01
    # Another one leaves what it does not even out.
    tifffile.imwrite(saved, np.ones((96, 96), np.float32))
    _, _, given = stitch(shaded, "uneven", flat_field=str(saved))
    assert given.figures["shading_after"] == pytest.approx(given.figures["shading_before"])
    assert given.figures["seam_x"] == pytest.approx(made.figures["seam_x"], rel=0.1)


def test_a_file_that_fits_leaves_nothing(write_mosaic, stitch, rng, tmp_path):
    light = np.outer(np.linspace(0.8, 1.2, 20), np.linspace(1.2, 0.8, 20)).astype(np.float32)
    np.save(tmp_path / "light.npy", light)
    # The overlaps of one row of tiles do not show the light along y.
    tissue = rng.gamma(2, 300, (2, 20, 50))
    voxels = np.concatenate([tissue[..., k : k + 20] * light for k in (0, 15, 30)], axis=2)
    source = write_mosaic("section_01.ome.zarr", voxels.astype(np.float32), (2, 20, 20))
    _, _, made = stitch(source, overlap=0.25, flat_field=str(tmp_path / "light.npy"))
    assert made.figures["shading_before"] > 0.1
    assert made.figures["shading_after"] < 1e-5
    assert "remarks" not in made.figures
    for axis, other, turned in (("x", "y", voxels), ("y", "x", voxels.swapaxes(1, 2))):
        source = write_mosaic(f"{axis}.ome.zarr", turned.astype(np.float32), (2, 20, 20))
        _, _, made = stitch(source, overlap=0.25, flat_field="estimate")
        (remark,) = made.figures["remarks"]
        assert f"overlap only along {axis}, so shading along {other} remains" in remark


@pytest.mark.parametrize(("given", "same"), [({"shading": 0.3}, "estimate"), ({}, "none")])
def test_auto_evens_out_only_what_is_shaded(section, stitch, given, same):
    expected, _, _ = stitch(section(**given), same, flat_field=same)
    found, _, made = stitch(section(**given), "auto", flat_field="auto")
    np.testing.assert_array_equal(found, expected)
    assert (made.figures["shading_after"] is None) == (same == "none")
    assert made.warnings == []


def test_even_tiles_change_by_less_than_noise(section, stitch):
    before, _, _ = stitch(section(), "before")
    after, _, made = stitch(section(), "after", flat_field="estimate")
    assert made.figures["shading_before"] < 0.03
    assert differing(after, before) < 0.01


def test_a_dark_offset_is_taken_away(section, stitch, tmp_path):
    even, _, _ = stitch(section(), "even")
    shaded = section(shading=0.3, dtype="uint16", change=brightened(100))
    after, _, _ = stitch(shaded, "after", flat_field="estimate", dark_offset=100.0)
    assert after.dtype == np.uint16
    lit = even.mean(axis=0) > 300
    assert differing(after[:, lit], even[:, lit]) < 0.02
    np.save(tmp_path / "even.npy", np.ones((96, 96)))
    given = {"flat_field": str(tmp_path / "even.npy"), "dark_offset": 100.0}
    figures = stitch(shaded, "given", **given)[2].figures
    assert figures["shading_after"] == pytest.approx(figures["shading_before"], rel=0.01)


@pytest.mark.parametrize("settings", [{}, {"refine": True}])
def test_the_number_of_threads_changes_no_bit(section, stitch, settings):
    made = [
        stitch(section(shading=0.3), f"w{n}", workers=n, flat_field="estimate", **settings)
        for n in (1, 3)
    ]
    np.testing.assert_array_equal(*(voxels for voxels, *_ in made))
    assert made[0][1].attributes == made[1][1].attributes


SCATTERED = {"tile_shape": (24, 64, 64), "voxel_size": 10.0, "section_thickness": 240.0}
"""A section whose light is scattered by its tissue."""


def test_attenuation_is_compensated_in_blocks_on_any_number_of_threads(
    section, stitch, monkeypatch
):
    source = section(**SCATTERED, tiles=(1, 2), scattering=6.0, shading=0.2)
    seen, image, _ = stitch(source)
    whole = compensate_light(seen, 10.0)
    # Blocks that are less deep than the section, and several along each axis.
    monkeypatch.setattr(writer, "CHUNK", 16)
    monkeypatch.setattr(writer, "SHARD", 16)
    assert min(seen.shape) > 16
    for name, values, workers in (
        ("compensate", whole.section, 1),
        ("compensate", whole.section, 3),
        ("coefficient", whole.coefficient, 3),
    ):
        made, other, metrics = stitch(source, name, attenuation=name, workers=workers)
        np.testing.assert_array_equal(made, values)
        assert other.grid == image.grid
        sums = [own.sum(axis=(1, 2), dtype=np.float64) for own in (values, seen)]
        assert other.attributes.pop(COMPENSATION) == pytest.approx(sums[0] / sums[1], rel=1e-6)
        assert other.attributes == image.attributes
        assert 0 < metrics.figures["steady_light"] < MOST_STEADY
        assert not metrics.warnings


def test_attenuation_is_that_of_the_tissue(section, stitch):
    even = {**SCATTERED, "speckle_looks": 0}
    source = section(**even, scattering=6.0)
    seen, _, _ = stitch(source)
    made, _, _ = stitch(source, attenuation="compensate")
    coefficient, _, _ = stitch(source, "c", attenuation="coefficient")
    true, _, _ = stitch(section(**even))
    # As deep as sections are thick; below, light is extrapolated.
    seen, made, coefficient, true = (own[:16] for own in (seen, made, coefficient, true))
    inside = true > 300
    left = [np.log(values[inside] / true[inside]).std() for values in (seen, made)]
    assert left[1] < left[0] / 3
    # Grey level 1000 is a reflectivity of 1, and of 6 / mm.
    ratio = coefficient[inside] / (6 * true[inside] / 1000)
    assert np.median(ratio) == pytest.approx(1, abs=0.05)
    assert np.mean(np.abs(ratio - 1) < 0.2) > 0.7


def test_light_that_does_not_decay_is_named(section, stitch):
    _, _, metrics = stitch(section(**SCATTERED), attenuation="compensate")
    assert metrics.figures["steady_light"] > MOST_STEADY
    (warning,) = metrics.warnings
    assert "--stitch_attenuation" in warning


def test_noise_is_taken_away_before_attenuation(write_phantom, stitch):
    """The same tissue under a constant noise leads to the same section."""
    given = {**SCATTERED, "scattering": 6.0}
    folder, _ = write_phantom(**given)
    noisy, _ = write_phantom("noisy", **given, change=lambda voxels, *_: voxels + 50)
    alone, other = (own / "mosaics" / "section_01.ome.zarr" for own in (folder, noisy))
    even, _, _ = stitch(alone, "even", attenuation="compensate")
    after, _, _ = stitch(other, "after", attenuation="compensate", dark_offset=50)
    lit = even > 10
    np.testing.assert_allclose(after[lit], even[lit], rtol=0.01)
    left, _, _ = stitch(other, "left", attenuation="compensate")
    assert np.abs(np.log(left[lit] / even[lit])).mean() > 0.1


@pytest.mark.parametrize(
    ("made", "sentence"),
    [({"dtype": "uint16"}, "holds uint16 voxels"), ({"tile_shape": (5, 48, 48)}, "has 5 planes")],
)
def test_a_section_whose_attenuation_cannot_be_found_is_refused(section, stitch, made, sentence):
    with pytest.raises(OctaneError, match=sentence):
        stitch(section(**made), attenuation="compensate")


def test_positions_are_refined_by_evened_tiles(section, stitch):
    given = {"shading": 0.3, "position_error": 12.0}
    seen = {}
    for chosen in ("none", "estimate"):
        _, _, made = stitch(section(**given), chosen, refine=True, flat_field=chosen)
        seen[chosen] = np.array([*made.figures["positions"].values()])
    _, _, made = stitch(section(position_error=12.0), "even", refine=True)
    even = np.array([*made.figures["positions"].values()])
    errors = {name: np.abs(own - even).mean() for name, own in seen.items()}
    assert errors["estimate"] < errors["none"]


def test_a_blank_section_is_left_as_it_is(write_mosaic, stitch):
    source = write_mosaic("section_01.ome.zarr", np.zeros((2, 40, 40), np.float32), (2, 20, 20))
    image, _, made = stitch(source, overlap=0.25, flat_field="estimate")
    assert not image.any()
    assert made.figures["shading_before"] is None
    assert "too few overlaps show light" in made.warnings[0]


def text(folder):
    (folder / "flat.tif").write_text("no picture")
    return folder / "flat.tif"


def several(folder):
    with (folder / "flat.npy").open("wb") as stream:
        np.savez(stream, flat=np.ones((20, 20)))
    return folder / "flat.npy"


def fifo(folder):
    os.mkfifo(folder / "flat.tif")
    return folder / "flat.tif"


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        (fifo, "flat.tif cannot be read as a flat field; give"),
        (lambda folder: folder / "none.tif", "none.tif cannot be .* or estimate"),
        (text, "flat.tif cannot be read as a flat field; give"),
        (several, "flat.npy cannot be read as a flat field; give"),
    ],
)
def test_a_file_that_is_no_flat_field_is_refused(write_mosaic, stitch, tmp_path, made, sentence):
    source = write_mosaic("section_01.ome.zarr", np.ones((2, 40, 40), np.float32), (2, 20, 20))
    with pytest.raises(OctaneError, match=sentence):
        stitch(source, overlap=0.25, flat_field=str(made(tmp_path)))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("dtype", "settings", "sentence"),
    [
        (
            "float32",
            {"overlap": 0, "flat_field": "estimate"},
            "less than 4 pixels.*give --stitch_flat_field",
        ),
        ("float32", {"overlap": 0.25, "dark_offset": 3}, "give --stitch_flat_field as well"),
        (
            "complex64",
            {"overlap": 0.25, "flat_field": "estimate", "dark_offset": 3},
            "and real voxels; give",
        ),
    ],
)
def test_what_cannot_be_evened_is_refused(write_mosaic, stitch, dtype, settings, sentence):
    source = write_mosaic("section_01.ome.zarr", np.ones((2, 40, 40), dtype), (2, 20, 20))
    with pytest.raises(OctaneError, match=sentence):
        stitch(source, **settings)


def test_the_dark_offset_is_taken_away_before_the_light(write_mosaic, stitch, tmp_path):
    light = np.outer(np.linspace(0.8, 1.2, 20), np.linspace(1.2, 0.8, 20))
    np.save(tmp_path / "light.npy", light)
    voxels = np.tile(500 * light + 100, (2, 1, 2)).astype(np.float32)
    source = write_mosaic("section_01.ome.zarr", voxels, (2, 20, 20))
    given = {"flat_field": str(tmp_path / "light.npy"), "dark_offset": 100.0}
    np.testing.assert_allclose(stitch(source, overlap=0.25, **given)[0], 500, rtol=1e-5)


def test_an_overlap_that_a_table_contradicts_is_refused(write_mosaic, stitch, tmp_path):
    source = write_mosaic("section_01.ome.zarr", np.ones((4, 20, 20), np.float32), (4, 10, 10))
    rows = ("section,row,column,y,x", "1,0,0,0,0", "1,0,1,0,80", "1,1,0,80,0", "1,1,1,80,80")
    (table := tmp_path / "positions.csv").write_text("\n".join(rows), encoding="utf-8")
    stitch(source, overlap=(0.2, 0.2), positions=table)
    with pytest.raises(OctaneError, match=rf"--overlap .*{re.escape(str(table))}"):
        stitch(source, overlap=(0.3, 0.2), positions=table)


def test_seams_without_light_are_never_the_worst(write_mosaic, stitch, rng):
    """Around the camera's level only noise remains, whose ratio to its mean says nothing."""
    side, step = 40, 32
    light = np.zeros((2 * step + side, 2 * step + side))
    light[side + 4 :] = 500
    tiles = [
        [light[y : y + side, x : x + side] + 100 for x in (0, step, 2 * step)]
        for y in (0, step, 2 * step)
    ]
    plane = np.block(tiles)
    mosaic = (plane + rng.normal(0, 5, (6, *plane.shape))).astype(np.float32)
    source = write_mosaic("section_01.ome.zarr", mosaic, (6, side, side))
    *_, metrics = stitch(source, overlap=(0.2, 0.2), flat_field="estimate", dark_offset=100)
    figures = StitchFigures.model_validate(metrics.figures)
    assert figures.worst_x is not None
    assert figures.worst_x.mismatch < 0.1
