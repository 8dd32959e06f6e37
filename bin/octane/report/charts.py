"""Pictures for the report: arrays in, WebP or PNG bytes out.

Figures are made without pyplot, whose global state is not safe in threads.
"""

import base64
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from io import BytesIO

import numpy as np
import numpy.typing as npt
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize, to_hex
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

GREY, DIVERGING = "gray", "RdBu_r"
FONT = 9
"""Size of all letters in pictures, points."""
Band = tuple[float, float, bool]
"""Begin and end of a section along z, micrometres, and whether it is missing."""
DPI = 200
"""Resolution of charts: twice that of a screen at their width on the page."""
CHART = (4.8, 3.2)
"""Width and height of a chart, inches."""
WIDE = (9.6, 3.0)
"""Width and height of a chart that takes the width of the page."""


@dataclass(frozen=True)
class Theme:
    """Colours of the charts for one colour scheme of the reader's screen."""

    surface: str
    ink: str
    muted: str
    grid: str
    before: str
    after: str
    alarm: str


LIGHT = Theme("#ffffff", "#1b2026", "#57606a", "#e4e7eb", "#c4570a", "#0a62ad", "#b42318")
DARK = Theme("#171b21", "#e8eaed", "#a5adb8", "#303741", "#f5a35c", "#6bb6f5", "#ff8a80")


@dataclass(frozen=True)
class Picture:
    """An encoded picture and its size in pixels."""

    data: bytes
    width: int
    height: int

    @property
    def uri(self) -> str:
        """The picture as a data URI."""
        return "data:image/webp;base64," + base64.b64encode(self.data).decode("ascii")


@dataclass(frozen=True)
class Scale:
    """Colours of values; pictures that are compared share one scale."""

    low: float
    high: float
    cmap: str
    logarithmic: bool = False

    @property
    def norm(self) -> Normalize:
        """Matplotlib's form of the range."""
        return (LogNorm if self.logarithmic else Normalize)(self.low, self.high, clip=True)

    @property
    def colours(self) -> list[str]:
        """Eleven colours from low to high, evenly spaced along the scale."""
        return [to_hex(colormaps[self.cmap](k / 10)) for k in range(11)]


Slice = tuple[str, npt.NDArray, Scale]
"""Title, values and colours of a picture."""


def grey_scale(arrays: Iterable[npt.NDArray]) -> Scale:
    """Choose one grey scale for all ``arrays``: their 0.5th to 99.5th percentile."""
    values = np.concatenate([a[np.isfinite(a)].ravel() for a in arrays])
    low, high = map(float, np.percentile(values, (0.5, 99.5))) if values.size else (0.0, 1.0)
    # A constant picture still needs a range.
    return Scale(low, high if high > low else low + 1.0, GREY)


def field_scale(fields: Iterable[npt.NDArray]) -> Scale:
    """Choose one diverging scale for multiplicative fields.

    It is logarithmic and symmetric about 1: halving and doubling look equally strong.
    """
    values = np.concatenate([f[np.isfinite(f) & (f > 0)].ravel() for f in fields])
    reach = float(np.percentile(np.abs(np.log(values)), 99.9)) if values.size else 0.0
    # Below one percent a field counts as flat; a scale that magnifies it would show noise.
    top = float(np.exp(max(reach, 0.01)))
    return Scale(1 / top, top, DIVERGING, logarithmic=True)


def round_length(extent: float) -> float:
    """Find the largest 1, 2 or 5 times a power of ten that is at most 0.3 of ``extent``."""
    target = 0.3 * extent
    power = 10.0 ** np.floor(np.log10(target))
    return float(max(k * power for k in (1, 2, 5) if k * power <= target * (1 + 1e-9)))


def length(micrometres: float) -> str:
    """Write a length with its unit."""
    if micrometres >= 1000:
        return f"{micrometres / 1000:.4g} mm"
    return f"{micrometres:.4g} µm"


def _encode(figure: Figure, *, png: bool = False, lossless: bool = False) -> Picture:
    stream = BytesIO()
    if png:
        figure.savefig(stream, format="png")
    else:
        options = {"lossless": lossless, "quality": 74, "method": 4}
        figure.savefig(stream, format="webp", pil_kwargs=options)
    width, height = (round(side * figure.dpi) for side in figure.get_size_inches())
    return Picture(stream.getvalue(), width, height)


def _draw(axes: Axes, array: npt.NDArray, spacing: Sequence[float], scale: Scale) -> None:
    """Show a slice in micrometres."""
    height, width = (n * s for n, s in zip(array.shape, spacing, strict=True))
    values = np.ma.masked_invalid(array.astype(np.float64))
    if scale.logarithmic:
        values = np.ma.masked_less_equal(values, 0)
    cmap = colormaps[scale.cmap].with_extremes(bad="#808080")
    axes.imshow(values, cmap=cmap, norm=scale.norm, extent=(0, width, height, 0))
    axes.set_axis_off()


