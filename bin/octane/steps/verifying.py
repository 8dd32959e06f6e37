"""Stores below a folder compared with their manifests in full, and stores that were changed."""

import json
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from octane.core.errors import OctaneError, unreadable
from octane.core.files import write_object
from octane.core.manifests import (
    METADATA,
    PLACE,
    Stamp,
    differing,
    is_store,
    manifest_text,
    read_manifest,
    require_noted,
    sentence,
    task_folder,
)
from octane.core.progress import progress
from octane.pipeline.workers import run_tiles
from octane.steps.walking import walk

__all__ = [
    "READERS",
    "Verified",
    "accept",
    "noted",
    "nowhere",
    "verify_stores",
]

logger = logging.getLogger(__name__)

READERS = 4
"""Files read at once: enough for a disk or a network, and no burden on a shared machine."""


@dataclass(frozen=True)
class Verified:
    """What was compared.

    Attributes
    ----------
    stores, files, bytes
        How much.
    unlisted
        Stores that have no manifest, those of others.
    """

    stores: int
    files: int
    bytes: int
    unlisted: int


def verify_stores(folder: Path) -> Verified:
    """Read every file of every store below a folder and compare it with the store's manifest.

    Links are followed, and each store is read once.

    Raises
    ------
    OctaneError
        With one line for each store that is not as it was written, and for each folder that cannot
        be read; when there is no store.
    """
    wrong: dict[Path, list[str]] = {}
    lost: list[str] = []
    lines: list[tuple[Path, str, Stamp]] = []
    stores = unlisted = 0
    if not folder.is_dir():
        raise OctaneError(f"{folder} is no folder; give the --outdir of a run, or a store.")
    unread: list[OSError] = []
    for store in _stores(folder, unread):
        try:
            if not store.exists():
                raise OctaneError(_gone(store))
            manifest = read_manifest(store)
            if manifest is None:
                _require_unlisted(store)
                unlisted += 1
                continue
        except OctaneError as error:
            lost.append(str(error))
            continue
        stores += 1
        lines += [(store, key, stamp) for key, stamp in manifest.items()]
    lost += [str(unreadable(error)) for error in unread]
    with progress("Verifying", len(lines), "files") as advance:

        def read(line: tuple[Path, str, Stamp]) -> None:
            store, key, stamp = line
            problem = differing(str(store), key, stamp, read=True)
            if problem is not None:
                wrong.setdefault(store, []).append(problem)
            advance(stamp.size)

        run_tiles(lines, read, workers=READERS, describe=lambda line: f"{line[0] / line[1]}")
    if not (stores or unlisted or lost):
        raise OctaneError(f"{folder} holds no store; give the --outdir of a run, or a store.")
    lost += [sentence(store, problems) for store, problems in wrong.items()]
    if lost:
        raise OctaneError("\n".join(sorted(lost)))
    found = Verified(stores, len(lines), sum(stamp.size for *_, stamp in lines), unlisted)
    logger.info(
        "%s: %d stores with %d files of %.3f GB are as they were written%s",
        folder, found.stores, found.files, found.bytes / 1e9,
        f"; {unlisted} have no list of their files" if unlisted else "",
    )  # fmt: skip
    return found


def _stores(top: Path, unread: list[OSError]) -> Iterator[Path]:
    """Stores below a folder, and links whose store is gone: reading them will say so."""
    for folder, folders, files in walk(top, unread, tasks=True):
        if _is_meant(folder):
            folders.clear()
            if folder != top and folder.name.startswith("."):
                logger.warning("%s is not verified: it is named as unfinished ones are", folder)
            else:
                yield folder
            continue
        for path in (folder / name for name in sorted(files)):
            if path.is_symlink() and not path.exists():
                if path.name.endswith(".zarr"):
                    yield path
                else:
                    logger.warning("%s", _gone(path))


def _gone(link: Path) -> str:
    if task_folder(link) is None:
        return nowhere(link)
    return (
        f"{link} led to files in a work directory that are gone; run the workflow with the same "
        "parameters, which makes them anew."
    )


def nowhere(link: Path) -> str:
    """What is said of a link out of a work directory that leads nowhere."""
    return f"{link} leads to nothing that is there; bring back {link.readlink()}, or remove it."


def _is_meant(folder: Path) -> bool:
    """Whether a folder is a store, or was to be one: what is copied last may not have arrived."""
    named = folder.name.endswith(".zarr") or folder.resolve().name.endswith(".zarr")
    return named or is_store(folder) or (folder / PLACE).is_file()


def _require_unlisted(store: Path) -> None:
    """See that a store without a manifest is one of others, and not the first part of a copy."""
    if not is_store(store):
        raise OctaneError(
            f"{store} lacks its metadata (zarr.json; .zgroup in zarr v2), as where a copy was cut "
            "short; copy the store again from where it is whole."
        )
    if (store / METADATA).exists():
        require_noted(store, noted(store))


def noted(store: Path) -> dict[str, object]:
    """What octane noted in a store's attributes; empty for stores of others.

    Raises
    ------
    OctaneError
        When the metadata cannot be read.
    """
    file = store / METADATA
    try:
        root = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:
        raise OctaneError(
            f"{file} cannot be read as JSON; restore it from the original."
        ) from error
    except OSError as error:
        raise unreadable(error) from error
    attributes = root.get("attributes") if isinstance(root, dict) else None
    noted = attributes.get("octane") if isinstance(attributes, dict) else None
    return noted if isinstance(noted, dict) else {}


def accept(store: Path) -> int:
    """Write the manifest of a store of octane's anew, of what is there now.

    Returns
    -------
    int
        Number of files.

    Raises
    ------
    OctaneError
        When it is no store of octane's, or cannot be written.
    """
    if not noted(store):
        raise OctaneError(
            f"{store} is not of octane's making, and needs no list of its files; there is nothing "
            "to accept."
        )
    if not os.access((store / PLACE).parent, os.W_OK):
        raise OctaneError(f"{(store / PLACE).parent} cannot be written; check your rights.")
    text = manifest_text(store, {})
    write_object(store / PLACE, [text])
    files = text.count(b"\n") - 1
    logger.info("%s: the list of its %d files is written anew", store, files)
    return files
