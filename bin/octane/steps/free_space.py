"""Whether what a run will write fits the file systems that it writes to, and what to do if not.

Work, scratch and output folders that lie on one file system are counted together. What is free is
what an unprivileged user may take; a quota that the file system does not count in is not seen.
"""

import logging
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypedDict

from octane.config.scratch import known_folder
from octane.core.errors import OctaneError
from octane.core.units import shown
from octane.pipeline.workers import cores
from octane.steps.space import Step

__all__ = ["Places", "Space", "check_space", "require_links"]

logger = logging.getLogger(__name__)

RECORDS, RECORD = 3_300_000, 10_000
"""Nextflow's report, timeline, DAG and trace; and what each task adds to them."""

PLACES = {
    "work": "work directory",
    "scratch": "scratch folder at a time",
    "output": "output folder",
}
REMEDIES = {
    "scratch": "give --scratch_dir false, or a path with more space",
    "work": "give Nextflow a -work-dir with more space",
    "output": "give an --outdir with more space, or --publish_dir_mode symlink",
}


class FileSystem(TypedDict):
    """One file system that a run writes to: for which places, how much, and what is free."""

    places: list[str]
    folder: str
    need_bytes: int
    free_bytes: int


class Space(TypedDict):
    """What a plan carries of space, ready for JSON."""

    summary: str
    steps: list[dict[str, int | str]]
    need_bytes: dict[str, int]
    file_systems: list[FileSystem]
    warnings: list[str]


@dataclass(frozen=True)
class Places:
    """Where a run writes, and how.

    Attributes
    ----------
    work
        A folder on the work directory's file system.
    outdir
        Folder of the results; need not exist.
    scratch
        As :func:`octane.config.scratch.read_scratch` gives it.
    copied
        Whether results are copied, and not linked.
    recorded
        Whether Nextflow's own records are written.
    """

    work: Path
    outdir: Path
    scratch: bool | str = False
    copied: bool = False
    recorded: bool = True

    @property
    def scratch_folder(self) -> Path | None:
        """Where it is known here."""
        return known_folder(self.scratch)

    @property
    def one_disk(self) -> bool:
        """Whether the scratch folder is on the work directory's file system."""
        folder = self.scratch_folder
        return folder is not None and _device(folder) == _device(self.work)


def _existing(folder: Path) -> Path:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder


def _device(folder: Path) -> int:
    return _existing(folder).stat().st_dev


def _free(folder: Path) -> int:
    found = os.statvfs(_existing(folder))
    return found.f_bavail * found.f_frsize


def _needs(steps: Sequence[Step], places: Places) -> dict[str, int]:
    """Bytes at the most, in each place."""
    linked = sum(step.linked for step in steps)
    own = sum(step.bytes for step in steps)
    tasks = sum(step.tasks for step in steps)
    need = {
        # A link does not survive the copy out of a scratch folder.
        "work": own + linked * (places.scratch is not False),
        "output": RECORDS * places.recorded
        + RECORD * tasks * places.recorded
        + places.copied * sum(step.published for step in steps),
    }
    if places.scratch is not False:
        need["scratch"] = max(
            (step.largest - (step.linked * places.one_disk) for step in steps), default=0
        )
    return need


def _by_name(steps: Sequence[Step]) -> dict[str, list[Step]]:
    """The same step of all subjects together."""
    found: dict[str, list[Step]] = {}
    for step in steps:
        found.setdefault(step.name, []).append(step)
    return found


def _table(steps: Sequence[Step], places: Places, need: dict[str, int], subject: str) -> list[str]:
    scratch = places.scratch is not False
    rows = [("", "tasks", "work", *(["scratch, one task"] if scratch else []), "output")]
    for name, of in _by_name(steps).items():
        work = sum(step.bytes + step.linked * scratch for step in of)
        largest = max(step.largest - step.linked * places.one_disk for step in of)
        published = sum(step.published for step in of)
        out = shown(published) if places.copied and published else "-"
        one = [shown(largest)] if scratch else []
        rows.append((name, str(sum(step.tasks for step in of)), shown(work), *one, out))
    one = [shown(need["scratch"])] if scratch else []
    rows.append(("at most", "", shown(need["work"]), *one, shown(need["output"])))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        f"What {subject} will write, predicted:",
        *(
            "  ".join(
                cell.ljust(w) if not k else cell.rjust(w)
                for k, (cell, w) in enumerate(zip(row, widths, strict=True))
            )
            for row in rows
        ),
    ]


