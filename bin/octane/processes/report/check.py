"""A check of a subject, and the words that all checks share."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from octane.core.records import Context
from octane.processes.stack.record import StackFigures

MOST_NAMED = 6
"""Maximum number of subjects, sections or tiles that a sentence names."""


@dataclass(frozen=True)
class Check:
    """One check of a subject.

    ``value`` and ``limit`` include units. ``sentence`` says where to look and what to do, or why
    nothing was checked; it is empty for a good result. ``sections`` are the titles of marked
    sections.
    """

    name: str
    value: str
    limit: str
    state: Literal["good", "warning", "not checked", "incomplete"]
    sentence: str = ""
    sections: tuple[str, ...] = ()


def judge(
    name: str, limit: str, value: str, failed: Collection[str] | bool, sentence: str
) -> Check:
    """Make a check that warns with ``sentence`` if it, or any section, failed."""
    if not failed:
        return Check(name, value, limit, "good")
    marked = () if isinstance(failed, bool) else tuple(dict.fromkeys(failed))
    return Check(name, value, limit, "warning", sentence, marked)


def skip(name: str, limit: str, reason: str) -> Check:
    """Make a check that was not made, and say why."""
    return Check(name, "–", limit, "not checked", reason)


def join_names(names: Sequence[str]) -> str:
    """List names in a sentence: A, B and 4 more."""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def join_titles(titles: Sequence[str]) -> str:
    """List titles in a sentence: Sections 2, 3 and 4 more."""
    numbers = [title.removeprefix("Section ") for title in titles]
    alike = len(titles) > 1 and all(number.isdigit() for number in numbers)
    return f"Sections {join_names(numbers)}" if alike else join_names(titles)


class Settings(NamedTuple):
    """Parameters with which the steps of a subject ran, of which no remedy needs them again."""

    stitch: Context
    stack: Context
    n4: Context


NO_SETTINGS = Settings({}, {}, {})
"""Those of unknown steps."""


def missing_comparison(stack: StackFigures, shared: str) -> str:
    """Say why sections were not compared."""
    if sum(not section.missing for section in stack.sections) < 2:
        return "Fewer than two sections were imaged."
    return f"No neighbouring sections share {shared}."
