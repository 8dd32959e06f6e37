"""A GPU for CuPy: finding and opening it, missing libraries, threads and their contexts."""

import os
import re
import subprocess
import sys

import numpy as np
import pynvml
import pytest
import SimpleITK as sitk
from gpu_process import PROJECT, printed, run_process
from python_path import python_path

from octane.config.parameters import LeaseParameters
from octane.core.errors import NoGpuError
from octane.core.metrics import Metrics
from octane.gpu import nvml
from octane.gpu.device import CupyDevice, DeviceMissingError, DeviceTakenError, describe
from octane.gpu.inventory import visible
from octane.gpu.run import on_device

CONTEXTS = """
def contexts():
    import ctypes
    driver, flags, made = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint(), ctypes.c_int()
    found = []
    for device in range(2):
        driver.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(made))
        found.append(made.value)
    return found
"""
"""Prints whether this process has contexts on the first two GPUs."""


@pytest.fixture
def device(cupy):
    """The first GPU that this process may use."""
    return CupyDevice(visible(nvml.read(), os.environ.get("CUDA_VISIBLE_DEVICES"))[0].uuid)


@pytest.mark.emulated
@pytest.mark.parametrize(
    "variables", [{"EMU_UUID_ZERO": "0"}, {"EMU_UUID_ZERO": "9", "EMU_LUID": "1"}], ids=str
)
def test_a_gpu_is_found_whatever_bytes_its_uuid_has(tmp_path, variables):
    code = "print(*(CupyDevice(gpu.uuid).ordinal for gpu in nvml.read()))"
    assert printed(tmp_path, code, EMU_DEVICES="3", **variables) == ["0", "1", "2"]


@pytest.mark.emulated
@pytest.mark.parametrize("order", [None, "FASTEST_FIRST"])
def test_an_index_that_the_user_allows_is_that_of_the_lease_in_any_order_of_cuda(tmp_path, order):
    code = """
    uuids = [gpu.uuid for gpu in nvml.read()]
    with lease(1, backend="gpu", folder=folder / "leases") as held:
        print(uuids.index(held.gpu.uuid), CupyDevice(held.gpu.uuid).ordinal)
    """
    more = {"EMU_DEVICES": "2", "EMU_FASTEST": "1", "CUDA_VISIBLE_DEVICES": "0"}
    assert printed(tmp_path, code, CUDA_DEVICE_ORDER=order, **more) == ["0", "0"]


@pytest.mark.emulated
@pytest.mark.parametrize(
    "module", ["processes.n4.fit", "processes.n4.step", "processes.resample.step", "store.array"]
)
@pytest.mark.parametrize("given", [None, "cub"])
def test_sums_use_cub_only_if_the_user_says_so(module, given):
    """Whichever module is imported first: zarr imports CuPy."""
    code = f"import octane.{module}, cupy; print(cupy.arange(10, dtype='f4').sum() == 45)"
    environment = {**os.environ, **python_path(PROJECT / "bin")}
    environment.pop("CUPY_ACCELERATORS", None)
    if given is not None:
        environment["CUPY_ACCELERATORS"] = given
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    # The emulation lacks CUB, whose sums it leaves undefined.
    assert done.stdout.split() == [str(given is None)]


WORK_IN_THREADS = """
from octane.pipeline.lanes import run_pipeline

def work(share):
    def tile(n, lane):
        block = lane.buffer("block", (1000,), "f4")
        block[:] = n
        back = lane.to_host(lane.to_device(block) * 2, "result")
        assert (back == 2 * n).all()
        return back.nbytes

    run_pipeline(range(6), tile, label="T", workers=3, metrics=Metrics("t"), share=share)
    return share.xp.cuda.runtime.getDevice() if share.device else None
"""


@pytest.mark.emulated
@pytest.mark.parametrize("full", [True, False])
def test_work_on_another_gpu_creates_its_context_only_there(tmp_path, full):
    code = (
        CONTEXTS
        + WORK_IN_THREADS
        + (
            """
first, second = (gpu.uuid for gpu in nvml.read())
with lease(1, backend="gpu", avoid=[second], folder=folder / "leases"):
    print(*on_device(work), *contexts())
"""
            if not full
            else "print(*on_device(work), *contexts())"
        )
    )
    found = printed(tmp_path, code, EMU_DEVICES="2", **({"EMU_BUSY": "0"} if full else {}))
    assert found == ["1", "['done']", "0", "1"]


