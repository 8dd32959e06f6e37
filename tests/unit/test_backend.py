import logging
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from octane import backend
from octane.errors import OctaneError


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
    assert backend.namespace(np.zeros(2), 3.0) is np
    assert backend.namespace() is np


def test_namespace_of_a_device_array(monkeypatch):
    cupy = fake_cupy()
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    array = np.zeros(3).view(FakeArray)
    assert backend.namespace(np.zeros(3), array) is cupy
    assert type(backend.to_host(array)) in (np.ndarray, FakeArray)


def test_to_host_leaves_host_arrays_alone():
    array = np.zeros(3)
    assert backend.to_host(array) is array


def test_cpu_does_not_import_cupy(no_cupy):
    assert backend.select("cpu") is np


def test_auto_without_cupy_is_the_cpu_and_says_why(no_cupy, caplog):
    with caplog.at_level(logging.INFO):
        assert backend.select("auto") is np
    assert "CuPy cannot be imported" in caplog.text


@pytest.mark.parametrize(
    ("cupy", "words"),
    [
        (fake_cupy(devices=0), "no device"),
        (fake_cupy(error="cudaErrorInsufficientDriver"), "cudaErrorInsufficientDriver"),
    ],
)
def test_without_a_device(monkeypatch, caplog, cupy, words):
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    with caplog.at_level(logging.INFO):
        assert backend.select("auto") is np
    assert words in caplog.text
    with pytest.raises(OctaneError, match=f"{words}.*--backend cpu"):
        backend.select("gpu")


def test_gpu_without_cupy_is_an_error_with_a_remedy(no_cupy):
    with pytest.raises(OctaneError, match="install CuPy"):
        backend.select("gpu")


@pytest.mark.parametrize("name", ["auto", "gpu"])
def test_with_a_device(monkeypatch, name):
    cupy = fake_cupy(devices=2)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    assert backend.select(name) is cupy


def test_an_unknown_backend_is_refused():
    with pytest.raises(OctaneError, match="auto, gpu, cpu"):
        backend.select("cuda")  # ty: ignore[invalid-argument-type]


def test_describe_a_gpu(monkeypatch):
    monkeypatch.setattr(backend.pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(backend.pynvml, "nvmlShutdown", lambda: None)
    monkeypatch.setattr(backend.pynvml, "nvmlSystemGetDriverVersion", lambda: "570.86.15")
    assert backend.describe(fake_cupy()) == {
        "backend": "gpu",
        "device": "NVIDIA A6000",
        "driver": "570.86.15",
        "cuda": "12.4",
        "runtime": "12.8",
        "memory_bytes": 48 << 30,
        "library": "cupy 13.6.0",
    }


def test_describe_a_cpu():
    found = backend.describe(np)
    assert found["backend"] == "cpu"
    assert found["device"]
    assert found["driver"] is None


def test_a_machine_without_nvml_has_no_driver_version(monkeypatch):
    def missing():
        raise backend.pynvml.NVMLError(backend.pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(backend.pynvml, "nvmlInit", missing)
    assert backend.describe(fake_cupy())["driver"] is None
