"""Config or samplesheet row of a new subject, from the metadata of its data.

Nothing is guessed: what the metadata do not determine stays a comment that says what is missing,
and PREFLIGHT asks for it.
"""

import csv
import io
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import join, quote

from octane.config.samplesheet import is_subject_name, read_samplesheet, separator_of
from octane.config.schema import entries, plain
from octane.config.subject import Setting, config_text
from octane.config.validation import unlinkable
from octane.core.errors import OctaneError
from octane.core.files import writing
from octane.core.geometry import spelled
from octane.core.units import format_bytes
from octane.gpu.inventory import GpuSource, GpusUnavailableError, visible
from octane.gpu.lease import gpu_source
from octane.steps.survey import Survey, cut_of, layout_of, overlap_of, survey, thickness_of
from octane.store.sections import number_of

logger = logging.getLogger(__name__)

PROJECT = Path(__file__).resolve().parents[3]
LEVELS = (10, 25, 50, 100)
"""Voxel sizes to suggest: the first that is no finer than the data."""
TO_DECIDE = ("TO BE DECIDED", "MISSING")
"""First words of sentences that need a decision."""
CLOSING = "What is a comment has the default that it shows. The command line wins."
LISTED = 20
"""Missing sections that are named one by one, at most."""
COLUMNS = ("subject", "input", "resolution", "overlap", "positions", "section_thickness")
"""Columns of a new samplesheet; others where a subject needs them."""
MARK = "\ufeff"
"""Byte order mark, by which a spreadsheet recognises UTF-8."""


@dataclass(frozen=True)
class Wishes:
    """Parameters of the run that a person states; None: left to the data."""

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
    """Look at a subject's data, and write its config or its row of a samplesheet.

    Parameters
    ----------
    data
        A folder of mosaic grids or sections, one of them, or one volume.
    name
        Name of the subject; None: the name of the data.
    wishes
        Parameters that a person states.
    config
        File to write; None: ``conf/subjects/NAME.config`` in the project.
    samplesheet
        CSV file that gets a row, in place of the config.
    project
        Folder of octane.
    overwrite
        Replace a config that exists.

    Returns
    -------
    Path
        The config or the samplesheet.

    Raises
    ------
    OctaneError
        When the data or the name cannot be used, or the config exists; nothing is written.
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
    if problem := unlinkable(source):
        raise OctaneError(problem)
    found = survey(source, input_unit=wishes.input_unit, input_kind=wishes.input_kind)
    outdir = results_folder(source, wishes.outdir)
    settings = settings_of(name, source, outdir, found, wishes) | gpu_settings(gpu_source())
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
    """Folder of the results: as wished, else in the current folder, or beside data around it."""
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
    """Shortest path from the current folder."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


def settings_of(
    name: str, source: Path, outdir: Path, found: Survey, wishes: Wishes
) -> dict[str, Setting]:
    """Settings that the data and a person's wishes determine, by parameter."""
    settings = {
        "subject": Setting(name),
        "input": Setting(str(source)),
        "outdir": Setting(str(outdir), [f"The results are in {outdir / name}."]),
        "resolution": _resolution(found),
    }
    if found.kind == "mosaic":
        settings |= _tiles(found)
    if found.kind != "volume":
        settings["section_thickness"] = _thickness(found)
        settings["allow_missing_sections"] = _missing(found)
    stated = {n: v for n, v in vars(wishes).items() if n != "outdir" and v not in (None, "auto")}
    if "overlap" in stated:
        # A table of positions would win over it.
        settings.pop("positions", None)
    return settings | {parameter: Setting(value) for parameter, value in stated.items()}


def _spread(values: Iterable[str]) -> str:
    """Spell a common value, or that the values differ."""
    kinds = sorted(set(values))
    return kinds[0] if len(kinds) == 1 else f"{' or '.join(kinds[:3])} (they differ)"


def _about(found: Survey) -> list[str]:
    """Describe the data, a sentence a line."""
    volumes = found.volumes
    numbers = [number for volume in volumes if (number := number_of(volume)) is not None]
    what = {"mosaic": "mosaic grid(s)", "section": "whole section(s)", "volume": "volume"}
    several = numbers and len(volumes) > 1
    span = f", numbered {min(numbers)} to {max(numbers)}" if several else ""
    cut = "Tiles, rows x columns" if found.kind == "mosaic" else "Shape (z y x)"
    lines = [
        f"Found: {len(volumes)} {what[found.kind]}{span}; {format_bytes(found.on_disk)} on disk, "
        f"{format_bytes(found.decoded)} decoded.",
        f"Voxels: {spelled(volumes[0].grid.spacing)} micrometre (z y x), "
        f"{_spread(str(v.dtype) for v in volumes)}; {_spread(map(layout_of, volumes))}.",
        f"{cut}: {_spread(cut_of(volume, found.kind) for volume in volumes)}.",
    ]
    if found.missing:
        lines.append(f"Missing: {_named(found.missing)}; see allow_missing_sections below.")
    return lines


