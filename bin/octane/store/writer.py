"""Writing OME-Zarr images: metadata, and shards and chunks without zarr, each by one owner.

With zarr, two writers of one shard lose each other's chunks. Here a shard's encoded chunks are
collected and written under a temporary name; a partial shard is refused.
"""

import json
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
from zarr.abc.codec import BytesBytesCodec
from zarr.codecs import BloscCodec, Crc32cCodec, ZstdCodec

from octane import __version__
from octane.config.types import NEAREST, OME_ZARR, Codec, OmeZarrVersion
from octane.core.errors import InputError, OctaneError
from octane.core.files import left_by, link_or_copy, write_object, writing
from octane.core.geometry import Grid, Region, block_at, place_in, shape_of, vector
from octane.core.metrics import Metrics
from octane.core.timing import span
from octane.store.array import Array, array_metadata, array_metadata_2, create_array
from octane.store.channels import kinds_of
from octane.store.encoding import ABSENT_CHUNK, CHECKSUM_BYTES, crc32c
from octane.store.image import DECODING_ERRORS, Image
from octane.store.ngff import ShownChannel, Window, read_json
from octane.store.stated import Attributes, stated_orientation

CHUNK = 128
"""Edge of a volume's chunks in voxels; viewers read one chunk at a time."""
SHARD = 256
"""Edge of a volume's shards in voxels, so that a volume is some thousand files."""

COMPRESSORS: dict[Codec, list[BytesBytesCodec]] = {
    # Level 3, zarr's default, needs up to three times as long, for files of a few per cent less.
    "zstd": [ZstdCodec(level=1, checksum=True)],
    "blosc-lz4": [BloscCodec(cname="lz4"), Crc32cCodec()],
    "none": [Crc32cCodec()],
}
"""Codecs of chunks, each with a checksum that reveals a damaged chunk."""
BLOSC_BYTES = 2**31 - 17
"""Most bytes of a chunk that blosc compresses."""
Json = dict[str, Any]
"""JSON object of an image's metadata."""

DOWNSCALING = {"method": "octane.resample.resampler.resample", "version": __version__}
GAUSSIAN_DOWNSCALING: Json = {
    "type": "gaussian",
    "metadata": {
        "description": "Each level is made from the one before: along each axis a Gaussian of "
        "(f - 1) / 2 voxels, where f is the ratio of the voxel sizes, and linear interpolation.",
        **DOWNSCALING,
    },
}
"""How the coarser levels of a volume are made."""
NEAREST_DOWNSCALING: Json = {
    "type": NEAREST,
    "metadata": {
        "description": "Each level takes the nearest voxel of the volume along each axis, of two "
        "that are equally near the first.",
        **DOWNSCALING,
    },
}
"""How they are made if voxels must not be averaged."""

WINDOW_PERCENTILES = (0, 0.5, 99.5, 100)
"""Percentiles for the display window: lower limit, start, end and upper limit."""
SAMPLE_CHUNKS = 27
"""Most chunks that are sampled for the display window."""
SAMPLE_VOXELS = 1 << 17
"""Most voxels that are sampled in a chunk."""
CHANNEL_COLORS = ("00FF00", "FF00FF", "00FFFF", "FFFF00", "FF0000", "0000FF", "FF8000")
"""Colours in which viewers show the channels of an image with several."""
Make = Callable[[Region], npt.NDArray]
"""Returns the voxels of a region; it may reuse the memory in the next call."""
Samples = dict[tuple[int, ...], npt.NDArray[np.float64] | None]
"""Sampled voxels of chunks by their position in chunks; None until the chunk is written."""


