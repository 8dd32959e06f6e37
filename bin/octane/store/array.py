"""Arrays of a store by their metadata, zarr.json (v3) or .zarray (v2), read and written.

Loading zarr takes longer than a small section's work. Octane takes from the metadata what it
encodes and decodes itself; all else, and whatever is wrong with them, is zarr's to read or refuse.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numcodecs.blosc import Blosc
from numcodecs.zstd import Zstd

from octane.core.files import write_object
from octane.store.encoding import LITTLE, SINGLE, Json, NotDirectError, ShardLayout, decoding_of

if TYPE_CHECKING:
    import zarr

TYPES = [np.dtype(f"<{code}") for code in ("?", *"bBhHiI", "i8", "u8", *"efdFD")]
BY_NAME = {str(dtype.name): dtype for dtype in TYPES}
BY_CODE = {str(dtype.str): dtype for dtype in TYPES}
"""Types of voxels by their names in v3 and in v2."""

MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""Errors of JSON of another form that is taken apart."""
KEYS = [{"name": n, "configuration": {"separator": s}} for n in ("default", "v2") for s in "/."]
"""Ways in which keys of chunks are made."""
OTHER_FORM = "its metadata have a form of their own"


@dataclass(frozen=True)
class Array:
    """An array at ``path`` in the store ``folder``, and its metadata as of v3.

    ``chunks`` are voxels that are decoded at once, ``shards`` those of a file of several chunks.
    ``checked`` tells whether a crc32c follows a chunk's bytes. ``why_zarr`` is the reason, as the
    end of a sentence, for which only zarr can decode them; it is empty otherwise.
    """

    folder: Path
    path: str
    metadata: Json
    shape: tuple[int, ...]
    dtype: np.dtype
    chunks: tuple[int, ...]
    shards: tuple[int, ...] | None
    layout: ShardLayout | None
    why_zarr: str = ""
    fill: np.generic = np.False_
    compressor: Zstd | Blosc | None = None
    checked: bool = False

    @cached_property
    def opened(self) -> "zarr.Array":
        """The array as zarr opens it."""
        import zarr

        return zarr.open_array(self.folder, path=self.path, mode="r")

    @property
    def owned(self) -> tuple[int, ...]:
        """Voxels of one stored object, which one writer must own."""
        return self.shards or self.chunks

    def key(self, position: tuple[int, ...]) -> str:
        """Key of the stored object at ``position``, counted in objects along each axis."""
        if self.why_zarr:
            key = self.opened.metadata.encode_chunk_key(position)
        else:
            keys = self.metadata["chunk_key_encoding"]
            before = ["c"] if keys["name"] == "default" else []
            key = keys["configuration"]["separator"].join([*before, *map(str, position)])
        return f"{self.path}/{key}".removeprefix("/")

    @property
    def chunk_bytes(self) -> int:
        """Size of a decoded chunk, which is stored in full at the array's edge as well."""
        return prod(self.chunks) * self.dtype.itemsize


def open_array(folder: Path, path: str, found: Mapping[str, Json | None]) -> Array:
    """Open an array by its files of metadata; whatever zarr has against them is raised."""
    # zarr changes other paths, or refuses them.
    if "\\" not in path and {"", ".", ".."}.isdisjoint(path.split("/")):
        with suppress(NotDirectError):
            return _parsed(folder, path, found["zarr.json"], found[".zarray"])
    import numcodecs
    import zarr

    # zarr asks numcodecs' registry, which knows all codecs once the package's own code has run.
    _ = numcodecs.get_codec
    opened = zarr.open_array(folder, path=path, mode="r")
    # As zarr writes them, with all that was left out.
    metadata = json.loads(json.dumps(opened.metadata.to_dict()))
    files = (None, metadata) if opened.metadata.zarr_format == 2 else (metadata, None)
    try:
        return _parsed(folder, opened.path, *files)
    except NotDirectError as error:
        reason, layout = str(error), None
    with suppress(NotDirectError, *MALFORMED):
        layout = ShardLayout.of(metadata["codecs"], opened.shards or ())
    sizes = (opened.shape, opened.dtype, opened.chunks, opened.shards)
    return Array(folder, opened.path, metadata, *sizes, layout, reason)


def create_array(folder: Path, path: str, metadata: Json) -> Array:
    """Write the metadata of an array, and give it."""
    write_metadata(folder / path, metadata)
    return _version_3(folder, path, metadata)


