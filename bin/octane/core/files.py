"""Atomic outputs, which get their name only when complete, and durable ones."""

import errno
import json
import logging
import os
import re
import shutil
import stat
import threading
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from ctypes import CDLL, c_int64
from pathlib import Path
from platform import node
from typing import NamedTuple

from octane.core.errors import NO_SPACE, NoSpaceError, OctaneError, unreadable

logger = logging.getLogger(__name__)

PARTIAL = ".partial-"
"""Prefix of the temporary name of an unfinished output."""
OLD = ".old"
"""Prefix of the temporary name of an output that is being replaced."""
STORE = r"zarr\.json|\.zgroup|\.zattrs|\d+/((zarr|emptied)\.json|\.zarray|(c/)?(\d+/)*\d*)"
"""Paths of the files and folders of a store that octane writes."""
PHANTOM = (
    r"positions\.csv|truth/(truth\.json|\w+\.csv|flat_field\.npy)?|mosaics/"
    rf"|(truth|mosaics)/\w+\.ome\.zarr/({STORE})?"
)
"""Paths of the files and folders of a phantom."""
PICTURE = r"[^/]+\.(png|svg)"
"""Paths of the pictures of a report."""
MARK = b"octane"
"""What each of its pictures contains."""
MARKED = 256
"""Bytes in which the mark is: the first fields of a PNG, or the tag of an SVG."""
ATTEMPT = "OCTANE_ATTEMPT"
"""Environment variable of every Nextflow task: the number of its attempt, from 1."""
VISITS = 16
"""Most paths by which links lead to one folder: some levels of a store may share their files, while
links to the folder that holds them, or to each other, would lead on without end."""


class IrregularFileError(OSError):
    """A folder, FIFO or device in place of a regular file."""


def require_regular(path: Path, state: os.stat_result) -> None:
    """Raise an IrregularFileError unless a path, links followed, is a regular file."""
    if not stat.S_ISREG(state.st_mode):
        what = "a folder" if stat.S_ISDIR(state.st_mode) else "a FIFO or device"
        raise IrregularFileError(errno.EINVAL, f"{what} is in its place", str(path))


def open_regular(path: Path) -> int:
    """Open a regular file for reading; anything else is an OSError, and a FIFO does not block."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        require_regular(path, os.fstat(descriptor))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def read_regular(path: Path, most: int = -1) -> bytes:
    """Read a regular file, or its first ``most`` bytes; errors as in :func:`open_regular`."""
    with os.fdopen(open_regular(path), "rb") as stream:
        return stream.read(most)


def files_within(folder: Path, what: str) -> tuple[dict[str, int], list[str]]:
    """Bytes of all files of a folder by their paths in it, and what else lies in it.

    Links are followed within the folder. Of links out of it or round in it, and of what is not a
    regular file, the second result says why, in a sentence to end with a remedy, in which ``what``
    stands for the folder. A folder that cannot be read raises an InputError.
    """

    def refuse(error: OSError) -> None:
        raise unreadable(error) from error

    sizes: dict[str, int] = {}
    problems: list[str] = []
    visits: Counter[str] = Counter()
    # Not Path.resolve, which fails on a link to itself.
    root = Path(os.path.realpath(folder))
    for name, folders, files in os.walk(folder, followlinks=True, onerror=refuse):
        for inner in (Path(name, other) for other in sorted([*folders, *files])):
            target = Path(os.path.realpath(inner)) if inner.is_symlink() else root
            problem = ""
            if not target.is_relative_to(root):
                problem = f"leads out of its {what}, to {target}"
            elif inner.is_file():
                sizes[str(inner.relative_to(folder))] = inner.stat().st_size
            elif not inner.is_dir():
                problem = f"is not a regular file of its {what}"
            else:
                real = os.path.realpath(inner)
                visits[real] += 1
                if visits[real] > VISITS:
                    problem = f"leads to {real} once more, where {VISITS} other paths lead"
            if problem:
                folders[:] = [other for other in folders if other != inner.name]
                problems.append(f"{inner} {problem}")
    return sizes, problems


def task_folder(path: Path) -> Path | None:
    """Folder of the Nextflow task that contains a path, links followed; None outside of tasks."""
    # Path.resolve would raise for a link to itself.
    real = Path(os.path.realpath(path))
    return next((folder for folder in (real, *real.parents) if is_task_folder(folder)), None)


def is_task_folder(folder: Path) -> bool:
    """Tell whether a folder is named like Nextflow's task folders."""
    name = re.fullmatch("[0-9a-f]{30}", folder.name)
    return name is not None and re.fullmatch("[0-9a-f]{2}", folder.parent.name) is not None


