"""MOSAIC: tiles whose rows, columns or places run against the images are not written silently."""

from itertools import product

import numpy as np
import pytest
from place_tables import write_fiji
from refusals import refused
from tile_writers import write_ome_tiff, write_tiff

from octane.config.parameters import ExecutionParameters, InputParameters
from octane.core.errors import InputError
from octane.core.filters import gaussian
from octane.layout.mosaic import MosaicGrid
from octane.processes.mosaic.orders import tile_at
from octane.processes.mosaic.parameters import TileParameters
from octane.processes.mosaic.step import write_mosaics
from octane.processes.report.check import Settings
from octane.processes.report.verdict import check_subject
from octane.processes.stitch.parameters import OverlapParameters, StitchParameters
from octane.processes.stitch.record import CORRECT_PLACES, StitchFigures
from octane.processes.stitch.step import stitch_section
from octane.store.image import open_image

SIDE, STEP, PLANES = 64, 51, 2
SPACING = (4.0, 2.0, 3.0)
SIGNS = [*product((1, -1), repeat=2)]
FEW_SIGNS = [*SIGNS[:3], pytest.param(SIGNS[3], marks=pytest.mark.soak)]
"""All, of which both axes at once are left to soak."""
SIZE = {"voxel_size": "4 2 3"}


def tiles_of_scene(seed=1, grid=(3, 3), looks=0, off=0, dtype=np.uint16):
    """Overlapping tiles of one texture, and their places in voxels.

    ``looks`` are those of the speckle, 0 for none; a tile lies up to ``off`` voxels off the grid.
    """
    rng = np.random.default_rng(seed)
    shape = [n * STEP + SIDE + 2 * off for n in grid]
    fine, wide = (gaussian(rng.standard_normal(shape), width) for width in (2.0, 7.0))
    scene = 1200 + 250 * fine / fine.std() + 250 * wide / wide.std()
    tiles, places = {}, {}
    for row, column in np.ndindex(*grid):
        y, x = np.array((row, column)) * STEP + off + rng.integers(-off, off + 1, 2)
        part = np.repeat(scene[y : y + SIDE, x : x + SIDE][None], PLANES, 0)
        if looks:
            part = part * rng.gamma(looks, 1 / looks, part.shape)
        if np.dtype(dtype).itemsize == 1:
            part = part / 16
        highest = 1e4 if np.dtype(dtype).kind == "f" else np.iinfo(dtype).max
        tiles[row, column] = part.clip(0, highest).astype(dtype)
        places[row, column] = (int(y), int(x))
    return tiles, places


def mirrored(places, sign_y, sign_x):
    """Places in micrometres of a stage whose axes may run against the images."""
    return {
        tile: (sign_y * y * SPACING[1], sign_x * x * SPACING[2]) for tile, (y, x) in places.items()
    }


def write_placed(folder, tiles, places):
    """Write tiles whose metadata state their places, under numbers that mean nothing."""
    folder.mkdir()
    for number, (tile, voxels) in enumerate(tiles.items()):
        write_ome_tiff(folder / f"Pos_{number:02}", voxels, SPACING, places[tile])
    return folder


def write_named(folder, tiles, name):
    folder.mkdir()
    for (row, column), voxels in tiles.items():
        write_tiff(folder / name(row, column), voxels, SPACING)
    return folder


def run(folder, destination, reading=None, overlap=None, check_overlap="error", **given):
    """Run MOSAIC; without a destination, only print."""
    return write_mosaics(
        folder,
        destination,
        TileParameters.model_validate(given),
        InputParameters.model_validate(reading or {}),
        OverlapParameters(overlap=overlap, check_overlap=check_overlap),
        ExecutionParameters(backend="cpu", workers=2),
    )


def flags(change):
    """Words of the command for parameters of tiles."""
    return " ".join(f"--tile_{name} {value}" for name, value in change.items())


def require_mended(folder, made, change, words=None, **given):
    """A run stops with the flags that mend it, and leaves nothing; with them it says nothing."""
    words = words or flags(change)
    with refused("1", words, error=InputError) as seen:
        run(folder, made, **given)
    assert "--stitch_check_overlap warning" in str(seen.value)
    assert not [*made.iterdir()]
    metrics = run(folder, made, **given | change)
    assert not metrics.warnings
    return open_image(made / "section_01.ome.zarr")


