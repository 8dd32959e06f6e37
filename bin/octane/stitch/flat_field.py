"""Flat field of a section's tiles: the relative brightness across a microscope's field of view.

Where two tiles overlap, both saw the same tissue at different places in the tile, so the ratio of
their values is a ratio of the flat field, without the tissue. A smooth flat field is fitted to
these ratios. Averaging tiles instead would need many more of them to cancel the tissue.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from pathlib import Path

import numpy as np
import numpy.typing as npt
from numpy.polynomial.legendre import leggrid2d, legvander2d

from octane.config.params import ESTIMATE, StitchParameters
from octane.core.errors import InputError
from octane.core.files import read_regular
from octane.layout.mosaic import MosaicGrid
from octane.layout.placement import TilePlacement
from octane.stitch.blending import LEAST_OVERLAP, Projections, overlap
from octane.stitch.registration import coarse, neighbours
from octane.store.tiff_files import FAULTS
from octane.store.volumes import Volume

HIGHEST = 6
"""Order of the polynomial in y and x that models the logarithm of a flat field."""
ORDER = np.add.outer(np.arange(HIGHEST + 1), np.arange(HIGHEST + 1))
TERMS = (ORDER > 0) & (ORDER <= HIGHEST)
EXPECTED = np.where(ORDER <= 2, 0.3, 0.02 * 0.5 ** (ORDER - 3.0))[TERMS]
"""Expected size of its coefficients: the fall-off of light is mostly quadratic."""
CELLS = 32
"""Maximum number of compared blocks along a tile."""
SMALL_BLOCK = 4
"""Edge of a block in small tiles, pixels: a mean has less speckle."""
ACROSS = 6
"""Minimum number of blocks across an overlap."""
MOST_PAIRS = 100
"""Maximum number of compared pairs: more would change the fit by less than its error."""
DIM = 0.1
"""Brightness relative to bright tissue below which a block counts less: it may not be tissue."""
OUTLIER = 3.0
"""Standard deviations at which Tukey's biweight rejects a ratio: if tiles are slightly misplaced,
many are wrong."""
SUBTLE = 0.01
"""Minimum error of a ratio, such as that of interpolation."""
ALIKE = 3.0
"""Errors of the fit relative to those of independent blocks: neighbouring blocks share errors if
tiles are slightly misplaced."""
ROUNDS = 30
"""Maximum iterations of the fit."""
STEADY = 1e-4
"""Change of the coefficients below which the fit ends."""

Image = npt.NDArray[np.float32]
Values = npt.NDArray[np.float64]


def shading_of(profile: npt.NDArray) -> float:
    """Range of the light over a tile, without the 1 % of pixels at either end."""
    low, high = np.percentile(profile, (1, 99))
    return float(high - low)


@dataclass(frozen=True)
class FlatField:
    """Image of uniform tissue: ``profile`` times brightness, plus ``dark``.

    ``profile`` is (y, x) over a full tile, with mean 1; ``error`` is the shading that it may leave.
    """

    profile: Image
    dark: float = 0.0
    error: float | None = None

    @cached_property
    def gain(self) -> Image:
        """Factors that even out a full tile."""
        return np.reciprocal(self.profile)

    def correct(self, tile: Image) -> Image:
        """Even out the projection of a tile, which may be smaller than a full one."""
        return (tile - np.float32(self.dark)) * self.gain[: tile.shape[0], : tile.shape[1]]


def estimate(
    projections: Projections, placement: TilePlacement, *, dark: float = 0.0
) -> FlatField | None:
    """Fit the flat field of a section to the overlaps of its tiles.

    ``projections`` are the tiles' means over depth, and ``dark`` is the grey level without light.
    Returns None if fewer than two pairs of tiles share anything above it.
    """
    height, width = (int(n) for n in np.max([i.shape for i in projections.values()], axis=0))
    found = _compared(projections, placement, (height, width), dark)
    if len(found) < 2:
        return None
    # Both halves show the real shading, and each its own chance errors, which must not be applied.
    one, other = (_fitted(found[k::2]) for k in (0, 1))
    norm = float(np.sqrt((one @ one) * (other @ other))) or 1.0
    agreed = max(0.0, float(one @ other) / norm)
    profile = _on_tile(agreed * (one + other) / 2, height, width)
    # The halves differ by twice the error of their mean.
    error = shading_of(_on_tile((one - other) / 2, height, width))
    return FlatField((profile / profile.mean()).astype(np.float32), dark, error)


@dataclass(frozen=True)
class Light:
    """Flat fields of a section, ``measured`` in its overlaps and ``applied`` to its tiles.

    Either may be None; ``is_given`` tells whether the latter is from a file.
    """

    measured: FlatField | None = None
    applied: FlatField | None = None
    is_given: bool = False

    def evened(self, projections: Projections) -> Projections:
        """Projections evened out by the applied flat field, if any."""
        flat = self.applied
        return {t: flat.correct(own) for t, own in projections.items()} if flat else projections

    def left(self, evened: Projections, placement: TilePlacement) -> FlatField | None:
        """Flat field that evened projections still show; None if unknown."""
        if self.is_given:
            return estimate(evened, placement)
        return None if self.applied else self.measured

    def shading(self, left: FlatField | None) -> tuple[float | None, float | None]:
        """Shading before and after, None if unknown; ``left`` judges a given flat field."""
        if self.measured is None:
            return None, None
        after = self.measured.error if self.applied else None
        if self.is_given:
            after = shading_of(left.profile) if left else None
        return shading_of(self.measured.profile), after


def light_of(
    projections: Projections,
    placement: TilePlacement,
    given: Image | None,
    parameters: StitchParameters,
) -> Light:
    """Measure the flat field in overlaps, and choose which to apply: given, measured or none."""
    dark = parameters.dark_offset
    measured = estimate(projections, placement, dark=dark)
    if given is not None:
        return Light(measured, FlatField(given, dark), is_given=True)
    return Light(measured, measured if parameters.flat_field == ESTIMATE else None, is_given=False)


def _on_tile(coefficients: Values, *shape: int) -> Values:
    """Light at a tile's pixels, without storing their terms, which are many times larger."""
    matrix = np.zeros(TERMS.shape)
    matrix[TERMS] = coefficients
    return np.exp(leggrid2d(*((2 * np.arange(n) + 1) / n - 1 for n in shape), matrix))


