"""Records of tasks and their figures, which steps write and the report reads.

A step may record more figures than its model lists; they are kept unchanged.
"""

from collections.abc import Collection, Mapping
from math import dist, hypot
from pathlib import Path
from statistics import median
from typing import Annotated, Literal, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from octane.core.errors import InputError
from octane.core.files import read_regular
from octane.core.geometry import Vector, slopes
from octane.core.orientation import UNSTATED, Orientation

Context = dict[str, object]
ORDER = ("mosaic", "resample", "stitch", "stack", "n4", "pyramid", "channels")
"""Steps in the order of the workflow."""
ENDINGS = {"channels": "", "pyramid": "", "n4": "_n4", "stack": "_stack"}
"""End of a resulting volume's name by the step that made it, the last step first."""
OF_SECTIONS = ("mosaic", "resample", "stitch")
"""Steps with a task for each section; the others have one for each channel, or one in all."""

Shape = tuple[int, int, int]
SHADING = 0.03
"""Largest shading of tiles that needs no flat field; even illumination measures less."""
AS_GIVEN, MEASURED, MEDIAN = "as given", "measured", "the median of the others"
"""Sources of a surface's depth or a section's thickness that the verdict tells apart."""
FROM_TABLE = "from a table"
"""Record's value of a parameter whose table was given."""
CORRECT_PLACES = "correct the places in --positions, or in the tiles' own table or metadata"
"""Remedy for wrong places of tiles, whatever states them."""
KEEP_PLACES = "or give --stitch_check_overlap warning to keep them as they are"
"""How to go on with places that do not fit."""
CERTAIN = 3.0
"""Standard deviations beyond which a measured length contradicts another."""
EXPOSED = 1.1
"""Ratio of a tile's brightness to its neighbours', or its inverse, above which it is uneven:
less is hardly seen."""
STRONG = 1.5
"""The same of a tile that tells nothing about its section's structure and brightness."""
SATURATED = 0.01
"""Share of a tile's voxels at its highest value above which it is saturated: sound data, and
displays that cut off the brightest few, stay below it."""


Size = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Sizes = tuple[Size, Size, Size]
"""Lengths (z, y, x) by which pictures are drawn, micrometres."""


class RecordedTrack(BaseModel, defer_build=True):
    """A track; ``stages`` list their pieces as ``start+length`` in microseconds from the start."""

    name: str
    stages: dict[str, Annotated[str, Field(pattern=r"^(\d+\+\d+( |$))*$")]]

    def pieces(self) -> list[tuple[int, int, str]]:
        """Return start, length and stage of all pieces in chronological order."""
        return sorted(
            (int(start), int(length), stage)
            for stage, text in self.stages.items()
            for start, length in (piece.split("+") for piece in text.split())
        )


class Recorded(BaseModel, defer_build=True):
    """The timeline of a task; ``started`` is in seconds since 1970."""

    started: float
    tracks: list[RecordedTrack]


class Record(BaseModel, defer_build=True):
    """The record of a task, as :meth:`octane.core.metrics.Metrics.record` writes it."""

    step: str
    channel: str = ""
    orientation: Orientation = UNSTATED
    attempt: int = 1
    command: list[str] = []
    inputs: dict[str, dict[str, str]] = {}
    settings: Context = {}
    figures: Context = {}
    device: Context = {}
    host: Context = {}
    seconds: dict[str, float] = {}
    wall_seconds: dict[str, float] = {}
    # Not named `bytes`, which would hide the type from the annotations below.
    traffic: dict[str, int] = Field(default={}, alias="bytes")
    peak_memory_bytes: int | None = None
    warnings: list[str] = []
    versions: dict[str, str] = {}
    timeline: Recorded | None = None

    @property
    def total(self) -> float:
        """Seconds of the task."""
        return self.seconds.get("total", 0.0)

    @property
    def moved(self) -> int:
        """Bytes of voxels that the task read and wrote."""
        return self.traffic.get("read", 0) + self.traffic.get("written", 0)

    @property
    def on_gpu(self) -> bool:
        """True if the step computed on a GPU."""
        return self.device.get("backend") == "gpu"

    @property
    def waited(self) -> float:
        """Seconds of waiting for a GPU; 0 for steps that use none."""
        lease = cast("dict[str, float]", self.figures.get("gpu") or {})
        return lease.get("slot_wait_seconds", 0.0)


