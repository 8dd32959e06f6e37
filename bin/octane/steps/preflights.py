"""PREFLIGHT of all subjects of a run at once: nothing begins while one of them has a problem.

One task for all, so that a cohort of a hundred names every problem in one go, and so that a check
that failed is never taken for done by -resume: Nextflow keeps what ended well alone.
"""

from dataclasses import asdict
from pathlib import Path
from platform import node
from typing import cast

from octane.config.validation import read_object
from octane.core.errors import OctaneError
from octane.core.metrics import write_json
from octane.steps.preflight import Plan, check_places, plan_of

__all__ = ["make_plans"]

METADATA = ("zarr.json", ".zattrs", ".zgroup", ".zarray")
"""Files of a store of which the launch takes the first (``marksOf`` in lib/launch.nf)."""


def make_plans(request: Path, sources: Path, output: Path, tables: Path) -> list[Plan]:
    """Check all subjects of a run before any work on one of them, and write their plans.

    Parameters
    ----------
    request
        JSON: ``parameters`` of the run, and ``subjects``, each with its name (``subject``), what is
        its own (``given``), where that was read (``told``), the number of its positions table
        (``table``) or null, and size and time of what the launch saw (``marks``).
    sources, tables
        Folders of the staged inputs and positions tables, each in a folder of its number from 1.
    output
        Where to write the ``plans`` as JSON, in the order of the subjects, and the ``space`` that
        they take together.

    Raises
    ------
    OctaneError
        With one line per problem of any subject; what concerns all of them is said once.
    """
    asked = read_object(request)
    run = cast("dict[str, object]", asked["parameters"])
    subjects = cast("list[dict[str, object]]", asked["subjects"])
    plans: list[Plan] = []
    problems: dict[str, list[str]] = {}
    for number, subject in enumerate(subjects, start=1):
        given = {**cast("dict[str, object]", subject["given"] or {}), "subject": subject["subject"]}
        table = _staged(tables, subject["table"]) if subject["table"] else None
        source = _staged(sources, number)
        try:
            _require_same(cast("dict[str, list[int] | None]", subject["marks"]), source, table)
            plans.append(plan_of({**run, **given}, source, output.parent, table))
        except OctaneError as error:
            told = f" ({subject['told']})" if subject["told"] else ""
            for line in dict.fromkeys(str(error).splitlines()):
                problems.setdefault(line, []).append(f"{subject['subject']}{told}")
    if problems:
        raise OctaneError("\n".join(_said(problems, len(subjects))))
    space = check_places(plans, output.parent)
    write_json(output, {"plans": [asdict(plan) for plan in plans], "space": space})
    return plans


def _staged(folder: Path, number: object) -> Path:
    (found,) = (folder / str(number)).iterdir()
    return found


def _require_same(marks: dict[str, list[int] | None], source: Path, table: Path | None) -> None:
    """Raise unless a task sees the files that the launch saw, by their size and time in seconds.

    A node may have other data behind a path than the machine that the run was started on.
    """
    for name, mark in marks.items():
        if mark is None:
            continue
        path = next(p for p in (source, table, source / name) if p is not None and p.name == name)
        file = next((f for f in (path / part for part in METADATA) if f.exists()), path)
        state = file.stat() if file.exists() else None
        if state is None or [state.st_size, int(state.st_mtime)] != mark:
            raise OctaneError(
                f"{path.resolve()} is not what the run was started with: {node()} has other files "
                "behind its path; give a path that is the same on all machines."
            )


def _said(problems: dict[str, list[str]], count: int) -> list[str]:
    """Each problem after the subject's name; once, where all subjects have it."""
    return [
        line if name is None else f"{name}: {line}"
        for line, names in problems.items()
        for name in ([None] if len(names) == count else names)
    ]
