"""The kernels compile for every generation of GPUs and every type, and fit on a multiprocessor.

NVRTC of CUDA 12 and of CUDA 13 make their machine code with CuPy's options. It needs neither a GPU
nor CuPy.
"""

import itertools
import re

import numpy as np
import pytest
from nvrtc import Compiled, Nvrtc, installed

from octane.core.arrays import working_type
from octane.gpu.kernels import OPTIONS
from octane.processes.n4 import cuda
from octane.resample import gpu

# Volta, Turing, Ampere (A100, A6000), Ada, Hopper and Blackwell; CUDA 13 has no Volta.
GENERATIONS = (70, 75, 80, 86, 89, 90, 100, 120)
# All types are compiled for these; but for `make soak` only for Hopper.
TYPED = (*(pytest.param(g, marks=pytest.mark.soak) for g in (75, 80, 100)), 90)

# In every generation: registers of a multiprocessor, and bytes of shared memory of a block.
REGISTERS, SHARED = 1 << 16, 48 << 10

FLOATS = [np.dtype("f4"), np.dtype("f8")]

# Threads of a kernel that a multiprocessor runs at once. Of the other kernels, it runs one block.
AT_ONCE = {"count_bins": 1536, "contract_x": 1280, "update": 1280, "expand": 768}


@pytest.fixture(scope="module", params=[12, 13], ids="CUDA {}".format)
def nvrtc(request):
    try:
        return installed(request.param)
    except OSError as error:
        pytest.skip(f"NVRTC of CUDA {request.param} is not installed: {error}")


def compiled(nvrtc: Nvrtc, code: str, generation: int) -> Compiled:
    if generation not in nvrtc.generations:
        pytest.skip(f"this NVRTC offers {nvrtc.generations}, not {generation}")
    made = nvrtc.compile(code, OPTIONS, generation)
    # NVRTC calls its oldest generation deprecated; other warnings are about the source.
    said = [line for line in made.log.splitlines() if "deprecated" not in line]
    assert not [line for line in said if re.search("warning|error", line, re.IGNORECASE)], made.log
    return made


def most_threads(generation: int) -> int:
    """Threads that a multiprocessor runs at once, at most."""
    return 1024 if generation == 75 else 1536


@pytest.mark.parametrize("generation", GENERATIONS)
def test_every_kernel_of_the_fit_compiles_without_warnings_and_fits(nvrtc, generation):
    found = compiled(nvrtc, cuda.fit_code(), generation).resources()
    assert sorted(found) == sorted(cuda.KERNELS)
    for name, (registers, shared, spilled) in found.items():
        threads = AT_ONCE.get(name, 1024 if name in ("sharpen", "running_mean") else cuda.THREADS)
        assert registers * min(threads, most_threads(generation)) <= REGISTERS, name
        assert shared <= SHARED, name
        assert spilled == 0, name


@pytest.mark.slow
@pytest.mark.parametrize("generation", TYPED)
def test_resampling_compiles_for_all_types(nvrtc, generation):
    voxels = [voxel for voxel in gpu.TYPES if voxel.kind != "c"]
    types = {(voxel, work, work) for voxel in voxels for work in [working_type(voxel)]}
    types |= {(source, voxel, source) for voxel in voxels for source in FLOATS}
    for combination in types:
        found = compiled(nvrtc, gpu.code(*combination), generation).resources()
        assert list(found) == ["band"]
        registers, shared, spilled = found["band"]
        assert registers * most_threads(generation) <= REGISTERS, combination
        assert shared == spilled == 0, combination


# Bytes that ``apply`` spills at most, for the worst of its types.
SPILLED = {75: 0, 80: 8, 90: 16, 100: 24}


@pytest.mark.slow
@pytest.mark.parametrize("generation", TYPED)
def test_the_application_of_n4_compiles_for_all_types(nvrtc, generation):
    for source, target in itertools.product(cuda.APPLIED, repeat=2):
        code = cuda.apply_code(source, np.dtype(target))
        found = compiled(nvrtc, code, generation).resources()
        assert list(found) == ["apply"]
        registers, _, spilled = found["apply"]
        assert registers * min(1280, most_threads(generation)) <= REGISTERS, (source, target)
        assert spilled <= SPILLED[generation], (source, target)
