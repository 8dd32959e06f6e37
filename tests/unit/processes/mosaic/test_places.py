"""Places of tiles in Fiji's and CSV tables, found and read."""

import place_tables
import pytest
from refusals import refused

from octane.config.sheets import MOST_BYTES, MOST_CELLS, MOST_ROWS
from octane.core.errors import InputError
from octane.processes.mosaic.place import Place
from octane.processes.mosaic.places import find_places, read_places, unused_tables

TILES = [
    ("tile_0.tif", 0.0, 0.0, 0.0),
    ("tile_1.tif", 0.5, -1.125, 51.3),
    ("tile_2.tif", -0.25, 50.7, 0.1),
    ("tile_3.tif", 1.0, 51.9, 1234567.8),
]
FLAT = [(file, 0.0, y, x) for file, _, y, x in TILES]
HEADER = "dim = 2\n"


def positions(places):
    """Positions by file."""
    return {place.file: place.position for place in places}


def stated(places):
    """The positions that a writer was given, by file."""
    return {file: tuple(position) for file, *position in places}


def only_sentence(caught):
    """The error's one sentence."""
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(("dimensions", "places"), [(2, FLAT), (3, TILES)])
def test_fijis_table_gives_positions_in_voxels(tmp_path, dimensions, places):
    path = place_tables.write_fiji(tmp_path / "t.txt", TILES, dimensions=dimensions)
    found = read_places(path)
    assert positions(found) == stated(places)
    assert {place.unit for place in found} == {"pixel"}


def test_fijis_table_may_name_images_windows_paths_and_crlf(tmp_path):
    path = tmp_path / "t.txt"
    path.write_bytes(
        b"\xef\xbb\xbf# comment; ; (9, 9)\r\ndim=2\r\nmultiseries = true\r\n\r\n"
        b"D:\\scan 1\\a;b.czi; 0; ( 1.5 , 2 )\r\ndimer.tif;;(3, -4)\r\n"
    )
    assert positions(read_places(path)) == {
        "D:/scan 1/a;b.czi": (0.0, 2.0, 1.5),
        "dimer.tif": (0.0, -4.0, 3.0),
    }


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (HEADER + "a.tif; ; (1, 2, 3)\n", "t.txt, line 2: 'a.tif; ; (1, 2, 3)' is not a tile;"),
        (HEADER + "a.tif; ; (1,5, 2,0)\n", "t.txt, line 2: 'a.tif; ; (1,5, 2,0)' is not a tile;"),
        (HEADER + "a.tif; (1, 2)\n", "t.txt, line 2: 'a.tif; (1, 2)' is not a tile;"),
        (HEADER + "a.tif; ; (1, 2\n", "t.txt, line 2: 'a.tif; ; (1, 2' is not a tile;"),
        (HEADER + "; ; (1, 2)\n", "t.txt, line 2: '; ; (1, 2)' is not a tile;"),
        ("a.tif; ; (1, 2)\n", "t.txt, line 1: 'a.tif; ; (1, 2)' is not a tile;"),
        ("dim = 4\na.tif; ; (1, 2, 3, 4)\n", "t.txt, line 2: 'a.tif; ; (1, 2, 3, 4)' is not"),
        ("dim = two\n", "t.txt, line 1: dim is 'two'; give a number"),
        (HEADER + "a.tif; ; (1, nan)\n", "t.txt, line 2: a coordinate is 'nan'; give a number"),
        (HEADER + "a.tif; ; (inf, 2)\n", "t.txt, line 2: a coordinate is 'inf'; give a number"),
        (HEADER + "a.tif; ; (1e10, 2)\n", "t.txt, line 2: a coordinate is '1e10'; give a number"),
        (HEADER + "a.tif; ; (x, 2)\n", "t.txt, line 2: a coordinate is 'x'; give a number"),
        (
            HEADER + "a.czi; 0; (0, 0)\na.czi; 1; (9, 0)\n",
            "t.txt states two places for a.czi; keep one, or, if the file holds several images",
        ),
        (HEADER, "t.txt does not state the place of any tile; restore or correct it."),
        (HEADER.encode() + b"\xe9.tif; ; (1, 2)\n", "t.txt is not UTF-8 text; save it as UTF-8."),
    ],
)
def test_a_faulty_table_of_fiji_is_refused(tmp_path, text, sentence):
    path = tmp_path / "t.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError) as caught:
        read_places(path)
    assert only_sentence(caught).startswith(f"{tmp_path}/{sentence}")


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_a_csv_table_gives_the_same_places_with_every_separator(tmp_path, separator):
    rows = [{"file": f, "z": z, "y": y, "x": x, "note": "b"} for f, z, y, x in TILES]
    path = place_tables.write_csv(tmp_path / "t.csv", rows, separator=separator)
    found = read_places(path)
    assert positions(found) == stated(TILES)
    assert {place.unit for place in found} == {"micrometer"}