def _named(missing: list[int]) -> str:
    more = f" and {len(missing) - LISTED} more" if len(missing) > LISTED else ""
    return f"section {', '.join(map(str, missing[:LISTED]))}{more}"


def _resolution(found: Survey) -> Setting:
    spacing = found.volumes[0].grid.spacing
    have = f"The voxels are {spelled(spacing)} micrometre."
    suggested = next((level for level in LEVELS if level >= max(spacing)), None)
    if found.kind != "mosaic" or suggested is None:
        return Setting(suggested, [f"{have} They stay as they are unless you set this."], False)
    reason = "the first of the pyramid's sizes that is no finer"
    return Setting(suggested, [f"{have} Suggested: {suggested}, {reason}."])


def _tiles(found: Survey) -> dict[str, Setting]:
    """Overlap of tiles, which is never guessed."""
    if found.positions is not None:
        return {
            "positions": Setting(str(found.positions), ["Found beside the data."]),
            "overlap": Setting(None, ["Not needed: the table of positions says it."], False),
        }
    stated = map(overlap_of, found.volumes)
    overlaps = {own and tuple(round(part, 4) for part in own) for own in stated}
    known = None
    if None in overlaps:
        known = "0.2"
        sentence = (
            "TO BE DECIDED: the data do not say how their tiles overlap, and it is never guessed. "
            "Set it here (0 where tiles abut), or give a positions table; without, PREFLIGHT stops "
            "the run and asks."
        )
    elif len(overlaps) == 1:
        known = " ".join(f"{part:g}" for part in overlaps.pop() or ())
        sentence = "The mosaics' own metadata say this; set it to overrule."
    else:
        sentence = "Each mosaic's own metadata say it; they differ."
    return {"overlap": Setting(known, [sentence], False)}


def _thickness(found: Survey) -> Setting:
    stated = set(map(thickness_of, found.volumes))
    if len(stated) == 1 and (one := next(iter(stated))) is not None:
        return Setting(one, ["From the sections' own metadata."])
    if None not in stated:
        return Setting(None, ["Each section's own metadata say it; they differ."], False)
    depth = max(volume.grid.extent[0] for volume in found.volumes)
    sentence = (
        f"The data do not say; without it the full imaged depth is taken ({depth:g} micrometre at "
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


def gpu_settings(source: GpuSource) -> dict[str, Setting]:
    """Number of usable GPUs of this machine, through NVML, which makes no CUDA context."""
    try:
        found = visible(source.read(), os.environ.get("CUDA_VISIBLE_DEVICES"))
    except GpusUnavailableError:
        return {}
    gpus = [gpu for gpu in found if gpu.fault is None]
    if not gpus:
        return {}
    cards = ", ".join(f"{gpu.name} ({format_bytes(gpu.total)})" for gpu in gpus)
    return {"gpu_count": Setting(len(gpus), [f"Found: {cards}."])}


def add_row(sheet: Path, settings: Mapping[str, Setting]) -> None:
    """Append a subject's stated settings to a samplesheet in CSV, or make it.

    Settings of the whole run are left out. A sheet that is refused stays as it was.
    """
    own = {entry.name for entry in entries() if entry.per_subject}
    row = {
        name: str(plain(setting.value))
        for name, setting in settings.items()
        if setting.stated and name in own
    }
    if sheet.suffix.lower() != ".csv":
        raise OctaneError(f"{sheet} is not CSV, and a row is added to that alone; add it by hand.")
    if sheet.exists():
        text, columns = _before(sheet, row)
        separator = separator_of(text)
    else:
        text, columns, separator = "", [], ","
    stream = io.StringIO()
    writer = csv.writer(stream, delimiter=separator, lineterminator="\n")
    if not columns:
        # Of an empty sheet only the mark is kept.
        text = text[:1] if text.startswith(MARK) else ""
        columns = [*COLUMNS, *(name for name in row if name not in COLUMNS)]
        writer.writerow(columns)
    writer.writerow(row.get(column, "") for column in columns)
    with writing(sheet, overwrite=True) as partial:
        end = "" if text in ("", MARK) or text.endswith("\n") else "\n"
        partial.write_bytes((text + end + stream.getvalue()).encode())


def _before(sheet: Path, row: Mapping[str, str]) -> tuple[str, list[str]]:
    """Text and columns of the sheet, if the row fits it; no columns where it is still empty."""
    found = read_samplesheet(sheet, may_be_empty=True)
    if found.problems:
        raise OctaneError("\n".join(found.problems))
    for other in found.rows:
        if other.cells.get("subject", "").casefold() == row["subject"].casefold():
            raise OctaneError(
                f"{found.where(other.line)}: the subject {row['subject']} is there already; "
                "correct that row, or give another --name."
            )
    lacking = [name for name in row if name not in found.columns]
    if found.columns and lacking:
        raise OctaneError(
            f"{sheet} has no column {', '.join(lacking)}; add it to the first line, and a "
            "separator to the others."
        )
    # With its byte order mark, if it has one.
    return sheet.read_bytes().decode(), list(found.columns)
