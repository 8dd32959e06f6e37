"""What a store is to hold: a list of its files with sizes and checksums, which travels inside it.

Copies are cut short without a word: Nextflow ignores the errors of its copy-out, a transfer ends
when a disk is full. Every store that octane writes carries a plain-text file with one line a file,
sorted by path: crc32c (8 hexadecimal digits), size and path, apart by tabs; and a last line of the
same form with the checksum of the lines above it, the bytes in all and the number of files, so that
a list which is itself cut short is seen as such. It goes wherever the store is copied to. Who opens
the store sees at once that all files are there in their sizes, and that the metadata is unchanged;
chunks have checksums of their own, and so are proven as they are decoded.

It lies in the folder of the first array and not beside the root's ``zarr.json``: zarr warns of any
file there, hidden or not, that it is no component of the hierarchy, in ``members``, ``tree`` and
``consolidate_metadata``. Inside an array no reader lists (zarr, yaozarrs and ome-zarr-models tried;
napari goes by paths).

Checksums are taken while the bytes are in hand. In one run (two cores, each seven times with the
manifest and without, medians) RESAMPLE of a mosaic of 537 MB took 1.02 times the processor time and
0.98 times the time, PYRAMID of a volume of 588 MB 1.02 and 0.88 times: other processes weigh more.
A crc32c is taken at 11 GB/s, and a store of 5,000 files is looked through in 20 ms.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import google_crc32c

from octane.core.errors import OctaneError

__all__ = [
    "METADATA",
    "PLACE",
    "READ_BYTES",
    "Manifest",
    "Stamp",
    "check",
    "differing",
    "files_of",
    "is_store",
    "is_task_folder",
    "manifest_text",
    "measured",
    "read_manifest",
    "require_noted",
    "restore",
    "sentence",
    "stamped",
    "task_folder",
]

PLACE = "0/octane-manifest.tsv"
"""Where a store keeps its manifest."""

METADATA = "zarr.json"
"""What a group or an array of zarr v3 is described in."""

READ_BYTES = 1 << 22
"""Read at once for a checksum."""


@dataclass(frozen=True)
class Stamp:
    """By what a file is known.

    Attributes
    ----------
    size
        Bytes.
    checksum
        Their crc32c.
    """

    size: int
    checksum: int


Manifest = Mapping[str, Stamp]
"""Stamps of a store's files by their keys: paths within the store."""


def stamped(pieces: Sequence[bytes]) -> Stamp:
    """Stamp of contents that are in hand, one piece after the other."""
    checksum = 0
    for piece in pieces:
        checksum = google_crc32c.extend(checksum, piece)
    return Stamp(sum(map(len, pieces)), checksum)


def measured(file: Path) -> Stamp:
    """Stamp of a file, which is read whole.

    Raises
    ------
    OSError
        When it cannot be read.
    """
    size = checksum = 0
    with file.open("rb", buffering=0) as stream:
        while piece := stream.read(READ_BYTES):
            size += len(piece)
            checksum = google_crc32c.extend(checksum, piece)
    return Stamp(size, checksum)


def files_of(store: Path) -> Iterator[str]:
    """Keys of what a manifest lists: all files but itself and hidden ones, sorted."""
    found = []
    for folder, _, names in os.walk(store):
        inside = Path(folder).relative_to(store).as_posix()
        prefix = "" if inside == "." else f"{inside}/"
        found += [f"{prefix}{name}" for name in names if not name.startswith(".")]
    yield from sorted(key for key in found if key != PLACE)


def manifest_text(store: Path, known: Manifest) -> bytes:
    """The manifest of what lies in a store.

    Parameters
    ----------
    store
        Its folder.
    known
        Stamps that were taken while the files were written; others are read for theirs.

    Raises
    ------
    OctaneError
        When a file has not the size that was written: the file system lost a part of it.
    """
    lines, total = [], 0
    for key in files_of(store):
        stamp = known.get(key) or measured(store / key)
        size = (store / key).stat().st_size
        if size != stamp.size:
            raise OctaneError(
                f"{store / key}: {stamp.size} bytes were written and {size} are there; check the "
                "file system, and run the step again."
            )
        lines.append(_line(stamp.checksum, size, key))
        total += size
    text = "".join(lines).encode()
    return text + _line(stamped([text]).checksum, total, f"{len(lines)} files").encode()


def _line(checksum: int, size: int, what: str) -> str:
    return f"{checksum:08x}\t{size}\t{what}\n"


