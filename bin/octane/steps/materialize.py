"""Results that are links into a Nextflow work directory, made real files.

Each link is replaced by a reflink where the file system can, which takes no space, or by a copy
that is read back and compared: with the store's manifest, or with what was read. It is made under a
temporary name beside the link and takes its place when it is whole, so that a result is a link or a
whole copy but for the moment between two renames, and a call that was killed is made good by the
next. The work directory is only read.
"""

import errno
import fcntl
import logging
import os
import re
import shutil
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import google_crc32c

from octane.core.errors import NO_SPACE, NoSpaceError, OctaneError, unreadable
from octane.core.files import PARTIAL, REPLACED, writing
from octane.core.locking import locked
from octane.core.manifests import (
    PLACE,
    READ_BYTES,
    Manifest,
    Stamp,
    check,
    measured,
    require_noted,
    restore,
    task_folder,
)
from octane.core.progress import Advance, progress
from octane.pipeline.workers import run_tiles
from octane.steps.verifying import READERS, noted, nowhere
from octane.steps.walking import walk

__all__ = ["Made", "materialize"]

logger = logging.getLogger(__name__)

FICLONE = 0x40049409
"""Linux's request to share a file's blocks with another file."""

SHOWN = 3
"""Links that an error names; of more, the number."""


@dataclass(frozen=True)
class _Part:
    """A file behind a link: where it is, and its place below the link ('' for a link to a file)."""

    source: Path
    place: str
    size: int


@dataclass(frozen=True)
class _Link:
    path: Path
    target: Path
    parts: tuple[_Part, ...]


@dataclass(frozen=True)
class _Found:
    """Links to be made real, those that lead elsewhere, and what stays undone, a sentence each."""

    links: list[_Link]
    others: list[Path]
    undone: list[str]


@dataclass(frozen=True)
class Made:
    """What was done, or is to be done.

    Attributes
    ----------
    links, files, bytes
        How much was made real.
    shared
        Bytes of it that are reflinks.
    """

    links: int
    files: int
    bytes: int
    shared: int


def materialize(outdir: Path, *, dry_run: bool = False) -> Made:
    """Make real files of the links below a folder that lead into a Nextflow work directory.

    Links elsewhere are let be; in the folders that they lead to, links are made real as well.

    Parameters
    ----------
    outdir
        Folder of published results.
    dry_run
        Say what would be done, and do nothing.

    Raises
    ------
    OctaneError
        When a link leads nowhere, or a folder cannot be read or written (all other links are made
        real first), a store or a copy is not what its manifest says, or another process is at it.
    NoSpaceError
        When the copies would not fit; nothing is begun then.
    """
    if not outdir.is_dir():
        raise OctaneError(f"{outdir} is no folder; give the --outdir of a run.")
    if task_folder(outdir) is not None:
        raise OctaneError(f"{outdir} lies in a work directory; give the --outdir of a run.")
    start = time.monotonic()
    with _alone(outdir, dry_run=dry_run):
        if not dry_run:
            _tidy(outdir)
        found = _found(outdir)
        links = found.links
        parts = [part for link in links for part in link.parts]
        total = sum(part.size for part in parts)
        _tell(found.others)
        shared = 0
        if dry_run:
            for link in links:
                size = sum(part.size for part in link.parts)
                logger.info("%s: %d files, %.6f GB", link.path, len(link.parts), size / 1e9)
        elif parts:
            _require_space(links)
            with progress("Copying", len(parts), "files") as advance:
                shared = sum(_make(link, advance) for link in links)
        if found.undone:
            raise OctaneError("\n".join(found.undone))
    made = Made(len(links), len(parts), total, shared)
    if not links:
        logger.info("%s: nothing is to do, nothing there is a link into a work directory", outdir)
    elif dry_run:
        logger.info(
            "%s: %d links, %d files of %.6f GB to be made real",
            outdir, made.links, made.files, made.bytes / 1e9,
        )  # fmt: skip
    else:
        seconds = time.monotonic() - start
        logger.info(
            "%s: %d links made real, %d files of %.6f GB, %.6f GB of them reflinked, in %.1f s",
            outdir, made.links, made.files, made.bytes / 1e9, made.shared / 1e9, seconds,
        )  # fmt: skip
    return made