@pytest.mark.parametrize(
    ("y_name", "x_name", "factors", "unit"),
    [
        ("Stage_Y", "Stage_X", (1, 1), "micrometer"),
        ("StageY_mm", "StageX_mm", (1000, 1000), "micrometer"),
        ("Y pos (mm)", "X pos (mm)", (1000, 1000), "micrometer"),
        ("Y (µm)", "X (nm)", (1, 0.001), "micrometer"),
        ("Y [px]", "X [px]", (1, 1), "pixel"),
    ],
)
def test_a_columns_name_may_end_in_its_unit(tmp_path, y_name, x_name, factors, unit):
    rows = [{"Name": f, y_name: y, x_name: x} for f, _, y, x in FLAT]
    path = place_tables.write_csv(tmp_path / "t.csv", rows)
    found = read_places(path)
    assert positions(found) == {
        f: pytest.approx((0.0, factors[0] * y, factors[1] * x), rel=1e-12) for f, _, y, x in FLAT
    }
    assert {place.unit for place in found} == {unit}


@pytest.mark.parametrize("header", ["File,X,Y", "FILE,X (px),Y_px"])
def test_columns_may_be_written_in_capitals(tmp_path, header):
    path = tmp_path / "stage.csv"
    path.write_text(f"{header}\na.tif,3,4\n", encoding="utf-8")
    (place,) = read_places(path)
    assert (place.file, place.position) == ("a.tif", (0, 4, 3))
    assert find_places(tmp_path) == path


def test_rows_may_name_the_tile_by_section_row_and_column_or_number(tmp_path):
    path = tmp_path / "positions.csv"
    path.write_text("section,row,column,y,x\n7,0,1.0,5,6\n8,0,1,5,7\n")
    assert read_places(path) == [
        Place(None, None, 7, 0, 1, (0.0, 5.0, 6.0), "micrometer"),
        Place(None, None, 8, 0, 1, (0.0, 5.0, 7.0), "micrometer"),
    ]
    path.write_text("tile id,y,x\n1,5,6\n")
    assert read_places(path) == [Place(None, 1, None, None, None, (0.0, 5.0, 6.0), "micrometer")]