def _compared(
    projections: Projections, placement: TilePlacement, shape: tuple[int, int], dark: float
) -> list[tuple[Values, Values, Values]]:
    """Compare blocks of pixels that two tiles saw: both means, and how their terms differ."""
    places = placement.places
    pairs = neighbours([*places])
    # Spread over the section, and always the same.
    order = np.random.default_rng(0).permutation(len(pairs))[:MOST_PAIRS]
    size = max(SMALL_BLOCK, max(shape) // CELLS)
    found: list[tuple[Values, Values, Values]] = []
    for pair in (pairs[k] for k in np.sort(order)):
        images = overlap(placement, projections, *pair)
        if images is None:
            continue
        # The change of the ratio across an overlap shows the curvature of the flat field.
        edge = max(1, min(size, min(images[0].shape) // ACROSS))
        means = [coarse(image, edge).astype(np.float64) for image in images]
        lit = np.all([np.isfinite(m) & (m > dark) for m in means], axis=0)
        if not lit.any():
            continue
        corner = [max(a.first, b.first) for a, b in zip(*(places[t] for t in pair), strict=True)]
        at = [start + (k + 0.5) * edge for start, k in zip(corner, np.nonzero(lit), strict=True)]
        first, second = (
            legvander2d(
                *(
                    2 * (v - own.shift) / n - 1
                    for v, own, n in zip(at, places[t], shape, strict=True)
                ),
                (HIGHEST, HIGHEST),
            )[:, TERMS.ravel()]
            for t in pair
        )
        found.append((means[0][lit] - dark, means[1][lit] - dark, first - second))
    return found


def _fitted(found: Sequence[tuple[Values, Values, Values]]) -> Values:
    """Fit the coefficients to means and terms by robust least squares.

    The noise of the ratios, estimated from the residuals, weighs them against the expected size.
    """
    a, b, difference = (np.concatenate(own) for own in zip(*found, strict=True))
    dim = DIM * np.percentile(np.concatenate([a, b]), 95)
    trust = 1 / (1 + (dim / a) ** 2 + (dim / b) ** 2)
    ratio = np.log(a / b)
    coefficients = np.zeros(len(EXPECTED))
    for _ in range(ROUNDS):
        left = np.abs(ratio - difference @ coefficients) * np.sqrt(trust)
        noise = SUBTLE + 1.4826 * float(np.median(left))
        fits = np.clip(1 - (left / (OUTLIER * noise)) ** 2, 0, None) ** 2
        weighted = difference * (trust * fits)[:, None]
        normal = weighted.T @ difference + np.diag(np.square(ALIKE * noise / EXPECTED))
        before, coefficients = coefficients, np.linalg.solve(normal, weighted.T @ ratio)
        if np.abs(coefficients - before).max() < STEADY:
            break
    return coefficients


def fitted_to(profile: npt.NDArray, shape: tuple[int, int], path: Path) -> Image:
    """Resample a file's flat field, of any resolution and scale, to a tile's shape, with mean 1.

    Raises an OctaneError if it does not fit such tiles.
    """
    given = " x ".join(map(str, profile.shape))
    # Rounding may have made either axis a pixel longer.
    scale = np.divide(profile.shape, shape) if profile.ndim == 2 else np.zeros(2)
    if not scale.all() or abs(scale[0] - scale[1]) * min(shape) > max(1.0, *scale):
        raise InputError(
            f"{path} has {given} pixels and a tile {shape[0]} x {shape[1]}; give a flat field of "
            "the whole tile, with the axes y and x."
        )
    if profile.dtype.kind not in "fiu" or not (np.isfinite(profile) & (profile > 0)).all():
        raise InputError(f"{path} has pixels that are not above 0; give a positive flat field.")
    y, x = ((np.arange(n) + 0.5) * s - 0.5 for n, s in zip(shape, scale, strict=True))
    down, right = (np.arange(n) for n in profile.shape)
    wide = np.array([np.interp(y, down, column) for column in profile.T])
    made = np.array([np.interp(x, right, row) for row in wide.T])
    return (made / made.mean()).astype(np.float32)


def given_flat_field(
    image: Volume, tiling: MosaicGrid, placement: TilePlacement, parameters: StitchParameters
) -> Image | None:
    """Flat field of the file that the parameters name; None if they do not name one.

    Raises an OctaneError if it does not fit these tiles, or if they do not allow an estimate.
    """
    chosen = parameters.flat_field
    unused = chosen == "none" and parameters.attenuation == "none"
    if parameters.dark_offset and (unused or image.dtype.kind == "c"):
        raise InputError(
            "--stitch_dark_offset needs a flat field or --stitch_attenuation, and real voxels; "
            "give --stitch_flat_field as well, or omit it."
        )
    shared = (place.before for pair in placement.places.values() for place in pair)
    if chosen == ESTIMATE and max(shared) < LEAST_OVERLAP:
        raise InputError(
            f"{image.path}: its tiles overlap by less than {LEAST_OVERLAP} pixels, too little to "
            "estimate a flat field; give --stitch_flat_field FILE, or none."
        )
    if chosen in (ESTIMATE, "none"):
        return None
    from tifffile import imread

    path = Path(chosen).resolve()
    try:
        stream = BytesIO(read_regular(path))
        # The pages that there are, whatever the metadata promise.
        whole = slice(None)
        given = np.load(stream) if path.suffix.lower() == ".npy" else imread(stream, key=whole)
        # An archive of arrays lacks a shape.
        return fitted_to(given, (tiling.tile[1], tiling.tile[2]), path)
    except (OSError, EOFError, *FAULTS) as error:
        text = f"{path} cannot be read as a flat field; give a TIFF or .npy file, or {ESTIMATE}."
        raise InputError(text) from error
