"""A subject from its plan to its stitched sections, and where beads lie in them."""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import numpy as np
import numpy.typing as npt
from _unstated_data import BEAD, TABLE, TISSUE, Laboratory, Sections
from scipy import ndimage

from octane.core.errors import OctaneError
from octane.processes.mosaic import command as mosaic
from octane.processes.preflight.plan import SubjectPlan
from octane.processes.preflight.step import plan_of
from octane.processes.stitch import command as stitch
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

    ``refused`` is why it went no further.
    """

    asked: Sequence[str] = ()
    refusal: str = ""
    decided: Sequence[str] = ()
    error: float | None = None
    refused: str = ""


def run_subject(
    lab: Laboratory, source: Path, given: Mapping[str, str], truth: Sections, work: Path
) -> Run:
    """Plan and stitch a subject of which ``given`` is stated, and compare it with the truth."""
    own = {"outdir": str(work / "results"), "subject": SUBJECT, **given}
    beside = {"positions": source.parent / TABLE} if lab.table and given else {}
    asked: list[str] = []
    refusal, made = "", None
    answers = {**lab.stated, "overlap": lab.exact} | ({"positions": TABLE} if lab.table else {})
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
                    beside = {flag: source.parent / TABLE}
                else:
                    own[flag] = answers[flag]
                asked.append(flag)
    decided = [decision.flag for decision in made.decisions]
    try:
        sections = stitched(made, {"input": source, **beside}, work)
    except RefusedError as error:
        return Run(asked, refusal, decided, refused=str(error))
    return Run(asked, refusal, decided, round(error_of(lab, sections, truth), 3))


def stitched(made: SubjectPlan, files: Mapping[str, Path], work: Path) -> list[Path]:
    """Run MOSAIC and STITCH with the flags of a plan, and return the sections."""
    content = made.content(files, chosen_alone=True)
    data = {name: [*paths] for name, paths in content.data.items()}
    for number, (name, text) in enumerate(content.tables.items()):
        data[name] = [work / f"table_{number}.csv"]
        data[name][0].write_text(text)
    found: list[Path] = []
    for task in content.tasks:
        if task.step not in ("mosaic", "stitch") or task.meta.get("channel"):
            continue
        folder = work / task.name
        folder.mkdir()
        reads = {
            kind: [path for name in names for path in data[name]]
            for kind, names in task.reads.items()
        }
        flags = task.flags.split()
        image = folder / f"{task.meta['section']}.ome.zarr"
        if task.step == "mosaic":
            for number, file in enumerate(reads["tiles"], start=1):
                (folder / "tiles" / str(number)).mkdir(parents=True)
                (folder / "tiles" / str(number) / file.name).symlink_to(file.resolve())
            listed = ("--tile_list", reads["tile_list"][0])
            _call(mosaic.main, "mosaic", folder / "tiles", folder, *listed, *flags)
        else:
            table = [word for path in reads["positions"] for word in ("--positions", path)]
            _call(stitch.main, "stitch", reads["mosaic"][0], image, *flags, *table)
            found.append(image)
        data[f"{SUBJECT}/{task.name}"] = [image]
    return found


def _call(main: Callable[[], None], name: str, *words: object) -> None:
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


def error_of(lab: Laboratory, sections: Sequence[Path], truth: Sections) -> float:
    """Largest distance of a bead from its place, in voxels, of all sections."""
    found = []
    for path, beads in zip(sections, truth, strict=True):
        if beads:
            image = open_image(path)
            voxels = image.read(tuple(slice(0, n) for n in image.grid.shape))
            plane = np.asarray(voxels[len(voxels) // 2], float)
            found.append(_displaced(lab, ndimage.gaussian_filter(plane, SMOOTH), beads))
    return max(found)


def _displaced(
    lab: Laboratory, image: npt.NDArray[np.float64], beads: Sequence[tuple[float, float]]
) -> float:
    full = {"uint8": 200.0, "float32": BEAD}.get(lab.dtype, BEAD * TISSUE)
    labels, count = ndimage.label(image > SHOWN * full, np.ones((3, 3)))
    if not count:
        return LOST
    seen = np.array(ndimage.center_of_mass(image, labels, range(1, count + 1)))
    places = np.array(beads)
    shifts = (seen[:, None] - places[None]).reshape(-1, 2)
    apart = np.hypot(*(shifts[:, None] - shifts[None]).transpose(2, 0, 1))
    most = int((apart < SAME).sum(1).argmax())
    shift = np.median(shifts[apart[most] < SAME], axis=0)
    left = np.hypot(*(seen[:, None] - places[None] - shift).transpose(2, 0, 1))
    # A bead that is lost, and one that shows twice, are both far from any other.
    return float(min(LOST, max(left.min(0).max(), left.min(1).max())))
