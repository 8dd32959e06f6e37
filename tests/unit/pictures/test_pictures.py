from typing import cast

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from octane.pictures import pictures
from octane.pictures.pictures import Scale
from octane.pictures.tile_map import placed_tiles, tile_map
from octane.processes.report.gallery import Gallery


def pixels_of(picture: Image.Image) -> npt.NDArray:
    return np.asarray(picture.convert("RGB")) / 255


def middle(picture: Image.Image) -> npt.NDArray:
    return pixels_of(picture)[picture.height // 2, picture.width // 2]


@pytest.mark.parametrize(
    ("shape", "spacing", "expected"),
    [
        ((40, 40), (10.0, 10.0), (512, 512)),
        ((40, 40), (20.0, 10.0), (256, 512)),
        ((10, 80), (40.0, 10.0), (512, 256)),
        ((7, 300), (1.0, 10.0), (512, 2)),
    ],
)
def test_a_panel_has_the_physical_aspect(
    shape: tuple[int, int], spacing: tuple[float, float], expected: tuple[int, int]
) -> None:
    picture = pictures.panel(np.arange(float(np.prod(shape))).reshape(shape), spacing, Scale(0, 1))
    assert picture.size == expected


def test_rows_run_down_and_columns_to_the_right() -> None:
    array = np.array([[0.0, 1.0], [0.0, 0.0]])
    pixels = pixels_of(pictures.panel(array, (1, 1), Scale(0, 1), bar=False))[..., 0]
    assert pixels[100, 400] > 0.9
    assert pixels[400, 400] < 0.1
    assert pixels[100, 100] < 0.1


def test_scales_of_nothing_and_of_one_value_are_ranges() -> None:
    for value in (7.0, np.nan, 0.0, True):
        scale = pictures.grey_scale([np.full((3, 3), value)])
        assert scale.low < scale.high
    assert pictures.field_scale([np.full((3, 3), np.nan)]).low < 1


def test_the_field_scale_is_centred_at_one_and_treats_halves_as_doubles() -> None:
    scale = pictures.field_scale([np.array([[0.5, 1.0], [1.0, 1.2]])])
    assert scale.low * scale.high == pytest.approx(1)
    assert scale.high == pytest.approx(2, rel=0.01)
    low, one, high = (
        middle(pictures.panel(np.full((4, 4), value), (1, 1), scale, bar=False))
        for value in (0.5, 1, 2)
    )
    assert np.ptp(one) < 0.03
    assert one.min() > 0.93
    assert high[0] > high[2]
    assert low[2] > low[0]
    assert len(scale.colours) == 11
    # Invalid values of a field are grey.
    for value in (np.nan, 0.0, -1.0):
        pixel = middle(pictures.panel(np.full((4, 4), value), (1, 1), scale, bar=False))
        np.testing.assert_allclose(pixel, 0.5, atol=0.03)


@given(st.floats(1e-2, 1e6))
def test_a_scale_bar_is_round_and_fits(extent: float) -> None:
    bar = pictures.bar_of(extent)
    number, unit = pictures.in_mm(bar).split()
    assert unit == "mm"
    assert float(number) == pytest.approx(bar / 1000)
    assert 0.1 * extent < bar <= 0.3 * extent * (1 + 1e-8)
    assert f"{bar:e}"[0] in "125"


@pytest.mark.parametrize(("count", "written"), [(4, [1, 2, 3, 4]), (60, [*range(10, 61, 10)])])
def test_as_many_numbers_of_sections_are_written_as_there_is_room_for(
    count: int, written: list[int]
) -> None:
    numbers = [(k, (k - 0.5) / count) for k in range(1, count + 1)]
    blank, scale = np.zeros((40, 80)), Scale(0, 1)
    picture = pixels_of(pictures.panel(blank, (1, 1), scale, bar=False, numbers=numbers))[..., 0]
    lit = np.flatnonzero(picture.any(axis=1))
    groups = np.split(lit, np.flatnonzero(np.diff(lit) > 1) + 1)
    places = [float(np.mean(group[[0, -1]])) / len(picture) for group in groups]
    np.testing.assert_allclose(places, [dict(numbers)[k] for k in written], atol=0.05)
    # They are whole, and stand at the right edge.
    assert not picture[:, :450].any()
    assert not np.concatenate([picture[:, -1], picture[0], picture[-1]]).any()


def test_the_scale_bar_is_as_long_as_it_says() -> None:
    array = np.zeros((100, 100))
    pixels = pixels_of(pictures.panel(array, (10, 10), Scale(0, 1)))[..., 0]
    row = pixels[496]
    # 1000 micrometres are 512 pixels; the bar is 200 micrometres long.
    assert pictures.bar_of(1000) == 200
    assert (row > 0.5).sum() == pytest.approx(102, abs=4)
    without = pixels_of(pictures.panel(array, (10, 10), Scale(0, 1), bar=False))
    assert without.max() < 0.05


def test_a_slice_of_few_voxels_across_is_drawn() -> None:
    for array in map(np.ones, ((500, 1), (500, 5), (500, 20))):
        assert pictures.panel(array, (10, 10), Scale(0, 1), longest=216).height == 216
        assert pictures.comparison([([("volume", array, Scale(0, 1))], (10, 10))])


def test_a_composite_adds_channels_in_their_colours():
    full, half = np.array([[0.0, 10.0]]), np.array([[np.nan, 5.0]])
    scale = pictures.Scale(0, 10)
    layers = [(full, scale, "FF0000"), (full, scale, "00FF80"), (half, scale, "FF0000")]
    assert np.asarray(pictures.composite(layers)).tolist() == [[[0, 0, 0], [255, 255, 128]]]


def test_all_scale_bars_of_a_page_have_one_length():
    gallery = Gallery(width=300.0)
    shape = {"volume_z": (30, 200), "volume_y": (50, 200), "volume_x": (50, 30)}
    arrays = {name: np.zeros(size) for name, size in shape.items()}
    rows = gallery.cuts("v", (10.0, 10.0, 10.0), {"volume": ("v", Scale(0, 1))}, arrays)
    assert [row["bar"] for row in rows] == ["0.05 mm"] * 3
    for row, (height, width) in zip(rows, shape.values(), strict=True):
        ((_, picture),) = cast("list[tuple[str, Image.Image]]", row["drawn"])
        pixels = pixels_of(picture)[..., 0]
        # In the row of the bar's middle.
        lit = (pixels[round(len(pixels) - 3.5 * picture.width / 100)] > 0.5).sum()
        expected = 50 / (10 * max(height, width)) * max(picture.size)
        assert lit == pytest.approx(expected, abs=4)
    tiles = placed_tiles({(0, 0): (0.0, 0.0)}, (300.0, 2000.0), (300.0, 2000.0))
    assert ">0.05 mm<" in tile_map(tiles, bar=gallery.bar)
