"""REPORT: one HTML page and its JSON twin from the records and previews of a subject's steps."""

import logging
import zlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from octane.config.parameters import ExecutionParameters
from octane.config.sheets import DEPTH, GAIN_COLUMNS, POSITION_COLUMNS
from octane.core.errors import OctaneError
from octane.core.files import writing
from octane.core.geometry import expected_position
from octane.core.metrics import as_json
from octane.core.records import ENDINGS, Decision, Outcome, Record, read_record
from octane.processes.report.html import build
from octane.processes.report.tasks import TaskRecord, previewed
from octane.processes.report.trace import trace_content
from octane.processes.stitch.record import StitchFigures, by_tile

logger = logging.getLogger(__name__)

RECORD, PREVIEW = "_metrics.json", "_preview.npz"
"""Endings of a task's two file names, which begin alike."""
POSITIONS, GAINS, TRACE = "_positions.csv", "_gains.csv", "_trace.json.gz"
"""Endings of more files that are named like the report."""
VOLUMES = {
    "channels": "the finished volume with its channels, one level per resolution, OME-Zarr",
    "pyramid": "the finished volume, one level per resolution, OME-Zarr",
    "n4": "the corrected volume, OME-Zarr",
    "stack": "the assembled volume, OME-Zarr",
}
"""Description of the volume by the step that made it."""


def _read_preview(path: Path) -> dict[str, npt.NDArray]:
    try:
        # Opened here, because np.load leaves open what it cannot read.
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except (OSError, ValueError, EOFError, zlib.error, BadZipFile) as error:
        raise OctaneError(
            f"{path} is not a readable NPZ file; run the step that wrote it again."
        ) from error


def _load(records: Sequence[Path], previews: Sequence[Path]) -> list[TaskRecord]:
    """Load each record with its preview, in the order of their names."""
    pictured = {path.name.removesuffix(PREVIEW): path for path in previews}
    entries = []
    for path in sorted(records, key=lambda path: path.name):
        record, stem = read_record(path), path.name.removesuffix(RECORD)
        needed = previewed(record)
        if needed and stem not in pictured:
            raise OctaneError(f"{path} lacks its preview; give {stem}{PREVIEW} as well.")
        arrays = _read_preview(pictured[stem]) if stem in pictured else {}
        for name in needed:
            axes = 1 if name == "slice_spacing" else 2
            if name not in arrays or arrays[name].ndim != axes or arrays[name].size == 0:
                raise OctaneError(
                    f"{pictured[stem]} lacks a usable picture '{name}'; "
                    f"run {record.step.upper()} again with this version of octane."
                )
        entries.append(TaskRecord(stem, record, arrays))
    return entries


def _next_to(destination: Path, ending: str) -> Path:
    """Path of a file that is named like the report."""
    return destination.with_name(destination.stem.removesuffix("_report") + ending)


def _position_table(sections: Sequence[StitchFigures]) -> str:
    """Positions of the tiles of sections, as --positions reads them; empty without any.

    It has depths, in micrometres as well, if any tile was moved along z.

    A section's tiles that were not imaged are left out if --positions finds the same places for
    them without rows.
    """
    rows: list[tuple[float, ...]] = []
    is_deep = any(figures.depths for figures in sections)
    for figures in sections:
        places = by_tile(figures.positions)
        imaged = {tile: own for tile, own in places.items() if tile not in figures.not_imaged}
        found = {tile: expected_position(tile, imaged) for tile in places.keys() - imaged.keys()}
        kept = imaged if imaged | found == places else places
        depths, plane = by_tile(figures.depths), (figures.voxel_size or (1.0,))[0]
        for tile, own in kept.items():
            deep = [depths.get(tile, 0) * plane] if is_deep else []
            rows.append((figures.number, *tile, *own, *deep))
    return _csv((*POSITION_COLUMNS, *[DEPTH] * is_deep), rows)


def _gain_table(sections: Sequence[StitchFigures]) -> str:
    """Gains of the tiles of sections, as --stitch_gain reads them; empty if none were used."""
    rows = [(own.number, *tile, g) for own in sections for tile, g in by_tile(own.gains).items()]
    return _csv(GAIN_COLUMNS, rows)


def _stitched(entries: Sequence[TaskRecord], channel: str | None) -> list[Record]:
    """Records of the sections of a channel, where those of others lie; None: of a single one."""
    every = (entry.record for entry in entries if entry.record.step == "stitch")
    return [own for own in every if channel is None or own.channel in ("", channel)]


