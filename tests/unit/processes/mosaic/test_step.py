"""MOSAIC: tiles in files of all kinds give the mosaic grid that they were cut from, to the bit."""

import itertools
import re
import shutil
from typing import get_args

import numpy as np
import pytest
import tifffile
from flipped_bits import refusals
from PIL import Image
from place_tables import write_bdv, write_csv, write_fiji, write_terastitcher
from refusals import refused
from tifffile import imread
from tile_writers import (
    tiles_of,
    write_group,
    write_imagej,
    write_itk,
    write_ome_tiff,
    write_planes,
    write_png,
    write_raw,
    write_set,
    write_store,
    write_tiff,
)

from octane.config.parameters import ExecutionParameters, InputParameters
from octane.core.errors import InputError
from octane.layout.mosaic import MosaicGrid, read_positions
from octane.pictures import tile_map
from octane.processes.mosaic.orders import tile_at
from octane.processes.mosaic.parameters import TileOrder, TileParameters
from octane.processes.mosaic.step import write_mosaics
from octane.processes.mosaic.tile_files import open_tile
from octane.processes.phantom.parameters import PhantomParameters
from octane.processes.phantom.step import make_phantom
from octane.processes.stitch.parameters import OverlapParameters
from octane.store.image import open_image

ROWS, COLUMNS = 3, 4
SPACING = (3.5, 4.0, 4.0)
SIZE = {"voxel_size": "3.5 4 4"}
ORDERS = get_args(TileOrder)
FEW_ORDERS = (
    *("rows-raster-top-right", "rows-snake-bottom-right"),
    *("columns-raster-top-left", "columns-snake-bottom-left"),
)
"""Those that are not left to soak."""
STORES = ["section_01.ome.zarr", "section_02.ome.zarr"]
NAMED = {"pattern": "s{section}_r{row}_c{column}*"}


@pytest.fixture(scope="session")
def phantom(tmp_path_factory, execution):
    """Two sections of 3 x 4 tiles, whose last row and column are smaller, and their positions."""
    folder = tmp_path_factory.mktemp("mosaic") / "phantom"
    given = PhantomParameters(
        sections=2,
        tiles=(ROWS, COLUMNS),
        tile_shape=(3, 32, 28),
        voxel_size=SPACING,
        dtype="uint16",
        position_error=6,
        speckle_looks=0,
    )
    make_phantom(folder, given, execution)
    return folder


@pytest.fixture(scope="session")
def cut(phantom):
    """Tiles of each section of the phantom, by number."""
    stores = sorted((phantom / "mosaics").iterdir())
    return {number: tiles_of(open_image(store)) for number, store in enumerate(stores, 1)}


def run(
    folder,
    destination,
    reading=None,
    overlap=None,
    dry_run=False,
    overwrite=False,
    preview=None,
    **given,
):
    return write_mosaics(
        folder,
        None if dry_run else destination,
        TileParameters.model_validate(given),
        InputParameters.model_validate(reading or {}),
        OverlapParameters.model_validate({"overlap": overlap}),
        ExecutionParameters(backend="cpu", workers=2, overwrite=overwrite),
        preview=preview,
    )


def write_all(cut, folder, write, name="s{section}_r{row}_c{column}"):
    """Write every tile with a writer, named by section, row and column from 1."""
    folder.mkdir(exist_ok=True)
    return {
        (section, tile): write(
            folder / name.format(section=section, row=tile[0] + 1, column=tile[1] + 1),
            voxels,
            SPACING,
        )
        for section, tiles in cut.items()
        for tile, voxels in tiles.items()
    }


def require_same(phantom, made, sections=(1, 2)):
    """Compare mosaics with the phantom's: voxels, tiles, grid, number."""
    for number in sections:
        name = f"section_{number:02d}.ome.zarr"
        ours, theirs = open_image(made / name), open_image(phantom / "mosaics" / name)
        whole = tuple(slice(0, n) for n in theirs.grid.shape)
        np.testing.assert_array_equal(ours.read(whole), theirs.read(whole))
        assert (ours.dtype, ours.chunks) == (theirs.dtype, theirs.chunks)
        np.testing.assert_allclose(ours.grid.spacing, theirs.grid.spacing, rtol=1e-6)
        assert ours.attributes["section"] == {"number": number}


def positions_of(folder, number, store):
    return read_positions(folder / "positions.csv", number, MosaicGrid.of(open_image(store)))


def require_near(ours, true):
    """Compare positions by tile; files may round them to a thousandth of a voxel."""
    assert ours.keys() == true.keys()
    for tile, place in true.items():
        np.testing.assert_allclose(ours[tile], place, atol=0.005, err_msg=str(tile))


