"""REPORT: the records and previews of a subject's steps become one HTML file and its JSON twin."""

import json
import logging
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from octane.config.params import ExecutionParameters, ReportParameters
from octane.config.validation import place_of
from octane.core.errors import OctaneError
from octane.core.files import writing
from octane.core.metrics import Metrics, as_json
from octane.core.records import Record
from octane.report.crate import CRATE, crate
from octane.report.html import PREVIEWED, Entry, Report, build
from octane.report.multiqc import multiqc_content
from octane.report.trace import trace_content

logger = logging.getLogger(__name__)

RECORD, PREVIEW = "_metrics.json", "_preview.npz"
"""Ends of the names of a task's two files; the begin is the same for both."""
TRACE, MULTIQC = "_trace.json.gz", "_mqc.json"
"""Ends of names in place of the report's own."""
UNREADABLE = (
    OSError,
    ValueError,
    EOFError,
    AttributeError,
    RuntimeError,
    zlib.error,
    zipfile.BadZipFile,
)
"""Errors of NumPy and zipfile for a file that is no NPZ, or of which any byte changed."""
VOLUMES = {
    "pyramid": ("", "the finished volume, one level per resolution, OME-Zarr"),
    "n4": ("_n4", "the corrected volume, OME-Zarr"),
    "stack": ("_stack", "the assembled volume, OME-Zarr"),
}
"""Name and description of the volume by the step that made it, the last step first."""


def _read_record(path: Path) -> Record:
    try:
        return Record.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise OctaneError(f"{path} cannot be read ({error.strerror}); check the path.") from error
    except ValidationError as error:
        raise OctaneError(
            f"{path} is no record of an octane step ('{place_of(error)}' is wrong or missing); "
            "give the *_metrics.json files that the steps wrote."
        ) from error
    # UnicodeDecodeError and JSONDecodeError are both ValueErrors.
    except ValueError as error:
        raise OctaneError(
            f"{path} is not JSON; run the step again that should have written it."
        ) from error


def _read_preview(path: Path) -> dict[str, npt.NDArray]:
    try:
        # Opened here, because np.load leaves open what it cannot read.
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except UNREADABLE as error:
        raise OctaneError(
            f"{path} is not a readable NPZ file; run the step again that should have written it."
        ) from error


def _by_stem(paths: Sequence[Path], ending: str) -> dict[str, Path]:
    """Paths by their names without ``ending``."""
    found: dict[str, Path] = {}
    for path in paths:
        stem = path.name.removesuffix(ending)
        if stem == path.name:
            raise OctaneError(f"{path} does not end in {ending}; give the file under its own name.")
        if stem in found:
            raise OctaneError(f"{path} and {found[stem]} have one name; give each step once.")
        found[stem] = path
    return found


def _load(records: Sequence[Path], previews: Sequence[Path]) -> list[Entry]:
    """Load each record with its preview, in the order of their names."""
    pictured = _by_stem(previews, PREVIEW)
    named = _by_stem(records, RECORD)
    if not named:
        raise OctaneError("There is no record to report on; give the steps' *_metrics.json files.")
    for stem in pictured.keys() - named.keys():
        raise OctaneError(
            f"{pictured[stem]} has no record; give {stem}{RECORD} as well, or leave both out."
        )
    entries = []
    for stem, path in sorted(named.items()):
        record = _read_record(path)
        needed = PREVIEWED.get(record.step, ())
        if needed and stem not in pictured:
            raise OctaneError(f"{path} has no preview; give {stem}{PREVIEW} as well.")
        arrays = _read_preview(pictured[stem]) if stem in pictured else {}
        for name in needed:
            if name not in arrays or arrays[name].ndim != 2 or arrays[name].size == 0:
                raise OctaneError(
                    f"{pictured[stem]} has no usable picture '{name}'; "
                    f"run {record.step.upper()} again with this version of octane."
                )
        entries.append(Entry(stem, record, arrays))
    return entries


def _beside(destination: Path, ending: str) -> Path:
    """Name a file that goes with the report."""
    return destination.with_name(destination.stem.removesuffix("_report") + ending)