def test_the_cpu_takes_over_with_the_same_result(tmp_path):
    code = """
    def work(share):
        xp = share.xp
        values = xp.arange(1000, dtype=xp.float64)
        total = float((values * values).sum())
        if share.device is not None:
            seen.append(total)
            xp.ones(10**13, xp.uint8)
        return total

    seen = []
    result, outcomes = on_device(work)
    print(outcomes[-1], seen[0] == result)
    """
    assert printed(tmp_path, code) == ["done", "True"]


@pytest.mark.emulated
def test_the_calling_thread_has_its_own_context_again(tmp_path):
    code = """
    import cupy
    mine = cupy.arange(3)
    with lease(1, backend="gpu", avoid=[nvml.read()[1].uuid], folder=folder / "leases"):
        print(*on_device(lambda share: share.xp.cuda.runtime.getDevice()))
    print(cupy.cuda.runtime.getDevice(), int(mine.sum()))
    """
    assert printed(tmp_path, code, EMU_DEVICES="2") == ["1", "['done']", "0", "3"]


def no_library(cupy, kind):
    """An error with which CuPy says that it cannot compile or run a kernel."""
    return {
        "NVRTC": ImportError("libnvrtc.so.12: cannot open shared object file\nsearched: /usr/lib"),
        "source": cupy.cuda.compiler.CompileException("no such header", "", "a.cu", (), "nvrtc"),
        "headers": RuntimeError("Failed to find CUDA headers."),
        "no image": cupy.cuda.driver.CUDADriverError(209),
        "old driver": cupy.cuda.runtime.CUDARuntimeError(222),
        "read-only home": PermissionError(13, "Permission denied", ".cupy"),
    }[kind]


@pytest.mark.parametrize(
    "kind", ["NVRTC", "source", "headers", "no image", "old driver", "read-only home"]
)
def test_a_cupy_that_cannot_compute_leaves_the_work_to_the_cpu(
    cupy, device, kind, monkeypatch, tmp_path
):
    def fail(*_):
        raise no_library(cupy, kind)

    monkeypatch.setattr(cupy, "ones", fail)
    monkeypatch.setenv("OCTANE_GPU_LOCK_DIR", str(tmp_path / "leases"))
    metrics, sharing = Metrics("test"), LeaseParameters()

    def find(backend):
        more = {"batch": 1, "backend": backend, "subject": "test"}
        return on_device(
            lambda share: share.xp, lambda _: 1, sharing=sharing, metrics=metrics, **more
        )

    assert find("auto") is np
    assert any("CPU did the work" in warning for warning in metrics.warnings)
    with pytest.raises(NoGpuError, match=r"cannot (compute.*\[ctk\]|store.*CUPY_CACHE)") as raised:
        find("gpu")
    assert "\n" not in str(raised.value)


@pytest.mark.emulated
def test_a_step_without_cudas_headers_ends_with_one_sentence(tmp_path):
    source = tmp_path / "a.nii"
    sitk.WriteImage(sitk.GetImageFromArray(np.ones((8, 8, 8), np.float32)), source)
    command = [str(PROJECT / "bin/resample.py"), str(source), str(tmp_path / "b.ome.zarr")]
    command += ["--layout", "volume", "--resolution", "2000", "2000", "2000", "--backend"]
    code = f"""
    import subprocess
    command = [sys.executable, *{command!r}]
    for backend in ("gpu", "auto"):
        print(subprocess.run([*command, backend, "--workers", "1"]).returncode)
    """
    done = run_process(tmp_path, code, CUDA_PATH=None, CUDA_HOME=None)
    assert done.stdout.split() == ["1", "0"], done.stderr
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert "Failed to find CUDA headers" in error
    assert "[ctk]" in error


def test_a_gpu_that_cuda_does_not_show_is_named(cupy, monkeypatch):
    with pytest.raises(DeviceMissingError, match="CUDA does not show GPU-"):
        CupyDevice("GPU-01234567-89ab-cdef-0123-456789abcdef")

    def fail():
        raise cupy.cuda.runtime.CUDARuntimeError(35)

    monkeypatch.setattr(cupy.cuda.runtime, "getDeviceCount", fail)
    with pytest.raises(DeviceMissingError, match="CUDA does not start"):
        CupyDevice("GPU-01234567-89ab-cdef-0123-456789abcdef")
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(DeviceMissingError, match="cannot be imported"):
        CupyDevice("GPU-01234567-89ab-cdef-0123-456789abcdef")


