"""Config or samplesheet row of a new subject, from the metadata of its data.

Nothing is guessed: what the metadata do not determine stays a comment that says what is missing,
and PREFLIGHT asks for it. Of the voxels, those of a few tiles at most are read, whose shading is
measured.
"""

import csv
import io
import logging
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from shlex import join
from typing import NamedTuple, cast

import numpy as np

from octane.config.params import ESTIMATE, StitchParameters, Wishes
from octane.config.samplesheet import is_subject_name, read_samplesheet, separator_of
from octane.config.schema import entries, plain
from octane.config.subject import Setting, config_text
from octane.config.validation import unlinkable
from octane.core.errors import OctaneError
from octane.core.files import require_free, writing
from octane.core.geometry import spelled
from octane.core.records import SHADING
from octane.core.units import format_bytes
from octane.gpu.inventory import Gpu, GpusUnavailableError, visible
from octane.gpu.lease import read_gpus
from octane.store.image import Image
from octane.store.mosaic_grid import MosaicGrid, position_rows
from octane.store.sections import gaps, listed, number_of
from octane.store.volumes import Volume, find_inputs, kind_of, open_volume

logger = logging.getLogger(__name__)

PROJECT = Path(__file__).resolve().parents[3]
LEVELS = (10, 25, 50, 100)
"""Voxel sizes to suggest: the first that is no finer than the data."""
TO_DECIDE = ("TO BE DECIDED", "MISSING", "SHADED")
"""First words of sentences that need a decision."""
CLOSING = "What is a comment has the default that it shows. The command line wins."
MEASURED_BYTES = 1e9
"""Most that is read to measure the shading."""
COLUMNS = ("subject", "input", "resolution", "overlap", "positions", "section_thickness")
"""Columns of a new samplesheet; others where a subject needs them."""


class Survey(NamedTuple):
    """Contents of an input: its kind, volumes by name, lacking numbers, a table of positions."""

    kind: str
    volumes: list[Volume]
    missing: list[int]
    positions: Path | None


