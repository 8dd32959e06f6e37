"""Charts of the report: arrays in, paths in pixels out, from which a template makes SVG.

Colours are variables of the page's style sheet, so that one SVG serves light and dark screens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from octane.pictures.pictures import round_length

LIGHT_PALETTE = {
    **{"card": "#ffffff", "ink": "#1b2026", "muted": "#57606a", "grid": "#e4e7eb"},
    **{"before": "#c4570a", "accent": "#0a62ad", "alarm": "#b42318"},
}
"""Colours of light screens by CSS variable."""
DARK_PALETTE = {
    **{"card": "#171b21", "ink": "#e8eaed", "muted": "#a5adb8", "grid": "#303741"},
    **{"before": "#f5a35c", "accent": "#6bb6f5", "alarm": "#ff8a80"},
}
"""Colours of dark screens by CSS variable."""
Band = tuple[float, float, bool]
"""Start and end of a section along z, micrometres, and whether it is missing."""
Span = tuple[float, float]
CHART_SIZE = (480, 320)
"""Width and height of a chart, pixels."""
WIDE_CHART_SIZE = (960, 300)
"""Width and height of a chart across the page, pixels."""
BOX, BAR, DOT = "m0 -5h24v10h-24z", "m12 -6v12", "m12 0h0"
"""Legend samples of an area, an upright line and a point, drawn from the left end."""


class Mark(NamedTuple):
    """A path and its look: a stroke, or an area without width; a label adds it to the legend."""

    path: str
    colour: str
    width: float = 0
    label: str = ""
    dash: str = "none"
    opacity: float = 1
    sample: str = "h24"


@dataclass(frozen=True)
class Axes:
    """Ranges and names of x and y on a chart; ``step`` is the minimum distance of x labels."""

    size: tuple[int, int]
    x: Span
    y: Span
    names: tuple[str, str]
    step: float = 0

    @property
    def edges(self) -> tuple[int, int, int, int]:
        """Left, right, top and bottom of the plot, with room for labels around it."""
        return 84, self.size[0] - 24, 34, self.size[1] - 46

    def across(self, x: npt.ArrayLike) -> npt.NDArray:
        """Map x to pixels, with a margin at both ends."""
        part = (np.asarray(x, float) - self.x[0]) / (self.x[1] - self.x[0])
        left, right, *_ = self.edges
        return left + (right - left) * (0.02 + 0.96 * part)

    def down(self, y: npt.ArrayLike) -> npt.NDArray:
        """Map y to pixels."""
        part = (np.asarray(y, float) - self.y[0]) / (self.y[1] - self.y[0])
        *_, top, bottom = self.edges
        return bottom - (bottom - top) * part

    def line(self, x: npt.ArrayLike, y: npt.ArrayLike) -> str:
        """Join points; a NaN in y is a gap, and a point between gaps a dot."""
        right, low = (
            points.ravel() for points in np.broadcast_arrays(self.across(x), self.down(y))
        )
        known = np.isfinite(low)
        begins = known & ~np.concatenate([[False], known[:-1]])
        pieces = zip(right[known], low[known], begins[known], strict=True)
        return "".join(
            f"M{a:.1f} {b:.1f}h0" if new else f"L{a:.1f} {b:.1f}" for a, b, new in pieces
        )

    def points(self, x: npt.NDArray, y: npt.NDArray) -> str:
        """Draw dots, except where y is NaN."""
        return self.line(x[:, None], np.stack([y, np.full(len(y), np.nan)], axis=-1))

    @property
    def ticks(self) -> tuple[list[tuple[float, str]], list[tuple[float, str]]]:
        """Positions of round values of x and of y, with their labels."""
        across, down = _round(self.x, self.size[0] / 75, self.step), _round(self.y, 9)
        return (
            [(place, f"{v:.6g}") for place, v in zip(self.across(across), across, strict=True)],
            [(place, f"{v:.6g}") for place, v in zip(self.down(down), down, strict=True)],
        )


class Chart(NamedTuple):
    """Axes, marks on them, and words at points."""

    axes: Axes
    marks: list[Mark]
    words: Sequence[tuple[float, float, int]] = ()


def _round(span: Span, most: float, least: float = 0) -> npt.NDArray:
    """Choose at most ``most`` round values in a range, at least ``least`` apart."""
    step = max(round_length(2.5 * (span[1] - span[0]) / most), least)
    return step * np.arange(np.ceil(span[0] / step - 1e-9), np.floor(span[1] / step + 1e-9) + 1) + 0


def _span(*values: npt.NDArray) -> Span:
    """Find the range of all finite values; widen that of a single value."""
    known = np.concatenate([v[np.isfinite(v)] for v in values])
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def profile_chart(
    z: npt.NDArray, before: npt.NDArray, after: npt.NDArray, bands: Sequence[Band]
) -> Chart:
    """Draw the mean in the mask per plane (NaN: none), with the sections' boundaries.

    ``z`` is the position of each plane in micrometres; missing ``bands`` are shaded.
    """
    unit, scale = ("mm", 1000.0) if z.size and z.max() >= 5000 else ("µm", 1.0)
    edges = np.array([band[:2] for band in bands]).reshape(-1, 2) / scale
    gaps = edges[[band[2] for band in bands]]
    low, high = _span(before, after)
    # The axis begins at zero, so that a flat profile looks flat.
    low, high = min(low, 0.0), max(1.1 * high, 0.0)
    axes = Axes(
        WIDE_CHART_SIZE, _span(z / scale, edges), (low, high), (f"z ({unit})", "mean in tissue")
    )
    shaded = axes.line(gaps[:, [0, 0, 1, 1, 1]], [low, high, high, low, np.nan])
    cuts = axes.line(np.unique(edges)[1:-1, None], [low, high, np.nan])
    missing, boundary = "missing or excluded section (blank)", "section boundary"
    return Chart(
        axes,
        [
            Mark(shaded, "alarm", label=missing * bool(shaded), opacity=0.2, sample=BOX),
            Mark(cuts, "muted", 0.8, boundary * bool(cuts), "1 3"),
            Mark(axes.line(z / scale, before), "before", 1.6, "before N4", "4 4"),
            Mark(axes.line(z / scale, after), "accent", 1.8, "after N4"),
        ],
    )


def histogram_chart(edges: npt.NDArray, before: npt.NDArray, after: npt.NDArray) -> Chart:
    """Draw the counts in the mask before and after, on the same bins."""
    high = 1.05 * _span(before, after)[1]
    axes = Axes(CHART_SIZE, _span(edges), (0.0, high), ("intensity", "voxels in tissue"))
    x = np.repeat(edges, 2)
    old, new = (axes.line(x, np.pad(np.repeat(counts, 2), 1)) for counts in (before, after))
    return Chart(
        axes,
        [
            Mark(old, "before", opacity=0.16),
            Mark(new, "accent", opacity=0.16),
            Mark(old, "before", 1.6, "before N4", "4 4"),
            Mark(new, "accent", 1.6, "after N4"),
        ],
    )


def seam_chart(
    numbers: Sequence[int], medians: Sequence[float], largest: Sequence[float], limit: float
) -> Chart:
    """Draw the mismatch at the seams per section; those above ``limit`` are marked by number."""
    n, middle, top = np.array(numbers), 100 * np.array(medians), 100 * np.array(largest)
    limit *= 100
    high = 1.05 * _span(np.append(top, limit))[1]
    axes = Axes(
        WIDE_CHART_SIZE, _span(n), (0.0, high), ("section", "mismatch at seams (%)"), step=1
    )
    far = middle > limit
    bars = axes.line(n[:, None], np.stack([middle, top, np.full(len(n), np.nan)], axis=-1))
    dots, odd = (axes.points(n, np.where(where, middle, np.nan)) for where in (~far, far))
    return Chart(
        axes,
        [
            Mark(bars, "muted", 1.2, "up to the section's largest seam", sample=BAR),
            Mark(dots, "accent", 7, "median seam", sample=DOT),
            Mark(odd, "alarm", 9, "outlier" * bool(odd), sample=DOT),
            Mark(axes.line(axes.x, limit), "before", 1.6, "outlier limit", "4 4"),
        ],
        [*zip(axes.across(n[far]), axes.down(middle[far]), n[far].tolist(), strict=True)],
    )


def length_chart(
    numbers: Sequence[int],
    lengths: npt.NDArray,
    bar: str,
    marked: Sequence[bool],
    plane: float,
) -> Chart:
    """Draw a length of each section in micrometres; those of ``marked`` sections are numbered.

    The rows of ``lengths`` are the measured one, the one used, and half the height of a ``bar``
    around the measured one; NaN: unknown. The axis extends a ``plane`` beyond them, so that small
    differences look small.
    """
    n, odd, (measured, used, half) = np.array(numbers), np.array(marked), lengths
    ends = np.stack([measured - half, measured + half, np.full(len(n), np.nan)], axis=-1)
    low, high = _span(ends, measured, used)
    axes = Axes(WIDE_CHART_SIZE, _span(n), (low - plane, high + plane), ("section", "µm"), step=1)
    bars, places = axes.line(n[:, None], ends), np.where(np.isfinite(measured), measured, used)
    words = zip(axes.across(n[odd]), axes.down(places[odd]), n[odd].tolist(), strict=True)
    return Chart(
        axes,
        [
            Mark(bars, "muted", 1.2, bar * bool(bars), sample=BAR),
            Mark(axes.line(n, used), "before", 1.6, "used", "4 4"),
            Mark(axes.points(n, measured), "accent", 7, "measured", sample=DOT),
        ],
        [*words],
    )


def displacement_chart(
    numbers: Sequence[int], named: Mapping[str, npt.ArrayLike], limit: float, unit: str
) -> Chart:
    """Draw section displacements in ``unit``; those beyond ``limit`` are numbered.

    ``named`` holds the components of the displacements by name. The axis reaches beyond the limit,
    so that a small displacement looks small.
    """
    n, values = np.array(numbers), np.array([*named.values()], float)
    odd = np.linalg.norm(values, axis=0) > limit
    reach = 1.2 * max(limit, float(np.abs(values).max()))
    axes = Axes(WIDE_CHART_SIZE, _span(n), (-reach, reach), ("section", unit), step=1)
    ends = axes.line([*axes.x, np.nan], [[v, v, np.nan] for v in (limit, -limit)])
    marks = [
        Mark(axes.points(n, moves), colour, 7, name, sample=DOT)
        for moves, name, colour in zip(values, named, ("accent", "before"), strict=False)
    ]
    most = np.take_along_axis(values, np.abs(values).argmax(axis=0)[None], axis=0)[0]
    words = zip(axes.across(n[odd]), axes.down(most[odd]), n[odd].tolist(), strict=True)
    return Chart(axes, [*marks, Mark(ends, "muted", 1.6, "limit", "4 4")], [*words])
