"""Voxel grids: voxel centres in micrometres, axes always z, y, x."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

Vector = tuple[float, float, float]
Region = tuple[slice, ...]

PREFIXES = (
    *(("yotta", "Y", 24), ("zetta", "Z", 21), ("exa", "E", 18), ("peta", "P", 15)),
    *(("tera", "T", 12), ("giga", "G", 9), ("mega", "M", 6), ("kilo", "k", 3), ("hecto", "h", 2)),
    *(("deca", "da", 1), ("deka", "da", 1), ("", "", 0), ("deci", "d", -1), ("centi", "c", -2)),
    *(("milli", "m", -3), ("micro", "u", -6), ("nano", "n", -9), ("pico", "p", -12)),
    *(("femto", "f", -15), ("atto", "a", -18), ("zepto", "z", -21), ("yocto", "y", -24)),
)
"""SI's prefixes: name, symbol and power of ten."""
METRIC: dict[str, float] = {
    spelling: float(f"1e{power + 6}")
    for name, symbol, power in PREFIXES
    for spelling in (f"{symbol}m", *(f"{name}{m}" for m in ("meter", "meters", "metre", "metres")))
}
"""Metres and their parts and multiples, by symbol and name, in micrometres."""
# The micro sign, and the Greek letter.
METRIC |= dict.fromkeys(("\u00b5m", "\u03bcm", "micron", "microns"), 1.0)
INCHES = dict.fromkeys(("in", "inch", "inches"), 25400.0)
"""Inches, in micrometres."""
ASTRONOMICAL = 149_597_870_700e6
"""Astronomical unit, micrometres."""
LENGTHS: dict[str, float] = {
    **METRIC,
    **INCHES,
    # The letter, alone or composed, and the sign.
    **dict.fromkeys(("\u00c5", "A\u030a", "\u212b", "angstrom", "angstroms"), 1e-4),
    **dict.fromkeys(("thou", "mil"), 25.4),
    **dict.fromkeys(("li", "line", "lines"), 25400 / 12),
    **dict.fromkeys(("pt", "point", "points"), 25400 / 72),
    **dict.fromkeys(("ft", "foot", "feet"), 304_800.0),
    **dict.fromkeys(("yd", "yard", "yards"), 914_400.0),
    **dict.fromkeys(("mi", "mile", "miles"), 1_609_344_000.0),
    **dict.fromkeys(("ua", "au", "astronomical_unit"), ASTRONOMICAL),
    **dict.fromkeys(("ly", "light_year", "light_years"), 9_460_730_472_580_800e6),
    **dict.fromkeys(("pc", "parsec", "parsecs"), ASTRONOMICAL * 648_000 / math.pi),
}
"""Lengths in micrometres: those of OME-XML's UnitsLength and of OME-Zarr (UDUNITS), and other
spellings. OME-XML's ``pixel`` and ``reference frame`` are not lengths."""
MICROMETERS: dict[str, float] = {
    f"{name}meter": LENGTHS[f"{name}meter"] for name in ("nano", "micro", "milli", "centi", "")
}
"""Units of length that parameters take, in micrometres."""


def spelled(values: Sequence[float]) -> str:
    """Format the numbers of the axes: integers in full, lengths with six digits."""
    return " x ".join(str(v) if isinstance(v, int) else f"{v:g}" for v in values)


def bounds(region: Region) -> str:
    """Format a block as ``0:14 128:256 0:60``: first voxel and last voxel + 1 along z, y and x."""
    return " ".join(f"{part.start}:{part.stop}" for part in region)


def vector(z: float, y: float, x: float) -> Vector:
    """Convert to three Python floats, so that NumPy scalars do not leak into metadata."""
    return float(z), float(y), float(x)


@dataclass(frozen=True)
class Grid:
    """A regular grid: its shape, and the spacing and first voxel's centre in micrometres."""

    shape: tuple[int, int, int]
    spacing: Vector
    origin: Vector = (0.0, 0.0, 0.0)

    @property
    def extent(self) -> Vector:
        """Edge to edge length in micrometres."""
        z, y, x = (n * s for n, s in zip(self.shape, self.spacing, strict=True))
        return vector(z, y, x)

    @property
    def edge(self) -> Vector:
        """Position of the first voxel's outer edge in micrometres."""
        z, y, x = (o - s / 2 for o, s in zip(self.origin, self.spacing, strict=True))
        return vector(z, y, x)

    @classmethod
    def covering(cls, edge: Vector, extent: Vector, spacing: Vector) -> "Grid":
        """Grid of ``spacing`` whose first voxel touches ``edge`` and that spans ``extent``."""
        nz, ny, nx = (samples(e, t) for e, t in zip(extent, spacing, strict=True))
        oz, oy, ox = (e + t / 2 for e, t in zip(edge, spacing, strict=True))
        return cls((nz, ny, nx), vector(*spacing), vector(oz, oy, ox))

    def resampled(self, spacing: Vector) -> "Grid":
        """Grid of ``spacing`` (micrometres) with the same centre."""
        nz, ny, nx = (samples(e, t) for e, t in zip(self.extent, spacing, strict=True))
        axes = zip(self.origin, self.shape, self.spacing, (nz, ny, nx), spacing, strict=True)
        oz, oy, ox = (o + ((n - 1) * s - (m - 1) * t) / 2 for o, n, s, m, t in axes)
        return Grid((nz, ny, nx), vector(*spacing), vector(oz, oy, ox))


def slopes(tilt: tuple[float, float]) -> tuple[float, float]:
    """Change of depth along y and x, without unit, of a plane tilted by these degrees."""
    y, x = (math.tan(math.radians(angle)) for angle in tilt)
    return y, x


def shape_of(region: Region) -> tuple[int, ...]:
    """Number of voxels of a region along each axis."""
    return tuple(r.stop - r.start for r in region)


def place_in(block: Region, region: Region) -> Region:
    """Region relative to a block's first voxel."""
    axes = zip(region, block, strict=True)
    return tuple(slice(r.start - b.start, r.stop - b.start) for r, b in axes)


def block_at(position: Sequence[int], size: Sequence[int], shape: Sequence[int]) -> Region:
    """Region of the block at a position, counted in blocks, clipped to ``shape``."""
    axes = zip(position, size, shape, strict=True)
    return tuple(slice(p * n, min((p + 1) * n, m)) for p, n, m in axes)


def samples(extent: float, spacing: float) -> int:
    """Number of voxels of ``spacing`` that span ``extent`` (micrometres): rounded, at least one."""
    # The tolerance always rounds halves up, despite floating-point errors (3 x 3.5 / 7).
    return max(1, math.floor(extent / spacing + 0.5 + 1e-9))


def blocks(shape: tuple[int, ...], size: tuple[int, ...]) -> list[Region]:
    """Regions of at most ``size`` that tile ``shape`` in raster order."""
    counts = (range(-(-n // b)) for n, b in zip(shape, size, strict=True))
    return [block_at(position, size, shape) for position in product(*counts)]


def expected_position(
    tile: tuple[int, int], positions: Mapping[tuple[int, int], tuple[float, float]]
) -> tuple[float, float]:
    """Position of a tile by a linear fit of the other tiles' ``positions``."""
    # Sorted, because the last bits depend on the order.
    others = sorted(positions)
    numbers = np.array([(1, *other) for other in others], float)
    fitted = np.linalg.lstsq(numbers, np.array([positions[t] for t in others]), rcond=None)[0]
    y, x = (1, *tile) @ fitted
    return float(y), float(x)
