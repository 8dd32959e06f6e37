"""What an input holds, told by its metadata and its files' sizes; no voxel is read of a store."""

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import zarr

from octane.core.errors import OctaneError
from octane.core.geometry import Vector, spelled
from octane.store.image import Image
from octane.store.inputs import find_inputs, kind_of
from octane.store.mosaic_grid import Tiling
from octane.store.numbering import gaps, number_of
from octane.store.positions import COLUMNS
from octane.store.volumes import Volume, open_volume

__all__ = ["Stored", "Survey", "survey"]

TABLE = "positions.csv"


@dataclass(frozen=True)
class Stored:
    """One store or file of an input.

    Attributes
    ----------
    name
        Of the file.
    number
        Of the section, or None.
    shape, spacing
        Voxels, and their size in micrometres (z, y, x).
    dtype
        Type of the voxels.
    layout
        Chunks and their compression, in words.
    tiles
        Rows and columns of a mosaic; None for others.
    overlap
        Part of a tile that its metadata says is shared, y and x; None where it does not.
    thickness
        Of the section in micrometres, as its metadata has it, or None.
    on_disk, decoded
        Bytes.
    """

    name: str
    number: int | None
    shape: tuple[int, int, int]
    spacing: Vector
    dtype: str
    layout: str
    tiles: tuple[int, int] | None
    overlap: tuple[float, float] | None
    thickness: float | None
    on_disk: int
    decoded: int


@dataclass(frozen=True)
class Survey:
    """What an input holds.

    Attributes
    ----------
    kind
        ``mosaic``, ``section`` or ``volume``.
    stores
        In the order of their names.
    missing
        Numbers of the sections that are not there, between the first and the last.
    positions
        A table of tile positions beside the data, or None.
    """

    kind: str
    stores: list[Stored]
    missing: list[int]
    positions: Path | None

    @property
    def spacing(self) -> Vector:
        """Voxel size of all stores, micrometres."""
        return self.stores[0].spacing

    @property
    def decoded(self) -> int:
        """Bytes of all voxels."""
        return sum(stored.decoded for stored in self.stores)

    @property
    def on_disk(self) -> int:
        """Bytes of all files."""
        return sum(stored.on_disk for stored in self.stores)


def survey(source: Path, *, input_unit: str | None = None, input_kind: str = "auto") -> Survey:
    """Look at an input.

    Parameters
    ----------
    source
        A folder of mosaic grids or sections, one of them, or one volume.
    input_unit, input_kind
        As the run's parameters.

    Raises
    ------
    OctaneError
        With one line for each store that cannot be used, or when they do not belong together.
    """
    problems: list[str] = []
    volumes: list[Volume] = []
    for path in find_inputs(source):
        try:
            # Chunks that are missing are PREFLIGHT's: it knows whether they may be.
            volumes.append(open_volume(path, input_unit=input_unit, missing="fill"))
        except OctaneError as error:
            problems.append(str(error))
    if problems:
        raise OctaneError("\n".join(problems))
    kind = kind_of(volumes, input_kind)
    if kind == "volume" and len(volumes) > 1:
        raise OctaneError(f"{source} holds {len(volumes)} volumes; give one.")
    _require_one_spacing(volumes)
    stores = [_stored(volume, kind) for volume in volumes]
    numbers = [stored.number for stored in stores if stored.number is not None]
    return Survey(
        kind,
        stores,
        gaps(numbers) if kind != "volume" else [],
        _table(source) if kind == "mosaic" else None,
    )


def _require_one_spacing(volumes: Sequence[Volume]) -> None:
    sizes = Counter(tuple(round(s, 6) for s in v.grid.spacing) for v in volumes)
    if len(sizes) < 2:
        return
    usual = sizes.most_common(1)[0][0]
    other = next(v for v in volumes if tuple(round(s, 6) for s in v.grid.spacing) != usual)
    raise OctaneError(
        f"{other.path} has voxels of {spelled(other.grid.spacing)} micrometre and most of its "
        f"neighbours of {spelled(usual)}; correct its metadata, or separate them."
    )


def _stored(volume: Volume, kind: str) -> Stored:
    noted = cast("Mapping[str, float]", volume.attributes.get("section") or {})
    tiling = Tiling.of(volume) if kind == "mosaic" and isinstance(volume, Image) else None
    shape = volume.grid.shape
    return Stored(
        volume.path.name,
        number_of(volume),
        shape,
        volume.grid.spacing,
        str(volume.dtype),
        _layout(volume.array) if isinstance(volume, Image) else "read whole",
        (tiling.rows, tiling.columns) if tiling else None,
        _overlap(tiling) if tiling else None,
        float(noted["thickness"]) if "thickness" in noted else None,
        _bytes_below(volume.path),
        math.prod(shape) * volume.dtype.itemsize,
    )


def _overlap(tiling: Tiling) -> tuple[float, float] | None:
    if tiling.pitch is None:
        return None
    _, height, width = tiling.tile_extent
    return 1 - tiling.pitch[0] / height, 1 - tiling.pitch[1] / width


def _layout(array: zarr.Array) -> str:
    codecs = [
        getattr(codec, "codec_id", None) or type(codec).__name__.removesuffix("Codec").lower()
        for codec in array.compressors
    ]
    shards = f" in shards of {spelled(array.shards)}" if array.shards else ""
    return f"chunks of {spelled(array.chunks)}{shards}, {' and '.join(codecs) or 'not compressed'}"


def _bytes_below(path: Path) -> int:
    if not path.is_dir():
        return path.stat().st_size
    return sum(
        (Path(folder) / name).stat().st_size for folder, _, names in os.walk(path) for name in names
    )


def _table(source: Path) -> Path | None:
    """A table of positions in the folder of the data, or beside it."""
    for path in (source / TABLE, source.parent / TABLE):
        if path.is_file():
            with path.open(encoding="utf-8-sig", errors="replace") as stream:
                header = stream.readline()
            if not set(COLUMNS) - {word.strip() for word in header.split(",")}:
                return path
    return None
