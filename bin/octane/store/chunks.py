"""Stored objects (shards or chunks) of a region of a zarr array, and the search for missing ones.

zarr returns the fill value for a missing chunk, so a lost tile would go unnoticed.
"""

import os
import re
from collections.abc import Generator, Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np

from octane.core.errors import (
    CorruptChunkError,
    MissingChunkError,
    UnreadableChunkError,
    unreadable,
)
from octane.core.files import IrregularFileError, open_regular, require_regular
from octane.core.geometry import Region
from octane.store.array import Array
from octane.store.encoding import ABSENT_CHUNK, ShardIndexError, ShardLayout
from octane.store.formats.archive import ARCHIVE_SUFFIXES

METADATA_FILES = ("zarr.json", ".zattrs", ".zgroup", ".zarray")
"""Names of a store's metadata files in zarr v3 and v2."""


def is_store(path: Path) -> bool:
    """Tell whether a path is a zarr store, by its name or by the metadata in it."""
    named = path.name.endswith((".zarr", *ARCHIVE_SUFFIXES))
    return named or any((path / name).exists() for name in METADATA_FILES)


@contextmanager
def chunk_errors(key: str) -> Generator[None]:
    """Turn the system's errors on reading a chunk into a :class:`ChunkError`."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        raise MissingChunkError(key, "is missing") from error
    except IrregularFileError as error:
        raise CorruptChunkError(key, str(error.strerror)) from error
    except OSError as error:
        raise UnreadableChunkError(key, error.strerror or str(error)) from error


class StoredObject(NamedTuple):
    """A shard, or a chunk of an array without shards, and its region of the array."""

    key: str
    region: Region


def stored_objects(array: Array, region: Region) -> Iterator[StoredObject]:
    """Yield every stored object that overlaps ``region``, in raster order."""
    size = array.object_shape
    spans = (
        range(r.start // n, -(-r.stop // n)) if r.stop > r.start else range(0)
        for r, n in zip(region, size, strict=True)
    )
    for position in product(*spans):
        key = array.key(position)
        axes = zip(position, size, array.shape, strict=True)
        held = tuple(slice(p * n, min((p + 1) * n, m)) for p, n, m in axes)
        yield StoredObject(key, held)


def other_key(array: Array) -> str | None:
    """Tell whether a store lacks every chunk of an array, and what lies there instead.

    Returns None if the store holds any chunk. Else the key of a file that looks like a chunk, but
    has another separator or count of numbers than the metadata ask for; or an empty text.
    """
    counts = [-(-n // size) for n, size in zip(array.shape, array.object_shape, strict=True)]
    prefix = f"{array.path}/" if array.path else ""
    asked = array.key((0,) * len(counts)).removeprefix(prefix)
    pattern = re.escape(asked).replace("0", r"(\d{1,18})")
    other = ""
    for name in _chunk_names(array, prefix, len(counts)):
        match = re.fullmatch(pattern, name)
        if match is None:
            other = other or f"{prefix}{name}"
        elif all(int(k) < n for k, n in zip(match.groups(), counts, strict=True)) and not (
            array.layout is not None and _is_empty(array, array.layout, prefix + name)
        ):
            return None
    return other


def _chunk_names(array: Array, prefix: str, axes: int) -> Iterator[str]:
    """Names of the files of an array that look like chunks, whatever their separator."""
    if array.archive is not None:
        keys = (key for key in array.archive.entries if key.startswith(prefix))
        names = (key.removeprefix(prefix) for key in keys)
    else:
        # A chunk's folders are its numbers, after "c" in version 3.
        names = _files(array.folder / array.path, axes + 1)
    yield from (name for name in names if re.fullmatch(r"(c[/.])?\d+([/.]\d+)*", name))


def _files(folder: Path, depth: int) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if not entry.is_dir():
                    yield entry.name
                elif depth and re.fullmatch(r"c|\d+", entry.name):
                    below = _files(folder / entry.name, depth - 1)
                    yield from (f"{entry.name}/{name}" for name in below)
    except FileNotFoundError:
        return
    except OSError as error:
        raise unreadable(error) from error


def _is_empty(array: Array, layout: ShardLayout, key: str) -> bool:
    """Tell whether a shard holds no chunk; False if its index is damaged."""
    with suppress(ShardIndexError, OSError):
        file, offset, size = array.locate(key)
        with os.fdopen(open_regular(file), "rb") as stream:
            return bool((layout.read_index(stream.fileno(), offset, size) == ABSENT_CHUNK).all())
    return False


def missing_keys(
    array: Array, region: Region, left_out: AbstractSet[tuple[int, ...]] = frozenset()
) -> Iterator[str]:
    """Yield the keys of the objects and inner chunks of ``region`` that the store lacks.

    Columns of chunks (y, x) that are ``left_out`` may be missing. An object that exists but cannot
    be read raises a :class:`ChunkError`.
    """
    for stored in stored_objects(array, region):
        try:
            with chunk_errors(stored.key):
                file, _, size = array.locate(stored.key)
                if size is None:
                    state = file.stat()
                    require_regular(file, state)
                    size = state.st_size
        except MissingChunkError:
            if not _columns(array, stored.region) <= left_out:
                yield stored.key
            continue
        if not size:
            raise CorruptChunkError(stored.key, "empty file")
        if array.layout is not None:
            for inner in _missing_inner(array, array.layout, stored, region, left_out):
                yield f"{stored.key} (inner chunk {inner})"


def _columns(array: Array, region: Region) -> set[tuple[int, ...]]:
    """Positions (y, x) of the chunks in a region of the array."""
    axes = zip(region[-2:], array.chunks[-2:], strict=True)
    return {*product(*(range(r.start // c, -(-r.stop // c)) for r, c in axes))}


def _missing_inner(
    array: Array,
    layout: ShardLayout,
    stored: StoredObject,
    region: Region,
    left_out: AbstractSet[tuple[int, ...]],
) -> Iterator[str]:
    """Yield the inner chunks of ``region`` that a shard's index marks as absent."""
    try:
        with chunk_errors(stored.key):
            file, offset, size = array.locate(stored.key)
            with os.fdopen(open_regular(file), "rb") as stream:
                index = layout.read_index(stream.fileno(), offset, size)
    except ShardIndexError:
        yield "index"
        return
    for inner in np.argwhere(index[..., 0] == ABSENT_CHUNK).tolist():
        bounds = [*zip(stored.region, inner, array.chunks, region, strict=True)]
        if tuple(h.start // c + i for h, i, c, _ in bounds[-2:]) in left_out:
            continue
        # Inner chunks beyond the array's edge are never written.
        if all(
            h.start + i * c < min(r.stop, h.stop) and h.start + (i + 1) * c > r.start
            for h, i, c, r in bounds
        ):
            yield "/".join(map(str, inner))