@pytest.mark.parametrize(
    ("seed", "grid"),
    [
        (1, (3, 3)),
        (1, (2, 2)),
        (1, (1, 4)),
        (1, (4, 1)),
        *(
            pytest.param(seed, grid, marks=pytest.mark.soak)
            for seed in (2, 3, 4)
            for grid in ((3, 3), (2, 2), (1, 4), (3, 5))
        ),
    ],
)
@pytest.mark.parametrize("signs", SIGNS, ids=str)
def test_places_that_run_against_the_images_stop_the_run(tmp_path, seed, grid, signs):
    tiles, places = tiles_of_scene(seed, grid)
    folder = write_placed(tmp_path / "tiles", tiles, mirrored(places, *signs))
    # Along an axis with one tile, nothing runs in any direction.
    axes = zip("yx", signs, grid, strict=True)
    wrong = "".join(axis for axis, sign, count in axes if sign < 0 and count > 1)
    made = tmp_path / "made"
    if not wrong:
        assert not run(folder, made).warnings
        return
    image = require_mended(folder, made, {"flip": wrong})
    grid_made = MosaicGrid.of(image)
    for tile, voxels in tiles.items():
        np.testing.assert_array_equal(image.read(grid_made.region(tile)), voxels)


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_voxels_of_every_type_are_compared(tmp_path, dtype):
    tiles, places = tiles_of_scene(dtype=dtype)
    folder = write_placed(tmp_path / "tiles", tiles, mirrored(places, 1, -1))
    require_mended(folder, tmp_path / "made", {"flip": "x"})


@pytest.mark.parametrize("off", [pytest.param(6, marks=pytest.mark.soak), 10])
@pytest.mark.parametrize("signs", FEW_SIGNS, ids=str)
def test_places_off_a_regular_grid_are_used(tmp_path, off, signs, capsys):
    tiles, places = tiles_of_scene(off=off)
    folder = write_placed(tmp_path / "tiles", tiles, mirrored(places, *signs))
    wrong = "".join(axis for axis, sign in zip("yx", signs, strict=True) if sign < 0)
    run(folder, None)
    printed = capsys.readouterr().out
    assert ("Doubtful" in printed, f"--tile_flip {wrong}," in printed) == (bool(wrong),) * 2
    if wrong:
        require_mended(folder, tmp_path / "made", {"flip": wrong})
    else:
        assert not run(folder, tmp_path / "made").warnings


@pytest.mark.parametrize("grid", [pytest.param((3, 3), marks=pytest.mark.soak), (2, 3)])
@pytest.mark.parametrize(
    ("scale", "said"),
    [
        ((1 / 2, 1 / 3), "as if places were pixels"),
        ((2, 2), "as if voxels were 2 times as large"),
        ((1.5, 1.5), "as if voxels were 1.5 times as large"),
        ((0.5, 0.5), "as if voxels were 0.5 times as large"),
        ((1.05, 1), ""),
    ],
)
def test_places_in_another_unit_are_named_with_the_ratio(tmp_path, capsys, grid, scale, said):
    tiles, places = tiles_of_scene(grid=grid)
    own = {tile: (y * scale[0], x * scale[1]) for tile, (y, x) in mirrored(places, 1, 1).items()}
    folder = write_placed(tmp_path / "tiles", tiles, own)
    run(folder, None)
    printed = capsys.readouterr().out
    if not said:
        assert "as if" not in printed
        run(folder, tmp_path / "made")
        return
    assert "Doubtful: neighbouring tiles fit at an overlap of 0.20 x 0.20, " in printed
    assert said in printed
    with refused("1", said, "--stitch_check_overlap", error=InputError):
        run(folder, tmp_path / "made")
    (warning,) = run(folder, tmp_path / "made", check_overlap="warning").warnings
    assert said in warning
    if "voxels" not in said:
        return
    # So does STITCH.
    with refused(said, CORRECT_PLACES, error=InputError):
        stitch_section(
            *(tmp_path / "made" / "section_01.ome.zarr", tmp_path / "section.ome.zarr"),
            *(StitchParameters(), InputParameters(), ExecutionParameters(backend="cpu", workers=2)),
            tmp_path / "made" / "positions.csv",
        )


