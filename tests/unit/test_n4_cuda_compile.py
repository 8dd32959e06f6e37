"""The CUDA kernels of N4 compile, for every generation of GPUs, and fit on a multiprocessor.

By NVRTC, the compiler that CuPy calls; it needs neither a GPU nor a driver.
"""

import ctypes
import importlib.metadata
import itertools
import re

import numpy as np
import pytest

from octane import n4_cuda

WHEELS = ("nvidia-cuda-nvrtc-cu12", "nvidia-cuda-nvrtc")

# Volta, Turing, Ampere (A100, A6000), Ada, Hopper and Blackwell, as far as the NVRTC offers them.
GENERATIONS = (70, 75, 80, 86, 89, 90, 100, 120)

# Of a multiprocessor, in every generation: registers, and the shared memory of one block.
REGISTERS = 1 << 16
SHARED = 48 << 10


def library():
    """NVRTC from a wheel, or None."""
    for wheel in WHEELS:
        try:
            files = importlib.metadata.files(wheel) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for file in files:
            if re.fullmatch(r"libnvrtc\.so\.\d+", file.name):
                return ctypes.CDLL(str(file.locate()))
    return None


@pytest.fixture(scope="session")
def nvrtc():
    loaded = library()
    if loaded is None:
        pytest.skip(f"no NVRTC: none of the wheels {', '.join(WHEELS)} is installed here")
    return loaded


def offered(nvrtc):
    count = ctypes.c_int()
    assert nvrtc.nvrtcGetNumSupportedArchs(ctypes.byref(count)) == 0
    numbers = (ctypes.c_int * count.value)()
    assert nvrtc.nvrtcGetSupportedArchs(numbers) == 0
    return list(numbers)


def compiled(nvrtc, options):
    """Compile to machine code: what the compiler and the assembler said."""
    program = ctypes.c_void_p()
    source = n4_cuda.SOURCE.read_bytes()
    created = nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"n4_cuda.cu", 0, None, None)
    assert created == 0
    options = [*options, "--ptxas-options=-v"]
    given = (ctypes.c_char_p * len(options))(*(o.encode() for o in options))
    failed = nvrtc.nvrtcCompileProgram(program, len(options), given)
    size = ctypes.c_size_t()
    assert nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size)) == 0
    text = ctypes.create_string_buffer(size.value)
    assert nvrtc.nvrtcGetProgramLog(program, text) == 0
    log = text.value.decode()
    assert nvrtc.nvrtcDestroyProgram(ctypes.byref(program)) == 0
    assert not failed, log
    # NVRTC calls its oldest generation deprecated; anything else is about the source.
    said = [line for line in log.splitlines() if "deprecated" not in line]
    assert not [line for line in said if re.search("warning|error", line, re.IGNORECASE)], log
    return log


def needs(log):
    """Registers a thread and bytes of shared memory a block, per kernel; no spills allowed."""
    found = {}
    for entry in re.split("Compiling entry function", log)[1:]:
        (name,) = re.findall(r"^ *'(\w+)'", entry)
        (registers,) = re.findall(r"Used (\d+) registers", entry)
        assert re.findall(r"(\d+) bytes spill", entry) == ["0", "0"], entry
        shared = re.findall(r"(\d+) bytes smem", entry) or [0]
        found[name] = int(registers), int(shared[0])
    return found


# Largest blocks that are launched.
WIDE = dict.fromkeys(("sharpen", "running_mean"), 1024)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_the_kernels_compile_without_warnings_and_fit(nvrtc, generation):
    if generation not in offered(nvrtc):
        pytest.skip(f"this NVRTC offers {offered(nvrtc)}, not {generation}")
    log = compiled(nvrtc, (f"--gpu-architecture=sm_{generation}", *n4_cuda.fit_options()))
    found = needs(log)
    assert sorted(found) == sorted(n4_cuda.KERNELS)
    for name, (registers, shared) in found.items():
        assert registers * WIDE.get(name, n4_cuda.THREADS) <= REGISTERS, name
        assert shared <= SHARED, name


def test_the_application_compiles_for_all_types(nvrtc):
    for source, target in itertools.product(n4_cuda.APPLIED, repeat=2):
        options = n4_cuda.apply_options(source, np.dtype(target))
        found = needs(compiled(nvrtc, ("--gpu-architecture=sm_80", *options)))
        assert list(found) == ["apply"]
        assert found["apply"][0] * n4_cuda.THREADS <= REGISTERS
