"""RESAMPLE: every tile of a mosaic grid, or a continuous volume, to the target resolution."""

import logging
from pathlib import Path
from types import ModuleType

import numpy as np

from octane.backend import describe, select, to_host
from octane.dtypes import as_dtype, output_type
from octane.errors import OctaneError
from octane.geometry import Grid, Vector, vector
from octane.metrics import Metrics
from octane.omezarr import Attributes, Image, Level, create_image
from octane.operators import resampled, resampler
from octane.params import ExecutionParameters, InputParameters, ResampleParameters, bytes_of
from octane.progress import progress
from octane.resample import resample
from octane.sections import noted_sections, read_sections, rescaled
from octane.streaming import stream_resample
from octane.tiles import plan_workers, run_tiles
from octane.tiling import Tile, Tiling
from octane.volumes import Volume, open_volume

__all__ = ["check_target", "resample_image"]

logger = logging.getLogger(__name__)


def check_target(image: Volume, parameters: ResampleParameters) -> Vector:
    """The target voxel size, once it is known to be possible.

    Raises
    ------
    OctaneError
        When there is none, or it is finer than the source and upsampling is not allowed.
    """
    if parameters.resolution is None:
        raise OctaneError("No target resolution; give --resolution in micrometres.")
    target = parameters.resolution
    # A stored spacing that went through millimetres may be off in the last digits.
    finer = [t < s * (1 - 1e-6) for t, s in zip(target, image.grid.spacing, strict=True)]
    if any(finer) and not parameters.allow_upsampling:
        spacing = " x ".join(f"{s:g}" for s in image.grid.spacing)
        raise OctaneError(
            f"{image.path} has voxels of {spacing} micrometre (z y x), coarser than the target "
            f"{' x '.join(f'{t:g}' for t in target)}: give a coarser --resolution, "
            "or --allow-upsampling."
        )
    return vector(*target)


def resample_image(
    source: Path,
    destination: Path,
    parameters: ResampleParameters,
    reading: InputParameters,
    execution: ExecutionParameters,
) -> Metrics:
    """Resample one image.

    Parameters
    ----------
    source, destination
        A mosaic grid or volume, and the OME-Zarr image to be written.
    parameters, reading, execution
        See :mod:`octane.params`.

    Returns
    -------
    Metrics
        Figures, seconds and bytes.

    Raises
    ------
    OctaneError
        For input, target or output that is not usable; nothing is left half-written.
    """
    image = open_volume(source, input_unit=reading.input_unit, missing=reading.missing_chunks)
    target = check_target(image, parameters)
    if image.dtype.kind == "c" and parameters.dtype != "input":
        raise OctaneError(
            f"{source} holds complex voxels, which --dtype {parameters.dtype} would cut in half; "
            "leave --dtype out, and take the modulus where it is wanted."
        )
    metrics = Metrics("resample", settings=parameters.model_dump(mode="json"))
    xp = select(execution.backend)
    metrics.device = describe(xp)
    if parameters.layout == "volume":
        _resample_volume(image, destination, target, parameters, execution, metrics, xp)
    elif isinstance(image, Image):
        _resample_mosaic(image, destination, target, parameters, execution, metrics, xp)
    else:
        raise OctaneError(f"{source} is no mosaic grid but a plain volume; give --layout volume.")
    metrics.figures["source_voxel_size"] = list(image.grid.spacing)
    metrics.figures["source_shape"] = list(image.grid.shape)
    return metrics