def require_positions(phantom, made):
    """Compare the positions of both sections with the true ones."""
    for number, store in enumerate(STORES, 1):
        ours = positions_of(made, number, made / store)
        require_near(ours, true_positions(phantom, number))


def true_positions(phantom, number):
    return positions_of(phantom, number, phantom / "mosaics" / STORES[number - 1])


FORMATS = {
    "ome-tiff": (write_ome_tiff, {}, {}),
    "imagej": (write_imagej, {}, {}),
    "tiff": (write_tiff, {}, SIZE),
    "compressed tiff": (
        lambda *words: write_tiff(*words, compression="zlib", byteorder=">"), {}, SIZE
    ),
    "lzw tiff": (lambda *words: write_tiff(*words, compression="lzw", tile=(16, 16)), {}, SIZE),
    "planes": (write_planes, {"pattern": "s{section}_r{row}_c{column}_z{plane}.tif"}, SIZE),
    "png": (write_png, {"pattern": "s{section}_r{row}_c{column}_z{plane}.png"}, SIZE),
    "nifti": (write_itk(".nii"), {}, {}),
    "nrrd": (write_itk(".nrrd"), {}, {}),
    "ome-zarr": (write_store, {}, {}),
}  # fmt: skip


@pytest.mark.parametrize("kind", FORMATS)
def test_files_of_every_kind_give_the_same_mosaics(kind, phantom, cut, tmp_path):
    write, given, reading = FORMATS[kind]
    write_all(cut, tmp_path / "tiles", write)
    run(tmp_path / "tiles", tmp_path / "made", reading, **NAMED | given)
    require_same(phantom, tmp_path / "made")
    assert sorted(path.name for path in (tmp_path / "made").iterdir()) == STORES


def test_voxels_without_a_header_are_read_as_they_are_said_to_be(cut, tmp_path):
    tiles = {tile: cut[1][tile] for tile in ((0, 0), (0, 1))}
    write_all({1: tiles}, tmp_path / "tiles", write_raw)
    given = {"raw_shape": "3 32 28", "raw_type": ">u2"}
    run(tmp_path / "tiles", tmp_path / "made", SIZE, **NAMED, **given)
    made = open_image(tmp_path / "made" / STORES[0])
    whole = made.read((slice(0, 3), slice(0, 32), slice(0, 56)))
    np.testing.assert_array_equal(whole, np.concatenate([*tiles.values()], axis=2))
    with refused("r1_c1.raw", "1", "5376", "3", "32", "30", error=InputError):
        run(tmp_path / "tiles", tmp_path / "no", SIZE, **NAMED, **given | {"raw_shape": "3 32 30"})
    # Their product is 0 in 64 bits.
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "t_y0_x0.raw").touch()
    given |= {"raw_shape": f"{2**32} {2**32} 1", "pattern": "t_y{row}_x{column}.raw"}
    with refused("t_y0_x0.raw", 2**65, error=InputError):
        run(tmp_path / "empty", tmp_path / "no", SIZE, **given)
    with refused("--tile_raw_shape", "--tile_raw_type", error=InputError):
        run(tmp_path / "tiles", tmp_path / "no", SIZE, **NAMED, raw_type="uint16")
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    "order",
    # test_orders.py relates all of them.
    [pytest.param(o, marks=[pytest.mark.soak] * (o not in FEW_ORDERS)) for o in ORDERS],
)
def test_tiles_numbered_in_every_order_give_the_same_mosaics(order, phantom, cut, tmp_path):
    for section, tiles in cut.items():
        for index in range(ROWS * COLUMNS):
            voxels = tiles[tile_at(index, order, ROWS, COLUMNS)]
            folder = tmp_path / "tiles" / f"section_{section}"
            folder.mkdir(parents=True, exist_ok=True)
            write_tiff(folder / f"tile_{index + 1}", voxels, SPACING)
    run(tmp_path / "tiles", tmp_path / "made", SIZE, rows=ROWS, columns=COLUMNS, order=order)
    require_same(phantom, tmp_path / "made")


def test_positions_in_ome_xml_are_kept(phantom, cut, tmp_path):
    for section, tiles in cut.items():
        true = true_positions(phantom, section)
        for number, tile in enumerate(sorted(tiles, key=lambda t: (t[1], -t[0]))):
            name = tmp_path / "tiles" / f"section {section}" / f"Tile{number}"
            name.parent.mkdir(parents=True, exist_ok=True)
            write_ome_tiff(name, tiles[tile], SPACING, true[tile])
    run(tmp_path / "tiles", tmp_path / "made")
    require_same(phantom, tmp_path / "made")
    require_positions(phantom, tmp_path / "made")


