"""Outputs that are whole once they have their name, and results on the disk."""

import errno
import logging
import os
import re
import shutil
import stat
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from ctypes import CDLL, c_int64
from pathlib import Path
from platform import node
from typing import NamedTuple

from octane.core.errors import NO_SPACE, NoSpaceError, OctaneError

logger = logging.getLogger(__name__)

PARTIAL, OLD = ".partial-", ".old"
"""Prefixes of the names of what is unfinished, and of what steps aside for it."""


class IrregularFileError(OSError):
    """A folder, FIFO or device where a regular file belongs."""


def require_regular(path: Path, state: os.stat_result) -> None:
    """Raise an IrregularFileError unless a path, links followed, is a regular file."""
    if not stat.S_ISREG(state.st_mode):
        what = "a folder" if stat.S_ISDIR(state.st_mode) else "a FIFO or device"
        raise IrregularFileError(errno.EINVAL, f"{what} is in its place", str(path))


def open_regular(path: Path) -> int:
    """Open a regular file to be read; an OSError for all else, without waiting for a FIFO."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        require_regular(path, os.fstat(descriptor))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def read_regular(path: Path) -> bytes:
    """Bytes of a regular file; errors as in :func:`open_regular`."""
    with os.fdopen(open_regular(path), "rb") as stream:
        return stream.read()


def task_folder(path: Path) -> Path | None:
    """The folder of the Nextflow task that a path lies in, links followed; None outside of any."""
    # Not Path.resolve, which a link to itself is an error for.
    real = Path(os.path.realpath(path))
    return next((folder for folder in (real, *real.parents) if is_task_folder(folder)), None)


def is_task_folder(folder: Path) -> bool:
    """Tell whether a folder's name is one that Nextflow gives to tasks' folders."""
    name = re.fullmatch("[0-9a-f]{30}", folder.name)
    return name is not None and re.fullmatch("[0-9a-f]{2}", folder.parent.name) is not None


def remove(path: Path) -> None:
    """Remove a file, a link, or a folder with all that is in it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _is_there(path: Path) -> bool:
    """Tell whether the name is taken, even by a link to nothing."""
    return path.exists() or path.is_symlink()


def _is_own(folder: Path) -> bool:
    """Tell whether octane wrote a folder: a zarr store, a phantom, or a report's pictures."""
    if any((folder / name).exists() for name in ("zarr.json", ".zgroup", "truth/truth.json")):
        return True
    return all(path.suffix in (".png", ".svg") for path in folder.iterdir())


def require_free(destination: Path, *, overwrite: bool) -> None:
    """Raise an OctaneError where an output exists, with ``overwrite`` if it is of others."""
    if not _is_there(destination):
        return
    if not overwrite:
        raise OctaneError(f"Output {destination} exists already; give --overwrite to replace it.")
    if not (destination.is_symlink() or destination.is_dir() or destination.is_file()):
        raise OctaneError(f"{destination} is not a regular file; choose another name.")
    if destination.is_dir() and not destination.is_symlink() and not _is_own(destination):
        raise OctaneError(
            f"{destination} is a folder that octane did not make and does not replace; "
            "choose another name."
        )


class Left(NamedTuple):
    """A leftover temporary file of a process of this machine, or the old output moved ``aside``."""

    destination: Path
    process: int
    aside: bool


def left_by(path: Path) -> Left | None:
    """Read a name that :func:`writing` gives; None for any other."""
    name = rf"({re.escape(OLD)})?{re.escape(PARTIAL + node())}-(\d{{1,9}})-(.+)"
    found = re.fullmatch(name, path.name, re.DOTALL)
    return found and Left(path.with_name(found[3]), int(found[2]), bool(found[1]))


def _clean(destination: Path) -> None:
    """Remove what killed processes left of an output.

    An output that stepped aside gets its name again where its successor did not get it.
    """
    # Two that clean at once may take a path from each other.
    with suppress(OSError):
        for path in list(destination.parent.iterdir()):
            found = left_by(path)
            if found is None or found.destination != destination or _is_running(found.process):
                continue
            if found.aside and not _is_there(destination):
                path.rename(destination)
            else:
                remove(path)


