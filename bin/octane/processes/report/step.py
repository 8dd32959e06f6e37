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
from octane.processes.report.html import build_report
from octane.processes.report.tasks import TaskRecord, needed_arrays
from octane.processes.report.trace import trace_content
from octane.processes.stitch.record import StitchFigures, by_tile

logger = logging.getLogger(__name__)

RECORD_ENDING, PREVIEW_ENDING = "_metrics.json", "_preview.npz"
"""Endings of a task's two file names, which begin alike."""
POSITIONS_ENDING, GAINS_ENDING, TRACE_ENDING = "_positions.csv", "_gains.csv", "_trace.json.gz"
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


def _load_tasks(records: Sequence[Path], previews: Sequence[Path]) -> list[TaskRecord]:
    """Load each record with its preview, in the order of their names."""
    stems = {path.name.removesuffix(PREVIEW_ENDING): path for path in previews}
    entries = []
    for path in sorted(records, key=lambda path: path.name):
        record, stem = read_record(path), path.name.removesuffix(RECORD_ENDING)
        needed = needed_arrays(record)
        if needed and stem not in stems:
            raise OctaneError(f"{path} lacks its preview; give {stem}{PREVIEW_ENDING} as well.")
        arrays = _read_preview(stems[stem]) if stem in stems else {}
        for name in needed:
            axes = 1 if name == "slice_spacing" else 2
            if name not in arrays or arrays[name].ndim != axes or arrays[name].size == 0:
                raise OctaneError(
                    f"{stems[stem]} lacks a usable picture '{name}'; "
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
        imaged = {tile: place for tile, place in places.items() if tile not in figures.not_imaged}
        others = {tile: expected_position(tile, imaged) for tile in places.keys() - imaged.keys()}
        kept = imaged if imaged | others == places else places
        depths, plane = by_tile(figures.depths), (figures.voxel_size or (1.0,))[0]
        for tile, place in kept.items():
            depth = [depths.get(tile, 0) * plane] if is_deep else []
            rows.append((figures.number, *tile, *place, *depth))
    return _csv_text((*POSITION_COLUMNS, *[DEPTH] * is_deep), rows)


def _gain_table(sections: Sequence[StitchFigures]) -> str:
    """Gains of the tiles of sections, as --stitch_gain reads them; empty if none were used."""
    gains = [(section.number, by_tile(section.gains)) for section in sections]
    rows = [(number, *tile, gain) for number, of_tiles in gains for tile, gain in of_tiles.items()]
    return _csv_text(GAIN_COLUMNS, rows)


def _section_records(entries: Sequence[TaskRecord], channel: str | None) -> list[Record]:
    """Records of the sections of a channel, where those of others lie; None: of a single one."""
    records = (entry.record for entry in entries if entry.record.step == "stitch")
    return [record for record in records if channel is None or record.channel in ("", channel)]


def _csv_text(columns: Sequence[str], rows: Sequence[tuple[float, ...]]) -> str:
    """A table of sorted rows; empty without any."""
    lines = [columns, *sorted(rows)] if rows else []
    return "".join(f"{','.join(map(str, line))}\n" for line in lines)


def _describe_files(
    destination: Path,
    subject: str,
    entries: Sequence[TaskRecord],
    outcome: Outcome | None,
    channel: str | None,
    *,
    workflow: bool,
) -> dict[str, str]:
    """Describe the files next to the report, by name; names of folders end in a slash.

    ``channel`` is the one that was measured, None for a single one.
    """
    files = {}
    table, gains, trace = (
        _next_to(destination, ending).name
        for ending in (POSITIONS_ENDING, GAINS_ENDING, TRACE_ENDING)
    )
    steps = {entry.record.step for entry in entries}
    if outcome is not None:
        files["metrics/"] = "the record of every finished task"
    elif workflow:
        last = next((step for step in ENDINGS if step in steps), None)
        if last is not None:
            files[f"{subject}{ENDINGS[last]}.ome.zarr/"] = VOLUMES[last]
        for entry in entries if last is None else ():
            if entry.record.settings.get("layout") == "volume":
                name = entry.name.removesuffix("_resample")
                files[f"{name}.ome.zarr/"] = "the resampled volume, OME-Zarr"
        for entry in entries:
            words = entry.record.command
            if "--save_bias_field" in words:
                channel_words = f" of {entry.record.channel}" if channel else ""
                path = Path(words[words.index("--save_bias_field") + 1])
                files[f"{path.name}/"] = f"the bias field{channel_words}, OME-Zarr"
        if "stack" in steps:
            files[f"{subject}_displacements.csv"] = "the displacement of each section, CSV"
        if any(entry.record.figures.get("shading_after") for entry in entries):
            files["flat_fields/"] = "the flat field of each section, TIFF"
        files["metrics/"] = "the record of every task"
    if any(entry.record.figures.get("positions") for entry in entries):
        files[table] = "the positions of all tiles, CSV"
    if any(record.figures.get("gains") for record in _section_records(entries, channel)):
        files[gains] = "the gains of all tiles, CSV"
    return files | {
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
    outcome: Outcome | None = None,
    channel: str | None = None,
    preflight_decisions: Sequence[Decision] = (),
    execution: ExecutionParameters,
) -> None:
    """Write the report of one subject, and its accompanying files.

    Names of a task's ``records`` and ``previews`` begin alike. ``run`` holds facts of the workflow
    run, such as its command line; None without a workflow. ``outcome`` says which results are
    missing; None if they are complete. ``channel`` names the one that was measured, if there are
    several.

    Raises an OctaneError that names what is not usable; nothing is left half-written.
    """
    if destination.suffix.lower() not in (".html", ".htm"):
        raise OctaneError(f"{destination} does not end in .html; give it a name that does.")
    entries = _load_tasks(records, previews)
    files = _describe_files(
        destination, subject, entries, outcome, channel, workflow=run is not None
    )
    report = build_report(
        entries,
        subject=subject,
        run=run,
        files=files,
        outcome=outcome,
        reference=channel,
        preflight_decisions=preflight_decisions,
    )
    timelines = {e.name: e.record.timeline for e in entries if e.record.timeline is not None}
    stitched = _section_records(entries, channel)
    sections = [StitchFigures.model_validate(record.figures) for record in stitched]
    tables = {POSITIONS_ENDING: _position_table(sections), GAINS_ENDING: _gain_table(sections)}
    contents = {
        destination: report.html.encode(),
        _next_to(destination, TRACE_ENDING): trace_content(timelines),
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