def test_files_of_one_name_differ_by_section_and_equal_rows_count_once(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("file,section,channel,y,x\na,1,0,0,1\na,1,1,0,1\na,2,0,0,2\n")
    assert [(p.section, p.position[2]) for p in read_places(path)] == [(1, 1.0), (2, 2.0)]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "file,y\na,1\n",
            "{path} must have the columns y and x, and file, tile, or row and column, but its "
            "columns are file, y; correct its header",
        ),
        ("file,y_px,y_mm,x\na,1,2,3\n", "{path} must have the columns y and x, and file"),
        ("row,y,x\n1,1,1\n", "{path} must have the columns y and x, and file, tile, or row"),
        (
            "file,stage_y,pos_y,x\na,1,2,3\n",
            "{path} must have the columns y and x, and file, tile, or row and column, but its",
        ),
        (
            "file,y_px,x_um\na,1,2\n",
            "{path} states places in pixels and in units of length (y_px, x_um); use one",
        ),
        ("file,y,x\na,,2\n", "{path}, line 2: y is missing; give a number with a decimal"),
        ("file,y,x\na,1,NaN\n", "{path}, line 2: x is 'NaN'; give a number with a decimal"),
        ("file,y,x\n,1,2\n", "{path}, line 2: file is missing; give the tile's file."),
        ("row,column,y,x\n1,2.5,1,2\n", "{path}, line 2: column is 2.5; give a whole number."),
        ("file,y,x\na,1,2\na,1,3\n", "{path} states two places for a; keep one, or"),
        (
            "section,tile,y,x\n3,1,1,2\n3,1,1,3\n",
            "{path} states two places for tile 1 of section 3; keep one, or",
        ),
        (
            "row,column,y,x\n0,1,1,2\n0,1,1,3\n",
            "{path} states two places for row 0, column 1; keep one, or",
        ),
        ("file,y,x\n", "{path} does not state the place of any tile; restore or correct it."),
        ("file,y,x\na,1\n", "{path}, line 2: there are 2 cells but 3 columns;"),
    ],
)
def test_a_faulty_csv_table_is_refused(tmp_path, text, sentence):
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_places(path)
    assert only_sentence(caught).startswith(sentence.format(path=path))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("file;y;x\na.tif;0,25;3\n", "line 2: y is '0,25', which has a comma; write 0.25."),
        ("tile\ty\tx\n0\t0\t-,5\n", "line 2: x is '-,5', which has a comma; write -0.5."),
    ],
)
def test_a_decimal_comma_is_named(tmp_path, text, said):
    (path := tmp_path / "stage.csv").write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_places(path)
    assert str(caught.value).endswith(said)


def test_columns_of_positions_may_end_in_their_unit(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("file,y_mm,X [px],x (um)\na,1.5,7,2\n")
    assert find_places(tmp_path) == path
    (place,) = read_places(path)
    assert (place.position, place.unit) == ((0.0, 1500.0, 2.0), "micrometer")


def test_only_a_table_that_is_given_may_have_columns_of_other_names(tmp_path):
    path = tmp_path / "stage.csv"
    path.write_text("Name,stage_y_mm,stage_x_mm,pos_z\na,1,2,3\n")
    assert find_places(tmp_path) is None
    (place,) = read_places(path)
    assert (place.file, place.position) == ("a", (3.0, 1000.0, 2000.0))
    # Columns of other names are not read where octane's own place the tiles.
    path.write_text("file,y,x,pos_z,slice\na,1,2,3,4\n")
    (place,) = read_places(path)
    assert (place.section, place.position) == (None, (0.0, 1.0, 2.0))


def test_a_missing_table_is_refused(tmp_path):
    with refused("none.csv"):
        read_places(tmp_path / "none.csv")


def test_the_table_among_the_tiles_is_found(tmp_path):
    assert find_places(tmp_path) is None
    (tmp_path / "notes.txt").write_text("dimensions: none; see (1)\n")
    (tmp_path / "other.xml").write_text("<Settings/>")
    (tmp_path / "broken.xml").write_text("<<<")
    (tmp_path / "exposure.csv").write_text("file,time\na,1\n")
    (tmp_path / ".hidden.csv").write_text("file,y,x\na,1,2\n")
    (tmp_path / "tile.tif").write_bytes(b"dim = 2\n")
    (tmp_path / "folder.csv").mkdir()
    assert find_places(tmp_path) is None
    table = place_tables.write_bdv(tmp_path / "dataset.xml", TILES)
    assert find_places(tmp_path) == table
    table.rename(tmp_path / "dataset.xml~1")
    table = place_tables.write_terastitcher(tmp_path / "xml_import.xml", TILES, columns=2)
    assert find_places(tmp_path) == table
    table.unlink()
    table = tmp_path / "where.CSV"
    table.write_bytes(b'\xef\xbb\xbf"file";"y";"x"\r\n')
    assert find_places(tmp_path) == table


def test_fijis_registered_table_replaces_the_one_that_it_was_made_from(tmp_path):
    first = place_tables.write_fiji(tmp_path / "TileConfiguration.txt", TILES)
    assert find_places(tmp_path) == first
    registered = place_tables.write_fiji(tmp_path / "TileConfiguration.registered.txt", TILES)
    assert find_places(tmp_path) == registered


def test_several_tables_among_the_tiles_are_refused(tmp_path):
    place_tables.write_fiji(tmp_path / "a.registered.txt", TILES)
    place_tables.write_fiji(tmp_path / "b.txt", TILES)
    with pytest.raises(InputError) as caught:
        find_places(tmp_path)
    assert only_sentence(caught) == (
        f"{tmp_path} holds 2 tables of places (a.registered.txt, b.txt); choose one with "
        "--tile_table."
    )


def test_a_table_that_is_too_large_is_refused_by_name_and_a_log_is_passed_over(tmp_path):
    table = tmp_path / "TileConfiguration.txt"
    table.write_text("dim = 2\n" + "a.tif; ; (1, 2)\n" * MOST_ROWS)
    with refused("TileConfiguration.txt"):
        read_places(table, None)
    for name in (table.name, "log.txt"):
        with (tmp_path / name).open("ab") as file:
            file.truncate(MOST_BYTES + 1)
    with refused("TileConfiguration.txt", "100", "MB"):
        read_places(table, None)
    assert find_places(tmp_path) == table


@pytest.mark.parametrize(
    ("start", "cell", "end"), [("file,y,x", ",", ""), ("<OME>", "<a/>", "</OME>")]
)
def test_a_table_of_too_many_cells_is_refused(tmp_path, start, cell, end):
    table = tmp_path / "a.csv"
    table.write_text(start + cell * (MOST_CELLS + 1) + end, "utf-8")
    with refused("a.csv", MOST_CELLS):
        read_places(table, None)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "line", [f"a{' ' * 60_000}b", f"{'; ' * 30_000}", f"a{' ' * 60_000};;(1, 2", "(" * 60_000]
)
def test_a_long_line_is_refused_at_once(tmp_path, line):
    path = tmp_path / "TileConfiguration.txt"
    path.write_text(f"dim = 2\n{line}\n", "utf-8")
    with refused("TileConfiguration.txt", "line 2") as told:
        read_places(path)
    assert len(str(told.value)) < 500


