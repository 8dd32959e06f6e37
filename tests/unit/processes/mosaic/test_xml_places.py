"""Places of tiles in the XML of BigStitcher, of TeraStitcher and of OME."""

import numpy as np
import place_tables
import pytest
import tifffile
from place_tables import affine
from refusals import refused

from octane.core.errors import InputError
from octane.processes.mosaic.place import Place
from octane.processes.mosaic.places import read_places
from octane.processes.mosaic.xml_places import ome_places

TILES = [
    ("scan/tile_0.tif", 0.0, 0.0, 0.0),
    ("scan/tile_1.tif", 0.5, -1.125, 51.3),
    ("scan/tile_2.tif", -0.25, 50.7, 0.1),
    ("scan/tile_3.tif", 1.0, 51.9, 1234.8),
]
STATED = [pytest.approx(tuple(position), abs=1e-9) for _, *position in TILES]
FILES = [file for file, *_ in TILES]


def refusal_of(path, text=None):
    """The one sentence with which a table is refused."""
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_places(path)
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


# BigStitcher scales to its finest axis, others to micrometres, or not at all.
@pytest.mark.parametrize("scale", [(4.0, 1.0, 1.0), (2.0, 0.5, 0.5), (1.0, 1.0, 1.0)])
@pytest.mark.parametrize(
    ("loader", "files"),
    [
        ("filemap2", FILES),
        ("hdf5", [None] * 4),
        ("zarr", [f"dataset.ome.zarr/{file}" for file in FILES]),
        ("old zarr", [f"/data/dataset.ome.zarr/{file}" for file in FILES]),
    ],
)
def test_bigstitchers_project_gives_positions_in_voxels(tmp_path, scale, loader, files):
    path = place_tables.write_bdv(tmp_path / "d.xml", TILES, loader=loader, scale=scale)
    found = read_places(path)
    assert [place.position for place in found] == STATED
    assert [place.file for place in found] == files
    assert [place.number for place in found] == [0, 1, 2, 3]
    assert {place.unit for place in found} == {"pixel"}


def test_channels_of_a_tile_share_its_place(tmp_path):
    path = place_tables.write_bdv(tmp_path / "d.xml", TILES, loader="hdf5", channels=2)
    found = read_places(path)
    assert [(place.number, place.position) for place in found] == list(enumerate(STATED))


def test_a_missing_view_has_no_place(tmp_path):
    missing = "<MissingViews><MissingView timepoint='0' setup='2'/></MissingViews>"
    path = place_tables.write_bdv(tmp_path / "d.xml", TILES, extra=missing)
    assert [place.number for place in read_places(path)] == [0, 1, 3]


ROTATED = "0.8 -0.6 0 0 0.6 0.8 0 0 0 0 1 0"
SHEARED = "1 0 0.01 0 0 1 0 0 0 0 1 0"
MIRRORED = affine(scale=(1, -1, 1))


@pytest.mark.parametrize("changed", [ROTATED, SHEARED, MIRRORED])
def test_tiles_that_are_turned_are_refused(tmp_path, changed):
    path = place_tables.write_bdv(tmp_path / "d.xml", TILES, changed={2: changed})
    assert refusal_of(path) == (
        f"{path}: the transform 'Stitching Transform' of view setup 2 rotates, shears or mirrors "
        "the tile; octane only moves tiles: save the project with translations alone."
    )


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"changed": {3: affine(scale=(1, 1, 1.001))}},
            " scales view setups 0 and 3 differently; octane only moves tiles: save the project",
        ),
        (
            {"changed": {3: "1 0 0"}},
            ": the transform 'Stitching Transform' of view setup 3 has 3 numbers, not 12;",
        ),
        (
            {"changed": {3: affine(x=float("nan"))}},
            ": the transform 'Stitching Transform' of view setup 3 is 'nan'; give a number",
        ),
        ({"angles": 2}, " holds views from 2 angles; save"),
        (
            {"loader": "hdf5", "channels": 2, "changed": {4: affine(x=0.5)}},
            " states two places for tile 0; keep one, or, if the file holds several images",
        ),
        (
            {"extra": '<ViewRegistration timepoint="0"/>'},
            ": setup of a ViewRegistration is missing; give a number",
        ),
    ],
)
def test_a_faulty_project_of_bigstitcher_is_refused(tmp_path, options, sentence):
    path = place_tables.write_bdv(tmp_path / "d.xml", TILES, **options)
    assert refusal_of(path).startswith(f"{path}{sentence}")


