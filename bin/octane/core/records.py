"""Records of tasks, which steps write and the report reads.

The figures of a process are in its ``record.py``. A step may record more figures than its model
lists; they are kept unchanged.
"""

from pathlib import Path
from typing import Annotated, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from octane.core.errors import InputError
from octane.core.files import read_regular
from octane.core.orientation import UNSTATED, Orientation

Context = dict[str, object]
ORDER = ("mosaic", "resample", "stitch", "stack", "n4", "pyramid", "channels")
"""Steps in the order of the workflow."""
ENDINGS = {"channels": "", "pyramid": "", "n4": "_n4", "stack": "_stack"}
"""End of a resulting volume's name by the step that made it, the last step first."""
OF_SECTIONS = ("mosaic", "resample", "stitch")
"""Steps with a task for each section; the others have one for each channel, or one in all."""

Shape = tuple[int, int, int]


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


class Decision(BaseModel, defer_build=True):
    """What octane decided because nobody stated it.

    ``subject`` is what was to be decided, ``evidence`` what was measured, ``done`` what follows,
    and ``flag`` states the same for another run.
    """

    subject: str
    evidence: str
    done: str
    flag: str

    @property
    def sentence(self) -> str:
        """The decision for the terminal."""
        return f"{self.subject}: {self.evidence}; {self.done}. To state it, give {self.flag}."


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


class JumpFigures(Figures):
    """Jumps of brightness where sections begin, before and after a correction.

    Each is the mean over boundaries, as a fraction.
    """

    before: float
    after: float


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
