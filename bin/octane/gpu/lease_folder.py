"""Lease folder: leases and places in the queue as locked files, shared by all users of a node.

A lease, or a place in the queue, is a file of its holder with an ``flock`` on it. The kernel drops
the lock when no process has the file open any more, whatever ends them: the holder, and children
that it forked, as nobody can know whether they still use the GPU. A program that the holder starts
does not inherit the file, as every descriptor is close-on-exec, unless it is handed over on purpose
(:attr:`Locked.fd`). A file's content is for people and for the memory account, and counts only
while the file is locked. Files stay, and serve their user again.

A process looks and takes under one lock, the mutex: that of the folder itself, held for some
milliseconds. So what it decides on cannot change before it is recorded. Releasing needs no mutex.

The folder is world-writable with the sticky bit, and each file is written by its user alone: nobody
else removes or changes it, except the owner of the folder and root. What is not a regular file is
passed over.
"""

from __future__ import annotations

import fcntl
import os
import random
import stat
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, Field, FiniteFloat, ValidationError

from octane.core.errors import OctaneError

SAFELY = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
OWN_FILE = 0o644
SHARED_FOLDER = 0o1777
PATIENCE = 10.0
"""Seconds after which a folder that another process keeps locked is an error."""

REQUIRED_LIMIT = 2**63
"""Bytes that a request stays below; larger numbers may not fit into a float."""

RECORD_LIMIT = 65536
"""Bytes of a file that are read; 56 MIG instances are 2.5 kB of UUIDs."""


class LeaseFolderError(OctaneError):
    """The lease folder cannot be used."""


class LeaseFolderBusyError(LeaseFolderError):
    """Another process keeps the lease folder locked."""


def pid_namespace() -> int:
    """Number of the namespace that this process's PIDs belong to; 0 on systems without them."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except FileNotFoundError:
        return 0


class LeaseRecord(BaseModel, frozen=True):
    """Content of a lease or of a place in the queue.

    ``required`` is in bytes; ``slots`` are the leases that the process allows on its GPU, its own
    included; ``since`` is the moment of the grant, or of the arrival in the queue, on the monotonic
    clock; ``seen`` that of a waiter's last look, and ``uuids`` the GPUs that a waiter may use.
    ``pid`` is the holder's, in its ``namespace``: containers count their own. 0: not known.
    """

    required: int = Field(ge=0, lt=REQUIRED_LIMIT)
    slots: int = Field(ge=1)
    since: FiniteFloat
    subject: str = ""
    seen: FiniteFloat = 0.0
    uuids: tuple[str, ...] = ()
    pid: int = 0
    namespace: int = 0


UNREADABLE = LeaseRecord(required=0, slots=1, since=0.0, subject="(unreadable)")
"""What counts for content that is not a record: a lease that shares its GPU with nobody, or a place
in the queue that holds up nobody."""


class Held(NamedTuple):
    """Locked file: name, number of the user that it belongs to, and content."""

    name: str
    uid: int
    record: LeaseRecord


@dataclass
class Locked:
    """File that this process has locked; ``fd`` carries the lock, -1 once it is released."""

    name: str
    fd: int

    def write(self, record: LeaseRecord) -> None:
        """Write the content."""
        content = record.model_dump_json().encode()
        os.ftruncate(self.fd, os.pwrite(self.fd, content, 0))

    def release(self) -> None:
        """Close it; a second call does nothing."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


