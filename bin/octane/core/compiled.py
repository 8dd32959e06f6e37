"""Loops compiled by numba for the CPU, with their machine code cached for later processes.

Import this module, and those that use it, only when a step computes: numba takes a third of a
second to import.
"""

import hashlib
import logging
import os
import stat
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, partial
from inspect import getfile
from pathlib import Path
from typing import ParamSpec, TypeVar

import llvmlite.binding as llvm
import numba
from numba.extending import register_jitable

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

PACKAGE = Path(__file__).resolve().parents[1]
CHECKSUM = "sha256"
"""Name of the file with the checksum of a folder of the cache."""
WRITABLE = stat.S_IWGRP | stat.S_IWOTH
"""Bits of the mode of a folder into which others may write."""
# IEEE division by zero: Python's check for it would prevent vectorization.
_njit = partial(numba.njit, nogil=True, error_model="numpy")

helper = register_jitable(fastmath=False)
"""Make a function callable from compiled loops, with IEEE arithmetic in the order written."""

reordered = register_jitable(fastmath={"reassoc", "contract"})
"""Like :data:`helper`, but sums may be reordered and fused with products, to be vectorized.

The order is fixed at compilation, so results may differ between processors.
"""

_lock = threading.Lock()
_warned = threading.Event()


def compiled(signature: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Compile a function, or load its cached machine code, for one signature.

    It runs without the interpreter's lock and without bounds checks. A call with other types
    raises a TypeError; arrays must be writable, and contiguous if the signature says ``::1``.
    """
    return lambda function: _compile(function, signature)


def _compile(function: Callable[P, R], signature: str) -> Callable[P, R]:
    root = _root()
    if root is not None:
        folder = root / f"octane-{_key(function, signature)}"
        try:
            if _is_intact(folder):
                return _cached(function, signature, folder)
            return _compile_and_keep(function, signature, folder)
        except OSError as error:
            _warn(error)
    return _njit(signature)(function)


def _is_intact(folder: Path) -> bool:
    """Tell whether a folder is as this user made it: numba would run whatever is there."""
    try:
        state = folder.lstat()
        private = state.st_uid == os.geteuid() and not state.st_mode & WRITABLE
        # The files first, of which none may be a FIFO.
        return private and _checksum(folder) == (folder / CHECKSUM).read_bytes()
    except OSError:
        return False


def _checksum(folder: Path) -> bytes:
    """Checksum of the files below a folder and their names; an OSError for a FIFO among them."""
    content = hashlib.sha256()
    for path, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files):
            file = Path(path, name)
            if not stat.S_ISREG(file.lstat().st_mode):
                raise OSError(f"{file} is not a regular file")
            if name != CHECKSUM:
                code = file.read_bytes()
                content.update(f"{file.relative_to(folder)} {len(code)} ".encode() + code)
    return content.hexdigest().encode()


def _compile_and_keep(function: Callable[P, R], signature: str, folder: Path) -> Callable[P, R]:
    """Compile a function, and keep its code in place of a damaged folder."""
    # Complete before it has its name, so that processes that compile at once do not mix theirs.
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}-") as made:
        new = Path(made, "new")
        new.mkdir(0o700)
        function = _cached(function, signature, new)
        (new / CHECKSUM).write_bytes(_checksum(new))
        if not _is_intact(new):
            raise PermissionError(f"others may write to {folder.parent}")
        try:
            if os.path.lexists(folder) and not _is_intact(folder):
                logger.warning("The compiled code in %s is damaged; it was made again.", folder)
                # Unless another process was first.
                with suppress(FileNotFoundError):
                    folder.rename(Path(made, "old"))
            new.rename(folder)
        except OSError:
            # Unless another process was first.
            if not _is_intact(folder):
                raise
    return function


def _cached(function: Callable[P, R], signature: str, folder: Path) -> Callable[P, R]:
    # numba reads the setting when it decorates a function.
    with _lock:
        before = numba.config.CACHE_DIR  # ty: ignore[missing-attribute]
        numba.config.CACHE_DIR = str(folder)  # ty: ignore[missing-attribute]
        try:
            return _njit(signature, cache=True)(function)
        finally:
            numba.config.CACHE_DIR = before  # ty: ignore[missing-attribute]


def _key(function: Callable, signature: str) -> str:
    """Hash of everything that machine code depends on.

    numba notices changes only in the function's own file, not in a helper's; helpers and constants
    come from that file's folder. A folder per key also separates users, functions, and processes
    that compile a function for other types or processors at the same time.
    """
    file, name = Path(getfile(function)), getattr(function, "__qualname__", "")
    cpu = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
    made_from = (
        *(str(file), name, signature, os.geteuid(), cpu),
        *(numba.__version__, sys.version_info[:2], _digest_of_code(file.parent)),
    )
    return hashlib.sha256(repr(made_from).encode()).hexdigest()[:16]


@cache
def _digest_of_code(home: Path) -> str:
    code = hashlib.sha256()
    for file in (Path(__file__), *sorted(home.glob("*.py"))):
        code.update(file.read_bytes())
    return code.hexdigest()


def _folders() -> Iterator[Path]:
    """Candidate folders for the cache, in order of preference."""
    if given := os.environ.get("NUMBA_CACHE_DIR"):
        yield Path(given)
    yield PACKAGE / "__pycache__"
    # Path.home raises if the user has none.
    with suppress(RuntimeError):
        yield Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "octane")


@cache
def _root() -> Path | None:
    """First writable folder for the cache; None, with a warning, if none is."""
    refusal = OSError()
    for folder in _folders():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return folder
        except OSError as error:
            refusal = error
    _warn(refusal)
    return None


def _warn(refusal: OSError) -> None:
    if not _warned.is_set():
        _warned.set()
        logger.warning(
            "Compiled code cannot be cached (%s), so every process compiles it again; set "
            "NUMBA_CACHE_DIR to an empty writable folder.",
            refusal,
        )
