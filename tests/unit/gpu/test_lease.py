"""Taking, waiting and giving back, with real locks and simulated GPUs."""

import logging
import time
from pathlib import Path

import pytest
from refusals import refused

from octane.gpu import lease as leases
from octane.gpu import nvml
from octane.gpu.inventory import VARIABLE, Gpu, GpuProcess, GpusUnavailableError, simulated_uuid
from octane.gpu.lease import Taker, lease, parse_memory
from octane.gpu.lease_folder import LeaseFolder, LeaseRecord

FIRST, SECOND = simulated_uuid(0), simulated_uuid(1)
GB = 10**9


@pytest.fixture(autouse=True)
def node(monkeypatch, tmp_path):
    """A node with two GPUs of 40 GB."""
    monkeypatch.setattr(leases, "TICK", 0.01)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv(VARIABLE, "2x40GB")
    monkeypatch.setenv("OCTANE_GPU_LOCK_DIR", str(tmp_path / "leases"))


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "leases"


class Source:
    """GPUs from a list of answers, the last one forever; an error is raised."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.reads = 0

    def read(self):
        self.reads += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def reading(monkeypatch):
    """Make the GPUs be read from a list of answers."""

    def use(*answers):
        source = Source(*answers)
        monkeypatch.setattr(leases, "read_gpus", source.read)
        return source

    return use


def a40(free=40, **other):
    return Gpu(0, FIRST, "A40", 40 * GB, free * GB, **other)


def held_names(folder):
    with LeaseFolder(folder) as opened:
        kinds = (FIRST, SECOND, "wait")
        return [held.name for kind in kinds for held in opened.held(kind)]


def refusal_of(names, *arguments, **more):
    """Check that a lease is refused by an error with these names."""
    with refused(*names):
        lease(*arguments, **more).__enter__()


def uuid(held):
    return None if held.gpu is None else held.gpu.uuid


def test_a_lease_is_held_in_the_block_and_gone_after_it(folder):
    with lease("4GB") as held:
        assert held.environment() == {"CUDA_VISIBLE_DEVICES": FIRST}
        assert held_names(folder) == [f"{FIRST}.0"]
    assert held_names(folder) == []
    with pytest.raises(ZeroDivisionError), lease("4GB"):
        raise ZeroDivisionError
    assert held_names(folder) == []


def test_cpu_looks_at_nothing(monkeypatch, folder):
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setattr(nvml.pynvml, "nvmlInit", lambda: pytest.fail("NVML was loaded"))
    with lease("4GB", backend="cpu") as held:
        assert (held.gpu, held.fallback) == (None, False)
        assert held.environment() == {"CUDA_VISIBLE_DEVICES": ""}
    assert not folder.exists()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (GpusUnavailableError("the driver is not loaded"), "the driver is not loaded"),
        ((), "no GPU was found"),
    ],
)
def test_without_a_gpu_auto_is_the_cpu_at_once_and_gpu_an_error(
    folder, caplog, reading, answer, words
):
    source = reading(answer)
    with caplog.at_level(logging.INFO), lease("4GB") as held:
        assert held.gpu is None
    assert source.reads == 1
    assert f"CPU, because {words}" in caplog.text
    assert caplog.records[-1].levelname == "INFO"
    refusal_of(("--gpu_timeout", "--backend cpu"), "4GB", backend="gpu")
    assert not folder.exists()


@pytest.mark.parametrize(
    ("setting", "given"), [*((none, None) for none in ("", "-1", "7", "GPU-none")), ("1", SECOND)]
)
def test_an_allocation_is_kept_to(monkeypatch, setting, given):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    with lease("4GB") as held, lease("4GB", timeout=0) as none:
        assert (uuid(held), none.gpu) == (given, None)
    if given is None:
        refusal_of((f"CUDA_VISIBLE_DEVICES is '{setting}'",), "4GB", backend="gpu")


def test_a_request_larger_than_every_gpu_does_not_wait(caplog):
    with lease("41GB") as held:
        assert (held.gpu, held.fallback) == (None, True)
    assert caplog.records[-1].levelname == "WARNING"
    refusal_of(("41.0 GB", "40.0 GB"), "41GB", backend="gpu")


def test_auto_waits_and_then_takes_the_cpu_with_a_warning_and_gpu_is_an_error(folder, caplog):
    with lease("4GB"), lease("4GB"):
        with lease("4GB", timeout=0.05) as held:
            assert (held.gpu, held.fallback) == (None, True)
            assert held.waited >= 0.05
            assert not [name for name in held_names(folder) if name.startswith("wait")]
        assert "no GPU came free within 0.05 s (GPU 0: 1 of 1 slots taken" in caplog.text
        assert caplog.records[-1].levelname == "WARNING"
        refusal_of(("0.02 s", "--gpu_timeout"), "4GB", backend="gpu", timeout=0.02)


def test_the_default_of_auto_is_five_minutes_and_of_gpu_no_limit(monkeypatch):
    given = []

    def wait(self, limit, **_):
        given.append(limit)
        return leases.Lease(leases.read_gpus()[0])

    monkeypatch.setattr(Taker, "wait", wait)
    for backend in ("auto", "gpu"):
        with lease("4GB", backend=backend):
            pass
    assert given == [300.0, None]


def test_the_log_says_why_it_waits_once_a_minute(reading, caplog, monkeypatch):
    now = iter(range(0, 10_000, 10))
    monkeypatch.setattr(leases.time, "monotonic", lambda: float(next(now)))
    monkeypatch.setattr(leases.time, "sleep", lambda _: None)
    other = a40(free=3, processes=(GpuProcess(7, 1),))
    reading((a40(free=3),), (a40(free=3),), (other,), (other,), (a40(),))
    with caplog.at_level(logging.INFO), lease("4GB"):
        pass
    waits = [r.message for r in caplog.records if r.message.startswith("waiting for 4.0 GB")]
    assert [wait.partition("GPU 0: ")[2] for wait in waits] == [
        "3.0 GB available; needs 4.0 GB",
        "3.0 GB available, and another process is there; needs 6.0 GB",
    ]


def test_a_gpu_that_fails_while_waiting_is_waited_out(reading):
    source = reading((a40(free=1),), (a40(fault="lost"),), (a40(),))
    with lease("4GB", backend="gpu") as held:
        assert held.gpu is not None
    assert source.reads == 3


def test_nvml_that_fails_while_waiting_counts_as_gone(reading):
    answers = (a40(free=1),), GpusUnavailableError("NVML fails")
    reading(*answers)
    refusal_of(("NVML fails", "--backend cpu"), "4GB", backend="gpu")
    reading(*answers)
    with lease("4GB") as held:
        assert (held.gpu, held.fallback) == (None, True)


def test_a_folder_that_cannot_be_used_is_the_cpu_with_a_warning_or_an_error(folder, caplog):
    folder.write_text("")
    with lease("4GB") as held:
        assert (held.gpu, held.fallback) == (None, True)
    assert caplog.records[-1].levelname == "WARNING"
    assert "it must be a folder" in caplog.text
    refusal_of((folder, "OCTANE_GPU_LOCK_DIR"), "4GB", backend="gpu")


def test_an_interrupt_right_after_the_grant_loses_nothing(folder, monkeypatch):
    def interrupted(self, gpu, *_):
        assert held_names(folder) == [f"{FIRST}.0"]
        raise KeyboardInterrupt

    monkeypatch.setattr(Taker, "_lease", interrupted)
    with pytest.raises(KeyboardInterrupt):
        lease("4GB").__enter__()
    assert held_names(folder) == []


@pytest.mark.parametrize(
    ("memory", "more", "names"),
    [
        ("4GB", {"backend": "cuda"}, ("'cuda'", "auto, gpu, cpu")),
        ("4GB", {"slots": 0}, ("0 slots", "300.0 s")),
        ("4GB", {"timeout": float("nan")}, ("1 slots", "nan s")),
        ("4GB", {"timeout": -1}, ("1 slots", "-1 s")),
        ("much", {}, ("'much'", "4GB")),
        ("10000000TB", {}, ("10000000TB", "4GB")),
        (-1, {}, ("-1", "4GB")),
    ],
)
def test_an_unknown_backend_and_impossible_figures_are_refused(memory, more, names):
    refusal_of(names, memory, **more)
    assert parse_memory("4GB") == parse_memory(4 * GB) == 4 * GB


def test_folder_and_gpus_are_the_nodes_own_unless_the_environment_says_so(monkeypatch, folder):
    assert leases.default_folder() == folder
    assert leases.read_gpus()[0].name == "simulated GPU"
    monkeypatch.delenv("OCTANE_GPU_LOCK_DIR")
    monkeypatch.delenv(VARIABLE)
    assert leases.default_folder() == Path("/var/tmp/octane-gpu-leases")
    monkeypatch.setattr(nvml, "read", lambda: ())
    assert leases.read_gpus() == ()


def test_a_waiter_that_is_stopped_holds_up_nobody(folder):
    now = time.monotonic()
    waiting = LeaseRecord(
        required=30 * GB, slots=1, since=now - 100, seen=now, uuids=(FIRST, SECOND)
    )
    with LeaseFolder(folder) as opened:
        places = [opened.take("wait", waiting) for _ in range(2)]
    with lease("30GB", timeout=0) as held:
        assert held.gpu is None
    for place in places:
        place.write(waiting.model_copy(update={"seen": now - 2 * leases.ABSENT}))
    with lease("30GB", timeout=0) as held:
        assert held.gpu is not None
    for place in places:
        place.release()
