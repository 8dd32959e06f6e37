"""OME-Zarr 0.5 images written: metadata, and shards and chunks without zarr, each by one owner.

Through zarr, two writers of one shard lose each other's chunks. Here a shard is gathered in its
encoded form and written under a temporary name; a part of a shard is refused.
"""

import json
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from zarr.abc.codec import BytesBytesCodec
from zarr.codecs import BloscCodec, Crc32cCodec, ZstdCodec

from octane import __version__
from octane.config.params import Codec
from octane.core.errors import InputError
from octane.core.files import write_object, writing
from octane.core.geometry import Grid, Region, block_at, place_in, shape_of, vector
from octane.core.timing import span
from octane.store.array import Array, create_array
from octane.store.encoding import ABSENT, CHECKSUM_BYTES, crc32c
from octane.store.image import Image
from octane.store.ngff import Attributes

CHUNK = 128
"""Edge of a volume's chunks, which viewers read at once."""
SHARD = 256
"""Edge of a volume's shards: a volume is some thousand files."""

COMPRESSORS: dict[Codec, list[BytesBytesCodec]] = {
    "zstd": [ZstdCodec(checksum=True)],
    "blosc-lz4": [BloscCodec(cname="lz4"), Crc32cCodec()],
    "none": [Crc32cCodec()],
}
"""Codecs of chunks, each with a checksum, by which a reader finds a damaged chunk."""
Json = dict[str, Any]
"""Metadata of an image, or a part of them."""

DOWNSCALING = {
    "description": "Each level is made from the one before: along each axis a Gaussian of "
    "(f - 1) / 2 voxels, where f is the ratio of the voxel sizes, and linear interpolation.",
    "method": "octane.resample.resampler.resample",
    "version": __version__,
}
"""Origin of a volume's coarser levels."""

PERCENTILES = (0, 0.5, 99.5, 100)
"""Of the display window: its lower limit, start, end and upper limit."""
SAMPLED, SAMPLE_VOXELS = 27, 1 << 17
"""Chunks that they are taken from, and voxels of each, at most."""
Make = Callable[[Region], npt.NDArray]
"""Gives the voxels of a region, each time in the same memory where it likes."""
Samples = dict[tuple[int, ...], npt.NDArray[np.float64] | None]
"""Some voxels of chunks, by their place counted in chunks; None before they are taken."""


@dataclass(frozen=True)
class Level:
    """One resolution to be written: its grid, and its chunks and shards in voxels (z, y, x).

    ``shards`` is None for one file a chunk.
    """

    grid: Grid
    chunks: tuple[int, int, int]
    shards: tuple[int, int, int] | None = None

    @classmethod
    def volume(cls, grid: Grid) -> "Level":
        """Chunks of 128^3 in shards of 256^3, smaller where the volume is."""
        chunks = cast("tuple[int, int, int]", tuple(min(CHUNK, n) for n in grid.shape))
        sizes = ((SHARD if n > c else c) for c, n in zip(chunks, grid.shape, strict=True))
        shards = cast("tuple[int, int, int]", tuple(sizes))
        return cls(grid, chunks, shards if shards != chunks else None)

    @property
    def owned(self) -> tuple[int, int, int]:
        """Region one worker writes: a whole shard, for concurrent writes into one lose data."""
        return self.shards or self.chunks


