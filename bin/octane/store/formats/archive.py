"""Stores in one zip archive: OME-Zarr's .ozx (RFC-9), and .zarr.zip.

Entries are stored without compression, so that a chunk is read at its place in the file.
"""

import errno
import os
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import NamedTuple
from zipfile import ZIP_STORED, BadZipFile, ZipFile

from octane.core.errors import InputError, unreadable
from octane.core.files import IrregularFileError, open_regular, read_regular

ARCHIVE_SUFFIXES = (".ozx", ".zarr.zip")
"""Ends of the names of archives."""
MOST_ARCHIVES = 64
"""Archives whose directories are kept in memory, after their images are closed."""
ENTRY_HEADER = struct.Struct("<4s22xHH")
"""Header of an entry: its signature, and the lengths of the name and the fields that follow it."""
ENTRY_SIGNATURE = b"PK\3\4"
ENCRYPTED_FLAG = 0x1
PIECE_BYTES = 1_000_000
"""Bytes of an entry in memory at once while its checksum is computed."""
DAMAGED = "its entry in the zip archive is damaged"


class Located(NamedTuple):
    """Place of a stored object's bytes; with size None, up to the end of the file."""

    file: Path
    offset: int
    size: int | None


class Entry(NamedTuple):
    """Where an entry begins, with its header, and the size and CRC-32 of its content."""

    start: int
    size: int
    checksum: int


@dataclass(frozen=True)
class Archive:
    """A store in a zip archive."""

    path: Path
    entries: Mapping[str, Entry]
    _intact: set[str] = field(init=False, repr=False, default_factory=set)
    _locks: dict[str, Lock] = field(init=False, repr=False, default_factory=dict)
    _found: dict[str, Located] = field(init=False, repr=False, default_factory=dict)

    def locate(self, key: str) -> Located:
        """Find the bytes of an object.

        Raises a FileNotFoundError if it is missing, and another OSError if it is unreadable.
        """
        if key not in self._found:
            self._found[key] = self._locate(key)
        return self._found[key]

    def _locate(self, key: str) -> Located:
        if key not in self.entries:
            name = os.fspath(self.path / key)
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        start, size, _ = self.entries[key]
        with os.fdopen(open_regular(self.path), "rb") as stream:
            stream.seek(start)
            head = stream.read(ENTRY_HEADER.size)
        if len(head) < ENTRY_HEADER.size or not head.startswith(ENTRY_SIGNATURE):
            raise IrregularFileError(errno.EINVAL, DAMAGED, os.fspath(self.path / key))
        _, name_bytes, extra_bytes = ENTRY_HEADER.unpack(head)
        return Located(self.path, start + ENTRY_HEADER.size + name_bytes + extra_bytes, size)

    def verify(self, key: str) -> None:
        """Compare the checksum of an object, the first time; errors as in :meth:`locate`."""
        file, offset, _ = self.locate(key)
        _, left, expected = self.entries[key]
        # The first thread compares it; others of the same entry wait.
        with self._locks.setdefault(key, Lock()):
            if key in self._intact:
                return
            checksum = 0
            with os.fdopen(open_regular(file), "rb") as stream:
                stream.seek(offset)
                while piece := stream.read(min(PIECE_BYTES, left)):
                    checksum, left = zlib.crc32(piece, checksum), left - len(piece)
            if left or checksum != expected:
                raise IrregularFileError(errno.EINVAL, DAMAGED, os.fspath(self.path / key))
            self._intact.add(key)


def is_archive(path: Path) -> bool:
    """Tell by its name whether a path is a store in a zip archive."""
    return path.name.endswith(ARCHIVE_SUFFIXES) and not path.is_dir()


def open_archive(path: Path) -> Archive:
    """Read the directory of an archive, or return it from memory if the file has not changed.

    Raises an InputError if the file is not a zip archive, or its entries are not stored as they
    are.
    """
    try:
        state = path.stat()
        return _open_cached_archive(path, state.st_size, state.st_mtime_ns, state.st_ino)
    except OSError as error:
        raise unreadable(error) from error


@lru_cache(MOST_ARCHIVES)
def _open_cached_archive(path: Path, size: int, *_state: int) -> Archive:
    try:
        with os.fdopen(open_regular(path), "rb") as stream, ZipFile(stream) as archive:
            listed = archive.infolist()
        if any(
            not 0 <= e.header_offset <= size - ENTRY_HEADER.size - e.compress_size for e in listed
        ):
            raise BadZipFile("an entry lies outside the file")
        if any(e.compress_type == ZIP_STORED and e.file_size > e.compress_size for e in listed):
            raise BadZipFile("an entry is shorter than it states")
    # Sizes in the directory may be larger than any file.
    except (BadZipFile, NotImplementedError, ValueError, OverflowError, struct.error) as error:
        raise InputError(
            f"{path} is not a complete zip archive ({error}); copy it again, or write it again."
        ) from error
    for entry in listed:
        if entry.compress_type != ZIP_STORED or entry.flag_bits & ENCRYPTED_FLAG:
            raise InputError(
                f"{path} compresses or encrypts its entries ({entry.filename}), which octane does "
                "not read in parts; extract it, or write it with bin/export.py."
            )
    places = ((e.filename, (e.header_offset, e.file_size, e.CRC)) for e in listed if not e.is_dir())
    return Archive(path, {name: Entry(*place) for name, place in places})


def read_object(store: Path, key: str) -> bytes:
    """Read a file of a store in a folder or an archive; errors as in :meth:`Archive.locate`."""
    if not is_archive(store):
        return read_regular(store / key)
    archive = open_archive(store)
    archive.verify(key)
    file, offset, size = archive.locate(key)
    with os.fdopen(open_regular(file), "rb") as stream:
        stream.seek(offset)
        return stream.read(-1 if size is None else size)