def lost_target(link: Path) -> str:
    """Error message for a published link to a result that no longer exists."""
    return (
        f"{link} leads to {link.readlink()}, which does not exist; run the workflow again with the "
        "same parameters to make it again."
    )


def remove(path: Path) -> None:
    """Remove a file, a link, or a folder with its contents."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _is_taken(path: Path) -> bool:
    """Tell whether a name is taken, even by a dangling link."""
    return path.exists() or path.is_symlink()


def _foreign(folder: Path) -> Path | None:
    """What octane did not write in a folder that is to be replaced; None if it wrote all.

    It writes stores, phantoms and the pictures of a report.
    """
    if not any(folder.iterdir()):
        return None
    stores, pattern = [folder], STORE
    if (folder / "truth" / "truth.json").exists():
        stores, pattern = [*folder.glob("mosaics/*"), *folder.glob("truth/*.zarr")], PHANTOM
    elif not any((folder / name).exists() for name in ("zarr.json", ".zgroup")):
        stores, pattern = [], PICTURE
    for name in _names(folder):
        path = folder / name.removesuffix("?")
        if not re.fullmatch(pattern, name) or (pattern == PICTURE and not _is_marked(path)):
            return path
    return next((store for store in stores if not _is_own(store)), None)


def _names(folder: Path, above: str = "") -> Iterator[str]:
    """Paths of all files and folders below a folder, those of folders with a slash at the end.

    One that is not followed or not regular, such as a link, ends in a question mark.
    """
    with os.scandir(folder) as entries:
        for entry in entries:
            name = f"{above}{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                yield f"{name}/"
                yield from _names(Path(entry), f"{name}/")
            else:
                yield name if entry.is_file(follow_symlinks=False) else f"{name}?"


def _is_own(store: Path) -> bool:
    """Tell whether a store has octane's own attributes."""
    for name in ("zarr.json", ".zattrs"):
        with suppress(OSError, ValueError, AttributeError):
            content = json.loads(read_regular(store / name))
            return "octane" in content.get("attributes", content)
    return False


def _is_marked(picture: Path) -> bool:
    """Tell whether a picture has octane's mark near its beginning; an empty file need not."""
    with os.fdopen(open_regular(picture), "rb") as stream:
        beginning = stream.read(MARKED)
    return not beginning or MARK in beginning


def require_free(destination: Path, *, overwrite: bool) -> None:
    """Raise an OctaneError if an output exists; with ``overwrite``, if octane did not make it."""
    if not _is_taken(destination):
        return
    if not overwrite:
        raise OctaneError(f"Output {destination} exists already; give --overwrite to replace it.")
    if not (destination.is_symlink() or destination.is_dir() or destination.is_file()):
        raise OctaneError(f"{destination} is not a regular file; choose another name.")
    if not destination.is_dir() or destination.is_symlink():
        return
    if foreign := _foreign(destination):
        raise OctaneError(
            f"{destination} is not replaced, because octane did not make {foreign}; remove it, or "
            "choose another name."
        )


class Leftover(NamedTuple):
    """Temporary file that a process of this machine left, or the old output it moved ``aside``."""

    destination: Path
    process: int
    aside: bool


def left_by(path: Path) -> Leftover | None:
    """Parse a temporary name of :func:`writing`; None for any other name."""
    name = rf"({re.escape(OLD)})?{re.escape(PARTIAL + node())}-(\d{{1,9}})-(.+)"
    found = re.fullmatch(name, path.name, re.DOTALL)
    return found and Leftover(path.with_name(found[3]), int(found[2]), bool(found[1]))


def _clean(destination: Path) -> None:
    """Remove the temporary files that killed processes left of an output.

    An output that was moved aside is restored if its successor never got the name.
    """
    # Another process may clean the same paths at the same time.
    with suppress(OSError):
        for path in list(destination.parent.iterdir()):
            found = left_by(path)
            if found is None or found.destination != destination or _is_running(found.process):
                continue
            if found.aside and not _is_taken(destination):
                path.rename(destination)
            else:
                remove(path)