def _scale_bar(axes: Axes, scale: Scale, size: float, *, named: bool = True) -> None:
    """Draw a bar into the lower left corner, and its length in text of ``size`` points."""
    width, height = axes.get_xlim()[1], axes.get_ylim()[0]
    bar = round_length(width)
    x, y = 0.03 * width, height - 0.03 * width
    # Fields are light around 1, images dark around the tissue.
    ink, back = ("black", "white") if scale.logarithmic else ("white", "black")
    outline = [withStroke(linewidth=size / 4, foreground=back)]
    (line,) = axes.plot([x, x + bar], [y, y], color=ink, linewidth=size / 5, path_effects=outline)
    line.set_solid_capstyle("butt")
    if named:
        text = axes.text(x, y - 0.015 * width, length(bar), va="bottom")
        text.set(color=ink, fontsize=size, path_effects=outline)


def panel(
    array: npt.NDArray,
    spacing: Sequence[float],
    scale: Scale,
    *,
    longest: int = 512,
    bar: bool = True,
    png: bool = False,
) -> Picture:
    """Fill a picture with one slice in its physical aspect, as WebP or PNG.

    Parameters
    ----------
    spacing
        Distance of the pixels down and across, micrometres.
    longest
        Longest edge of the picture, pixels.
    bar
        Draw a scale bar; leave it out where the spacing is not known.
    """
    height, width = (n * s for n, s in zip(array.shape, spacing, strict=True))
    unit = longest / max(height, width)
    pixels = [max(2, round(side * unit)) for side in (width, height)]
    figure = Figure(figsize=(pixels[0] / 100, pixels[1] / 100), dpi=100)
    axes = figure.add_axes((0, 0, 1, 1))
    _draw(axes, array, spacing, scale)
    axes.set_aspect("auto")
    if bar:
        # In a flat picture the text would hide the tissue; the page names the length as well.
        _scale_bar(axes, scale, pixels[0] / 26, named=pixels[1] >= pixels[0] / 3)
    return _encode(figure, png=png)


def comparison(rows: Sequence[tuple[Sequence[Slice], Sequence[float]]]) -> bytes:
    """Draw rows of slices, each row with its spacing, as a PNG that stands alone.

    Titles stand over the first row, and below the last one a colour bar for each scale.
    """
    titles, _, scales = zip(*rows[0][0], strict=True)
    tall = [s[0][1].shape[0] * down / s[0][1].shape[1] / across for s, (down, across) in rows]
    tall = [min(max(aspect, 0.2), 2) for aspect in tall]
    size = (2.4 * len(titles), 2.4 * sum(tall) + 0.8)
    figure = Figure(figsize=size, dpi=120, layout="constrained")
    grid = figure.subplots(len(rows), len(titles), squeeze=False, height_ratios=tall)
    for panels, (slices, spacing) in zip(grid, rows, strict=True):
        for axes, (_, array, scale) in zip(panels, slices, strict=True):
            _draw(axes, array, spacing, scale)
            _scale_bar(axes, scale, FONT)
    for axes, title in zip(grid[0], titles, strict=True):
        axes.set_title(title, fontsize=FONT)
    for scale in dict.fromkeys(scales):
        below = [axes for axes, own in zip(grid[-1], scales, strict=True) if own == scale]
        ticks = [scale.low, 1.0, scale.high] if scale.logarithmic else [scale.low, scale.high]
        named = [f"{tick:.3g}" if tick < 1000 else f"{tick:.0f}" for tick in ticks]
        bar = figure.colorbar(below[0].images[0], ax=below, location="bottom", aspect=40)
        bar.set_ticks(ticks, labels=named, fontsize=FONT)
        bar.minorticks_off()
        label = "field (blue: the image was too dark)" if scale.logarithmic else "intensity"
        bar.set_label(label, fontsize=FONT)
    return _encode(figure, png=True).data


def themed(draw: Callable[[Theme], Figure]) -> tuple[Picture, Picture, bytes]:
    """Draw a chart for light and for dark screens, and the light one as PNG."""
    light, dark = draw(LIGHT), draw(DARK)
    png = _encode(light, png=True).data
    return _encode(light, lossless=True), _encode(dark, lossless=True), png


