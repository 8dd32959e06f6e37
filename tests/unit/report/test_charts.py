from collections.abc import Callable
from io import BytesIO

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.image import imread

from octane.report import charts
from octane.report.charts import DARK, LIGHT, Picture, Scale, Theme


def decoded(data: bytes, kind: str = "webp") -> npt.NDArray:
    pixels = np.asarray(imread(BytesIO(data), format=kind), np.float64)
    # Matplotlib hands PNG as fractions and the rest as bytes.
    return pixels if kind == "png" else pixels / 255


def middle(picture: Picture) -> npt.NDArray:
    return decoded(picture.data)[picture.height // 2, picture.width // 2, :3]


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
    picture = charts.panel(
        np.arange(float(np.prod(shape))).reshape(shape), spacing, Scale(0, 1, "gray")
    )
    assert (picture.width, picture.height) == expected
    assert decoded(picture.data).shape[:2] == (picture.height, picture.width)


def test_rows_run_down_and_columns_to_the_right() -> None:
    array = np.array([[0.0, 1.0], [0.0, 0.0]])
    pixels = decoded(charts.panel(array, (1, 1), Scale(0, 1, "gray"), bar=False).data)[..., 0]
    assert pixels[100, 400] > 0.9
    assert pixels[400, 400] < 0.1
    assert pixels[100, 100] < 0.1


def test_one_scale_covers_all_arrays_and_gives_equal_values_equal_greys() -> None:
    dim = np.linspace(0, 100, 400).reshape(20, 20)
    scale = charts.grey_scale([dim, 4 * dim])
    assert scale.low < 5
    assert scale.high > 350
    grey = middle(charts.panel(np.full((20, 20), 100.0), (1, 1), scale, bar=False))[0]
    assert grey == pytest.approx((100 - scale.low) / (scale.high - scale.low), abs=0.02)


def test_scales_of_nothing_and_of_one_value_are_ranges() -> None:
    for value in (7.0, np.nan, 0.0):
        scale = charts.grey_scale([np.full((3, 3), value)])
        assert scale.low < scale.high
    assert charts.field_scale([np.full((3, 3), np.nan)]).low < 1


def test_the_field_scale_is_centred_at_one_and_treats_halves_as_doubles() -> None:
    scale = charts.field_scale([np.array([[0.5, 1.0], [1.0, 1.2]])])
    assert scale.low * scale.high == pytest.approx(1)
    assert scale.high == pytest.approx(2, rel=0.01)
    assert scale.norm(1.0) == pytest.approx(0.5)
    low, one, high = (
        middle(charts.panel(np.full((4, 4), value), (1, 1), scale, bar=False))
        for value in (0.5, 1, 2)
    )
    assert np.ptp(one) < 0.03
    assert one.min() > 0.93
    assert high[0] > high[2]
    assert low[2] > low[0]
    assert len(scale.colours) == 11


@pytest.mark.parametrize("value", [np.nan, 0.0, -1.0])
def test_what_is_no_field_is_grey(value: float) -> None:
    scale = Scale(0.5, 2, "RdBu_r", logarithmic=True)
    pixel = middle(charts.panel(np.full((4, 4), value), (1, 1), scale, bar=False))
    np.testing.assert_allclose(pixel, 0.5, atol=0.03)


@given(st.floats(1e-2, 1e6))
def test_a_scale_bar_is_round_and_fits(extent: float) -> None:
    bar = charts.round_length(extent)
    assert charts.length(bar).split()[1] == ("mm" if bar >= 1000 else "µm")
    assert 0.1 * extent < bar <= 0.3 * extent * (1 + 1e-8)
    assert f"{bar:e}"[0] in "125"


def test_the_scale_bar_is_as_long_as_it_says() -> None:
    array = np.zeros((100, 100))
    pixels = decoded(charts.panel(array, (10, 10), Scale(0, 1, "gray")).data)[..., 0]
    row = pixels[496]
    # 1000 micrometres are 512 pixels; the bar is of 200.
    assert charts.round_length(1000) == 200
    assert (row > 0.5).sum() == pytest.approx(102, abs=4)
    without = decoded(charts.panel(array, (10, 10), Scale(0, 1, "gray"), bar=False).data)
    assert without[..., :3].max() < 0.05


def test_a_comparison_is_a_png() -> None:
    slices = [
        ("before", np.random.default_rng(0).random((20, 30)), Scale(0, 1, "gray")),
        ("field", np.ones((20, 30)), Scale(0.5, 2, "RdBu_r", True)),
    ]
    pixels = decoded(charts.comparison([(slices, (10, 10))]), "png")
    assert pixels.shape[1] > pixels.shape[0]
    # The field's colour bar shows both of its ends.
    assert (pixels[..., 0] - pixels[..., 2]).max() > 0.2
    assert (pixels[..., 2] - pixels[..., 0]).max() > 0.2


Z = np.arange(20.0) * 10
GAPPY = np.where(np.arange(20) % 7 == 0, np.nan, 100.0)
EMPTY = np.full(20, np.nan)
EDGES = np.linspace(0, 10, 11)
BANDS = [(0, 50, False), (50, 100, True), (100, 195, False)]
CHARTS: dict[str, Callable[[Theme], Figure]] = {
    "profile": lambda theme: charts.profile_chart(Z, GAPPY, GAPPY / 2, BANDS, theme),
    "profile, empty": lambda theme: charts.profile_chart(Z, EMPTY, EMPTY, [], theme),
    "histogram": lambda t: charts.histogram_chart(EDGES, np.arange(10), np.arange(10)[::-1], t),
    "histogram, empty": lambda t: charts.histogram_chart(EDGES, np.zeros(10), np.zeros(10), t),
    "seams": lambda t: charts.seam_chart([1, 2, 3], [0.1, 0.1, 0.5], [0.2, 0.2, 0.6], 0.2, t),
    "seams, none": lambda t: charts.seam_chart([1, 2], [0.0, 0.0], [0.0, 0.0], 0.0, t),
}


@pytest.mark.parametrize("name", CHARTS)
def test_charts_of_little_are_drawn(name: str) -> None:
    CHARTS[name](LIGHT).savefig(BytesIO(), dpi=30)


def test_charts_come_for_light_and_dark_screens() -> None:
    light, dark, png = charts.themed(CHARTS["seams"])
    for picture, theme in ((light, LIGHT), (dark, DARK)):
        pixels = decoded(picture.data)
        assert pixels.shape[:2] == (picture.height, picture.width)
        np.testing.assert_allclose(pixels[0, 0, :3], to_rgb(theme.surface), atol=0.01)
        assert picture.uri.startswith("data:image/webp;base64,")
    np.testing.assert_allclose(decoded(png, "png")[0, 0, :3], to_rgb(LIGHT.surface), atol=0.01)


def drawn(figure: Figure, label: str) -> int:
    return sum(str(text.get_text()) == label for text in figure.legends[0].get_texts())


def test_the_profile_marks_boundaries_and_gaps() -> None:
    figure = charts.profile_chart(Z, GAPPY, GAPPY, BANDS, LIGHT)
    axes = figure.axes[0]
    assert {np.asarray(line.get_xdata())[0] for line in axes.lines[:2]} == {50, 100}
    assert len(axes.patches) == 1
    assert drawn(figure, "missing section (blank)") == 1
    figure = charts.profile_chart(Z * 1000, GAPPY, GAPPY, [], LIGHT)
    assert drawn(figure, "missing section (blank)") == 0
    assert figure.axes[0].get_xlabel() == "z (mm)"
    assert np.asarray(figure.axes[0].lines[0].get_xdata())[-1] == pytest.approx(190)


def test_outlying_seams_are_named() -> None:
    figure = CHARTS["seams"](LIGHT)
    assert [text.get_text() for text in figure.axes[0].texts] == ["3"]
    assert drawn(figure, "outlier") == 1
    assert drawn(CHARTS["seams, none"](LIGHT), "outlier") == 0
