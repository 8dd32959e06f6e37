"""Rows of the table of faults in docs/reliability.md, one for each fault test, in a JSON file.

Its prose is written by hand; what was observed, by the tests with OCTANE_RELIABILITY=write.
"""

import fcntl
import json
import os

from record import COMMIT, PROJECT, stamped, write

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


def rows() -> dict[str, dict[str, str]]:
    """The rows that are kept, by the tests that saw them."""
    return json.loads(RECORD.read_text(encoding="utf-8"))["rows"]


def note(test: str, observed: str) -> None:
    """Keep what was observed, if that is wanted; safe where several workers do so at once."""
    if os.environ.get("OCTANE_RELIABILITY") != "write":
        return
    folder = os.open(RECORD.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        # Rows of tests that were not run stay, each with the commit that it is of.
        kept = rows()
        kept[test] |= {"observed": observed, "commit": COMMIT}
        write(RECORD, stamped({"rows": dict(sorted(kept.items()))}))
    finally:
        os.close(folder)
