"""A config for a new subject: what its data and this machine tell, and what a person must decide.

Nothing is guessed. A setting is stated where the data or the machine determine it; where they do
not, it stays a comment that says what is missing, and PREFLIGHT asks for it.
"""

import logging
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from shlex import join, quote

from octane.config.samplesheet import is_subject_name
from octane.config.subject import Setting, config_text
from octane.core.errors import OctaneError
from octane.core.files import writing
from octane.core.geometry import spelled
from octane.core.units import shown
from octane.gpu.lease import gpu_source
from octane.steps.machine import Machine, Place, look_at_machine
from octane.steps.subject_row import add_row
from octane.steps.survey import Survey, survey

__all__ = ["Wishes", "near", "next_call", "results_folder", "settings_of", "write_subject"]

logger = logging.getLogger(__name__)

PROJECT = Path(__file__).resolve().parents[3]
LEVELS = (10, 25, 50, 100)
"""Voxel sizes of the pyramid, of which the first that is no finer than the data is suggested."""
USABLE = 0.8
"""Part of the memory that tasks may ask for; the rest is the system's."""
TO_DECIDE = ("TO BE DECIDED", "MISSING")
"""How sentences begin on what a person must look at."""
CLOSING = "What is a comment has the default that it shows. The command line wins."
LISTED = 20
"""So many missing sections are named one by one."""


@dataclass(frozen=True)
class Wishes:
    """What a person knows already; None: left to the data.

    Attributes
    ----------
    outdir
        Folder of the results.
    resolution, overlap, section_thickness, input_unit, input_kind
        As the run's parameters.
    """

    outdir: Path | None = None
    resolution: str | None = None
    overlap: str | None = None
    section_thickness: float | None = None
    input_unit: str | None = None
    input_kind: str = "auto"


def write_subject(
    data: Path,
    name: str | None = None,
    wishes: Wishes | None = None,
    *,
    config: Path | None = None,
    samplesheet: Path | None = None,
    project: Path = PROJECT,
    overwrite: bool = False,
) -> Path:
    """Look at a subject's data and at this machine, and write its config.

    Parameters
    ----------
    data
        A folder of mosaic grids or sections, one of them, or one volume.
    name
        Of the subject; None: the data's own.
    wishes
        What a person knows already.
    config
        The file to write; None: ``conf/subjects/NAME.config`` in the project.
    samplesheet
        A CSV file that gets a row, in place of the config.
    project
        Where octane lies.
    overwrite
        Replace a config that exists.

    Returns
    -------
    Path
        The config or the samplesheet.

    Raises
    ------
    OctaneError
        When the data cannot be used, the name is none, or the config exists; nothing is written.
    """
    wishes = wishes or Wishes()
    # Links stay as they are given: a folder of links may be moved to other data later.
    source = Path(os.path.abspath(data))  # noqa: PTH100
    name = name or source.name.split(".")[0]
    if not is_subject_name(name) or name == "template":
        raise OctaneError(
            f"'{name}' is no name for a subject; give --name of letters, digits, blanks and "
            "._()-, with no . or - first, and not 'template'."
        )
    if config is not None and samplesheet is not None:
        raise OctaneError("--config and --samplesheet exclude each other; give one.")
    destination = config or project / "conf" / "subjects" / f"{name}.config"
    if samplesheet is None and destination.exists() and not overwrite:
        raise OctaneError(f"{destination} exists already; give --overwrite to replace it.")
    # As `linkable` in lib/launch.nf: Nextflow follows links and keeps the name alone.
    if signs := re.findall(r"[\[\]*?{}$\x00-\x1f\x7f]", f"{source.resolve()}{source.name}"):
        named = {"\t": "a tab", "\n": "a line break"}.get(signs[0])
        shown = named or (f"a {signs[0]}" if signs[0].isprintable() else "a control character")
        raise OctaneError(
            f"{source.resolve() if signs[0] in str(source.resolve()) else source} has {shown} in "
            "its path, which Nextflow cannot hand to tasks; rename it."
        )
    found = survey(source, input_unit=wishes.input_unit, input_kind=wishes.input_kind)
    outdir = results_folder(source, wishes.outdir)
    settings = settings_of(name, source, outdir, found, look_at_machine(gpu_source()), wishes)
    about = _about(found)
    if samplesheet is None:
        call = f"nextflow run main.nf -c {quote(f'conf/subjects/{name}.config')}"
        if config is not None:
            place = os.path.abspath(config)  # noqa: PTH100
            call = f"nextflow run {join([f'{project}/main.nf', '-c', place])}"
        remedy = "give --config FILE to write the config elsewhere"
        with writing(destination, overwrite=overwrite, remedy=remedy) as partial:
            head = [f"Subject {name}. Run with: {call}", *about, CLOSING]
            partial.write_text(config_text(head, settings), encoding="utf-8")
    else:
        add_row(samplesheet, settings)
    for line in about:
        logger.info("%s", line)
    for setting in settings.values():
        for line in setting.found:
            if line.startswith(TO_DECIDE):
                logger.warning("%s", line)
    return samplesheet or destination