def write_metadata(folder: Path, metadata: Json) -> None:
    """Write the metadata of an array or a group."""
    write_object(folder / "zarr.json", [json.dumps(metadata, indent=2).encode()])


def describe_array(
    shape: Sequence[int], dtype: np.dtype, owned: Sequence[int], codecs: object, **more: object
) -> Json:
    """Metadata of v3, of the axes z, y, x with zeros as fill value unless ``more`` says else."""
    return {
        "shape": list(shape),
        "data_type": dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(owned)}},
        "chunk_key_encoding": KEYS[0],
        "fill_value": [0.0, 0.0] if dtype.kind == "c" else dtype.type(0).item(),
        "codecs": codecs,
        "attributes": {},
        "dimension_names": ["z", "y", "x"],
        "zarr_format": 3,
        "node_type": "array",
        "storage_transformers": [],
        **more,
    }


def _parsed(folder: Path, path: str, new: Json | None, old: Json | None) -> Array:
    """The array of metadata of v3 or v2; a NotDirectError names what octane does not know."""
    try:
        return _version_3(folder, path, _translated(old or {}) if new is None else new)
    except MALFORMED as error:
        raise NotDirectError(OTHER_FORM) from error


def _translated(metadata: Json) -> Json:
    """Metadata of v2 as of v3."""
    given: Json = {"compressor": None, "filters": None, "dimension_separator": ".", **metadata}
    code, codec = str(given["dtype"]), given["compressor"]
    if given["order"] != "C":
        raise NotDirectError(f"its chunks are in {given['order']} order")
    if given["filters"] is not None:
        raise NotDirectError("it has filters")
    if code not in BY_CODE:
        big = code.startswith(">")
        raise NotDirectError("it is big-endian" if big else f"its voxels are of type {code}")
    if given["zarr_format"] != 2 or len(given.keys() - {"attributes"}) > 9:
        raise NotDirectError(OTHER_FORM)
    dtype, codecs = BY_CODE[code], [LITTLE if code[0] == "<" else SINGLE]
    if codec is not None:
        fields = {field: value for field, value in codec.items() if field != "id"}
        if codec["id"] == "zstd":
            fields = {"checksum": False, **fields}
        elif codec["id"] == "blosc":
            # Its shuffle, a number here, is not needed to decode.
            fields = {"typesize": dtype.itemsize, **fields, "shuffle": "shuffle"}
        codecs.append({"name": codec["id"], "configuration": fields})
    keys = {"name": "v2", "configuration": {"separator": given["dimension_separator"]}}
    fill = {} if given["fill_value"] is None else {"fill_value": given["fill_value"]}
    more = {"chunk_key_encoding": keys, "dimension_names": None, **fill}
    return describe_array(given["shape"], dtype, given["chunks"], codecs, **more)


def _version_3(folder: Path, path: str, metadata: Json) -> Array:
    """The array of metadata of v3; a NotDirectError names what octane does not know."""
    left_out: Json = {"attributes": {}, "dimension_names": None, "storage_transformers": []}
    given = left_out | metadata
    if given["data_type"] not in BY_NAME:
        raise NotDirectError(f"its voxels are of type {given['data_type']}")
    dtype, shape, codecs = BY_NAME[given["data_type"]], given["shape"], given["codecs"]
    owned = chunks = given["chunk_grid"]["configuration"]["chunk_shape"]
    free = ("attributes", "chunk_key_encoding", "dimension_names", "fill_value")
    plain = describe_array(shape, dtype, owned, codecs, **{field: given[field] for field in free})
    names, layout = given["dimension_names"], None
    if codecs[0]["name"] == "sharding_indexed":
        layout = ShardLayout.of(codecs, owned)
        chunks, codecs = map(codecs[0]["configuration"].get, ("chunk_shape", "codecs"))
    if (
        given != plain
        or given["chunk_key_encoding"] not in KEYS
        or not len(shape) == len(chunks) == len(shape if names is None else names)
        or any(type(n) is not int or n < 1 for n in (*shape, *owned, *chunks))
        or any(not isinstance(name, str | None) for name in names or ())
    ):
        raise NotDirectError(OTHER_FORM)
    decoding = decoding_of(codecs, dtype, given["fill_value"])
    sizes = (tuple(shape), dtype, tuple(chunks), tuple(owned) if layout else None)
    return Array(folder, path, given, *sizes, layout, "", *decoding)
