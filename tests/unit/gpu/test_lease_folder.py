"""Locked files that all users of a node share: what holds them, and what is ignored."""

import errno
import fcntl
import os
import stat
import subprocess
import sys
import textwrap
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from python_path import python_path
from refusals import refused

from octane.gpu import lease_folder
from octane.gpu.lease_folder import (
    LeaseFolder,
    LeaseFolderBusyError,
    LeaseFolderError,
    LeaseRecord,
)

PROJECT = Path(__file__).resolve().parents[3]


def record(**other):
    return LeaseRecord(required=10, slots=1, since=1.0, **other)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "leases"


def take(folder, kind="GPU-0", **other):
    with LeaseFolder(folder) as opened:
        return opened.take(kind, record(**other))


def names(folder, kind="GPU-0"):
    with LeaseFolder(folder) as opened:
        return [held.name for held in opened.held(kind)]


def test_the_folder_is_for_all_users_and_a_file_for_its_holder_whatever_the_umask(folder):
    before = os.umask(0o077)
    try:
        take(folder).release()
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o1777
    assert stat.S_IMODE((folder / "GPU-0.0").stat().st_mode) == 0o644
    assert list(folder.parent.rglob("*")) == [folder, folder / "GPU-0.0"]


def test_a_process_that_makes_the_folder_too_late_uses_that_of_another(folder, monkeypatch):
    take(folder)
    monkeypatch.setattr(Path, "exists", lambda _: False)
    assert names(folder) == ["GPU-0.0"]


def test_a_lease_is_held_until_it_is_released_and_its_file_serves_again(folder):
    one, two = take(folder, subject="sub-01"), take(folder)
    assert names(folder) == ["GPU-0.0", "GPU-0.1"]
    with LeaseFolder(folder) as opened:
        assert opened.held("GPU-0")[0] == ("GPU-0.0", os.getuid(), record(subject="sub-01"))
    one.release()
    one.release()
    assert names(folder) == ["GPU-0.1"]
    assert take(folder).name == "GPU-0.0"
    two.release()
    # Kinds with a common prefix are separate.
    held = [take(folder, kind) for kind in ("GPU-1", "GPU-11", "GPU-1.1")]
    assert names(folder, "GPU-1") == ["GPU-1.0"]
    for slot in held:
        slot.release()


@pytest.fixture
def hold(folder):
    """Hold a lease in a process that then runs some code."""
    with ExitStack() as stack:

        def start(code):
            code = f"""
import os, sys
from pathlib import Path
from octane.gpu.lease_folder import LeaseFolder, LeaseRecord
with LeaseFolder(Path(sys.argv[1])) as folder:
    slot = folder.take("GPU-0", LeaseRecord(required=10, slots=1, since=1.0))
print("holds", flush=True)
{textwrap.dedent(code)}
"""
            process = subprocess.Popen(
                [sys.executable, "-c", code, folder],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, **python_path(PROJECT / "bin")},
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline() == "holds\n"
            return process

        yield start


def test_a_child_that_is_forked_during_a_look_keeps_nothing(folder, monkeypatch):
    def forked(fd):
        with_child.append(os.dup(fd))
        return locked(fd)

    with_child, locked = [], lease_folder._lock
    take(folder).release()
    with monkeypatch.context() as patch:
        patch.setattr(lease_folder, "_lock", forked)
        assert names(folder) == []
    assert names(folder) == []
    for fd in with_child:
        os.close(fd)


def test_a_program_that_is_started_meanwhile_does_not_keep_the_lease(folder):
    slot = take(folder)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, close_fds=False):
        slot.release()
        assert names(folder) == []


def test_a_folder_that_each_program_would_find_elsewhere_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with refused("leases", error=LeaseFolderError):
        names(Path("leases"))


def test_a_folder_that_stays_locked_is_one_clear_sentence(folder):
    with LeaseFolder(folder):
        started = time.monotonic()
        with refused(folder, "fuser", error=LeaseFolderBusyError):
            LeaseFolder(folder, 0.05).__enter__()
        assert 0.05 <= time.monotonic() - started < 5


def test_a_file_that_another_locks_is_not_taken(folder):
    take(folder).release()
    with (folder / "GPU-0.0").open() as stranger:
        fcntl.flock(stranger, fcntl.LOCK_EX)
        slot = take(folder)
        assert slot.name == "GPU-0.1"
        slot.release()


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda path: path.symlink_to(path.parent), ("OCTANE_GPU_LOCK_DIR",)),
        (lambda path: path.symlink_to("nowhere"), ("OCTANE_GPU_LOCK_DIR",)),
        (lambda path: path.write_text(""), ("OCTANE_GPU_LOCK_DIR",)),
        (lambda path: path.mkdir() or path.chmod(0o777), ("sticky bit", "chmod 1777")),
    ],
)
def test_a_folder_in_which_leases_are_not_safe_is_refused(folder, make, names):
    make(folder)
    with refused(folder, *names, error=LeaseFolderError):
        LeaseFolder(folder).__enter__()


@pytest.mark.parametrize(
    ("call", "use"),
    [("open", take), ("pwrite", take), ("scandir", names)],
)
def test_a_full_or_read_only_folder_is_one_clear_sentence(folder, monkeypatch, call, use):
    def refuse(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(lease_folder.os, call, refuse)
        with refused(folder, os.strerror(errno.ENOSPC), "OCTANE_GPU_LOCK_DIR"):
            use(folder)
    assert names(folder) == []


@pytest.mark.parametrize("refusing", [stat.S_ISDIR, stat.S_ISREG])
def test_a_folder_without_locks_is_one_clear_sentence(folder, monkeypatch, refusing):
    def refuse(fd, operation):
        # NFS locks folders, but not files that are open only for reading.
        if refusing(os.fstat(fd).st_mode):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        flock(fd, operation)

    take(folder).release()
    flock = fcntl.flock
    monkeypatch.setattr(lease_folder.fcntl, "flock", refuse)
    with refused(folder, os.strerror(errno.EBADF), error=LeaseFolderError):
        names(folder)


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 9)", "slot.release(); os._exit(0)"])
def test_a_forked_child_keeps_the_lease_until_it_ends(folder, hold, end):
    holder = hold(f"if os.fork(): {end}\nprint(1, flush=True)\nsys.stdin.readline()")
    assert holder.stdout.readline() == "1\n"
    holder.wait()
    assert names(folder) == ["GPU-0.0"]
    holder.communicate("\n")  # ends with the child
    assert names(folder) == []
