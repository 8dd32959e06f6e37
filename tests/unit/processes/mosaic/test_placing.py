"""Places of tiles matched to files by path, number, row and column."""

from unicodedata import normalize

import numpy as np
import pytest
from place_tables import affine, write_bdv, write_csv, write_fiji
from refusals import refused
from tifffile import imwrite

from octane.config.parameters import InputParameters
from octane.core.errors import InputError
from octane.processes.mosaic import placing
from octane.processes.mosaic.names import NamedFile, NamePattern
from octane.processes.mosaic.parameters import TileParameters
from octane.processes.mosaic.placing import find_file_places
from octane.processes.mosaic.tile_files import TileFile


def placed(folder, names, pattern, others=(), **given):
    """Position of each file, and what was found; a tile has 10 x 10 voxels of 2 micrometres.

    ``others`` are the names of files that are not used.
    """
    size, reading = (2.0, 2.0, 2.0), InputParameters()
    fields = NamePattern.of(pattern)
    every = [NamedFile.read(name, fields) for name in [*names, *others]]
    contents = {
        name: TileFile(folder / name, (1, 10, 10), np.dtype("u2"), size, None, ("",), reading)
        for name in names
    }
    found = find_file_places(folder, every, fields, contents, TileParameters(**given), None)
    return {name: place.position[1:] for name, place in found.places.items()}, found


def rows_of(**columns):
    """Rows of a table, from its columns."""
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def test_tiles_are_found_by_row_and_column_in_every_section(tmp_path):
    rows = rows_of(row=[1, 1], column=[1, 2], y=[0, 3], x=[0, 90])
    table = write_csv(tmp_path / "places.csv", rows)
    names = ["s1_r1_c1.tif", "s1_r1_c2.tif", "s2_r1_c2.tif"]
    positions, _ = placed(tmp_path, names, "s{section}_r{row}_c{column}.tif", table=table)
    assert positions == dict(zip(names, [(0, 0), (3, 90), (3, 90)], strict=True))


def test_rows_of_other_sections_are_not_lost_tiles(tmp_path):
    rows = rows_of(section=[1, 2, 2], row=[0, 0, 0], column=[0, 0, 1], y=[0, 5, 6], x=[0, 7, 97])
    table = write_csv(tmp_path / "places.csv", rows)
    pattern = "s{section}_r{row}_c{column}.tif"
    positions, found = placed(tmp_path, ["s1_r0_c0.tif"], pattern, table=table)
    assert (positions, found.remarks) == ({"s1_r0_c0.tif": (0, 0)}, [])
    positions, found = placed(tmp_path, ["s2_r0_c1.tif"], pattern, table=table)
    assert positions == {"s2_r0_c1.tif": (6, 97)}
    assert found.remarks == [
        "places.csv places 1 tile without a file, such as row 0, column 0 of section 2."
    ]


def test_a_table_in_the_folder_of_each_section_places_its_tiles(tmp_path):
    names = [f"section_{k}/t_{n}.tif" for k in (1, 2) for n in (1, 2)]
    for k in (1, 2):
        (tmp_path / f"section_{k}").mkdir()
        places = [("t_1.tif", 0.0, 0.0, 10.0 * k), ("t_2.tif", 0.0, 0.0, 10.0 * k + 8)]
        write_fiji(tmp_path / f"section_{k}" / "TileConfiguration.txt", places)
    positions, found = placed(tmp_path, names, "section_{section}/t_{tile}.tif")
    # In pixels of 2 micrometres.
    assert positions == dict(zip(names, [(0, 20), (0, 36), (0, 40), (0, 56)], strict=True))
    assert found.source.endswith("section_1/TileConfiguration.txt and 1 more")


def test_paths_in_a_table_tell_equal_names_apart(tmp_path):
    names = ["a/t.tif", "b/t.tif"]
    rows = rows_of(file=[r"D:\data\b\t.tif", r"D:\data\a\t.tif"], y=[0, 1], x=[0, 90])
    table = write_csv(tmp_path / "places.csv", rows)
    assert placed(tmp_path, names, "*/t.tif", table=table)[0] == {
        "a/t.tif": (1, 90),
        "b/t.tif": (0, 0),
    }