def read_record(path: Path) -> Record:
    """Read the record of a task; raise an InputError for any other file."""
    if not path.exists():
        raise InputError(f"{path} does not exist; check the path.")
    try:
        return Record.model_validate_json(read_regular(path))
    except (OSError, ValidationError) as error:
        raise InputError(
            f"{path} is not the record of a step; give the *_metrics.json that a step wrote."
        ) from error


class Outcome(BaseModel, defer_build=True):
    """Parts missing from the results of a subject, as the workflow's ``outcomeOf`` reports them.

    ``missing`` names tasks without a record, such as ``section_01_resample`` or ``stack``;
    ``changed`` is a sentence if the input changed while it was read, else empty; ``sentence``
    says all of it.
    """

    missing: list[str] = []
    changed: str = ""
    sentence: str

    @property
    def sections(self) -> list[str]:
        """Names of the sections that were not finished."""
        if "stack" not in self.missing:
            return []
        tasks = [name.rpartition("_")[::2] for name in self.missing]
        # Without the reference channel's STACK, that of no other channel can run.
        others = tuple(f"_{item}" for item, step in tasks if item and step == "stack")
        items = (item for item, step in tasks if step in OF_SECTIONS and not item.endswith(others))
        return list(dict.fromkeys(items))


class Figures(BaseModel):
    """Figures of a step."""

    model_config = ConfigDict(extra="allow", validate_by_name=True, defer_build=True)


F = TypeVar("F", bound=Figures)


def read_reference(path: Path, step: str, figures: type[F]) -> F:
    """Read the figures of the reference channel's ``step`` from its record.

    Raises an InputError if the file is not such a record.
    """
    record = read_record(path)
    if record.step != step:
        raise InputError(
            f"{path} is a record of {record.step.upper()}; give --reference the record of "
            f"{step.upper()} of the reference channel."
        )
    try:
        return figures.model_validate(record.figures)
    except ValidationError as error:
        raise InputError(
            f"{path} lacks figures of {step.upper()}; run {step.upper()} of the reference channel "
            "again with this version of octane."
        ) from error


class OverlapFigures(Figures):
    """Overlap along one axis as fractions of a tile: as placed, and where the tiles correlate.

    ``found`` is None if neighbours share too little structure to tell; ``better`` means that it
    fits clearly better than the given one, ``certain`` that most tiles do not fit as placed.
    ``turned`` says under which other orientation of rows and columns they fit instead.
    """

    axis: str
    given: float
    found: float | None = None
    better: bool = False
    certain: bool = False
    turned: str = ""


def fitting(overlaps: Collection[OverlapFigures]) -> str:
    """Format overlaps for ``--overlap``, y before x: the found one if it fits better."""
    values = []
    for axis in "yx":
        own = [overlap for overlap in overlaps if overlap.axis == axis]
        better = [o.found for o in own if o.better and o.found is not None]
        if own:
            given = median(o.given for o in own)
            values.append(f"{median(better):.3f}" if better else f"{given:.3g}")
    return ",".join(values)


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
            n = abs(self.planes)
            way = "deeper" if self.planes > 0 else "higher"
            return f"{name} fits {n} plane{'s' if n > 1 else ''} {way}"
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
        own, unsure, removed = (angles or (0, 0) for angles in (self.tilt, self.tilt_std, levelled))
        left = (a - b for a, b in zip(slopes(own), slopes(removed), strict=True))
        high = sum(abs(slope) * size for slope, size in zip(left, extent, strict=True))
        return high, hypot(*(a * n for a, n in zip(slopes(unsure), extent, strict=True)))


def by_tile(
    positions: Mapping[str, tuple[float, float]],
) -> dict[tuple[int, int], tuple[float, float]]:
    """Positions of a section's record by row and column."""
    found = {}
    for name, position in positions.items():
        row, column = map(int, name.split(","))
        found[row, column] = position
    return found


