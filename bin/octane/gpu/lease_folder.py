"""Lease folder: slots and places in the queue as locked files, shared by all users of a node.

A slot is an ``flock`` on an open file. The kernel drops it with the last descriptor of that
opening, whatever ends the process. PIDs never decide who holds a slot. The content of a file (user,
moment, memory) is for people and for the memory account. It counts only while the file is locked
and only in the boot that wrote it, so a folder of an earlier boot is harmless.

A process looks and takes under one lock, the mutex, within about a millisecond. So a probe of a
slot is never mistaken for its holder, and what one process decides on cannot change before it is
recorded. Releasing needs no mutex.

**Forks.** The lock belongs to the opening of the file, which a forked child shares. A child that
outlives a killed parent keeps the slot, because nobody can know whether it still uses the GPU: a
slot that is free too late is better than one that is given twice. A parent that ends its lease
unlocks for its children too. A program that the holder starts does not inherit the slot, as every
descriptor is close-on-exec, unless it is handed over on purpose (:attr:`Locked.fd`).

**Other users.** The folder is world-writable with the sticky bit, so nobody removes another's
files. They are opened without following links, must be regular files with one name, and never
block; their content is checked before it is used. A user can hold slots without need, as on any
shared machine, but cannot write through a link into another's files.
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import pwd
import random
import re
import stat
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple

from octane.core.errors import OctaneError

PROC = Path("/proc")
MUTEX = "mutex"
OPEN = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
SHARED_FILE = 0o666
SHARED_FOLDER = 0o1777
MUTEX_PATIENCE = 10.0
"""Seconds after which a mutex that another process holds is an error; milliseconds are usual."""

RECORD_SIZE = 8192
"""Bytes of a file, always written whole: 56 MIG instances are 2.5 kB of UUIDs."""

LONGEST_SUBJECT = 200


class LeaseFolderBusyError(OctaneError):
    """Another process keeps the mutex."""


class Identity(NamedTuple):
    """Process: PID in its own PID namespace, and start in clock ticks since boot.

    PIDs are used again and differ between containers. The start is the same in every namespace, so
    a lease that was taken in a container is matched with the process that NVML shows on the host.
    """

    pid: int
    start: int


@cache
def boot_id() -> str:
    """Id of the boot; empty where the system has none."""
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def identity(pid: int) -> Identity | None:
    """Identity of a process by its PID as this process sees it; None where /proc has none."""
    try:
        stat = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
        status = (PROC / str(pid) / "status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name stands in brackets and may hold brackets and blanks itself.
    start = stat.rpartition(")")[2].split()[19]
    inner = re.search(r"^NSpid:.*?(\d+)\s*$", status, re.MULTILINE)
    return Identity(int(inner[1]) if inner else pid, int(start))


def own_identity() -> Identity:
    """Identity of the running process; its start is 0 where /proc has none."""
    return identity(os.getpid()) or Identity(os.getpid(), 0)


@dataclass(frozen=True)
class LeaseRecord:
    """Content of a slot or of a place in the queue.

    ``required`` is in bytes; ``slots`` are the leases that the process allows on its GPU, its own
    included; ``since`` is the moment of the grant, or of the arrival in the queue, on the monotonic
    clock; ``seen`` that of a waiter's last look, and ``uuids`` the GPUs that a waiter may use.
    """

    required: int
    slots: int
    since: float
    subject: str = ""
    seen: float = 0.0
    uuids: tuple[str, ...] = ()
    pid: int = field(default_factory=lambda: own_identity().pid)
    start: int = field(default_factory=lambda: own_identity().start)
    boot: str = field(default_factory=boot_id)
    uid: int = field(default_factory=os.getuid)

    @property
    def identity(self) -> Identity:
        """Process that wrote it."""
        return Identity(self.pid, self.start)

    @property
    def user(self) -> str:
        """Name of the user, or the number where there is no name."""
        try:
            return pwd.getpwuid(self.uid).pw_name
        except KeyError:
            return str(self.uid)

    def packed(self) -> bytes:
        """Content of the file: JSON, filled up to the full length."""
        text = json.dumps(asdict(self)).encode()
        if len(text) >= RECORD_SIZE:
            raise ValueError(f"a record of {len(text)} bytes for a file of {RECORD_SIZE}")
        return text.ljust(RECORD_SIZE - 1) + b"\n"

    @classmethod
    def unpacked(cls, content: bytes) -> LeaseRecord | None:
        """Read a record; None where it is not one, or was written in another boot.

        Anybody can write into the file, so every value is checked.
        """
        try:
            found = json.loads(content)
            record = cls(
                required=int(found["required"]),
                slots=int(found["slots"]),
                since=float(found["since"]),
                subject=_printable(str(found["subject"])),
                seen=float(found["seen"]),
                uuids=tuple(str(uuid) for uuid in found["uuids"]),
                pid=int(found["pid"]),
                start=int(found["start"]),
                boot=str(found["boot"]),
                uid=int(found["uid"]),
            )
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            return None
        sound = record.required >= 0 and record.slots >= 1 and 0 <= record.uid < 2**32
        finite = math.isfinite(record.since) and math.isfinite(record.seen)
        return record if sound and finite and record.boot == boot_id() else None


def _printable(text: str) -> str:
    """Text without characters that could steer a terminal."""
    return "".join(c if c.isprintable() else "?" for c in text[:LONGEST_SUBJECT])


@dataclass
class Locked:
    """File that this process has locked; ``fd`` carries the lock, -1 once it is released.

    ``owner`` is the PID that locked it: a forked child that runs into the same release closes its
    descriptor and leaves the lock to its parent.
    """

    name: str
    fd: int
    owner: int

    def write(self, record: LeaseRecord) -> None:
        """Write the content; only under the mutex."""
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
    """Opened folder of the slots and of the queue; made for all users where it does not exist.

    An :class:`OctaneError` says why it cannot be made or used, or is not safe to share.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = self._open()

    def close(self) -> None:
        """Close the folder; locked files stay locked."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> LeaseFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def mutex(self) -> Generator[None]:
        """Keep all other processes from looking and taking; they raise LeaseFolderBusyError."""
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

    def held(self, kind: str) -> list[tuple[str, LeaseRecord | None]]:
        """Names of the locked files of a kind and their content; only under the mutex.

        The order is that of their numbers. The content is None where it is unreadable or of another
        boot.
        """
        found: list[tuple[str, LeaseRecord | None]] = []
        for name in self._names(kind):
            fd = self._opened(name)
            try:
                if _lock(fd):
                    fcntl.flock(fd, fcntl.LOCK_UN)
                else:
                    found.append((name, LeaseRecord.unpacked(os.pread(fd, RECORD_SIZE, 0))))
            finally:
                os.close(fd)
        return found

    def take(self, kind: str, record: LeaseRecord) -> Locked:
        """Lock the first file of a kind that is free, or a new one; only under the mutex."""
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
        """Files of a kind; a number whose file somebody removed is among them."""
        with os.scandir(self._fd) as entries:
            names = {entry.name for entry in entries if entry.name.startswith(f"{kind}.")}
        names = {name for name in names if name[len(kind) + 1 :].isdigit()}
        names |= {f"{kind}.{number}" for number in range(len(names))}
        return sorted(names, key=lambda name: int(name.rpartition(".")[2]))

    def _opened(self, name: str) -> int:
        """Open a file of the folder; make it where it does not exist."""
        for _ in range(100):
            try:
                fd = os.open(name, OPEN, dir_fd=self._fd)
            except FileNotFoundError:
                fd = self._made(name)
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
                    raise self._not_a_file(name) from error
                raise self._refused(error, name) from error
            if fd is None:
                continue  # another process made it between the two calls
            status = os.fstat(fd)
            # With a second name, what is written here would appear in another file.
            if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
                # The umask of the maker, which would lock out other users. Not only after making,
                # as the maker may be killed just then.
                if status.st_uid == os.getuid() and stat.S_IMODE(status.st_mode) != SHARED_FILE:
                    os.fchmod(fd, SHARED_FILE)
                return fd
            os.close(fd)
            if stat.S_ISREG(status.st_mode) and status.st_nlink == 0:
                continue  # another process removed it between the two calls
            raise self._not_a_file(name)
        raise OctaneError(
            f"{self.path}/{name} disappears as soon as it is made; find out what removes it, or "
            "give another --gpu-lock-dir."
        )

    def _made(self, name: str) -> int | None:
        """Make a file; None where it exists by now."""
        # Never O_CREAT on a file that may exist: the kernel refuses that for files of other users
        # in such a folder (fs.protected_regular).
        try:
            return os.open(name, OPEN | os.O_CREAT | os.O_EXCL, SHARED_FILE, dir_fd=self._fd)
        except FileExistsError:
            return None
        except OSError as error:
            raise self._refused(error) from error

    def _open(self) -> int:
        try:
            return self._checked(os.open(self.path, OPEN_FOLDER))
        except FileNotFoundError:
            self._make()
        except OSError as error:
            raise self._refused(error) from error
        try:
            return self._checked(os.open(self.path, OPEN_FOLDER))
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
        """Refuse a folder in which other users could replace files."""
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


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
