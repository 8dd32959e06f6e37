"""Which objects of a store are written already, so that a run that was killed goes on from there.

The store is made in a folder that carries a fingerprint of everything that its voxels depend on;
another setting is another folder. Beside it a journal has one line for every object (a shard or a
chunk) that was written whole: its key, size and checksum, and what its source was. A line is
believed only as far as the file says the same: one that is torn, as a crash of the machine leaves
it, is made again, and so is one whose source has changed.
"""

import fcntl
import hashlib
import json
import logging
import shutil
import zlib
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from threading import Lock

from octane.atomic import PARTIAL
from octane.errors import OctaneError
from octane.metrics import as_json

__all__ = ["Journal", "code_fingerprint", "fingerprint", "journal"]

logger = logging.getLogger(__name__)

SUFFIX = ".journal"


@dataclass(frozen=True)
class _Entry:
    source: str
    size: int
    checksum: int


class Journal:
    """The finished objects of a store that is being written; safe to use from several threads.

    Attributes
    ----------
    folder
        Where the store is made.
    """

    def __init__(self, folder: Path, stream: TextIOWrapper, entries: Mapping[str, _Entry]) -> None:
        self.folder = folder
        self._stream, self._lock = stream, Lock()
        self._entries = dict(entries)

    def __len__(self) -> int:
        return len(self._entries)

    def has(self, key: str, source: str) -> bool:
        """Whether the object was made of this source, and its file is as it was written."""
        entry = self._entries.get(key)
        if entry is None or entry.source != source:
            return False
        size, checksum = _measured(self.folder / key)
        return (size, checksum) == (entry.size, entry.checksum)

    def add(self, key: str, source: str) -> None:
        """Note an object whose file is written."""
        size, checksum = _measured(self.folder / key)
        line = json.dumps({"key": key, "source": source, "size": size, "checksum": checksum})
        with self._lock:
            # One write a line: what a kill cuts short is the last line, which is then left out.
            self._stream.write(line + "\n")
            self._stream.flush()


def _measured(file: Path) -> tuple[int, int]:
    """Size and checksum of a file; of one that is not there, what no file has."""
    size, checksum = 0, 0
    try:
        with file.open("rb") as stream:
            while piece := stream.read(1 << 20):
                size += len(piece)
                checksum = zlib.crc32(piece, checksum)
    except FileNotFoundError:
        return -1, 0
    return size, checksum


def fingerprint(content: Mapping[str, object]) -> str:
    """A short name for what a store depends on, this program included."""
    text = as_json({**content, "code": code_fingerprint()})
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def code_fingerprint() -> str:
    """A hash of this package's sources: other code may give other voxels."""
    found = hashlib.sha256()
    for file in sorted(Path(__file__).parent.iterdir()):
        if file.suffix in (".py", ".cu"):
            found.update(file.read_bytes())
    return found.hexdigest()


@contextmanager
def journal(place: Path, name: str, key: str, source: Path) -> Generator[Journal]:
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

    Raises
    ------
    OctaneError
        When another process is making the same store, or the place cannot be written.
    """
    folder = place / f".resume-{key}-{name}"
    file = folder.with_name(folder.name + SUFFIX)
    own = str(source.resolve())
    try:
        place.mkdir(parents=True, exist_ok=True)
        stream = file.open("a+", encoding="utf-8")
    except OSError as error:
        raise OctaneError(
            f"{place} cannot be written ({error.strerror}), and --resume keeps finished tiles "
            "there; give another --resume-dir."
        ) from error
    with stream:
        if not _locked(stream):
            raise OctaneError(
                f"{name} is being made by another process with the same settings ({file} is "
                "locked); wait for it, or leave --resume out."
            )
        _remove_others(place, name, file, own)
        stream.seek(0)
        text = stream.read()
        entries = _entries(text.splitlines(), own)
        if entries is None:
            shutil.rmtree(folder, ignore_errors=True)
            stream.truncate(0)
            stream.write(json.dumps({"source": own}) + "\n")
        elif not text.endswith("\n"):
            stream.write("\n")
        # What was being written when an earlier run was killed.
        for unfinished in folder.rglob(f"{PARTIAL}*"):
            unfinished.unlink()
        stream.flush()
        try:
            yield Journal(folder, stream, entries or {})
        except BaseException:
            if not folder.exists():
                file.unlink()
            raise
        file.unlink()


def _locked(stream: TextIOWrapper) -> bool:
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        # Some network file systems have no locks; only then two runs at once would go unnoticed.
        logger.warning("%s cannot be locked (%s)", stream.name, error.strerror)
    return True


def _whole(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _entries(lines: list[str], source: str) -> dict[str, _Entry] | None:
    """The objects that a journal names; None where it is not one of this source."""
    whole = [json.loads(line) for line in lines if _whole(line)]
    if not whole or whole[0].get("source") != source:
        return None
    return {e["key"]: _Entry(e["source"], e["size"], e["checksum"]) for e in whole[1:]}


def _remove_others(place: Path, name: str, own: Path, source: str) -> None:
    for file in place.glob(f".resume-*-{name}{SUFFIX}"):
        if file == own:
            continue
        with file.open("a+", encoding="utf-8") as stream:
            if not _locked(stream):
                continue
            stream.seek(0)
            if _entries(stream.read().splitlines(), source) is not None:
                logger.info("%s was made with other settings: it is removed", file.stem)
                shutil.rmtree(file.with_name(file.name.removesuffix(SUFFIX)), ignore_errors=True)
                file.unlink()