def test_files_of_a_tile_share_its_place_and_others_are_named(tmp_path):
    names = ["t1_z0.tif", "t1_z1.tif", "t2_z0.tif", "t2_z1.tif"]
    rows = rows_of(tile=[0, 1], y=[0, 0], x=[0, 9])
    table = write_csv(tmp_path / "places.csv", rows)
    positions, _ = placed(tmp_path, names, "t{tile}_z{plane}.tif", table=table)
    assert positions == dict(zip(names, [(0, 0), (0, 0), (0, 9), (0, 9)], strict=True))
    with refused("t3.tif", "tile 0"):
        placed(tmp_path, ["t1.tif", "t2.tif", "t3.tif", "t4.tif"], "t{tile}.tif", table=table)
    named = write_csv(tmp_path / "n.csv", rows_of(file=["a/t.tif", "b/t.tif"], y=[0, 0], x=[0, 9]))
    with refused("n.csv", "t.tif"):
        placed(tmp_path, ["t.tif"], "*.tif", table=named)


def test_files_that_are_not_used_are_not_lost_tiles(tmp_path):
    names = [f"s{section}_c{column}_{channel}.tif" for section in (1, 2) for column in (0, 1)
             for channel in "ab"]  # fmt: skip
    rows = rows_of(file=[*names, "s1_c2_a.tif"], y=[0] * 9, x=[0, 0, 9, 9, 0, 0, 9, 9, 18])
    table = write_csv(tmp_path / "places.csv", rows)
    pattern = "s{section}_c{column}_{channel}.tif"
    kept = ["s1_c0_a.tif", "s1_c1_a.tif"]
    others = [name for name in names if name not in kept]
    for given in ({"table": table}, {}):
        positions, found = placed(tmp_path, kept, pattern, others, **given)
        assert positions == dict(zip(kept, [(0, 0), (0, 9)], strict=True))
        assert found.remarks == ["places.csv places 1 tile without a file, such as s1_c2_a.tif."]


def test_a_table_may_name_files_without_their_ending(tmp_path):
    names = ["a/t0.ome.tif", "b/t0.ome.tif", "a/t1.ome.tif"]
    rows = rows_of(file=["b/t0", "a/t0", "a/t1"], y=[0, 1, 2], x=[0, 90, 80])
    table = write_csv(tmp_path / "places.csv", rows)
    positions, _ = placed(tmp_path, names, "*/*.ome.tif", table=table)
    assert positions == dict(zip(names, [(1, 90), (0, 0), (2, 80)], strict=True))
    assert placed(tmp_path, ["t1.nii.gz"], "t{tile}.nii.gz", table=table)[0] == {
        "t1.nii.gz": (2, 80)
    }


@pytest.mark.parametrize(("stored", "written"), [("NFD", "NFC"), ("NFC", "NFD")])
def test_accents_may_be_stored_as_macos_does_it(tmp_path, stored, written):
    names = [normalize(stored, f"Größe {number}.tif") for number in (1, 2)]
    rows = rows_of(file=[normalize(written, name) for name in names], y=[0, 0], x=[0, 90])
    table = write_csv(tmp_path / "places.csv", rows)
    for pattern in ("Größe {tile}.tif", "*.tif"):
        positions, _ = placed(tmp_path, names, normalize(written, pattern), table=table)
        assert positions == dict(zip(names, [(0, 0), (0, 90)], strict=True))