def results_folder(data: Path, wished: Path | None = None) -> Path:
    """Where results go: as wished, else in the current folder, or beside data that it lies in."""
    folder = Path(os.path.abspath(wished or "results"))  # noqa: PTH100
    source = data.resolve()
    if wished is None and folder.resolve().is_relative_to(source):
        return source.parent / ("octane" if source.name == folder.name else folder.name)
    return folder


def next_call(written: Path, outdir: Path | None = None) -> str:
    """The call of Nextflow for a config, or for a samplesheet whose results go to ``outdir``."""
    words = ["nextflow", "run", near(PROJECT / "main.nf")]
    if outdir is None:
        return join([*words, "-c", near(written)])
    return join([*words, "--samplesheet", near(written.absolute()), "--outdir", near(outdir)])


def near(path: Path) -> str:
    """A path as it is shortest from the current folder."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


def settings_of(
    name: str,
    source: Path,
    outdir: Path,
    found: Survey,
    machine: Machine,
    wishes: Wishes,
) -> dict[str, Setting]:
    """What the data, the machine and a person's wishes determine, by parameter."""
    settings = {
        "subject": Setting(name),
        "input": Setting(str(source)),
        "outdir": Setting(str(outdir), [f"The results are in {outdir / name}."]),
        "resolution": _resolution(found, wishes),
        **_machine(machine, found, outdir),
    }
    if found.kind == "mosaic":
        settings |= _tiles(found, wishes)
    if found.kind != "volume":
        settings |= {
            "section_thickness": _thickness(found, wishes),
            "allow_missing_sections": _missing(found),
        }
    if wishes.input_unit:
        settings["input_unit"] = Setting(wishes.input_unit)
    if wishes.input_kind != "auto":
        settings["input_kind"] = Setting(wishes.input_kind)
    return settings


def _spread(values: list[str]) -> str:
    """What all have in common, or that they differ."""
    kinds = sorted(set(values))
    return kinds[0] if len(kinds) == 1 else f"{' or '.join(kinds[:3])} (they differ)"


def _about(found: Survey) -> list[str]:
    """What was found, a sentence or a line each."""
    first, count = found.stores[0], len(found.stores)
    numbers = [s.number for s in found.stores if s.number is not None]
    what = {"mosaic": "mosaic grid(s)", "section": "whole section(s)", "volume": "volume"}
    span = f", numbered {min(numbers)} to {max(numbers)}" if numbers and count > 1 else ""
    lines = [
        f"Found: {count} {what[found.kind]}{span}; {shown(found.on_disk)} on disk, "
        f"{shown(found.decoded)} decoded.",
        f"Voxels: {spelled(found.spacing)} micrometre (z y x), "
        f"{_spread([s.dtype for s in found.stores])}; {_spread([s.layout for s in found.stores])}.",
    ]
    if first.tiles is not None:
        lines.append(
            f"Tiles, rows x columns: {_spread([spelled(s.tiles or ()) for s in found.stores])}."
        )
    else:
        lines.append(f"Shape (z y x): {_spread([spelled(s.shape) for s in found.stores])}.")
    if found.missing:
        lines.append(f"Missing: {_named(found.missing)}; see allow_missing_sections below.")
    return lines


def _named(missing: list[int]) -> str:
    more = f" and {len(missing) - LISTED} more" if len(missing) > LISTED else ""
    return f"section {', '.join(map(str, missing[:LISTED]))}{more}"


def _resolution(found: Survey, wishes: Wishes) -> Setting:
    if wishes.resolution is not None:
        return Setting(wishes.resolution)
    have = f"The voxels are {spelled(found.spacing)} micrometre."
    suggested = next((level for level in LEVELS if level >= max(found.spacing)), None)
    if found.kind != "mosaic" or suggested is None:
        return Setting(suggested, [f"{have} They stay as they are unless you set this."], False)
    reason = "the first of the pyramid's sizes that is no finer"
    return Setting(suggested, [f"{have} Suggested: {suggested}, {reason}."])


