"""Fingerprints of input files: their names, sizes and times.

Nextflow checks only a folder's own time, which does not change when a chunk deep inside is edited.
Needs nothing but Python 3.9 and its standard library, because the end of a run compares them too.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

IGNORED = re.compile(r"[.](?!z).*|Thumbs[.]db|desktop[.]ini")
"""Names of files that macOS, Windows and NFS leave in folders."""


def fingerprint(root: Path, parts: Iterable[str]) -> str:
    """Hash of the names, sizes and times of the files at ``parts``.

    Parts are relative to ``root``, so that it may be moved; an empty one is ``root`` itself, and of
    an absolute one only the name counts. Links are followed. Raises an OSError that names a file or
    folder that cannot be read, or a link to nothing.
    """
    states = []
    for part in parts:
        name = Path(part).name if Path(part).is_absolute() else part
        for file, state in _files(root / part if part else root, name):
            states.append(f"{file} {state.st_size} {state.st_mtime_ns // 1_000_000}")
    return digest(sorted(states))


def digest(texts: Iterable[str]) -> str:
    """Hash of some lines."""
    content = "\n".join(texts).encode(errors="surrogateescape")
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def _files(
    path: Path, name: str, above: tuple[tuple[int, int], ...] = ()
) -> Iterator[tuple[str, os.stat_result]]:
    """Files at a path, or in a folder, with names that begin with ``name``."""
    state = path.stat()
    if not path.is_dir():
        yield name, state
        return
    own = (state.st_dev, state.st_ino)
    # A link to a folder above.
    if own in above:
        return
    with os.scandir(path) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        inner = f"{name}/{entry.name}"
        if entry.is_dir():
            yield from _files(Path(entry.path), inner, (*above, own))
        elif not IGNORED.fullmatch(entry.name):
            yield inner, entry.stat()
