"""The map of a section's tiles: what it draws lies where the tiles do."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from octane.pictures.charts import DARK_PALETTE
from octane.pictures.pictures import Scale
from octane.pictures.tile_map import (
    ALL_MOVES,
    LEFT,
    LONGEST_ARROW,
    MAP_EDGE,
    TOP,
    Arrows,
    Thumbnail,
    arrow_scale,
    assemble_thumbnail,
    overlaps,
    placed_tiles,
    tile_map,
)

SVG = "{http://www.w3.org/2000/svg}"
# Three rows of two tiles of 100 x 200 um; the last row is cut to 40 um. 320 um are 640 pixels.
PLACES = {(r, c): (80.0 * r, 120.0 * c) for r in range(3) for c in range(2)}
SIZES = ((100.0, 200.0), (240.0, 400.0))
ZOOM = MAP_EDGE / 320


def drawn(tiles, thumbnail=None, arrows=ALL_MOVES):
    """Paths of a map by colour and width, and its words with their places."""
    root = ElementTree.fromstring(tile_map(tiles, thumbnail, arrows))
    paths = {}
    for path in root.iter(f"{SVG}path"):
        look = path.get("stroke") or path.get("fill"), path.get("stroke-width")
        # The legend's samples follow.
        paths.setdefault(look, path.get("d"))
    words = {
        text.text: (float(text.get("y", "nan")), float(text.get("x", "nan")))
        for text in root.iter(f"{SVG}text")
    }
    return root, paths, words


def boxes(path):
    """Corner and extent (y, x) of each rectangle of a path, in micrometres."""
    number = r"(-?[\d.]+)"
    found = re.findall(rf"M{number} {number}h{number}v{number}h-{number}z", path)
    return [
        (((float(y) - TOP) / ZOOM, (float(x) - LEFT) / ZOOM), (float(h) / ZOOM, float(w) / ZOOM))
        for x, y, w, h, _ in found
    ]


def test_each_tile_is_drawn_at_its_place_and_size():
    _, paths, words = drawn(placed_tiles(PLACES, *SIZES))
    found = boxes(paths[DARK_PALETTE["accent"], "1.2"])
    expected = [((80 * r, 120 * c), (40 if r == 2 else 100, 200)) for r, c in PLACES]
    np.testing.assert_allclose(found, expected, atol=0.06)
    # x to the right and y down, and numbers along the margins and in the tiles.
    assert words["1,0"][1] < words["1,1"][1]
    assert words["0,1"][0] < words["1,1"][0]
    assert not any("imaged" in text or "refinement" in text for text in words)


def test_overlaps_are_what_tiles_share():
    tiles = placed_tiles(
        {(0, 0): (0, 0), (0, 1): (5, 80), (1, 0): (90, -3)}, (100, 100), (200, 200)
    )
    assert overlaps(tiles) == [((5, 80), (95, 20)), ((90, 0), (10, 97)), ((90, 80), (15, 17))]
    # Tiles that lie apart share nothing, nor does one that was not imaged.
    assert overlaps(placed_tiles({(0, 0): (0, 0), (0, 1): (0, 120)}, (100, 100), (100, 200))) == []
    lost = placed_tiles({(0, 0): (0, 0), (0, 1): (0, 80)}, *SIZES, not_imaged=[(0, 1)])
    assert overlaps(lost) == []


def test_a_tile_that_was_not_imaged_is_crossed_out():
    _, paths, words = drawn(placed_tiles(PLACES, *SIZES, not_imaged=[(1, 1)]))
    path = paths[DARK_PALETTE["alarm"], "1.2"]
    np.testing.assert_allclose(boxes(path), [((80, 120), (100, 200))], atol=0.06)
    assert path.count("l") == 2
    assert len(boxes(paths[DARK_PALETTE["accent"], "1.2"])) == len(PLACES) - 1
    assert "not imaged: 1 of 6 tiles" in words


@pytest.mark.parametrize("move", [(0.0, 4.0), (-3.0, 0.0), (2.5, -2.5)])
def test_an_arrow_shows_where_a_tile_was_moved_and_how_far(move):
    moved = {**PLACES, (0, 1): (move[0], 120 + move[1])}
    tiles = placed_tiles(moved, *SIZES, before=PLACES)
    times = arrow_scale(tiles)
    length = float(np.hypot(*move))
    # The longest arrow is at most REACH of the smallest edge, 40 um, and more than a third of it.
    assert LONGEST_ARROW / 3 * 40 < times * length <= LONGEST_ARROW * 40
    _, paths, words = drawn(tiles, arrows=Arrows(times, length))
    number = r"(-?[\d.]+)"
    (shaft,) = re.findall(
        rf"M{number} {number}L{number} {number}", paths[DARK_PALETTE["before"], "2"]
    )
    x, y, to_x, to_y = map(float, shaft)
    # From the former centre; the area begins where the topmost tile does.
    top = min(0.0, move[0])
    zoom = MAP_EDGE / max(320 + max(0, move[1]), 200 - top)
    np.testing.assert_allclose((y, x), (TOP + (50 - top) * zoom, LEFT + 220 * zoom), atol=0.06)
    np.testing.assert_allclose((to_y - y, to_x - x), np.multiply(move, times * zoom), atol=0.11)
    (said,) = [text for text in words if "refinement" in text]
    assert said.endswith(f"by up to {length:.3g} µm, arrows {times:g} times as long")


def test_arrows_share_a_scale_and_noise_has_none():
    def moved(by, least):
        tiles = placed_tiles({**PLACES, (1, 1): (80.0, 120 + by)}, *SIZES, before=PLACES)
        _, paths, words = drawn(tiles, arrows=Arrows(10.0, least))
        return paths.get((DARK_PALETTE["before"], "2")), [
            text for text in words if "refinement" in text
        ]

    arrow, (words,) = moved(0.25, 0.2)
    assert arrow is not None
    assert words.endswith("arrows 10 times as long")
    assert moved(0.15, 0.2) == (
        None,
        ["moved by refinement by up to 150 nm, too little for arrows"],
    )


def test_a_tile_that_does_not_fit_is_outlined_in_the_colour_of_alarm():
    _, paths, words = drawn(placed_tiles(PLACES, *SIZES, misplaced=[(1, 0)]))
    np.testing.assert_allclose(
        boxes(paths[DARK_PALETTE["alarm"], "2.4"]), [((80, 0), (100, 200))], atol=0.06
    )
    assert "does not fit its neighbours: 1 of 6 tiles" in words
    assert {"y ↓, row", "x →, column"} <= words.keys()


def test_many_tiles_are_numbered_in_the_margins_alone():
    places = {(r, c): (80.0 * r, 80.0 * c) for r in range(60) for c in range(60)}
    root, *_ = drawn(placed_tiles(places, (100.0, 100.0), (6000.0, 6000.0)))
    found = [
        (t.text, float(t.get("y", "nan")), float(t.get("x", "nan")))
        for t in root.iter(f"{SVG}text")
    ]
    numbers = [(y, x) for text, y, x in found if text.isdecimal()]
    rows, columns = [y for y, x in numbers if x < LEFT], [x for y, x in numbers if y < TOP]
    assert len(rows) + len(columns) == len(numbers)
    for shown, apart in ((rows, 13), (columns, 22)):
        assert len(shown) > 15
        assert np.diff(shown).min() >= apart
    assert not any(
        "," in text for text, y, _ in found if y < TOP + MAP_EDGE and text[0].isdecimal()
    )


def test_the_thumbnail_lies_under_the_tiles():
    tiles = placed_tiles(PLACES, *SIZES)
    values = np.zeros((50, 80), np.float32)
    root, *_ = drawn(tiles, Thumbnail.over(tiles, values, Scale(0, 1)))
    (image,) = root.iter(f"{SVG}image")
    place = [float(image.get(name, "nan")) for name in ("y", "x", "height", "width")]
    np.testing.assert_allclose(place, (TOP, LEFT, 200 * ZOOM, 320 * ZOOM), atol=0.06)
    assert image.get("href").startswith("data:image/webp;base64,")
    assert next(iter(root)) is image


def test_a_thumbnail_is_assembled_from_the_tiles_at_their_places():
    tiles = placed_tiles(PLACES, *SIZES, not_imaged=[(2, 1)])
    made = assemble_thumbnail(tiles, lambda tile: np.full((30, 50), 10 * tile[0] + tile[1] + 1.0))
    assert (made.corner, made.extent) == ((0, 0), (200, 320))
    assert made.values.shape == (240, 384)

    def at(y, x):
        return made.values[round(y * 1.2), round(x * 1.2)]

    assert [at(40, 60), at(40, 300), at(130, 60), at(190, 60)] == [1, 2, 11, 21]
    # Nothing is read of what was not imaged.
    assert at(190, 300) == 0
