"""A subject's folder in outdir, which has the results of one input."""

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from octane.core.errors import InputError
from octane.core.metrics import write_json
from octane.processes.preflight.request import Run, Subject
from octane.processes.preflight.states import PlanContent

INPUT_FILE = "input.json"
TABLE_NAME = re.compile(r".*_(positions|gains|displacements)[.]csv")
"""Names of tables that a run writes, and may be given to another one."""
STORE = r"[^/]+[.]ome[.]zarr(/(zarr[.]json|[0-9]+(/(zarr[.]json|c(/[0-9]+)*))?))?"
FILE = r"[^/]+_((positions|gains|displacements)[.]csv|report[.](html|json)|trace[.]json[.]gz)"
FIXED = r"input[.]json|(metrics|flat_fields|profiles|previews)"
INNER = r"metrics/[^/]+[.]json|flat_fields/[^/]+[.]tif|profiles/[^/]+|previews/[^/]+[.](png|svg)"
RESULT = re.compile(rf"(earlier_[-0-9]+/)?({STORE}|{FILE}|{FIXED}|{INNER})|earlier_[-0-9]+")
"""Paths in a subject's folder that a run writes, now or before."""


@dataclass(frozen=True)
class Claim:
    """A subject's folder, the input that shall have it, and an earlier one's results in it."""

    folder: Path
    source: Mapping[str, object]
    earlier: str = ""
    old_results: Iterable[Path] = ()

    def take(self) -> None:
        """Delete the results of an earlier input, and name the new one in the folder."""
        for path in self.old_results:
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / INPUT_FILE, self.source)


def claim_folder(run: Run, subject: Subject, plan: PlanContent) -> Claim:
    """Claim a subject's folder for its input, before any result is written.

    An input that was moved or corrected counts as the same one.

    Raises an InputError if results would replace data that the run reads, or those of another
    input. If the user wants the latter, it is one if the folder holds what is no result.
    """
    source, outdir = subject.files["input"], Path(str(run.parameters["outdir"]))
    folder = outdir / subject.name
    is_made = run.work in source.parents
    claim = {
        "input": "made by the run" if is_made else str(source.resolve()),
        "fingerprint": "" if is_made else plan.fingerprint,
        "stub": run.is_stub,
    }
    record = folder / INPUT_FILE
    if unwritable := _unwritable(folder):
        raise InputError(
            f"{unwritable} cannot be written; ask its owner for permission, or give another "
            "--outdir or --subject."
        )
    earlier = _read_earlier(record)
    is_other = bool(earlier) and all(
        earlier.get(key) != claim[key] for key in ("input", "fingerprint")
    )
    _require_other_folder(run, subject, folder, plan, is_other=is_other)
    if run.is_stub and earlier and not earlier.get("stub"):
        raise InputError(
            f"{folder} has results, which -stub-run would replace by empty files; give another "
            "--outdir."
        )
    if not is_other:
        return Claim(folder, claim)
    if not run.is_on("overwrite_subject"):
        raise InputError(
            f"{folder} has the results of another input, {earlier['input']}; give this one its own "
            "name with --subject, or another --outdir, or replace them with --overwrite_subject."
        )
    return Claim(folder, claim, str(earlier["input"]), _list_results(folder.resolve()))


def _unwritable(folder: Path) -> Path | None:
    """What a run must write and cannot."""
    places = (_existing_ancestor(folder), folder / INPUT_FILE, folder / "metrics")
    return next((p for p in places if p.exists() and not os.access(p, os.W_OK)), None)


def _existing_ancestor(folder: Path) -> Path:
    """A folder, or the nearest one above it that exists."""
    return next(path for path in (folder, *folder.parents) if path.exists())


def _read_earlier(record: Path) -> dict[str, object]:
    """The input that a folder was claimed for, or nothing."""
    try:
        text = record.read_text(encoding="utf-8")
        return json.loads(text) if text else {}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise InputError(
            f"{record}, which names the input of these results, cannot be read; delete it if they "
            "are this input's, or give another --outdir or --subject."
        ) from error


def _require_other_folder(
    run: Run, subject: Subject, folder: Path, plan: PlanContent, *, is_other: bool
) -> None:
    """Raise an InputError if results would replace what the run reads."""
    overwritten: list[Path] = []
    if folder.is_dir():
        # A link to an earlier task's result, which must not be edited there, and is replaced.
        for name in ("positions", "stitch_gain", "displacements"):
            table = subject.files.get(name)
            if table and TABLE_NAME.fullmatch(table.name) and table.parent.samefile(folder):
                raise InputError(
                    f"{table} is a result, which this run replaces; copy it to another folder, and "
                    "give the copy."
                )
        read = [*subject.files.values(), run.work] if is_other else [subject.files["input"]]
        overwritten += [path for path in read if _file_id(folder) in _ancestor_ids(path)]
    # A folder of data may well have the results in it, but not what tasks read of it.
    names = {*plan.data} - {f"{subject.name}/input"}
    places = _ancestor_ids(_existing_ancestor(folder))
    overwritten += [path for name in names for path in plan.data[name] if _file_id(path) in places]
    if overwritten:
        raise InputError(
            f"Results in {folder} would replace {overwritten[0]}, which the run reads; give "
            "another --outdir or --subject."
        )


def _ancestor_ids(path: Path) -> set[tuple[int, int]]:
    """A path and all that it is in."""
    real = path.resolve()
    return {_file_id(above) for above in (real, *real.parents)}


def _file_id(path: Path) -> tuple[int, int]:
    """What a file or folder is, also where a container mounts it elsewhere."""
    state = path.stat()
    return state.st_dev, state.st_ino


def _list_results(folder: Path) -> list[Path]:
    """All that a folder holds, deepest first; an InputError names what is no result."""
    paths: list[Path] = []
    for root, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(root) / name
            if not RESULT.fullmatch(path.relative_to(folder).as_posix()):
                raise InputError(
                    f"{path} is not a result of octane, and --overwrite_subject would delete it; "
                    "move it, or give another --outdir or --subject."
                )
            paths.append(path)
    return paths[::-1]
