"""The one retry loop, on simulated devices that fail as the test wants."""

import gc
import logging
import weakref
from contextlib import contextmanager

import numpy as np
import pytest

from octane.core.errors import OctaneError
from octane.gpu import lease, run
from octane.gpu.device import DeviceMissingError, DeviceTakenError
from octane.gpu.lease_folder import LeaseFolder
from octane.gpu.run import run_on_gpu
from octane.gpu.simulated import SimulatedGpus, simulated_uuid

FIRST, SECOND = simulated_uuid(0), simulated_uuid(1)
GB = 10**9


class NoMemoryError(Exception):
    pass


class FakeDevice:
    """A device with a log of what is done to it."""

    def __init__(self, uuid, log, trouble):
        self.uuid, self.log, self.trouble = uuid, log, trouble
        self.xp = np
        self.depth = 0

    def open(self):
        self.log.append(("open", self.uuid))
        if self.trouble.get("taken", 0):
            self.trouble["taken"] -= 1
            raise DeviceTakenError("cudaErrorDevicesUnavailable")

    @contextmanager
    def active(self):
        self.depth += 1
        yield
        self.depth -= 1

    def is_out_of_memory(self, error):
        return isinstance(error, NoMemoryError)

    def empty(self):
        self.log.append(("empty", self.uuid))

    def leave(self):
        self.log.append(("leave", self.uuid))


class FakeDevices:
    def __init__(self, **trouble):
        self.log = []
        self.trouble = trouble

    def __call__(self, uuid):
        if uuid in self.trouble.get("unusable", ()):
            raise DeviceMissingError("CUDA does not start")
        return FakeDevice(uuid, self.log, self.trouble)

    def missing(self):
        return self.trouble.get("missing")

    def done_to(self, uuid):
        return [what for what, which in self.log if which == uuid]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(lease, "TICK", 0.01)
    monkeypatch.setattr(run, "PAUSE", 0.001)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def node(tmp_path):
    def with_gpus(description="2x40GB"):
        return {"folder": tmp_path / "leases", "source": SimulatedGpus(description)}

    return with_gpus


def where(share):
    """The GPU that the work runs on."""
    return None if share.lease.gpu is None else share.lease.gpu.uuid


def outcomes(done):
    return [(attempt.outcome, attempt.batch) for attempt in done.attempts]


def fitting(limit):
    """Work that runs out of memory on a GPU with batches over a limit."""

    def work(share):
        if share.lease.gpu is not None and share.batch > limit:
            raise NoMemoryError(f"{share.batch} do not fit")
        return share.batch

    return work


def test_work_runs_on_the_gpu_and_the_pool_is_returned(node):
    devices = FakeDevices()
    done = run_on_gpu(where, GB, devices=devices, **node())
    assert done.result == FIRST
    assert devices.log == [("open", FIRST), ("empty", FIRST)]
    assert done.figures()["backend"] == "gpu"
    assert done.figures()["gpu"] == FIRST
    assert done.figures()["fell_back"] is False


def test_the_lease_is_held_while_the_work_runs_and_not_after_it(node, tmp_path):
    def held():
        with LeaseFolder(tmp_path / "leases") as folder, folder.mutex():
            return [name for name, _ in folder.held(FIRST)]

    done = run_on_gpu(lambda share: held(), GB, devices=FakeDevices(), **node())
    assert done.result == [f"{FIRST}.0"]
    assert held() == []


def test_every_thread_of_the_work_can_choose_the_device(node):
    def work(share):
        before = share.device.depth
        with share.active():
            return before, share.device.depth

    assert run_on_gpu(work, GB, devices=FakeDevices(), **node()).result == (1, 2)


def test_the_batch_is_halved_before_the_gpu_is_given_up(node):
    devices = FakeDevices()
    done = run_on_gpu(fitting(2), GB, batch=9, devices=devices, **node())
    assert done.result == 2
    assert outcomes(done) == [
        ("out of memory", 9), ("out of memory", 4), ("done", 2),
    ]  # fmt: skip
    assert done.attempts[0].detail == "9 do not fit"
    assert devices.log == [("open", FIRST)] + [("empty", FIRST)] * 3


def test_what_a_failed_try_had_on_the_device_is_dropped_before_the_pool_is_returned(node):
    alive = []

    class Watching(FakeDevices):
        def __call__(self, uuid):
            device = FakeDevice(uuid, self.log, self.trouble)
            device.empty = lambda: self.log.append(("alive", [ref() is not None for ref in alive]))
            return device

    class Array:
        pass

    def inner(array):
        raise NoMemoryError("full")

    def work(share):
        if share.batch > 1:
            array = Array()
            alive.append(weakref.ref(array))
            try:
                inner(array)
            except NoMemoryError as error:
                raise NoMemoryError("full") from error
        return share.batch

    devices = Watching()
    gc.disable()
    try:
        run_on_gpu(work, GB, batch=2, devices=devices, **node())
    finally:
        gc.enable()
    assert ("alive", [False]) in devices.log
    assert ("alive", [True]) not in devices.log