def test_depths_of_other_sections_stay_in_the_table(phantom, cut, tmp_path):
    for section, tiles in cut.items():
        true = true_positions(phantom, section)
        folder = tmp_path / f"tiles {section}" / f"section {section}"
        folder.mkdir(parents=True)
        for number, tile in enumerate(sorted(tiles)):
            write_ome_tiff(folder / f"Tile{number}", tiles[tile], SPACING, true[tile])
    run(tmp_path / "tiles 1", tmp_path / "made")
    table = tmp_path / "made" / "positions.csv"
    header, *rows = table.read_text().splitlines()
    deep = [f"{header},z", *(f"{row},{3 * k}" for k, row in enumerate(rows))]
    table.write_text("\n".join(deep))
    run(tmp_path / "tiles 2", tmp_path / "made", overwrite=True)
    lines = table.read_text().splitlines()
    assert lines[: len(deep)] == deep
    assert len(lines) == len(deep) + len(rows)
    require_positions(phantom, tmp_path / "made")


def test_translations_of_stores_are_places(phantom, cut, tmp_path):
    (tmp_path / "tiles").mkdir()
    for section, tiles in cut.items():
        true = true_positions(phantom, section)
        for number, tile in enumerate(reversed(sorted(tiles))):
            place = true[tile]
            write_store(tmp_path / "tiles" / f"sec{section}_{number}", tiles[tile], SPACING, place)
    run(tmp_path / "tiles", tmp_path / "made")
    require_same(phantom, tmp_path / "made")
    require_positions(phantom, tmp_path / "made")


def test_images_of_a_bioformats2raw_group_are_tiles(phantom, cut, tmp_path):
    true = true_positions(phantom, 1)
    write_group(tmp_path / "tiles.ome.zarr", cut[1], SPACING, true)
    run(tmp_path / "tiles.ome.zarr", tmp_path / "made")
    require_same(phantom, tmp_path / "made", [1])
    ours = positions_of(tmp_path / "made", 1, phantom / "mosaics" / STORES[0])
    require_near(ours, true)


def test_a_set_of_ome_tiffs_is_read_file_by_file(phantom, cut, tmp_path):
    true = true_positions(phantom, 1)
    folder = write_set(tmp_path / "tiles", cut[1], SPACING, true)
    run(folder, tmp_path / "made", pattern="set_s{tile}.ome.tif")
    require_same(phantom, tmp_path / "made", [1])
    ours = positions_of(tmp_path / "made", 1, phantom / "mosaics" / STORES[0])
    require_near(ours, true)
    # A plane of another file, and a page for two planes.
    path = folder / "set_s0.ome.tif"
    xml = str(tifffile.tiffcomment(path))
    for before, after in (("urn:uuid:0</UUID>", "urn:uuid:7</UUID>"), ('IFD="2"', 'IFD="1"')):
        tifffile.tiffcomment(path, xml.replace(before, after, 1).encode())
        with refused("set_s0.ome.tif", "1", error=InputError):
            run(folder, tmp_path / "other", pattern="set_s{tile}.ome.tif")


STACKS = "brain_1_MMStack_1-Pos{column:03d}_{row:03d}"


@pytest.mark.parametrize(
    "described", ["brain_1_MMStack_1-Pos000_000.ome.tif", "brain.companion.ome"]
)
@pytest.mark.parametrize("unique", [True, False])
def test_a_set_that_one_file_describes_is_read_whole(phantom, cut, tmp_path, described, unique):
    true = true_positions(phantom, 1)
    given = {"pattern": STACKS, "described": described}
    folder = write_set(tmp_path / "tiles", cut[1], SPACING, true, **given)
    if not unique:
        # Micro-Manager tells the files apart by their names.
        for path in folder.glob("*.tif"):
            xml = re.sub('<OME (.*?) UUID="[^"]*"', r"<OME \1", str(tifffile.tiffcomment(path)))
            tifffile.tiffcomment(path, xml.encode())
    run(folder, tmp_path / "made")
    require_same(phantom, tmp_path / "made", [1])
    ours = positions_of(tmp_path / "made", 1, phantom / "mosaics" / STORES[0])
    require_near(ours, true)
    lost = folder / "brain_1_MMStack_1-Pos002_001.ome.tif"
    lost.rename(tmp_path / lost.name)
    with refused(described, lost.name, "--tile_table", error=InputError):
        run(folder, tmp_path / "other")
    (tmp_path / lost.name).rename(lost)
    (folder / described).unlink()
    with refused(described, error=InputError):
        run(folder, tmp_path / "other")


