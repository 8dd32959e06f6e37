"""The source of CUDA kernels, with macros."""

from __future__ import annotations

from functools import cache
from pathlib import Path


@cache
def source_with(path: Path, **macros: str | int) -> str:
    """Return a source file after the definitions of its macros."""
    # Not as options: for each new set of options CuPy runs the compiler in every process, even if
    # the kernel is in its cache.
    defined = "".join(f"#define {name} {value}\n" for name, value in macros.items())
    return defined + path.read_text(encoding="utf-8")