def _tiles(found: Survey, wishes: Wishes) -> dict[str, Setting]:
    """How tiles overlap, which no look at the voxels is to decide."""
    if wishes.overlap is not None:
        return {"overlap": Setting(wishes.overlap)}
    if found.positions is not None:
        return {
            "positions": Setting(str(found.positions), ["Found beside the data."]),
            "overlap": Setting(None, ["Not needed: the table of positions tells."], False),
        }
    overlaps = {s.overlap and tuple(round(part, 4) for part in s.overlap) for s in found.stores}
    known = next(iter(overlaps)) if len(overlaps) == 1 else None
    if known is not None:
        text = " ".join(f"{part:g}" for part in known)
        return {
            "overlap": Setting(
                text, ["The mosaics' own metadata says this; set it to overrule."], False
            )
        }
    if None not in overlaps:
        return {"overlap": Setting(None, ["Each mosaic's own metadata tells; they differ."], False)}
    sentence = (
        "TO BE DECIDED: the data do not tell how their tiles overlap, and it is never guessed. Set "
        "it here (0 where tiles abut), or give a positions table; without, PREFLIGHT stops the run "
        "and asks."
    )
    return {"overlap": Setting("0.2", [sentence], False)}


def _thickness(found: Survey, wishes: Wishes) -> Setting:
    if wishes.section_thickness is not None:
        return Setting(wishes.section_thickness)
    stated = {s.thickness for s in found.stores}
    if len(stated) == 1 and (one := next(iter(stated))) is not None:
        return Setting(one, ["From the sections' own metadata."])
    if None not in stated:
        return Setting(None, ["Each section's own metadata tells; they differ."], False)
    depth = max(s.shape[0] * s.spacing[0] for s in found.stores)
    sentence = (
        f"The data do not tell; without it the full imaged depth is taken ({depth:g} micrometre at "
        "most). Set what was cut from one section to the next."
    )
    return Setting(round(depth, 6), [sentence], False)


def _missing(found: Survey) -> Setting:
    if not found.missing:
        return Setting(0, ["The numbering has no gap."], False)
    sentence = (
        f"MISSING: {_named(found.missing)}. As it is, the run stops there. Without the slashes a "
        "blank slab takes the place of each, and the report lists them."
    )
    return Setting(len(found.missing), [sentence], False)


def _machine(machine: Machine, found: Survey, outdir: Path) -> dict[str, Setting]:
    memory = max(1, math.floor(machine.memory * USABLE / 1e9))
    here = f"This machine has {machine.cores} core(s) and {shown(machine.memory)} of memory."
    cluster = "Leave it out where jobs run on other machines."
    settings = {
        "max_cpus": Setting(machine.cores, [here, cluster]),
        "max_memory": Setting(f"{memory} GB", [f"Four fifths of it. {cluster}"]),
        "scratch_dir": _scratch(Place.of(Path("work")), Place.of(outdir), machine, found),
    }
    if not machine.gpus:
        settings["gpu_count"] = Setting(
            0, [f"No GPU is used here, because {machine.no_gpu}."], False
        )
        return settings
    cards = ", ".join(f"{gpu.name} ({shown(gpu.total)})" for gpu in machine.gpus)
    settings["gpu_count"] = Setting(len(machine.gpus), [f"Found: {cards}."])
    settings["gpu_slots"] = Setting(1, ["Raise it where a GPU idles while tasks wait."])
    return settings


def _room(place: Place) -> str:
    return f"{place.kind or 'unknown'}, {shown(place.free)} free"


def _scratch(work: Place, outdir: Place, machine: Machine, found: Survey) -> Setting:
    """The node's own disk, where the work folder is behind a network and the node has room."""
    places = (
        f"The work folder's file system: {_room(work)}; the results': {_room(outdir)}; "
        f"{machine.temporary.folder}: {_room(machine.temporary)}."
    )
    local = not machine.temporary.shared and machine.temporary.kind not in ("tmpfs", "ramfs")
    apart = machine.temporary.device != work.device
    # What a task may have there at once: its own output of the whole subject, twice over.
    if work.shared and apart and local and machine.temporary.free > 2 * found.decoded:
        return Setting(True, [places, "Tasks write on the node and copy over the network once."])
    reason = (
        "Tasks write where their results stay, once."
        if not work.shared
        else "The node's own disk has too little room, or is none."
    )
    return Setting(False, [places, reason])
