"""Which sections are complete, which lack tiles, and which go into the next run: pure functions."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from octane.config.validation import as_ranges
from octane.tools.watch.folder import Look, States

FIRST_SECTIONS = 4
"""Sections in every run: PREFLIGHT decides by them how tiles lie and overlap."""


@dataclass(frozen=True)
class Expected:
    """What a section needs before it is taken.

    Attributes
    ----------
    settle
        Seconds without a change.
    files
        Number of files, that of the first section or stated.
    are_flagged
        The microscope says which sections are complete.
    """

    settle: float
    files: int
    are_flagged: bool = False


@dataclass(frozen=True)
class OpenSection:
    """A section that may be taken: the seconds without a change, and what tells that it ended.

    ``is_over`` is true if the microscope goes on with another section, or has stopped.
    """

    files: int
    rest: float
    is_flagged: bool = False
    is_over: bool = False


def is_complete(section: OpenSection, expected: Expected) -> bool:
    """Tell whether a section is complete, or will not become so."""
    if expected.are_flagged:
        return section.is_flagged
    if section.rest < expected.settle or not section.files:
        return False
    return section.files >= expected.files or section.is_over


def file_count(states: States) -> int:
    """Number of files of a section: chunks count, because a store grows by them."""
    return sum(state.files for state in states.values())


def missing_files(
    names: Collection[str], others: Collection[str], key: Callable[[str], tuple[object, ...]]
) -> list[str]:
    """Names of another section's files that this section lacks; none if it has as many."""
    if len(names) >= len(others):
        return []
    keys = {key(name) for name in names}
    return sorted(name for name in others if key(name) not in keys)


def past_sections(look: Look, *, is_silent: bool) -> set[int]:
    """Numbers of sections that the microscope has left."""
    numbers = sorted(look.names)
    return {*numbers} if is_silent else {*numbers[:-1]}


def run_sections(usable: Iterable[int], new: Collection[int], before: Iterable[int]) -> list[int]:
    """Numbers of the sections of a run: the first ones, the new ones, and others ``before``."""
    return sorted({*sorted({*usable, *new})[:FIRST_SECTIONS], *new, *before})


def section_words(numbers: Collection[int]) -> str:
    """Sections as a sentence names them: Section 3, or Sections 3-5."""
    return f"Section{'s' * (len(numbers) > 1)} {as_ranges(numbers)}"


def next_in_turn(numbers: Sequence[int], start: int, count: int) -> list[int]:
    """The next ``count`` of the numbers, round and round."""
    return [numbers[(start + k) % len(numbers)] for k in range(min(count, len(numbers)))]


def largest_pause(states: States, before: int | None) -> float:
    """Largest pause between a section's files, and after the section before, in seconds.

    Only times of files are compared, which one clock has made.
    """
    times = sorted(state.time for state in states.values())
    times = times if before is None else [before, *times]
    return max((max(0, b - a) for a, b in pairwise(times)), default=0) / 1e9


def newest_time(states: States) -> int:
    """Time of a section's last file, nanoseconds."""
    return max((state.time for state in states.values()), default=0)
