"""Which objects of a store are written already, so that a run that was killed goes on from there.

The store is made in a folder that carries a fingerprint of everything that its voxels depend on;
another setting is another folder. Beside it a journal has one line for every object (a shard or a
chunk) that was written whole: its key, size and checksum, and what its source was. A line is
believed only as far as the file says the same: one that is torn, as a crash of the machine leaves
it, is made again, and so is one whose source has changed.
"""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from io import FileIO
from pathlib import Path
from threading import Lock

from octane.core.errors import NO_SPACE, NoSpaceError, OctaneError
from octane.core.files import PARTIAL
from octane.core.locking import locked
from octane.core.manifests import Stamp, measured
from octane.core.metrics import as_json

__all__ = ["Journal", "fingerprint", "journal"]

logger = logging.getLogger(__name__)

SUFFIX = ".journal"


@dataclass(frozen=True)
class _Entry:
    source: str
    stamp: Stamp


class Journal:
    """The finished objects of a store that is being written; safe to use from several threads.

    Attributes
    ----------
    folder
        Where the store is made.
    """

    def __init__(self, folder: Path, stream: FileIO, entries: Mapping[str, _Entry]) -> None:
        self.folder = folder
        self._stream, self._lock = stream, Lock()
        self._entries = dict(entries)

    def __len__(self) -> int:
        return len(self._entries)

    def finished(self, key: str, source: str) -> Stamp | None:
        """Stamp of an object that was made of this source, if its file is as it was written."""
        entry = self._entries.get(key)
        if entry is None or entry.source != source:
            return None
        try:
            return entry.stamp if measured(self.folder / key) == entry.stamp else None
        except FileNotFoundError:
            return None

    def add(self, key: str, source: str, stamp: Stamp) -> None:
        """Note an object whose file is written."""
        line = json.dumps({"key": key, "source": source, **asdict(stamp)})
        with self._lock:
            # One write a line: what a kill cuts short is the last line, which is then left out.
            self._stream.write(f"{line}\n".encode())


def fingerprint(content: Mapping[str, object]) -> str:
    """A short name for what a store depends on, this program included."""
    text = as_json({**content, "code": _code_fingerprint()})
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _code_fingerprint() -> str:
    """A hash of this package's sources: other code may give other voxels."""
    found = hashlib.sha256()
    for file in sorted(Path(__file__).parents[1].rglob("*")):
        if file.suffix in (".py", ".cu"):
            found.update(file.read_bytes())
    return found.hexdigest()


@contextmanager
def journal(place: Path, name: str, key: str, source: Path) -> Generator[Journal | None]:
    """Open the journal of a store; it is removed when the block ends well, and kept otherwise.

    What an earlier run made of the same source with other settings or code is removed.

    Parameters
    ----------
    place
        Folder for the store while it is being made.
    name
        The finished store's name.
    key
        Its :func:`fingerprint`.
    source
        What it is made from.

    Yields
    ------
    Journal or None
        None, with a warning, while another process makes the same store: nothing is kept then.

    Raises
    ------
    OctaneError
        When the place cannot be written.
    """
    folder = place / f".resume-{key}-{name}"
    file = folder.with_name(folder.name + SUFFIX)
    header = {"source": str(source.resolve()), "name": name}
    try:
        place.mkdir(parents=True, exist_ok=True)
        stream = _opened(file)
    except OSError as error:
        raise (NoSpaceError if error.errno in NO_SPACE else OctaneError)(
            f"{place} cannot be written ({error.strerror}), and --resume keeps finished tiles "
            "there; give another --resume-dir."
        ) from error
    if stream is None:
        logger.warning(
            "%s is being made by another process with the same settings: this one keeps nothing "
            "for --resume",
            name,
        )
        yield None
        return
    with stream:
        _remove_others(place, file, header)
        stream.seek(0)
        content = stream.read()
        entries = _entries(content, header)
        if entries is None:
            shutil.rmtree(folder, ignore_errors=True)
            stream.truncate(0)
            stream.write((json.dumps(header) + "\n").encode())
        elif not content.endswith(b"\n"):
            stream.write(b"\n")
        _sweep(folder)
        try:
            yield Journal(folder, stream, entries or {})
        except BaseException:
            if folder.exists():
                logger.info("Finished tiles are kept in %s", folder)
            else:
                file.unlink(missing_ok=True)
            raise
        file.unlink(missing_ok=True)


def _opened(file: Path) -> FileIO | None:
    """The journal's file, locked; None while another process has it."""
    while True:
        # Unbuffered: nothing is left to be written when the disk is full.
        stream = file.open("a+b", buffering=0)
        if not locked(stream.fileno(), file):
            stream.close()
            return None
        # Its owner may have removed it between the two.
        if file.exists() and os.fstat(stream.fileno()).st_ino == file.stat().st_ino:
            return stream
        stream.close()


def _sweep(folder: Path) -> None:
    """Remove files that an earlier run was writing, and the metadata, which is made anew."""
    # zarr's own temporary files end in .partial, and its metadata may be torn.
    for pattern in (f"{PARTIAL}*", "*.partial", "zarr.json"):
        for file in folder.rglob(pattern):
            file.unlink()


def _lines(content: bytes) -> list[dict]:
    """The whole lines of a journal; a kill cuts the last one short."""
    found = []
    for line in content.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            found.append(value)
    return found


def _entries(content: bytes, header: Mapping[str, str]) -> dict[str, _Entry] | None:
    """The objects that a journal names; None where it is not one of this store."""
    lines = _lines(content)
    if not lines or lines[0] != header:
        return None
    return {e["key"]: _Entry(e["source"], Stamp(e["size"], e["checksum"])) for e in lines[1:]}


def _remove_others(place: Path, own: Path, header: Mapping[str, str]) -> None:
    """Remove what was made of the same source, under the same name, in another way."""
    for file in place.iterdir():
        if not (file.name.startswith(".resume-") and file.name.endswith(SUFFIX)) or file == own:
            continue
        try:
            # Looked at before it is locked: others' locks are not to be in their way.
            if _entries(file.read_bytes(), header) is None:
                continue
            with file.open("r+b", buffering=0) as stream:
                if locked(stream.fileno(), file):
                    logger.info("%s was made with other settings: it is removed", file.stem)
                    shutil.rmtree(file.with_name(file.name.removesuffix(SUFFIX)), True)
                    file.unlink()
        except FileNotFoundError:
            continue