class StitchFigures(Figures):
    """A stitched section.

    Shading is the range of the tiles' flat field over its mean, before and after the correction;
    None: not measured, or not corrected. ``seam_y`` and ``seam_x`` are the mismatch along an axis
    after evening out the light, between means of pixel blocks; ``speckle_y`` and ``speckle_x`` are
    the part of it that speckle causes; ``worst_y`` and ``worst_x`` are the largest mismatch.

    ``saturation`` is the largest share of a tile's voxels at its highest value; None: not counted.
    ``not_in_z`` says why tiles were not compared along z.

    ``positions`` are those of the tiles' first corners by "row,column", (y, x) in micrometres
    within the section; ``nominal_positions`` those before refinement, empty without it. On another
    channel than the reference, positions and surface are the reference's, and what was found about
    the places of tiles (``overlaps``, ``misplaced``) is left to its record.
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
    uneven: list[UnevenFigures] = []
    blurred: list[BlurredFigures] = []
    saturated: list[SaturatedFigures] = []
    saturation: float | None = None
    surface: SurfaceFigures | None = None
    shading_before: float | None = None
    shading_after: float | None = None
    uncovered_pixels: int = 0
    not_imaged: list[tuple[int, int]] = []
    holes: list[tuple[int, int]] = []
    positions: dict[str, tuple[float, float]] = {}
    nominal_positions: dict[str, tuple[float, float]] = {}
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
        moves = (dist(self.positions[tile], own) for tile, own in self.nominal_positions.items())
        return max(moves, default=0.0)

    def mismatch(self, axis: str) -> float | None:
        """Seam along an axis without speckle's part; None if no tiles overlap."""
        seam, speckle = getattr(self, f"seam_{axis}"), getattr(self, f"speckle_{axis}")
        return None if seam is None else max(0.0, seam**2 - speckle**2) ** 0.5


class SectionFigures(Figures):
    """One section of a stack.

    ``edge`` and ``extent`` are those of its image in micrometres, None for a gap. ``thickness`` is
    in micrometres, and ``thickness_from`` describes its source;
    ``measured_thickness`` and ``thickness_std`` are what the planes that it shares with the next
    section show, and ``thickness_reason`` says why nothing was found although the thickness should
    be measured. ``surface`` is the depth of its surface in its image in micrometres,
    ``surface_from`` the source of it, and ``levelled`` the tilt (y, x) in degrees that STACK
    removed. ``blended`` is the depth over which it is blended with the section above, micrometres.
    ``brightness`` is the ratio of its tissue's brightness to its neighbours', ``step`` that to the
    previous section;
    ``flip`` names the axes along which the user flipped it, and ``flipped`` those along which it
    must be mirrored, after that, to fit them. ``shift`` (y, x) in
    micrometres and ``rotation`` in degrees about the volume's centre are its displacement, measured
    or ``given`` by the user; ``moved`` tells whether STACK undid it. Values that could not be
    measured are None.
    """

    name: str = ""
    number: int
    start: int
    stop: int
    missing: bool = False
    edge: Vector | None = None
    extent: Sizes | None = None
    thickness: float | None = None
    thickness_from: str | None = None
    measured_thickness: float | None = None
    thickness_std: float | None = None
    thickness_reason: str = ""
    surface: float | None = None
    surface_from: str | None = None
    levelled: tuple[float, float] | None = None
    blended: float = 0.0
    brightness: float | None = None
    step: float | None = None
    flip: str = ""
    flipped: str | None = None
    shift: tuple[float, float] | None = None
    rotation: float | None = None
    moved: bool = False
    given: bool = False


class DistanceFigures(Figures):
    """Distance of sections as ``taken``, and as their shared depth shows it; micrometres.

    ``by_table`` if a table of displacements states the one that is taken.
    """

    measured: float
    std: float
    taken: float
    by_table: bool = False

    def differs(self, plane: float) -> bool:
        """Tell whether they differ by more than a plane and than the measured one is uncertain."""
        return abs(self.measured - self.taken) > max(plane, CERTAIN * self.std)

    @property
    def sentence(self) -> str:
        """The difference in words, with a remedy."""
        happens = "repeated" if self.measured < self.taken else "lost"
        remedy = f"Give --section_thickness {self.measured:.4g}, or auto to measure all of them."
        if self.by_table:
            remedy = "Correct or empty the thickness in the table that --displacements gives."
        return (
            f"Sections show the same tissue {self.measured:.4g} µm apart, but {self.taken:.4g} is "
            f"taken: tissue is {happens} at each boundary. {remedy}"
        )


class OrderFigures(Figures):
    """What neighbours that share depth say about the order of sections, by their numbers.

    ``compared`` counts the neighbours, ``exchanged`` are two in each other's place, and of
    ``repeated`` two the second shows the tissue of the first again. ``unmatched`` neighbours do
    not match, although most others do.
    """

    compared: int
    exchanged: list[tuple[int, int]] = []
    repeated: list[tuple[int, int]] = []
    unmatched: list[tuple[int, int]] = []