@dataclass(frozen=True)
class Level:
    """One resolution to be written: its grid, and its chunks and shards in voxels (z, y, x).

    ``shards`` is None for one file per chunk.
    """

    grid: Grid
    chunks: tuple[int, int, int]
    shards: tuple[int, int, int] | None = None

    @classmethod
    def volume(cls, grid: Grid) -> "Level":
        """Level with chunks of 128^3 and shards of 256^3 voxels, smaller in a small volume."""
        chunks = cast("tuple[int, int, int]", tuple(min(CHUNK, n) for n in grid.shape))
        sizes = ((SHARD if n > c else c) for c, n in zip(chunks, grid.shape, strict=True))
        shards = cast("tuple[int, int, int]", tuple(sizes))
        return cls(grid, chunks, shards if shards != chunks else None)

    @property
    def object_shape(self) -> tuple[int, int, int]:
        """Shape that one worker writes: an entire shard, as concurrent writes into it lose data."""
        return self.shards or self.chunks


class Witness(NamedTuple):
    """A chunk of the shard ``held``, to be read again: its region, and its voxels' crc32c."""

    held: Region
    region: Region
    checksum: int


class ShardWriter:
    """Collects the chunks of one shard, in any order and encoded.

    ``held`` is the shard's region of the array, and ``positions`` are those of its chunks within
    it, in raster order. With ``testify``, ``witness`` is the chunk that was collected last.
    """

    def __init__(
        self, array: Array, held: Region, samples: Samples, *, testify: bool = False
    ) -> None:
        self._array, self._held, self._samples = array, held, samples
        self._testify = testify
        self.witness: Witness | None = None
        axes = [*zip(held, array.chunks, strict=True)]
        self._first = [r.start // c for r, c in axes]
        self.positions = list(product(*(range(-(-(r.stop - r.start) // c)) for r, c in axes)))
        self._encoded: dict[tuple[int, ...], list[bytes | memoryview]] = {}

    def _place(self, position: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(map(sum, zip(self._first, position, strict=True)))

    def region(self, position: tuple[int, ...]) -> Region:
        """Region of a chunk in the array."""
        return block_at(self._place(position), self._array.chunks, self._array.shape)

    def __setitem__(self, position: tuple[int, ...], block: npt.NDArray) -> None:
        """Encode one chunk; a block of another shape or type is a ValueError.

        Without shards the block must not change until the chunk is written.
        """
        array = self._array
        shape = shape_of(self.region(position))
        if block.shape != shape:
            raise ValueError(f"a block of {block.shape} does not fit the shard's chunk {position}")
        if block.dtype.newbyteorder("<") != array.dtype:
            raise ValueError(f"a block of {block.dtype} does not fit an array of {array.dtype}")
        if shape == array.chunks:
            whole = np.ascontiguousarray(block, array.dtype)
        else:
            whole = np.full(array.chunks, array.fill, array.dtype)
            whole[tuple(slice(n) for n in shape)] = block
        place, inside = self._place(position), whole[tuple(slice(n) for n in shape)]
        if place in self._samples:
            self._samples[place] = sample(inside)
        if self._testify:
            self.witness = Witness(self._held, self.region(position), _checksum(inside))
        with span("encode"):
            compressor = array.compressor
            if compressor is not None:
                encoded = compressor.encode(whole)
            elif array.layout is None:
                encoded = whole.reshape(-1).view(np.uint8).data
            else:
                # The caller may reuse its memory for the shard's next chunk.
                encoded = whole.tobytes()
            parts = [encoded]
            if array.checked:
                checksum = crc32c(np.frombuffer(encoded, np.uint8))
                parts.append(checksum.to_bytes(CHECKSUM_BYTES, "little"))
            self._encoded[position] = parts

    def contents(self) -> list[bytes | memoryview]:
        """The file's contents, with the index at the end; a missing chunk is a KeyError."""
        chunks = [piece for position in self.positions for piece in self._encoded[position]]
        layout = self._array.layout
        if layout is None:
            return chunks
        index = np.full((*layout.per_shard, 2), ABSENT_CHUNK, np.uint64)
        offset = 0
        for position in self.positions:
            size = sum(map(len, self._encoded[position]))
            index[position] = offset, size
            offset += size
        return [*chunks, layout.encoded_index(index)]


class DirectWriter:
    """Writer of an array that octane creates; many threads may write, each different shards.

    ``samples`` holds a :func:`sample` of each chunk in ``sampled`` once it is written. An array
    whose chunks octane cannot encode as the metadata say is an OctaneError.
    """

    def __init__(
        self, array: Array, sampled: Iterable[tuple[int, ...]] = (), *, to_disk: bool = False
    ) -> None:
        self.array, self._to_disk = array, to_disk
        self._object_shape = array.object_shape
        self._first: Witness | None = None
        if array.why_zarr or (array.layout and not array.layout.at_end):
            why = array.why_zarr or "its shards begin with their index"
            raise self._refusal(f"octane cannot write the array {array.path}, because {why}")
        self.samples: Samples = dict.fromkeys(sampled)

    def __setitem__(self, region: Region, block: npt.NDArray) -> None:
        """Write a region as :meth:`fill` does; a block of another shape is a ValueError."""
        axes = zip(region, self.array.shape, strict=True)
        whole = tuple(slice(*r.indices(n)) for r, n in axes)
        if block.shape != shape_of(whole):
            raise ValueError(f"a block of {block.shape} does not fill {region}")
        self.fill(whole, lambda part: block[place_in(whole, part)], block)

    def fill(self, region: Region, make: Make, source: object, /) -> None:
        """Write entire shards, or chunks, that ``make`` computes from the region of ``source``.

        ``make`` is called per chunk, which then stays in the cache from reading to writing, unless
        that would decode chunks of an image repeatedly. A region that cuts a shard is a ValueError.
        """
        if isinstance(source, Image):
            axes = zip(self.array.chunks[-3:], source.chunks, source.grid.shape, strict=True)
            if any(n % min(c, whole) for n, c, whole in axes):
                self[region] = make(region)
                return
        owned, shape = self._object_shape, self.array.shape
        if not all(
            r.start < r.stop and r.start % size == 0 and (r.stop % size == 0 or r.stop == n)
            for r, size, n in zip(region, owned, shape, strict=True)
        ):
            raise ValueError(
                f"{region} does not consist of entire objects of {owned} in an array of {shape}"
            )
        counts = (range(r.start // n, -(-r.stop // n)) for r, n in zip(region, owned, strict=True))
        for position in product(*counts):
            with self.shard(position) as shard:
                for inner in shard.positions:
                    shard[inner] = make(shard.region(inner))

    @contextmanager
    def shard(self, position: tuple[int, ...]) -> Generator[ShardWriter]:
        """Collect the chunks of one shard, and write it when the block succeeds.

        ``position`` counts shards along each axis, or chunks in an array without shards. An OSError
        passes through and leaves nothing of the shard.
        """
        held = block_at(position, self._object_shape, self.array.shape)
        is_first = self._first is None or self._first.held == held
        shard = ShardWriter(self.array, held, self.samples, testify=is_first)
        yield shard
        with span("write"):
            file = self.array.folder / self.array.key(position)
            write_object(file, shard.contents(), to_disk=self._to_disk)
        if is_first:
            self._first = shard.witness

    def require_readable(self) -> None:
        """Raise an OctaneError unless zarr reads a chunk of the first shard as it was written.

        It takes the memory of two chunks more, so call it when all are written.
        """
        if self._first is None:
            return
        _, region, checksum = self._first
        try:
            alike = _checksum(np.asarray(self.array.opened[region])) == checksum
        except DECODING_ERRORS as error:
            # Codecs raise OSErrors too, but without a number.
            if isinstance(error, OSError) and error.errno is not None:
                raise
            alike = False
        if not alike:
            raise self._refusal(f"zarr reads other voxels in {self.array.path} than were written")

    def _refusal(self, problem: str) -> OctaneError:
        folder = self.array.folder
        unfinished = left_by(folder)
        return OctaneError(
            f"{unfinished.destination if unfinished else folder}: {problem}; install octane again, "
            "with the versions of zarr and numcodecs that it requires."
        )


def _checksum(voxels: npt.NDArray) -> int:
    return crc32c(np.ascontiguousarray(voxels).reshape(-1).view(np.uint8))


@dataclass(frozen=True)
class ChannelWriter:
    """Writer of one channel, (z, y, x), of an array with an axis c before them."""

    writer: DirectWriter
    index: int

    def __setitem__(self, region: Region, block: npt.NDArray, /) -> None:
        """Write a region as :meth:`DirectWriter.fill` does."""
        self.writer[self._within(region)] = block[None]

    def fill(self, region: Region, make: Make, source: object, /) -> None:
        """Write entire shards, or chunks, as :meth:`DirectWriter.fill` does."""
        self.writer.fill(self._within(region), lambda part: make(part[1:])[None], source)

    def _within(self, region: Region) -> Region:
        return (slice(self.index, self.index + 1), *region)


def channel_writers(writer: DirectWriter, count: int) -> Sequence[ChannelWriter | DirectWriter]:
    """Writers of the channels of an array, each (z, y, x); of a single one, the array's own."""
    return [ChannelWriter(writer, k) for k in range(count)] if count > 1 else [writer]


@contextmanager
def create_image(
    destination: Path,
    levels: Sequence[Level],
    dtype: npt.DTypeLike,
    *,
    codec: Codec = "zstd",
    attributes: Attributes | None = None,
    channels: Sequence[str] = (),
    shown: Sequence[ShownChannel] = (),
    coarser: Json | None = None,
    version: OmeZarrVersion = OME_ZARR,
    overwrite: bool = False,
    to_disk: bool = False,
) -> Generator[list[DirectWriter]]:
    """Create an OME-Zarr image, and name it when the block succeeds.

    Parameters
    ----------
    levels
        Finest first.
    codec
        A level whose chunks are larger than blosc compresses has zstd instead of it.
    attributes
        Stored under ``octane``, but for ``orientation`` (of z, y and x), which the axes state; may
        be filled until the block ends. Viewers show ``channel``.
    channels
        Names of several channels, an axis c in front of z, y and x; empty without that axis. Their
        kinds are in the attributes, as :func:`octane.store.channels.joined_attributes` has them.
    shown
        Display window and colour of each channel. Windows that are None are found in samples of the
        voxels, and colours are those of :func:`colors`; labels are the names.
    coarser
        How the coarser levels are made, as ``type`` and ``metadata`` of a multiscale; by default as
        octane makes them.
    version
        Version of OME-Zarr. 0.4 is zarr v2: a file per chunk, in a codec that all programs read,
        without ``codec`` and its checksums.
    to_disk
        Start flushing each shard to disk at once, as the caller will wait for it.

    Yields
    ------
    list of DirectWriter
        One per level. Every chunk must be written, even an empty one, so that a missing chunk is
        always a lost one; except tiles that the attributes declare as not imaged.

    Raises
    ------
    OctaneError
        If the destination exists or cannot be written, or if at the end a chunk is missing, or
        zarr does not read one of the chunks of a level as it was written.
    """
    require_store_name(destination)
    with writing(destination, overwrite=overwrite) as partial:
        at, sampled = _sample_chunks(levels)
        leads = [(k,) for k in range(len(channels))] or [()]
        places = [(*lead, *place) for lead in leads for place in sampled]
        one, count = (1,) * bool(channels), (len(channels),) * bool(channels)
        writers = []
        for level in levels:
            shape, chunks = (*count, *level.grid.shape), (*one, *level.chunks)
            path = str(len(writers))
            if version == "0.4":
                metadata = array_metadata_2(shape, np.dtype(dtype), chunks)
                array = create_array(partial, path, metadata, 2)
            else:
                shards = level.shards and (*one, *level.shards)
                is_large = prod(chunks) * np.dtype(dtype).itemsize > BLOSC_BYTES
                level_codec = "zstd" if is_large and codec == "blosc-lz4" else codec
                metadata = array_metadata(
                    shape, np.dtype(dtype), chunks, shards, COMPRESSORS[level_codec]
                )
                array = create_array(partial, path, metadata)
            chosen = places if len(writers) == at else ()
            writers.append(DirectWriter(array, chosen, to_disk=to_disk))
        yield writers
        noted = dict(attributes or {})
        images = [
            [Image(partial, w.array, k.grid, attributes=noted, place=lead) for lead in leads]
            for w, k in zip(writers, levels, strict=True)
        ]
        for image in (image for level in images for image in level):
            lost = image.missing_chunks()
            if lost:
                raise InputError(
                    f"{destination}: {len(lost)} chunks were not written (first {lost[0]}); "
                    "run the step again."
                )
        for writer in writers:
            writer.require_readable()
        # Not for a mosaic, which only the next step reads and whose chunks may be large; but one
        # of several channels must be found by its name.
        omero = {}
        if noted.get("kind") != "mosaic" or channels:
            middle = levels[0].grid.shape[0] // 2
            labels = channels or [noted.get("channel")]
            described = [
                {
                    "window": (display.window or _window(image, writers[at].samples)).model_dump(),
                    "label": str(label or "intensity"),
                    "color": display.color or color,
                    "active": True,
                }
                for display, image, label, color in zip(
                    shown or [ShownChannel()] * len(labels),
                    images[at],
                    labels,
                    colors(len(labels)),
                    strict=True,
                )
            ]
            # With "greyscale", napari shows every channel in grey.
            model = "color" if channels else "greyscale"
            defaults = {"model": model, "defaultT": 0, "defaultZ": middle}
            omero = {"omero": {"channels": described, "rdefs": defaults}}
        multiscale = _multiscale(destination.name.split(".")[0], levels, len(one), noted)
        if len(levels) > 1:
            multiscale |= _downscaling(noted) if coarser is None else coarser
        noted.pop("orientation", None)
        if version == "0.4":
            ome = {"multiscales": [{"version": version, **multiscale}], **omero}
            _write_json(partial / ".zgroup", {"zarr_format": 2})
            _write_json(partial / ".zattrs", {**ome, "octane": noted})
            return
        ome = {"version": version, "multiscales": [multiscale], **omero}
        group = {"attributes": {"ome": ome, "octane": noted}, "zarr_format": 3}
        _write_json(partial / "zarr.json", {**group, "node_type": "group"})


def _write_json(file: Path, content: Json) -> None:
    write_object(file, [json.dumps(content, indent=2).encode()])


def _multiscale(name: str, levels: Sequence[Level], before: int, noted: Attributes) -> Json:
    """Axes and datasets of an image, finest first, with ``before`` axes of channels (0 or 1)."""
    datasets = [
        {
            "path": str(index),
            "coordinateTransformations": [
                {"type": "scale", "scale": [*[1.0] * before, *level.grid.spacing]},
                {"type": "translation", "translation": [*[0.0] * before, *level.grid.origin]},
            ],
        }
        for index, level in enumerate(levels)
    ]
    axes: list[Json] = [{"name": "c", "type": "channel"}] * before
    for axis, value in zip("zyx", stated_orientation(noted), strict=True):
        stated = {"orientation": {"type": "anatomical", "value": value}} if value else {}
        axes.append({"name": axis, "type": "space", "unit": "micrometer", **stated})
    return {"name": name, "axes": axes, "datasets": datasets}


def _downscaling(noted: Attributes) -> Json:
    """How the coarser levels are made: of each channel, if that differs."""
    kinds = kinds_of(noted) or [str(noted.get("channel_kind", ""))]
    made = [NEAREST_DOWNSCALING if kind == NEAREST else GAUSSIAN_DOWNSCALING for kind in kinds]
    if all(method is made[0] for method in made):
        return made[0]
    return {"type": "mixed", "metadata": {"channels": made}}


def _sample_chunks(levels: Sequence[Level]) -> tuple[int, list[tuple[int, ...]]]:
    """Choose the finest small level, and its chunks to sample for the display window."""
    sizes = [[-(-n // c) for n, c in zip(k.grid.shape, k.chunks, strict=True)] for k in levels]
    few = (at for at, counts in enumerate(sizes) if prod(counts) <= SAMPLE_CHUNKS)
    at = next(few, len(levels) - 1)
    # If the level is large, spread the chunks over all of it.
    spread = np.linspace(0, prod(sizes[at]) - 1, min(prod(sizes[at]), SAMPLE_CHUNKS)).astype(int)
    places = np.transpose(np.unravel_index(spread, sizes[at]))
    return at, [tuple(place) for place in places.tolist()]


def sample(voxels: npt.NDArray) -> npt.NDArray[np.float64]:
    """Sample finite voxels of a chunk for the display window; the modulus of complex ones."""
    voxels = voxels.reshape(-1)[:: -(-voxels.size // SAMPLE_VOXELS)]
    shown = np.abs(voxels) if voxels.dtype.kind == "c" else voxels
    return shown[np.isfinite(shown)].astype(np.float64)


def _window(image: Image, samples: Samples) -> Window:
    """Display window of a channel, from samples of chunks; missing ones are read."""
    samples_read = []
    for (*lead, z, y, x), taken in samples.items():
        if tuple(lead) != image.place:
            continue
        axes = zip((z, y, x), image.chunks, strict=True)
        region = tuple(slice(p * c, (p + 1) * c) for p, c in axes)
        samples_read.append(sample(image.read(region)) if taken is None else taken)
    values = np.concatenate(samples_read)
    low, start, end, high = np.percentile(
        values if values.size else [0.0], WINDOW_PERCENTILES
    ).tolist()
    end = next(value for value in (end, high, 2 * abs(start) + 1) if value > start)
    return Window(min=low, start=start, end=end, max=max(high, end))


def colors(count: int) -> list[str]:
    """Colours of an image's channels, as RRGGBB; a single one is white."""
    return (
        ["FFFFFF"]
        if count == 1
        else [CHANNEL_COLORS[k % len(CHANNEL_COLORS)] for k in range(count)]
    )


def require_store_name(destination: Path) -> None:
    """Raise an InputError unless an image to be created is named like a store in a folder."""
    if not destination.name.endswith(".zarr"):
        raise InputError(f"{destination}: the name of an OME-Zarr image must end in .ome.zarr.")


def codec_of(array: Array) -> Codec | None:
    """Codec of an array (z, y, x) of octane's own volumes; None if others made or packed it."""
    if len(array.shape) != 3 or array.archive is not None:
        return None
    nz, ny, nx = array.shape
    level = Level.volume(Grid((nz, ny, nx), vector(1, 1, 1)))
    stored = read_json(array.folder, f"{array.path}/zarr.json")
    for codec, compressors in COMPRESSORS.items():
        metadata = array_metadata(array.shape, array.dtype, level.chunks, level.shards, compressors)
        if json.loads(metadata) == stored:
            return codec
    return None


def link_chunks(image: Image, array: Array, place: tuple[int, ...], metrics: Metrics) -> None:
    """Hard-link the files of an image's chunks into an array, at ``place`` along its axes before z.

    Across file systems they are copied. The array's chunks and codecs must be the image's own. A
    ChunkError names a missing chunk.
    """
    image.require_chunks(image.whole)
    axes = zip(image.array.shape, image.array.object_shape, strict=True)
    for position in product(*(range(-(-n // size)) for n, size in axes)):
        file = (image.path / image.array.key(position)).resolve()
        link = array.folder / array.key((*place, *position))
        link.parent.mkdir(parents=True, exist_ok=True)
        is_linked = link_or_copy(file, link)
        metrics.count("linked" if is_linked else "written", file.stat().st_size)
