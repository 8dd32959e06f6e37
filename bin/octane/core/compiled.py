"""Loops compiled for the CPU: the one place that knows numba.

A kernel is a plain Python function with a fixed signature. numba is imported, and the kernel
compiled or taken from the cache, when it is first called, so that a command that calls no kernel
pays nothing, and one that calls few loads few.

The machine code is cached in the first place that can be written: ``NUMBA_CACHE_DIR``, beside the
code, ``$XDG_CACHE_HOME/octane`` (``~/.cache/octane``), a folder of the user's in the temporary
directory. Within it every kind of processor has a folder of its own, and in that every signature
and state of the sources.
numba would keep the versions for several processors and signatures in one numbered list, in which
two processes that compile at once can take the same number and leave code for the one under the
name of the other.
"""

from __future__ import annotations

import hashlib
import logging
import os
import pickle
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import cache, update_wrapper
from pathlib import Path
from types import FunctionType
from typing import Generic, ParamSpec, TypeVar

__all__ = ["Kernel", "cache_folder", "compiled", "inlined"]

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

# Compiling is not safe on several threads at once, and the cache's place is a global of numba's.
_lock = threading.Lock()
# Functions to be made known to numba, and whether their sums may be reordered.
_helpers: list[tuple[FunctionType, bool]] = []


class Kernel(Generic[P, R]):
    """A compiled function: called as the Python function it is made from.

    Parameters
    ----------
    function
        The loops, in what numba takes of Python and NumPy.
    signature
        numba's, for example ``"float64(float32[::1], int64)"``. Arrays must be of exactly these
        types, and writable.
    reorder
        See :func:`compiled`.
    """

    def __init__(self, function: Callable[P, R], signature: str, *, reorder: bool) -> None:
        assert isinstance(function, FunctionType)
        update_wrapper(self, function)
        self.function, self.signature, self.reorder = function, signature, reorder
        self._files = f"*.{function.__qualname__}-*"
        self._machine_code: Callable[P, R] | None = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the machine code, made at the first call."""
        if self._machine_code is None:
            with _lock:
                if self._machine_code is None:
                    self._machine_code = self._make()
        return self._machine_code(*args, **kwargs)

    def _make(self) -> Callable[P, R]:
        from numba.extending import register_jitable

        while _helpers:
            helper, reorder = _helpers.pop()
            # Said outright, because a helper would take the caller's arithmetic.
            register_jitable(fastmath=_arithmetic(reorder))(helper)
        folder = cache_folder()
        if folder is None:
            return self._compile(None)
        key = hashlib.sha256(self.signature.encode())
        for source in sorted(_sources(self.function)):
            key.update(source.read_bytes())
        folder /= key.hexdigest()[:12]
        try:
            return self._compile(folder)
        except (EOFError, pickle.UnpicklingError):
            # A file cut short, as a full disk or a crash leaves it.
            for file in folder.rglob(self._files):
                file.unlink(missing_ok=True)
        except OSError as error:
            logger.warning("Compiled code cannot be kept in %s: %s", folder, error)
            return self._compile(None)
        return self._compile(folder)

    def _compile(self, folder: Path | None) -> Callable[P, R]:
        import numba

        # Read when a function is decorated; other users of numba in this process keep theirs.
        config = vars(numba.config)
        before, config["CACHE_DIR"] = config["CACHE_DIR"], str(folder or "")
        try:
            return numba.njit(
                self.signature,
                nogil=True,
                cache=folder is not None,
                # A division by zero gives what IEEE says: the test for it would keep loops scalar.
                error_model="numpy",
                fastmath=_arithmetic(self.reorder),
            )(self.function)
        finally:
            config["CACHE_DIR"] = before


def compiled(signature: str, *, reorder: bool = False) -> Callable[[Callable[P, R]], Kernel[P, R]]:
    """Make a function a :class:`Kernel`.

    It runs without the interpreter's lock, without tests of indices, and with IEEE arithmetic in
    the order written.

    Parameters
    ----------
    signature
        numba's, for example ``"float64(float32[::1], int64)"``.
    reorder
        Let sums be taken in another order, and products fused into them: without this a sum over
        an array cannot use vector instructions. The order is fixed when the kernel is compiled,
        so repeats give the same bits; other processors may not.
    """

    def decorate(function: Callable[P, R]) -> Kernel[P, R]:
        return Kernel(function, signature, reorder=reorder)

    return decorate


def inlined(*, reorder: bool = False) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function callable from kernels; elsewhere it stays as it is.

    `reorder` is as for :func:`compiled` and concerns this function alone, whatever its kernel has.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        assert isinstance(function, FunctionType)
        _helpers.append((function, reorder))
        return function

    return decorate


def _sources(function: FunctionType) -> set[Path]:
    """Files that a function's machine code is made from: its own, and those of its helpers.

    numba looks at the kernel's own file alone, and would go on with old code of its helpers.
    Constants that a kernel takes from another file are not followed.
    """
    files = {Path(function.__code__.co_filename)}
    for name in function.__code__.co_names:
        helper = function.__globals__.get(name)
        if isinstance(helper, FunctionType):
            files |= _sources(helper)
    return files


def _arithmetic(reorder: bool) -> set[str] | bool:
    return {"reassoc", "contract"} if reorder else False


@cache
def cache_folder() -> Path | None:
    """Where compiled code is kept for this kind of processor; None, with a warning, if nowhere."""
    from numba.core.registry import cpu_target

    _, cpu, features = cpu_target.target_context.codegen().magic_tuple()
    kind = f"{cpu}-{hashlib.sha256(features.encode()).hexdigest()[:12]}"
    for place in _places():
        folder = place / kind
        try:
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
        except OSError:
            continue
        return folder
    logger.warning(
        "No folder for compiled code can be written, so it is compiled again by every process; "
        "name one in NUMBA_CACHE_DIR."
    )
    return None


def _places() -> Iterator[Path]:
    """Places for compiled code, best first; those that are not the user's alone are left out."""
    asked = os.environ.get("NUMBA_CACHE_DIR")
    if asked:
        yield Path(asked)
    yield Path(__file__).parents[1] / "__pycache__"
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111
    # Without a home, expanduser gives back what it was given.
    if Path(home).is_absolute():
        yield Path(home) / "octane"
    try:
        shared = Path(tempfile.gettempdir()) / f"octane-{os.getuid()}"
        shared.mkdir(mode=0o700, exist_ok=True)
        found = shared.lstat()
    except OSError:
        return
    # Code is run from here: nobody else may have made the folder, or be able to write to it.
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077:
        yield shared
