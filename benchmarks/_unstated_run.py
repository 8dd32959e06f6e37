"""A subject from its plan to its volume, and where beads lie in it."""

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import numpy as np
import numpy.typing as npt
from _unstated_data import BEAD, TISSUE, Laboratory, Truth
from scipy import ndimage

from octane.core.errors import OctaneError
from octane.layout.sections import read_sections
from octane.processes.mosaic import command as mosaic
from octane.processes.preflight.plan import SubjectPlan
from octane.processes.preflight.step import plan_of
from octane.processes.report.summary import section_qualities
from octane.processes.report.verdict import check_subject
from octane.processes.stack import command as stack
from octane.processes.stack.record import StackFigures
from octane.processes.stitch import command as stitch
from octane.processes.stitch.record import StitchFigures
from octane.store.image import open_image

SUBJECT = "brain"
FLAG = re.compile(r"--([a-z_]+)")
SMOOTH, SHOWN = 1.0, 0.25
"""Standard deviation by which speckle is smoothed, pixels, and the least brightness of what counts
as a bead then, relative to one."""
SAME = 3.0
"""Pixels up to which a bright place is a bead, when sections are laid over the truth."""
LOST = 99.0
"""Error of a bead that is nowhere."""


class RefusedError(Exception):
    """A command refused the data."""


@dataclass(frozen=True)
class Run:
    """What octane asked for and decided, with its first refusal, and the error of beads in voxels.

    ``refused`` is why it went no further. ``named`` are the checks of the report that warn, and
    ``moved`` counts the sections that STACK moved.
    """

    asked: Sequence[str] = ()
    refusal: str = ""
    decided: Sequence[str] = ()
    error: float | None = None
    refused: str = ""
    named: Sequence[str] = ()
    moved: int = 0


def run_subject(
    lab: Laboratory, source: Path, given: Mapping[str, str], truth: Truth, work: Path
) -> Run:
    """Plan and stack a subject of which ``given`` is stated, and compare it with the truth."""
    own = {"outdir": str(work / "results"), "subject": SUBJECT, **given}
    tables = lab.tables(source.parent)
    beside = dict(tables) if given else {}
    asked: list[str] = []
    refusal, made = "", None
    answers = {**lab.stated, "overlap": lab.exact} | ({"positions": ""} if lab.table else {})
    while made is None:
        try:
            made = plan_of(own, source, beside)
        except OctaneError as error:
            text = str(error).replace(str(source), source.name)
            refusal = refusal or text.partition("\n")[0]
            known = {*own, *beside}
            flags = [flag for flag in FLAG.findall(text) if flag in answers.keys() - known]
            if not flags:
                return Run(asked, refusal, refused=text)
            # A user answers one question after another, but an order needs the number of rows.
            for flag in dict.fromkeys(flags):
                if flag == "positions":
                    beside = {flag: tables[flag]}
                else:
                    own[flag] = answers[flag]
                asked.append(flag)
    decided = [decision.flag for decision in made.decisions]
    try:
        volume = stacked(made, {"input": source, **beside}, work)
    except RefusedError as error:
        return Run(asked, refusal, decided, refused=str(error))
    record, named = judged(work)
    moved = sum(section.moved for section in record.sections)
    error = round(error_of(lab, volume, truth), 3)
    return Run(asked, refusal, decided, error, "", named, moved)


def stacked(made: SubjectPlan, files: Mapping[str, Path], work: Path) -> Path:
    """Run MOSAIC, STITCH and STACK with the flags of a plan, and return the volume."""
    content = made.content(files, is_chosen_alone=True)
    data = {name: [*paths] for name, paths in content.data.items()}
    for number, (name, text) in enumerate(content.tables.items()):
        data[name] = [work / f"table_{number}.csv"]
        data[name][0].write_text(text)
    image = work
    for task in content.tasks:
        if task.step not in ("mosaic", "stitch", "stack") or task.meta.get("channel"):
            continue
        folder = work / task.name
        folder.mkdir()
        reads = {
            kind: [path for name in names for path in data[name]]
            for kind, names in task.reads.items()
        }
        flags = task.flags.split()
        image = folder / f"{task.meta.get('section', SUBJECT)}.ome.zarr"
        record = ("--metrics", work / f"{task.name}_metrics.json")
        if task.step == "mosaic":
            for number, file in enumerate(reads["tiles"], start=1):
                (folder / "tiles" / str(number)).mkdir(parents=True)
                (folder / "tiles" / str(number) / file.name).symlink_to(file.resolve())
            listed = ("--tile_list", reads["tile_list"][0])
            call(mosaic.main, "mosaic", folder / "tiles", folder, *listed, *flags)
        elif task.step == "stitch":
            table = [word for path in reads["positions"] for word in ("--positions", path)]
            call(stitch.main, "stitch", reads["mosaic"][0], image, *flags, *table, *record)
        else:
            table = [word for path in reads["displacements"] for word in ("--displacements", path)]
            call(stack.main, "stack", image, *reads["sections"], *flags, *table, *record)
        data[f"{SUBJECT}/{task.name}"] = [image]
    return image