def _files(
    destination: Path, subject: str, entries: Sequence[Entry], *, workflow: bool
) -> dict[str, str]:
    """Describe the files beside the report, by their names; of a folder a name ends in a slash."""
    found = {}
    steps = {entry.record.step for entry in entries}
    if workflow:
        last = next((step for step in VOLUMES if step in steps), None)
        if last is not None:
            ending, text = VOLUMES[last]
            found[f"{subject}{ending}.ome.zarr/"] = text
        for entry in entries:
            volume = entry.record.settings.get("layout") == "volume"
            if last is None and entry.record.step == "resample" and volume:
                name = entry.name.removesuffix("_resample")
                found[f"{name}.ome.zarr/"] = "the resampled volume, OME-Zarr"
        if any("--save-bias-field" in entry.record.command for entry in entries):
            found[f"{subject}_bias.ome.zarr/"] = "the bias field, OME-Zarr"
        found["metrics/"] = "the record of every task"
        found[CRATE] = "provenance of these results, RO-Crate"
    return found | {
        destination.with_suffix(".json").name: "the same records for programs",
        _beside(destination, TRACE).name: "the work of every thread over time, for ui.perfetto.dev",
        _beside(destination, MULTIQC).name: "figures for MultiQC",
        "previews/": "the pictures of this page, PNG",
    }


def _twin(
    report: Report, subject: str, run: Mapping[str, str], entries: Sequence[Entry]
) -> dict[str, object]:
    return {
        "subject": subject,
        "run": run,
        "warnings": report.warnings,
        "summary": report.summary.model_dump(mode="json"),
        "sections": [section.model_dump(mode="json") for section in report.sections],
        "thumbnail": report.thumbnail,
        "records": [
            {"name": e.name, **e.record.model_dump(mode="json", by_alias=True)} for e in entries
        ],
    }


def write_report(
    records: list[Path],
    previews: list[Path],
    destination: Path,
    parameters: ReportParameters,
    *,
    subject: str,
    run: Mapping[str, str] | None,
    execution: ExecutionParameters,
) -> Metrics:
    """Write the report of one subject.

    Beside ``destination`` come the same records as one JSON file, the pictures as PNG files in
    ``previews/``, the timelines as a trace for Perfetto, a table for MultiQC, and, for a run of the
    workflow, its provenance as an RO-Crate.

    Parameters
    ----------
    records, previews
        The ``*_metrics.json`` and ``*_preview.npz`` files; those of one task begin alike.
    destination
        HTML file to be written.
    parameters, execution
        See :mod:`octane.config.params`.
    subject
        Name of the subject.
    run
        Facts of the run as a whole, such as its command line; None without a workflow.

    Raises
    ------
    OctaneError
        For a record or preview that is missing or not usable, and output that exists or cannot be
        written; nothing is left half-written.
    """
    metrics = Metrics("report", settings=parameters.model_dump(mode="json"))
    if destination.suffix.lower() not in (".html", ".htm"):
        raise OctaneError(f"{destination} does not end in .html; name the report so.")
    with metrics.timed("read"):
        entries = _load(records, previews)
    for path in (*records, *previews):
        metrics.count("read", path.stat().st_size)
    workflow, known = run is not None, dict(run or {})
    files = _files(destination, subject, entries, workflow=workflow)
    with metrics.timed("compute"):
        report = build(
            entries,
            heading=parameters.heading or subject,
            subject=subject,
            run=known,
            files=files,
            workflow=workflow,
        )
        timelines = {e.name: e.record.timeline for e in entries if e.record.timeline is not None}
        jsons: dict[Path, object] = {
            destination.with_suffix(".json"): _twin(report, subject, known, entries),
            _beside(destination, MULTIQC): multiqc_content(subject, report.summary),
        }
        if workflow:
            named = [(entry.name, entry.record) for entry in entries]
            own = {f"metrics/{name}{RECORD}": f"record of {r.step.upper()}" for name, r in named}
            listed = {n: text for n, text in files.items() if n not in (CRATE, "metrics/")}
            listed = {destination.name: "the report"} | listed | own
            jsons[destination.with_name(CRATE)] = crate(subject, known, named, listed)
    contents = {
        destination: report.html.encode(),
        _beside(destination, TRACE): trace_content(timelines),
        **{path: as_json(content).encode() for path, content in jsons.items()},
    }
    _write(contents, report.pictures, destination.parent / "previews", metrics, execution.overwrite)
    metrics.figures.update(
        html_bytes=len(contents[destination]),
        pictures=len(report.pictures),
        records=len(entries),
        warnings=len(report.warnings),
    )
    logger.info("Report of %s: %s (%d warnings)", subject, destination, len(report.warnings))
    return metrics


def _write(
    contents: Mapping[Path, bytes],
    pictures: Mapping[str, bytes],
    folder: Path,
    metrics: Metrics,
    overwrite: bool,
) -> None:
    """Write all files; the page, the first one, gets its name last."""
    with metrics.timed("write"), ExitStack() as stack:
        for path, content in contents.items():
            partial = stack.enter_context(writing(path, overwrite=overwrite))
            partial.write_bytes(content)
            metrics.count("written", len(content))
        partial = stack.enter_context(writing(folder, overwrite=overwrite))
        partial.mkdir()
        for name, data in pictures.items():
            (partial / name).write_bytes(data)
            metrics.count("written", len(data))
