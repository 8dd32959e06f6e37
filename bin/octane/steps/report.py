"""REPORT: the records and previews of a subject's steps become one HTML file, and its twins."""

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

from octane.config.params import STEPS, ExecutionParameters, ReportParameters
from octane.config.validation import place_of
from octane.core.bounds import bound_of, gap_of
from octane.core.errors import OctaneError
from octane.core.files import writing
from octane.core.metrics import Metrics, as_json
from octane.core.timing import summed
from octane.pipeline.outside import outside_of
from octane.report.crate import CRATE, crate
from octane.report.gpu_table import gpu_use
from octane.report.html import PREVIEWED, Entry, Report, build
from octane.report.multiqc import general_content, sections_content
from octane.report.records import ORDER, Record
from octane.report.result_files import result_files
from octane.report.timing import outside_by, spent_by
from octane.report.trace import trace_content

__all__ = ["write_report"]

logger = logging.getLogger(__name__)

RECORD, PREVIEW = "_metrics.json", "_preview.npz"
"""How the names of a step's two files end; what stands before is the same for both."""
TRACE = "_trace.json.gz"
"""The trace's, in place of the report's own ending."""
UNREADABLE = (
    OSError,
    ValueError,
    EOFError,
    AttributeError,
    RuntimeError,
    zlib.error,
    zipfile.BadZipFile,
)
"""What NumPy and zipfile raise for what is no NPZ, or has any of its bytes changed."""
MULTIQC = {"_general_mqc.json": "general", "_sections_mqc.json": "sections"}
"""Those of the tables for MultiQC."""
BEFORE = ("preflight", "phantom")
"""Steps that serve checks and tests."""


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
    """Paths by what stands before ``ending`` in their names."""
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
    """Each record with its preview, in the order of their names."""
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