def _resample_mosaic(
    image: Image,
    destination: Path,
    target: Vector,
    parameters: ResampleParameters,
    execution: ExecutionParameters,
    metrics: Metrics,
    xp: ModuleType,
) -> None:
    tiling = Tiling.of(image)
    dtype = output_type(parameters.dtype, image.dtype)
    # A grid has at most two lengths of tile per axis, so that two operators per axis serve all.
    lengths = [
        {r.stop - r.start for r in regions}
        for regions in zip(*map(tiling.region, tiling.tiles), strict=True)
    ]
    operators = [
        {n: resampler(n, spacing, t) for n in sizes}
        for sizes, spacing, t in zip(lengths, tiling.spacing, target, strict=True)
    ]
    full = [operators[axis][tiling.tile[axis]].size for axis in range(3)]
    last = [
        operators[axis][r.stop - r.start].size
        for axis, r in enumerate(tiling.region((tiling.rows - 1, tiling.columns - 1)))
    ]
    counts = (1, tiling.rows, tiling.columns)
    nz, ny, nx = (f * (k - 1) + e for f, k, e in zip(full, counts, last, strict=True))
    edge = (
        e + (length - n * t) / 2
        for e, length, n, t in zip(tiling.edge, tiling.tile_extent, full, target, strict=True)
    )
    grid = Grid.covering(
        vector(*edge), vector(*(n * t for n, t in zip((nz, ny, nx), target, strict=True))), target
    )
    level = Level(grid, (full[0], full[1], full[2]))
    working = np.promote_types(image.dtype, np.float32)
    need = 3 * int(np.prod(tiling.tile)) * working.itemsize
    workers = plan_workers(need, bytes_of(execution.memory), execution.workers, len(tiling.tiles))
    logger.info(
        "%s: %d x %d tiles of %s voxels, %d workers, at most %.0f MB in flight",
        image.path.name,
        tiling.rows,
        tiling.columns,
        tiling.tile,
        workers,
        workers * need / 1e6,
    )
    attributes = {**image.attributes, "kind": "mosaic", "mosaic": tiling.attributes()}
    with (
        create_image(
            destination,
            [level],
            dtype,
            codec=parameters.codec,
            attributes=attributes,
            overwrite=execution.overwrite,
        ) as (writer,),
        progress("RESAMPLE", len(tiling.tiles)) as advance,
    ):

        def work(tile: Tile) -> None:
            region = tiling.region(tile)
            with metrics.timed("read"):
                voxels = image.read(region)
            metrics.count("read", voxels.nbytes)
            with metrics.timed("compute"):
                own = [operators[axis][n] for axis, n in enumerate(voxels.shape)]
                result = to_host(as_dtype(resample(xp.asarray(voxels), own), dtype))
            starts = (0, tile[0] * full[1], tile[1] * full[2])
            place = tuple(slice(a, a + n) for a, n in zip(starts, result.shape, strict=True))
            with metrics.timed("write"):
                writer[place] = result
            metrics.count("written", result.nbytes)
            advance(voxels.nbytes)

        run_tiles(
            tiling.tiles,
            work,
            workers=workers,
            describe=lambda tile: f"tile row {tile[0]}, column {tile[1]} of {image.path}",
        )
    metrics.figures.update(
        tiles=len(tiling.tiles), voxel_size=list(target), shape=list(grid.shape), workers=workers
    )


def _resample_volume(
    image: Volume,
    destination: Path,
    target: Vector,
    parameters: ResampleParameters,
    execution: ExecutionParameters,
    metrics: Metrics,
    xp: ModuleType,
) -> None:
    grid, operators = resampled(image.grid, target)
    level = Level.volume(grid)
    dtype = output_type(parameters.dtype, image.dtype)
    attributes: Attributes = {
        k: v for k, v in image.attributes.items() if k not in ("mosaic", "section")
    }
    attributes["kind"] = "volume"
    if "sections" in attributes:
        sections = read_sections(attributes, image.grid.shape[0])
        factor = target[0] / image.grid.spacing[0]
        attributes["sections"] = noted_sections(rescaled(sections, factor, grid.shape[0]))
    with create_image(
        destination,
        [level],
        dtype,
        codec=parameters.codec,
        attributes=attributes,
        overwrite=execution.overwrite,
    ) as (writer,):
        stream_resample(
            image.read,
            writer,
            operators,
            level.owned,
            dtype,
            label="RESAMPLE",
            source_dtype=image.dtype,
            xp=xp,
            metrics=metrics,
            memory=bytes_of(execution.memory),
            workers=execution.workers,
        )
    metrics.figures.update(voxel_size=list(target), shape=list(grid.shape))