@pytest.mark.parametrize(
    ("name", "change"),
    [
        (lambda row, column: f"r{row}_c{9 - column}", {"flip": "x"}),
        (lambda row, column: f"r{9 - row}_c{column}", {"flip": "y"}),
        (lambda row, column: f"r{column}_c{row}", {"flip": "transpose"}),
        (lambda row, column: f"r{column}_c{9 - row}", {"flip": "transpose-y"}),
    ],
    ids=["x", "y", "transpose", "transpose y"],
)
def test_names_that_run_against_the_images_stop_the_run(tmp_path, name, change):
    folder = write_named(tmp_path / "tiles", tiles_of_scene(grid=(3, 4))[0], name)
    words = flags(change).replace(" True", "")
    given = {"reading": SIZE, "overlap": (0.2, 0.2)}
    require_mended(folder, tmp_path / "made", change, words, **given)


@pytest.mark.parametrize(
    ("order", "given"),
    [
        ("columns-raster-bottom-left", "columns-raster-top-right"),
        ("rows-snake-top-left", "rows-raster-top-left"),
        *(
            pytest.param(*orders, marks=pytest.mark.soak)
            for orders in (
                ("rows-snake-top-left", "rows-snake-top-right"),
                ("columns-raster-top-left", "columns-snake-bottom-left"),
            )
        ),
    ],
)
def test_numbers_in_another_order_stop_the_run(tmp_path, order, given, capsys):
    tiles = tiles_of_scene(grid=(3, 4))[0]
    numbers = {tile_at(index, order, 3, 4): index for index in range(12)}
    folder = write_named(tmp_path / "tiles", tiles, lambda *tile: f"t{numbers[tile]:02}")
    asked = {"rows": 3, "columns": 4, "order": given}
    placed = {"reading": SIZE, "overlap": (0.2, 0.2)}
    run(folder, None, **placed, **asked)
    printed = capsys.readouterr().out
    assert f"100% of neighbours fit with --tile_order {order}, but" in printed
    assert "100% as given" not in printed
    require_mended(folder, tmp_path / "made", {"order": order}, **placed, **asked)


def test_rows_that_are_columns_are_named_with_their_numbers(tmp_path):
    tiles, order = tiles_of_scene(grid=(3, 4))[0], "rows-raster-top-left"
    numbers = {tile_at(index, order, 3, 4): index for index in range(12)}
    folder = write_named(tmp_path / "tiles", tiles, lambda *tile: f"t{numbers[tile]:02}")
    asked = {"rows": 4, "columns": 3, "order": "columns-raster-top-left"}
    placed = {"reading": SIZE, "overlap": (0.2, 0.2)}
    change = {"order": order, "rows": 3, "columns": 4}
    require_mended(folder, tmp_path / "made", change, **placed, **asked)


def test_places_come_before_an_order(tmp_path):
    tiles, places = tiles_of_scene()
    folder = write_placed(tmp_path / "tiles", tiles, mirrored(places, 1, -1))
    change = {"flip": "x", "order": None}
    asked = {"rows": 3, "columns": 3, "order": "rows-raster-top-left"}
    words = "--tile_flip x instead of --tile_order"
    require_mended(folder, tmp_path / "made", change, words, **asked)


def test_a_table_of_places_that_runs_against_the_images_stops_the_run(tmp_path):
    tiles, places = tiles_of_scene(off=3)
    folder = write_named(tmp_path / "tiles", tiles, lambda row, column: f"t{row}{column}")
    rows = [(f"t{r}{c}.tif", 0.0, -y, x) for (r, c), (y, x) in places.items()]
    write_fiji(folder / "TileConfiguration.txt", rows)
    require_mended(folder, tmp_path / "made", {"flip": "y"}, reading=SIZE)


def test_a_run_that_was_told_to_goes_on_with_a_warning(tmp_path):
    tiles, places = tiles_of_scene()
    folder = write_placed(tmp_path / "tiles", tiles, mirrored(places, 1, -1))
    metrics = run(folder, tmp_path / "made", check_overlap="warning")
    (text,) = metrics.warnings
    assert "--tile_flip x" in text
    assert metrics.figures["remarks"] == [text]
    assert (tmp_path / "made" / "positions.csv").exists()


