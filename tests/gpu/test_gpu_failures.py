"""Entire steps on a GPU that fails, or whose memory runs out at each allocation in turn."""

import json
from collections.abc import Sequence
from itertools import accumulate, repeat
from pathlib import Path

import numpy as np
import pytest
from foreign_images import foreign_image
from gpu_process import PROJECT, printed, run_process

from octane.processes.n4.parameters import N4Parameters
from octane.processes.resample.parameters import ResampleParameters
from octane.store.image import open_image

pytestmark = pytest.mark.emulated

SOME = [1, 2, *accumulate(repeat(2, 12), lambda n, _: n * 2, initial=4)]
"""Numbers of the allocation or launch that fails, up to beyond the last one."""

RESAMPLE = ResampleParameters(resolution=(10.0, 10.0, 10.0))
N4 = N4Parameters(mask="none", iterations=(2, 2), shrink_factor=(2, 2, 2))
STEPS = {"RESAMPLE": RESAMPLE, "N4": N4}

STEP = """
from octane.config.parameters import ExecutionParameters, InputParameters, LeaseParameters
from octane.core.errors import OctaneError
from octane.processes.n4 import step as step_n4
from octane.processes.n4.parameters import N4Parameters
from octane.processes.n4.step import correct_bias, prepare
from octane.processes.resample.parameters import ResampleParameters
from octane.processes.resample.step import resample_image
import cupy

# With so few voxels, N4 would choose the CPU.
step_n4.GPU_WORK = 0

def n4(*given):
    return correct_bias(prepare(*given[:5]), given[5])

step = {"RESAMPLE": resample_image, "N4": n4}[sys.argv[2]]
model = {"RESAMPLE": ResampleParameters, "N4": N4Parameters}[sys.argv[2]]
parameters = model.model_validate_json(sys.argv[3])
"""
"""A step and its parameters, by name and as JSON."""

TRIES = (
    STEP
    + """
variable, backend = sys.argv[4:6]
execution = ExecutionParameters(backend=backend, workers=2)
run.PAUSE = 0.001

def try_at(number):
    own = folder / str(number)
    own.mkdir()
    os.dup2(os.open(own / "stderr", os.O_CREAT | os.O_WRONLY), 2)
    # CUDA has not started in a newly forked process, and reads it when it starts.
    os.environ[variable] = str(number)
    try:
        made = step(
            folder / "input.zarr", own / "output.zarr", parameters, InputParameters(), execution,
            sharing,
        )
        tries = [[a["outcome"], a["batch"]] for a in made.figures["gpu"]["attempts"]]
        found = {"tries": tries, "warnings": made.warnings}
    except OctaneError as refused:
        found = {"refused": str(refused)}
    (own / "found.json").write_text(json.dumps(found))

for number in map(int, sys.argv[6:]):
    if not (pid := os.fork()):
        try_at(number)
        break
    assert os.waitpid(pid, 0)[1] == 0, number
    tries = json.loads((folder / str(number) / "found.json").read_text()).get("tries", [])
    print(number)
    if number and len(tries) == 1:
        break
"""
)
"""A step with a failure at each number, in forked processes, until nothing fails."""


@pytest.fixture
def write_input(tmp_path):
    """Write a mosaic of eight tiles, which can also be read as a volume."""
    shape = (8, 40, 80)
    shading = np.exp(np.linspace(-0.3, 0.3, shape[2]))
    voxels = np.random.default_rng(3).normal(500, 30, shape) * shading
    size = [{"type": "scale", "scale": [5.0, 5.0, 5.0]}]
    return foreign_image(
        tmp_path / "input.zarr", voxels.astype(np.uint16), transforms=size, chunks=(8, 20, 20)
    )


def voxels(path: Path) -> np.ndarray:
    return open_image(path).read((slice(None),) * 3)


def outcomes(
    folder: Path, step: str, variable: str, backend: str, numbers: Sequence[int], **more: str
):
    """Return the record at each number; every process must have succeeded silently."""
    settings = STEPS[step].model_dump_json()
    words = [step, settings, variable, backend, *map(str, numbers)]
    found = {}
    for number in printed(folder, TRIES, *words, **more):
        own = folder / number
        assert (own / "stderr").read_text(encoding="utf-8") == "", number
        names = {path.name for path in own.iterdir()}
        found[int(number)] = json.loads((own / "found.json").read_text(encoding="utf-8"))
        made = set() if "refused" in found[int(number)] else {"output.zarr"}
        assert names == {"stderr", "found.json", *made}, number
    return found


def on_cpu(folder: Path, step: str) -> np.ndarray:
    """Return the result of a step on the CPU."""
    outcomes(folder, step, "EMU_SEED", "cpu", [1000])
    return voxels(folder / "1000" / "output.zarr")