def test_a_gpu_whose_smallest_batch_does_not_fit_is_left_for_another(node):
    devices = FakeDevices()

    def work(share):
        if where(share) == FIRST:
            raise NoMemoryError("full")
        return share.batch

    done = run_on_gpu(work, GB, batch=2, devices=devices, **node())
    assert done.result == 2
    assert [(a.gpu, a.batch) for a in done.attempts] == [(FIRST, 2), (FIRST, 1), (SECOND, 2)]
    assert devices.done_to(FIRST) == ["open", "empty", "empty", "leave"]
    assert "leave" not in devices.done_to(SECOND)


def test_on_a_single_gpu_another_moment_is_tried_without_losing_the_context(node):
    devices = FakeDevices()
    tries = []

    def work(share):
        tries.append(share.batch)
        if len(tries) < 3:
            raise NoMemoryError("full")
        return "done"

    done = run_on_gpu(work, GB, devices=devices, **node("1x40GB"))
    assert done.result == "done"
    assert outcomes(done) == [("out of memory", 1)] * 2 + [("done", 1)]
    assert "leave" not in devices.done_to(FIRST)


def test_in_the_end_auto_takes_the_cpu_with_the_whole_batch_and_the_context_is_released(node):
    devices = FakeDevices()
    done = run_on_gpu(fitting(0), GB, batch=2, devices=devices, **node("1x40GB"))
    assert done.result == 2
    assert outcomes(done) == [
        *([("out of memory", 2), ("out of memory", 1)] * run.MOMENTS),
        ("no GPU", 2),
        ("done", 2),
    ]
    assert devices.log[-1] == ("leave", FIRST)
    figures = done.figures()
    assert (figures["backend"], figures["gpu"], figures["fell_back"]) == ("cpu", None, True)


def test_in_the_end_gpu_is_an_error(node):
    with pytest.raises(OctaneError, match="no other GPU is left to try"):
        run_on_gpu(fitting(0), GB, backend="gpu", devices=FakeDevices(), **node())


def test_a_lost_race_at_the_context_is_tried_again(node):
    devices = FakeDevices(taken=2)
    done = run_on_gpu(lambda share: 5, GB, backend="gpu", devices=devices, **node("1x40GB"))
    assert [o for o, _ in outcomes(done)] == ["taken by another"] * 2 + ["done"]
    assert "leave" not in devices.done_to(FIRST)


def test_a_race_that_is_always_lost_ends_with_the_timeout(node):
    done = run_on_gpu(
        lambda share: share.xp, GB, timeout=0.05, devices=FakeDevices(taken=10**9), **node()
    )
    assert done.result is np
    assert [o for o, _ in outcomes(done)][-2:] == ["no GPU", "done"]
    with pytest.raises(OctaneError, match=r"no GPU could be used within 0\.05 s.*--gpu-timeout"):
        run_on_gpu(
            lambda share: None, GB, backend="gpu", timeout=0.05, devices=FakeDevices(taken=10**9),
            **node(),
        )  # fmt: skip


def test_a_gpu_that_the_library_cannot_use_is_passed_over(node, caplog):
    devices = FakeDevices(unusable=[FIRST])
    done = run_on_gpu(where, GB, devices=devices, **node())
    assert done.result == SECOND
    assert "CUDA does not start" in caplog.text
    devices = FakeDevices(unusable=[FIRST, SECOND])
    done = run_on_gpu(where, GB, devices=devices, **node())
    assert done.result is None
    assert [o for o, _ in outcomes(done)] == ["not usable", "not usable", "no GPU", "done"]


def test_without_the_library_nothing_is_leased(node, tmp_path, caplog):
    devices = FakeDevices(missing="CuPy is not installed")
    with caplog.at_level(logging.INFO):
        done = run_on_gpu(lambda share: share.xp, GB, devices=devices, **node())
    assert done.result is np
    assert "CPU, because CuPy is not installed" in caplog.text
    assert not (tmp_path / "leases").exists()
    with pytest.raises(OctaneError, match="CuPy is not installed: install CuPy"):
        run_on_gpu(lambda share: None, GB, backend="gpu", devices=devices, **node())


def test_cpu_makes_no_device(node, tmp_path):
    devices = FakeDevices()
    done = run_on_gpu(lambda share: share.xp, GB, backend="cpu", devices=devices, **node())
    assert (done.result, devices.log) == (np, [])
    assert outcomes(done) == [("done", 1)]
    assert not (tmp_path / "leases").exists()
    with run_on_gpu(lambda share: share, GB, backend="cpu", **node()).result.active():
        pass  # nothing to choose


def test_another_error_is_the_works_own(node, tmp_path):
    def work(share):
        raise ValueError("wrong axis")

    with pytest.raises(ValueError, match="wrong axis"):
        run_on_gpu(work, GB, devices=FakeDevices(), **node())


def test_the_memory_may_depend_on_the_batch(node):
    done = run_on_gpu(
        lambda share: share.lease.required, lambda n: n * GB, batch=3, devices=FakeDevices(),
        **node(),
    )  # fmt: skip
    assert done.result == 3 * GB
