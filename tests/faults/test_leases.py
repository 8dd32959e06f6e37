"""GPU leases and their folder, disturbed by other processes and other users."""

import fcntl
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from lease_storm import SIZE, Span, faults, spans_of

from octane.gpu import lease as leases
from octane.gpu.inventory import VARIABLE, simulated_uuid
from octane.gpu.lease import lease
from octane.gpu.lease_folder import UNREADABLE, LeaseFolder, LeaseRecord
from octane.gpu.status import status

pytestmark = pytest.mark.fault

FIRST, SECOND = simulated_uuid(0), simulated_uuid(1)
OTHER_USER = 65534 if os.getuid() == 0 else os.getuid()
PROJECT = Path(__file__).resolve().parents[2]
COMMAND = PROJECT / "bin" / "gpu_slot.py"


@pytest.fixture
def folder(monkeypatch):
    """Lease folder, open to other users, on a node with two GPUs of 40 GB."""
    monkeypatch.setattr(leases, "TICK", 0.01)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv(VARIABLE, "2x40GB")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as parent:
        Path(parent).chmod(0o711)
        path = Path(parent) / "leases"
        monkeypatch.setenv("OCTANE_GPU_LOCK_DIR", str(path))
        with LeaseFolder(path):
            pass
        yield path


def held_names(folder):
    with LeaseFolder(folder) as opened:
        return [held.name for kind in (FIRST, SECOND, "wait") for held in opened.held(kind)]


def given():
    """Name of the slot that an immediate request gets, or None."""
    with lease("4GB", timeout=0) as held:
        return held.slot and held.slot.name


RECORD = LeaseRecord(required=10, slots=1, since=1.0).model_dump_json().encode()
HOSTILE = [
    *(b"", b"\0" * 100, b"[1]", b"[" * 100_000, RECORD[:-1]),
    *(
        RECORD.replace(*changed)
        for changed in (
            (b'"slots":1', b'"slots":0'),
            (b'"required":10', b'"required":-1'),
            (b'"required":10', b'"required":1' + b"0" * 400),
            (b'"since":1.0', b'"since":1e999'),
        )
    ),
]


@pytest.mark.parametrize("content", HOSTILE, ids=lambda content: content[:40])
def test_another_users_records_are_hostile(folder, content):
    with ExitStack() as stack:
        for name in (f"{FIRST}.0", "wait.0"):
            path = folder / name
            path.write_bytes(content)
            os.chown(path, OTHER_USER, -1)
            fcntl.flock(stack.enter_context(path.open()), fcntl.LOCK_EX)
        with LeaseFolder(folder) as opened:
            assert opened.held(FIRST) == [(f"{FIRST}.0", OTHER_USER, UNREADABLE)]
        assert "(unreadable)" in status()
        # The other user keeps that GPU exclusively, but is ignored in the queue.
        assert given() == f"{SECOND}.0"


def test_odd_files_lie_in_the_folder(folder):
    victim = folder.parent / "victim"
    victim.write_text("precious")
    for kind in (FIRST, "wait"):
        (folder / f"{kind}.0").symlink_to(victim)
        (folder / f"{kind}.1").symlink_to(victim.with_name("made"))
        os.mkfifo(folder / f"{kind}.2")
        (folder / f"{kind}.3").mkdir()
        (folder / f"{kind}.4").touch(0o600)
        os.chown(folder / f"{kind}.4", OTHER_USER, -1)
        for name in ("²", "9" * 200, "x", "-1", ""):
            (folder / f"{kind}.{name}").touch()
    # This user's own free file can be used, another user's cannot.
    free = 5 if os.getuid() == 0 else 4
    with lease("4GB", timeout=0) as held, lease("4GB", timeout=0):
        assert held.slot is not None
        assert held.slot.name == f"{FIRST}.{free}"
        assert held_names(folder) == [f"{FIRST}.{free}", f"{SECOND}.0"]
        with lease("4GB", timeout=0.05) as third:
            assert third.gpu is None
    assert (folder / f"wait.{free}").is_file()
    assert held_names(folder) == []
    assert victim.read_text() == "precious"
    assert not victim.with_name("made").exists()


LEFT = "import os, sys; os.fork() or os.execlp('sh', 'sh', '-c', 'echo there; read x'); sys.exit(3)"


def test_a_child_keeps_the_gpu_after_its_command_ended(folder):
    with subprocess.Popen(
        [sys.executable, COMMAND, "--memory", "4GB", "--", sys.executable, "-c", LEFT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as command:
        assert command.stdin is not None
        assert command.stdout is not None
        assert command.stdout.readline() == "there\n"
        assert command.wait(60) == 3
        assert held_names(folder) == [f"{FIRST}.0"]
        command.stdin.close()
        assert command.stdout.read() == ""
    assert held_names(folder) == []


def test_a_stopped_process_keeps_the_folder_locked(folder):
    code = (
        "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], 0), 2); os.kill(os.getpid(), 19)"
    )
    with subprocess.Popen([sys.executable, "-c", code, folder]) as stopped:
        os.waitid(os.P_PID, stopped.pid, os.WSTOPPED | os.WNOWAIT)
        begun = time.monotonic()
        with lease("4GB", timeout=1.5) as held:
            assert held.gpu is None
        assert time.monotonic() - begun < 6
        assert "no GPU came free within 1.5 s" in held.reason
        assert "stopped or hangs; find it (fuser" in held.reason
        stopped.kill()
        stopped.wait()
        assert given() == f"{FIRST}.0"


@pytest.mark.parametrize("ends", ["294", pytest.param("3000", marks=pytest.mark.soak)])
def test_kills_leave_nothing_and_give_nothing_twice(ends):
    # First check the checker: it finds each fault that is put in.
    half = SIZE // 2
    sound = [Span("GPU-0.0", half, 0, 10), Span("GPU-0.1", half, 5, 20), Span("GPU-0.0", 5, 10, 30)]
    assert not any(faults(sound).values())
    for span, fault in (
        (Span("GPU-0.0", 1, 29, 40), "double_grants"),
        (Span("GPU-0.2", 1, 15, 16), "over_slots"),
        (Span("GPU-0.3", half, 6, 7), "over_memory"),
    ):
        assert faults([*sound, span])[fault] == 1
    # A killed taker's share lasts until just before the kill.
    log = "granted 5 1 GPU-0.0 30\nreleased 8 1 GPU-0.0 30\ngranted 9 1 GPU-0.1 4\n"
    spans, holding = spans_of(log, {1: 20})
    assert [(span.start, span.stop) for span in spans] == [(5, 8), (9, 20)]
    assert holding == 1
    done = subprocess.run(
        [sys.executable, PROJECT / "tests" / "support" / "lease_storm.py", ends, "6", "7"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=500,
    )
    counts = json.loads(done.stdout)
    assert counts["ends"].keys() == {"KILL", "TERM", "STOP and KILL"}
    assert counts["ended_while_holding"] > 0
    assert counts["stopped_and_continued"] > 0
    assert counts["grants"] > 50
    for fault in ("leaks", "double_grants", "over_slots", "over_memory"):
        assert counts[fault] == 0, counts
    # For each of two users: two slots on each of two GPUs, and a queue file per taker.
    assert counts["files_left"] <= 2 * (2 * 2 + 6)