def in_voxels(phantom, files):
    """Places of files in voxels, from the true positions in micrometres."""
    true = true_positions(phantom, 1)
    return [(name, 0.0, true[t][0] / SPACING[1], true[t][1] / SPACING[2]) for t, name in files]


@pytest.mark.parametrize("kind", ["Fiji", "BigStitcher", "TeraStitcher", "CSV"])
def test_places_in_the_tables_of_other_programs_are_kept(kind, phantom, cut, tmp_path):
    folder = tmp_path / "tiles"
    if kind == "TeraStitcher":
        # A folder of planes for each tile.
        names = {t: f"{t[0]:03d}/{t[0]:03d}_{t[1]:03d}" for t in cut[1]}
        for tile, voxels in cut[1].items():
            (folder / names[tile]).mkdir(parents=True)
            for number, plane in enumerate(voxels):
                write_tiff(folder / names[tile] / f"{number:06d}", plane, SPACING)
        given: dict[str, object] = {"pattern": "*/*/{plane}.tif"}
    else:
        files = write_all({1: cut[1]}, folder, write_tiff, "image_{row}{column}")
        names = {tile: path.name for (_, tile), path in files.items()}
        given = {}
    places = in_voxels(phantom, [(t, names[t]) for t in sorted(names)])
    if kind == "Fiji":
        write_fiji(folder / "TileConfiguration.txt", places)
    elif kind == "BigStitcher":
        write_bdv(folder / "dataset.xml", places)
    elif kind == "TeraStitcher":
        write_terastitcher(folder / "xml_import.xml", places, columns=COLUMNS)
    else:
        rows = [
            {"name": name, "stage_y_mm": y * SPACING[1] / 1000, "stage_x_mm": x * SPACING[2] / 1000}
            for name, _, y, x in places
        ]
        given["table"] = write_csv(tmp_path / "stage.csv", rows)
    run(folder, tmp_path / "made", SIZE, **given)
    require_same(phantom, tmp_path / "made", [1])
    ours = positions_of(tmp_path / "made", 1, phantom / "mosaics" / STORES[0])
    require_near(ours, true_positions(phantom, 1))


def test_columns_of_a_table_may_have_spaces_in_their_names(phantom, cut, tmp_path):
    files = write_all({1: cut[1]}, tmp_path / "tiles", write_tiff)
    places = {path.name: true_positions(phantom, 1)[tile] for (_, tile), path in files.items()}
    rows = [f"{name};{x / 1000:.7f};{y / 1000:.7f}" for name, (y, x) in places.items()]
    table = tmp_path / "stage.csv"
    table.write_text("\n".join(["Name;Stage X [mm];Stage Y [mm]", *rows, ""]))
    run(tmp_path / "tiles", tmp_path / "made", SIZE, table=table, **NAMED)
    made = tmp_path / "made"
    require_near(positions_of(made, 1, made / STORES[0]), true_positions(phantom, 1))


def test_flip_and_transpose_turn_rows_columns_and_places(phantom, cut, tmp_path):
    true = true_positions(phantom, 1)
    full = {t: v for t, v in cut[1].items() if t[0] < ROWS - 1 and t[1] < COLUMNS - 1}
    (tmp_path / "tiles").mkdir()
    for (row, column), voxels in full.items():
        y, x = true[row, column]
        name = tmp_path / "tiles" / f"r{column}_c{1 - row}"
        write_ome_tiff(name, voxels, SPACING, (x, -y))
    run(tmp_path / "tiles", tmp_path / "made", flip="transpose-y")
    made = open_image(tmp_path / "made" / STORES[0])
    assert tiles_of(made).keys() == full.keys()
    for tile, voxels in tiles_of(made).items():
        np.testing.assert_array_equal(voxels, full[tile])
    ours = positions_of(tmp_path / "made", 1, tmp_path / "made" / STORES[0])
    for tile in full:
        moved, wanted = (np.subtract(p[tile], p[0, 0]) for p in (ours, true))
        np.testing.assert_allclose(moved, wanted, atol=1e-6)


