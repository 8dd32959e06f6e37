"""What sections so far say of the next ones: disks that fill, a silent microscope."""

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from octane.tools.watch.state import Taken

RECENT = 20
"""Sections by which the next ones are foretold."""
LEAST = 3
"""Minimum number of intervals that tell."""
PATIENCE = 3.0
"""A silence is this many times longer than the usual one."""
FEW = 10
"""Sections left on a disk that are few if the number of the last one is unknown."""
DAY = 86400.0


def usual_pause(sections: Sequence[Taken]) -> float | None:
    """Usual longest pause of the microscope in a section, in seconds; None if it is unknown."""
    known = [own.pause for own in sections[1:][-RECENT:] if own.pause > 0]
    return median(known) if len(known) >= LEAST else None


def usual_period(sections: Sequence[Taken]) -> float | None:
    """Usual seconds from one section to the next; None if they are unknown."""
    known = [(b.last - a.last) / 1e9 for a, b in pairwise(sections[-RECENT:]) if b.last > a.last]
    return median(known) if len(known) >= LEAST else None


def bytes_a_section(sections: Sequence[Taken], disk: str) -> float | None:
    """Bytes by which a section fills a disk; None if they are unknown."""
    pairs = pairwise(own.free for own in sections[-RECENT:] if disk in own.free)
    used = [one[disk] - other[disk] for one, other in pairs if one[disk] > other[disk]]
    return median(used) if len(used) >= LEAST else None


def disk_warning(
    sections: Sequence[Taken], disk: str, free: int, to_come: int | None
) -> tuple[int, float | None] | None:
    """Sections that a disk can still take, and the days until then; None if these are enough.

    ``to_come`` is the number of sections that are still to come, None if nobody knows.
    """
    each = bytes_a_section(sections, disk)
    if each is None:
        return None
    left, period = int(free / each), usual_period(sections)
    is_enough = left >= (FEW if to_come is None else to_come)
    return None if is_enough else (left, None if period is None else left * period / DAY)
