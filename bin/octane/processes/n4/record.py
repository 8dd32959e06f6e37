"""Figures of N4 that the report reads."""

from typing import Literal

from octane.core.records import Figures, JumpFigures, Shape, Sizes


class LevelFigures(Figures):
    """One fitting level of N4."""

    iterations: int
    convergence: list[float]


class SectionFitFigures(Figures):
    """The field of one section."""

    name: str
    planes: tuple[int, int]
    levels: list[LevelFigures]
    relative_entropy: list[float] = []
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
    ``iterations``: there were too few; ``levels``: none makes the histogram clearer;
    ``converged``: the field was found to be even.
    """

    name: str
    cause: Literal["all voxels", "histogram", "iterations", "levels", "converged"]


class N4Figures(Figures):
    """A bias correction; ``boundaries`` are the result's, as in :class:`StackFigures`.

    ``unchanged`` is None if no correction was asked for. If the number of levels was judged,
    ``relative_entropy`` is the histogram's with 0, 1, ... levels, nats, and ``levels`` has those
    that were kept.
    """

    levels: list[LevelFigures]
    relative_entropy: list[float] = []
    most_iterations: list[int] = []
    sections: list[SectionFitFigures] = []
    sections_skipped: list[str] = []
    variation: list[VariationFigures] = []
    boundaries: dict[int, float] = {}
    jumps: JumpFigures | None = None
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