def test_channels_in_names_or_files_become_an_axis(cut, tmp_path):
    tiles = {t: v for t, v in cut[1].items() if t in ((0, 0), (0, 1))}
    for tile, voxels in tiles.items():
        base = f"c{tile[1]}"
        (tmp_path / "names").mkdir(exist_ok=True)
        (tmp_path / "files").mkdir(exist_ok=True)
        write_tiff(tmp_path / "names" / f"{base}_red", voxels, SPACING)
        write_tiff(tmp_path / "names" / f"{base}_blue", voxels // 2, SPACING)
        both = np.stack([voxels // 2, voxels])
        write_ome_tiff(tmp_path / "files" / base, both, SPACING, channels=["blue", "red"])
    run(tmp_path / "names", tmp_path / "a", SIZE, pattern="c{column}_{channel}.tif")
    run(tmp_path / "files", tmp_path / "b", pattern="c{column}.ome.tif")
    for made, (name, part) in itertools.product("ab", [("blue", 2), ("red", 1)]):
        image = open_image(tmp_path / made / STORES[0], InputParameters(channel=name))
        assert (len(image.array.shape), image.attributes["section"]) == (4, {"number": 1})
        found = tiles_of(image)
        for tile, voxels in tiles.items():
            np.testing.assert_array_equal(found[tile], voxels // part)
    run(tmp_path / "files", tmp_path / "one", {"channel": "red"}, pattern="c{column}.ome.tif")
    assert len(open_image(tmp_path / "one" / STORES[0]).array.shape) == 3


def test_a_deleted_tile_is_declared_as_not_imaged(phantom, cut, tmp_path):
    files = write_all(cut, tmp_path / "tiles", write_tiff)
    files[2, (1, 2)].unlink()
    made = run(tmp_path / "tiles", tmp_path / "made", SIZE, **NAMED)
    assert made.warnings == ["Section 2 has no file for row 1, column 2: declared as not imaged."]
    require_same(phantom, tmp_path / "made", [1])
    image = open_image(tmp_path / "made" / STORES[1])
    assert image.missing_chunks() == []
    found = tiles_of(image)
    assert not found.pop((1, 2)).any()
    for tile, voxels in found.items():
        np.testing.assert_array_equal(voxels, cut[2][tile])
    assert MosaicGrid.of(image).not_imaged == {(1, 2)}


def truncate(path):
    path.write_bytes(path.read_bytes()[:-500])


def link_to_nothing(path):
    path.unlink()
    path.symlink_to("lost.tif")


def crop(path):
    voxels = imread(path)[:, 1:]
    path.unlink()
    write_tiff(path.with_suffix(""), voxels, SPACING)


def retype(path):
    voxels = imread(path).astype(np.float32)
    path.unlink()
    write_tiff(path.with_suffix(""), voxels, SPACING)


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (truncate, "s2_r2_c3.tif cannot be read as an image "),
        (link_to_nothing, "s2_r2_c3.tif .*not"),
        (crop, r"s2_r2_c3.tif has 31 x 28 voxels \(y x\), but a tile at row 1, column 2 has 32 x"),
        (retype, "s2_r2_c3.tif has voxels of type float32, but most tiles.* have voxels of type u"),
        (lambda f: shutil.copy(f, f.with_name("s2_r2_c3_again.tif")), "both at row 1, column 2"),
        (lambda f: shutil.copy(f, f.with_name("s2_r900_c3.tif")), "span 900 rows and 4 columns"),
    ],
)
def test_a_file_unlike_the_others_is_refused_before_anything_is_written(
    spoil, sentence, cut, tmp_path
):
    files = write_all(cut, tmp_path / "tiles", write_tiff)
    spoil(files[2, (1, 2)])
    with pytest.raises(InputError, match=sentence) as raised:
        run(tmp_path / "tiles", tmp_path / "made", SIZE, **NAMED)
    assert str(raised.value).count("\n") == 0
    assert not (tmp_path / "made").exists()


def test_a_pattern_leaves_files_out_and_says_which(cut, phantom, tmp_path, caplog):
    folder = tmp_path / "tiles"
    files = write_all(cut, folder, write_tiff)
    for name in ("overview.tif", "again.tif"):
        shutil.copy(files[2, (1, 2)], folder / name)
    metrics = run(folder, tmp_path / "made", SIZE, **NAMED)
    (said,) = metrics.warnings
    assert "2 files left out" in said
    assert "again.tif, overview.tif" in said
    assert metrics.figures["files"] == len(files)
    with refused("--tile_pattern", error=InputError):
        run(folder, tmp_path / "none", SIZE, pattern="t{tile}.tif")


@pytest.mark.parametrize("ending", ["", ".tif"])
def test_a_table_that_names_every_file_needs_no_pattern(cut, tmp_path, ending):
    folder = tmp_path / "tiles"
    folder.mkdir()
    names = ["left 2 (a)", "right", "4-5-left", "zuletzt"]
    tiles = [cut[1][tile] for tile in ((0, 0), (0, 1), (1, 0), (1, 1))]
    for name, voxels in zip(names, tiles, strict=True):
        write_tiff(folder / name, voxels, SPACING)
    rows = [f"{name}{ending},{k // 2 * 90},{k % 2 * 70}" for k, name in enumerate(names)]
    (table := tmp_path / "stage.csv").write_text("\n".join(["file,y,x", *rows]), encoding="utf-8")
    metrics = run(folder, tmp_path / "made", SIZE, table=table)
    assert metrics.figures["tiles"] == 4
    image = open_image(tmp_path / "made" / "section_01.ome.zarr")
    grid = MosaicGrid.of(image)
    for tile, voxels in zip(((0, 0), (0, 1), (1, 0), (1, 1)), tiles, strict=True):
        np.testing.assert_array_equal(image.read(grid.region(tile)), voxels)
    # A file that it leaves out may be no tile.
    write_tiff(folder / "overview", tiles[0], SPACING)
    with refused("--tile_pattern", error=InputError):
        run(folder, tmp_path / "no", SIZE, table=table)


def test_folders_of_tiles_that_may_be_subjects_are_named(cut, tmp_path):
    for name in ("sub-1", "sub-2"):
        (tmp_path / "all" / name).mkdir(parents=True)
        (tmp_path / "each" / name).mkdir(parents=True)
        write_all(cut, tmp_path / "all" / name, write_tiff, "r{row}_c{column}_{section}")
        write_tiff(tmp_path / "each" / name / "brain", cut[1][0, 0], SPACING)
    with refused("--tile_pattern", "sub-1", "sub-2", error=InputError):
        run(tmp_path / "all", tmp_path / "made", SIZE)
    with refused("--tile_rows", "sub-1", "sub-2", error=InputError):
        run(tmp_path / "each", tmp_path / "made", SIZE)


def test_a_flipped_bit_of_a_png_never_becomes_a_value(cut, tmp_path):
    tile = next(iter(cut[1].values()))[:1]
    write_png(tmp_path / "tile", tile, SPACING)
    (path,) = tmp_path.iterdir()
    reading = InputParameters.model_validate(SIZE)

    def read():
        file = open_tile(path, reading, None, lambda *_: [0])
        voxels = np.empty(file.shape, file.dtype)
        file.read_into(voxels, 0, None)
        return voxels

    messages = refusals(path, read, tile)
    assert len(messages) > 28
    assert all(f"{path} " in message for message in messages)


def test_a_png_is_refused_if_it_is_truncated_or_in_colour(cut, tmp_path):
    write_all({1: cut[1]}, tmp_path / "tiles", write_png)
    given = {"pattern": "s{section}_r{row}_c{column}_z{plane}.png"}
    with refused("--voxel_size", error=InputError):
        run(tmp_path / "tiles", tmp_path / "made", **given)
    file = tmp_path / "tiles" / "s1_r2_c2_z001.png"
    Image.fromarray(np.zeros((32, 28, 3), np.uint8)).save(file)
    with refused("s1_r2_c2_z001.png", "PNG", error=InputError):
        run(tmp_path / "tiles", tmp_path / "made", SIZE, **given)
    write_png(tmp_path / "tiles" / "s1_r2_c2", cut[1][1, 1], SPACING)
    truncate(file)
    with refused("s1_r2_c2_z001.png", error=InputError):
        run(tmp_path / "tiles", tmp_path / "made", SIZE, **given)
    file.unlink()
    with refused("row 1, column 1", "plane 1", error=InputError):
        run(tmp_path / "tiles", tmp_path / "made", SIZE, **given)
    assert not (tmp_path / "made").exists()


def test_existing_sections_are_kept_unless_told_otherwise(phantom, cut, tmp_path):
    for section, tiles in cut.items():
        true = true_positions(phantom, section)
        (tmp_path / f"tiles {section}").mkdir()
        for tile, voxels in tiles.items():
            name = tmp_path / f"tiles {section}" / f"s{section}_r{tile[0]}_c{tile[1]}"
            write_ome_tiff(name, voxels, SPACING, true[tile])
        run(tmp_path / f"tiles {section}", tmp_path / "made", **NAMED)
    # The table has the rows of both.
    require_same(phantom, tmp_path / "made")
    require_positions(phantom, tmp_path / "made")
    with refused("section_02.ome.zarr"):
        run(tmp_path / "tiles 2", tmp_path / "made", **NAMED)
    run(tmp_path / "tiles 2", tmp_path / "made", overwrite=True, **NAMED)
    require_same(phantom, tmp_path / "made")
    require_positions(phantom, tmp_path / "made")


def test_names_that_contradict_places_are_refused(phantom, cut, tmp_path):
    files = write_all({1: cut[1]}, tmp_path / "tiles", write_tiff)
    places = in_voxels(phantom, [(t, path.name) for (_, t), path in files.items()])
    (first, *a), (other, *b) = places[0], places[5]
    places[0], places[5] = (first, *b), (other, *a)
    write_fiji(tmp_path / "tiles" / "TileConfiguration.txt", places)
    with refused("s1_r1_c1.tif", "1", "0", error=InputError):
        run(tmp_path / "tiles", tmp_path / "made", SIZE, **NAMED)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("dry_run", [False, True])
def test_flags_that_cannot_act_on_the_tiles_are_refused(cut, tmp_path, dry_run):
    folder, made = tmp_path / "tiles", tmp_path / "made"
    write_all(cut, folder, write_ome_tiff)
    given = {"pattern": "s{section}_r{row}_c{column}.ome.tif", "dry_run": dry_run}
    with refused("--tile_order"):
        run(folder, made, order="rows-raster-top-left", **given)
    rows = [f"{r},{c},{r * 200},{c * 200}" for r, c in np.ndindex(9, 9)]
    (folder / "t.csv").write_text("\n".join(["row,column,y,x", *rows]), encoding="utf-8")
    with refused("--overlap", "0.9", "t.csv"):
        run(folder, made, overlap=0.9, **given)
    assert not made.exists()


def test_a_dry_run_prints_what_was_found_and_writes_nothing(cut, tmp_path, capsys):
    files = write_all(
        cut, tmp_path / "tiles", write_ome_tiff, "slice_{section}_row{row}_col{column}"
    )
    files[2, (1, 2)].unlink()
    (tmp_path / "tiles" / "notes.txt").write_text("seen on Monday")
    run(tmp_path / "tiles", tmp_path / "made", overlap=(0.2, 0.2), dry_run=True)
    printed = capsys.readouterr().out
    assert "Names (found): slice_{section}_row{row}_col{column}.ome.tif" in printed
    assert "Ignored: 1 file, such as notes.txt" in printed
    assert "Places: a grid with --overlap 0.2 x 0.2" in printed
    assert "    ####\n    ##.#\n    ####\n" in printed
    assert "Section 2 has no file for row 1, column 2: declared as not imaged." in printed
    assert not (tmp_path / "made").exists()


def test_a_dry_run_doubts_tiles_at_different_depths(phantom, cut, tmp_path, capsys):
    files = write_all({1: cut[1]}, tmp_path / "tiles", write_tiff)
    places = in_voxels(phantom, [(t, path.name) for (_, t), path in files.items()])
    places[3] = (places[3][0], 10.0, *places[3][2:])
    write_fiji(tmp_path / "tiles" / "TileConfiguration.txt", places, dimensions=3)
    run(tmp_path / "tiles", tmp_path / "made", SIZE, dry_run=True, **NAMED)
    printed = capsys.readouterr().out
    assert "Doubtful: tiles of section 1 lie at 0 to 35 micrometre along z;" in printed
    assert f"Places: {tmp_path}/tiles/TileConfiguration.txt\n" in printed
    assert "Ignored" not in printed


@pytest.mark.parametrize(
    ("tiles", "said"),
    [
        ([(0, 0)], ""),
        ([(0, 0), (1, 1)], "How tiles are arranged is not checked: none are neighbours"),
        ([(0, 0), (0, 1)], "Doubtful: neighbouring tiles do not fit, in any orientation;"),
    ],
)
def test_a_dry_run_says_why_tiles_cannot_be_checked(tiles, said, rng, tmp_path, capsys):
    folder = tmp_path / "tiles"
    folder.mkdir()
    for row, column in tiles:
        noise = rng.integers(0, 60000, (1, 32, 32), np.uint16)
        write_tiff(folder / f"r{row}_c{column}", noise, SPACING)
    run(folder, tmp_path / "made", SIZE, overlap=(0.2, 0.2), dry_run=True)
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(said) if said else "Neighbour" not in last


def test_a_dry_run_names_missing_sections(cut, tmp_path, capsys):
    write_all({1: cut[1], 4: cut[2]}, tmp_path / "tiles", write_tiff)
    run(tmp_path / "tiles", tmp_path / "made", SIZE, dry_run=True, **NAMED)
    assert "Missing sections between others: 2, 3.\n" in capsys.readouterr().out


@pytest.mark.parametrize("overlap", [(0.2, 0.2), None])
def test_the_preview_shows_where_tiles_are_placed(overlap, phantom, cut, tmp_path):
    files = write_all({1: cut[1]}, tmp_path / "tiles", write_tiff)
    files.pop((1, (0, 3))).unlink()
    if overlap is None:
        places = in_voxels(phantom, [(t, path.name) for (_, t), path in files.items()])
        write_fiji(tmp_path / "tiles" / "TileConfiguration.txt", places)
    given = tmp_path / "tiles", tmp_path / "made", SIZE, overlap
    preview = tmp_path / "tiles.svg"
    run(*given, dry_run=True, preview=preview, **NAMED)
    drawn = preview.read_text("utf-8")
    assert "not imaged: 1 of 12 tiles" in drawn
    assert "<image " in drawn
    with refused("tiles.svg", "--overwrite"):
        run(*given, preview=preview, **NAMED)
    assert not (tmp_path / "made").exists()


def test_a_preview_of_large_sections_reads_no_voxel(cut, tmp_path, monkeypatch):
    write_all({1: cut[1]}, tmp_path / "tiles", write_tiff)
    monkeypatch.setattr(tile_map, "PREVIEWED_BYTES", 100)
    preview = tmp_path / "tiles.svg"
    run(tmp_path / "tiles", tmp_path / "made", SIZE, (0.2, 0.2), True, preview=preview, **NAMED)
    drawn = preview.read_text("utf-8")
    assert ("<image " in drawn, "1,2" in drawn) == (False, True)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("tiles.png", r"tiles\.png does not end in \.svg"),
        ("tiles.svg", "--preview needs the places of the tiles; give --overlap or --tile_table"),
    ],
)
def test_a_preview_that_cannot_be_drawn_leaves_nothing(name, sentence, cut, tmp_path):
    write_all(cut, tmp_path / "tiles", write_tiff)
    with pytest.raises(InputError, match=sentence):
        run(tmp_path / "tiles", tmp_path / "made", SIZE, preview=tmp_path / name, **NAMED)
    assert [path.name for path in tmp_path.iterdir()] == ["tiles"]


