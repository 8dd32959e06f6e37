"""What sections so far say of the next ones: disks that fill, a silent microscope."""

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from octane.tools.watch.state import SectionEntry

RECENT = 20
"""Sections by which the next ones are foretold."""
LEAST_INTERVALS = 3
"""Minimum number of intervals that tell."""
SILENCE_RATIO = 3.0
"""A silence is this many times longer than the usual one."""
FEW_SECTIONS = 10
"""Sections left on a disk that are few if the number of the last one is unknown."""
DAY_SECONDS = 86400.0


def usual_pause(sections: Sequence[SectionEntry]) -> float | None:
    """Usual longest pause of the microscope in a section, in seconds; None if it is unknown."""
    known = [section.pause for section in sections[1:][-RECENT:] if section.pause > 0]
    return median(known) if len(known) >= LEAST_INTERVALS else None


def usual_period(sections: Sequence[SectionEntry]) -> float | None:
    """Usual seconds from one section to the next; None if they are unknown."""
    known = [(b.last - a.last) / 1e9 for a, b in pairwise(sections[-RECENT:]) if b.last > a.last]
    return median(known) if len(known) >= LEAST_INTERVALS else None


def bytes_a_section(sections: Sequence[SectionEntry], disk: str) -> float | None:
    """Bytes by which a section fills a disk; None if they are unknown."""
    pairs = pairwise(section.free for section in sections[-RECENT:] if disk in section.free)
    used = [before[disk] - after[disk] for before, after in pairs if before[disk] > after[disk]]
    return median(used) if len(used) >= LEAST_INTERVALS else None


def disk_warning(
    sections: Sequence[SectionEntry], disk: str, free: int, to_come: int | None
) -> tuple[int, float | None] | None:
    """Sections that a disk can still take, and the days until then; None if these are enough.

    ``to_come`` is the number of sections that are still to come, None if nobody knows.
    """
    each = bytes_a_section(sections, disk)
    if each is None:
        return None
    sections_left, period = int(free / each), usual_period(sections)
    is_enough = sections_left >= (FEW_SECTIONS if to_come is None else to_come)
    return (
        None
        if is_enough
        else (sections_left, None if period is None else sections_left * period / DAY_SECONDS)
    )