def judged(work: Path) -> tuple[StackFigures, list[str]]:
    """The record of STACK, and the names of the checks of the report that warn."""
    figures = {
        path.name.removesuffix("_metrics.json"): json.loads(path.read_text())["figures"]
        for path in sorted(work.glob("*_metrics.json"))
    }
    own = StackFigures.model_validate(figures.pop("stack"))
    sections = {name: StitchFigures.model_validate(found) for name, found in figures.items()}
    found = check_subject(section_qualities(sections, own, None), sections, own, None)
    return own, [check.name for check in found if check.state == "warning"]


def call(main: Callable[[], None], name: str, *words: object) -> None:
    """Call a command; raise a RefusedError with its message if it fails."""
    before, log = sys.argv, StringIO()
    sys.argv = [name, *map(str, words), "--workers", "2"]
    try:
        with redirect_stderr(log):
            main()
    except SystemExit as error:
        if error.code:
            raise RefusedError(log.getvalue().strip()) from error
    finally:
        sys.argv = before


def error_of(lab: Laboratory, path: Path, truth: Truth) -> float:
    """Largest distance of a bead from its place, in voxels, wherever the whole lies.

    Beads of sections without common tissue are compared in each section's middle plane.
    """
    image = open_image(path)
    voxels = np.asarray(image.read(tuple(slice(0, n) for n in image.grid.shape)), float)
    if lab.cut is not None:
        return _displaced(lab, voxels, truth[0])
    sections = read_sections(image.attributes, len(voxels))
    middles = [voxels[(own.start + own.stop) // 2] for own in sections]
    return max(
        _displaced(lab, plane, beads) for plane, beads in zip(middles, truth, strict=True) if beads
    )


def _displaced(
    lab: Laboratory, voxels: npt.NDArray[np.float64], beads: Sequence[tuple[float, ...]]
) -> float:
    full = {"uint8": 200.0, "float32": BEAD}.get(lab.dtype, BEAD * TISSUE)
    image = ndimage.gaussian_filter(voxels, SMOOTH)
    labels, count = ndimage.label(image > SHOWN * full, np.ones([3] * image.ndim))
    if not count:
        return LOST
    seen = np.array(ndimage.center_of_mass(image, labels, range(1, count + 1)))
    places = np.array(beads)
    shifts = (seen[:, None] - places[None]).reshape(-1, image.ndim)
    apart = np.linalg.norm(shifts[:, None] - shifts[None], axis=-1)
    most = int((apart < SAME).sum(1).argmax())
    seen -= np.median(shifts[apart[most] < SAME], axis=0)
    if image.ndim == 3:
        seen = _turned_back(seen, places)
    left = np.linalg.norm(seen[:, None] - places[None], axis=-1)
    # A bead that is lost, and one that shows twice, are both far from any other.
    return float(min(LOST, max(left.min(0).max(), left.min(1).max())))


def _turned_back(
    seen: npt.NDArray[np.float64], places: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Places as seen, turned and shifted as a whole to those of the beads."""
    left = np.linalg.norm(seen[:, None] - places[None], axis=-1)
    near, own = (left < SAME).nonzero()
    off = [(each[:, 1] + 1j * each[:, 2], each[:, 0]) for each in (seen[near], places[own])]
    (here, deep), (there, true) = off
    turn = np.vdot(here - here.mean(), there - there.mean())
    flat = (seen[:, 1] + 1j * seen[:, 2] - here.mean()) * turn / abs(turn) + there.mean()
    return np.stack([seen[:, 0] - np.mean(deep - true), flat.real, flat.imag], axis=1)
