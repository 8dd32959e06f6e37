"""Taking, waiting and giving back, with real locks and made-up GPUs."""

import logging
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from octane.core.errors import OctaneError
from octane.gpu import lease as leases
from octane.gpu import lease_folder, nvml
from octane.gpu.inventory import Gpu, GpusUnavailableError
from octane.gpu.lease import Taker, lease
from octane.gpu.lease_folder import LeaseFolder, LeaseRecord
from octane.gpu.simulated import VARIABLE, SimulatedGpus, simulated_uuid

PROJECT = Path(__file__).resolve().parents[3]
FIRST, SECOND = simulated_uuid(0), simulated_uuid(1)
GB = 10**9


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(leases, "TICK", 0.01)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv(leases.HELD, raising=False)
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "leases"


@pytest.fixture
def two(folder):
    """Keyword arguments for a node with two GPUs of 40 GB."""
    return {"folder": folder, "source": SimulatedGpus("2x40GB")}


class Source:
    """GPUs from a list of answers, the last of them for ever; an error is raised."""

    simulated = False

    def __init__(self, *answers):
        self.answers = list(answers)
        self.reads = 0

    def read(self):
        self.reads += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def a40(free=40, **other):
    return Gpu(0, FIRST, "A40", 40 * GB, free * GB, **other)


def held_names(folder):
    with LeaseFolder(folder) as opened, opened.mutex():
        kinds = (FIRST, SECOND, "wait")
        return [name for kind in kinds for name, _ in opened.held(kind)]


def test_a_lease_is_held_in_the_block_and_gone_after_it(two, folder):
    with lease("4GB", **two) as held:
        assert held.gpu is not None
        assert held.simulated
        assert held.environment() == {"CUDA_VISIBLE_DEVICES": FIRST, leases.HELD: held.mark}
        assert held.mark.startswith(f"{FIRST}.0@")
        assert held_names(folder) == [f"{FIRST}.0"]
    assert held_names(folder) == []


def test_a_lease_is_given_back_when_the_block_fails(two, folder):
    with pytest.raises(ZeroDivisionError), lease("4GB", **two):
        raise ZeroDivisionError
    assert held_names(folder) == []


def test_leases_of_one_process_are_apart_and_spread(two):
    with lease("4GB", **two) as one, lease("4GB", **two) as other:
        assert one.gpu is not None
        assert other.gpu is not None
        assert {one.gpu.uuid, other.gpu.uuid} == {FIRST, SECOND}


def test_cpu_looks_at_nothing(monkeypatch, folder):
    def fail(*_):
        raise AssertionError("NVML was loaded")

    monkeypatch.setattr(nvml.pynvml, "nvmlInit", fail)
    with lease("4GB", backend="cpu", folder=folder) as held:
        assert held.gpu is None
        assert held.environment() == {"CUDA_VISIBLE_DEVICES": ""}
        assert not held.fallback
    assert not folder.exists()


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (Source(GpusUnavailableError("the driver is not loaded")), "the driver is not loaded"),
        (Source(()), "there is no GPU"),
    ],
)
def test_without_a_gpu_auto_is_the_cpu_at_once_and_gpu_an_error(folder, caplog, source, words):
    with caplog.at_level(logging.INFO), lease("4GB", source=source, folder=folder) as held:
        assert held.gpu is None
    assert source.reads == 1
    assert f"CPU, because {words}" in caplog.text
    assert caplog.records[-1].levelname == "INFO"
    with pytest.raises(OctaneError, match=f"{words}.*--backend cpu"):
        lease("4GB", backend="gpu", source=source, folder=folder).__enter__()
    assert not folder.exists()


@pytest.mark.parametrize("setting", ["", "-1", "7", "GPU-none"])
def test_an_allocation_without_a_gpu_is_never_widened(two, folder, monkeypatch, setting):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    with lease("4GB", **two) as held:
        assert held.gpu is None
        assert f"CUDA_VISIBLE_DEVICES is '{setting}'" in held.reason
    with pytest.raises(OctaneError, match="allows none of this node's GPUs"):
        lease("4GB", backend="gpu", **two).__enter__()


@pytest.mark.parametrize("setting", ["1", SECOND, f"{SECOND[:-4]}0001"])
def test_an_allocation_of_one_gpu_is_kept_to(two, monkeypatch, setting):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    with lease("4GB", **two) as held, lease("4GB", timeout=0, **two) as none:
        assert held.gpu is not None
        assert held.gpu.uuid == SECOND
        assert none.gpu is None


def test_what_no_gpu_has_is_not_waited_for(two, caplog):
    with lease("41GB", **two) as held:
        assert held.gpu is None
        assert held.fallback
    assert caplog.records[-1].levelname == "WARNING"
    with pytest.raises(OctaneError, match=r"no GPU has the 41\.0 GB required"):
        lease("41GB", backend="gpu", **two).__enter__()