@pytest.mark.parametrize("some", [True, pytest.param(False, marks=pytest.mark.soak)])
@pytest.mark.parametrize("step", STEPS)
def test_memory_that_runs_out_at_any_allocation_costs_a_try_at_most(
    step, some, write_input, tmp_path
):
    expected = on_cpu(tmp_path, step)
    numbers = [0, *(SOME if some else range(1, 500))]
    found = outcomes(tmp_path, step, "EMU_FAIL_ALLOCATION", "gpu", numbers)
    whole = voxels(tmp_path / "0" / "output.zarr")
    # N4's last bits may differ between devices, so integers may where two are equally near.
    assert np.abs(whole.astype(int) - expected).max() <= (step == "N4")
    *failed, last = list(found)[1:]
    assert found[0] == found[last] == {"tries": [["done", 2]], "warnings": []}
    assert len(failed) >= 5
    for number in failed:
        first, again = found[number]["tries"]
        # The first allocation tests the context; the others are the work's.
        assert first == ["taken by another" if number == 1 else "out of memory", 2]
        assert again == ["done", 2 if number == 1 else 1]
        np.testing.assert_array_equal(voxels(tmp_path / str(number) / "output.zarr"), whole)


@pytest.mark.parametrize("step", STEPS)
def test_the_cpu_takes_over_from_a_gpu_that_fails_before_the_work(step, write_input, tmp_path):
    expected = on_cpu(tmp_path, step)
    found = outcomes(tmp_path, step, "EMU_LOSE_AT", "auto", [1], EMU_LOSE_ERROR="719")[1]
    assert [outcome for outcome, _ in found["tries"]] == ["not usable", "no GPU", "done"]
    assert any("CPU did the work" in warning for warning in found["warnings"])
    np.testing.assert_array_equal(voxels(tmp_path / "1" / "output.zarr"), expected)


@pytest.mark.parametrize(
    ("step", "backend", "error", "launches"),
    [
        # N4 with auto: tests/gpu/test_workflow_gpu.py, as so few voxels stay on the CPU.
        ("RESAMPLE", "auto", "719", [2, 3]),
        *((step, "gpu", "719", [2, 3]) for step in STEPS),
        *(
            pytest.param(*case, code, SOME[1:], marks=pytest.mark.soak)
            for case in (("RESAMPLE", "auto"), ("N4", "gpu"))
            for code in ("700", "214")
        ),
    ],
)
def test_a_command_ends_with_one_sentence_where_its_gpu_is_lost(
    step, backend, error, launches, write_input, tmp_path
):
    words = [*STEPS[step].flags(), "--backend", backend, "--workers", "2"]
    code = f"""
    import subprocess
    script = Path({str(PROJECT)!r}, "bin", {step.lower()!r} + ".py")
    command = [sys.executable, script, folder / "input.zarr", folder / "output.zarr", *{words!r}]
    for number in {launches}:
        environment = {{**os.environ, "EMU_LOSE_AT": str(number)}}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if done.returncode == 0:
            break  # it has fewer launches
        said = [line for line in done.stderr.splitlines() if " INFO " not in line]
        print(json.dumps([done.returncode, said, (folder / "output.zarr").exists()]))
    """
    more = {"EMU_LOSE_ERROR": error, "OCTANE_GPU_LOCK_DIR": str(tmp_path / "leases")}
    done = run_process(tmp_path, code, **more)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) >= min(2, len(launches)), done.stdout + done.stderr
    for exit_code, said, made in found:
        assert (exit_code, made) == (104, False)
        # CuPy may complain of events that are deleted on a lost device, with a traceback before it.
        *noise, sentence = said
        assert not noise or noise[0].startswith("Exception ignored in: <cyfunction Event"), said
        assert "the device is lost); run again" in sentence
    assert not list(tmp_path.glob(".partial-*"))


COMPILED = (
    STEP
    + """
import time
from collections import Counter
from octane.store import volumes, writer

for module in (volumes, writer):  # blocks for several lanes
    module.CHUNK, module.SHARD = 8, 16
compiled, compile_ = Counter(), cupy.cuda.compiler._compile_module_with_cache

def counted(source, options=(), *rest, **more):
    compiled[source, options] += 1
    time.sleep(0.02)
    return compile_(source, options, *rest, **more)

cupy.cuda.compiler._compile_module_with_cache = counted
execution = ExecutionParameters(backend="gpu", workers=4)
paths = folder / "input.zarr", folder / "output.zarr"
step(*paths, parameters, InputParameters(), execution, sharing)
print(len(compiled) > 2, max(compiled.values()))
"""
)


@pytest.mark.parametrize("step", STEPS)
def test_kernels_are_compiled_once_whatever_the_number_of_lanes(step, write_input, tmp_path):
    """CuPy's cache is not locked: lanes that start together would each compile every kernel."""
    more = {"mask": "tissue"} if step == "N4" else {}
    words = [step, STEPS[step].model_copy(update=more).model_dump_json()]
    found = printed(tmp_path, COMPILED, *words, CUPY_CACHE_DIR=str(tmp_path / "kernels"))
    assert found == ["True", "1"]


@pytest.mark.parametrize("step", STEPS)
def test_a_full_first_gpu_does_not_disturb_a_step_on_the_second(step, write_input, tmp_path):
    counts = tmp_path / "counts"
    more = {"EMU_DEVICES": "2", "EMU_BUSY": "0", "EMU_COUNTS": str(counts)}
    found = outcomes(tmp_path, step, "EMU_SEED", "gpu", [1], **more)
    assert found[1] == {"tries": [["done", 2]], "warnings": []}
    lines = counts.read_text(encoding="utf-8").splitlines()
    assert {line.partition(",")[0] for line in lines if line.startswith("device")} == {
        "device 0 contexts 0",
        "device 1 contexts 1",
    }
