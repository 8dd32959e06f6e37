"""Surface of a section: the plane where water ends and tissue or its agarose begins.

1. In each column, brightness rises steeply where it enters tissue, and stays high. The highest
   rises are candidates: a thin bright line, such as a cover glass, does not stay high; tissue below
   agarose rises twice, and a hole filled with water rises deeper.
2. The plane with most candidates close to it is found among planes through three random ones, then
   fitted to all columns by robust least squares.
3. It is refused, with the reason, if most of its columns do not rise there or rise twice, if it
   leaves the data, or if what lies above varies as the tissue below, and so is not water.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from octane.compare.columns import COLUMN_EDGE, Columns
from octane.layout.mosaic import Tile
from octane.layout.placement import TilePlacement
from octane.processes.stitch.record import SurfaceFigures

MOST = 2000
"""Number of columns above which each tile contributes only a part of its own."""
LEAST, LEAST_ACROSS = 12, 3
"""Minimum number of columns that a plane is fitted to, and of those along y and along x."""
ABOVE, BELOW = 4, 5
"""Planes above and below a rise whose medians are compared: a line of two planes does not count."""
SHORT = 3
"""Minimum number of planes below a rise."""
SOFT = 0.01
"""Brightness, relative to bright tissue, below which the logarithm flattens: water may be 0."""
RISE = 0.2
"""Smallest rise of the logarithm: it stands out from speckle of one look."""
LINE = 0.7
"""Smallest height of a bright line above its surroundings, in the logarithm."""
CANDIDATES = 3
"""Maximum number of a column's candidates, those of the highest rises."""
CLOSE = 1.5
"""Distance in planes up to which a candidate belongs to a plane."""
SCATTER, STEEPEST = 0.7, 10.0
"""Largest spread of columns about a surface, planes, and its largest tilt, degrees: a curved or
steeper border lies within the tissue, as the top of a brain does."""
HALF = 0.5
"""Part of a rise that is steep, and of columns that are most of them."""
PART = 0.2
"""Smallest part of all columns that must rise at a plane; others may show only water."""
BEYOND = 0.02
"""Part of the columns for which a plane may lie outside the data."""
TRIALS = 400
"""Planes through three random candidates that are tried."""
OUTLIER, LEVEL = 4.0, 0.05
"""Standard deviations at which Tukey's biweight rejects a column, and the least of these, planes.
"""
ROUNDS = 10
"""Iterations of the robust fit."""

NO_LIGHT = "no light"
SHALLOW = "too few planes"
FEW = "too few columns"
NO_CONTRAST = "no contrast, as in agarose alone"
WITHIN = "data begin within the tissue"
LINE_ONLY = "a thin bright line, such as a cover glass, and no tissue below it"
SLOW = "brightness rises too slowly for a surface"
DISAGREE = "columns do not agree on a plane"
TOO_HIGH = "surface above the first planes over {part:.0f} % of the section"
TOO_LOW = "surface below the last planes over {part:.0f} % of the section"
NOT_AVERAGED = "values that must not be averaged"
TWO = "two surfaces, {first:.0f} and {second:.0f} µm deep"

Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Rises:
    """Candidates of columns, (n, k), NaN if none: depths in planes, heights in the logarithm."""

    depths: Values
    heights: Values

    def near(self, surface: Values) -> tuple[Values, Values]:
        """Depths and heights (n) of the candidates closest to a surface; NaN if not close."""
        away = np.nan_to_num(np.abs(self.depths - surface[:, None]), nan=np.inf)
        nearest = away.argmin(axis=1)[:, None]
        lost = np.take_along_axis(away, nearest, axis=1) > CLOSE
        depths, heights = (
            np.where(lost, np.nan, np.take_along_axis(values, nearest, axis=1))[:, 0]
            for values in (self.depths, self.heights)
        )
        return depths, heights

    def apart(self, surface: Values) -> "Rises":
        """The candidates that are not near a surface (n)."""
        near = np.abs(self.depths - surface[:, None]) <= 2 * CLOSE
        return Rises(*(np.where(near, np.nan, values) for values in (self.depths, self.heights)))