@pytest.mark.parametrize("made", ["tiles", "tiles/made"])
def test_mosaics_among_the_tiles_are_refused(made, cut, tmp_path):
    write_all(cut, tmp_path / "tiles", write_tiff)
    with refused(made, error=InputError):
        run(tmp_path / "tiles", tmp_path / made, SIZE, **NAMED)


@pytest.fixture(scope="session")
def real_tiles(extract_tiles):
    """Twelve tiles of a tissue microarray, with the names r0-c0.png and so on."""
    return extract_tiles("microscopestitching", r"notebooks/r\d-c\d\.png")


def test_real_tiles_are_arranged_and_checked(real_tiles, tmp_path, capsys):
    size = {"voxel_size": "1"}
    assert not run(real_tiles, tmp_path / "made", size, overlap="0.1133").warnings
    image = open_image(tmp_path / "made" / STORES[0])
    for (row, column), voxels in tiles_of(image).items():
        expected = np.asarray(Image.open(real_tiles / f"r{row}-c{column}.png"))
        np.testing.assert_array_equal(voxels[0], expected)
    assert (image.grid.shape, MosaicGrid.of(image).pitch) == (
        (1, 2048, 1536),
        pytest.approx((453.99, 453.99), abs=0.01),
    )
    for given, proposed in (
        ({}, None),
        ({"flip": "y"}, "no --tile_flip"),
        ({"pattern": "r{column}-c{row}.png"}, "--tile_flip transpose"),
        ({"pattern": "r{column}-c{row}.png", "flip": "x"}, "--tile_flip transpose"),
    ):
        run(real_tiles, tmp_path / "no", size, dry_run=True, **given)
        printed = capsys.readouterr().out
        assert (f"% of neighbours fit with {proposed}," in printed) == (proposed is not None)
        if proposed is not None:
            with refused("1", proposed, error=InputError):
                run(real_tiles, tmp_path / "no", size, overlap="0.1133", **given)
        found = [float(number) for number in re.findall(r"overlap by about ([\d.]+) of", printed)]
        # 58 of 512 pixels, as its authors found.
        assert proposed is not None or found == pytest.approx([0.113, 0.113], abs=0.01)