def _is_running(process: int) -> bool:
    """Tell whether another process has this number."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        # Another user's.
        return True
    return process != os.getpid()


def _exchange(partial: Path, destination: Path) -> bool:
    """Swap two names at once; False where the file system or the system cannot."""
    swap = getattr(CDLL(None), "renameat2", None)
    here, exchange = -100, 2
    names = os.fsencode(partial), os.fsencode(destination)
    return swap is not None and swap(here, names[0], here, names[1], exchange) == 0


def put(partial: Path, destination: Path) -> None:
    """Give a path its name, and remove what had it."""
    if not _is_there(destination):
        partial.rename(destination)
    elif _exchange(partial, destination):
        remove(partial)
    else:
        # A rename cannot replace a folder that is not empty: the old one steps aside first.
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
    """Give a temporary path next to ``destination`` and rename it when the block ends well.

    The temporary name keeps the suffix, by which file writers choose their format. When the block
    raises, the temporary path is removed and ``destination`` stays as it was. Missing folders are
    made; ``remedy`` ends the sentence where a folder cannot be written. Errors are those of
    :func:`require_free`, an OctaneError for such a folder, a NoSpaceError, and an OSError with the
    name of ``destination`` where a write failed.
    """
    partial = destination.with_name(f"{PARTIAL}{node()}-{os.getpid()}-{destination.name}")
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        _clean(destination)
        require_free(destination, overwrite=overwrite)
        partial.touch()
        partial.unlink()
    except OSError as error:
        raise (NoSpaceError if error.errno in NO_SPACE else OctaneError)(
            f"{destination.parent} cannot be written ({error.strerror}); {remedy}."
        ) from error
    try:
        yield partial
        if _is_there(destination) and not overwrite:
            raise OctaneError(
                f"{destination} was created by another process in the meantime; choose another "
                "name."
            )
        put(partial, destination)
    except BaseException as error:
        remove(partial)
        if isinstance(error, OSError) and error.errno in NO_SPACE:
            raise NoSpaceError(
                f"{destination}: {error.strerror}; free some, or choose another place for the "
                "output. Nothing was left half-written."
            ) from error
        # A write that fails does not know the name of its file.
        if isinstance(error, OSError) and error.errno is not None and error.filename is None:
            error.filename = str(destination)
        raise


def write_object(path: Path, pieces: Sequence[bytes], *, to_disk: bool = False) -> None:
    """Write a file of a store under a temporary name next to it, and rename it when it is whole.

    A process that is killed leaves no half of it under its name. Missing folders are made. An
    OSError, of a full disk for one, passes. With ``to_disk`` the system begins at once to write it
    to the disk, which :func:`bring_to_disk` then waits for.
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
                # One write takes 2 GB at most, and less where a disk fills up.
                while left:
                    left = left[stream.write(left) :]
            if to_disk and (begin := getattr(CDLL(None), "sync_file_range", None)):
                # SYNC_FILE_RANGE_WRITE. Where it fails, bring_to_disk does all of it.
                begin(stream.fileno(), c_int64(0), c_int64(0), 2)
        partial.rename(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


UNKNOWN_HERE = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)
"""Answers of file systems that cannot bring anything to a disk."""


def bring_to_disk(result: Path) -> None:
    """Wait until a file, or a folder with all that is in it, is on the disk under its name.

    A loss of power can take what was written in the last half minute: intermediates are then made
    again, results by nobody. Network file systems report earlier errors, such as a full quota, now.

    An OctaneError says that the disk could not take it.
    """
    inside = [Path(p) / name for p, _, names in os.walk(result) for name in ("", *names)]
    for path in (*inside, result, result.parent):
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        except OSError as error:
            if error.errno not in UNKNOWN_HERE:
                raise OctaneError(
                    f"{path} could not be brought to the disk ({error.strerror}); remove "
                    f"{result}, see that the disk has space and is sound, and run again."
                ) from error
        finally:
            os.close(fd)