def write_subject(
    data: Path,
    name: str | None = None,
    wishes: Wishes | None = None,
    *,
    config: Path | None = None,
    samplesheet: Path | None = None,
    project: Path = PROJECT,
    overwrite: bool = False,
) -> tuple[Path, str]:
    """Write the config or the row of a subject; gives the file and the command that runs it.

    The config is ``conf/subjects/NAME.config`` in the project unless ``config`` names another file.
    Where the data or the name cannot be used, or the config exists, nothing is written.
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
    written = samplesheet or config or project / "conf" / "subjects" / f"{name}.config"
    if samplesheet is None:
        require_free(written, overwrite=overwrite)
    if problem := unlinkable(source):
        raise OctaneError(problem)
    found = survey(source, wishes)
    outdir = results_folder(source, wishes.outdir)
    settings = settings_of(name, source, outdir, found, wishes) | gpu_settings(read_gpus)
    about = _about(found)
    words = ["nextflow", "run", project / "main.nf"]
    if samplesheet is None:
        call = join(map(str, [*words, "-c", written.absolute()]))
        remedy = "give --config FILE to write the config elsewhere"
        with writing(written, overwrite=overwrite, remedy=remedy) as partial:
            head = [f"Subject {name}. Run with: {call}", *about, CLOSING]
            partial.write_text(config_text(head, settings), encoding="utf-8")
    else:
        call = join(map(str, [*words, "--samplesheet", written.absolute(), "--outdir", outdir]))
        add_row(samplesheet, settings)
    for line in about:
        logger.info("%s", line)
    for line in (line for setting in settings.values() for line in setting.found):
        if line.startswith(TO_DECIDE):
            logger.warning("%s", line)
    return written, call


def survey(source: Path, wishes: Wishes) -> Survey:
    """Look at an input; an OctaneError names each store that cannot be used or does not fit."""
    problems: list[str] = []
    volumes: list[Volume] = []
    # PREFLIGHT checks for missing chunks: it knows whether they are allowed.
    reading = wishes.model_copy(update={"missing_chunks": "fill"})
    for path in find_inputs(source):
        try:
            volumes.append(open_volume(path, reading))
        except OctaneError as error:
            problems.append(str(error))
    if problems:
        raise OctaneError("\n".join(problems))
    kind = kind_of(volumes, wishes.input_kind)
    missing = gaps(_numbers(volumes)) if kind != "volume" else []
    # A table of positions would win over an overlap.
    asked = kind == "mosaic" and wishes.overlap is None
    return Survey(kind, volumes, missing, _table(source) if asked else None)


def _numbers(volumes: Iterable[Volume]) -> list[int]:
    return [number for volume in volumes if (number := number_of(volume)) is not None]


def _table(source: Path) -> Path | None:
    """Find a table of positions in the folder of the data, or beside it."""
    tables = (folder / "positions.csv" for folder in (source, source.parent))
    found = next((table for table in tables if table.is_file()), None)
    if found is not None:
        position_rows(found)
    return found


def results_folder(data: Path, wished: Path | None = None) -> Path:
    """Folder of the results: as wished, else in the current folder, or beside data around it."""
    folder = Path(os.path.abspath(wished or "results"))  # noqa: PTH100
    source = data.resolve()
    if wished is None and folder.resolve().is_relative_to(source):
        return source.parent / ("octane" if source.name == folder.name else folder.name)
    return folder


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
        settings |= _tiles(found) | _light(found, wishes)
    if found.kind != "volume":
        settings["section_thickness"] = _thickness(found)
        settings["allow_missing_sections"] = _missing(found)
    stated = wishes.model_dump(exclude={"outdir"}, exclude_defaults=True)
    return settings | {parameter: Setting(value) for parameter, value in stated.items()}


def _about(found: Survey) -> list[str]:
    """Describe the data, a sentence a line."""
    volumes, numbers = found.volumes, _numbers(found.volumes)
    what = {"mosaic": "mosaic grid(s)", "section": "whole section(s)", "volume": "volume"}
    several = numbers and len(volumes) > 1
    span = f", numbered {min(numbers)} to {max(numbers)}" if several else ""
    decoded = sum(math.prod(v.grid.shape) * v.dtype.itemsize for v in volumes)
    lines = [
        f"Found: {len(volumes)} {what[found.kind]}{span}; {format_bytes(decoded)} decoded.",
        f"Voxels: {_spread(f'{spelled(v.grid.spacing)} micrometre' for v in volumes)} (z y x), "
        f"{_spread(str(v.dtype) for v in volumes)}.",
        f"Shape (z y x): {_spread(spelled(v.grid.shape) for v in volumes)}.",
    ]
    if found.kind == "mosaic":
        grids = [MosaicGrid.of(cast("Image", v)) for v in volumes]
        cut = _spread(spelled((grid.rows, grid.columns)) for grid in grids)
        lines[-1] = f"Tiles, rows x columns: {cut}."
    return lines


def _spread(values: Iterable[str]) -> str:
    """Spell a common value, or that the values differ."""
    kinds = sorted(set(values))
    return kinds[0] if len(kinds) == 1 else f"{' or '.join(kinds[:3])} (they differ)"


def _resolution(found: Survey) -> Setting:
    sizes = [volume.grid.spacing for volume in found.volumes]
    have = f"The voxels are {_spread(f'{spelled(size)} micrometre' for size in sizes)}."
    suggested = next((level for level in LEVELS if level >= max(map(max, sizes))), None)
    if found.kind != "mosaic" or suggested is None:
        return Setting(suggested, [f"{have} They stay as they are unless you set this."], False)
    reason = "the first of the pyramid's sizes that is no finer"
    return Setting(suggested, [f"{have} Suggested: {suggested}, {reason}."])


def _tiles(found: Survey) -> dict[str, Setting]:
    """Overlap of tiles, which is never guessed."""
    grids = [MosaicGrid.of(cast("Image", volume)) for volume in found.volumes]
    overlaps = {
        g.pitch
        and tuple(round(1 - p / n, 4) for p, n in zip(g.pitch, g.tile_extent[1:], strict=True))
        for g in grids
    }
    if found.positions is not None:
        value, sentence = None, "Not needed: the table of positions says it."
    elif None in overlaps:
        value = "0.2"
        sentence = (
            "TO BE DECIDED: the data do not say how their tiles overlap, and it is never guessed. "
            "Set it here (0 where tiles abut), or give a positions table; without, PREFLIGHT stops "
            "the run and asks."
        )
    elif len(overlaps) > 1:
        value, sentence = None, "Each mosaic's own metadata say it; they differ."
    else:
        value, sentence = overlaps.pop(), "The mosaics' own metadata say this; set it to overrule."
    settings = {"overlap": Setting(value, [sentence], False)}
    if found.positions is not None:
        settings["positions"] = Setting(str(found.positions), ["Found beside the data."])
    return settings


def _light(found: Survey, wishes: Wishes) -> dict[str, Setting]:
    """Flat field, where the tiles in the middle of the data are seen to be shaded."""
    from octane.steps.stitch import nominal_positions
    from octane.stitch.flat_field import estimate, shading_of
    from octane.stitch.placement import TilePlacement

    image = cast("Image", found.volumes[len(found.volumes) // 2])
    tiling = MosaicGrid.of(image)
    middle = (tiling.rows // 2, tiling.columns // 2)
    tiles = [t for t in tiling.tiles if max(map(abs, np.subtract(t, middle))) <= 1]
    if len(tiles) * math.prod(tiling.tile) * image.dtype.itemsize > MEASURED_BYTES:
        return {}
    try:
        given = StitchParameters(overlap=wishes.overlap)
        places = nominal_positions(image, tiling, given, found.positions)
        seen = {t: np.abs(image.read(tiling.region(t))).mean(0, np.float32) for t in tiles}
    except OctaneError:
        # PREFLIGHT names what is missing.
        return {}
    flat = estimate(seen, TilePlacement(tiling, {t: places[t] for t in tiles}, subpixel=True))
    if flat is None or (shading := shading_of(flat.profile)) <= SHADING:
        return {}
    sentence = (
        f"SHADED, as measured on {len(tiles)} tiles of {image.path.name}: the light over a tile "
        f"differs by {100 * shading:.0f} %. Recommended: stitch_flat_field 'estimate', which "
        "a config has without its slashes."
    )
    return {"stitch_flat_field": Setting(ESTIMATE, [sentence], False)}


def _thickness(found: Survey) -> Setting:
    noted = [cast("Mapping", v.attributes.get("section") or {}) for v in found.volumes]
    stated = {section["thickness"] for section in noted if "thickness" in section}
    if not all("thickness" in section for section in noted):
        depth = max(volume.grid.extent[0] for volume in found.volumes)
        sentence = (
            f"The data do not say; without it the full imaged depth is taken ({depth:g} micrometre "
            "at most). Set what was cut from one section to the next."
        )
        return Setting(round(depth, 6), [sentence], False)
    if len(stated) > 1:
        return Setting(None, ["Each section's own metadata say it; they differ."], False)
    return Setting(float(stated.pop()), ["From the sections' own metadata."])


def _missing(found: Survey) -> Setting:
    if not found.missing:
        return Setting(0, ["The numbering has no gap."], False)
    sentence = (
        f"MISSING: section {listed(found.missing)}. As it is, the run stops there. Without the "
        "slashes a blank slab takes the place of each, and the report lists them."
    )
    return Setting(len(found.missing), [sentence], False)


def gpu_settings(read: Callable[[], Sequence[Gpu]]) -> dict[str, Setting]:
    """Number of usable GPUs of this machine, through NVML, which makes no CUDA context."""
    try:
        found = visible(read(), os.environ.get("CUDA_VISIBLE_DEVICES"))
    except GpusUnavailableError:
        return {}
    gpus = [gpu for gpu in found if gpu.fault is None]
    cards = ", ".join(f"{gpu.name} ({format_bytes(gpu.total)})" for gpu in gpus)
    return {"gpu_count": Setting(len(gpus), [f"Found: {cards}."])} if gpus else {}


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
    text, columns = _before(sheet, row) if sheet.exists() else ("", [])
    stream = io.StringIO()
    writer = csv.writer(stream, delimiter=separator_of(text), lineterminator="\n")
    if not columns:
        text, columns = "", [*COLUMNS, *(name for name in row if name not in COLUMNS)]
        writer.writerow(columns)
    writer.writerow(row.get(column, "") for column in columns)
    with writing(sheet, overwrite=True) as partial:
        end = "\n" if text and not text.endswith("\n") else ""
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
