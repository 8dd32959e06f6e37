"""NVRTC by its C interface: kernels compiled for any generation of GPUs, without a GPU or CuPy."""

import ctypes
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

PROJECT = Path(__file__).resolve().parents[2]

FOLDERS = {12: "nvidia/cuda_nvrtc/lib", 13: "nvidia/cu13/lib"}
"""Where NVIDIA's wheels put NVRTC, by the major version of CUDA."""

SEPARATE = PROJECT / ".tools" / "nvrtc"
"""Where tools/setup.sh installs CUDA 13's. From .venv, CuPy for CUDA 12 would load it too."""


class Resources(NamedTuple):
    """Needs of a kernel: registers of a thread, bytes of shared memory, and bytes spilled."""

    registers: int
    shared: int
    spilled: int


class Compiled(NamedTuple):
    """A module's machine code (a cubin) and the compiler's log."""

    cubin: bytes
    log: str

    def resources(self) -> dict[str, Resources]:
        """Return the needs of each kernel."""
        found = {}
        for entry in re.split("Compiling entry function", self.log)[1:]:
            (name,) = re.findall(r"^ *'(\w+)'", entry)
            (registers,) = re.findall(r"Used (\d+) registers", entry)
            shared = re.findall(r"(\d+) bytes smem", entry) or [0]
            spilled = re.findall(r"(\d+) bytes spill", entry)
            found[name] = Resources(int(registers), int(shared[0]), sum(map(int, spilled)))
        return found


class Nvrtc:
    """One NVRTC.

    Parameters
    ----------
    library
        Path of libnvrtc, or its name for the dynamic loader.

    Raises
    ------
    OSError
        If it cannot be loaded.
    """

    def __init__(self, library: str | Path) -> None:
        self._library = ctypes.CDLL(str(library))
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("Version", ctypes.byref(major), ctypes.byref(minor))
        self.version = major.value, minor.value
        count = ctypes.c_int()
        self._call("GetNumSupportedArchs", ctypes.byref(count))
        generations = (ctypes.c_int * count.value)()
        self._call("GetSupportedArchs", generations)
        self.generations = tuple(generations)

    def compile(self, code: str, options: Sequence[str], generation: int) -> Compiled:
        """Compile a module with CuPy's options for a generation, such as 90 for sm_90.

        Raises
        ------
        RuntimeError
            If it does not compile; the message is the compiler's log.
        """
        # CuPy adds its own last, and of two NVRTC uses the last.
        own = ("-ftz=true", f"-arch=sm_{generation}", "--device-as-default-execution-space")
        words = [word.encode() for word in (*options, "--ptxas-options=-v", *own)]
        program = ctypes.c_void_p()
        self._call(
            "CreateProgram", ctypes.byref(program), code.encode(), b"kernel.cu", 0, None, None
        )
        try:
            pointers = (ctypes.c_char_p * len(words))(*words)
            failed = self._library.nvrtcCompileProgram(program, len(words), pointers)
            log = self._text("ProgramLog", program).rstrip(b"\0").decode()
            if failed:
                raise RuntimeError(log)
            return Compiled(self._text("CUBIN", program), log)
        finally:
            self._call("DestroyProgram", ctypes.byref(program))

    def _text(self, what: str, program: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"Get{what}Size", program, ctypes.byref(size))
        content = ctypes.create_string_buffer(size.value)
        self._call(f"Get{what}", program, content)
        return content.raw

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._library, f"nvrtc{name}")(*arguments)
        if code:
            raise RuntimeError(f"nvrtc{name}: {self._library.nvrtcGetErrorString(code).decode()}")


def installed(cuda: int) -> Nvrtc:
    """Return the NVRTC of CUDA 12 or 13: that of tools/setup.sh, or one that the loader finds.

    Raises
    ------
    OSError
        If there is none.
    """
    name = f"libnvrtc.so.{cuda}"
    places = [Path(entry) / FOLDERS[cuda] / name for entry in (SEPARATE, *sys.path)]
    return Nvrtc(next((path for path in places if path.is_file()), name))