def _chart(
    theme: Theme, x: str, y: str, *, size: tuple[float, float] = CHART
) -> tuple[Figure, Axes]:
    figure = Figure(figsize=size, dpi=DPI, facecolor=theme.surface, layout="constrained")
    axes = figure.add_subplot(facecolor=theme.surface)
    axes.set_xlabel(x, color=theme.ink, fontsize=FONT)
    axes.set_ylabel(y, color=theme.ink, fontsize=FONT)
    axes.tick_params(colors=theme.muted, which="both", labelsize=FONT, length=3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(theme.muted)
    axes.grid(axis="y", color=theme.grid, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.margins(x=0.02)
    return figure, axes


def _legend(figure: Figure, theme: Theme) -> Figure:
    handles, labels = figure.axes[0].get_legend_handles_labels()
    if handles:
        figure.legend(
            handles,
            labels,
            loc="outside upper left",
            ncols=4,
            frameon=False,
            borderpad=0.1,
            fontsize=FONT,
            labelcolor=theme.ink,
            handlelength=1.8,
            columnspacing=1.2,
        )
    return figure


def profile_chart(
    z: npt.NDArray, before: npt.NDArray, after: npt.NDArray, bands: Sequence[Band], theme: Theme
) -> Figure:
    """Draw the mean in the mask per plane (NaN: none), with the sections' boundaries.

    ``z`` has the position of each plane in micrometres; ``bands`` that are missing are shaded.
    """
    unit, scale = ("mm", 1000.0) if z.size and z.max() >= 5000 else ("µm", 1.0)
    figure, axes = _chart(theme, f"z ({unit})", "mean in tissue", size=WIDE)
    for k, (begin, end) in enumerate(band[:2] for band in bands if band[2]):
        label = None if k else "missing section (blank)"
        span = (begin / scale, end / scale)
        axes.axvspan(*span, color=theme.alarm, alpha=0.2, linewidth=0, label=label)
    edges = sorted({edge for band in bands for edge in band[:2]})
    for k, edge in enumerate(edges[1:-1]):
        label = None if k else "boundary of two sections"
        axes.axvline(edge / scale, color=theme.muted, linewidth=0.7, linestyle=":", label=label)
    axes.plot(
        z / scale, before, color=theme.before, linewidth=1.4, linestyle="--", label="before N4"
    )
    axes.plot(z / scale, after, color=theme.after, linewidth=1.6, label="after N4")
    values = np.concatenate([v[np.isfinite(v)] for v in (before, after)])
    if values.size and values.min() >= 0 and values.max() > 0:
        # The axis begins at zero, so that a flat profile looks flat.
        axes.set_ylim(0, 1.1 * float(values.max()))
    return _legend(figure, theme)


def histogram_chart(
    edges: npt.NDArray, before: npt.NDArray, after: npt.NDArray, theme: Theme
) -> Figure:
    """Draw the counts in the mask before and after, on the same bins."""
    figure, axes = _chart(theme, "intensity", "voxels in tissue")
    axes.stairs(before, edges, fill=True, color=theme.before, alpha=0.16)
    axes.stairs(after, edges, fill=True, color=theme.after, alpha=0.16)
    axes.stairs(before, edges, color=theme.before, linewidth=1.4, linestyle="--", label="before N4")
    axes.stairs(after, edges, color=theme.after, linewidth=1.4, label="after N4")
    axes.ticklabel_format(axis="y", scilimits=(-3, 4), useMathText=True)
    axes.yaxis.get_offset_text().set(color=theme.muted, fontsize=FONT)
    return _legend(figure, theme)


def seam_chart(
    numbers: Sequence[int],
    medians: Sequence[float],
    largest: Sequence[float],
    limit: float,
    theme: Theme,
) -> Figure:
    """Draw the mismatch at the seams per section; those above ``limit`` are marked by number."""
    figure, axes = _chart(theme, "section", "mismatch at seams (%)", size=WIDE)
    n, middle, top = np.array(numbers), 100 * np.array(medians), 100 * np.array(largest)
    axes.vlines(n, middle, top, color=theme.muted, linewidth=0.9, alpha=0.7)
    axes.plot(n, top, "_", color=theme.muted, markersize=6, label="largest seam of the section")
    far = middle > 100 * limit
    axes.plot(
        n[~far], middle[~far], "o", color=theme.after, markersize=4.5, label="median of its seams"
    )
    if far.any():
        axes.plot(n[far], middle[far], "D", color=theme.alarm, markersize=5.5, label="outlier")
    for x, y in zip(n[far], middle[far], strict=True):
        text = axes.annotate(str(x), (x, y), (6, 0), textcoords="offset points", va="center")
        text.set(color=theme.alarm, fontsize=FONT, weight="bold")
    axes.axhline(
        100 * limit,
        color=theme.before,
        linestyle="--",
        label="a median above it stands out",
    )
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return _legend(figure, theme)
