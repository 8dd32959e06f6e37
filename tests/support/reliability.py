"""Rows of the table of faults in docs/reliability.md, one for each fault test.

The tests compare with the kept rows, or write them with OCTANE_RELIABILITY=write.
"""

import fcntl
import json
import os
from dataclasses import asdict, dataclass

from record import COMMIT, PROJECT, stamped, write

__all__ = ["GROUPS", "RECORD", "Row", "note", "rows", "writing"]

RECORD = PROJECT / "tests" / "faults" / "reliability.json"

GROUPS = (
    "no space",
    "kills",
    "lost and damaged data",
    "read-only places",
    "changes",
    "two runs",
    "within a step",
)
"""In the order of the table."""


@dataclass(frozen=True)
class Row:
    """A fault and what came of it.

    Attributes
    ----------
    group
        One of :data:`GROUPS`.
    fault
        What was done to the run.
    does
        What octane does about it.
    result
        How it ended: in an error, a recovery, the same checksums.
    observed
        Its own words, and the tasks that ran again.
    """

    group: str
    fault: str
    does: str
    result: str
    observed: str


def rows() -> dict[str, Row]:
    """The rows that are kept, by the tests that saw them."""
    return {
        test: Row(**{name: text for name, text in row.items() if name != "commit"})
        for test, row in _kept().items()
    }


def _kept() -> dict[str, dict[str, str]]:
    if not RECORD.exists():
        return {}
    return json.loads(RECORD.read_text(encoding="utf-8"))["rows"]


def writing() -> bool:
    """Return whether the tests write the rows."""
    return os.environ.get("OCTANE_RELIABILITY") == "write"


def note(test: str, row: Row) -> None:
    """Keep a row; safe where several workers do so at once."""
    if row.group not in GROUPS:
        raise ValueError(f"there is no group {row.group!r}")
    folder = os.open(RECORD.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        # Rows of tests that were not run stay, each with the commit that it is of.
        kept = {**_kept(), test: {**asdict(row), "commit": COMMIT}}
        write(RECORD, stamped({"rows": {key: kept[key] for key in sorted(kept)}}))
    finally:
        os.close(folder)