@pytest.mark.parametrize("signs", FEW_SIGNS, ids=str)
def test_stitch_finds_what_mosaic_was_told_to_keep(tmp_path, signs):
    tiles, places = tiles_of_scene(grid=(3, 3))
    folder = write_placed(tmp_path / "tiles", tiles, mirrored(places, *signs))
    made = tmp_path / "made"
    run(folder, made, check_overlap="warning")

    def stitched(name, check_overlap, positions=None, **given):
        return stitch_section(
            made / "section_01.ome.zarr",
            tmp_path / f"{name}.ome.zarr",
            StitchParameters(check_overlap=check_overlap, **given),
            InputParameters(),
            ExecutionParameters(backend="cpu", workers=2),
            positions,
        )

    table = made / "positions.csv"
    wrong = [axis for axis, sign in zip("yx", signs, strict=True) if sign < 0]
    if not wrong:
        assert not stitched("good", "error", table).warnings
        return
    with pytest.raises(InputError) as seen:
        stitched("no", "error", table)
    assert f"only if {' and '.join(wrong)} run the other way;" in str(seen.value)
    assert CORRECT_PLACES in str(seen.value)
    metrics = stitched("kept", "warning", table)
    assert CORRECT_PLACES in metrics.warnings[0]
    figures = StitchFigures.model_validate(metrics.figures)
    settings = Settings(metrics.settings, {}, {})
    found = check_subject([], {"section_01": figures}, None, None, settings=settings)
    judged = {check.name: check for check in found}
    for axis in "yx":
        check = judged[f"Overlap along {axis}"]
        assert (check.state == "warning") == (axis in wrong)
        assert (CORRECT_PLACES in check.sentence) == (axis in wrong)
    with refused("--positions", error=InputError):
        stitched("no", "error", overlap=(0.203, 0.203))


def noise(rng):
    return rng.integers(0, 60000, (PLANES, SIDE, SIDE), np.uint16)


QUIET = {
    "noise": lambda tiles, rng: {tile: noise(rng) for tile in tiles},
    "dark": lambda tiles, rng: {tile: voxels * 0 for tile, voxels in tiles.items()},
    "saturated": lambda tiles, rng: {t: np.full_like(v, 65535) for t, v in tiles.items()},
    "one dark": lambda tiles, rng: tiles | {(1, 1): tiles[1, 1] * 0},
    "one of noise": lambda tiles, rng: tiles | {(1, 1): noise(rng)},
    "two": lambda tiles, rng: {tile: tiles[tile] for tile in ((0, 0), (0, 1))},
    "alike": lambda tiles, rng: dict.fromkeys(tiles, tiles[0, 0]),
}


QUICK = {
    *product(("one dark", "one of noise", "two", "alike"), (0,)),
    *product(("noise", "dark", "saturated"), (1,)),
}
"""Kinds and looks that are not left to soak."""


@pytest.mark.parametrize(
    ("kind", "looks"),
    [
        pytest.param(*case, marks=[pytest.mark.soak] * (case not in QUICK))
        for case in product(QUIET, (0, 1, 4))
    ],
)
def test_tiles_that_show_little_are_left_alone(tmp_path, rng, kind, looks):
    tiles = QUIET[kind](tiles_of_scene(looks=looks)[0], rng)
    folder = write_named(tmp_path / "tiles", tiles, lambda row, column: f"r{row}_c{column}")
    assert not run(folder, tmp_path / "made", SIZE, (0.2, 0.2)).warnings


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("looks", [1, 4, 16])
@pytest.mark.parametrize("grid", [(3, 3), (2, 2), (1, 4), (1, 3), (5, 2)], ids=str)
def test_tiles_under_speckle_are_left_alone(tmp_path, seed, looks, grid):
    tiles, places = tiles_of_scene(seed, grid, looks)
    folder = write_placed(tmp_path / "tiles", tiles, mirrored(places, 1, 1))
    assert not run(folder, tmp_path / "made").warnings
