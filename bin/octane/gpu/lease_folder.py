"""Lease folder: leases and places in the queue as locked files, shared by all users of a node.

A lease, or a place in the queue, is a file of its holder with an ``flock`` on it. The kernel drops
the lock with the last descriptor of that opening, whatever ends the process. PIDs never decide who
holds a lease. A file's content is for people and for the memory account, and counts only while the
file is locked. Files stay, and serve their user again.

A process looks and takes under one lock, the mutex: that of the folder itself, held for some
milliseconds. So what it decides on cannot change before it is recorded. Releasing needs no mutex.

**Forks.** The lock belongs to the opening of the file, which a forked child shares. A child that
outlives a killed parent keeps the lease, as nobody can know whether it still uses the GPU. A parent
that ends its lease unlocks for its children too. A program that the holder starts does not inherit
it, as every descriptor is close-on-exec, unless it is handed over on purpose (:attr:`Locked.fd`).

**Other users.** The folder is world-writable with the sticky bit, and each file is written by its
user alone: nobody else removes or changes it, except the owner of the folder and root. Whatever is
no such file is passed over. Content is checked before it is used.
"""

from __future__ import annotations

import fcntl
import json
import os
import pwd
import random
import re
import stat
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from octane.core.errors import OctaneError

LOCKS = Path("/proc/locks")
SAFELY = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
OWN_FILE = 0o644
SHARED_FOLDER = 0o1777
PATIENCE = 10.0
"""Seconds after which a folder that another process keeps locked is an error."""

RECORD_SIZE = 8192
"""Bytes of a file, always written whole: 56 MIG instances are 2.5 kB of UUIDs."""

LONGEST_SUBJECT = 200

MOST = 2**63
"""Limit of the whole numbers in a record; no machine comes near it."""

LATEST = 2.0**40
"""Limit of a record's moments, seconds: 35,000 years."""


class LeaseFolderError(OctaneError):
    """The lease folder cannot be used."""


class LeaseFolderBusyError(LeaseFolderError):
    """Another process keeps the lease folder locked."""


@dataclass(frozen=True)
class LeaseRecord:
    """Content of a lease or of a place in the queue.

    ``required`` is in bytes; ``slots`` are the leases that the process allows on its GPU, its own
    included; ``since`` is the moment of the grant, or of the arrival in the queue, on the monotonic
    clock; ``seen`` that of a waiter's last look, and ``uuids`` the GPUs that a waiter may use.
    ``uid`` is the owner of the file, whatever its content says.
    """

    required: int
    slots: int
    since: float
    subject: str = ""
    seen: float = 0.0
    uuids: tuple[str, ...] = ()
    uid: int = field(default_factory=os.getuid)

    @property
    def user(self) -> str:
        """Name of the user, or the number where there is no name."""
        try:
            return pwd.getpwuid(self.uid).pw_name
        except KeyError:
            return str(self.uid)

    def packed(self) -> bytes:
        """Content of the file: JSON, filled up to the full length."""
        text = json.dumps(asdict(self) | {"subject": self.subject[:LONGEST_SUBJECT]}).encode()
        return text.ljust(RECORD_SIZE - 1) + b"\n"

    @classmethod
    def unpacked(cls, content: bytes, uid: int) -> LeaseRecord | None:
        """Read a record of a user; None where it is not one."""
        try:
            found = json.loads(content)
            subject = str(found["subject"])
            record = cls(
                required=int(found["required"]),
                slots=int(found["slots"]),
                since=float(found["since"]),
                # Nothing that could steer a terminal.
                subject="".join(c if c.isprintable() else "?" for c in subject[:LONGEST_SUBJECT]),
                seen=float(found["seen"]),
                uuids=tuple(str(uuid) for uuid in found["uuids"]),
                uid=uid,
            )
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            return None
        counts = (record.required, record.slots - 1)
        moments = (abs(record.since), abs(record.seen))
        sound = all(0 <= n < MOST for n in counts) and all(t < LATEST for t in moments)
        return record if sound else None


class Held(NamedTuple):
    """Name of a locked file, its content, and the PID of the process that locked it.

    The content is None where it is unreadable, the PID where the kernel does not show it.
    """

    name: str
    record: LeaseRecord | None
    pid: int | None


@dataclass
class Locked:
    """File that this process has locked; ``fd`` carries the lock, -1 once it is released.

    ``owner`` is the PID that locked it: a forked child that runs into the same release closes its
    descriptor and leaves the lock to its parent.
    """

    name: str
    fd: int
    owner: int
    record: LeaseRecord

    def write(self, record: LeaseRecord) -> None:
        """Write the content, in one piece."""
        self.record = record
        os.pwrite(self.fd, record.packed(), 0)

    def release(self) -> None:
        """Unlock and close; a second call does nothing."""
        fd, self.fd = self.fd, -1
        if fd < 0:
            return
        if self.owner == os.getpid():
            fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


