"""The CUDA kernels of N4 compile, for every generation of GPUs, and fit on a multiprocessor."""

import itertools

import numpy as np

from octane import n4_cuda

# Largest blocks that are launched.
WIDE = dict.fromkeys(("sharpen", "running_mean"), 1024)


def test_the_kernels_compile_without_warnings_and_fit(nvrtc, generation):
    found = nvrtc.needs(n4_cuda.SOURCE, n4_cuda.fit_options(), generation)
    assert sorted(found) == sorted(n4_cuda.KERNELS)
    for name, (registers, shared) in found.items():
        assert registers * WIDE.get(name, n4_cuda.THREADS) <= nvrtc.REGISTERS, name
        assert shared <= nvrtc.SHARED, name


def test_the_application_compiles_for_all_types(nvrtc):
    for source, target in itertools.product(n4_cuda.APPLIED, repeat=2):
        options = n4_cuda.apply_options(source, np.dtype(target))
        found = nvrtc.needs(n4_cuda.SOURCE, options, 80)
        assert list(found) == ["apply"]
        assert found["apply"][0] * n4_cuda.THREADS <= nvrtc.REGISTERS