def test_auto_waits_and_then_takes_the_cpu_with_a_warning(two, folder, caplog):
    with lease("4GB", **two), lease("4GB", **two):
        with lease("4GB", timeout=0.05, **two) as held:
            assert held.gpu is None
            assert held.fallback
            assert held.waited >= 0.05
            assert not [name for name in held_names(folder) if name.startswith("wait")]
        assert "no GPU came free within 0.05 s (GPU 0: 1 of 1 slots taken" in caplog.text
        assert caplog.records[-1].levelname == "WARNING"


def test_gpu_waits_and_then_is_an_error(two):
    with lease("4GB", **two), lease("4GB", **two):  # noqa: SIM117
        with pytest.raises(OctaneError, match="no GPU came free within 0"):
            lease("4GB", backend="gpu", timeout=0.02, **two).__enter__()


def test_the_default_of_auto_is_five_minutes_and_of_gpu_no_limit(two, monkeypatch):
    given = []

    def wait(self, limit, on_wait):
        given.append(limit)
        return leases.Lease(leases.visible(self.source.read(), None)[0], self.required)

    monkeypatch.setattr(Taker, "wait", wait)
    for backend in ("auto", "gpu"):
        with lease("4GB", backend=backend, **two):
            pass
    assert given == [300.0, None]


def test_a_waiter_is_told_how_long_and_how_much_and_may_end_the_wait(two, folder):
    calls = []

    def on_wait(*figures):
        calls.append(figures)
        if len(calls) == 3:
            raise KeyboardInterrupt

    with lease("30GB", **two), lease("24GB", **two):
        with pytest.raises(KeyboardInterrupt):
            lease("30GB", backend="gpu", on_wait=on_wait, **two).__enter__()
        assert not [name for name in held_names(folder) if name.startswith("wait")]
    assert [(available, required) for _, available, required in calls] == [(16 * GB, 30 * GB)] * 3
    assert calls[0][0] <= calls[1][0] <= calls[2][0]


def test_the_log_says_why_it_waits_once_and_when_the_reason_changes(folder, caplog, monkeypatch):
    now = iter(range(0, 10_000, 5))
    monkeypatch.setattr(leases.time, "monotonic", lambda: float(next(now)))
    monkeypatch.setattr(leases.time, "sleep", lambda _: None)
    other = a40(free=3, processes=(leases_process(7),))
    source = Source((a40(free=3),), (a40(free=3),), (other,), (other,), (a40(),))
    with caplog.at_level(logging.INFO), lease("4GB", source=source, folder=folder):
        pass
    waits = [r.message for r in caplog.records if r.message.startswith("waiting for 4.0 GB")]
    assert [wait.partition("GPU 0: ")[2] for wait in waits] == [
        "3.0 GB to give; needs 4.0 GB",
        "3.0 GB to give, and another process is there; needs 6.0 GB",
    ]


def leases_process(pid):
    from octane.gpu.inventory import GpuProcess

    return GpuProcess(pid, 1)


def test_a_waiter_gets_the_gpu_that_comes_free(two, folder):
    got = threading.Event()

    def wait():
        with lease("30GB", backend="gpu", **two) as held:
            assert held.gpu is not None
            got.set()

    with lease("30GB", **two), lease("30GB", **two):
        thread = threading.Thread(target=wait)
        thread.start()
        while "wait.0" not in held_names(folder):
            assert thread.is_alive()
        assert not got.is_set()
    thread.join(60)
    assert got.is_set()
    assert held_names(folder) == []


def test_nvml_that_fails_while_waiting_is_waited_out(folder):
    source = Source((a40(free=1),), GpusUnavailableError("NVML fails"), (a40(),))
    with lease("4GB", backend="gpu", source=source, folder=folder) as held:
        assert held.gpu is not None
    assert source.reads == 3


def test_nvml_that_stays_away_while_waiting_counts_as_gone(folder, monkeypatch):
    monkeypatch.setattr(leases, "FAILING", 0.05)
    source = Source((a40(free=1),), GpusUnavailableError("NVML fails"))
    with pytest.raises(OctaneError, match="NVML fails"):
        lease("4GB", backend="gpu", source=source, folder=folder).__enter__()
    source = Source((a40(free=1),), GpusUnavailableError("NVML fails"))
    with lease("4GB", source=source, folder=folder) as held:
        assert held.gpu is None
        assert held.fallback


