"""Records and previews of a subject's tasks, as the report reads them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy.typing as npt
from pydantic import BaseModel, ValidationError

from octane.core.errors import OctaneError
from octane.core.records import Record
from octane.processes.channels.record import ChannelsFigures
from octane.processes.report.check import Settings

M = TypeVar("M", bound=BaseModel)

CUTS = {"z": (1, 2), "y": (0, 2), "x": (0, 1)}
"""Axes of a slice, down and across, by the axis orthogonal to it."""
NEEDED_ARRAYS = {
    "stitch": ("thumbnail",),
    "n4": tuple(f"{kind}_{axis}" for kind in ("before", "after", "field") for axis in CUTS),
    "pyramid": (*(f"slice_{axis}" for axis in CUTS), "slice_spacing"),
}
"""Arrays that the report needs, by the step that makes them; CHANNELS makes some of each."""


@dataclass(frozen=True)
class TaskRecord:
    """A task's record, the prefix of its file names, and its preview arrays."""

    name: str
    record: Record
    previews: Mapping[str, npt.NDArray] = field(default_factory=dict)

    @property
    def is_passed_through(self) -> bool:
        """True if N4 fitted no field, because the voxels must never be averaged."""
        return bool(self.record.figures.get("passed_through"))


def needed_arrays(record: Record) -> tuple[str, ...]:
    """Arrays that the report needs of a task."""
    if record.step == "channels":
        count = len(ChannelsFigures.model_validate(record.figures).channels)
        cuts = tuple(f"slice_{axis}_{k}" for k in range(count) for axis in CUTS)
        return (*cuts, "slice_spacing")
    return () if record.figures.get("passed_through") else NEEDED_ARRAYS.get(record.step, ())


def settings_of(entries: Sequence[TaskRecord]) -> Settings:
    """Parameters with which the steps of a channel ran; those of sections are alike."""
    settings = {entry.record.step: entry.record.settings for entry in entries}
    return Settings(*(settings.get(step, {}) for step in Settings._fields))


def figures_of(
    entries: Sequence[TaskRecord], step: str, model: type[M]
) -> list[tuple[TaskRecord, M]]:
    """List the entries of a step, each with its figures."""
    pairs = []
    for entry in entries:
        if entry.record.step == step:
            try:
                pairs.append((entry, model.model_validate(entry.record.figures)))
            except ValidationError as error:
                figure = ".".join(map(str, error.errors()[0]["loc"])) or "(all)"
                raise OctaneError(
                    f"{entry.name}_metrics.json lacks a usable figure '{figure}'; "
                    f"run {step.upper()} again with this version of octane."
                ) from error
    return pairs
