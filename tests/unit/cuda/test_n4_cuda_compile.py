"""The CUDA kernels of N4 compile, for every generation of GPUs, and fit on a multiprocessor."""

import itertools

import numpy as np

from octane.n4 import cuda

# Largest blocks that are launched.
WIDE = dict.fromkeys(("sharpen", "running_mean"), 1024)


def test_the_kernels_compile_without_warnings_and_fit(nvrtc, generation):
    found = nvrtc.needs(cuda.SOURCE, cuda.fit_options(), generation)
    assert sorted(found) == sorted(cuda.KERNELS)
    for name, (registers, shared) in found.items():
        assert registers * WIDE.get(name, cuda.THREADS) <= nvrtc.REGISTERS, name
        assert shared <= nvrtc.SHARED, name


def test_the_application_compiles_for_all_types(nvrtc):
    for source, target in itertools.product(cuda.APPLIED, repeat=2):
        options = cuda.apply_options(source, np.dtype(target))
        found = nvrtc.needs(cuda.SOURCE, options, 80)
        assert list(found) == ["apply"]
        assert found["apply"][0] * cuda.THREADS <= nvrtc.REGISTERS