def test_a_folder_that_a_stopped_process_keeps_is_waited_for(two, folder, monkeypatch):
    monkeypatch.setattr(lease_folder, "MUTEX_PATIENCE", 0.01)
    with (
        LeaseFolder(folder) as opened,
        opened.mutex(),
        lease("4GB", timeout=0.05, **two) as held,
    ):
        assert held.gpu is None
        assert "stopped or hangs" in held.reason
    with lease("4GB", timeout=0, **two) as held:
        assert held.gpu is not None


def test_an_interrupt_right_after_the_grant_loses_nothing(two, folder, monkeypatch):
    def interrupted(self, gpu, *_):
        assert held_names(folder) == [f"{FIRST}.0"]
        raise KeyboardInterrupt

    monkeypatch.setattr(Taker, "_lease", interrupted)
    with pytest.raises(KeyboardInterrupt):
        lease("4GB", **two).__enter__()
    assert held_names(folder) == []


def test_a_gpu_that_is_lost_is_waited_for(folder):
    source = Source((a40(fault="GPU is lost"),), (a40(),))
    with lease("4GB", backend="gpu", source=source, folder=folder) as held:
        assert held.gpu is not None


def test_an_unknown_backend_and_impossible_figures_are_refused(two):
    with pytest.raises(OctaneError, match="auto, gpu, cpu"):
        lease("4GB", backend="cuda", **two).__enter__()
    with pytest.raises(OctaneError, match="correct them"):
        lease(-1, **two).__enter__()
    with pytest.raises(OctaneError, match="correct them"):
        lease("4GB", slots=0, **two).__enter__()


def test_avoided_gpus_are_left_alone(two):
    with lease("4GB", avoid=[FIRST], **two) as held:
        assert held.gpu is not None
        assert held.gpu.uuid == SECOND
    with lease("4GB", avoid=[FIRST, SECOND], **two) as held:
        assert held.gpu is None
        assert held.reason == "no other GPU is left to try"


def test_the_folder_is_the_nodes_own_where_the_environment_says_so(monkeypatch, tmp_path):
    monkeypatch.delenv("OCTANE_GPU_LOCK_DIR", raising=False)
    assert leases.default_folder() == Path("/var/tmp/octane-gpu-leases")
    monkeypatch.setenv("OCTANE_GPU_LOCK_DIR", str(tmp_path))
    assert leases.default_folder() == tmp_path


def test_the_environment_chooses_simulated_gpus(monkeypatch):
    assert isinstance(leases.gpu_source(), nvml.Nvml)
    monkeypatch.setenv(VARIABLE, "1x8GB")
    assert leases.gpu_source().simulated


def test_leases_need_nothing_but_python_and_nvml_and_so_can_be_taken_elsewhere():
    code = (
        "import sys, octane.gpu.lease, octane.gpu.status\n"
        "print(*{name.partition('.')[0] for name in sys.modules} - sys.stdlib_module_names)"
    )
    environment = {**os.environ, "PYTHONPATH": str(PROJECT / "bin")}
    loaded = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{code}"],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    assert set(loaded.split()) <= {"octane", "pynvml", "__main__"}


def test_a_killed_waiter_leaves_the_queue(two, folder):
    code = (
        "import sys; from pathlib import Path; from octane.gpu.lease import lease\n"
        "with lease('40GB', backend='gpu', folder=Path(sys.argv[1])): pass"
    )
    environment = {**os.environ, VARIABLE: "2x40GB", "PYTHONPATH": str(PROJECT / "bin")}
    with lease("30GB", slots=2, **two), lease("30GB", slots=2, **two):
        waiter = subprocess.Popen([sys.executable, "-c", code, folder], env=environment)
        try:
            while "wait.0" not in held_names(folder):
                assert waiter.poll() is None
            # It holds its place: what would keep it waiting longer does not go ahead.
            with lease("10GB", slots=2, timeout=0, **two), lease("10GB", slots=2, timeout=0, **two) as held:  # noqa: E501  # fmt: skip
                assert held.gpu is None
        finally:
            waiter.kill()
            waiter.wait()
        assert "wait.0" not in held_names(folder)
        with lease("10GB", slots=2, timeout=0, **two) as held:
            assert held.gpu is not None


def test_a_waiter_that_is_stopped_holds_up_nobody(two, folder):
    now = time.monotonic()
    waiting = LeaseRecord(30 * GB, 1, now - 100, seen=now, uuids=(FIRST, SECOND))
    with LeaseFolder(folder) as opened:
        with opened.mutex():
            places = [opened.take("wait", waiting) for _ in range(2)]
        with lease("30GB", timeout=0, **two) as held:
            assert held.gpu is None
        stopped = replace(waiting, seen=now - 2 * leases.ABSENT)
        with opened.mutex():
            for place in places:
                place.write(stopped)
        with lease("30GB", timeout=0, **two) as held:
            assert held.gpu is not None
        for place in places:
            place.release()
