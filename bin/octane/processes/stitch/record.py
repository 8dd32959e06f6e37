"""Figures of STITCH that STACK and the report read."""

from collections.abc import Collection, Mapping
from math import dist, hypot
from statistics import median
from typing import TypeVar

from octane.core.geometry import slopes
from octane.core.records import Figures, OverlapFigures, Shape, Size, Sizes
from octane.core.units import counted

T = TypeVar("T")
SHADING = 0.03
"""Largest shading of tiles that needs no flat field; even illumination measures less."""
FROM_TABLE = "from a table"
"""Record's value of a parameter whose table was given."""
CORRECT_PLACES = "correct the places in --positions, or in the tiles' own table or metadata"
"""Remedy for wrong places of tiles, whatever states them."""
KEEP_PLACES = "or give --stitch_check_overlap warning to keep them as they are"
"""How to go on with places that do not fit."""
EXPOSED = 1.1
"""Ratio of a tile's brightness to its neighbours', or its inverse, above which it is uneven:
less is hardly seen."""
STRONG = 1.5
"""The same of a tile that tells nothing about its section's structure and brightness."""
CERTAIN = 3.0
"""Standard errors beyond which a correction lowers seams."""
COMPENSATION = "compensation"
"""Attribute of a section: by how much ``--stitch_attenuation`` changed the light of each plane."""
SATURATED = 0.01
"""Share of a tile's voxels at its highest value above which it is saturated: sound data, and
displays that cut off the brightest few, stay below it."""


def overlap_values(overlaps: Collection[OverlapFigures]) -> str:
    """Format overlaps for ``--overlap``, y before x: the found one if it fits better."""
    values = []
    for axis in "yx":
        along = [overlap for overlap in overlaps if overlap.axis == axis]
        better = [o.found for o in along if o.better and o.found is not None]
        if along:
            given = median(o.given for o in along)
            values.append(f"{median(better):.3f}" if better else f"{given:.3g}")
    return ",".join(values)


def depth_words(planes: int) -> str:
    """Say how much deeper or higher: 3 planes deeper."""
    return f"{counted(abs(planes), 'plane')} {'deeper' if planes > 0 else 'higher'}"


class MisplacedFigures(Figures):
    """A tile that does not fit its neighbours, and where it fits.

    ``shift`` is in micrometres (y, x), ``swapped`` the row and column of the tile whose place it
    fits, ``planes`` the number of planes by which it fits deeper, or higher if negative,
    ``copy_of`` the row and column of the tile whose image it holds as well; without any of them it
    fits nowhere.
    """

    row: int
    column: int
    shift: tuple[float, float] | None = None
    swapped: tuple[int, int] | None = None
    planes: int | None = None
    copy_of: tuple[int, int] | None = None

    @property
    def sentence(self) -> str:
        """The tile in words."""
        name = f"row {self.row}, column {self.column}"
        if self.planes is not None:
            return f"{name} fits {depth_words(self.planes)}"
        if self.copy_of is not None:
            return f"{name} holds the image of row {self.copy_of[0]}, column {self.copy_of[1]}"
        if self.swapped is not None:
            return f"{name} fits at row {self.swapped[0]}, column {self.swapped[1]}"
        if self.shift is None:
            return f"{name} fits none of its neighbours"
        y, x = self.shift
        return f"{name} fits {y:+.0f} µm in y and {x:+.0f} µm in x from its place"


class UnevenFigures(Figures):
    """A tile that differs in brightness from its neighbours; ``brightness`` is the ratio."""

    row: int
    column: int
    brightness: float

    @property
    def sentence(self) -> str:
        """The tile in words."""
        times = f"{self.brightness:.2g} times as bright as its neighbours"
        return f"row {self.row}, column {self.column} is {times}"


class BlurredFigures(Figures):
    """A tile out of focus; ``contrast`` of adjacent pixels is relative to its neighbours'."""

    row: int
    column: int
    contrast: float

    @property
    def sentence(self) -> str:
        """The tile in words."""
        times = f"{self.contrast:.2g} times its neighbours' contrast of adjacent pixels"
        return f"row {self.row}, column {self.column} has {times}"


class SaturatedFigures(Figures):
    """A tile with a ``share`` of its voxels at its highest value, ``level``."""

    row: int
    column: int
    share: float
    level: float

    @property
    def sentence(self) -> str:
        """The tile in words."""
        share = f"{self.share:.0%} of its voxels at {self.level:.6g}"
        return f"row {self.row}, column {self.column} has {share}"


class SeamFigures(Figures):
    """Two neighbouring tiles, by row and column, and their mismatch without speckle."""

    first: tuple[int, int]
    second: tuple[int, int]
    mismatch: float