def _csv(columns: Sequence[str], rows: Sequence[tuple[float, ...]]) -> str:
    """A table of sorted rows; empty without any."""
    lines = [columns, *sorted(rows)] if rows else []
    return "".join(f"{','.join(map(str, line))}\n" for line in lines)


def _files(
    destination: Path,
    subject: str,
    entries: Sequence[TaskRecord],
    lost: Outcome | None,
    channel: str | None,
    *,
    workflow: bool,
) -> dict[str, str]:
    """Describe the files next to the report, by name; names of folders end in a slash.

    ``channel`` is the one that was measured, None for a single one.
    """
    found = {}
    table, gains, trace = (
        _next_to(destination, ending).name for ending in (POSITIONS, GAINS, TRACE)
    )
    steps = {entry.record.step for entry in entries}
    if lost is not None:
        found["metrics/"] = "the record of every finished task"
    elif workflow:
        last = next((step for step in ENDINGS if step in steps), None)
        if last is not None:
            found[f"{subject}{ENDINGS[last]}.ome.zarr/"] = VOLUMES[last]
        for entry in entries if last is None else ():
            if entry.record.settings.get("layout") == "volume":
                name = entry.name.removesuffix("_resample")
                found[f"{name}.ome.zarr/"] = "the resampled volume, OME-Zarr"
        for entry in entries:
            words = entry.record.command
            if "--save_bias_field" in words:
                of = f" of {entry.record.channel}" if channel else ""
                path = Path(words[words.index("--save_bias_field") + 1])
                found[f"{path.name}/"] = f"the bias field{of}, OME-Zarr"
        if "stack" in steps:
            found[f"{subject}_displacements.csv"] = "the displacement of each section, CSV"
        if any(entry.record.figures.get("shading_after") for entry in entries):
            found["flat_fields/"] = "the flat field of each section, TIFF"
        found["metrics/"] = "the record of every task"
    if any(entry.record.figures.get("positions") for entry in entries):
        found[table] = "the positions of all tiles, CSV"
    if any(record.figures.get("gains") for record in _stitched(entries, channel)):
        found[gains] = "the gains of all tiles, CSV"
    return found | {
        destination.with_suffix(".json").name: "the same records for programs",
        trace: "the activity of every thread over time, for ui.perfetto.dev",
        "previews/": "the pictures of this page, PNG and SVG",
    }


def write_report(
    records: list[Path],
    previews: list[Path],
    destination: Path,
    *,
    subject: str,
    run: Mapping[str, str] | None,
    lost: Outcome | None = None,
    channel: str | None = None,
    decided: Sequence[Decision] = (),
    execution: ExecutionParameters,
) -> None:
    """Write the report of one subject, and its accompanying files.

    Names of a task's ``records`` and ``previews`` begin alike. ``run`` holds facts of the workflow
    run, such as its command line; None without a workflow. ``lost`` says which results are missing;
    None if they are complete. ``decided`` is what was decided before any work. ``channel`` names
    the one that was measured, if there are several.

    Raises an OctaneError that names what is not usable; nothing is left half-written.
    """
    if destination.suffix.lower() not in (".html", ".htm"):
        raise OctaneError(f"{destination} does not end in .html; give it a name that does.")
    entries = _load(records, previews)
    files = _files(destination, subject, entries, lost, channel, workflow=run is not None)
    report = build(
        entries,
        subject=subject,
        run=run,
        files=files,
        lost=lost,
        reference=channel,
        decided=decided,
    )
    timelines = {e.name: e.record.timeline for e in entries if e.record.timeline is not None}
    sections = [StitchFigures.model_validate(own.figures) for own in _stitched(entries, channel)]
    tables = {POSITIONS: _position_table(sections), GAINS: _gain_table(sections)}
    contents = {
        destination: report.html.encode(),
        _next_to(destination, TRACE): trace_content(timelines),
        **{_next_to(destination, name): text.encode() for name, text in tables.items() if text},
        destination.with_suffix(".json"): as_json(report.twin).encode(),
    }
    # The page is entered first, so that it gets its name last.
    with ExitStack() as stack:
        for path, content in contents.items():
            stack.enter_context(writing(path, overwrite=execution.overwrite)).write_bytes(content)
        folder = writing(destination.parent / "previews", overwrite=execution.overwrite)
        (partial := stack.enter_context(folder)).mkdir()
        for name, data in report.pictures.items():
            (partial / name).write_bytes(data)
    logger.info("Report of %s: %s. %s", subject, destination, report.verdict)