def measure_surface(
    profiles: Mapping[Tile, Columns], placement: TilePlacement, *, dark: float = 0.0
) -> SurfaceFigures:
    """Measure the surface of a section on columns of its tiles.

    ``dark`` is the grey level without light.
    """
    grid = placement.grid
    middle = np.add(placement.edge[1:], np.divide(placement.extent[1:], 2))
    corner, pitch = np.subtract(grid.edge[1:], middle), np.asarray(grid.spacing[1:])
    values: list[npt.NDArray] = [np.empty((0, grid.shape[0]))]
    places = [np.empty((0, 2))]
    # Spread over the section, and always the same.
    generator, most = np.random.default_rng(0), -(-MOST // max(1, len(profiles)))
    for tile, columns in profiles.items():
        height, width = columns.shape[1:]
        chosen = np.sort(generator.permutation(height * width)[:most])
        # Where a tile that is moved along z shows nothing, its first or last plane continues.
        planes = np.clip(np.arange(len(columns)) - placement.depth(tile), 0, len(columns) - 1)
        values.append(columns[planes].reshape(len(columns), -1)[:, chosen].T)
        index = np.column_stack(np.divmod(chosen, max(1, width)))
        shift = [place.shift for place in placement.places[tile]]
        places.append((shift + (index + 0.5) * COLUMN_EDGE) * pitch + corner)
    profile, place = np.concatenate(values), np.concatenate(places)
    return fit_surface(profile - dark, place, float(grid.spacing[0]))


def fit_surface(values: Values, places: Values, spacing: float) -> SurfaceFigures:
    """Fit the surface to columns.

    Parameters
    ----------
    values
        Profiles along depth, (n, z), above the grey level without light.
    places
        Centres (y, x) of the columns from the middle of the section in micrometres, (n, 2).
    spacing
        Distance of planes in micrometres.

    Returns
    -------
    SurfaceFigures
        The plane, or the reason why there is none.
    """

    def without(reason: str) -> SurfaceFigures:
        return SurfaceFigures(columns=len(values), reason=reason)

    lit = np.isfinite(values).all(axis=1) & (values > 0).any(axis=1)
    if len(values) and not lit.any():
        return without(NO_LIGHT)
    if values.shape[1] < SHORT + 2:
        return without(SHALLOW)
    columns, places = np.maximum(values[lit], 0), places[lit]
    terms = np.column_stack([np.ones(len(places)), places / spacing])
    if not _has_enough(terms):
        return without(FEW)
    columns += SOFT * np.percentile(columns[columns > 0], 95)
    levels = Levels.of(np.log(columns))
    rises = levels.rises()
    plane = _find_plane(rises, terms)
    if plane is None:
        return without(_reason_unseen(levels, rises, terms))
    if reason := _reason_against(plane, levels, rises, terms, spacing):
        return without(reason)
    figures = _fit_plane(plane, rises, terms, spacing)
    return figures.model_copy(update={"columns": len(values)})


@dataclass(frozen=True)
class Levels:
    """Logarithms of columns, (n, z), and their medians over the planes above and below each.

    The medians are NaN where no plane is.
    """

    logs: Values
    above: Values
    below: Values

    @classmethod
    def of(cls, logarithm: Values) -> "Levels":
        """Take the medians."""
        flipped = _medians(logarithm[:, ::-1], ABOVE)[:, ::-1]
        return cls(logarithm, flipped, _medians(logarithm, BELOW))

    def rises(self) -> Rises:
        """Find where columns rise steeply and stay high, at a fraction of a plane."""
        height, steep = self.below - self.above, np.zeros_like(self.logs)
        steep[:, 1:-1] = self.logs[:, 2:] - self.logs[:, :-2]
        is_rise = (height >= RISE) & (steep >= HALF * height)
        is_rise[:, 1:] &= steep[:, 1:] > steep[:, :-1]
        is_rise[:, :-1] &= steep[:, :-1] >= steep[:, 1:]
        is_rise[:, 0] = is_rise[:, -SHORT:] = False
        best = np.argsort(np.where(is_rise, -height, np.inf), axis=1, kind="stable")[:, :CANDIDATES]
        is_rise, height = (np.take_along_axis(part, best, axis=1) for part in (is_rise, height))
        levels = (np.take_along_axis(medians, best, axis=1) for medians in (self.above, self.below))
        depths = np.where(is_rise, self._crossings(best, *levels), np.nan)
        return Rises(depths, np.where(np.isfinite(depths), height, np.nan))

    def _crossings(self, planes: npt.NDArray[np.int64], above: Values, below: Values) -> Values:
        """Depths near ``planes`` at which brightness is half-way from above to below, (n, k).

        Voxels mix water and tissue in proportion, so this is found on the linear scale.
        """
        values, dark, bright = np.exp(self.logs), np.exp(above), np.exp(below)
        half = (dark + bright) / 2
        depths = np.full(planes.shape, np.nan)
        for step in (2, 1, 0, -1):
            after = np.clip(planes + step, 1, values.shape[1] - 1)
            # A line on the surface is brighter than the tissue.
            high = np.minimum(np.take_along_axis(values, after, axis=1), bright)
            low = np.maximum(np.take_along_axis(values, after - 1, axis=1), dark)
            crossed = (low < half) & (high >= half)
            with np.errstate(divide="ignore", invalid="ignore"):
                depths = np.where(crossed, after + _edge((half - low) / (high - low)), depths)
        return depths

    def at(self, depths: Values) -> tuple[Values, Values]:
        """Medians above and below depths in planes, (n)."""
        planes = np.clip(depths.astype(np.int64), 1, self.logs.shape[1] - 2)[:, None]
        above, below = (
            np.take_along_axis(medians, planes, axis=1)[:, 0]
            for medians in (self.above, self.below)
        )
        return above, below

    def steepness(self, depths: Values) -> Values:
        """Part of the rise at depths in planes, (n), that lies within three planes."""
        planes = np.clip(depths.astype(np.int64), 1, self.logs.shape[1] - 2)[:, None]
        last, first = (np.take_along_axis(self.logs, planes + k, axis=1)[:, 0] for k in (1, -1))
        above, below = self.at(depths)
        with np.errstate(divide="ignore", invalid="ignore"):
            # Blur spreads both ends of a rise alike only on the linear scale.
            return (np.exp(last) - np.exp(first)) / (np.exp(below) - np.exp(above))

    def lines(self) -> Values:
        """Depths of the brightest thin line of columns, (n), NaN if none."""
        height = self.logs - np.maximum(self.above, self.below)
        height = np.nan_to_num(height, nan=-np.inf)
        highest = height.argmax(axis=1)
        clear = np.take_along_axis(height, highest[:, None], axis=1)[:, 0] >= LINE
        return np.where(clear, highest + 0.5, np.nan)


def _edge(part: Values) -> Values:
    """Place of an edge in planes from the border of two planes, between whose centres it is seen.

    Linear interpolation passes half of the edge's height at the ``part`` of the way from one centre
    to the other. One of both voxels is mixed, the first if that is less than a half.
    """
    return np.where(part < 0.5, (part - 0.5) / (1 - part), 1 - 0.5 / part)


def _medians(logarithm: Values, count: int) -> Values:
    """Median of the next ``count`` planes, or of as many as there are; the lower one of two."""
    padded = np.pad(logarithm[:, 1:], ((0, 0), (0, count)), constant_values=np.nan)
    # NaN is sorted to the end.
    windows = np.sort(sliding_window_view(padded, count, axis=1), axis=2)
    known = np.minimum(count, np.arange(logarithm.shape[1])[::-1])
    middle = np.maximum(known - 1, 0) // 2
    return np.take_along_axis(windows, middle[None, :, None], axis=2)[:, :, 0]


def _has_enough(terms: Values, total: int = 0) -> bool:
    """Whether columns suffice for a plane, of a ``total`` of columns."""
    across = min(len(np.unique(axis)) for axis in terms[:, 1:].T)
    return len(terms) >= max(LEAST, PART * total) and across >= LEAST_ACROSS


def _find_plane(rises: Rises, terms: Values) -> Values | None:
    """Find the plane with most candidates close to it; None if these are too few.

    ``terms`` (n, 3) are 1 and the places in planes; so are the plane's coefficients.
    """
    column, _ = known = np.nonzero(np.isfinite(rises.depths))
    if not _has_enough(terms[np.unique(column)], len(terms)):
        return None
    depths = rises.depths[known]
    chosen = np.random.default_rng(0).integers(len(depths), size=(TRIALS, 3))
    planes = _through(terms[column[chosen]], depths[chosen])
    planes = planes[np.isfinite(planes).all(axis=1)]
    if not len(planes):
        return None
    fitted = np.einsum("tk,nk->tn", planes, terms)
    away = np.full(fitted.shape, np.inf)
    for candidate in rises.depths.T:
        np.fmin(away, np.abs(fitted - candidate), out=away)
    plane = planes[np.maximum(0, 1 - (away / CLOSE) ** 2).sum(axis=1).argmax()]
    for _ in range(ROUNDS):
        near = rises.near(_on(plane, terms))[0]
        known = np.isfinite(near)
        if not _has_enough(terms[known], len(terms)):
            return None
        plane, _ = _solve_plane(terms[known], near[known], np.ones(np.count_nonzero(known)))
    return plane


def _through(terms: Values, depths: Values) -> Values:
    """Planes through three points each: (n, 3, 3) terms and (n, 3) depths; NaN if in a line."""
    sides, rise = terms[:, 1:, 1:] - terms[:, :1, 1:], depths[:, 1:] - depths[:, :1]
    (ay, ax), (by, bx) = sides[:, 0].T, sides[:, 1].T
    with np.errstate(divide="ignore", invalid="ignore"):
        area = ay * bx - by * ax
        tilt_y = (rise[:, 0] * bx - rise[:, 1] * ax) / area
        tilt_x = (ay * rise[:, 1] - by * rise[:, 0]) / area
        start = depths[:, 0] - tilt_y * terms[:, 0, 1] - tilt_x * terms[:, 0, 2]
    return np.column_stack([start, tilt_y, tilt_x])


def _on(plane: Values, terms: Values) -> Values:
    """Depths of a plane at columns."""
    return terms[:, 0] * plane[0] + terms[:, 1] * plane[1] + terms[:, 2] * plane[2]


def _solve_plane(terms: Values, depths: Values, weights: Values) -> tuple[Values, Values]:
    """Plane of weighted least squares, and the inverse of its normal matrix."""
    # Not a product of BLAS, whose sums depend on the number of threads.
    inverse = np.linalg.pinv(np.einsum("ni,n,nj->ij", terms, weights, terms), hermitian=True)
    return np.einsum("ij,nj,n->i", inverse, terms, weights * depths), inverse


def _reason_unseen(levels: Levels, rises: Rises, terms: Values) -> str:
    """Say why no plane is found."""
    lines = levels.lines()
    if _find_plane(Rises(lines[:, None], lines[:, None]), terms) is not None:
        return LINE_ONLY
    low, high = np.percentile(levels.logs.mean(axis=1), (5, 95))
    if high - low <= RISE:
        return NO_CONTRAST
    # Lower rises may be speckle.
    rising = (rises.heights >= 2 * RISE).any(axis=1)
    return DISAGREE if rising.mean() >= HALF else WITHIN


def _reason_against(
    plane: Values, levels: Levels, rises: Rises, terms: Values, spacing: float
) -> str | None:
    """Say why a plane is not the surface; None if it is."""
    surface = _on(plane, terms)
    used = np.isfinite(rises.near(surface)[0])
    over, under = surface < 1, surface > levels.logs.shape[1] - SHORT
    above, below = levels.at(surface)
    tissue = (below > np.median(above[used]) + RISE) & ~over & ~under
    if np.count_nonzero(used & tissue) < max(LEAST, HALF * np.count_nonzero(tissue)):
        return _reason_unseen(levels, rises, terms)
    if over.mean() > BEYOND:
        return TOO_HIGH.format(part=100 * over.mean())
    if under.mean() > BEYOND:
        return TOO_LOW.format(part=100 * under.mean())
    if (other := _second(plane, rises, terms)) is not None:
        first, last = sorted(float(p[0]) * spacing for p in (plane, other))
        return TWO.format(first=first, second=last)
    water, varied = (medians[used] - medians[used].mean() for medians in (above, below))
    # Agarose alone varies too little to tell.
    alike = varied.std() > RISE and np.mean(water * varied) > HALF * np.mean(varied**2)
    if alike:
        return WITHIN
    return None if np.median(levels.steepness(surface)[used]) >= HALF else SLOW


def _second(plane: Values, rises: Rises, terms: Values) -> Values | None:
    """Find another plane at which most of the columns at ``plane`` rise as well."""
    surface = _on(plane, terms)
    height, rest = rises.near(surface)[1], rises.apart(surface)
    other = _find_plane(rest, terms)
    if other is None:
        return None
    both = rest.near(_on(other, terms))[1] >= HALF * height
    return other if np.count_nonzero(both) >= HALF * np.isfinite(height).sum() else None


def _fit_plane(plane: Values, rises: Rises, terms: Values, spacing: float) -> SurfaceFigures:
    """Fit the plane to the candidates near it by robust least squares, if these lie on a plane."""
    near = rises.near(_on(plane, terms))[0]
    known = np.isfinite(near)
    terms, near = terms[known], near[known]
    for _ in range(ROUNDS):
        away = near - _on(plane, terms)
        spread = max(1.4826 * float(np.median(np.abs(away))), LEVEL)
        weights = np.maximum(0, 1 - (away / (OUTLIER * spread)) ** 2) ** 2
        plane, inverse = _solve_plane(terms, near, weights)
    away = near - _on(plane, terms)
    spread = 1.4826 * float(np.median(np.abs(away)))
    errors = spread * np.sqrt(np.diag(inverse))
    tilt_y, tilt_x = np.rad2deg(np.arctan(plane[1:])).tolist()
    if spread > SCATTER or max(abs(tilt_y), abs(tilt_x)) > STEEPEST:
        return SurfaceFigures(reason=DISAGREE)
    error_y, error_x = np.rad2deg(errors[1:]).tolist()
    return SurfaceFigures(
        depth=float(plane[0]) * spacing,
        tilt=(tilt_y, tilt_x),
        depth_std=float(errors[0]) * spacing,
        tilt_std=(error_y, error_x),
        rough=spread * spacing,
        used=int(np.count_nonzero(weights)),
    )
