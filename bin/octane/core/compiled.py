"""Loops compiled for the CPU by numba when they are first called.

A command that calls no kernel does not import numba. numba keeps machine code in the first folder
that can be written: ``NUMBA_CACHE_DIR``, ``__pycache__`` beside the kernel's file, or in the home.
"""

from __future__ import annotations

import logging
import os
import pickle
import threading
import zlib
from collections.abc import Callable
from functools import update_wrapper
from pathlib import Path
from types import FunctionType
from typing import Generic, ParamSpec, TypeVar

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

_lock = threading.Lock()
# Functions to be registered with numba, and whether their sums may be reordered.
_helpers: list[tuple[FunctionType, bool]] = []
# By module: a function that makes the module's functions known to numba.
extensions: dict[str, Callable[[], None]] = {}


class Kernel(Generic[P, R]):
    """A compiled function, called as the Python function that it is made from.

    It runs without the interpreter's lock and without tests of indices. Its helpers stand in the
    same file: numba compiles again when that file has changed, and looks at no other. Arrays must
    have exactly the types of numba's ``signature``, ``"float64(float32[::1], int64)"`` for one.
    """

    caching = True

    def __init__(self, function: Callable[P, R], signature: str, *, allocates: bool = True) -> None:
        assert isinstance(function, FunctionType)
        update_wrapper(self, function)
        self.function, self.signature = function, signature
        self.allocates = allocates
        self._machine_code: Callable[P, R] | None = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the machine code, which the first call makes."""
        if self._machine_code is None:
            with _lock:
                self._machine_code = self._machine_code or self._make()
        return self._machine_code(*args, **kwargs)

    def _others(self) -> list[bytes]:
        """Contents of other files that the loops' functions stand in."""
        functions = [f for f in self.function.__globals__.values() if isinstance(f, FunctionType)]
        files = {f.__code__.co_filename for f in functions if f.__module__ in extensions}
        return [Path(file).read_bytes() for file in sorted(files)]

    def _make(self) -> Callable[P, R]:
        from numba.extending import register_jitable

        for extend in extensions.values():
            extend()
        while _helpers:
            helper, reorder = _helpers.pop()
            # Stated for each, because a helper would take the arithmetic of its kernel.
            register_jitable(fastmath={"reassoc", "contract"} if reorder else False)(helper)
        if Kernel.caching:
            try:
                if not os.environ.get("NUMBA_CACHE_DIR"):
                    # Without a home numba would make a folder named "~" in the working directory.
                    Path.home()
                return self._compile(cache=True)
            # Nowhere to write, or a full disk.
            except (OSError, RuntimeError) as error:
                Kernel.caching = False
                logger.warning(
                    "Compiled code cannot be cached (%s), so every process compiles it again; set "
                    "NUMBA_CACHE_DIR to an empty folder that can be written.",
                    error,
                )
        return self._compile(cache=False)

    def _compile(self, *, cache: bool) -> Callable[P, R]:
        import numba
        from numba.core.registry import cpu_target
        from numba.core.runtime.nrt import rtsys

        # numba numbers the versions of a function in one list, in which two processes that compile
        # at once for two processors or signatures can take the same number: a name for each.
        kind = (self.signature, cpu_target.target_context.codegen().magic_tuple(), self._others())
        function = FunctionType(self.function.__code__, self.function.__globals__)
        function.__qualname__ += f"-{zlib.crc32(repr(kind).encode()):08x}"
        # A division by zero gives the result of IEEE: the test for it would keep loops scalar.
        make = numba.njit(nogil=True, cache=cache, error_model="numpy", _nrt=self.allocates)(
            function
        )
        if cache:
            # numba would load all that it compiles with, SciPy too, before it looks into the cache:
            # a third of the time of a short command. What cached code calls is its memory manager.
            rtsys.initialize(cpu_target.target_context)
            make._cache.load_overload = make._cache._load_overload  # ty: ignore
        try:
            make.compile(self.signature)
        # A file that a crash cut short, or zeros that a loss of power left.
        except (EOFError, pickle.UnpicklingError) as error:
            name = self.function.__name__
            logger.warning("Cached code of %s is damaged (%s) and is made again.", name, error)
            make._cache.flush()  # ty: ignore[missing-attribute]
            make.compile(self.signature)
        make.disable_compile()
        return make


def compiled(signature: str, *, allocates: bool = True) -> Callable[[Callable[P, R]], Kernel[P, R]]:
    """Make a function a :class:`Kernel`, with IEEE arithmetic in the order written.

    One that ``allocates`` no array does not count references to parts of arrays, which is slow
    where several threads count at once.
    """
    return lambda function: Kernel(function, signature, allocates=allocates)


def inlined(*, reorder: bool = False) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function callable from the kernels of its file; elsewhere it stays as it is.

    With ``reorder`` its sums may be taken in another order, and products be fused into them, which
    vector instructions need. The order is fixed at compilation: other processors may give others.
    """

    def register(function: Callable[P, R]) -> Callable[P, R]:
        assert isinstance(function, FunctionType)
        _helpers.append((function, reorder))
        return function

    return register
