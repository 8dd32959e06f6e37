"""What the report reads of the steps' records: the figures that each step notes."""

from collections.abc import Mapping

from pydantic import BaseModel, Field

from octane.core.geometry import Vector
from octane.gpu.pinned import Direction, Transfer
from octane.report.charts import Band
from octane.report.trace import Recorded

__all__ = [
    "ORDER",
    "AttemptFigures",
    "Context",
    "LeaseFigures",
    "LevelFigures",
    "N4Figures",
    "OutsideFigures",
    "PipelineFigures",
    "PyramidFigures",
    "Record",
    "ResampleFigures",
    "ResolutionFigures",
    "SectionFigures",
    "SectionFitFigures",
    "StackFigures",
    "StitchFigures",
    "VariationFigures",
]

Context = dict[str, object]
ORDER = ("resample", "stitch", "stack", "n4", "pyramid")
"""Steps as they follow each other."""

Shape = tuple[int, int, int]


class Record(BaseModel):
    """A step's record, as :meth:`octane.core.metrics.Metrics.record` makes it."""

    step: str
    attempt: int = 1
    command: list[str] = []
    inputs: dict[str, dict[str, str]] = {}
    settings: Context = {}
    figures: Context = {}
    device: Context = {}
    host: Context = {}
    seconds: dict[str, float] = {}
    # Named apart from the type, which annotations below it would no longer find.
    traffic: dict[str, int] = Field(default={}, alias="bytes")
    peak_memory_bytes: int | None = None
    warnings: list[str] = []
    versions: dict[str, str] = {}
    timeline: Recorded | None = None


class AttemptFigures(BaseModel):
    """One try on a device."""

    gpu: str | None = None
    outcome: str
    detail: str = ""


class LeaseFigures(BaseModel):
    """What became of a step's lease."""

    backend: str
    slot_wait_seconds: float = 0.0
    fell_back: bool = False
    attempts: list[AttemptFigures] = []


class PipelineFigures(BaseModel):
    """Of a step's tile pipeline; bytes are 0 where an earlier version did not count them."""

    tiles: int
    workers: int
    seconds: float
    lane_seconds: dict[str, float]
    gap_seconds: dict[str, float] = {}
    cpu_seconds: float = 0.0
    read_bytes: int = 0
    written_bytes: int = 0
    looks_ahead: bool = False
    transfers: dict[Direction, Transfer] = {}

    @classmethod
    def of(cls, record: Record) -> "dict[str, PipelineFigures]":
        """Of all tile pipelines of a step, by what their work is called."""
        told = record.figures.get("pipeline")
        pipelines = told.items() if isinstance(told, Mapping) else ()
        return {str(label): cls.model_validate(figures) for label, figures in pipelines}


class OutsideFigures(BaseModel):
    """Of what a step did outside of its tile pipelines."""

    seconds: float
    pipeline_seconds: float
    part_seconds: dict[str, float]
    reader_seconds: dict[str, float] = {}


class StitchFigures(BaseModel):
    """Of a stitched section."""

    section: int | None = None
    seam_median: float | None = None
    seam_max: float | None = None
    uncovered_pixels: int = 0
    tiles: int
    shape: Shape


class SectionFigures(BaseModel):
    """One section of a stack."""

    number: int
    start: int
    stop: int
    missing: bool = False


class StackFigures(BaseModel):
    """Of a stack."""

    sections: list[SectionFigures]
    missing_sections: list[int] = []
    shape: Shape
    voxel_size: Vector

    def bands(self) -> list[Band]:
        """Where each section lies along z, micrometres."""
        # A plane's place is that of its middle; a boundary lies half a plane above it.
        z = self.voxel_size[0]
        return [Band((s.start - 0.5) * z, (s.stop - 0.5) * z, s.missing) for s in self.sections]


class LevelFigures(BaseModel):
    """One fitting level of N4."""

    iterations: int
    convergence: list[float]


class SectionFitFigures(BaseModel):
    """The field of one section."""

    name: str
    planes: tuple[int, int]
    levels: list[LevelFigures]
    field_min: float
    field_max: float


class VariationFigures(BaseModel):
    """Of one section in tissue, on the grid that N4 fitted."""

    number: int
    cv_before: float
    cv_after: float


class N4Figures(BaseModel):
    """Of a bias correction."""

    levels: list[LevelFigures]
    most_iterations: list[int] = []
    mode: str = "global"
    sections: list[SectionFitFigures] = []
    sections_skipped: list[str] = []
    variation: list[VariationFigures] = []
    cv_before: float
    cv_after: float
    field_min: float
    field_max: float
    mask_fraction: float
    shrunk_shape: Shape
    shrunk_spacing: Vector
    preview_spacing: Vector | None = None
    shape: Shape | None = None
    voxel_size: Vector | None = None
    truth: dict[str, float] | None = None


class ResampleFigures(BaseModel):
    """Of a resampled section."""

    voxel_size: Vector
    source_voxel_size: Vector


class ResolutionFigures(BaseModel):
    """One level of a pyramid."""

    voxel_size: Vector
    shape: Shape
    size: int = Field(alias="bytes")


class PyramidFigures(BaseModel):
    """Of a pyramid."""

    levels: list[ResolutionFigures]
    preview_spacing: Vector
