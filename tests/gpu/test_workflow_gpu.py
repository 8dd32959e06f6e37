"""The workflow with its tasks on leased GPUs, compared with a run on the CPU."""

import json

import numpy as np
import pytest
from runs import Run, voxels

from octane.gpu import nvml
from octane.gpu.lease import lease

pytestmark = pytest.mark.slow

SECTIONS = [f"section_{number:02}" for number in range(1, 5)]


@pytest.fixture(scope="module")
def runs(cupy, succeeding, tmp_path_factory) -> dict[str, Run]:
    """One run on two GPUs, with another job on the first, and one run on the CPU."""
    folder = tmp_path_factory.mktemp("gpus")
    leases = folder / "leases"
    shared = ("--gpu_count", 2, "--gpu_slots", 2)
    more = {"env": {"EMU_DEVICES": "2", "OCTANE_GPU_LOCK_DIR": str(leases)}}
    with lease(10**9, backend="gpu", timeout=60, slots=2, folder=leases) as held:
        assert held.gpu is not None
        gpu = succeeding(folder / "gpu", "-profile", "test,gpu", *shared, **more)
    return {"gpu": gpu, "cpu": succeeding(folder / "cpu", "-profile", "test", "--backend", "cpu")}


def record(run: Run, task: str, name: str) -> dict:
    """Return a step's figures about its device."""
    path = run.task_file(task, f"{name}_metrics.json")
    return json.loads(path.read_text(encoding="utf-8"))["figures"]["gpu"]


def test_every_task_had_its_gpu_and_needed_no_second_try(runs):
    tasks = [(f"RESAMPLE (phantom:{name})", f"{name}_resample") for name in SECTIONS]
    found = [record(runs["gpu"], *task) for task in [*tasks, ("N4 (phantom)", "n4")]]
    assert all(gpu["backend"] == "gpu" and not gpu["fell_back"] for gpu in found)
    assert [[each["outcome"] for each in gpu["attempts"]] for gpu in found] == [["done"]] * 5
    assert all(record(runs["cpu"], *task)["backend"] == "cpu" for task in tasks)


@pytest.mark.emulated
def test_a_task_takes_the_gpu_that_has_nobody(runs):
    used = {
        record(runs["gpu"], f"RESAMPLE (phantom:{n})", f"{n}_resample")["gpu"] for n in SECTIONS
    }
    taken = nvml.read()[0].uuid  # the only one of the two that this process sees
    assert used - {taken}


@pytest.mark.parametrize("name", SECTIONS)
def test_sections_have_the_bits_of_the_cpu(runs, name):
    resampled, expected = (
        voxels(run.task_file(f"RESAMPLE (phantom:{name})", f"{name}.ome.zarr"))
        for run in runs.values()
    )
    np.testing.assert_array_equal(resampled, expected)


@pytest.mark.parametrize(("name", "near"), [("phantom_bias", 1e-5), ("phantom", 2e-5)])
def test_the_field_and_the_volume_are_those_of_the_cpu(runs, name, near):
    found, expected = (voxels(r.outdir / "phantom" / f"{name}.ome.zarr") for r in runs.values())
    np.testing.assert_allclose(found, expected, rtol=near)


@pytest.mark.emulated
def test_a_gpu_that_fails_at_each_attempt_leaves_the_last_one_to_the_cpu(
    cupy, succeeding, phantom, tmp_path
):
    # N4 chooses the GPU for this many iterations, of which the threshold leaves one.
    many = ("--n4_iterations", 100_000, "--n4_convergence_threshold", 1000)
    run = succeeding(
        *(tmp_path, "-profile", "test", "--phantom", "false", "--resolution", "none"),
        *("--skip_pyramid", "--skip_report", "--n4_shrink_factor", 1, *many, "--gpu_count", 1),
        *("--input", phantom / "truth" / "tissue.ome.zarr"),
        env={"EMU_LOSE_AT": "5", "OCTANE_GPU_LOCK_DIR": str(tmp_path / "leases")},
    )
    assert run.tries("N4", "exit") == [("FAILED", "104")] * 2 + [("COMPLETED", "0")]
    assert record(run, "N4", "n4")["backend"] == "cpu"
