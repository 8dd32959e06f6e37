"""The kernels compile for every generation of GPUs and every type, and fit on a multiprocessor.

NVRTC generates their machine code with CuPy's options; it does not need a GPU.
"""

import itertools
import re

import numpy as np
import pytest

from octane.core.arrays import working_type
from octane.n4 import cuda
from octane.resample import gpu

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")

# Volta, Turing, Ampere (A100, A6000), Ada, Hopper and Blackwell.
GENERATIONS = (70, 75, 80, 86, 89, 90, 100, 120)

# In every generation: registers of a multiprocessor, and bytes of shared memory of a block.
REGISTERS, SHARED = 1 << 16, 48 << 10

FLOATS = [np.dtype("f4"), np.dtype("f8")]


def needs(code, options, generation):
    """Registers per thread, bytes of shared memory per block, and bytes spilled, by kernel."""
    nvrtc = cupy.cuda.nvrtc
    if generation not in nvrtc.getSupportedArchs():
        pytest.skip(f"this NVRTC offers {nvrtc.getSupportedArchs()}, not {generation}")
    program = nvrtc.createProgram(code, "kernel.cu", (), ())
    # CuPy adds its own last, and of two NVRTC uses the last.
    own = ("-ftz=true", f"-arch=sm_{generation}", "--device-as-default-execution-space")
    nvrtc.compileProgram(program, (*options, "--ptxas-options=-v", *own))
    log = nvrtc.getProgramLog(program)
    nvrtc.destroyProgram(program)
    # NVRTC calls its oldest generation deprecated; other warnings are about the source.
    said = [line for line in log.splitlines() if "deprecated" not in line]
    assert not [line for line in said if re.search("warning|error", line, re.IGNORECASE)], log
    found = {}
    for entry in re.split("Compiling entry function", log)[1:]:
        (name,) = re.findall(r"^ *'(\w+)'", entry)
        (registers,) = re.findall(r"Used (\d+) registers", entry)
        shared = re.findall(r"(\d+) bytes smem", entry) or [0]
        spilled = re.findall(r"(\d+) bytes spill", entry)
        found[name] = int(registers), int(shared[0]), sum(map(int, spilled))
    return found


def band_fits(types, generation=80):
    """Check that the resampling kernel fits with the number of threads it is written for."""
    found = needs(gpu.code(*types), gpu.OPTIONS, generation)
    assert list(found) == ["band"]
    registers, shared, spilled = found["band"]
    # A multiprocessor of Turing holds at most 1024 threads.
    assert registers * (1024 if generation == 75 else 1536) <= REGISTERS
    assert shared == spilled == 0


@pytest.mark.parametrize("generation", GENERATIONS)
def test_every_kernel_compiles_without_warnings_and_fits(generation):
    found = needs(cuda.fit_code(), cuda.OPTIONS, generation)
    assert sorted(found) == sorted(cuda.KERNELS)
    for name, (registers, shared, spilled) in found.items():
        # The largest launched block.
        threads = 1024 if name in ("sharpen", "running_mean") else cuda.THREADS
        assert registers * threads <= REGISTERS, name
        assert shared <= SHARED, name
        assert spilled == 0, name
    for work in FLOATS:
        band_fits((work,) * 3, generation)


@pytest.mark.parametrize("voxel", [t for t in gpu.TYPES if t.kind != "c"], ids=str)
def test_resampling_compiles_for_all_types(voxel):
    work = working_type(voxel)
    band_fits((voxel, work, work))
    for source in FLOATS:
        band_fits((source, voxel, source))


def test_the_application_of_n4_compiles_for_all_types():
    for source, target in itertools.product(cuda.APPLIED, repeat=2):
        found = needs(cuda.apply_code(source, np.dtype(target)), cuda.OPTIONS, 80)
        assert list(found) == ["apply"]
        registers, _, spilled = found["apply"]
        assert registers * cuda.THREADS <= REGISTERS
        # From float32 to 16 bits, one register is spilled.
        assert spilled <= 8
