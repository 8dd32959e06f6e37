import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from octane.core import arrays
from octane.core.errors import OctaneError


class CUDARuntimeError(RuntimeError):
    pass


class FakeArray(np.ndarray):
    """What namespace() takes for a CuPy array: its class comes from a module named cupy."""


FakeArray.__module__ = "cupy._core.core"


def fake_cupy(devices=1, error=None):
    def count():
        if error:
            raise CUDARuntimeError(error)
        return devices

    cupy = ModuleType("cupy")
    vars(cupy).update(
        __version__="13.6.0",
        asnumpy=np.asarray,
        cuda=SimpleNamespace(
            runtime=SimpleNamespace(
                CUDARuntimeError=CUDARuntimeError,
                getDeviceCount=count,
                getDevice=lambda: 0,
                deviceGetPCIBusId={0: "0000:3B:00.0"}.__getitem__,
                getDeviceProperties=lambda _: {
                    "name": b"NVIDIA A6000",
                    "totalGlobalMem": 48 << 30,
                },
                driverGetVersion=lambda: 12040,
                runtimeGetVersion=lambda: 12080,
            )
        ),
    )
    return cupy


@pytest.fixture
def no_cupy(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)  # importing it fails


def test_namespace_of_host_arrays_is_numpy_without_importing_cupy(no_cupy):
    assert arrays.namespace(np.zeros(2), 3.0) is np
    assert arrays.namespace() is np


def test_namespace_of_a_device_array(monkeypatch):
    cupy = fake_cupy()
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    array = np.zeros(3).view(FakeArray)
    assert arrays.namespace(np.zeros(3), array) is cupy
    assert type(arrays.to_host(array)) in (np.ndarray, FakeArray)


def test_to_host_leaves_host_arrays_alone():
    array = np.zeros(3)
    assert arrays.to_host(array) is array


def test_a_step_of_the_cpu_refuses_a_gpu():
    for name in ("auto", "cpu"):
        arrays.require_cpu(name, "STITCH")
    with pytest.raises(OctaneError, match="STITCH runs on the CPU"):
        arrays.require_cpu("gpu", "STITCH")


@pytest.fixture
def nvml(monkeypatch):
    """An NVML that knows one GPU by its place on the bus."""
    answers = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: "570.86.15",
        "nvmlDeviceGetHandleByPciBusId": {b"0000:3B:00.0": "handle"}.__getitem__,
        "nvmlDeviceGetMaxPcieLinkGeneration": {"handle": 4}.__getitem__,
        "nvmlDeviceGetMaxPcieLinkWidth": {"handle": 16}.__getitem__,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(arrays.pynvml, name, answer)


def test_describe_a_gpu(nvml):
    assert arrays.describe(fake_cupy()) == {
        "backend": "gpu",
        "device": "NVIDIA A6000",
        "driver": "570.86.15",
        "cuda": "12.4",
        "runtime": "12.8",
        "memory_bytes": 48 << 30,
        "pcie_generation": 4,
        "pcie_width": 16,
        "library": "cupy 13.6.0",
    }


def test_a_gpu_without_a_link_of_its_own_has_no_width(nvml, monkeypatch):
    def unsupported(_):
        raise arrays.pynvml.NVMLError(arrays.pynvml.NVML_ERROR_NOT_SUPPORTED)

    monkeypatch.setattr(arrays.pynvml, "nvmlDeviceGetMaxPcieLinkWidth", unsupported)
    found = arrays.describe(fake_cupy())
    assert (found["driver"], found["pcie_width"]) == ("570.86.15", None)


def test_describe_a_cpu():
    found = arrays.describe(np)
    assert found["backend"] == "cpu"
    assert found["device"]
    assert found["driver"] is None


def test_a_machine_without_nvml_has_no_driver_version(monkeypatch):
    def missing():
        raise arrays.pynvml.NVMLError(arrays.pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(arrays.pynvml, "nvmlInit", missing)
    assert arrays.describe(fake_cupy())["driver"] is None
