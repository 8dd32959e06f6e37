"""CUDA kernels compile for every generation of GPUs and every type, and fit on a multiprocessor.

NVRTC, the compiler that CuPy calls, needs neither a GPU nor a driver.
"""

import ctypes
import importlib.metadata
import itertools
import re

import numpy as np
import pytest

from octane.core.arrays import working_type
from octane.n4 import cuda
from octane.resample.gpu import SOURCE, TYPES, band_options

WHEELS = ("nvidia-cuda-nvrtc-cu12", "nvidia-cuda-nvrtc")


class Nvrtc:
    """The compiler: what it says, and what its machine code needs."""

    # Volta, Turing, Ampere (A100, A6000), Ada, Hopper and Blackwell, as far as they are offered.
    GENERATIONS = (70, 75, 80, 86, 89, 90, 100, 120)
    # Of a multiprocessor, in every generation: registers, and the shared memory of one block.
    REGISTERS = 1 << 16
    SHARED = 48 << 10

    def __init__(self, library):
        self.library = library
        count = ctypes.c_int()
        assert library.nvrtcGetNumSupportedArchs(ctypes.byref(count)) == 0
        numbers = (ctypes.c_int * count.value)()
        assert library.nvrtcGetSupportedArchs(numbers) == 0
        self.offered = list(numbers)

    def log(self, file, options):
        """Compile to machine code: what the compiler and the assembler said."""
        library, program = self.library, ctypes.c_void_p()
        source, name = file.read_bytes(), file.name.encode()
        created = library.nvrtcCreateProgram(ctypes.byref(program), source, name, 0, None, None)
        assert created == 0
        options = [*options, "--ptxas-options=-v"]
        given = (ctypes.c_char_p * len(options))(*(o.encode() for o in options))
        failed = library.nvrtcCompileProgram(program, len(options), given)
        size = ctypes.c_size_t()
        assert library.nvrtcGetProgramLogSize(program, ctypes.byref(size)) == 0
        text = ctypes.create_string_buffer(size.value)
        assert library.nvrtcGetProgramLog(program, text) == 0
        log = text.value.decode()
        assert library.nvrtcDestroyProgram(ctypes.byref(program)) == 0
        assert not failed, log
        # NVRTC calls its oldest generation deprecated; anything else is about the source.
        said = [line for line in log.splitlines() if "deprecated" not in line]
        assert not [line for line in said if re.search("warning|error", line, re.IGNORECASE)], log
        return log

    def needs(self, file, options, generation):
        """Registers a thread and bytes of shared memory a block, per kernel; no spills allowed."""
        if generation not in self.offered:
            pytest.skip(f"this NVRTC offers {self.offered}, not {generation}")
        log = self.log(file, (f"--gpu-architecture=sm_{generation}", *options))
        found = {}
        for entry in re.split("Compiling entry function", log)[1:]:
            (name,) = re.findall(r"^ *'(\w+)'", entry)
            (registers,) = re.findall(r"Used (\d+) registers", entry)
            assert re.findall(r"(\d+) bytes spill", entry) == ["0", "0"], entry
            shared = re.findall(r"(\d+) bytes smem", entry) or [0]
            found[name] = int(registers), int(shared[0])
        return found


@pytest.fixture(scope="session")
def nvrtc():
    """NVRTC from a wheel."""
    for wheel in WHEELS:
        try:
            files = importlib.metadata.files(wheel) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for file in files:
            if re.fullmatch(r"libnvrtc\.so\.\d+", file.name):
                return Nvrtc(ctypes.CDLL(str(file.locate())))
    pytest.skip(f"no NVRTC: none of the wheels {', '.join(WHEELS)} is installed here")


each_generation = pytest.mark.parametrize("generation", Nvrtc.GENERATIONS)


@each_generation
def test_the_kernels_of_n4_compile_without_warnings_and_fit(nvrtc, generation):
    found = nvrtc.needs(cuda.SOURCE, cuda.fit_options(), generation)
    assert sorted(found) == sorted(cuda.KERNELS)
    for name, (registers, shared) in found.items():
        # The largest block that is launched.
        threads = 1024 if name in ("sharpen", "running_mean") else cuda.THREADS
        assert registers * threads <= nvrtc.REGISTERS, name
        assert shared <= nvrtc.SHARED, name


def test_the_application_of_n4_compiles_for_all_types(nvrtc):
    for source, target in itertools.product(cuda.APPLIED, repeat=2):
        options = cuda.apply_options(source, np.dtype(target))
        found = nvrtc.needs(cuda.SOURCE, options, 80)
        assert list(found) == ["apply"]
        assert found["apply"][0] * cuda.THREADS <= nvrtc.REGISTERS


FLOATS = [t for t in TYPES if t.kind == "f" and t.itemsize > 2]


def fits(nvrtc, found, at_once=1536):
    """As many threads at once as the kernel is written for."""
    assert list(found) == ["band"]
    registers, shared = found["band"]
    assert registers * at_once <= nvrtc.REGISTERS
    assert shared == 0


@each_generation
@pytest.mark.parametrize("work", FLOATS, ids=str)
def test_resampling_compiles_without_warnings_and_leaves_room_for_many_threads(
    nvrtc, generation, work
):
    # Turing's multiprocessors hold no more.
    at_once = 1024 if generation == 75 else 1536
    fits(nvrtc, nvrtc.needs(SOURCE, band_options(work, work, work), generation), at_once)


@pytest.mark.parametrize("voxel", [t for t in TYPES if t.kind != "c"], ids=str)
def test_resampling_compiles_for_all_types(nvrtc, voxel):
    work = working_type(voxel)
    fits(nvrtc, nvrtc.needs(SOURCE, band_options(voxel, work, work), 80))
    for source in FLOATS:
        nvrtc.needs(SOURCE, band_options(source, voxel, source), 80)
