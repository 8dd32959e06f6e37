"""The retry loop, on devices that compute with NumPy and fail on demand."""

import gc
import importlib.util
import logging
import os
import sys
import weakref
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
from refusals import refused

from octane.config.parameters import LeaseParameters
from octane.core.errors import GpuLostError, NoGpuError
from octane.core.metrics import Metrics
from octane.gpu import lease, run
from octane.gpu.device import CupyDevice, DeviceMissingError, DeviceTakenError
from octane.gpu.inventory import (
    VARIABLE,
    Gpu,
    GpuProcess,
    GpusUnavailableError,
    simulated_uuid,
)
from octane.gpu.lease_folder import LeaseFolder

FIRST, SECOND = simulated_uuid(0), simulated_uuid(1)
GB = 10**9


class NoMemoryError(Exception):
    pass


class FakeDevices:
    """Devices with a log of their calls, which fail as the test demands."""

    def __init__(self, unusable=(), taken=0, missing=None, lost=False):
        self.log = []
        self.unusable, self.taken, self.missing = unusable, taken, lambda: missing
        self.lost = lost

    def __call__(self, uuid):
        if uuid in self.unusable:
            raise DeviceMissingError("CUDA does not start")

        def open_it():
            self.log.append(("open", uuid))
            if self.taken:
                self.taken -= 1
                raise DeviceTakenError("cudaErrorDevicesUnavailable")

        return SimpleNamespace(
            uuid=uuid, xp=np, open=open_it, active=nullcontext,
            is_out_of_memory=lambda error: isinstance(error, NoMemoryError),
            is_lost=lambda: self.lost, empty=lambda: self.log.append(("empty", uuid)),
        )  # fmt: skip


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(lease, "TICK", 0.01)
    monkeypatch.setattr(run, "PAUSE", 0.001)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return monkeypatch


@pytest.fixture
def on_gpu(tmp_path, quick):
    """Do work on two GPUs of 40 GB with fake devices; return result, figures and tries."""

    def do(work, *, batch=1, backend="auto", timeout=300.0, gpus="2x40GB", devices=None):
        devices = devices or FakeDevices()
        quick.setenv(VARIABLE, gpus)
        quick.setattr(run, "CupyDevice", devices)
        quick.setenv("OCTANE_GPU_LOCK_DIR", str(tmp_path / "leases"))
        sharing = LeaseParameters(gpu_timeout=timeout)
        metrics = Metrics("test")
        more = {"sharing": sharing, "metrics": metrics, "subject": "test"}
        result = run.on_device(work, lambda n: n * GB, batch=batch, backend=backend, **more)
        figures = metrics.figures["gpu"]
        assert isinstance(figures, dict)
        tries = [(attempt["outcome"], attempt["batch"]) for attempt in figures["attempts"]]
        return SimpleNamespace(
            result=result, figures=figures, tries=tries, metrics=metrics, log=devices.log
        )

    return do


def where(share):
    """Return the GPU that the work runs on."""
    return None if share.device is None else share.device.uuid


def fitting(limit):
    """Work that runs out of GPU memory with batches above a limit."""

    def work(share):
        if share.device is not None and share.batch > limit:
            raise NoMemoryError(f"{share.batch} do not fit")
        return share.batch

    return work


def test_work_runs_on_the_gpu_with_a_lease_and_the_pool_is_freed(on_gpu, tmp_path):
    def held():
        with LeaseFolder(tmp_path / "leases") as folder:
            return [
                (held.name, held.record and held.record.required) for held in folder.held(FIRST)
            ]

    done = on_gpu(lambda share: (where(share), held()), batch=3)
    assert done.result == (FIRST, [(f"{FIRST}.0", run.CONTEXT_BYTES + 3 * GB)])
    assert held() == []
    assert done.log == [("open", FIRST), ("empty", FIRST)]
    figures = done.figures
    assert (figures["backend"], figures["gpu"], figures["fell_back"]) == ("gpu", FIRST, False)


@pytest.mark.parametrize(
    ("before", "after", "measured"),
    [
        # Another process has this one's number in NVML, as may happen in a container.
        ({1: GB}, {1: GB}, None),
        ({}, {}, None),
        ({}, {1: None}, None),
        ({}, {1: 400_000_000}, 400_000_000),
        ({}, {1: 700_000_000, 2: GB}, 700_000_000),
        ({1: GB}, {1: GB + 700_000_000}, 700_000_000),
        (None, None, None),
    ],
)
def test_the_context_is_measured_where_nvml_shows_it_and_the_lease_covers_it(
    on_gpu, quick, tmp_path, before, after, measured
):
    """Process 1 is this one."""
    devices = FakeDevices()

    def read_gpus():
        shown = after if devices.log else before
        if shown is None:
            raise GpusUnavailableError("NVML fails")
        used = tuple(GpuProcess(os.getpid() + n - 1, memory) for n, memory in shown.items())
        return Gpu(0, FIRST, "fake", 40 * GB, 40 * GB, processes=used), Gpu(1, SECOND, "", 1, 1)

    def required(share):
        with LeaseFolder(tmp_path / "leases") as folder:
            return [held.record.required for held in folder.held(FIRST)]

    quick.setattr(run, "read_gpus", read_gpus)
    done = on_gpu(required, devices=devices)
    assert done.figures["context_bytes"] == measured
    assert done.result == [GB + max(run.CONTEXT_BYTES, measured or 0)]


