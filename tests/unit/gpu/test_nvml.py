"""Every way in which NVML fails has an answer; figures that it lacks are None."""

from types import SimpleNamespace

import pynvml
import pytest

from octane.gpu import nvml
from octane.gpu.inventory import Gpu, GpuProcess, GpusUnavailableError

GB = 10**9


def error(code):
    return pynvml.NVMLError(code)


class Fake:
    """NVML with GPUs that are dicts; a value that is an error is raised."""

    def __init__(self, *gpus):
        self.gpus = list(gpus)
        self.init: pynvml.NVMLError | None = None

    def install(self, monkeypatch):
        def start():
            if self.init is not None:
                raise self.init

        def handle(index):
            return self._given(self.gpus[index], "handle", self.gpus[index])

        def instance(gpu, place):
            if place >= len(gpu["instances"]):
                raise error(pynvml.NVML_ERROR_NOT_FOUND)
            return gpu["instances"][place]

        def processes(key):
            return lambda gpu: [
                SimpleNamespace(pid=pid, usedGpuMemory=used)
                for pid, used in self._given(gpu, key, [])
            ]

        unsupported = error(pynvml.NVML_ERROR_NOT_SUPPORTED)
        fakes = {
            "nvmlInit": start,
            "nvmlDeviceGetCount": lambda: len(self.gpus),
            "nvmlDeviceGetHandleByIndex": handle,
            "nvmlDeviceGetUUID": lambda gpu: self._given(gpu, "uuid", None),
            "nvmlDeviceGetName": lambda gpu: self._given(gpu, "name", "A40"),
            "nvmlDeviceGetMigMode": lambda gpu: self._given(gpu, "mig", unsupported),
            "nvmlDeviceGetMaxMigDeviceCount": lambda gpu: 7,
            "nvmlDeviceGetMigDeviceHandleByIndex": instance,
            "nvmlDeviceGetMemoryInfo": lambda gpu: self._given(gpu, "memory", None),
            "nvmlDeviceGetUtilizationRates": lambda gpu: self._given(gpu, "rates", unsupported),
        }
        for name, fake in fakes.items():
            monkeypatch.setattr(pynvml, name, fake)
        monkeypatch.setattr(
            nvml,
            "PROCESS_LISTS",
            (processes("compute"), processes("graphics")),
        )
        return self

    @staticmethod
    def _given(gpu, key, default):
        value = gpu.get(key, default)
        if isinstance(value, pynvml.NVMLError):
            raise value
        return value


def a40(index, **other):
    return {
        "uuid": f"GPU-{index}",
        "memory": SimpleNamespace(total=48 * GB, free=40 * GB),
        "rates": SimpleNamespace(gpu=30),
        **other,
    }


def test_a_gpu_is_read_with_all_its_processes(monkeypatch):
    Fake(a40(0, compute=[(7, 2 * GB), (8, None)], graphics=[(9, 1), (7, GB)])).install(monkeypatch)
    assert nvml.read() == (
        Gpu(
            0, "GPU-0", "A40", 48 * GB, 40 * GB, utilisation=30,
            processes=(GpuProcess(7, 2 * GB), GpuProcess(8, None), GpuProcess(9, 1)),
        ),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "no NVIDIA driver"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "not loaded"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "a reboot is due"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "may not use"),
        (pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, "too old"),
        (pynvml.NVML_ERROR_UNKNOWN, "NVML fails"),
    ],
)
def test_without_nvml_there_is_a_reason(monkeypatch, code, words):
    Fake(a40(0)).install(monkeypatch).init = error(code)
    with pytest.raises(GpusUnavailableError, match=words):
        nvml.read()


@pytest.mark.parametrize("where", ["handle", "uuid", "memory", "rates", "compute"])
def test_a_gpu_that_is_lost_has_a_fault_and_the_others_count(monkeypatch, where):
    Fake(a40(0, **{where: error(pynvml.NVML_ERROR_GPU_IS_LOST)}), a40(1)).install(monkeypatch)
    lost, sound = nvml.read()
    assert lost.fault is not None
    assert "lost" in lost.fault
    assert (lost.total, lost.free, lost.index) == (0, 0, 0)
    assert sound.fault is None


def test_figures_that_a_gpu_does_not_have_are_none(monkeypatch):
    unsupported = error(pynvml.NVML_ERROR_NOT_SUPPORTED)
    Fake(a40(0, rates=unsupported, compute=unsupported, graphics=unsupported)).install(monkeypatch)
    (gpu,) = nvml.read()
    assert (gpu.utilisation, gpu.processes, gpu.fault) == (None, None, None)


def test_a_gpu_split_by_mig_is_its_instances(monkeypatch):
    instances = [
        {"uuid": f"MIG-{n}", "memory": SimpleNamespace(total=20 * GB, free=19 * GB)}
        for n in range(2)
    ]
    split = a40(0, mig=(pynvml.NVML_DEVICE_MIG_ENABLE, 1), instances=instances)
    Fake(split, a40(1, mig=(0, 0))).install(monkeypatch)
    first, second, whole = nvml.read()
    assert (first.uuid, first.parent, first.index) == ("MIG-0", "GPU-0", 0)
    assert (second.uuid, second.total, second.utilisation) == ("MIG-1", 20 * GB, None)
    assert (whole.uuid, whole.parent, whole.index) == ("GPU-1", None, 1)