def _shown(value: object) -> str:
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return " ".join(map(_shown, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _settings(entries: Sequence[Entry], step: str, *, workflow: bool) -> list[dict[str, object]]:
    """Settings of a step beside their defaults; those that differ come first."""
    models = [STEPS[step], STEPS["input"], STEPS["execution"]] if step in STEPS else []
    fields = {name: info for model in models for name, info in model.model_fields.items()}
    defaults = {n: v for model in models for n, v in model().recorded().items()}
    used = [e.record.settings for e in entries if e.record.step == step]
    rows: list[dict[str, object]] = []
    for name in dict.fromkeys(name for settings in used for name in settings):
        # Records of one step, such as those of several sections, may differ.
        values = list(dict.fromkeys(_shown(settings.get(name)) for settings in used))
        noted = fields[name].json_schema_extra if name in fields else None
        extra = noted if isinstance(noted, Mapping) else {}
        default = _shown(defaults[name]) if name in defaults else None
        if workflow and "workflow_default" in extra:
            default = _shown(extra["workflow_default"])
        rows.append(
            {
                "name": name,
                "value": "; ".join(values),
                "default": default,
                "unit": extra.get("unit") or "",
                "changed": default is not None and values != [default],
            }
        )
    return sorted(rows, key=lambda row: not row["changed"])


def _described(facts: Mapping[str, object]) -> str:
    """What is known of a device or machine, in one line."""
    parts = []
    for name, value in facts.items():
        if name.endswith("_bytes") and isinstance(value, int | float):
            parts.append(f"{name.removesuffix('_bytes')} {value / 1e9:.3g} GB")
        elif value is not None and not (name == "processor" and value == facts.get("device")):
            parts.append(f"{name} {_shown(value)}")
    return ", ".join(parts)


def _device(facts: Mapping[str, object]) -> str:
    backend = str(facts.get("backend", "cpu")).upper()
    return f"{backend} ({facts['device']})" if backend == "GPU" and "device" in facts else backend


def _tables(entries: Sequence[Entry], *, workflow: bool) -> dict[str, object]:
    """What the tasks of each step add up to."""
    # Steps that ORDER does not know, from a later version, come after those that it does.
    order = dict.fromkeys((*BEFORE, *ORDER, *sorted(entry.record.step for entry in entries)))
    steps = {s: of for s in order if (of := [e for e in entries if e.record.step == s])}
    versions: dict[str, list[str]] = {}
    machines: dict[str, list[str]] = {}
    stages: dict[str, dict[str, tuple[float | None, float | None]]] = {}
    for step, of in steps.items():
        spent = summed(entry.record.seconds for entry in of)
        moved = summed(entry.record.traffic for entry in of)
        # The seconds of writing and the bytes written go under two names.
        names = dict.fromkeys("written" if n == "write" else n for n in (*spent, *moved))
        stages[step] = {
            n: (spent.get("write" if n == "written" else n), moved.get(n))
            for n in names
            if n != "total"
        }
        for record in (entry.record for entry in of):
            for name, version in record.versions.items():
                if version not in versions.setdefault(name, []):
                    versions[name].append(version)
            text = _described({**record.device, **record.host})
            if step not in machines.setdefault(text, []):
                machines[text].append(step)
    return {
        "steps": steps,
        "expected": ORDER,
        "settings": {s: _settings(entries, s, workflow=workflow) for s in steps},
        "seconds": {
            s: sum(entry.record.seconds.get("total", 0.0) for entry in of)
            for s, of in steps.items()
        },
        "traffic": {s: summed(entry.record.traffic for entry in of) for s, of in steps.items()},
        "stages": stages,
        "bounds": [
            sentence for of in steps.values() for sentence in _bounds([e.record for e in of])
        ],
        "devices": {
            s: dict.fromkeys(_device(entry.record.device) for entry in of)
            for s, of in steps.items()
        },
        "versions": versions,
        "machines": machines,
        "gpus": gpu_use({s: [entry.record for entry in of] for s, of in steps.items()}),
    }


def _bounds(records: Sequence[Record]) -> list[str]:
    """What bounded the tasks of a step, and what they did meanwhile."""
    told = [outside_of(outside) for outside in outside_by(records).values()]
    for spent in spent_by(records).values():
        told += [bound_of(spent), gap_of(spent) if spent.gaps else None]
    return [sentence for sentence in told if sentence is not None]


def _beside(destination: Path, ending: str) -> Path:
    """A file that goes with the report, by its name."""
    return destination.with_name(destination.stem.removesuffix("_report") + ending)


def _files(
    destination: Path, subject: str, entries: Sequence[Entry], *, workflow: bool
) -> dict[str, str]:
    """What stands beside the report, by its name."""
    own = {
        destination.with_suffix(".json").name: "the same records for programs",
        _beside(destination, TRACE).name: "who did what when, for ui.perfetto.dev",
        "previews/": "the pictures of this page, PNG",
    }
    for ending, kind in MULTIQC.items():
        own[_beside(destination, ending).name] = f"table for MultiQC: {kind}"
    if not workflow:
        return own
    named = [(entry.name, entry.record) for entry in entries]
    return result_files(subject, named) | own | {CRATE: "provenance of these results, RO-Crate"}


def _linked(files: Mapping[str, str]) -> dict[str, str]:
    """Of the records, which may be hundreds, the folder."""
    shown = {name: what for name, what in files.items() if not name.startswith("metrics/")}
    return shown | ({"metrics/": "the record of every step"} if len(shown) < len(files) else {})


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

    Beside ``destination`` come the same records as one JSON file of its name, the pictures as PNG
    files in ``previews/``, the timelines of all tasks as a trace for Perfetto, tables for MultiQC,
    and, of a run of the workflow, its provenance as an RO-Crate.

    Parameters
    ----------
    records, previews
        The steps' ``*_metrics.json`` and ``*_preview.npz`` files; those of one step begin alike.
    destination
        HTML file to be written.
    parameters, execution
        See :mod:`octane.config.params`.
    subject
        Name of the subject.
    run
        What is known of the run as a whole, such as its command line; shown as it is.

    Raises
    ------
    OctaneError
        For a record or preview that is missing or not usable, and output that exists or cannot be
        written; nothing is left half-written.
    """
    metrics = Metrics("report", settings=parameters.model_dump(mode="json"))
    overwrite = execution.overwrite
    if destination.suffix.lower() not in (".html", ".htm"):
        raise OctaneError(f"{destination} does not end in .html; name the report so.")
    with metrics.timed("read"):
        entries = _load(records, previews)
    for path in (*records, *previews):
        metrics.count("read", path.stat().st_size)
    known = dict(run or {})
    files = _files(destination, subject, entries, workflow=run is not None)
    with metrics.timed("compute"):
        report = build(
            entries,
            heading=parameters.heading or subject,
            subject=subject,
            run=known,
            tables={**_tables(entries, workflow=run is not None), "files": _linked(files)},
        )
        noted = {e.name: e.record.timeline for e in entries}
        contents = {
            destination: report.html.encode(),
            destination.with_suffix(".json"): as_json(
                _twin(report, subject, known, entries)
            ).encode(),
            _beside(destination, TRACE): trace_content(
                {name: timeline for name, timeline in noted.items() if timeline is not None}
            ),
        }
        general = general_content(subject, report.summary)
        tables = {"general": general, "sections": sections_content(subject, report.sections)}
        for ending, kind in MULTIQC.items():
            contents[_beside(destination, ending)] = as_json(tables[kind]).encode()
        if run is not None:
            named = [(entry.name, entry.record) for entry in entries]
            listed = {name: what for name, what in files.items() if name != CRATE}
            made = crate(subject, known, named, {destination.name: "the report"} | listed)
            contents[destination.with_name(CRATE)] = as_json(made).encode()
    # The page gets its name last: once it is there, what belongs to it is too.
    with metrics.timed("write"), ExitStack() as stack:
        for path, content in contents.items():
            partial = stack.enter_context(writing(path, overwrite=overwrite))
            partial.write_bytes(content)
            metrics.count("written", len(content))
        folder = stack.enter_context(writing(destination.parent / "previews", overwrite=overwrite))
        folder.mkdir()
        for name, data in report.pictures.items():
            (folder / name).write_bytes(data)
            metrics.count("written", len(data))
    metrics.figures.update(
        html_bytes=len(contents[destination]),
        pictures=len(report.pictures),
        records=len(entries),
        warnings=len(report.warnings),
    )
    logger.info("Report of %s: %s (%d warnings)", subject, destination, len(report.warnings))
    return metrics