class LeaseFolder:
    """Folder of the leases and of the queue, which the block keeps locked: the mutex.

    It is made for all users where it does not exist. A :class:`LeaseFolderError` of the block says
    why the folder or its files cannot be made or used, or are not safe to share, a
    :class:`LeaseFolderBusyError` that another process kept it locked for ``patience`` seconds.
    """

    def __init__(self, path: Path, patience: float = PATIENCE) -> None:
        self.path = path
        self._patience = patience

    def __enter__(self) -> LeaseFolder:
        try:
            self._fd = self._open()
            try:
                self._wait()
            except BaseException:
                os.close(self._fd)
                raise
        except OSError as error:
            raise self._refused(error) from error
        return self

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        # Files that were locked stay so. A child that was forked may have the descriptor too.
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        os.close(self._fd)
        # A full disk, or a folder of another machine, which locks folders alone or nothing.
        if isinstance(error, OSError):
            raise self._refused(error) from error

    def held(self, kind: str) -> list[Held]:
        """Locked files of a kind in the order of their numbers."""
        with os.scandir(self._fd) as entries:
            names = sorted((entry.name for entry in entries), key=lambda name: (len(name), name))
        found: list[Held] = []
        for name in names:
            if name.rpartition(".")[0] != kind or (fd := self._regular(name, os.O_RDONLY)) is None:
                continue
            try:
                if _lock(fd):
                    # A child that is forked meanwhile would keep the lock.
                    fcntl.flock(fd, fcntl.LOCK_UN)
                else:
                    content = os.pread(fd, RECORD_LIMIT, 0)
                    found.append(Held(name, os.fstat(fd).st_uid, _record(content)))
            finally:
                os.close(fd)
        return found

    def take(self, kind: str, record: LeaseRecord) -> Locked:
        """Lock the first own file of a kind that is free, or a new one, and write its content."""
        number = 0
        while (locked := self._locked(f"{kind}.{number}", record)) is None:
            number += 1
        return locked

    def _locked(self, name: str, record: LeaseRecord) -> Locked | None:
        """Lock a file and write its content; None where the name or the lock is another's."""
        if (fd := self._own(name)) is None:
            return None
        locked = Locked(name, fd)
        try:
            if _lock(fd):
                # The umask of the maker would hide it from others.
                os.fchmod(fd, OWN_FILE)
                locked.write(record)
                return locked
        except OSError:
            locked.release()
            raise
        locked.release()
        return None

    def _own(self, name: str) -> int | None:
        """Open a file of this user, made where it is missing; None where the name is taken."""
        # Never O_CREAT on a file that may exist: the kernel refuses that for files of other users
        # in such a folder (fs.protected_regular).
        flags = SAFELY | os.O_RDWR | os.O_CREAT | os.O_EXCL
        try:
            return os.open(name, flags, OWN_FILE, dir_fd=self._fd)
        except FileExistsError:
            fd = self._regular(name, os.O_RDWR)
        if fd is not None and os.fstat(fd).st_uid != os.geteuid():
            os.close(fd)
            return None
        return fd

    def _regular(self, name: str, mode: int) -> int | None:
        """Open a regular file; None where it is not one, or not this user's to open."""
        try:
            fd = os.open(name, SAFELY | mode, dir_fd=self._fd)
        except OSError:
            return None
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return fd
        os.close(fd)
        return None

    def _open(self) -> int:
        """Open the folder; refuse one in which other users could replace files."""
        if not self.path.is_absolute():
            # Below the folder that each program is started in, it would be another one for each.
            raise LeaseFolderError(f"The lease folder {self.path} must be given by its whole path.")
        if not self.path.exists():
            self._make()
        fd = os.open(self.path, SAFELY | os.O_DIRECTORY)
        mode = os.fstat(fd).st_mode
        if mode & (stat.S_IWGRP | stat.S_IWOTH) and not mode & stat.S_ISVTX:
            os.close(fd)
            raise LeaseFolderError(
                f"{self.path} can be written by others without a sticky bit, so that they could "
                f"remove locks; its owner must run: chmod 1777 {self.path}"
            )
        return fd

    def _make(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # Another process may be first.
        with suppress(FileExistsError):
            self.path.mkdir(SHARED_FOLDER)
            # The umask took rights away; changing it would change it for all threads.
            self.path.chmod(SHARED_FOLDER)

    def _wait(self) -> None:
        started = time.monotonic()
        while not _lock(self._fd):
            if time.monotonic() - started >= self._patience:
                raise LeaseFolderBusyError(
                    f"{self.path} is kept locked by a process that is stopped or hangs; find it "
                    f"(fuser {self.path}) and end it."
                )
            time.sleep(random.uniform(0.0005, 0.003))

    def _refused(self, error: OSError) -> LeaseFolderError:
        return LeaseFolderError(
            f"GPU leases cannot be kept in {self.path} ({error.strerror}): it must be a folder "
            f"of this node with free space that all may write (chmod 1777 {self.path}); or give "
            "another --gpu_lock_dir, the same for all who share the GPUs."
        )


def _record(content: bytes) -> LeaseRecord:
    try:
        return LeaseRecord.model_validate_json(content)
    except ValidationError:
        return UNREADABLE


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