def test_the_cause_in_cupys_page_of_text_is_named(monkeypatch, tmp_path):
    (tmp_path / "cupy.py").write_text(
        "try:\n    raise ImportError('libnvrtc.so.12: no such file')\n"
        "except ImportError as error:\n    raise ImportError('\\n==\\na page of text') from error\n"
    )
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(DeviceMissingError, match=r"\(libnvrtc\.so\.12: no such file\); install"):
        CupyDevice("GPU-01234567-89ab-cdef-0123-456789abcdef")


def test_a_mig_instance_is_chosen_before_cuda_starts_and_found_by_its_own_uuid(device, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    instance = f"MIG-{device.uuid.removeprefix('GPU-').removeprefix('MIG-')}"
    assert CupyDevice(instance).ordinal == device.ordinal
    assert os.environ["CUDA_VISIBLE_DEVICES"] == instance
    with pytest.raises(DeviceMissingError, match="does not show MIG-2"):
        CupyDevice("MIG-2")


def test_out_of_memory_errors_are_recognised(cupy, device):
    cublas = pytest.importorskip("cupy_backends.cuda.libs.cublas", reason="cuBLAS is missing")
    cuda = cupy.cuda
    errors = [cuda.memory.OutOfMemoryError(1, 2), cuda.runtime.CUDARuntimeError(2)]
    errors.append(cuda.driver.CUDADriverError(2))
    errors.append(cublas.CUBLASError(3))
    assert all(map(device.is_out_of_memory, errors))
    others = [cuda.runtime.CUDARuntimeError(700), MemoryError(), ValueError()]
    assert not any(map(device.is_out_of_memory, others))


def test_an_error_of_the_work_is_not_one_of_the_gpu(device):
    assert not device.is_lost()


@pytest.mark.parametrize("without", [None, "nvmlInit", "nvmlSystemGetDriverVersion"])
def test_describe_a_gpu(cupy, device, monkeypatch, without):
    def missing():
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    if without is not None:
        monkeypatch.setattr(pynvml, without, missing)
    with device.active():
        found = describe(cupy)
    assert found["backend"] == "gpu"
    assert found["library"] == f"cupy {cupy.__version__}"
    assert (found["driver"] is None) == (without is not None)
    properties = cupy.cuda.runtime.getDeviceProperties(device.ordinal)
    assert found["device"] == properties["name"].decode()
    assert found["memory_bytes"] == properties["totalGlobalMem"]
    assert re.fullmatch(r"\d+\.\d", str(found["cuda"]))


def test_a_cupy_that_is_too_old_is_refused(cupy, device, monkeypatch):
    monkeypatch.setattr(cupy, "__version__", "12.3.0")
    with pytest.raises(DeviceMissingError, match=r"version 12\.3\.0; install CuPy 13 or newer"):
        CupyDevice(device.uuid)


@pytest.mark.parametrize("status", [2, 46])
def test_a_context_that_cannot_be_made_is_a_lost_race(cupy, device, status, monkeypatch):
    def fail(_):
        raise cupy.cuda.runtime.CUDARuntimeError(status)

    monkeypatch.setattr(cupy.cuda.runtime, "setDevice", fail)
    with pytest.raises(DeviceTakenError):
        device.open()


@pytest.mark.emulated
def test_lanes_sleep_while_they_wait(tmp_path):
    """A stream's own waits spin, and would take cores from lanes that read and decode."""
    counts = tmp_path / "counts"
    printed(tmp_path, f"{WORK_IN_THREADS}\nprint(*on_device(work))", EMU_COUNTS=str(counts))
    calls = dict(re.findall(r"(?m)^call (.*) (\d+)$", counts.read_text(encoding="utf-8")))
    # One wait for each copy, and one for the kernel.
    assert int(calls["cudaEventSynchronize, asleep"]) == 6 * 3
    assert "cudaEventSynchronize" not in calls
    # The GPU is tested before the work.
    assert int(calls.get("cudaStreamSynchronize", 0)) <= 1