class ShardWriter:
    """Takes the chunks of one shard, in any order, and holds them encoded.

    ``held`` is its region of the array, and ``positions`` are those of its chunks in it, in raster
    order.
    """

    def __init__(self, array: Array, held: Region, samples: Samples) -> None:
        self._array, self._samples = array, samples
        axes = [*zip(held, array.chunks, strict=True)]
        self._first = [r.start // c for r, c in axes]
        self.positions = list(product(*(range(-(-(r.stop - r.start) // c)) for r, c in axes)))
        self._encoded: dict[tuple[int, ...], list[bytes]] = {}

    def _place(self, position: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(map(sum, zip(self._first, position, strict=True)))

    def region(self, position: tuple[int, ...]) -> Region:
        """Voxels of a chunk in the array."""
        return block_at(self._place(position), self._array.chunks, self._array.shape)

    def __setitem__(self, position: tuple[int, ...], block: npt.NDArray) -> None:
        """Encode one chunk; a block of another shape or type is a ValueError."""
        array = self._array
        shape = shape_of(self.region(position))
        if block.shape != shape:
            raise ValueError(f"a block of {block.shape} is not the shard's chunk {position}")
        if block.dtype.newbyteorder("<") != array.dtype:
            raise ValueError(f"a block of {block.dtype} is given to an array of {array.dtype}")
        if shape == array.chunks:
            whole = np.ascontiguousarray(block, array.dtype)
        else:
            whole = np.full(array.chunks, array.fill, array.dtype)
            whole[tuple(slice(n) for n in shape)] = block
        place = self._place(position)
        if place in self._samples:
            self._samples[place] = sample(whole[tuple(slice(n) for n in shape)])
        with span("encode"):
            # What is not compressed is copied: the caller may use its memory again before the end.
            compressor = array.compressor
            encoded = whole.tobytes() if compressor is None else compressor.encode(whole)
            parts = [encoded]
            if array.checked:
                checksum = crc32c(np.frombuffer(encoded, np.uint8))
                parts.append(checksum.to_bytes(CHECKSUM_BYTES, "little"))
            self._encoded[position] = parts

    def contents(self) -> list[bytes]:
        """The file's contents, the index at its end; a chunk that was not given is a KeyError."""
        chunks = [piece for position in self.positions for piece in self._encoded[position]]
        layout = self._array.layout
        if layout is None:
            return chunks
        index = np.full((*layout.per_shard, 2), ABSENT, np.uint64)
        offset = 0
        for position in self.positions:
            size = sum(map(len, self._encoded[position]))
            index[position] = offset, size
            offset += size
        return [*chunks, layout.encoded_index(index)]


class DirectWriter:
    """Writes an array of octane's own; many threads may write, each other shards.

    ``samples`` has a :func:`sample` of each chunk that is named in it, once it is written.
    """

    def __init__(
        self, array: Array, sampled: Iterable[tuple[int, ...]] = (), *, to_disk: bool = False
    ) -> None:
        self.array, self._to_disk = array, to_disk
        self._owned = array.owned
        self.samples: Samples = dict.fromkeys(sampled)

    def __setitem__(self, region: Region, block: npt.NDArray) -> None:
        """Write a region as :meth:`fill` does; a ValueError where the block has another shape."""
        axes = zip(region, self.array.shape, strict=True)
        whole = tuple(slice(*r.indices(n)) for r, n in axes)
        if block.shape != shape_of(whole):
            raise ValueError(f"a block of {block.shape} does not fill {region}")
        self.fill(whole, lambda part: block[place_in(whole, part)], block)

    def fill(self, region: Region, make: Make, source: object, /) -> None:
        """Write whole shards, or chunks, of what ``make`` makes of the same region of ``source``.

        It is made a chunk at a time, which the cache holds from file to file, unless chunks of an
        image would be decoded again for that. A region that cuts a shard is a ValueError.
        """
        if isinstance(source, Image):
            axes = zip(self.array.chunks, source.chunks, source.grid.shape, strict=True)
            if any(n % min(c, whole) for n, c, whole in axes):
                self[region] = make(region)
                return
        owned, shape = self._owned, self.array.shape
        if not all(
            r.start < r.stop and r.start % size == 0 and (r.stop % size == 0 or r.stop == n)
            for r, size, n in zip(region, owned, shape, strict=True)
        ):
            raise ValueError(
                f"{region} is written, which is to be whole objects of {owned} in an array of "
                f"{shape}"
            )
        counts = (range(r.start // n, -(-r.stop // n)) for r, n in zip(region, owned, strict=True))
        for position in product(*counts):
            with self.shard(position) as shard:
                for inner in shard.positions:
                    shard[inner] = make(shard.region(inner))

    @contextmanager
    def shard(self, position: tuple[int, ...]) -> Generator[ShardWriter]:
        """Take the chunks of one shard one after the other and write it when the block ends well.

        ``position`` counts shards along each axis; without shards, it is that of the one chunk. An
        OSError passes, and nothing is left of the shard.
        """
        held = block_at(position, self._owned, self.array.shape)
        shard = ShardWriter(self.array, held, self.samples)
        yield shard
        with span("write"):
            file = self.array.folder / self.array.key(position)
            write_object(file, shard.contents(), to_disk=self._to_disk)


@contextmanager
def create_image(
    destination: Path,
    levels: Sequence[Level],
    dtype: npt.DTypeLike,
    *,
    codec: Codec = "zstd",
    attributes: Attributes | None = None,
    overwrite: bool = False,
    to_disk: bool = False,
) -> Generator[list[DirectWriter]]:
    """Create an OME-Zarr 0.5 image, and name it when the block ends well.

    Parameters
    ----------
    levels
        Finest first.
    attributes
        Noted under ``octane``; may be filled until the block ends. ``channel`` is for viewers.
    to_disk
        Begin at once to write each shard to the disk, as the caller will wait for it.

    Yields
    ------
    list of DirectWriter
        One a level. Every chunk must be written: empty ones are stored as well, so that a chunk
        that is not there is a chunk that was lost.

    Raises
    ------
    OctaneError
        When the destination exists or cannot be written, or a chunk is missing at the end.
    """
    if not destination.name.endswith(".zarr"):
        raise InputError(f"{destination} is to be an OME-Zarr image; end its name in .ome.zarr.")
    with writing(destination, overwrite=overwrite) as partial:
        at, sampled = _sampled(levels)
        writers = []
        for level in levels:
            array = create_array(
                partial, str(len(writers)), level.grid.shape, np.dtype(dtype), level.chunks,
                level.shards, COMPRESSORS[codec],
            )  # fmt: skip
            chosen = sampled if len(writers) == at else ()
            writers.append(DirectWriter(array, chosen, to_disk=to_disk))
        yield writers
        images = [Image(partial, w.array, k.grid) for w, k in zip(writers, levels, strict=True)]
        for image in images:
            lost = image.missing_chunks()
            if lost:
                raise InputError(
                    f"{destination}: {len(lost)} chunks were not written (first {lost[0]}); "
                    "run the step again."
                )
        noted = dict(attributes or {})
        # A mosaic is for the next step, and its chunks may be large.
        omero = {}
        if noted.get("kind") != "mosaic":
            middle = levels[0].grid.shape[0] // 2
            omero = _omero(images[at], writers[at].samples, noted.get("channel"), middle)
        described = _multiscale(destination.name.split(".")[0], levels)
        ome = {"version": "0.5", "multiscales": [described], **omero}
        group = {"attributes": {"ome": ome, "octane": noted}, "zarr_format": 3}
        described = json.dumps({**group, "node_type": "group"}, indent=2)
        write_object(partial / "zarr.json", [described.encode()])


def _multiscale(name: str, levels: Sequence[Level]) -> Json:
    """Axes and datasets of an image, finest first."""
    datasets = [
        {
            "path": str(index),
            "coordinateTransformations": [
                {"type": "scale", "scale": vector(*level.grid.spacing)},
                {"type": "translation", "translation": vector(*level.grid.origin)},
            ],
        }
        for index, level in enumerate(levels)
    ]
    axes = [{"name": n, "type": "space", "unit": "micrometer"} for n in "zyx"]
    coarser = {"type": "gaussian", "metadata": DOWNSCALING} if len(levels) > 1 else {}
    return {"name": name, "axes": axes, "datasets": datasets, **coarser}


def _sampled(levels: Sequence[Level]) -> tuple[int, list[tuple[int, ...]]]:
    """Find the finest level that is small, and its chunks from which the display window is."""
    sizes = [[-(-n // c) for n, c in zip(k.grid.shape, k.chunks, strict=True)] for k in levels]
    few = (at for at, counts in enumerate(sizes) if prod(counts) <= SAMPLED)
    at = next(few, len(levels) - 1)
    # Of a level that is large, chunks all over it.
    spread = np.linspace(0, prod(sizes[at]) - 1, min(prod(sizes[at]), SAMPLED)).astype(int)
    places = np.transpose(np.unravel_index(spread, sizes[at]))
    return at, [tuple(place) for place in places.tolist()]


def sample(voxels: npt.NDArray) -> npt.NDArray[np.float64]:
    """Some finite voxels of a chunk, for the display window; of complex ones the modulus."""
    voxels = voxels.reshape(-1)[:: -(-voxels.size // SAMPLE_VOXELS)]
    shown = np.abs(voxels) if voxels.dtype.kind == "c" else voxels
    return shown[np.isfinite(shown)].astype(np.float64)


def _omero(image: Image, samples: Samples, label: object, middle: int) -> Json:
    """Name and display window for viewers, from samples of chunks; those not written are read."""
    found = []
    for place, taken in samples.items():
        axes = zip(place, image.chunks, strict=True)
        region = tuple(slice(p * c, (p + 1) * c) for p, c in axes)
        found.append(sample(image.read(region)) if taken is None else taken)
    values = np.concatenate(found)
    low, start, end, high = np.percentile(values if values.size else [0.0], PERCENTILES).tolist()
    end = next(value for value in (end, high, 2 * abs(start) + 1) if value > start)
    window = {"start": start, "min": low, "end": end, "max": max(high, end)}
    channel = {"window": window, "label": str(label or "intensity"), "color": "FFFFFF"}
    defaults = {"model": "greyscale", "defaultT": 0, "defaultZ": middle}
    return {"omero": {"channels": [{**channel, "active": True}], "rdefs": defaults}}
