"""Leases on a real GPU: memory that runs out, the context and the pool that are given back."""

import os

import numpy as np
import pytest
from gpu_process import printed

from octane.config.params import LeaseParameters
from octane.core.metrics import Metrics
from octane.gpu.device import CupyDevice
from octane.gpu.inventory import visible
from octane.gpu.lease import lease
from octane.gpu.nvml import Nvml
from octane.gpu.run import on_device

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")


@pytest.fixture
def gpu():
    """The first GPU that this process may use, as it is now."""
    return visible(Nvml().read(), os.environ.get("CUDA_VISIBLE_DEVICES"))[0]


@pytest.fixture
def own(tmp_path):
    """Keyword arguments for leases of the test's own."""
    return {"folder": tmp_path / "leases", "backend": "gpu", "timeout": 60}


def test_nvml_and_cupy_mean_the_same_gpu(gpu):
    device = CupyDevice(gpu.uuid)
    total = cupy.cuda.runtime.getDeviceProperties(device.ordinal)["totalGlobalMem"]
    assert total == pytest.approx(gpu.total, rel=0.05)


def test_memory_that_runs_out_halves_the_batch_and_the_pool_is_returned(gpu, own):
    def work(share):
        size = gpu.total * 2 if share.batch > 1 else 10**8
        values = share.xp.ones(size, share.xp.uint8)
        return int(values[:10].sum())

    before = Nvml().read()[gpu.index].free
    metrics = Metrics("test")
    sharing = LeaseParameters(gpu_lock_dir=own["folder"], gpu_timeout=own["timeout"])
    more = {"sharing": sharing, "metrics": metrics, "subject": "test"}
    assert on_device(work, lambda _: 2 * 10**8, batch=4, backend="gpu", **more) == 10
    figures = metrics.figures["gpu"]
    assert isinstance(figures, dict)
    outcomes = [attempt["outcome"] for attempt in figures["attempts"]]
    assert outcomes == ["out of memory", "out of memory", "done"]
    assert cupy.get_default_memory_pool().total_bytes() == 0
    # What is left is the context, and kernels that were compiled.
    assert before - Nvml().read()[gpu.index].free < 10**9


def test_the_cpu_takes_over_with_the_same_result_and_the_context_is_released(tmp_path):
    code = """
    def work(share):
        xp = share.xp
        values = xp.arange(1000, dtype=xp.float64)
        total = float((values * values).sum())
        if share.device is not None:
            # Handles of all kinds that CuPy would free as the process ends.
            kernel = xp.RawKernel('extern "C" __global__ void f() {}', "f")
            kernel((1,), (1,), ())
            kept.extend([xp.cuda.Stream(), xp.cuda.Event(), kernel])
            seen.append(total + float((xp.ones((2, 2)) @ xp.zeros((2, 2))).sum()))
            xp.ones(10**13, xp.uint8)
        return total

    seen, kept = [], []
    result, outcomes = on_device(work)
    processes = [p.pid for gpu in Nvml().read() for p in gpu.processes or ()]
    kept.clear()
    print(outcomes[-1], seen[0] == result, os.getpid() in processes)
    """
    counts = tmp_path / "counts"
    assert printed(tmp_path, code, EMU_COUNTS=str(counts)) == ["done", "True", "False"]
    # Empty on a real GPU.
    assert not counts.exists() or "STALE" not in counts.read_text(encoding="utf-8")


def test_what_another_lease_was_promised_is_not_given_again(gpu, own):
    most = int(gpu.free * 0.8)
    with lease(most, slots=2, **own) as held:
        assert held.gpu is not None
        others = [other.uuid for other in Nvml().read() if other.uuid != held.gpu.uuid]
        with lease(most, slots=2, avoid=others, folder=own["folder"], timeout=0) as none:
            assert none.gpu is None
        device = CupyDevice(held.gpu.uuid)
        with device.active():
            values = cupy.ones(most // 2, cupy.uint8)
        # Allocated now, and so no longer counted twice: as much as before is to give.
        with lease((gpu.free - most) // 2, slots=2, avoid=others, **own) as small:
            assert small.gpu is not None
        assert np.asarray(values[:1].get()) == 1
        del values
        device.empty()