class SurfaceFigures(Figures):
    """The tissue's surface in a section: a plane fitted to ``used`` of ``columns`` columns.

    ``depth`` is that in the middle of the section below the upper edge of its first plane, in
    micrometres; ``tilt`` (y, x) is in degrees, positive where the surface lies deeper at larger y
    or x. ``depth_std`` and ``tilt_std`` are their standard deviations, ``rough`` is that of the
    columns from the plane in micrometres, by their median. All are None if no single surface was
    found, and ``reason`` says why.
    """

    depth: float | None = None
    tilt: tuple[float, float] | None = None
    depth_std: float | None = None
    tilt_std: tuple[float, float] | None = None
    rough: float | None = None
    used: int = 0
    columns: int = 0
    reason: str = ""

    def rise(
        self, extent: tuple[float, float], levelled: tuple[float, float] | None = None
    ) -> tuple[float, float]:
        """Largest difference in depth over a section, and its standard deviation.

        ``extent`` (y, x) is that of the section, in the unit of the result; ``levelled`` is the
        tilt that was removed.
        """
        tilt, unsure, removed = (
            angles or (0, 0) for angles in (self.tilt, self.tilt_std, levelled)
        )
        left = (a - b for a, b in zip(slopes(tilt), slopes(removed), strict=True))
        high = sum(abs(slope) * size for slope, size in zip(left, extent, strict=True))
        return high, hypot(*(a * n for a, n in zip(slopes(unsure), extent, strict=True)))


class HeldOutFigures(Figures):
    """Seams of two halves of the overlaps, each ``before`` and ``after`` a fit to the other half.

    They are rms logarithms of ratios, with speckle; ``noise`` is that of their difference.
    """

    before: tuple[float, float]
    after: tuple[float, float]
    noise: tuple[float, float]

    @property
    def lowers_seams(self) -> bool:
        """True if the fit lowers the seams of both halves beyond their noise."""
        every = zip(self.before, self.after, self.noise, strict=True)
        return all(before - after > CERTAIN * noise for before, after, noise in every)


def by_tile(tiles: Mapping[str, T]) -> dict[tuple[int, int], T]:
    """What a section's record says of tiles, by row and column."""
    values = {}
    for name, value in tiles.items():
        row, column = map(int, name.split(","))
        values[row, column] = value
    return values


class StitchFigures(Figures):
    """A stitched section.

    Shading is the range of the tiles' flat field over its mean, before and after the correction;
    None: not measured, or not corrected. ``seam_y`` and ``seam_x`` are the mismatch along an axis
    after evening out the light, between means of pixel blocks; ``speckle_y`` and ``speckle_x`` are
    the part of it that speckle causes; ``worst_y`` and ``worst_x`` are the largest mismatch.

    ``saturation`` is the largest share of a tile's voxels at its highest value; None: not counted.
    ``not_in_z`` says why tiles were not compared along z, and ``not_refined`` why they stay as
    stated although they were to be refined.

    ``gains`` by "row,column" are the factors by which the tiles were divided, all 1 if an estimate
    lowers no seam, and empty without ``stitch_gain``. ``gains_held_out`` and ``flat_held_out`` are
    the seams that estimates were not fitted to.

    ``positions`` are those of the tiles' first corners by "row,column", (y, x) in micrometres
    within the section; ``nominal_positions`` those before refinement, empty without it. On another
    channel than the reference, positions and surface are the reference's, and what was found about
    the places of tiles (``overlaps``, ``misplaced``) is left to its record. ``depths`` are the
    planes by which tiles were moved deeper, or higher if negative; as many of their planes lie
    outside the section, and are cut.
    ``tile_extent`` is the size of a full tile, and ``mosaic_extent`` that of all tiles side by
    side, whose last row and column may be cut. ``not_imaged`` lists the rows and columns of tiles
    that the metadata declare as not imaged; ``holes`` are those of them that imaged tiles enclose,
    or next to which a neighbour shows tissue. ``digest`` is that of all voxels, and empty if all
    are 0.
    """

    section: int | None = None
    digest: str = ""
    seam_median: float | None = None
    seam_max: float | None = None
    seam_y: float | None = None
    seam_x: float | None = None
    speckle_y: float = 0.0
    speckle_x: float = 0.0
    worst_y: SeamFigures | None = None
    worst_x: SeamFigures | None = None
    overlaps: list[OverlapFigures] = []
    misplaced: list[MisplacedFigures] = []
    not_in_z: str = ""
    not_refined: str = ""
    uneven: list[UnevenFigures] = []
    blurred: list[BlurredFigures] = []
    saturated: list[SaturatedFigures] = []
    saturation: float | None = None
    gains: dict[str, Size] = {}
    gains_held_out: HeldOutFigures | None = None
    flat_held_out: HeldOutFigures | None = None
    surface: SurfaceFigures | None = None
    shading_before: float | None = None
    shading_after: float | None = None
    uncovered_pixels: int = 0
    not_imaged: list[tuple[int, int]] = []
    holes: list[tuple[int, int]] = []
    positions: dict[str, tuple[float, float]] = {}
    nominal_positions: dict[str, tuple[float, float]] = {}
    depths: dict[str, int] = {}
    tile_extent: tuple[Size, Size] | None = None
    mosaic_extent: tuple[Size, Size] | None = None
    tiles: int
    shape: Shape
    voxel_size: Sizes | None = None

    @property
    def number(self) -> int:
        """Number of the section in tables, where a single one without a number is the first."""
        return 1 if self.section is None else self.section

    @property
    def largest_move(self) -> float:
        """Largest move of a tile by refinement, micrometres."""
        moves = (
            dist(self.positions[tile], place) for tile, place in self.nominal_positions.items()
        )
        return max(moves, default=0.0)

    def mismatch(self, axis: str) -> float | None:
        """Seam along an axis without speckle's part; None if no tiles overlap."""
        seam, speckle = getattr(self, f"seam_{axis}"), getattr(self, f"speckle_{axis}")
        return None if seam is None else max(0.0, seam**2 - speckle**2) ** 0.5
