"""OME-TIFF: tiles, compressed, each plane with reductions of itself for viewers.

OME-TIFF reduces along y and x only, and all planes alike, so the levels of a store do not fit into
it. They are made here from each plane.
"""

import math
from itertools import chain, repeat
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

import numpy.typing as npt
from tifffile import OmeXml, OmeXmlError, TiffWriter

from octane.config.parameters import ExecutionParameters
from octane.config.types import NEAREST
from octane.core.arrays import as_dtype, working_type
from octane.core.errors import InputError
from octane.pipeline.workers import cores
from octane.store.channels import is_nearest, kinds_of
from octane.store.formats.tiff_files import CLASSIC_BYTES
from octane.tools.export.source import Source, file_type

TILE_EDGE = 256
"""Edge of a tile in pixels."""
SMALLEST_EDGE = 512
"""Longest edge of the smallest reduction in pixels."""
DEFLATE_LEVEL = 1
"""Level of deflate: higher ones save little on noise, and take several times as long."""
REDUCED_PAGE = 1
"""TIFF's type of a page that is a reduction of another."""


def describe_image(source: Source, destination: Path) -> bytes:
    """OME-XML of the image; an InputError if OME-TIFF lacks the type of the voxels."""
    parts = source.levels[0]
    grid, dtype = parts[0].grid, file_type(parts[0].dtype)
    # Derived from the name: a random UUID would make equal results differ.
    xml = OmeXml(UUID=str(uuid5(NAMESPACE_URL, destination.name)))
    count, pages = len(parts), len(parts) * grid.shape[0]
    z, y, x = grid.origin
    # The axes and units of positions are those of the voxel sizes.
    places = {
        "PositionZ": [z + k * grid.spacing[0] for k in range(grid.shape[0])] * count,
        "PositionY": [y] * pages,
        "PositionX": [x] * pages,
    }
    plane = places | {f"{name}Unit": ["µm"] * pages for name in places}
    sizes = {f"PhysicalSize{axis}": size for axis, size in zip("ZYX", grid.spacing, strict=True)}
    units = {f"{name}Unit": "µm" for name in sizes}
    try:
        xml.addimage(
            dtype, (count, *grid.shape), (pages, 1, 1, *grid.shape[1:], 1), axes="CZYX",
            Name=destination.name.split(".")[0], **sizes, **units, Plane=plane,
            Channel=_channels(source),
        )  # fmt: skip
    except OmeXmlError as error:
        raise InputError(
            f"{destination} cannot hold {dtype.name} voxels; write them as .nii or OME-Zarr."
        ) from error
    return xml.tostring(declaration=True).encode()


def _channels(source: Source) -> dict[str, list[str] | list[int]]:
    """Names and colours of the channels that have some; all or none, as tifffile has it."""
    channels: dict[str, list[str] | list[int]] = {}
    if any(source.names):
        channels["Name"] = source.names
    colors = [channel.color for channel in source.shown if channel.color]
    if len(colors) == len(source.shown):
        channels["Color"] = [
            int.from_bytes(bytes.fromhex(f"{color}FF"), "big", signed=True) for color in colors
        ]
    return channels


def write_tiff(
    source: Source, description: bytes, partial: Path, execution: ExecutionParameters
) -> None:
    """Write an OME-TIFF with this OME-XML."""
    parts = source.levels[0]
    dtype, shape = file_type(parts[0].dtype), parts[0].grid.shape
    several = len(parts) > 1
    nearest = (
        [kind == NEAREST for kind in kinds_of(source.attributes)]
        if several
        else [is_nearest(source.attributes)]
    )
    count = _reductions(*shape[1:])
    # The reductions of a plane take up to a third more.
    big = len(parts) * math.prod(shape) * dtype.itemsize * 4 / 3 > CLASSIC_BYTES
    descriptions = chain([description], repeat(None))
    # With its own OME-XML, tifffile would make an image of each plane.
    with TiffWriter(partial, bigtiff=big, ome=False) as file:

        def write(pixels: npt.NDArray, subifds: int = 0, subfiletype: int = 0) -> None:
            file.write(
                pixels, tile=(TILE_EDGE, TILE_EDGE),
                compression="zlib", compressionargs={"level": DEFLATE_LEVEL},
                maxworkers=execution.workers or cores(), photometric="minisblack", metadata=None,
                description=next(descriptions), subifds=subifds, subfiletype=subfiletype,
            )  # fmt: skip

        for part, is_of_nearest in zip(parts, nearest, strict=True):
            for plane in (plane for slab in part.slabs(execution) for plane in slab):
                pixels = plane.astype(dtype)
                write(pixels, subifds=count)
                for _ in range(count):
                    pixels = _halve(pixels, nearest=is_of_nearest)
                    write(pixels, subfiletype=REDUCED_PAGE)


def _reductions(ny: int, nx: int) -> int:
    """Number of reductions of a plane, each half as long and wide, until it is small."""
    longest = max(ny, nx)
    return 0 if longest <= SMALLEST_EDGE or min(ny, nx) < 2 else 1 + _reductions(ny // 2, nx // 2)


def _halve(plane: npt.NDArray, *, nearest: bool) -> npt.NDArray:
    """Means of 2 x 2 pixels, or the first of them; a last odd row or column is left out."""
    ny, nx = (n // 2 for n in plane.shape)
    fours = plane[: 2 * ny, : 2 * nx].reshape(ny, 2, nx, 2)
    if nearest:
        return fours[:, 0, :, 0]
    return as_dtype(fours.mean((1, 3), dtype=working_type(plane.dtype)), plane.dtype)
