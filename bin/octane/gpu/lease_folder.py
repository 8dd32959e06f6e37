"""The lease folder: slots and places in the queue as locked files, shared by all users of a node.

A slot is an ``flock`` on an open file: the kernel drops it with the last descriptor of that
opening, whatever ends the process. No number of a process decides anything. What a file says (who,
since when, how much memory) is for people and for the memory account, and counts only while the
file is locked and only in the boot that wrote it, so a folder of an earlier boot is harmless.

All looking and taking is done under one lock, the mutex, for a millisecond or so: a probe of a slot
is never mistaken for its holder, and what one taker decides on cannot change before it is recorded.
Releasing needs no mutex.

**Forks.** The lock belongs to the opening of the file, which a forked child shares. A child that
outlives a killed parent keeps the slot, because nobody can tell whether it still uses the GPU:
rather a slot that comes back late than one that is given twice. A parent that ends its lease
itself unlocks for its children too. A program that the holder starts does not inherit the slot, as
every descriptor is close-on-exec, unless it is handed on purpose (:attr:`Locked.fd`).

**Other users.** The folder is world-writable with the sticky bit, so nobody removes another's
files. They are opened without following links, must be regular files with one name, and never
block; what they say is checked before it is believed. A user can hold slots for nothing, as on any
shared machine, but not write through a link into another's files.
"""

from __future__ import annotations

import errno
import fcntl
import os
import random
import stat
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from octane.core.errors import OctaneError
from octane.gpu.lease_records import RECORD_SIZE, Record

__all__ = ["LeaseFolder", "LeaseFolderBusyError", "Locked"]

MUTEX = "mutex"
OPEN = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
SHARED_FILE = 0o666
SHARED_FOLDER = 0o1777
MUTEX_PATIENCE = 10.0
"""Seconds, where milliseconds are usual, after which a mutex that is held is an error."""


class LeaseFolderBusyError(OctaneError):
    """Another process keeps the mutex."""


@dataclass
class Locked:
    """A file that is locked by this process.

    Attributes
    ----------
    name : str
        In the lease folder.
    fd : int
        The descriptor that carries the lock.
    owner : int
        Number of the process that locked it. A forked child that runs into the same release closes
        its descriptor and leaves the lock to its parent.
    """

    name: str
    fd: int
    owner: int

    def write(self, record: Record) -> None:
        """Say who holds it; to be called under the mutex."""
        os.pwrite(self.fd, record.packed(), 0)

    def release(self) -> None:
        """Unlock and close; a second call does nothing."""
        fd, self.fd = self.fd, -1
        if fd < 0:
            return
        if self.owner == os.getpid():
            fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


