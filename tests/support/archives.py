"""Stores in one file, as RFC-9 and others pack them."""

import json
from pathlib import Path
from zipfile import ZIP_STORED, ZipFile

COMMENT = {"ome": {"version": "0.5", "zipFile": {"centralDirectory": {"jsonFirst": True}}}}


def pack(store: Path, ending: str = ".ozx", compression: int = ZIP_STORED) -> Path:
    """Pack a store into one file next to it, the metadata first, all of it in ZIP64."""
    path = store.with_name(store.name.removesuffix(".zarr").removesuffix(".ome") + ending)
    files = (file for file in store.rglob("*") if file.is_file())
    ordered = sorted(files, key=lambda f: (f.name != "zarr.json", len(f.parts), f))
    with ZipFile(path, "w", compression) as archive:
        for file in ordered:
            name = file.relative_to(store).as_posix()
            with archive.open(name, "w", force_zip64=True) as entry:
                entry.write(file.read_bytes())
        archive.comment = json.dumps(COMMENT).encode()
    return path
