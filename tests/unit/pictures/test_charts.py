import re

import numpy as np
import pytest

from octane.pictures import charts
from octane.pictures.charts import Axes, Chart

Z = np.arange(20.0) * 10
GAPPY = np.where(np.arange(20) % 7 == 0, np.nan, 100.0)
EMPTY = np.full(20, np.nan)
EDGES = np.linspace(0, 10, 11)
BANDS = [(0, 50, False), (50, 100, True), (100, 195, False)]
CHARTS = {
    "profile": charts.profile_chart(Z, GAPPY, GAPPY / 2, BANDS),
    "profile, empty": charts.profile_chart(Z, EMPTY, EMPTY, []),
    "profile, a plane": charts.profile_chart(Z[:1], Z[:1], Z[:1], []),
    "profile, below zero": charts.profile_chart(Z, -GAPPY, -GAPPY / 2, BANDS),
    "histogram": charts.histogram_chart(EDGES, np.arange(10), np.arange(10)[::-1]),
    "histogram, empty": charts.histogram_chart(EDGES, np.zeros(10), np.zeros(10)),
    "seams": charts.seam_chart([1, 2, 3], [0.1, 0.1, 0.5], [0.2, 0.2, 0.6], 0.2),
    "seams, none": charts.seam_chart([1, 2], [0.0, 0.0], [0.0, 0.0], 0.0),
    "lengths": charts.length_chart(
        [1, 2, 4],
        np.array([[40, 45, np.nan], [40, 40, 42], [2, np.nan, np.nan]]),
        "range",
        [False, True, True],
        10,
    ),
    "shifts": charts.displacement_chart([1, 2, 4], {"y": [0.2, -8, 3], "x": [0, 8, 4]}, 10, "µm"),
    "shifts, small": charts.displacement_chart([1, 2], {"y": [0.2, -0.2]}, 10, "µm"),
    "rotations": charts.displacement_chart([6, 7], {"rotation": [1, -3]}, 1, "degrees"),
}


def places(path: str) -> np.ndarray:
    """Corners of a path in pixels, without its initial dots."""
    return np.array([own.split() for own in re.findall(r"[ML]([-\d.]+ [-\d.]+)", path)], float)


def labels(chart: Chart) -> list[str]:
    return [mark.label for mark in chart.marks if mark.label]


@pytest.mark.parametrize("name", CHARTS)
def test_charts_lie_within_their_axes(name: str) -> None:
    chart = CHARTS[name]
    left, right, top, bottom = chart.axes.edges
    drawn = [places(mark.path) for mark in chart.marks if mark.path]
    across, down = np.concatenate([*drawn, np.empty((0, 2))]).T
    assert len(across) > 1 or "empty" in name
    assert np.all((left <= across) & (across <= right) & (top <= down) & (down <= bottom))
    assert all(len(ticks) > 1 for ticks in chart.axes.ticks)


def test_points_are_joined_up_to_a_gap() -> None:
    axes = Axes((500, 300), (0.0, 4.0), (0.0, 1.0), ("x", "y"))
    path = axes.line([0, 1, 2, 3, 4], [0, 1, np.nan, 1, np.nan])
    # A line of two points, and a dot.
    assert re.sub(r"[\d. ]+", "", path.replace("h0", "h")) == "MhLMh"
    assert places(path)[:, 1].tolist() == [axes.edges[3], axes.edges[2], axes.edges[2]]


def test_the_profile_marks_boundaries_and_gaps() -> None:
    chart = CHARTS["profile"]
    shaded, cuts, *_ = chart.marks
    assert labels(chart)[:2] == ["missing or excluded section (blank)", "section boundary"]
    ends = chart.axes.across([50, 100])
    np.testing.assert_allclose(np.unique(places(shaded.path)[:, 0]), ends, atol=0.1)
    np.testing.assert_allclose(np.unique(places(cuts.path)[:, 0]), ends, atol=0.1)
    far = charts.profile_chart(Z * 1000, GAPPY, GAPPY, [])
    assert labels(far) == ["before N4", "after N4"]
    assert far.axes.names[0] == "z (mm)"
    assert far.axes.x == (0, 190)


def test_a_length_that_is_unknown_is_numbered_where_one_is_used() -> None:
    chart = CHARTS["lengths"]
    assert [text for *_, text in chart.words] == [2, 4]
    np.testing.assert_allclose([y for _, y, _ in chart.words], chart.axes.down([45, 42]))
    bars, used, dots = (places(mark.path) for mark in chart.marks)
    # A bar whose length is unknown is left out, as is the dot of what was not measured.
    assert (len(bars), len(used), len(dots)) == (2, 3, 2)
    assert labels(chart) == ["range", "used", "measured"]
    # The axis reaches one plane of 10 micrometres beyond all of them.
    assert chart.axes.y == (28, 55)


def test_outlying_seams_are_named() -> None:
    chart = CHARTS["seams"]
    assert [text for *_, text in chart.words] == [3]
    assert "outlier" in labels(chart)
    assert "outlier" not in labels(CHARTS["seams, none"])
    # At the right end there is room for four bold digits of 8 pixels, 8 pixels from the dot.
    assert chart.words[0][0] + 8 + 4 * 8 <= chart.axes.size[0]


def test_the_axis_of_displacements_reaches_to_their_limit_so_that_small_ones_look_small() -> None:
    small, far = CHARTS["shifts, small"], CHARTS["rotations"]
    (zero,) = (place for place, label in small.axes.ticks[1] if label == "0")
    dots, limit = (places(mark.path)[:, 1] for mark in small.marks)
    # A fiftieth of the limit is a fiftieth of the way to it.
    assert abs(dots - zero) * 50 == pytest.approx(abs(limit[[0, 2]] - zero), abs=3)
    assert (small.words, [text for *_, text in far.words]) == ([], [7])
    assert labels(far) == ["rotation", "limit"]
    assert far.axes.y[0] < -3 < 3 < far.axes.y[1]
    assert (small.axes.names[1], far.axes.names[1]) == ("µm", "degrees")


def test_a_section_is_named_where_its_whole_shift_is_beyond_the_limit() -> None:
    # Neither along y nor along x by itself.
    assert [text for *_, text in CHARTS["shifts"].words] == [2]
