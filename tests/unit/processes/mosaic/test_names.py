"""Patterns of names, and their discovery where names leave no doubt."""

import pytest
from refusals import refused

from octane.core.errors import InputError
from octane.processes.mosaic.names import NamedFile, NamePattern, find_pattern


@pytest.mark.parametrize(
    ("names", "pattern"),
    [
        ("r0-c0.png, r0-c1.png, r1-c0.png", "r{row}-c{column}.png"),
        ("tile_X3_Y2.tif, tile_X3_Y3.tif, tile_X4_Y2.tif", "tile_X{column}_Y{row}.tif"),
        ("TileX1Y2.ome.tif, TileX1Y3.ome.tif, TileX2Y2.ome.tif", "TileX{column}Y{row}.ome.tif"),
        ("8bit_x001_y002.tif, 8bit_x001_y003.tif", "8bit_x{column}_y{row}.tif"),
        ("row 1 col 1.nii, row 1 col 2.nii", "row {row} col {column}.nii"),
        ("sec1/tile_1.tif, sec1/tile_2.tif", "sec{section}/tile_{tile}.tif"),
        ("sec1/sec1_1.tif, sec1/sec1_2.tif", "sec{section}/sec{section}_{tile}.tif"),
        ("im_7_001.tif, im_7_002.tif, im_7_010.tif", "im_7_{tile}.tif"),
        ("t1_z1.tif, t1_z2.tif, t2_z1.tif", "t{tile}_z{plane}.tif"),
        ("r1_c1_ch1.tif, r1_c2_ch1.tif, r1_c1_ch2.tif", "r{row}_c{column}_ch{channel}.tif"),
        ("0, 1, 2", "{tile}"),
        ("whole.tif", "whole.tif"),
        # Micro-Manager, Opera Phenix, ImageXpress and ThorImage.
        (
            "a_MMStack_1-Pos000_000.ome.tif, a_MMStack_1-Pos001_000.ome.tif",
            "a_MMStack_1-Pos{column}_{row}.ome.tif",
        ),
        (
            "Images/r02c03f01p01-ch1sk1fk1fl1.tiff, Images/r02c03f02p01-ch1sk1fk1fl1.tiff, "
            "Images/r02c03f01p02-ch2sk1fk1fl1.tiff",
            "Images/r02c03f{tile}p{plane}-ch{channel}sk1fk1fl1.tiff",
        ),
        ("p1_A01_s1_w1.TIF, p1_A01_s2_w1.TIF, p1_A01_s1_w2.TIF", "p1_A01_s{tile}_w{channel}.TIF"),
        (
            "TimePoint_1/ZStep_1/A01_s1_w1.tif, TimePoint_1/ZStep_2/A01_s1_w1.tif",
            "TimePoint_1/ZStep_{plane}/A01_s1_w1.tif",
        ),
        ("A01_s1_w1_z1.tif, A01_s2_w1_z2.tif", "A01_s{tile}_w1_z{plane}.tif"),
        (
            "A01_s1_w1D8BC6A1E-5D9D-4B4D-8B5B-1D7B2B3C4D5E.tif, "
            "A01_s2_w138BC6A1E-5D9D-4B4D-8B5B-1D7B2B3C4D5F.tif",
            "A01_s{tile}_w1*.tif",
        ),
        # A set for each section, with its number also in the names.
        (
            "slice 1/b_01_MMStack_1-Pos0_0.ome.tif, slice 1/b_01_MMStack_1-Pos1_0.ome.tif, "
            "slice 2/b_02_MMStack_1-Pos0_0.ome.tif, slice 2/b_02_MMStack_1-Pos1_0.ome.tif",
            "slice {section}/b_*_MMStack_1-Pos{column}_{row}.ome.tif",
        ),
        # One well, in a folder for each section.
        (
            "section1/A01_s1.tif, section1/A01_s2.tif, section2/A01_s1.tif, section2/A01_s2.tif",
            "section{section}/A01_s{tile}.tif",
        ),
        # A single tile of two planes.
        (
            "ChanA_0001_0001_0001_0001.tif, ChanA_0001_0001_0002_0001.tif",
            "ChanA_0001_0001_{plane}_0001.tif",
        ),
        (
            "ChanA_0001_0001_0001_0001.tif, ChanB_0001_0002_0001_0001.tif",
            "Chan{channel}_0001_{tile}_0001_0001.tif",
        ),
    ],
)
def test_a_pattern_is_found(names, pattern):
    assert find_pattern(names.split(", ")).text == pattern


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        ("1_2.tif, 1_3.tif, 2_2.tif", "such as 1_2.tif and 2_2.tif do not say what their num"),
        ("x1.tif, x2.tif", "give --tile_pattern"),
        ("r1_c1_5.tif, r1_c2_6.tif, r2_c1_7.tif", "give --tile_pattern"),
        ("r01c01f01p01-ch1sk1fk1fl1.tiff, r01c02f01p01-ch1sk1fk1fl1.tiff", "2 wells"),
        ("A01_s1_w1.tif, B01_s1_w1.tif", "ImageXpress.* 2 wells"),
        ("ChanA_0001_0001_0001_0001.tif, ChanA_0001_0001_0001_0002.tif", "2 time points"),
        ("1/A01_s1_w1.tif, 2/A01_s1_w1.tif", "--tile_pattern '{section}/A01_s1_w1.tif'"),
        ("1/A01_s1_w1.tif, 2/a_3_A01_s1_w1.tif", "--tile_pattern"),
        (
            "Run_1/ChanA_001_001_001_001.tif, Run_1/ChanA_001_002_001_001.tif, "
            "Run_2/ChanA_001_001_001_001.tif, Run_2/ChanA_Preview.tif",
            "ChanA_Preview.tif .* 'Run_{section}/ChanA_001_{tile}_001_001.tif', which leaves",
        ),
        (
            "A_Cut1_s01z01c1_ORG.tif, A_Cut1_s02z01c1_ORG.tif, A_Cut2_s01z02c1_ORG.tif",
            "'A_Cut{section}_s{tile}z{plane}c1_ORG.tif'",
        ),
        (
            "a-1/a-1_1.tif, a-1/a-1_2.tif, a-2/a-2_1.tif, a-2/a-2_2.tif",
            "'a-{section}/a-{section}_{tile}.tif'",
        ),
        (
            "A01_s1_w1D8BC6A1E-5D9D-4B4D-8B5B-1D7B2B3C4D5E.tif, "
            "A01_s1_w248BC6A1E-5D9D-4B4D-8B5B-1D7B2B3C4D5E.tif",
            "rename",
        ),
        ("t_1.tif, t_2.tif, overview.tif", "overview.tif is named unlike other tiles, such as t_1"),
    ],
)
def test_a_doubt_is_not_decided(names, sentence):
    with pytest.raises(InputError, match=sentence):
        find_pattern(names.split(", "))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{colour}_{tile}.tif", "{colour} is unknown; use {section}, {row}, {column}, {tile}"),
        ("{row}{column}.tif", "two fields touch"),
        ("{row}_{tile}.tif", "has {tile} as well as {row} or {column}"),
    ],
)
def test_a_pattern_that_cannot_be_read_is_refused(text, sentence):
    with pytest.raises(InputError) as raised:
        NamePattern.of(text)
    assert sentence in str(raised.value)


