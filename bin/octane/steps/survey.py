"""Survey of an input: its metadata and its files' sizes; no voxel of a store is read."""

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from octane.core.errors import OctaneError
from octane.core.geometry import spelled
from octane.store.image import Image
from octane.store.mosaic_grid import COLUMNS, MosaicGrid
from octane.store.sections import gaps, number_of
from octane.store.volumes import Volume, find_inputs, kind_of, open_volume

TABLE = "positions.csv"


@dataclass(frozen=True)
class Survey:
    """Contents of an input.

    Attributes
    ----------
    kind
        ``mosaic``, ``section`` or ``volume``.
    volumes
        In the order of their names.
    missing
        Numbers of the sections that are missing between the first and the last.
    positions
        A table of tile positions beside the data, or None.
    """

    kind: str
    volumes: list[Volume]
    missing: list[int]
    positions: Path | None

    @property
    def on_disk(self) -> int:
        """Bytes of all files."""
        return sum(_bytes_below(volume.path) for volume in self.volumes)

    @property
    def decoded(self) -> int:
        """Bytes of all voxels."""
        return sum(math.prod(v.grid.shape) * v.dtype.itemsize for v in self.volumes)


def survey(source: Path, *, input_unit: str | None = None, input_kind: str = "auto") -> Survey:
    """Look at an input: a folder of mosaic grids or sections, one of them, or one volume.

    Raises
    ------
    OctaneError
        With one line for each store that cannot be used, or when they do not belong together.
    """
    problems: list[str] = []
    volumes: list[Volume] = []
    for path in find_inputs(source):
        try:
            # PREFLIGHT checks for missing chunks: it knows whether they are allowed.
            volumes.append(open_volume(path, input_unit=input_unit, missing="fill"))
        except OctaneError as error:
            problems.append(str(error))
    if problems:
        raise OctaneError("\n".join(problems))
    kind = kind_of(volumes, input_kind)
    if kind == "volume" and len(volumes) > 1:
        raise OctaneError(f"{source} holds {len(volumes)} volumes; give one.")
    _require_one_spacing(volumes)
    numbers = [n for volume in volumes if (n := number_of(volume)) is not None]
    return Survey(
        kind,
        volumes,
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


def thickness_of(volume: Volume) -> float | None:
    """Thickness of a section in micrometres, from its metadata."""
    noted = cast("Mapping[str, float]", volume.attributes.get("section") or {})
    return float(noted["thickness"]) if "thickness" in noted else None


def overlap_of(volume: Volume) -> tuple[float, float] | None:
    """Overlap of a mosaic's tiles as a part of a tile, y and x, from its metadata."""
    tiling = MosaicGrid.of(volume) if isinstance(volume, Image) else None
    if tiling is None or tiling.pitch is None:
        return None
    _, height, width = tiling.tile_extent
    return 1 - tiling.pitch[0] / height, 1 - tiling.pitch[1] / width


def cut_of(volume: Volume, kind: str) -> str:
    """Rows and columns of a mosaic's tiles, or the shape of another volume."""
    if kind == "mosaic" and isinstance(volume, Image):
        tiling = MosaicGrid.of(volume)
        return spelled((tiling.rows, tiling.columns))
    return spelled(volume.grid.shape)


def layout_of(volume: Volume) -> str:
    """Describe the chunks and their compression."""
    if not isinstance(volume, Image):
        return "read whole"
    array = volume.array
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
    """Find a table of positions in the folder of the data, or beside it."""
    for path in (source / TABLE, source.parent / TABLE):
        if path.is_file():
            with path.open(encoding="utf-8-sig", errors="replace") as stream:
                header = stream.readline()
            if not set(COLUMNS) - {word.strip() for word in header.split(",")}:
                return path
    return None