@contextmanager
def _alone(outdir: Path, *, dry_run: bool) -> Generator[None]:
    """Keep a second call off: what this one is writing would look to it like a killed one's."""
    descriptor = os.open(outdir, os.O_RDONLY)
    try:
        if not dry_run and not locked(descriptor, outdir):
            raise OctaneError(f"{outdir} is being made real by another process; wait for its end.")
        with _no_run(outdir) if not dry_run else nullcontext():
            yield
    finally:
        os.close(descriptor)


@contextmanager
def _no_run(outdir: Path) -> Generator[None]:
    """Hold the lock that a run holds on its outdir: each would replace what the other writes."""
    try:
        stream = (outdir / "pipeline_info" / ".lock").open("r+b")
    except OSError:
        # No run has written here, or this user may not: there is nothing to hold.
        yield
        return
    with stream:
        if not locked(stream.fileno(), Path(stream.name), posix=True):
            raise OctaneError(
                f"{outdir} is being written by a run of the workflow; wait for its end."
            )
        yield


def _tidy(outdir: Path) -> None:
    """Remove what a call that was killed left, and give links their names again."""
    pattern = re.compile(f"({re.escape(PARTIAL)}|{re.escape(REPLACED)})[0-9]+-(.+)")
    # What cannot be read is said by the search that follows.
    for folder, folders, files in walk(outdir, []):
        left = [match for name in [*folders, *files] if (match := pattern.fullmatch(name))]
        # The links first: what was to take their place is told by them.
        for match in sorted(left, key=lambda match: match[1] == PARTIAL):
            path, proper = folder / match[0], folder / match[2]
            if match[1] == REPLACED and path.is_symlink():
                if proper.exists():
                    path.unlink()
                else:
                    path.rename(proper)
            elif match[1] == PARTIAL and proper.is_symlink() and match[0] in folders:
                folders.remove(match[0])
                shutil.rmtree(path)
            elif match[1] == PARTIAL and proper.is_symlink():
                path.unlink()


def _found(outdir: Path) -> _Found:
    """The links below a folder."""
    links: list[_Link] = []
    dangling: list[Path] = []
    others: list[Path] = []
    closed: set[Path] = set()
    unread: list[OSError] = []
    for folder, folders, files in walk(outdir, unread):
        if folder != outdir and folder.is_symlink():
            real = folder.resolve()
            logger.info("%s leads to %s: what lies there is looked at as well", folder, real)
        for name in sorted([*folders, *files]):
            path = folder / name
            if not path.is_symlink():
                continue
            if task_folder(path) is None:
                others.append(path)
            elif not path.exists():
                dangling.append(path)
            elif not os.access(folder, os.W_OK | os.X_OK):
                closed.add(folder)
            else:
                target = path.resolve()
                links.append(_Link(path, target, tuple(_parts(target, "", (target,)))))
    undone = [_dangling(dangling)] if dangling else []
    undone += [
        f"{folder} cannot be written, and holds links into a work directory; check your rights, or "
        "have its owner call this command."
        for folder in sorted(closed)
    ]
    return _Found(links, others, [*undone, *(str(unreadable(error)) for error in unread)])


def _tell(others: list[Path]) -> None:
    """Say what becomes of links that lead elsewhere than into a work directory."""
    if others:
        logger.info("%d links lead elsewhere than into a work directory: let be", len(others))
    for link in others:
        if not link.exists():
            logger.warning("%s", nowhere(link))


def _parts(path: Path, place: str, above: tuple[Path, ...]) -> Iterator[_Part]:
    """The files at or below a path, links in it followed."""
    if not path.is_dir():
        if not path.exists():
            raise OctaneError(f"{path} is a link that leads nowhere; {restore(path)}")
        yield _Part(path, place, path.stat().st_size)
        return
    for inner in sorted(path.iterdir()):
        real = inner.resolve() if inner.is_symlink() else above[-1] / inner.name
        if inner.is_symlink() and real in above:
            raise OctaneError(f"{inner} is a link to a folder that it lies in; remove it.")
        yield from _parts(inner, f"{place}/{inner.name}" if place else inner.name, (*above, real))