def _is_running(process: int) -> bool:
    """Tell whether another process has this PID."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        # Another user's.
        return True
    return process != os.getpid()


def _exchange(partial: Path, destination: Path) -> bool:
    """Swap two names atomically; False if the operating or file system cannot."""
    swap = getattr(CDLL(None), "renameat2", None)
    here, exchange = -100, 2
    names = os.fsencode(partial), os.fsencode(destination)
    return swap is not None and swap(here, names[0], here, names[1], exchange) == 0


def put(partial: Path, destination: Path) -> None:
    """Rename an output to its final name, and remove its predecessor."""
    if not _is_taken(destination):
        partial.rename(destination)
    elif _exchange(partial, destination):
        remove(partial)
    else:
        # A rename cannot replace a folder that is not empty: move the old one aside first.
        old = partial.with_name(f"{OLD}{partial.name}")
        destination.rename(old)
        partial.rename(destination)
        remove(old)


@contextmanager
def writing(
    destination: Path,
    *,
    overwrite: bool = False,
    remedy: str = "choose another place for the output",
) -> Generator[Path]:
    """Yield a temporary path next to ``destination``, and rename it if the block succeeds.

    The temporary name keeps the suffix, by which file writers choose their format. If the block
    raises, the temporary path is removed and ``destination`` is left unchanged. Missing folders are
    created.

    Raises
    ------
    OctaneError
        From :func:`require_free`, or if the folder cannot be written; ``remedy`` ends that message.
    NoSpaceError
        If the disk or the quota is full.
    OSError
        If a write failed; it names ``destination``.
    """
    partial = destination.with_name(f"{PARTIAL}{node()}-{os.getpid()}-{destination.name}")
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        _clean(destination)
        require_free(destination, overwrite=overwrite)
        partial.touch()
        partial.unlink()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise OctaneError(
                f"{destination} has a name too long for this file system, which allows some 200 "
                "characters beside octane's own; give a shorter one."
            ) from error
        raise (NoSpaceError if error.errno in NO_SPACE else OctaneError)(
            f"{destination.parent} cannot be written ({error.strerror}); {remedy}."
        ) from error
    try:
        yield partial
        if _is_taken(destination) and not overwrite:
            raise OctaneError(
                f"{destination} was created by another process in the meantime; choose another "
                "name."
            )
        put(partial, destination)
    except BaseException as error:
        remove(partial)
        if isinstance(error, OSError) and error.errno in NO_SPACE:
            raise NoSpaceError(
                f"{destination}: {error.strerror}; free some space, or choose another place for "
                "the output. Nothing was left half-written."
            ) from error
        # The error of a failed write does not name the file.
        if isinstance(error, OSError) and error.errno is not None and error.filename is None:
            error.filename = str(destination)
        raise


def link_or_copy(file: Path, link: Path) -> bool:
    """Hard-link a file, or copy it where it cannot be linked; True if it is a link."""
    try:
        os.link(file, link)
    except OSError as error:
        # Another file system, or one that lacks hard links or forbids them to this user.
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP):
            raise
        shutil.copyfile(file, link)
        return False
    return True


def write_object(
    path: Path, pieces: Sequence[bytes | memoryview], *, to_disk: bool = False
) -> None:
    """Write a file of a store under a temporary name next to it, and rename it when complete.

    So a killed process never leaves a partial file under the final name. Missing folders are
    created. An OSError, such as of a full disk, is passed on. With ``to_disk`` the system starts
    to flush the file at once, so that :func:`bring_to_disk` waits less at the end.
    """
    partial = path.with_name(f"{PARTIAL}{os.getpid()}-{threading.get_ident()}-{path.name}")
    try:
        try:
            stream = partial.open("wb", buffering=0)
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
            stream = partial.open("wb", buffering=0)
        with stream:
            for piece in pieces:
                left = memoryview(piece)
                # One write accepts at most 2 GB, and less if the disk fills up.
                while left:
                    left = left[stream.write(left) :]
            if to_disk and (begin := getattr(CDLL(None), "sync_file_range", None)):
                # SYNC_FILE_RANGE_WRITE. If it fails, bring_to_disk flushes everything.
                begin(stream.fileno(), c_int64(0), c_int64(0), 2)
        partial.rename(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


UNKNOWN_HERE = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)
"""Error numbers of fsync on file systems that do not support it."""


def bring_to_disk(*results: Path | None) -> None:
    """Flush files, or folders with their contents, to the disk (fsync); None is skipped.

    A power failure can destroy data of the last half minute; unlike intermediates, results are not
    made again. Network file systems report deferred errors, such as a full quota, only now.

    Raises
    ------
    OctaneError
        If the disk could not store it.
    """
    for result in results:
        if result is not None:
            _flush(result)


def _flush(result: Path) -> None:
    inside = [Path(p) / name for p, _, names in os.walk(result) for name in ("", *names)]
    for path in (*inside, result, result.parent):
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        except OSError as error:
            if error.errno not in UNKNOWN_HERE:
                raise OctaneError(
                    f"{path} could not be flushed to the disk ({error.strerror}); remove "
                    f"{result}, check the disk and its free space, and run again."
                ) from error
        finally:
            os.close(fd)
