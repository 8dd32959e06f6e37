"""A volume, or a part of it, in the formats of other programs."""

import logging
import math
from pathlib import Path
from typing import cast

from octane.config.parameters import ExecutionParameters, InputParameters
from octane.config.types import OME_ZARR
from octane.core.arrays import require_cpu
from octane.core.errors import InputError
from octane.core.files import bring_to_disk, put, require_free, writing
from octane.core.geometry import spelled
from octane.core.orientation import spelled_orientation
from octane.core.units import bytes_of, counted, format_bytes
from octane.pipeline.workers import require_decodable
from octane.store.formats.itk_files import TIFF_SUFFIXES
from octane.store.image import Image
from octane.store.stated import stated_orientation
from octane.store.volumes import (
    default_directions,
    geometry_of,
    is_whole,
    log_orientation,
    lost_directions,
    override_warnings,
)
from octane.tools.export.archive import write_archive
from octane.tools.export.bids import write_derivative
from octane.tools.export.ome_zarr import write_ome_zarr
from octane.tools.export.parameters import BidsParameters, ExportParameters
from octane.tools.export.raw import HEADERS, header_of, write_raw
from octane.tools.export.source import Source, centres, open_source, require_outside
from octane.tools.export.tiff import describe_image, write_tiff

logger = logging.getLogger(__name__)

ZARR, ARCHIVE = ".zarr", ".ozx"
RAW = tuple(HEADERS)
SEVERAL = (*TIFF_SUFFIXES, ZARR, ARCHIVE)
FORMATS = (*RAW, *SEVERAL)
"""Suffixes of the formats."""


def export_volume(
    store: Path,
    destination: Path,
    parameters: ExportParameters,
    reading: InputParameters,
    execution: ExecutionParameters,
) -> None:
    """Write a volume in the format of the suffix of ``destination``.

    Raises an OctaneError that names what is not usable; nothing is left half-written.
    """
    require_cpu(execution.backend, "Export")
    name = destination.name
    if not name.endswith(FORMATS):
        raise InputError(f"{destination} has an unsupported format; use {', '.join(FORMATS)}.")
    if parameters.ome_zarr_version == "0.4" and not name.endswith(ZARR):
        raise InputError(
            f"{destination} cannot be OME-Zarr 0.4 (--ome_zarr_version); give a name that ends in "
            ".ome.zarr."
        )
    if parameters.channels is not None and (name.endswith(RAW) or reading.channel is not None):
        raise InputError(
            f"{destination}: --channels needs a format of several channels ({', '.join(SEVERAL)}), "
            "and excludes --channel; give only --channel for a single one."
        )
    require_outside(destination, store)
    require_free(destination, overwrite=execution.overwrite)
    source = open_source(store, parameters, reading, several=not name.endswith(RAW))
    _log_output(source, destination)
    for part in source.levels[0]:
        require_decodable(bytes_of(execution.memory), part.volume)
        if part.volume.decoding:
            part.volume.load(destination.parent)
    if name.endswith(ZARR):
        write_ome_zarr(source, destination, parameters.ome_zarr_version, execution)
        bring_to_disk(destination)
        return
    as_stored = (parameters, reading) == (ExportParameters(), InputParameters())
    with writing(destination, overwrite=execution.overwrite) as partial:
        if name.endswith(RAW):
            part = source.levels[0][0]
            header = header_of(
                part, geometry_of(part.volume, part.grid, source.orientation), destination
            )
            write_raw(part, header, partial, execution)
        elif name.endswith(TIFF_SUFFIXES):
            write_tiff(source, describe_image(source, destination), partial, execution)
        elif as_stored and source.version == OME_ZARR and store.is_dir():
            for part in (part for level in source.levels for part in level):
                cast("Image", part.volume).require_chunks(part.region)
            write_archive(store, partial)
        else:
            # In a folder of this name, which the next call removes if this one is killed.
            written, packed = partial / destination.with_suffix(ZARR).name, partial / "packed"
            write_ome_zarr(source, written, OME_ZARR, execution)
            write_archive(written, packed)
            archive = partial.with_name(f"{partial.name}-packed")
            packed.rename(archive)
            put(archive, partial)
        bring_to_disk(partial)


def export_bids(
    store: Path,
    dataset: Path,
    named: BidsParameters,
    parameters: ExportParameters,
    reading: InputParameters,
    execution: ExecutionParameters,
) -> Path:
    """Add an OME-Zarr image to a BIDS derivative, as it is; returns the volume in the dataset.

    Raises an OctaneError if other options are given, or as :func:`write_derivative` does.
    """
    if (parameters, reading) != (ExportParameters(), InputParameters()):
        raise InputError(
            "--bids links a whole store as it is; export it with the other options first, and "
            "give that."
        )
    return write_derivative(store, dataset, named, overwrite=execution.overwrite)


def _log_output(source: Source, destination: Path) -> None:
    """Log what is written, and warn of what the format does not state."""
    volume = source.levels[0][0].volume
    directions = [] if is_whole(destination) else lost_directions(volume)
    for text in override_warnings([volume]) + directions + default_directions(volume, destination):
        logger.warning("%s", text)
    if any(source.orientation) and destination.name.endswith(TIFF_SUFFIXES):
        logger.warning(
            "%s does not state the orientation (%s), which OME-TIFF lacks.",
            *(destination, spelled_orientation(source.orientation)),
        )
    log_orientation(volume.path, volume.attributes)
    if source.orientation != stated_orientation(volume.attributes):
        log_orientation(destination, source.attributes)
    grid, dtype = source.levels[0][0].grid, source.levels[0][0].dtype
    channels = len(source.levels[0])
    pyramid = destination.name.endswith((ZARR, ARCHIVE))
    levels = source.levels if pyramid else source.levels[:1]
    voxels = channels * sum(math.prod(level[0].grid.shape) for level in levels)
    logger.info(
        "%s: %s voxels of %s um (z y x), centres from %s um%s, %s before compression",
        *(destination, spelled(grid.shape), spelled(grid.spacing), centres(grid)),
        f", {counted(channels, 'channel')}" if channels > 1 else "",
        format_bytes(voxels * dtype.itemsize),
    )