class StackFigures(Figures):
    """A stack.

    ``boundaries`` maps a section's number to the factor by which brightness jumps at its start;
    ``unlike`` lists neighbours, by number, without common structure. ``excluded_sections`` are
    those that the user left out; the others without an image are ``missing_sections``. ``blend`` is
    the depth in micrometres over which sections were to be blended at their borders. ``aligned``
    tells whether sections were to be moved. ``order`` is None if neighbours share no depth.
    ``distance`` is that of few neighbours, if they share
    depth and their thickness was not to be measured.
    """

    sections: list[SectionFigures]
    boundaries: dict[int, float] = {}
    missing_sections: list[int] = []
    excluded_sections: list[int] = []
    distance: DistanceFigures | None = None
    unlike: list[tuple[int, int]] = []
    planes_not_imaged: int = 0
    order: OrderFigures | None = None
    blend: float = 0.0
    align: str | None = None
    aligned: bool = False
    shape: Shape
    voxel_size: Sizes

    @property
    def flips(self) -> dict[int, str]:
        """Axes along which the user flipped sections, by number."""
        return {section.number: section.flip for section in self.sections if section.flip}


class LevelFigures(Figures):
    """One fitting level of N4."""

    iterations: int
    convergence: list[float]


class SectionFitFigures(Figures):
    """The field of one section."""

    name: str
    planes: tuple[int, int]
    levels: list[LevelFigures]
    field_min: float
    field_max: float


class VariationFigures(Figures):
    """Coefficient of variation of one section's tissue, on the grid that N4 fitted."""

    number: int
    cv_before: float
    cv_after: float


class LeftOutFigures(Figures):
    """Voxels of the mask, on the grid that N4 fitted, that were not: their number by kind."""

    nonfinite: int = 0
    nonpositive: int = 0
    outliers: int = 0


class UnchangedFigures(Figures):
    """What N4 left as it was, the volume or a section, and why.

    ``all voxels``: voxels that only ITK fits stretched the histogram; ``histogram``: others did;
    ``iterations``: there were too few; ``converged``: the field was found to be even.
    """

    name: str
    cause: Literal["all voxels", "histogram", "iterations", "converged"]


class N4Figures(Figures):
    """A bias correction; ``boundaries`` are the result's, as in :class:`StackFigures`.

    ``unchanged`` is None if no correction was asked for.
    """

    levels: list[LevelFigures]
    most_iterations: list[int] = []
    sections: list[SectionFitFigures] = []
    sections_skipped: list[str] = []
    variation: list[VariationFigures] = []
    boundaries: dict[int, float] = {}
    cv_before: float
    cv_after: float
    field_min: float
    field_max: float
    mask_fraction: float
    left_out: LeftOutFigures | None = None
    unchanged: list[UnchangedFigures] | None = None
    shrunk_shape: Shape
    shrunk_spacing: Sizes
    preview_spacing: Sizes | None = None
    shape: Shape | None = None
    voxel_size: Sizes | None = None
    truth: dict[str, float] | None = None


class PassedThroughFigures(Figures):
    """A volume of values that must not be averaged, which N4 copied without fitting a field."""

    passed_through: Literal[True] = True
    shape: Shape
    voxel_size: Sizes


class MosaicFigures(Figures):
    """Tiles that were written as mosaic grids: their files, and those that were not imaged."""

    files: int
    tiles: int
    not_imaged: int


class ResampleFigures(Figures):
    """A resampled section or volume."""

    voxel_size: Sizes
    source_voxel_size: Sizes


class ResolutionFigures(Figures):
    """One level of a pyramid."""

    voxel_size: Sizes
    shape: Shape
    size: int = Field(alias="bytes")


class PyramidFigures(Figures):
    """A pyramid."""

    levels: list[ResolutionFigures]


class ChannelFigures(Figures):
    """A channel of the result, as viewers show it: its colour RRGGBB, and the window's ends.

    ``kind`` is ``nearest`` for values that are never averaged.
    """

    name: str
    kind: str | None = None
    color: str
    window: tuple[float, float]


class ChannelsFigures(Figures):
    """Channels that were joined in one image."""

    channels: list[ChannelFigures]