def check_space(steps: Sequence[Step], places: Places, subject: str, *, stop: bool = True) -> Space:
    """Compare what steps will write with what is free.

    Parameters
    ----------
    steps
        From :func:`octane.steps.space.predict`, of one subject or of several.
    places
        Where it goes.
    subject
        Whose they are, for the table.
    stop
        Whether what does not fit is an error; else it is a warning.

    Returns
    -------
    Space
        A summary in words, steps, needs and free space in bytes, and warnings, ready for JSON.

    Raises
    ------
    OctaneError
        When it cannot fit, a line for each file system, with the figures and what to do.
    """
    need = _needs(steps, places)
    folders = {"work": places.work, "output": _existing(places.outdir)}
    if (folder := places.scratch_folder) is not None:
        folders["scratch"] = folder
    for line in _table(steps, places, need, subject):
        logger.info("%s", line)
    together: dict[int, list[str]] = {}
    for name, folder in folders.items():
        together.setdefault(_device(folder), []).append(name)
    systems: list[FileSystem] = []
    problems: list[str] = []
    warnings: list[str] = []
    for names in together.values():
        wanted, free = sum(need[n] for n in names), _free(folders[names[0]])
        spelled = " and ".join(f"{name} ({shown(need[name])})" for name in names)
        total = f" on one file system: {shown(wanted)}" if len(names) > 1 else ""
        logger.info("%s%s; %s free", spelled, total, shown(free))
        systems.append(
            {
                "places": names,
                "folder": str(folders[names[0]]),
                "need_bytes": wanted,
                "free_bytes": free,
            }
        )
        if wanted > free:
            remedies = "; or ".join(REMEDIES[n] for n in names)
            by_step = ", ".join(
                f"{name} {shown(sum(step.bytes for step in of))}"
                for name, of in _by_name(steps).items()
            )
            problems.append(
                f"{subject} does not fit: {spelled} take about {shown(wanted)} on the file system "
                f"of {folders[names[0]]}, which has {shown(free)} free (by step: {by_step}). Free "
                f"some; or {remedies}; or, where much of it is there from an earlier run that is "
                "resumed, give --check_space false."
            )
    if places.scratch is not False:
        warnings += _about_scratch(steps, places, need)
    if problems and stop:
        raise OctaneError("\n".join(problems))
    warnings += problems
    for line in warnings:
        logger.warning("%s", line)
    parts = [f"{shown(need[name])} in the {PLACES[name]}" for name in PLACES if name in need]
    return {
        "summary": f"will write about {', '.join(parts)}.",
        "steps": [asdict(step) for step in steps],
        "need_bytes": need,
        "file_systems": systems,
        "warnings": warnings,
    }


def _about_scratch(steps: Sequence[Step], places: Places, need: dict[str, int]) -> list[str]:
    folder = places.scratch_folder
    if folder is None:
        logger.info("--scratch_dir %s: only the nodes know it; each task looks", places.scratch)
        return []
    if places.one_disk:
        return [
            f"The scratch folder {folder} is on the file system of the work directory: "
            f"everything is written twice there, {shown(2 * need['work'])} in place of "
            f"{shown(sum(step.bytes for step in steps))}; give --scratch_dir false."
        ]
    at_once = max((min(s.tasks, cores()) * s.largest for s in steps), default=0)
    free = _free(folder)
    if need["scratch"] <= free < at_once:
        return [
            f"{folder} has {shown(free)} free, and tasks that run at once may take up to "
            f"{shown(at_once)}: those that do not fit are tried again in the work directory."
        ]
    return []


def require_links(places: Places) -> None:
    """See that a hard link can lead from the output to the work directory.

    Raises
    ------
    OctaneError
        When the two are on different file systems, or theirs has no hard links.
    """
    file = places.work / f".octane-link-{os.getpid()}"
    link = _existing(places.outdir) / file.name
    try:
        file.touch()
        if link != file:
            os.link(file, link)
    except OSError as error:
        raise OctaneError(
            f"--publish_dir_mode link: no hard link can lead from {link.parent} to the work "
            f"directory ({error.strerror}); give symlink, rellink or copy, or an --outdir on the "
            "work directory's file system."
        ) from error
    finally:
        link.unlink(missing_ok=True)
        file.unlink(missing_ok=True)
