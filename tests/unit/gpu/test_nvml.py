"""Every failure of NVML has a defined result; unsupported figures are None."""

from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import pynvml
import pytest
from refusals import refused

from octane.gpu import nvml
from octane.gpu.inventory import Gpu, GpuProcess, GpusUnavailableError

GB = 10**9


def error(code):
    return pynvml.NVMLError(code)


UNSUPPORTED = error(pynvml.NVML_ERROR_NOT_SUPPORTED)
GIVEN = {
    "UUID": ("uuid", None),
    "Name": ("name", "A40"),
    "MigMode": ("mig", UNSUPPORTED),
    "MemoryInfo": ("memory", None),
    "UtilizationRates": ("rates", UNSUPPORTED),
}
"""By the end of an NVML function's name: the key of a GPU, and its default."""


def given(gpu, key, default):
    value = gpu.get(key, default)
    if isinstance(value, pynvml.NVMLError):
        raise value
    return value


@pytest.fixture
def node(monkeypatch):
    """Make NVML show GPUs given as dicts; values that are errors are raised."""

    def install(*gpus):
        def instance(gpu, place):
            if place >= len(gpu["instances"]):
                raise error(pynvml.NVML_ERROR_NOT_FOUND)
            return gpu["instances"][place]

        def processes(key):
            return lambda gpu: [
                SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in given(gpu, key, [])
            ]

        for name, (key, default) in GIVEN.items():
            fake = partial(given, key=key, default=default)
            monkeypatch.setattr(pynvml, f"nvmlDeviceGet{name}", fake)
        fakes = {
            "nvmlInit": lambda: None,
            "nvmlDeviceGetCount": lambda: len(gpus),
            "nvmlDeviceGetHandleByIndex": lambda index: given(gpus[index], "handle", gpus[index]),
            "nvmlDeviceGetMaxMigDeviceCount": lambda gpu: 7,
            "nvmlDeviceGetMigDeviceHandleByIndex": instance,
        }
        for name, fake in fakes.items():
            monkeypatch.setattr(pynvml, name, fake)
        monkeypatch.setattr(nvml, "PROCESS_LISTS", (processes("compute"), processes("graphics")))

    return install


def a40(index, **other):
    return {
        "uuid": f"GPU-{index}",
        "memory": SimpleNamespace(total=48 * GB, free=40 * GB),
        "rates": SimpleNamespace(gpu=30),
        **other,
    }


def test_a_gpu_is_read_with_all_its_processes(node):
    node(a40(0, compute=[(7, 2 * GB), (8, None)], graphics=[(9, 1), (7, GB)]))
    assert nvml.read() == (
        Gpu(
            0, "GPU-0", "A40", 48 * GB, 40 * GB, utilisation=30,
            processes=(GpuProcess(7, 2 * GB), GpuProcess(8, None), GpuProcess(9, 1)),
        ),
    )  # fmt: skip


@pytest.mark.parametrize("code", [*nvml.REASONS, pynvml.NVML_ERROR_UNKNOWN])
def test_without_nvml_there_is_a_reason(monkeypatch, code):
    monkeypatch.setattr(pynvml, "nvmlInit", Mock(side_effect=error(code)))
    with refused(nvml.REASONS.get(code, error(code)), error=GpusUnavailableError):
        nvml.read()


@pytest.mark.parametrize("where", ["handle", "uuid", "memory", "rates", "compute"])
def test_a_gpu_that_is_lost_has_a_fault_and_the_others_count(node, where):
    node(a40(0, **{where: error(pynvml.NVML_ERROR_GPU_IS_LOST)}), a40(1))
    lost, sound = nvml.read()
    assert lost.fault is not None
    assert "lost" in lost.fault
    assert (lost.total, lost.free, lost.index) == (0, 0, 0)
    assert sound.fault is None


def test_unsupported_figures_are_none(node):
    node(a40(0, rates=UNSUPPORTED, compute=UNSUPPORTED, graphics=UNSUPPORTED))
    (gpu,) = nvml.read()
    assert (gpu.utilisation, gpu.processes, gpu.fault) == (None, None, None)


def test_a_gpu_split_by_mig_is_its_instances(node):
    instances = [
        {"uuid": f"MIG-{n}", "memory": SimpleNamespace(total=20 * GB, free=19 * GB)}
        for n in range(2)
    ]
    split = a40(0, mig=(pynvml.NVML_DEVICE_MIG_ENABLE, 1), instances=instances)
    node(split, a40(1, mig=(0, 0)))
    first, second, whole = nvml.read()
    assert (first.uuid, first.parent, first.index) == ("MIG-0", "GPU-0", 0)
    assert (second.uuid, second.total, second.utilisation) == ("MIG-1", 20 * GB, None)
    assert (whole.uuid, whole.parent, whole.index) == ("GPU-1", None, 1)
