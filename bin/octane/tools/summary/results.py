"""Published files of a subject: which of them a run made, and those of an earlier run."""

from __future__ import annotations

import filecmp
import shutil
from dataclasses import dataclass
from pathlib import Path

FOLDERS = ("metrics", "flat_fields", "profiles")
"""Subfolders of a subject's results, as in conf/modules.config."""
ENDINGS = (
    *(".ome.zarr", "_report.html", "_report.json", "_trace.json.gz", "_metrics.json"),
    *("_flat_field.tif", "_positions.csv", "_gains.csv", "_displacements.csv"),
)
"""Ends of the names of results."""
METADATA = ("zarr.json", ".zattrs", ".zgroup", ".zarray")
"""Files of a store, of which the first that exists is compared."""
RECORD_ENDING = "_metrics.json"
EMPTY_WORDS = "was emptied"
"""What a task says whose input was emptied, after the store's path."""


@dataclass(frozen=True)
class MadeFile:
    """A file of a task, and where it is published."""

    subject: str
    path: Path
    task: Path


def result_folders(outdir: Path, subject: str) -> list[Path]:
    """Folders of a subject's results."""
    return [outdir / subject, *(outdir / subject / name for name in FOLDERS)]


def made_files(
    outdir: Path, files: list[tuple[str, Path]], inputs: dict[str, list[str]]
) -> list[MadeFile]:
    """Files that tasks made, of all ``files`` by subject; not ``inputs`` that no step changed.

    With -resume a task's folder may be in an earlier work directory.
    """
    made = []
    for subject, file in files:
        is_input = any(file == Path(i) or Path(i) in file.parents for i in inputs.get(subject, []))
        if not is_input and (file.parent / ".command.run").exists():
            paths = [place / file.name for place in result_folders(outdir, subject)]
            path = next((path for path in paths if path.exists()), paths[0])
            made.append(MadeFile(subject, path, file.parent))
    return made


def unpublished_results(
    outdir: Path, subject: str, files: list[Path], results: list[str]
) -> list[str]:
    """Names of planned results that outdir lacks, although the tasks succeeded.

    A file of an earlier run does not count: it differs from the one that this run made, or for a
    store in its metadata.
    """
    made_by_name = {file.name: file for file in files}
    return [
        name for name in results if not _is_same(made_by_name.get(name), outdir / subject / name)
    ]


def _is_same(made: Path | None, published: Path) -> bool:
    if made is None:
        return False
    ours, other = _identifying_file(made), _identifying_file(published)
    return ours.is_file() and other.is_file() and filecmp.cmp(ours, other, shallow=False)


def _identifying_file(path: Path) -> Path:
    return next((path / name for name in METADATA if (path / name).exists()), path)


def remove_empty_stores(made: list[MadeFile], said: str) -> None:
    """Remove what is left of a subject's emptied outputs if a task failed because of one.

    Then -resume makes them again.
    """
    if EMPTY_WORDS not in said:
        return
    for subject in {item.subject for item in made}:
        tasks = {item.task for item in made if item.subject == subject and item.task.is_dir()}
        stores = [p for task in tasks for p in task.iterdir() if (p / "0/emptied.json").exists()]
        if any(f"{store.resolve()} {EMPTY_WORDS}" in said for store in stores):
            for store in stores:
                shutil.rmtree(store)


def set_aside(
    outdir: Path, subject: str, made: list[MadeFile], started: str, *, mixed: bool
) -> None:
    """Move results of an earlier run aside, in a folder of the time when this one ``started``.

    With ``mixed``, delete what this run made of two states of the input, and its tasks' folders.
    Else -resume would reuse them as results of the first state.
    """
    published = [
        path
        for place in result_folders(outdir, subject)
        if place.is_dir()
        for path in place.iterdir()
        if path.name == "previews" or path.name.endswith(ENDINGS)
    ]
    made_paths = {item.path for item in made}
    folder = outdir / subject
    for path in published:
        if path not in made_paths:
            place = folder / f"earlier_{started}" / path.relative_to(folder)
            place.parent.mkdir(parents=True, exist_ok=True)
            path.rename(place)
    if mixed:
        tasks = {item.task for item in made}
        tasks = {
            task for task in tasks if any(f.name.endswith(RECORD_ENDING) for f in task.iterdir())
        }
        mixed_paths = [item.path for item in made if item.task in tasks and item.path in published]
        for path in {*mixed_paths, *tasks}:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
