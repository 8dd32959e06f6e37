"""Which stored objects of an image that is being written are there from an earlier run."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from threading import Lock

from octane.core.geometry import Region
from octane.resample.journal import Journal
from octane.store.chunks import chunk_key, owned_shape, stored_objects
from octane.store.image import Image
from octane.store.volumes import Volume
from octane.store.writer import DirectWriter

__all__ = ["Finished"]


class Finished:
    """The finished objects of an image, by their regions.

    Parameters
    ----------
    source
        What it is made from.
    writer
        What writes it.
    record
        The journal; None where nothing is kept.

    Attributes
    ----------
    kept
        How many objects were taken over.
    """

    def __init__(self, source: Volume, writer: DirectWriter, record: Journal | None) -> None:
        self._source, self._writer, self._record = source, writer, record
        self._owned = owned_shape(writer.array)
        self._lock = Lock()
        self.kept = 0
        # Other formats are read whole, before.
        self._whole = "" if isinstance(source, Image) else _state([source.path])

    def has(self, region: Region, state: str) -> bool:
        """Whether the object of ``region`` was made of a source in this state."""
        key = self._key(region)
        stamp = None if self._record is None else self._record.finished(key, state)
        if stamp is None:
            return False
        with self._lock:
            self.kept += 1
        self._writer.stamps[key] = stamp
        return True

    def add(self, region: Region, state: str) -> None:
        """The object is written, of a source that was in this state before it was read."""
        if self._record is not None:
            key = self._key(region)
            self._record.add(key, state, self._writer.stamps[key])

    def state(self, taken: Region) -> str:
        """Sizes and times of the files that hold a region of the source."""
        if self._record is None:
            return ""
        source = self._source
        if not isinstance(source, Image):
            return self._whole
        return _state([o.file for o in stored_objects(source.array, source.path, taken)])

    def _key(self, region: Region) -> str:
        position = tuple(r.start // n for r, n in zip(region, self._owned, strict=True))
        return chunk_key(self._writer.array, position)


def _state(files: Sequence[Path]) -> str:
    found = hashlib.sha256()
    for file in files:
        # A missing chunk that is to be filled is a state as well.
        seen = file.stat() if file.exists() else None
        found.update(b"-" if seen is None else f"{seen.st_size} {seen.st_mtime_ns} ".encode())
    return found.hexdigest()
