"""Make real files of results that are links into a Nextflow work directory, and verify results.

A copy is made under a temporary name next to the link, and replaces the link once complete. The
work directory is only read.
"""

import fcntl
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from octane.core.errors import OctaneError, unreadable
from octane.core.files import (
    bring_to_disk,
    files_within,
    is_task_folder,
    left_by,
    lost_target,
    task_folder,
    writing,
)
from octane.core.geometry import Region
from octane.core.progress import Progress
from octane.pipeline.workers import run_tiles
from octane.store.chunks import is_store, stored_objects
from octane.store.formats.archive import is_archive
from octane.store.image import Image, open_levels

logger = logging.getLogger(__name__)

READERS = 4
"""Chunks decoded at once: enough for a disk or network without burdening a shared machine."""

FICLONE = 0x40049409
"""Linux's request to share the blocks of a file."""


def materialize(outdir: Path, *, dry_run: bool = False) -> int:
    """Make real files of links below a folder that lead into a Nextflow work directory.

    Other links stay; the folders they lead to are searched as well. Before anything is copied, a
    link within a result that leads out of it raises an error. A link to a missing result raises one
    after all others are made real. Returns the number of links that were, or with ``dry_run`` would
    be, made real.
    """
    if not outdir.is_dir():
        raise OctaneError(f"{outdir} is not a folder; give the --outdir of a run.")
    if task_folder(outdir) is not None:
        raise OctaneError(f"{outdir} is in a work directory; give the --outdir of a run.")
    total = 0
    below = _walk(outdir, lambda folder: task_folder(folder) is None)
    paths = below if dry_run else map(_restore_name, list(below))
    results = [path for path in paths if path.is_symlink() and task_folder(path) is not None]
    links = [link for link in results if link.exists()]
    problems: list[str] = []
    advance = Progress("Copying", len(links), "links")
    sizes_of = {link: _sizes(link, problems) for link in links}
    if problems:
        raise OctaneError("\n".join(problems))
    for link, sizes in sizes_of.items():
        size = sum(sizes.values())
        logger.info("%s: %d files, %.6f GB", link, len(sizes), size / 1e9)
        if not dry_run:
            _make_real(link, sizes)
            advance(size)
        total += size
    if len(links) < len(results):
        raise OctaneError("\n".join(lost_target(link) for link in results if not link.exists()))
    what = "to be made real" if dry_run else "made real"
    logger.info("%s: %d links %s, %.6f GB", outdir, len(links), what, total / 1e9)
    return len(links)


def verify(folder: Path) -> int:
    """Decode every chunk of every store below a folder, following links; return their number.

    Raises an OctaneError with one line for each damaged store.
    """
    if not (folder.is_dir() or is_archive(folder)):
        raise OctaneError(f"{folder} is not a folder; give the --outdir of a run, or a store.")
    stores = (
        [folder] if _is_result(folder) else [*filter(_is_result, _walk(folder, _may_hold_results))]
    )
    if not stores:
        raise OctaneError(
            f"{folder} does not hold a store; give the --outdir of a run, or a store."
        )
    damaged: dict[Path, str] = {}
    chunks: list[tuple[Image, Region]] = []
    for store in stores:
        try:
            if not store.exists():
                raise OctaneError(lost_target(store))
            for level in open_levels(store):
                objects = stored_objects(level.array, level.within(level.whole))
                chunks += [(level, o.region[-3:]) for o in objects]
        except OctaneError as error:
            damaged[store] = str(error)
    advance = Progress("Verifying", len(chunks), "files", workers=READERS)

    def decode(chunk: tuple[Image, Region]) -> None:
        image, region = chunk
        try:
            advance(image.read(region).nbytes)
        except OctaneError as error:
            damaged.setdefault(image.path, str(error))

    run_tiles(chunks, decode, workers=READERS, describe=lambda chunk: str(chunk[0].path))
    if damaged:
        raise OctaneError("\n".join(damaged[store] for store in sorted(damaged)))
    logger.info("%s: %d stores with %d files are intact", folder, len(stores), len(chunks))
    return len(stores)


def _walk(top: Path, enter: Callable[[Path], bool]) -> Iterator[Path]:
    """Everything below a folder, following links to folders; each folder is read once."""

    def refuse(error: OSError) -> None:
        raise unreadable(error) from error

    # A link to a parent folder would lead back here.
    visited = {*top.resolve().parents}
    for name, folders, files in os.walk(top, followlinks=True, onerror=refuse):
        folder = Path(name)
        if folder.resolve() in visited:
            folders.clear()
            continue
        visited.add(folder.resolve())
        yield from (folder / inner for inner in sorted([*folders, *files]))
        folders[:] = sorted(inner for inner in folders if enter(folder / inner))


def _may_hold_results(folder: Path) -> bool:
    hidden = folder.name.startswith(".")
    return not (hidden or _is_result(folder) or is_task_folder(folder.resolve()))


def _is_result(path: Path) -> bool:
    """Tell whether a path is a store, or a part of one whose metadata did not arrive."""
    return not path.name.startswith(".") and is_store(path)


def _restore_name(path: Path) -> Path:
    """Restore a link's name if a killed call had moved the link aside for its copy."""
    leftover = left_by(path)
    if (
        leftover is None
        or not leftover.aside
        or not path.is_symlink()
        or os.path.lexists(leftover.destination)
    ):
        return path
    return path.rename(leftover.destination)


def _make_real(link: Path, sizes: dict[str, int]) -> None:
    """Replace a link by a copy of its target."""
    with writing(link, overwrite=True, remedy="check its permissions") as partial:
        if link.is_dir():
            partial.mkdir()
        for name in sizes:
            file = partial / name
            file.parent.mkdir(parents=True, exist_ok=True)
            _copy(link / name, file)
        if _sizes(partial, []) != sizes:
            raise OctaneError(
                f"{link}: the copy differs in size from its files in the work directory; check the "
                "file system, and run this command again."
            )
        bring_to_disk(partial)


def _copy(source: Path, target: Path) -> None:
    """Copy a file, by reflink if the file system can."""
    # Not cp: it continues when this process is killed, and macOS's lacks --reflink.
    try:
        with source.open("rb") as original, target.open("wb") as copy:
            fcntl.ioctl(copy, FICLONE, original.fileno())
    except OSError:
        shutil.copyfile(source, target)
    shutil.copystat(source, target)


def _sizes(path: Path, problems: list[str]) -> dict[str, int]:
    """Bytes of a file, or of all files below a folder by their paths in it.

    What must not be copied, as :func:`files_within` finds it, is added to ``problems``.
    """
    if not path.is_dir():
        return {"": path.stat().st_size}
    sizes, wrong = files_within(path, "result")
    remedy = f"remove {task_folder(path)} and run again with -resume."
    problems += [f"{problem}; {remedy}" for problem in wrong]
    return sizes
