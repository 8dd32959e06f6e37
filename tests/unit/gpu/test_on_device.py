"""Steps on a leased GPU that is not there: NumPy in its place, with little memory."""

from contextlib import contextmanager

import numpy as np
import pytest

from octane.config.params import (
    ExecutionParameters,
    LeaseParameters,
    N4Parameters,
    ResampleParameters,
)
from octane.core.errors import OctaneError
from octane.gpu import lease, run
from octane.gpu.simulated import VARIABLE
from octane.steps import n4
from octane.steps import resample as step_resample
from octane.store.image import open_image


class NoMemoryError(Exception):
    pass


class Device:
    """A GPU that computes with NumPy."""

    xp = np

    def __init__(self, uuid):
        self.uuid = uuid

    @staticmethod
    def missing():
        return None

    def open(self):
        pass

    @contextmanager
    def active(self):
        yield

    def is_out_of_memory(self, error):
        return isinstance(error, NoMemoryError)

    def empty(self):
        pass

    def leave(self):
        pass


@pytest.fixture
def gpus(monkeypatch, tmp_path_factory):
    """Two simulated GPUs, leased from a folder of their own."""
    monkeypatch.setattr(lease, "TICK", 0.01)
    monkeypatch.setattr(run, "PAUSE", 0.001)
    monkeypatch.setattr(run, "CupyDevice", Device)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv(VARIABLE, "2x40GB")
    monkeypatch.setattr(step_resample.CupyDevice, "missing", Device.missing)
    return LeaseParameters(gpu_lock_dir=tmp_path_factory.mktemp("leases"), gpu_timeout=5)


def failing(function, times):
    """The function, which runs out of memory in its first calls, so many times."""
    left = [times]

    def call(*args, **more):
        if left[0]:
            left[0] -= 1
            raise NoMemoryError
        return function(*args, **more)

    return call


@pytest.fixture
def mosaic(rng, write_mosaic):
    """Twelve tiles."""
    voxels = rng.gamma(2.0, 300.0, (8, 60, 80)).astype(np.float32)
    return write_mosaic("a.zarr", voxels, (8, 20, 20), (5.0, 5.0, 5.0))


def resample(source, destination, reading, backend, sharing=None, workers=4):
    execution = ExecutionParameters(backend=backend, workers=workers)
    parameters = ResampleParameters(resolution=(10.0, 10.0, 10.0))
    metrics = step_resample.resample_image(
        source, destination, parameters, reading, execution, sharing
    )
    return open_image(destination).array[:], metrics


@pytest.mark.parametrize("failures", [0, 1, 2])
def test_resample_on_a_gpu_that_runs_out_of_memory_ends_with_the_same(
    mosaic, reading, gpus, tmp_path, monkeypatch, failures
):
    expected, _ = resample(mosaic, tmp_path / "cpu.ome.zarr", reading, "cpu")
    real, done = step_resample._resampled, []

    def work(plan, tile, lane):
        # In the middle, and as long as there are too many tiles on the device.
        if len(done) >= 3 and plan.workers > 4 // 2**failures:
            raise NoMemoryError
        done.append(tile)
        return real(plan, tile, lane)

    monkeypatch.setattr(step_resample, "_resampled", work)
    result, metrics = resample(mosaic, tmp_path / "gpu.ome.zarr", reading, "gpu", gpus)
    np.testing.assert_array_equal(result, expected)
    recorded = metrics.figures["gpu"]
    outcomes = [(a["outcome"], a["batch"]) for a in recorded["attempts"]]
    in_vain = [("out of memory", 4), ("out of memory", 2)][:failures]
    assert outcomes == [*in_vain, ("done", 4 // 2**failures)]
    assert recorded["backend"] == "gpu"
    assert metrics.figures["pipeline"]["RESAMPLE"]["workers"] == 4 // 2**failures
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.zarr", "cpu.ome.zarr", "gpu.ome.zarr"]


@pytest.mark.parametrize("failures", [0, 1])
def test_n4_on_a_gpu_that_runs_out_of_memory_ends_with_the_same(
    rng, write_image, reading, gpus, tmp_path, monkeypatch, failures
):
    shading = np.exp(np.linspace(-0.3, 0.3, 40)).astype(np.float32)
    voxels = (rng.normal(100, 5, (24, 32, 40)) * shading).astype(np.float32)
    source = write_image("a.zarr", voxels)
    parameters = N4Parameters(mask="none", iterations=(5,), shrink_factor=(1, 1, 1))
    made: list = []
    recorded: dict = {}
    for backend in ("cpu", "gpu"):
        if backend == "gpu":
            fit = failing(n4.fit_bias_field, failures)
            monkeypatch.setattr(n4, "fit_bias_field", fit)
        destination = tmp_path / f"{backend}.ome.zarr"
        execution = ExecutionParameters(backend=backend, workers=2)
        metrics = n4.correct_bias(source, destination, parameters, reading, execution, gpus)
        made.append(open_image(destination).array[:])
        recorded.update(metrics.figures)
    np.testing.assert_array_equal(made[0], made[1])
    outcomes = [a["outcome"] for a in recorded["gpu"]["attempts"]]
    assert outcomes == [*["out of memory"] * failures, "done"]


def test_a_gpu_that_is_insisted_on_and_is_not_there_is_an_error(mosaic, reading, tmp_path):
    # Without CuPy in the tests' environment.
    with pytest.raises(OctaneError, match="--backend cpu"):
        resample(mosaic, tmp_path / "gpu.ome.zarr", reading, "gpu")
    assert [p.name for p in tmp_path.iterdir()] == ["a.zarr"]