def test_terastitchers_xml_gives_positions_in_voxels(tmp_path):
    path = place_tables.write_terastitcher(tmp_path / "xml_merging.xml", TILES, columns=2)
    places = read_places(path)
    assert places == [
        Place(file, None, None, k // 2, k % 2, (z, y, x), "pixel")
        for k, (file, z, y, x) in enumerate(TILES)
    ]


def test_stacks_in_one_folder_are_known_by_row_and_column(tmp_path):
    folders = ["", "", "all", "all"]
    stacks = [(f, z, y, x) for f, (_, z, y, x) in zip(folders, TILES, strict=True)]
    path = place_tables.write_terastitcher(tmp_path / "x.xml", stacks, columns=2)
    found = read_places(path)
    assert [place[:5] for place in found] == [(None, None, None, k // 2, k % 2) for k in range(4)]
    assert [place.position for place in found] == STATED


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (' ABS_V="51.9"', "", ", Stack 4: ABS_V is missing; give a number with a decimal point"),
        ('ABS_H="51.3"', 'ABS_H="right"', ", Stack 2: ABS_H is 'right'; give a number"),
        ('ROW="1" COL="0"', 'ROW="0.5" COL="0"', ", Stack 3: ROW is 0.5; give a whole number."),
        ("<STACKS>", "<STACKS", " is not valid XML (not well-formed (invalid token): line 5,"),
    ],
)
def test_a_faulty_xml_of_terastitcher_is_refused(tmp_path, old, new, sentence):
    path = place_tables.write_terastitcher(tmp_path / "x.xml", TILES, columns=2)
    text = path.read_text()
    assert old in text
    assert refusal_of(path, text.replace(old, new)).startswith(f"{path}{sentence}")


BOMB = (
    '<?xml version="1.0"?><!DOCTYPE SpimData [<!ENTITY a "'
    + "a" * 2000
    + '">'
    + "".join(f'<!ENTITY {b} "{f"&{a};" * 100}">' for a, b in ("ab", "bc"))
    + "]><SpimData>&c;</SpimData>"
)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("<Settings/>", " is XML of an unknown kind (<Settings>); give XML of BigStitcher,"),
        ("<SpimData>", " is not valid XML (no element found: line 1, column 10); restore it"),
        ("<", " is not valid XML ("),
        (BOMB, " is not valid XML (limit on input amplification factor"),
        ('<?xml version="1.0" encoding="x-none"?><SpimData/>', " is not valid XML ("),
        ("<SpimData/>", " does not state the place of any tile; restore or correct it."),
        ("<TeraStitcher/>", " does not state the place of any tile; restore or correct it."),
        ("<OME/>", " does not state the place of any tile; restore or correct it."),
    ],
)
def test_other_xml_is_refused(tmp_path, text, sentence):
    path = tmp_path / "x.xml"
    assert refusal_of(path, text).startswith(f"{path}{sentence}")


@pytest.mark.parametrize(("unit", "factor"), [("µm", 1), ("\u03bcm", 1), ("nm", 1e-3), ("mm", 1e3)])
def test_ome_xml_gives_the_first_planes_position_in_micrometres(tmp_path, unit, factor):
    xml = place_tables.ome_xml(TILES, unit=unit)
    found = ome_places(xml, tmp_path)
    assert found == [
        Place(file, index, None, None, None, tuple(n * factor for n in position), "micrometer")
        for index, (file, *position) in enumerate(TILES)
    ]
    # The same from a companion file, given as the table.
    path = tmp_path / "scan.companion.ome"
    path.write_text(xml, encoding="utf-8")
    assert read_places(path) == found


def test_tifffiles_ome_xml_gives_the_position(tmp_path):
    path = tmp_path / "tile.ome.tif"
    ends = {"PositionX": [12.5] * 2, "PositionY": [-3.25] * 2, "PositionZ": [100.0, 102.0]}
    units = {f"Position{axis}Unit": ["µm"] * 2 for axis in "XYZ"}
    plane = np.zeros((2, 8, 8), "uint16")
    tifffile.imwrite(path, plane, metadata={"axes": "ZYX", "Plane": {**ends, **units}})
    with tifffile.TiffFile(path) as file:
        found = ome_places(file.ome_metadata or "", path)
    assert found == [Place(None, 0, None, None, None, (100.0, -3.25, 12.5), "micrometer")]


