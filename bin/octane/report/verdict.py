"""The verdict on a subject: checks of its records, each with its limit and, if needed, a remedy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from octane.core.records import N4Figures, StackFigures, StitchFigures
from octane.report.summary import SectionQuality


@dataclass(frozen=True)
class Check:
    """One check of a subject.

    ``value`` and ``limit`` have their units; ``sentence`` says where to look and what to do, and is
    empty for what is good.
    """

    name: str
    value: str
    limit: str
    state: Literal["good", "warning", "not checked"]
    sentence: str = ""


def checks(
    quality: Sequence[SectionQuality],
    stitched: Mapping[str, StitchFigures],
    stack: StackFigures | None,
    n4: N4Figures | None,
    threshold: float | None = None,
) -> list[Check]:
    """List all checks of a subject in the order of the workflow.

    ``stitched`` has the names of the records, ``threshold`` is N4's of convergence.
    """
    return []


def verdict(found: Sequence[Check], notes: int) -> str:
    """Say in one sentence what to look at; ``notes`` counts the remarks of tasks."""
    warned = [check.name for check in found if check.state == "warning"]
    made = [check for check in found if check.state != "not checked"]
    beside = f" {notes} {'note' if notes == 1 else 'notes'} of the tasks." if notes else ""
    if warned:
        return f"Look at {len(warned)} of {len(made)} checks: {', '.join(warned)}.{beside}"
    if not made:
        return f"Nothing could be checked.{beside}"
    return f"Good: {len(made)} checks, nothing to look at.{beside}"