def test_arrays_of_a_failed_try_are_dropped_before_the_pool_is_freed(on_gpu):
    alive, seen = [], []

    class Watching(FakeDevices):
        def __call__(self, uuid):
            device = super().__call__(uuid)
            device.empty = lambda: seen.append([ref() is not None for ref in alive])
            return device

    def inner(array):
        raise NoMemoryError("full")

    def work(share):
        if share.batch > 1:
            array = np.zeros(1)
            alive.append(weakref.ref(array))
            try:
                inner(array)
            except NoMemoryError as error:
                raise NoMemoryError("full") from error

    gc.disable()
    try:
        on_gpu(work, batch=2, devices=Watching())
    finally:
        gc.enable()
    assert seen == [[False], [False]]


def test_a_gpu_whose_smallest_batch_does_not_fit_is_left_for_another(on_gpu):
    def work(share):
        if where(share) == FIRST:
            raise NoMemoryError("full")
        return where(share)

    done = on_gpu(work, batch=2)
    assert done.result == SECOND
    assert done.tries == [("out of memory", 2), ("out of memory", 1), ("done", 2)]


def test_a_single_gpu_is_tried_again_at_a_better_moment(on_gpu):
    failures = iter([True, True, False])

    def work(share):
        if next(failures):
            raise NoMemoryError("full")
        return "done"

    done = on_gpu(work, gpus="1x40GB")
    assert done.result == "done"
    assert done.tries == [("out of memory", 1)] * 2 + [("done", 1)]


def test_in_the_end_auto_takes_the_cpu_with_the_whole_batch_and_gpu_is_an_error(on_gpu):
    done = on_gpu(fitting(0), batch=2, gpus="1x40GB")
    assert done.result == 2
    in_vain = [("out of memory", 2), ("out of memory", 1)] * run.MOMENTS
    assert done.tries == [*in_vain, ("no GPU", 2), ("done", 2)]
    figures = done.figures
    assert (figures["backend"], figures["gpu"], figures["fell_back"]) == ("cpu", None, True)
    assert done.metrics.device["backend"] == "cpu"
    assert any("CPU did the work" in warning for warning in done.metrics.warnings)
    with refused("--gpu_timeout", "--backend cpu", error=NoGpuError):
        on_gpu(fitting(0), backend="gpu")


def test_a_lost_race_at_the_context_is_tried_again_until_the_timeout(on_gpu):
    done = on_gpu(lambda share: 5, backend="gpu", gpus="1x40GB", devices=FakeDevices(taken=2))
    assert [outcome for outcome, _ in done.tries] == ["taken by another"] * 2 + ["done"]
    done = on_gpu(where, timeout=0.05, devices=FakeDevices(taken=10**9))
    assert done.result is None
    assert [outcome for outcome, _ in done.tries][-2:] == ["no GPU", "done"]
    with refused("0.05 s", "--gpu_timeout", error=NoGpuError):
        on_gpu(where, backend="gpu", timeout=0.05, devices=FakeDevices(taken=10**9))


def test_a_gpu_that_the_library_cannot_use_is_passed_over(on_gpu, caplog):
    assert on_gpu(where, devices=FakeDevices(unusable=[FIRST])).result == SECOND
    assert "CUDA does not start" in caplog.text
    done = on_gpu(where, devices=FakeDevices(unusable=[FIRST, SECOND]))
    assert done.result is None
    assert [outcome for outcome, _ in done.tries] == ["not usable", "not usable", "no GPU", "done"]


def test_without_the_library_nothing_is_leased(on_gpu, tmp_path, caplog):
    devices = FakeDevices(missing="CuPy is not installed; install CuPy")
    with caplog.at_level(logging.INFO):
        assert on_gpu(where, devices=devices).result is None
    assert "CPU, because CuPy is not installed" in caplog.text
    with refused(devices.missing(), "--backend cpu", error=NoGpuError):
        on_gpu(where, backend="gpu", devices=devices)
    assert not (tmp_path / "leases").exists()


def test_a_missing_cupy_is_noticed_without_importing_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert str(CupyDevice.missing()).startswith("CuPy is not installed; install CuPy 13")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: sys)
    assert CupyDevice.missing() is None


def test_another_error_is_the_works_own(on_gpu):
    with pytest.raises(ZeroDivisionError):
        on_gpu(lambda share: 1 / 0)


@pytest.mark.parametrize("backend", ["auto", "gpu"])
def test_a_gpu_that_is_lost_ends_the_work_and_the_lease(on_gpu, tmp_path, backend):
    devices = FakeDevices(lost=True)
    with pytest.raises(GpuLostError, match=f"{FIRST} .*--backend cpu") as caught:
        on_gpu(lambda share: 1 / 0, backend=backend, devices=devices)
    assert caught.value.code == 104
    # Its device is not called again.
    assert devices.log == [("open", FIRST)]
    with LeaseFolder(tmp_path / "leases") as folder:
        assert folder.held(FIRST) == []


def test_the_batch_is_halved_and_not_given_up(on_gpu):
    done = on_gpu(fitting(4), batch=9)
    assert done.tries == [("out of memory", 9), ("done", 4)]
    assert done.figures["attempts"][1]["waited"] == 0


def test_the_timeout_is_for_all_waiting_together(on_gpu, quick):
    given = []

    def noted(*request, **more):
        given.append(more["timeout"])
        return lease.lease(*request, **more)

    quick.setattr(run, "lease", noted)
    on_gpu(where, devices=FakeDevices(taken=2))
    assert 300 == given[0] > given[1] > given[2]