def test_a_pattern_of_many_stars_is_refused_and_adjacent_ones_are_one():
    name = f"{'a' * 200}_1.tif"
    assert NamedFile.read(name, NamePattern.of("*" * 30 + "_{tile}*.tif")).number == 1
    for many in ("*a" * 30, "{tile}1*a" * 5, "*a" * 5 + "{channel}a"):
        with refused("--tile_pattern"):
            NamePattern.of(many)
    pattern = NamePattern.of("a*a" * 4 + "{tile}")
    with pytest.raises(InputError, match="does not fit"):
        NamedFile.read("a" * 200, pattern)


def test_fields_are_read_and_other_signs_are_literal():
    pattern = NamePattern.of("{section}/a+b (*)_{channel}_{plane}_r{row}.tif")
    read = NamedFile.read("07/a+b (x y)_GFP_012_r03.tif", pattern)
    assert (read.section, read.row, read.column, read.plane) == (7, 3, None, 12)
    assert (read.channel, read.stem) == ("GFP", "07/a+b (x y)___r03.tif")
    for name in (
        "07/aab (x)_GFP_012_r03.tif",
        "7/8/a+b ()_GFP_012_r03.tif",
        "07/a+b (x)_G_1_r.tif",
    ):
        with refused("--tile_pattern"):
            NamedFile.read(name, pattern)


@pytest.mark.parametrize(
    ("pattern", "name", "fields"),
    [
        ("*{tile}.tif", "tile_12.tif", {"number": 12}),
        ("t{tile}*.tif", "t12.tif", {"number": 12}),
        ("x{column}_y{row}.tif", "x00044_y-0030.tif", {"column": 44, "row": -30}),
        (
            "Pos*_{column}_{row}/*_{channel}_{plane}.tif",
            "Pos0_002_010/img_000000000_GFP_012.tif",
            {"column": 2, "row": 10, "channel": "GFP", "plane": 12},
        ),
        (
            "*[{row} x {column}]_C{channel}_xyz-Table Z{plane}.ome.tif",
            "10-51-29_b_Blaze[00 x 12]_C01_xyz-Table Z0034.ome.tif",
            {"row": 0, "column": 12, "channel": "01", "plane": 34},
        ),
        (
            "{column}/{column}_{row}/*_{plane}.tif",
            "021600/021600_-00720/021600_-00720_000120.tif",
            {"column": 21600, "row": -720, "plane": 120},
        ),
    ],
)
def test_names_of_microscopes_are_read_whole(pattern, name, fields):
    read = NamedFile.read(name, NamePattern.of(pattern))
    assert {field: getattr(read, field) for field in fields} == fields


@pytest.mark.parametrize("number", ["1" + "0" * 30, "-1" + "0" * 30])
def test_a_number_that_no_grid_reaches_is_refused(number):
    names = [f"tile_r{row}_c0.tif" for row in ("0", number)]
    pattern = NamePattern.of("tile_r{row}_c{column}.tif")
    assert NamedFile.read("tile_r000000000000007_c0.tif", pattern).row == 7
    with refused(names[1], f"row {number}", "--tile_pattern"):
        NamedFile.read(names[1], pattern)
