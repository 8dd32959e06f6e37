"""Lease folder: leases and places in the queue as locked files, shared by all users of a node.

A lease, or a place in the queue, is a file of its holder with an ``flock`` on it. The kernel drops
the lock once neither the holder nor a child that it forked has the file open, however they end: the
children may still use the GPU. Programs that the holder starts do not inherit the file, as every
descriptor is close-on-exec, unless it is handed over on purpose (:attr:`Locked.fd`). A file's
content is for people and for the memory account, and counts only while the file is locked. Files
are not removed; their user reuses them.

A process looks and takes under one lock, the mutex: that of the folder itself, held for a few
milliseconds. So the state cannot change between a decision and its record. Releasing does not need
the mutex.

The folder is world-writable with the sticky bit, and a file is writable only by its user: nobody
else can change or remove it, except the owner of the folder and root. Anything but regular files is
ignored.
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
"""Seconds after which it is an error that another process keeps the folder locked."""

REQUIRED_LIMIT = 2**63
"""Upper limit of a request in bytes; larger numbers may not fit into a float."""

RECORD_LIMIT = 65536
"""Most bytes of a file that are read; the UUIDs of 56 MIG instances are 2.5 kB."""


class LeaseFolderError(OctaneError):
    """The lease folder cannot be used."""


class LeaseFolderBusyError(LeaseFolderError):
    """Another process keeps the lease folder locked."""


def pid_namespace() -> int:
    """ID of the namespace of this process's PIDs; 0 on systems without namespaces."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except FileNotFoundError:
        return 0


class LeaseRecord(BaseModel, frozen=True):
    """Content of a lease or of a place in the queue.

    ``required`` is in bytes; ``slots`` is how many leases the process allows on its GPU, its own
    included; ``since`` is the monotonic time of the grant, or of the arrival in the queue; ``seen``
    is that of a waiter's last look, and ``uuids`` are the GPUs that a waiter may use. ``pid`` is
    the holder's in its ``namespace``, as containers number their own; 0 is unknown.
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
"""Replaces invalid content: a lease that shares with nobody, or a waiter that blocks nobody."""


class Held(NamedTuple):
    """A locked file: name, user ID of its owner, and content."""

    name: str
    uid: int
    record: LeaseRecord


@dataclass
class Locked:
    """A file locked by this process; ``fd`` carries the lock, and is -1 after its release."""

    name: str
    fd: int

    def write(self, record: LeaseRecord) -> None:
        """Write the content."""
        content = record.model_dump_json().encode()
        os.ftruncate(self.fd, os.pwrite(self.fd, content, 0))

    def release(self) -> None:
        """Close the file, which unlocks it; a second call does nothing."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


class LeaseFolder:
    """Folder of the leases and the queue, which is locked while the block runs: the mutex.

    A missing folder is created for all users. A :class:`LeaseFolderError` says why the folder or
    its files cannot be created, used or safely shared, a :class:`LeaseFolderBusyError` that another
    process kept it locked for ``patience`` seconds.
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
        # Locked files stay locked. Unlock explicitly, as a forked child may have the descriptor.
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        os.close(self._fd)
        # A full disk, or a network file system that locks only folders or nothing.
        if isinstance(error, OSError):
            raise self._refused(error) from error

    def held(self, kind: str) -> list[Held]:
        """Locked files of a kind, in order of their numbers."""
        with os.scandir(self._fd) as entries:
            names = sorted((entry.name for entry in entries), key=lambda name: (len(name), name))
        found: list[Held] = []
        for name in names:
            if name.rpartition(".")[0] != kind or (fd := self._regular(name, os.O_RDONLY)) is None:
                continue
            try:
                if _lock(fd):
                    # A child forked in the meantime would keep the lock.
                    fcntl.flock(fd, fcntl.LOCK_UN)
                else:
                    content = os.pread(fd, RECORD_LIMIT, 0)
                    found.append(Held(name, os.fstat(fd).st_uid, _record(content)))
            finally:
                os.close(fd)
        return found

    def take(self, kind: str, record: LeaseRecord) -> Locked:
        """Lock this user's first free file of a kind, or a new one, and write its content."""
        number = 0
        while (locked := self._locked(f"{kind}.{number}", record)) is None:
            number += 1
        return locked

    def _locked(self, name: str, record: LeaseRecord) -> Locked | None:
        """Lock a file and write its content; None if another has the name or the lock."""
        if (fd := self._own(name)) is None:
            return None
        locked = Locked(name, fd)
        try:
            if _lock(fd):
                # Its creator's umask may have hidden it from others.
                os.fchmod(fd, OWN_FILE)
                locked.write(record)
                return locked
        except OSError:
            locked.release()
            raise
        locked.release()
        return None

    def _own(self, name: str) -> int | None:
        """Open or create a file of this user; None if another user has the name."""
        # Never O_CREAT on an existing file: in a sticky folder the kernel refuses this for files of
        # other users (fs.protected_regular).
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
        """Open a regular file; None if it is not one or this user may not open it."""
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
            # A relative path would be a different folder for each program.
            raise LeaseFolderError(
                f"The lease folder {self.path} must be given as an absolute path."
            )
        if not self.path.exists():
            self._make()
        fd = os.open(self.path, SAFELY | os.O_DIRECTORY)
        mode = os.fstat(fd).st_mode
        if mode & (stat.S_IWGRP | stat.S_IWOTH) and not mode & stat.S_ISVTX:
            os.close(fd)
            raise LeaseFolderError(
                f"{self.path} is writable by others without the sticky bit, so they could remove "
                f"locks; its owner must run: chmod 1777 {self.path}"
            )
        return fd

    def _make(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # Another process may be first.
        with suppress(FileExistsError):
            self.path.mkdir(SHARED_FOLDER)
            # The umask removed permissions; changing the umask would affect all threads.
            self.path.chmod(SHARED_FOLDER)

    def _wait(self) -> None:
        started = time.monotonic()
        while not _lock(self._fd):
            if time.monotonic() - started >= self._patience:
                raise LeaseFolderBusyError(
                    f"{self.path} is locked by a process that is stopped or hangs; find it (fuser "
                    f"{self.path}) and end it."
                )
            time.sleep(random.uniform(0.0005, 0.003))

    def _refused(self, error: OSError) -> LeaseFolderError:
        return LeaseFolderError(
            f"GPU leases cannot be stored in {self.path} ({error.strerror}): it must be a folder "
            f"of this node with free space, writable by all (chmod 1777 {self.path}); or give "
            "another in OCTANE_GPU_LOCK_DIR, the same for all who share the GPUs."
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