def mark(lease: Held | Locked) -> str:
    """Text that names this lease and no later one of the same file."""
    return f"{lease.name}@{lease.record.since if lease.record else None}"


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

    def _wait(self) -> None:
        started = time.monotonic()
        while not _lock(self._fd):
            if time.monotonic() - started >= self._patience:
                raise LeaseFolderBusyError(
                    f"{self.path} is kept locked by a process that is stopped or hangs; find it "
                    f"(fuser {self.path}) and end it."
                )
            time.sleep(random.uniform(0.0005, 0.003))

    def held(self, kind: str) -> list[Held]:
        """Locked files of a kind in the order of their numbers."""
        # By inode: a lease to which somebody made a second name counts once.
        found: dict[int, Held] = {}
        for name in self._names(kind):
            with self._opened(name, os.O_RDONLY) as fd:
                if fd is None:
                    continue
                if _lock(fd):
                    # A child that was forked meanwhile would keep the lock.
                    fcntl.flock(fd, fcntl.LOCK_UN)
                else:
                    status, content = os.fstat(fd), os.pread(fd, RECORD_SIZE, 0)
                    record = LeaseRecord.unpacked(content, status.st_uid)
                    pid = self._lockers.get(status.st_ino)
                    found.setdefault(status.st_ino, Held(name, record, pid))
        return list(found.values())

    @cached_property
    def _lockers(self) -> dict[int, int]:
        """PIDs, as this process sees them, of all that locked files, by the files' inodes."""
        try:
            rows = [row.split() for row in LOCKS.read_text(encoding="utf-8").splitlines()]
        except OSError:
            return {}
        # Number, kind, two words on it, PID, and two numbers of a device with the inode.
        locks = [row for row in rows if row[1] == "FLOCK"]
        return {int(row[5].rpartition(":")[2]): int(row[4]) for row in locks}

    def take(self, kind: str, record: LeaseRecord) -> Locked:
        """Lock the first own file of a kind that is free, or a new one."""
        for name in self._names(kind):
            with self._opened(name, os.O_RDWR) as fd:
                if fd is None:
                    continue
                status = os.fstat(fd)
                # With a second name, what is written here would appear in another file.
                if status.st_uid == os.geteuid() and status.st_nlink == 1 and _lock(fd):
                    return self._locked(name, os.dup(fd), record)
        number = 0
        while (fd := self._made(name := f"{kind}.{number}")) is None:
            number += 1
        return self._locked(name, fd, record)

    def _made(self, name: str) -> int | None:
        """Make and lock a file; None where it exists, or another user was quicker to lock it."""
        # Never O_CREAT on a file that may exist: the kernel refuses that for files of other users
        # in such a folder (fs.protected_regular).
        flags = SAFELY | os.O_RDWR | os.O_CREAT | os.O_EXCL
        try:
            fd = os.open(name, flags, OWN_FILE, dir_fd=self._fd)
        except FileExistsError:
            return None
        if _lock(fd):
            return fd
        os.close(fd)
        return None

    def _locked(self, name: str, fd: int, record: LeaseRecord) -> Locked:
        locked = Locked(name, fd, os.getpid(), record)
        try:
            # The umask of the maker would hide it from others.
            os.fchmod(fd, OWN_FILE)
            locked.write(record)
        except OSError:
            locked.release()
            raise
        return locked

    def _names(self, kind: str) -> list[str]:
        """Names of a kind in the order of their numbers."""
        wanted = re.compile(rf"{re.escape(kind)}\.([0-9]{{1,9}})")
        with os.scandir(self._fd) as entries:
            found = [match for entry in entries if (match := wanted.fullmatch(entry.name))]
        return [match[0] for match in sorted(found, key=lambda match: int(match[1]))]

    @contextmanager
    def _opened(self, name: str, mode: int) -> Generator[int | None]:
        """Open a file for the block; None where it is none, or not this user's to open."""
        try:
            fd = os.open(name, SAFELY | mode, dir_fd=self._fd)
        except OSError:
            yield None
            return
        try:
            yield fd if stat.S_ISREG(os.fstat(fd).st_mode) else None
        finally:
            os.close(fd)

    def _open(self) -> int:
        """Open the folder; refuse one in which other users could replace files."""
        if not self.path.is_absolute():
            # Below the folder that each program is started in, it would be another one for each.
            raise LeaseFolderError(f"{self.path} is no lease folder for all; give its whole path.")
        if not self.path.exists():
            self._make()
        fd = os.open(self.path, SAFELY | os.O_DIRECTORY)
        mode = os.fstat(fd).st_mode
        if mode & (stat.S_IWGRP | stat.S_IWOTH) and not mode & stat.S_ISVTX:
            os.close(fd)
            raise LeaseFolderError(
                f"{self.path} can be written by others and has no sticky bit, so that they could "
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

    def _refused(self, error: OSError) -> LeaseFolderError:
        return LeaseFolderError(
            f"GPU leases cannot be kept in {self.path} ({error.strerror}): it must be a folder "
            f"of this node with free space that all may write (chmod 1777 {self.path}); or give "
            "another --gpu_lock_dir, the same for all who share the GPUs."
        )


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