def _dangling(links: list[Path]) -> str:
    shown = ", ".join(map(str, links[:SHOWN]))
    more = f" and {len(links) - SHOWN} more" if len(links) > SHOWN else ""
    return (
        f"{shown}{more} led to files in a work directory that are gone; run the workflow with "
        "the same parameters, which makes them anew, and then this command."
    )


def _require_space(links: list[_Link]) -> None:
    """See that there is room on each disk that links lie on."""
    disks: dict[int, list[_Link]] = {}
    for link in links:
        disks.setdefault(link.path.parent.stat().st_dev, []).append(link)
    for disk in disks.values():
        if all(_shares(link) for link in disk):
            continue
        folder = disk[0].path.parent
        total = sum(part.size for link in disk for part in link.parts)
        free = shutil.disk_usage(folder).free
        if total > free:
            raise NoSpaceError(
                f"{folder}: the results there take {total / 1e9:.3f} GB and {free / 1e9:.3f} GB "
                "are free; free some, or copy them elsewhere with cp -rL. Nothing was changed."
            )


def _shares(link: _Link) -> bool:
    """Whether the link's files can be reflinked to where it is."""
    part = next((part for part in link.parts if part.size), None)
    if part is None:
        return True
    with (
        tempfile.TemporaryFile(dir=link.path.parent) as target,
        part.source.open("rb") as source,
    ):
        return _cloned(source.fileno(), target.fileno())


def _cloned(source: int, target: int) -> bool:
    """Let a file share the blocks of another; gives whether the file system can."""
    try:
        fcntl.ioctl(target, FICLONE, source)
    except OSError as error:
        if error.errno in NO_SPACE:
            raise
        # Other systems and file systems have many numbers for "no".
        return False
    return True


def _make(link: _Link, advance: Advance) -> int:
    """Put files in the place of a link; gives the bytes that are shared."""
    expected = _expected(link)
    with writing(link.path, overwrite=True) as partial:

        def copy(part: _Part) -> int:
            target = partial / part.place if part.place else partial
            shared = _copy(part.source, target, expected.get(part.place))
            advance(part.size)
            return part.size if shared else 0

        if link.target.is_dir():
            partial.mkdir()
        for folder in sorted({(partial / part.place).parent for part in link.parts if part.place}):
            folder.mkdir(parents=True, exist_ok=True)
        return sum(run_tiles(link.parts, copy, workers=READERS, describe=lambda p: str(p.source)))


def _expected(link: _Link) -> Manifest:
    """The stamps of what is in stores, by its place below the link."""
    found: dict[str, Stamp] = {}
    if (link.target / "zarr.json").is_file() and not (link.target / PLACE).is_file():
        require_noted(link.target, noted(link.target))
    for part in link.parts:
        if part.place == PLACE or part.place.endswith(f"/{PLACE}"):
            prefix = part.place.removesuffix(PLACE)
            manifest = check(link.target / prefix)
            found.update({prefix + key: stamp for key, stamp in (manifest or {}).items()})
    return found


def _copy(source: Path, target: Path, expected: Stamp | None) -> bool:
    """Reflink a file, or copy it and read the copy back; gives whether it was reflinked."""
    size = checksum = 0
    with source.open("rb", buffering=0) as reading, target.open("xb", buffering=0) as copy:
        shared = _cloned(reading.fileno(), copy.fileno())
        while not shared and (piece := reading.read(READ_BYTES)):
            size += len(piece)
            checksum = google_crc32c.extend(checksum, piece)
            left = memoryview(piece)
            while left:
                left = left[copy.write(left) :]
        if not shared:
            os.fsync(copy.fileno())
            if hasattr(os, "posix_fadvise"):
                # So that what is read back is the disk's, and not what memory still holds of it.
                os.posix_fadvise(copy.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    shutil.copystat(source, target)
    if shared:
        return True
    taken = Stamp(size, checksum)
    if expected is not None and taken != expected:
        raise OctaneError(
            f"{source} is not what was written (its checksum is another); {restore(source)}"
        )
    if measured(target) != taken:
        raise OSError(errno.EIO, "the copy differs from what was written", str(target))
    return False
