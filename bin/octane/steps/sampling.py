"""How well data will compress, from pieces that are resampled and encoded as it will be.

A ratio that is guessed, or the input's own, misses what resampling does to noise: on the demo's
subject the mosaics are stored with 0.89 of their size, and the same tiles at 10 um take 0.81 with
blosc-lz4 and 0.88 with zstd; the phantom in uint16 takes 0.5 to 0.7, by tile. So some tiles are
resampled here and written with the very codecs to a temporary store.
"""

import logging
import math
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from octane.core.dtypes import as_dtype, output_type
from octane.core.errors import OctaneError
from octane.core.geometry import Grid, Region, Vector, blocks
from octane.resample.operator import resampler
from octane.resample.resampler import resample_arrays
from octane.store.image import Codec, Level, create_image
from octane.store.itk_files import FileVolume
from octane.store.volumes import Volume

__all__ = ["Ratios", "sampled"]

logger = logging.getLogger(__name__)

SAMPLES = 12
"""Pieces that are looked at, spread over sections and places: a chunk of 67 MB takes 0.1 s."""
VOXELS = 2_000_000
"""Most voxels of a piece that are resampled."""
FIELD_VOXELS = 96
"""Edge of the block of a made-up bias field."""


@dataclass(frozen=True)
class Ratios:
    """Encoded by decoded size, for each codec and type.

    Attributes
    ----------
    pieces
        Some of the data at the resolution that is worked with.
    folder
        Where temporary stores may be written.
    """

    pieces: list[npt.NDArray]
    folder: Path
    _known: dict[tuple[str, str, bool], float] = field(default_factory=dict)

    def of(self, codec: Codec, dtype: npt.DTypeLike, *, corrected: bool = False) -> float:
        """Ratio of the data in a codec and type; 1 where nothing could be looked at.

        Parameters
        ----------
        codec, dtype
            How it is stored.
        corrected
            Divided by a bias field first, which fills the last bits of a floating type.
        """
        key = (codec, str(np.dtype(dtype)), corrected)
        if key not in self._known:
            sizes = [
                (self._encoded(_typed(piece, dtype, corrected=corrected), codec), piece.size)
                for piece in self.pieces
            ]
            voxels = sum(n for _, n in sizes) * np.dtype(dtype).itemsize
            self._known[key] = sum(size for size, _ in sizes) / voxels if voxels else 1.0
        return self._known[key]

    def of_field(self, shape: Sequence[int], codec: Codec) -> float:
        """Ratio of a smooth float32 field over a volume of ``shape``."""
        axes = []
        for n in shape:
            edge = min(n, FIELD_VOXELS)
            axes.append((np.arange(edge) + (n - edge) // 2 + 0.5) / n)
        z, y, x = np.meshgrid(*axes, indexing="ij", sparse=True)
        waves = np.sin(5 * z + 1) + np.sin(7 * y + 2) + np.sin(6 * x)
        values = np.exp(0.2 * waves).astype(np.float32)
        return self._encoded(values, codec) / values.nbytes

    def _encoded(self, voxels: npt.NDArray, codec: Codec) -> int:
        """Bytes of ``voxels`` as one chunk in a codec, written and measured."""
        shape = (voxels.shape[0], voxels.shape[1], voxels.shape[2])
        with tempfile.TemporaryDirectory(prefix=".sample-", dir=self.folder) as folder:
            store = Path(folder) / "a.ome.zarr"
            level = Level(Grid(shape, (1.0, 1.0, 1.0)), shape)
            with create_image(store, [level], voxels.dtype, codec=codec) as (writer,):
                writer[tuple(slice(n) for n in shape)] = voxels
            return sum(f.stat().st_size for f in (store / "0" / "c").rglob("*") if f.is_file())


def _typed(piece: npt.NDArray, dtype: npt.DTypeLike, *, corrected: bool) -> npt.NDArray:
    if corrected:
        gain = np.linspace(0.8, 1.2, piece.shape[2], dtype=np.float32)
        return as_dtype(piece * gain, dtype)
    return as_dtype(piece, dtype)


def _spread(count: int, most: int) -> list[int]:
    """At most ``most`` of ``count`` places, spread evenly."""
    n = min(count, most)
    return [int((k + 0.5) * count / n) for k in range(n)]


def _regions(volumes: Sequence[Volume], *, mosaic: bool) -> Iterator[tuple[Volume, Region]]:
    """Pieces of the input: chunks, cut to their middle in y and x but with all planes."""
    each = -(-SAMPLES // max(1, len(volumes)))
    for index in _spread(len(volumes), SAMPLES):
        volume = volumes[index]
        size = volume.chunks if mosaic else tuple(min(c, 128) for c in volume.chunks)
        places = blocks(volume.grid.shape, size)
        for place in _spread(len(places), each):
            z, *others = places[place]
            edge = max(16, math.isqrt(VOXELS // (z.stop - z.start)))
            yield volume, (z, *(_middle(r, edge) for r in others))


def _parted(volume: Volume) -> bool:
    """Whether pieces can be read without the rest, which would take the memory of a step."""
    if not isinstance(volume, FileVolume) or volume.by_region:
        return True
    logger.info(
        "%s: its format is read whole or not at all, so that no piece is looked at here: what is "
        "made of it is predicted as if it did not compress",
        volume.path,
    )
    return False


def _middle(span: slice, most: int) -> slice:
    length = min(span.stop - span.start, most)
    start = span.start + (span.stop - span.start - length) // 2
    return slice(start, start + length)


def sampled(
    volumes: Sequence[Volume], target: Vector | None, dtype: str, folder: Path, *, mosaic: bool
) -> Ratios:
    """Look at some of the input, as far as it can be read in pieces.

    Parameters
    ----------
    volumes
        Mosaics, sections or one volume.
    target
        Voxel size that it is resampled to, micrometres; None where it is not.
    dtype
        Type that RESAMPLE is to write, or ``input``.
    folder
        Where temporary stores may be written.
    mosaic
        Whether chunks are tiles, to be resampled each alone.
    """
    pieces = []
    for volume, region in _regions([v for v in volumes if _parted(v)], mosaic=mosaic):
        try:
            voxels = np.asarray(volume.read(region))
        except OctaneError:
            # The step that needs the chunk names it.
            continue
        if target is not None:
            spacing = volume.grid.spacing
            operators = [
                resampler(n, s, t) for n, s, t in zip(voxels.shape, spacing, target, strict=True)
            ]
            voxels = as_dtype(resample_arrays(voxels, operators), output_type(dtype, volume.dtype))
        pieces.append(voxels)
    return Ratios(pieces, folder)
