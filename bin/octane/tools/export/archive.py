"""OME-Zarr in one file (.ozx, RFC-9): a zip archive without compression, metadata first."""

import json
import os
from pathlib import Path
from shutil import copyfileobj
from zipfile import ZIP_STORED, ZipFile, ZipInfo

from octane.config.types import OME_ZARR
from octane.core.files import open_regular
from octane.core.progress import Progress
from octane.tools.export.source import files_of

COPY_BYTES = 1 << 20
"""Bytes copied at once."""
METADATA = "zarr.json"
COMMENT = {"ome": {"version": OME_ZARR, "zipFile": {"centralDirectory": {"jsonFirst": True}}}}
"""The archive's comment; its metadata are the first entries."""
DATE = (1980, 1, 1, 0, 0, 0)
"""Date of every entry, so that archives of equal stores are equal."""


def write_archive(store: Path, partial: Path) -> None:
    """Pack a store of the version that octane writes into the archive ``partial``."""
    files = list(map(Path, files_of(store)))
    # The metadata of groups before those of their members.
    files.sort(key=lambda file: (file.name != METADATA, len(file.parts), file.as_posix()))
    advance = Progress("Pack", len(files), "files")
    with ZipFile(partial, "w", ZIP_STORED) as archive:
        for file in files:
            entry = ZipInfo(file.as_posix(), DATE)
            entry.file_size = (store / file).stat().st_size
            read = os.fdopen(open_regular(store / file), "rb")
            with read, archive.open(entry, "w") as write:
                copyfileobj(read, write, COPY_BYTES)
            advance(entry.file_size)
        archive.comment = json.dumps(COMMENT).encode()