def test_a_folder_without_a_table_next_to_others_with_one_is_refused(tmp_path):
    names = [f"section_{k}/t_{n}.tif" for k in (1, 2) for n in (1, 2)]
    for k in (1, 2):
        (tmp_path / f"section_{k}").mkdir()
    places = [("t_1.tif", 0.0, 0.0, 0.0), ("t_2.tif", 0.0, 0.0, 8.0)]
    table = write_fiji(tmp_path / "section_2" / "TileConfiguration.txt", places)
    with pytest.raises(InputError) as caught:
        placed(tmp_path, names, "section_{section}/t_{tile}.tif")
    assert str(caught.value) == (
        f"{tmp_path}/section_1/t_1.tif is not placed by a table as tiles in other folders are "
        f"({table}); add its table, or give one with --tile_table."
    )


def ome_tiff(path, place, unit):
    """Write an OME-TIFF of one plane, without a position if ``place`` is None."""
    plane = {}
    if place is not None:
        plane = {"PositionX": [place], "PositionY": [place]}
        plane |= {f"Position{axis}Unit": [unit] for axis in "XY"}
    imwrite(path, np.zeros((10, 10), "u2"), ome=True, metadata={"axes": "YX", "Plane": plane})


@pytest.mark.parametrize(
    ("places", "unit", "why"),
    [
        ((0, 8), "reference frame", "PositionY is in 'reference frame', whose length is unknown"),
        ((0, 0), "reference frame", "it states one place for all of the tiles."),
        ((9, 9), "µm", "it states one place for all of the tiles."),
        ((9, None), "µm", "it states places for some of the tiles."),
    ],
)
@pytest.mark.parametrize(
    ("pattern", "given"),
    [("r1_c{column}.ome.tif", {}), ("r1_c{tile}.ome.tif", {"order": "rows-snake-top-left"})],
)
def test_useless_places_in_ome_xml_do_not_stop_names_or_an_order(
    tmp_path, places, unit, why, pattern, given
):
    names = ["r1_c1.ome.tif", "r1_c2.ome.tif"]
    for name, place in zip(names, places, strict=True):
        ome_tiff(tmp_path / name, place, unit)
    positions, found = placed(tmp_path, names, pattern, **given)
    assert (positions, found.source) == ({}, "")
    (remark,) = found.remarks
    assert remark.startswith("Places in OME-XML are not used: ")
    assert why in remark


def test_places_of_unknown_unit_are_asked_for_where_nothing_else_places_tiles(tmp_path):
    names = ["t_1.ome.tif", "t_2.ome.tif"]
    for name, place in zip(names, (0, 8), strict=True):
        ome_tiff(tmp_path / name, place, "reference frame")
    with refused("t_2.ome.tif", "Image:0", "PositionY", "--input_unit"):
        placed(tmp_path, names, "t_{tile}.ome.tif")


def test_tables_are_looked_for_once_in_a_folder(tmp_path, monkeypatch):
    looked = []
    monkeypatch.setattr(placing, "find_places", lambda folder: looked.append(folder))
    placed(tmp_path, [f"{k}/r0_c{n}.png" for k in "ab" for n in "123"], "*/r{row}_c{column}.png")
    assert looked == [tmp_path, tmp_path / "a", tmp_path / "b"]
    looked.clear()
    placed(tmp_path, ["r0_c1.png", "r0_c2.png"], "r{row}_c{column}.png")
    assert looked == [tmp_path]


def write_faulty(folder, kind):
    """A table of a tile whose place no float holds, or no stage reaches."""
    if kind == "csv":
        return write_csv(folder / "a.csv", rows_of(file=["t_1.tif"], y_km=[2], x_km=[0]))
    tiny = (1e-200, 1e-200, 1e-200)
    changed = {0: affine(scale=tiny)}
    places = [("t_1.tif", 0.0, 0.0, 0.0)]
    return write_bdv(folder / "a.xml", places, scale=tiny, changed=changed)


@pytest.mark.parametrize("kind", ["csv", "xml"])
def test_a_place_out_of_reach_is_refused(tmp_path, kind):
    table = write_faulty(tmp_path, kind)
    with refused("t_1.tif"):
        placed(tmp_path, ["t_1.tif"], "t_{tile}.tif", table=table)
