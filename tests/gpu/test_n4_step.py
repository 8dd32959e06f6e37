"""The step N4 on an NVIDIA GPU: entire volumes against the CPU, copies, compiling once."""

import numpy as np
import pytest
import SimpleITK as sitk
from foreign_images import foreign_image
from n4_volumes import biased_ball

from octane.config.parameters import ExecutionParameters, InputParameters, LeaseParameters
from octane.pipeline.lanes import Lane
from octane.processes.n4 import step as step_n4
from octane.processes.n4.parameters import N4Parameters
from octane.processes.n4.plan import BLOCK_BYTES, PROCESS_BYTES
from octane.processes.n4.step import correct_bias, prepare
from octane.store.volumes import open_volume

SHAPE = (24, 36, 40)


@pytest.fixture
def correct(cupy, tmp_path, monkeypatch):
    """Correct on a device; return the voxels and the metrics."""

    def run(source, backend, workers=2, memory="2GB", **parameters):
        destination = tmp_path / f"{backend}.ome.zarr"
        more = {"shrink_factor": 2, "iterations": (4, 4), **parameters}
        prepared = prepare(
            source,
            destination,
            N4Parameters.model_validate(more),
            InputParameters(),
            ExecutionParameters(backend=backend, workers=workers, memory=memory, overwrite=True),
        )
        monkeypatch.setenv("OCTANE_GPU_LOCK_DIR", str(tmp_path / "leases"))
        sharing = LeaseParameters(gpu_timeout=60)
        metrics = correct_bias(prepared, sharing)
        corrected = open_volume(destination)
        return corrected.read(tuple(slice(0, n) for n in corrected.grid.shape)), metrics

    return run


def is_emulated(cupy):
    return b"Emulated" in cupy.cuda.runtime.getDeviceProperties(0)["name"]


def nifti(path, voxels):
    sitk.WriteImage(sitk.GetImageFromArray(voxels), str(path))
    return path


@pytest.mark.parametrize("dtype", ["f4", "u2", "i2", "u1", "i4", ">u2", ">f4"])
def test_a_volume_is_corrected_as_on_the_cpu(cupy, correct, tmp_path, dtype):
    voxels = biased_ball(SHAPE).astype(dtype)
    if dtype.startswith(">"):
        source = foreign_image(tmp_path / "v.ome.zarr", voxels, chunks=(16, 16, 16))
        # OME-Zarr 0.4, whose arrays may be big-endian.
        assert open_volume(source).dtype == dtype
    else:
        source = nifti(tmp_path / "v.nii.gz", voxels)
    (expected, _), (found, metrics) = (correct(source, backend) for backend in ("cpu", "gpu"))
    assert metrics.figures["gpu"]["backend"] == "gpu"
    assert found.dtype == expected.dtype
    if np.dtype(dtype).kind == "f":
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    else:
        # On a GPU a field that differs in its last bit may round differently.
        assert abs(found.astype(int) - expected).max() <= 1
        assert (found == expected).mean() >= (1 if is_emulated(cupy) else 0.999)


@pytest.mark.parametrize("kept", [True, False])
def test_blocks_are_copied_from_page_locked_memory(cupy, correct, tmp_path, monkeypatch, kept):
    voxels = biased_ball(SHAPE)
    source = foreign_image(tmp_path / "v.ome.zarr", voxels, chunks=(16, 16, 16))
    # More than a block needs, but too little for the volume as well.
    least = PROCESS_BYTES + (2 * 4 + BLOCK_BYTES + 2) * voxels.size
    to_device, kinds = Lane.to_device, set()

    def spy(lane, array):
        kinds.add(cupy.cuda.runtime.pointerGetAttributes(array.ctypes.data).type)
        return to_device(lane, array)

    monkeypatch.setattr(Lane, "to_device", spy)
    metrics = correct(source, "gpu", memory="2GB" if kept else f"{least}B")[1]
    assert metrics.figures["kept_in_memory"] == kept
    assert kinds == {cupy.cuda.runtime.memoryTypeHost}


@pytest.mark.parametrize("chosen", ["cpu", "gpu"])
def test_auto_takes_a_gpu_for_a_large_fit_and_the_log_says_why(
    correct, tmp_path, monkeypatch, caplog, chosen
):
    if chosen == "gpu":
        monkeypatch.setattr(step_n4, "GPU_WORK", 0)
    caplog.set_level("INFO")
    source = nifti(tmp_path / "v.nii.gz", biased_ball(SHAPE))
    metrics = correct(source, "auto")[1]
    assert metrics.figures["gpu"]["backend"] == metrics.device["backend"] == chosen
    (line,) = [text for text in caplog.messages if text.startswith("backend auto")]
    assert f"{chosen.upper()}, because" in line


@pytest.mark.parametrize("shrink", [1, 3])
def test_the_step_never_holds_more_than_the_fit_or_the_blocks(
    cupy, correct, tmp_path, monkeypatch, shrink
):
    """With a mask and weights; shrunk, the blocks need more than the fit."""
    pool, held, promised = cupy.get_default_memory_pool(), {}, []
    fit, apply = step_n4._fit, step_n4._apply

    def fitted(run, *given):
        promised.append(run.plan.device_bytes(run.plan.workers))
        model = fit(run, *given)
        held["fit"] = pool.total_bytes()
        return model

    def applied(*given):
        held["between"] = pool.total_bytes()
        apply(*given)
        held["blocks"] = pool.total_bytes()

    monkeypatch.setattr(step_n4, "_fit", fitted)
    monkeypatch.setattr(step_n4, "_apply", applied)
    voxels = biased_ball((48, 80, 96))
    weights = np.random.default_rng(0).uniform(0, 1, voxels.shape).astype(np.float32)
    source = nifti(tmp_path / "v.nii", voxels)
    companions = {
        "mask": nifti(tmp_path / "mask.nii", (voxels > 20).astype(np.uint8)),
        "weights": nifti(tmp_path / "weights.nii", weights),
    }
    pool.free_all_blocks()
    correct(source, "gpu", shrink_factor=shrink, **{n: str(p) for n, p in companions.items()})
    assert held["between"] == 0
    assert 0 < held["fit"] <= promised[0]
    assert 0 < held["blocks"] <= promised[0]