def test_ome_xml_may_place_in_pixels_and_leave_out_files_and_images(tmp_path):
    xml = place_tables.ome_xml(TILES[:2], unit="pixel", named=False)
    bare = place_tables.ome_xml(TILES[:1], plane="")
    assert ome_places(xml, tmp_path) == [
        Place(None, k, None, None, None, tuple(TILES[k][1:]), "pixel") for k in (0, 1)
    ]
    assert ome_places(bare, tmp_path) == [None]


def test_positions_in_an_element_of_a_plane_are_those_of_ome_2008(tmp_path):
    xml = """<OME xmlns="http://www.openmicroscopy.org/Schemas/OME/2008-02"><Image ID="Image:0">
    <Pixels SizeZ="2"><Plane TheZ="1" TheT="0" TheC="0"><StagePosition PositionX="9" PositionY="9"/>
    </Plane><Plane TheZ="0" TheT="0" TheC="0"><PlaneTiming DeltaT="1" ExposureTime="2"/>
    <StagePosition PositionX="3" PositionY="-4.5" PositionZ="2"/></Plane></Pixels></Image></OME>"""
    (place,) = ome_places(xml, tmp_path / "a.ome.tif", "millimeter")
    assert place is not None
    assert (place.position, place.unit) == ((2000, -4500, 3000), "micrometer")
    with refused("--input_unit", error=InputError):
        ome_places(xml, tmp_path / "a.ome.tif")


@pytest.mark.parametrize("unit", [None, "reference frame"])
def test_a_position_without_a_unit_needs_one(tmp_path, unit):
    xml = place_tables.ome_xml(TILES, unit=unit)
    path = tmp_path / "OME.xml"
    path.write_text(xml)
    assert refusal_of(path) == (
        f"{path}, Image:1: PositionZ is in 'reference frame', whose length is unknown; give "
        "--input_unit, or the tiles' places with --tile_table."
    )
    found = ome_places(xml, path, "millimeter")
    assert [p and p.position for p in found] == [
        tuple(n * 1e3 for n in position) for _, *position in TILES
    ]
    assert read_places(path, "millimeter") == found


@pytest.mark.parametrize(
    ("plane", "sentence"),
    [
        ('PositionX="1" PositionXUnit="µm"', "PositionY is missing; give a number"),
        (
            'PositionX="NaN" PositionXUnit="µm" PositionY="1" PositionYUnit="µm"',
            "PositionX is 'NaN'; give a number",
        ),
        (
            'PositionX="1" PositionXUnit="furlong" PositionY="1" PositionYUnit="furlong"',
            "PositionY is in 'furlong', whose length is unknown; give --input_unit",
        ),
    ],
)
def test_a_faulty_position_in_ome_xml_is_refused(tmp_path, plane, sentence):
    with pytest.raises(InputError) as caught:
        ome_places(place_tables.ome_xml(TILES[:1], plane=plane), tmp_path / "a.ome.tif")
    assert str(caught.value).startswith(f"{tmp_path}/a.ome.tif, Image:0: {sentence}")


def test_planes_without_an_index_are_refused(tmp_path):
    xml = place_tables.ome_xml(TILES[:1]).replace('TheT="0"', 'TheT="first"')
    with refused("Image:0", "'first'", error=InputError):
        ome_places(xml, tmp_path)


def test_a_position_in_two_kinds_of_units_is_refused(tmp_path):
    plane = 'PositionX="1" PositionXUnit="pixel" PositionY="1" PositionYUnit="µm"'
    with refused("Image:0", error=InputError):
        ome_places(place_tables.ome_xml(TILES[:1], plane=plane), tmp_path)


def test_all_formats_state_the_same_places(tmp_path):
    tables = [
        place_tables.write_fiji(tmp_path / "a.txt", TILES, dimensions=3),
        place_tables.write_bdv(tmp_path / "b.xml", TILES),
        place_tables.write_terastitcher(tmp_path / "c.xml", TILES, columns=2),
        place_tables.write_csv(
            tmp_path / "d.csv", [{"file": f, "z": z, "y": y, "x": x} for f, z, y, x in TILES]
        ),
    ]
    (tmp_path / "e.xml").write_text(place_tables.ome_xml(TILES), encoding="utf-8")
    for path in [*tables, tmp_path / "e.xml"]:
        found = {place.file: place.position for place in read_places(path)}
        assert found == dict(zip(FILES, STATED, strict=True)), path