def read_manifest(store: Path) -> Manifest | None:
    """The manifest of a store; None where it has none.

    Raises
    ------
    OctaneError
        When it is cut short or changed.
    """
    file = store / PLACE
    try:
        content = file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    above, end, last = content[:-1].rpartition(b"\n")
    listed = above + end
    entries: dict[str, Stamp] = {}
    try:
        for line in listed.decode().splitlines():
            checksum, size, key = line.split("\t")
            entries[key] = Stamp(int(size), int(checksum, 16))
        total = sum(stamp.size for stamp in entries.values())
        whole = f"{last.decode()}\n" == _line(
            stamped([listed]).checksum, total, f"{len(entries)} files"
        )
    except ValueError:
        whole = False
    if not whole or not content.endswith(b"\n"):
        raise OctaneError(
            f"{file}, the list of the store's files, is cut short or changed; {restore(store)}"
        )
    return entries


def check(store: Path) -> Manifest | None:
    """See that a store holds what its manifest says, by looking and without reading chunks.

    Files that it does not list are let be.

    Returns
    -------
    Manifest or None
        None where the store has none.

    Raises
    ------
    OctaneError
        When a file is missing or of another size, or metadata has changed; names the first.
    """
    manifest = read_manifest(store)
    if manifest is not None:
        root = str(store)
        problems = [
            problem
            for key, stamp in manifest.items()
            if (problem := differing(root, key, stamp, read=key.endswith(METADATA))) is not None
        ]
        if problems:
            raise OctaneError(sentence(store, problems))
    return manifest


def differing(root: str, key: str, stamp: Stamp, *, read: bool) -> str | None:
    """What is wrong with a file of a store, as a part of a sentence; None if it is as it was.

    Parameters
    ----------
    root, key, stamp
        The store's folder, and a line of its manifest.
    read
        Whether the checksum is to be compared as well, for which the file is read.
    """
    file = f"{root}/{key}"
    what = key if key.endswith(METADATA) else f"chunk {key}"
    try:
        size = os.stat(file).st_size  # noqa: PTH116 (a Path for each of thousands takes longer)
    except (FileNotFoundError, NotADirectoryError):
        return f"{what} is missing, of {stamp.size} bytes"
    if size < stamp.size:
        return f"{what} is cut short: {size} bytes are there of {stamp.size}"
    if size > stamp.size:
        return f"{what} was changed since: {size} bytes are there, {stamp.size} were written"
    if read and measured(Path(file)) != stamp:
        return f"{what} was changed since: its {size} bytes have another checksum"
    return None


def sentence(store: Path, problems: Sequence[str]) -> str:
    """The first of a store's problems, how many more there are, and what to do."""
    more = f" (and {len(problems) - 1} more of its files)" if len(problems) > 1 else ""
    return f"{store}: {problems[0]}{more}; {restore(store)}"


def require_noted(store: Path, octane: Mapping[str, object]) -> None:
    """See that a store without a manifest never had one.

    Parameters
    ----------
    store
        Its folder.
    octane
        What octane noted in its attributes.

    Raises
    ------
    OctaneError
        When the manifest is lost.
    """
    if "manifest" in octane:
        raise OctaneError(
            f"{store} has lost {octane['manifest']}, the list of its files, and others may be lost "
            f"as well; {restore(store)}"
        )


def restore(store: Path) -> str:
    """How to have a store whole again, as the end of a sentence."""
    task = task_folder(store)
    if task is not None:
        return f"it is the output of an earlier step: remove {task} and run again with -resume."
    return (
        "copy the store again from where it is whole; if it was changed on purpose: "
        f"bin/materialize.py --accept-changes {store}"
    )


def task_folder(path: Path) -> Path | None:
    """The folder of the Nextflow task that a path lies in, links followed; None outside of any."""
    # Not Path.resolve, which a link to itself is an error for.
    real = Path(os.path.realpath(path))
    for folder in (real, *real.parents):
        if is_task_folder(folder):
            return folder
    return None


def is_store(folder: Path) -> bool:
    """Whether a folder has the metadata of a zarr store, whatever its name."""
    return any((folder / name).exists() for name in (METADATA, ".zgroup", ".zattrs", ".zarray"))


def is_task_folder(folder: Path) -> bool:
    """Whether a folder's name is one that Nextflow gives to a task's."""
    name = re.fullmatch("[0-9a-f]{30}", folder.name)
    return name is not None and re.fullmatch("[0-9a-f]{2}", folder.parent.name) is not None
