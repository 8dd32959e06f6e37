"""Flat field of a section's tiles: the brightness that a microscope gives to each place of a tile.

Where two tiles overlap, both saw the same tissue at different places of the tile, so that the ratio
of what they saw is a ratio of the flat field, without any tissue in it. A smooth flat field is
fitted to these ratios. Means over tiles need many more tiles before the tissue averages out.
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
from octane.stitch.blending import LEAST as LEAST_OVERLAP
from octane.stitch.blending import Projections, overlap
from octane.stitch.registration import coarse, neighbours
from octane.store.tiff_files import FAULTS
from octane.store.volumes import Volume

HIGHEST = 6
"""Highest order of the polynomial in y and x that is the logarithm of a flat field."""
ORDER = np.add.outer(np.arange(HIGHEST + 1), np.arange(HIGHEST + 1))
TERMS = (ORDER > 0) & (ORDER <= HIGHEST)
EXPECTED = np.where(ORDER <= 2, 0.3, 0.02 * 0.5 ** (ORDER - 3.0))[TERMS]
"""Expected size of its coefficients: light that falls off from somewhere is mostly quadratic."""
CELLS = 32
"""Blocks of pixels along a tile that are compared, at most."""
LEAST, ACROSS = 4, 6
"""Edge of a block in pixels where tiles are small, and blocks across an overlap: a mean has less
speckle."""
MOST_PAIRS = 100
"""Pairs of tiles that are compared: more would change the fit by less than its error."""
DIM = 0.1
"""Brightness over that of bright tissue below which a block counts less: it may be no tissue."""
OUTLIER = 3.0
"""Standard deviations at which Tukey's biweight leaves a ratio out: where tiles lie a little beside
their places, many are wrong."""
SUBTLE = 0.01
"""Error of a ratio that is always there, such as that of interpolation."""
ALIKE = 3.0
"""Errors of the fit over those of as many blocks whose errors are independent; neighbours share
some, where tiles lie a little beside their places."""
ROUNDS, STEADY = 30, 1e-4
"""Most repeats of the fit, and the change of coefficients below which it ends."""

Image = npt.NDArray[np.float32]
Values = npt.NDArray[np.float64]


def shading_of(profile: npt.NDArray) -> float:
    """Range of the light over a tile, without the 1 % of pixels at either end."""
    low, high = np.percentile(profile, (1, 99))
    return float(high - low)


@dataclass(frozen=True)
class FlatField:
    """What a microscope makes of even tissue: ``profile`` times brightness, plus ``dark``.

    ``profile`` is (y, x) of a full tile with mean 1, and ``error`` the shading that it may leave.
    """

    profile: Image
    dark: float = 0.0
    error: float | None = None

    @cached_property
    def gain(self) -> Image:
        """Factors that even out a full tile."""
        return np.reciprocal(self.profile)

    def correct(self, tile: Image) -> Image:
        """Even out the projection of a tile, which may be cut."""
        return (tile - np.float32(self.dark)) * self.gain[: tile.shape[0], : tile.shape[1]]


def estimate(
    projections: Projections, placement: TilePlacement, *, dark: float = 0.0
) -> FlatField | None:
    """Fit the flat field of a section to the overlaps of its tiles.

    ``projections`` are the means over depth of the tiles, and ``dark`` is the grey level without
    light. Gives None where fewer than two pairs of tiles have anything in common.
    """
    height, width = (int(n) for n in np.max([i.shape for i in projections.values()], axis=0))
    found = _compared(projections, placement, (height, width), dark)
    if len(found) < 2:
        return None
    # Both halves show what is there, and each its own chance, by which no tile is to be changed.
    one, other = (_fitted(found[k::2]) for k in (0, 1))
    norm = float(np.sqrt((one @ one) * (other @ other))) or 1.0
    agreed = max(0.0, float(one @ other) / norm)
    profile = _on_tile(agreed * (one + other) / 2, height, width)
    # The halves differ by twice what their mean is wrong by.
    error = shading_of(_on_tile((one - other) / 2, height, width))
    return FlatField((profile / profile.mean()).astype(np.float32), dark, error)


@dataclass(frozen=True)
class Light:
    """Flat fields of a section, ``measured`` in its overlaps and ``applied`` to its tiles.

    Either may be None; ``is_given`` tells whether the latter is a file's.
    """

    measured: FlatField | None
    applied: FlatField | None
    is_given: bool

    def evened(self, projections: Projections) -> Projections:
        """Projections in even light, as far as the tiles are evened out."""
        flat = self.applied
        return {t: flat.correct(own) for t, own in projections.items()} if flat else projections

    def left(self, evened: Projections, placement: TilePlacement) -> FlatField | None:
        """Flat field that evened projections still show; None where it is not known."""
        if self.is_given:
            return estimate(evened, placement)
        return None if self.applied else self.measured

    def shading(self, left: FlatField | None) -> tuple[float | None, float | None]:
        """Shading before and after, None where unknown; ``left`` judges a given flat field."""
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
    """Measure the flat field where tiles overlap; apply the ``given`` one, or it, or none."""
    dark = parameters.dark_offset
    measured = estimate(projections, placement, dark=dark)
    if given is not None:
        return Light(measured, FlatField(given, dark), is_given=True)
    return Light(measured, measured if parameters.flat_field == ESTIMATE else None, is_given=False)


def _on_tile(coefficients: Values, *shape: int) -> Values:
    """Light at the pixels of a tile, without their terms, which are many times as large."""
    matrix = np.zeros(TERMS.shape)
    matrix[TERMS] = coefficients
    return np.exp(leggrid2d(*((2 * np.arange(n) + 1) / n - 1 for n in shape), matrix))


def _compared(
    projections: Projections, placement: TilePlacement, shape: tuple[int, int], dark: float
) -> list[tuple[Values, Values, Values]]:
    """Compare blocks of pixels that two tiles saw: the mean in either, and how its terms differ."""
    places = placement.places
    pairs = neighbours([*places])
    # Spread over the section, and the same ones each time.
    order = np.random.default_rng(0).permutation(len(pairs))[:MOST_PAIRS]
    size = max(LEAST, max(shape) // CELLS)
    found: list[tuple[Values, Values, Values]] = []
    for pair in (pairs[k] for k in np.sort(order)):
        images = overlap(placement, projections, *pair)
        if images is None:
            continue
        # How the ratio changes across an overlap says how a flat field is curved.
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
    """Coefficients that fit means and terms best, by robust least squares.

    The noise of the ratios, which the fit shows itself, weighs them against what is expected.
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
    """Flat field of a file, of any resolution and sum, for tiles of a shape, with mean 1.

    An OctaneError says why it is no flat field for such tiles.
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
        raise InputError(f"{path} has pixels that are not above 0; give one without such.")
    y, x = ((np.arange(n) + 0.5) * s - 0.5 for n, s in zip(shape, scale, strict=True))
    down, right = (np.arange(n) for n in profile.shape)
    wide = np.array([np.interp(y, down, column) for column in profile.T])
    made = np.array([np.interp(x, right, row) for row in wide.T])
    return (made / made.mean()).astype(np.float32)


def given_flat_field(
    image: Volume, tiling: MosaicGrid, placement: TilePlacement, parameters: StitchParameters
) -> Image | None:
    """Flat field of the file that the parameters name; None where they name no file.

    An OctaneError says that it does not fit these tiles, or that none can be estimated from them.
    """
    chosen = parameters.flat_field
    if parameters.dark_offset and (chosen == "none" or image.dtype.kind == "c"):
        raise InputError(
            "--stitch_dark_offset acts with a flat field alone, and on real voxels; give "
            "--stitch_flat_field as well, or leave it out."
        )
    shared = (place.before for pair in placement.places.values() for place in pair)
    if chosen == ESTIMATE and max(shared) < LEAST_OVERLAP:
        raise InputError(
            f"{image.path}: its tiles overlap by less than {LEAST_OVERLAP} pixels, and a flat "
            "field is estimated from overlaps; give --stitch_flat_field FILE, or none."
        )
    if chosen in (ESTIMATE, "none"):
        return None
    from tifffile import imread

    path = Path(chosen).resolve()
    try:
        stream = BytesIO(read_regular(path))
        given = np.load(stream) if path.suffix.lower() == ".npy" else imread(stream)
        # An archive of arrays has no shape.
        return fitted_to(given, (tiling.tile[1], tiling.tile[2]), path)
    except (OSError, EOFError, *FAULTS) as error:
        text = f"{path} cannot be read as a flat field; give a TIFF or .npy file, or {ESTIMATE}."
        raise InputError(text) from error