class LeaseFolder:
    """The folder of slots and of the queue, opened.

    Parameters
    ----------
    path : Path
        Node-local folder; made for all users where it is not there.

    Raises
    ------
    OctaneError
        When it cannot be made or used, or is not safe to share.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = self._open()

    def close(self) -> None:
        """Close the folder; what is locked stays locked."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> LeaseFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def mutex(self) -> Generator[None]:
        """Keep all others from looking and taking.

        Raises
        ------
        LeaseFolderBusyError
            When another process holds it for longer than it takes to look and decide.
        """
        fd = self._opened(MUTEX)
        try:
            started = time.monotonic()
            while not _lock(fd):
                if time.monotonic() - started > MUTEX_PATIENCE:
                    raise LeaseFolderBusyError(
                        f"{self.path}/{MUTEX} has been locked for {MUTEX_PATIENCE:g} s by a "
                        f"process that is stopped or hangs; find it (fuser {self.path}/{MUTEX}) "
                        "and end it."
                    )
                time.sleep(random.uniform(0.0005, 0.003))
            try:
                yield
            finally:
                fcntl.flock(fd, fcntl.LOCK_UN)
        finally:
            os.close(fd)

    def held(self, kind: str) -> list[tuple[str, Record | None]]:
        """Locked files of a kind and what they say; to be called under the mutex.

        Parameters
        ----------
        kind : str
            What their names begin with, up to a dot and a number.

        Returns
        -------
        list of (str, Record or None)
            In the order of their numbers; None where the content is unreadable or of another boot.
        """
        found: list[tuple[str, Record | None]] = []
        for name in self._names(kind):
            fd = self._opened(name)
            try:
                if _lock(fd):
                    fcntl.flock(fd, fcntl.LOCK_UN)
                else:
                    found.append((name, Record.unpacked(os.pread(fd, RECORD_SIZE, 0))))
            finally:
                os.close(fd)
        return found

    def take(self, kind: str, record: Record) -> Locked:
        """Lock the first file of a kind that is free, or a new one; to be called under the mutex.

        Raises
        ------
        OctaneError
            When the folder has no space or cannot be written.
        """
        names = self._names(kind)
        new = f"{kind}.{len(names)}"
        for name in [*names, new]:
            fd = self._opened(name)
            if _lock(fd):
                locked = Locked(name, fd, os.getpid())
                try:
                    locked.write(record)
                except OSError as error:
                    locked.release()
                    raise self._refused(error) from error
                return locked
            os.close(fd)
        raise OctaneError(f"{self.path}/{new} was locked without the mutex; end what holds it.")

    def _names(self, kind: str) -> list[str]:
        """Files of a kind; their numbers have no gap but where somebody removed one."""
        with os.scandir(self._fd) as entries:
            names = {entry.name for entry in entries if entry.name.startswith(f"{kind}.")}
        names = {name for name in names if name[len(kind) + 1 :].isdigit()}
        names |= {f"{kind}.{number}" for number in range(len(names))}
        return sorted(names, key=lambda name: int(name.rpartition(".")[2]))

    def _opened(self, name: str) -> int:
        """Open a file of the folder, made where it is not there."""
        for _ in range(100):
            try:
                fd = os.open(name, OPEN, dir_fd=self._fd)
            except FileNotFoundError:
                self._create(name)
                continue
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
                    raise self._not_a_file(name) from error
                raise self._refused(error, name) from error
            status = os.fstat(fd)
            # A second name would let what is written here appear in somebody's own file. The mutex
            # has one for a moment while it is made, and is never written; others keep the name that
            # they are made under where their maker is killed just then.
            if stat.S_ISREG(status.st_mode) and (
                name == MUTEX
                or status.st_nlink == 1
                or status.st_nlink == 1 + self._swept(name, status.st_ino)
            ):
                return fd
            os.close(fd)
            if stat.S_ISREG(status.st_mode) and status.st_nlink == 0:
                continue  # removed between the two calls
            raise self._not_a_file(name)
        raise OctaneError(
            f"{self.path}/{name} disappears as soon as it is made; find out what removes it, or "
            "give another --gpu-lock-dir."
        )

    def _swept(self, name: str, inode: int | None = None) -> int:
        """Remove what makers of a file left that were killed; to be called under the mutex.

        Parameters
        ----------
        name
            Of the file.
        inode
            Of the file, for its own other names alone; None for all that was made to become it.

        Returns
        -------
        int
            How many there were. In a sticky folder those of other users stay, and do no harm.
        """
        with os.scandir(self._fd) as entries:
            left = [
                entry.name
                for entry in entries
                if entry.name.startswith(f".{name}-") and inode in (None, entry.inode())
            ]
        for partial in left:
            with suppress(OSError):
                os.unlink(partial, dir_fd=self._fd)
        return len(left)

    def _create(self, name: str) -> None:
        # Under another name first: with its own, it would for a moment have the rights that the
        # umask left, which lock out other users. Never O_CREAT on what may exist: the kernel
        # refuses that for other users' files in such a folder (fs.protected_regular).
        partial = f".{name}-{os.getpid()}-{random.getrandbits(48):x}"
        try:
            if name != MUTEX:
                self._swept(name)
            fd = os.open(partial, OPEN | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=self._fd)
            try:
                os.fchmod(fd, SHARED_FILE)
                if name != MUTEX:
                    # Full length now, so that a disk that fills up does not matter later.
                    os.pwrite(fd, b" " * RECORD_SIZE, 0)
                os.link(partial, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)
            except FileExistsError:
                pass  # made by another meanwhile
            finally:
                os.close(fd)
                os.unlink(partial, dir_fd=self._fd)
        except OSError as error:
            raise self._refused(error) from error

    def _open(self) -> int:
        try:
            return self._checked(os.open(self.path, _FOLDER))
        except FileNotFoundError:
            self._make()
        except OSError as error:
            raise self._refused(error) from error
        try:
            return self._checked(os.open(self.path, _FOLDER))
        except OSError as error:
            raise self._refused(error) from error

    def _make(self) -> None:
        """Make the folder with its mutex under another name first, so that it is whole at once."""
        partial = None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            partial = Path(tempfile.mkdtemp(prefix=f".{self.path.name}-", dir=self.path.parent))
            (partial / MUTEX).touch()
            (partial / MUTEX).chmod(SHARED_FILE)
            partial.chmod(SHARED_FOLDER)
            partial.rename(self.path)
        except OSError as error:
            if partial is not None:
                (partial / MUTEX).unlink(missing_ok=True)
                partial.rmdir()
            # A folder that is not empty cannot be renamed over: another process was first.
            if not self.path.is_dir():
                raise self._refused(error) from error

    def _checked(self, fd: int) -> int:
        """Refuse a folder in which others could replace files under our hands."""
        status = os.fstat(fd)
        others_write = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if others_write and not status.st_mode & stat.S_ISVTX:
            os.close(fd)
            raise OctaneError(
                f"{self.path} can be written by others and has no sticky bit, so that they could "
                f"remove locks; its owner must run: chmod 1777 {self.path}"
            )
        return fd

    def _refused(self, error: OSError, name: str = "") -> OctaneError:
        where = self.path / name
        remedies = {
            errno.ENOSPC: "free some",
            errno.EDQUOT: "free some",
            errno.EROFS: "it is read-only",
            errno.ELOOP: "it must be a folder, not a link",
            errno.ENOTDIR: "it must be a folder",
        }
        remedy = remedies.get(error.errno or 0, f"it must be writable for all: chmod 1777 {where}")
        if name:
            remedy = f"its owner must run: chmod 666 {where}"
        return OctaneError(
            f"GPU leases cannot be kept in {where} ({error.strerror}): {remedy}; or give another "
            "--gpu-lock-dir, the same for all who share the GPUs."
        )

    def _not_a_file(self, name: str) -> OctaneError:
        return OctaneError(
            f"{self.path}/{name} is not a plain file with one name, as somebody put it there on "
            "purpose; remove it, or have its owner do so."
        )


_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
