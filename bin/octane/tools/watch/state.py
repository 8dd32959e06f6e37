"""What a watcher has done: one file, from which a new one goes on after any end of the old one."""

import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from pydantic import BaseModel, ValidationError

from octane.core.errors import InputError
from octane.core.files import read_regular, writing
from octane.core.records import Context

LINES = "watch.jsonl"
"""Name of the file with a line for each event, in outdir."""
UNMATCHED = "Unlike the section before"
INCOMPARABLE = ("Section brightness", UNMATCHED)
"""Faults of a section with which no other is compared."""
TAIL_BYTES = 1 << 14
"""Bytes in which the last line is sought: more than any line has."""


class Fault(NamedTuple):
    """A fault: what is wrong, and a sentence on where and what to do."""

    kind: str
    sentence: str


@dataclass(frozen=True)
class Judgement:
    """Verdict on a section.

    ``surface`` and ``thickness`` are as in :class:`SectionEntry`; ``pictures`` are keyed by the
    ends of their names.
    """

    name: str
    surface: float | None
    thickness: float | None
    faults: Sequence[Fault]
    pictures: Mapping[str, bytes]


class SectionEntry(BaseModel):
    """A section that was taken.

    Attributes
    ----------
    name
        Its name in the workflow's tasks.
    state
        ``good``, ``look`` if it has faults, or ``refused`` if it could not be processed.
    fingerprint, files, size
        Those of its files when it was taken, and their number and bytes.
    last
        Time of its last file, in nanoseconds.
    pause
        Largest pause between its files or before them, in seconds.
    free
        Bytes free on each disk when it was taken, by the disk's folder.
    faults
        Kinds of its faults.
    again
        How often it was taken again.
    surface, thickness
        Depth of its surface, and thickness of the cut before it, in micrometres, if measured.
    """

    name: str
    state: str
    fingerprint: str
    files: int
    size: int
    last: int = 0
    pause: float = 0.0
    free: dict[str, int] = {}
    faults: list[str] = []
    again: int = 0
    surface: float | None = None
    thickness: float | None = None


class State(BaseModel):
    """State of a watcher.

    Attributes
    ----------
    key, runs
        Part of the names of its runs, from which Nextflow's session follows, and their number.
    sections
        Those taken, by number.
    alerts
        Alerts that hold, by their key; False until the command was called for it.
    pending
        Events that may not be in :data:`LINES` yet.
    events
        Number of all events.
    whole
        Fingerprint of the sections that the whole run has processed.
    """

    key: str = ""
    runs: int = 0
    sections: dict[int, SectionEntry] = {}
    alerts: dict[str, bool] = {}
    pending: list[Context] = []
    events: int = 0
    whole: str = ""

    @property
    def usable(self) -> list[int]:
        """Numbers of the sections that a run can process, in order."""
        return sorted(n for n, section in self.sections.items() if section.state != "refused")

    def before(self, number: int) -> int | None:
        """Number of the section with which another one is compared."""
        earlier = [n for n in self.usable if n < number]
        sound = [n for n in earlier if not {*INCOMPARABLE} & {*self.sections[n].faults}]
        return max(sound or earlier, default=None)

    def add_event(self, **event: object) -> None:
        """Add an event."""
        self.events += 1
        self.pending.append({"number": self.events, **event})


def read_state(path: Path) -> State:
    """Read a state, or begin one."""
    if not path.exists():
        return State(key=uuid4().hex[:8])
    try:
        return State.model_validate_json(read_regular(path))
    except (OSError, ValidationError) as error:
        raise InputError(
            f"{path}, which lists the sections taken, cannot be read; restore it, or delete it to "
            "take all sections again."
        ) from error


def save_state(state: State, path: Path) -> None:
    """Write a state; a kill leaves the old one or the new one."""
    with writing(path, overwrite=True) as partial:
        partial.write_text(state.model_dump_json(indent=1), encoding="utf-8")


def append_events(state: State, path: Path) -> None:
    """Append pending events that the file lacks; a line that a kill cut is written again."""
    with path.open("a+b") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(0, size - TAIL_BYTES))
        tail = stream.read()
        kept = tail[: tail.rfind(b"\n") + 1]
        if len(kept) < len(tail):
            stream.truncate(size - len(tail) + len(kept))
        *_, last = [b"", *kept.splitlines()]
        written = json.loads(last)["number"] if last else 0
        new = [event for event in state.pending if int(str(event["number"])) > written]
        stream.write(b"".join(json.dumps(event).encode() + b"\n" for event in new))
        stream.flush()


def tell_alerts(state: State, tell: Callable[[Context], None]) -> Collection[str]:
    """Call ``tell`` for each alert that was not told, and return their keys."""
    events = {str(event["key"]): event for event in state.pending if event["event"] == "alert"}
    new = [key for key, is_told in state.alerts.items() if not is_told]
    for key in new:
        if key in events:
            tell(events[key])
        state.alerts[key] = True
    return new


def recent_alerts(path: Path) -> list[Context]:
    """The last alerts in a file of events, the newest first."""
    if not path.exists():
        return []
    with path.open("rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(0, size - TAIL_BYTES))
        # The first line may be cut.
        lines = stream.read().splitlines()[size > TAIL_BYTES :]
    events = [json.loads(line) for line in lines if line.endswith(b"}")]
    return [event for event in reversed(events) if event["event"] == "alert"]