def test_a_name_in_fijis_table_may_hold_blanks_and_semicolons(tmp_path):
    path = tmp_path / "TileConfiguration.txt"
    path.write_text("dim = 2\na; b  1.tif  ;  ; (0, 0)\nc.tif;2;(1.5, -2)\n", "utf-8")
    places = [(place.file, place.position) for place in read_places(path)]
    assert places == [("a; b  1.tif", (0, 0, 0)), ("c.tif", (0, -2, 1.5))]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("stage.csv", "file,y,x\na.tif,0,0\n"),
        ("TileConfiguration.txt", "dim = 2\na.tif; ; (0, 0)\n"),
    ],
)
def test_a_table_in_utf_16_is_refused_by_name(tmp_path, encoding, name, text):
    bom = "" if encoding == "utf-16" else "\ufeff"
    (tmp_path / name).write_bytes(f"{bom}{text}".encode(encoding))
    with refused(name, "UTF-16", "UTF-8"):
        find_places(tmp_path)


def test_a_table_of_other_columns_is_named(tmp_path):
    (tmp_path / "stage.csv").write_text("Name;stage_y;stage_x\na.tif;0;0\n", "utf-8")
    (tmp_path / "notes.csv").write_text("one column\n", "utf-8")
    (tmp_path / "notes.txt").write_text("a, b\n", "utf-8")
    (sentence,) = unused_tables(tmp_path)
    for words in ("stage.csv", "Name, stage_y, stage_x", "--tile_table"):
        assert words in sentence


@pytest.mark.parametrize("number", ["1_000", "١٢"])
def test_numbers_in_tables_have_plain_digits(tmp_path, number):
    path = tmp_path / "a.csv"
    path.write_text(f"file,y,x\na.tif,{number},0\n", "utf-8")
    with refused("a.csv", "line 2"):
        read_places(path)
