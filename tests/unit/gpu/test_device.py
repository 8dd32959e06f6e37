"""A GPU for CuPy: found by its UUID, emptied, left, and described."""

import random
import sys
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from octane.gpu import device as gpu_device
from octane.gpu.device import CupyDevice, DeviceMissingError, DeviceTakenError
from octane.gpu.simulated import simulated_uuid

FIRST, SECOND = simulated_uuid(0), simulated_uuid(1)


class CUDARuntimeError(RuntimeError):
    def __init__(self, status):
        super().__init__(f"cuda {status}")
        self.status = status


class CUDADriverError(CUDARuntimeError):
    pass


class OutOfMemoryError(MemoryError):
    pass


class FakeCupy(ModuleType):
    """As much of CuPy as is called, with a log; the calls of the runtime may fail."""

    __version__ = "13.6.0"

    def __init__(self, uuids):
        super().__init__("cupy")
        self.log, self.current, self.errors = [], [], {}

        @contextmanager
        def device(ordinal):
            self.current.append(ordinal)
            yield
            self.current.pop()

        def called(name, answer):
            if name in self.errors:
                raise CUDARuntimeError(self.errors[name])
            return answer

        def properties(n):
            uuid = bytes.fromhex(uuids[n].removeprefix("GPU-").replace("-", ""))
            return {"uuid": uuid, "name": b"NVIDIA A6000", "totalGlobalMem": 48 << 30}

        self.cuda = SimpleNamespace(
            Device=device,
            memory=SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
            driver=SimpleNamespace(CUDADriverError=CUDADriverError),
            runtime=SimpleNamespace(
                CUDARuntimeError=CUDARuntimeError,
                getDeviceCount=lambda: called("count", len(uuids)),
                getDevice=lambda: 0,
                getDeviceProperties=properties,
                driverGetVersion=lambda: 12040,
                runtimeGetVersion=lambda: 12080,
                free=lambda _: called("free", self.log.append(("free", self.current[-1]))),
            ),
        )

    def get_default_memory_pool(self):
        return SimpleNamespace(free_all_blocks=lambda: self.log.append(("pool", self.current[-1])))

    def get_default_pinned_memory_pool(self):
        return SimpleNamespace(free_all_blocks=lambda: self.log.append(("pinned", None)))


@pytest.fixture
def cupy(monkeypatch):
    def install(*uuids):
        module = FakeCupy(uuids or (SECOND, FIRST))
        monkeypatch.setitem(sys.modules, "cupy", module)
        return module

    return install


def test_a_gpu_is_found_by_its_uuid_in_cudas_own_order(cupy):
    module = cupy(SECOND, FIRST)
    device = CupyDevice(FIRST)
    assert device.ordinal == 1
    device.open()
    with device.active():
        assert module.current == [1]
    device.empty()
    assert module.log == [("free", 1), ("pool", 1), ("pinned", None)]


@pytest.mark.parametrize("status", [2, 46])
def test_a_context_that_cannot_be_made_is_a_lost_race(cupy, status):
    module = cupy()
    module.errors["free"] = status
    with pytest.raises(DeviceTakenError):
        CupyDevice(FIRST).open()
    module.errors["free"] = 700
    with pytest.raises(CUDARuntimeError):
        CupyDevice(FIRST).open()


def test_what_says_that_memory_ran_out(cupy):
    cupy()
    device = CupyDevice(FIRST)
    errors = [OutOfMemoryError(), CUDARuntimeError(2), CUDADriverError(2)]
    assert all(device.is_out_of_memory(error) for error in errors)
    others = [CUDARuntimeError(700), MemoryError(), ValueError()]
    assert not any(device.is_out_of_memory(error) for error in others)


def test_a_gpu_that_cupy_cannot_use_is_said(cupy, monkeypatch):
    cupy(SECOND)
    with pytest.raises(DeviceMissingError, match="CUDA shows 1 devices"):
        CupyDevice(FIRST)
    cupy().errors["count"] = 35
    with pytest.raises(DeviceMissingError, match="CUDA does not start"):
        CupyDevice(FIRST)
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(DeviceMissingError, match="cannot be imported"):
        CupyDevice(FIRST)


def test_a_mig_instance_is_chosen_before_cuda_starts(cupy, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    cupy(FIRST)
    assert CupyDevice("MIG-1").ordinal == 0
    assert gpu_device.os.environ["CUDA_VISIBLE_DEVICES"] == "MIG-1"


def test_leaving_releases_the_primary_context_of_the_device(cupy, monkeypatch):
    module = cupy()
    calls = []

    class Driver:
        def cuDeviceGet(self, pointer, ordinal):
            calls.append(("get", ordinal))
            return 0

        def cuDevicePrimaryCtxReset_v2(self, device):
            calls.append(("reset",))

    monkeypatch.setattr(gpu_device.ctypes, "CDLL", lambda name: calls.append(name) or Driver())
    CupyDevice(FIRST).leave()
    assert calls == ["libcuda.so.1", ("get", 1), ("reset",)]
    assert module.log == [("pool", 1), ("pinned", None)]


def test_whether_cupy_is_there_is_told_without_loading_it(monkeypatch):
    monkeypatch.setattr(gpu_device.importlib.util, "find_spec", lambda name: None)
    assert CupyDevice.missing() == "CuPy is not installed"
    monkeypatch.setattr(gpu_device.importlib.util, "find_spec", lambda name: random)
    assert CupyDevice.missing() is None


@pytest.mark.parametrize("without", [None, "nvmlInit", "nvmlSystemGetDriverVersion"])
def test_describe_a_gpu(cupy, monkeypatch, without):
    def missing():
        raise gpu_device.pynvml.NVMLError(gpu_device.pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    answers = {"nvmlInit": None, "nvmlShutdown": None, "nvmlSystemGetDriverVersion": "570.86.15"}
    for name, answer in answers.items():
        answered = missing if name == without else lambda answer=answer: answer
        monkeypatch.setattr(gpu_device.pynvml, name, answered)
    assert gpu_device.describe(cupy()) == {
        "backend": "gpu",
        "device": "NVIDIA A6000",
        "driver": "570.86.15" if without is None else None,
        "cuda": "12.4",
        "runtime": "12.8",
        "memory_bytes": 48 << 30,
        "library": "cupy 13.6.0",
    }


def test_describe_a_cpu():
    found = gpu_device.describe(np)
    assert found["backend"] == "cpu"
    assert found["device"]
    assert found["driver"] is None
