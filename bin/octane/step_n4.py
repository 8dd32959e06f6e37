"""N4: the bias field fitted on the shrunk volume, applied to the whole one block by block."""

import logging
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType

import numpy as np
import numpy.typing as npt

from octane import bspline
from octane.backend import describe, select, to_host
from octane.dtypes import output_type
from octane.errors import OctaneError
from octane.gathering import READ_BLOCK, gather
from octane.geometry import Region, blocks
from octane.masks import tissue_mask
from octane.metrics import Metrics
from octane.n4 import BiasFit, correct, fit_bias_field, shrink_slices
from octane.n4_apply import FieldPart, correct_block
from octane.params import ExecutionParameters, InputParameters, N4Parameters, bytes_of
from octane.progress import progress
from octane.quality import against_truth, coefficient_of_variation
from octane.sections import read_sections
from octane.tiles import plan_workers, run_tiles
from octane.volumes import Volume, create_volume, is_ome_zarr, open_volume

__all__ = ["correct_bias"]

logger = logging.getLogger(__name__)

PREVIEW = 384
"""Longest edge of the preview's slices, pixels."""
PROCESS_BYTES = 180_000_000
"""Python with NumPy, SciPy, SimpleITK and zarr loaded, before any data: measured 170 MB."""
TISSUE = "tissue"


def correct_bias(
    source: Path,
    destination: Path,
    parameters: N4Parameters,
    reading: InputParameters,
    execution: ExecutionParameters,
    *,
    save_bias_field: Path | None = None,
    truth: Path | None = None,
) -> Metrics:
    """Correct a volume's bias field.

    Parameters
    ----------
    source, destination
        OME-Zarr, NIfTI, MHA, NRRD or TIFF.
    parameters, reading, execution
        See :mod:`octane.params`.
    save_bias_field
        Where to write the multiplicative bias field at full resolution, float32.
    truth
        A phantom's truth folder, for figures against it.

    Raises
    ------
    OctaneError
        For a volume, mask or output that is not usable; nothing is left half-written.
    """
    p = parameters
    volume = open_volume(source, input_unit=reading.input_unit, missing=reading.missing_chunks)
    if volume.dtype.kind not in "fiu":
        raise OctaneError(f"{source} holds {volume.dtype} voxels; N4 needs real intensities.")
    metrics = Metrics("n4", settings=p.model_dump(mode="json"))
    xp = select(execution.backend)
    metrics.device = describe(xp)
    if sum(p.iterations) == 0:
        metrics.warn("No iterations were asked for: the volume is left as it is.")
    outputs = [destination] if save_bias_field is None else [destination, save_bias_field]
    if len({path.resolve() for path in outputs}) < len(outputs):
        raise OctaneError(
            f"{destination} is named for the corrected volume and for the bias field; "
            "give --save-bias-field another name."
        )
    voxels = int(np.prod(volume.grid.shape))
    whole = voxels * volume.dtype.itemsize * (not is_ome_zarr(source))
    whole += sum(voxels * 4 for path in outputs if not is_ome_zarr(path))
    keep = shrink_slices(volume.grid.shape, p.shrink_factor[::-1])
    workers = _plan(volume, keep, execution, whole, metrics)
    with metrics.timed("shrink"):
        finite = p.nonfinite == "error"
        shrunk = gather(volume, keep, np.float32, workers=workers, finite=finite)
    mask = _mask(volume, shrunk, keep, p, workers, metrics)
    values = shrunk[mask]
    if values.size and values.min() == values.max():
        raise OctaneError(
            f"{source} holds the one value {values[0]:g} everywhere that is to be fitted; "
            "there is no field to find: check the input and the mask."
        )
    with metrics.timed("fit"):
        fit = fit_bias_field(
            xp.asarray(shrunk),
            xp.asarray(mask),
            iterations=p.iterations,
            convergence_threshold=p.convergence_threshold,
            bias_field_fwhm=p.bias_field_fwhm,
            wiener_filter_noise=p.wiener_filter_noise,
            number_of_histogram_bins=p.number_of_histogram_bins,
            control_points=p.control_points[::-1],
            stopping=p.stopping,
            on_iteration=lambda level, k, c: logger.debug(
                "level %d, iteration %d: %g", level, k, c
            ),
            workers=workers,
        )
    _figures(volume, fit, shrunk, mask, keep, p, truth, workers, metrics)
    _apply(volume, fit, destination, save_bias_field, p, execution, workers, metrics, xp)
    return metrics


def _plan(
    volume: Volume,
    keep: Region,
    execution: ExecutionParameters,
    whole_files: int,
    metrics: Metrics,
) -> int:
    """Workers that the memory allows, said with the memory before any is taken.

    ``whole_files`` are the bytes of the input and outputs that are kept in memory as a whole.
    """
    lengths = [len(range(n)[k]) for n, k in zip(volume.grid.shape, keep, strict=True)]
    kept = int(np.prod(lengths))
    fixed = PROCESS_BYTES + whole_files + 8 * 4 * kept
    block = int(np.prod(np.minimum(READ_BLOCK, volume.grid.shape)))
    need = block * (2 * volume.dtype.itemsize + 14)
    memory = bytes_of(execution.memory)
    if fixed + need > memory:
        raise OctaneError(
            f"{volume.path}: N4 needs {(fixed + need) / 1e9:.1f} GB for a fit of {kept} voxels and "
            f"one block, and --memory allows {memory / 1e9:.1f} GB; raise --memory or "
            "--shrink-factor, or use OME-Zarr in place of files that are read whole."
        )
    count = len(blocks(volume.grid.shape, (READ_BLOCK,) * 3))
    workers = plan_workers(need, memory - fixed, execution.workers, max(count, 2))
    predicted = fixed + workers * need
    metrics.figures["predicted_memory_bytes"] = predicted
    logger.info(
        "N4: fit on %d voxels, then %d blocks by %d workers; about %.0f MB in all",
        kept,
        count,
        workers,
        predicted / 1e6,
    )
    return workers


def _mask(
    volume: Volume,
    shrunk: npt.NDArray[np.float32],
    keep: Region,
    p: N4Parameters,
    workers: int,
    metrics: Metrics,
) -> npt.NDArray[np.bool_]:
    """Voxels that are fitted, on the shrunk grid."""
    finite = np.isfinite(shrunk)
    if p.mask is None:
        mask = np.ones(shrunk.shape, np.bool_)
    elif p.mask == TISSUE:
        planes = range(volume.grid.shape[0])[keep[0]]
        # Blank slabs that stand for missing sections hold no tissue to threshold.
        sections = [
            (int(np.searchsorted(planes, s.start)), int(np.searchsorted(planes, s.stop)))
            for s in read_sections(volume.attributes, volume.grid.shape[0])
            if not s.missing
        ]
        with metrics.timed("mask"):
            mask = tissue_mask(np.where(finite, shrunk, 0), [(a, b) for a, b in sections if b > a])
    else:
        mask = _read_mask(Path(p.mask), volume, keep, workers)
    if not mask.any():
        raise OctaneError(
            f"The mask {p.mask} has no voxel on the shrunk grid; give another, or a smaller "
            "--shrink-factor."
        )
    if not finite.all():
        metrics.warn(
            f"{int((mask & ~finite).sum())} voxels of NaN or Inf were left out of the fit."
        )
    return mask & finite


def _read_mask(path: Path, volume: Volume, keep: Region, workers: int) -> npt.NDArray[np.bool_]:
    stored = open_volume(path, input_unit="micrometer", missing="fill")
    if stored.grid.shape != volume.grid.shape:
        raise OctaneError(
            f"{path} has the shape {stored.grid.shape} and {volume.path} {volume.grid.shape} "
            "(z y x); give a mask on the volume's grid."
        )
    values = gather(stored, keep, stored.dtype, workers=workers)
    others = np.setdiff1d(np.unique(values), (0, 1))
    if others.size:
        raise OctaneError(
            f"{path} holds the value {others[0]:g}; a mask is 0 and 1 (ITK takes 1 alone for "
            "inside, so that 255 would silently mean nothing): divide it."
        )
    return values == 1


def _figures(
    volume: Volume,
    fit: BiasFit,
    shrunk: npt.NDArray[np.float32],
    mask: npt.NDArray[np.bool_],
    keep: Region,
    p: N4Parameters,
    truth: Path | None,
    workers: int,
    metrics: Metrics,
) -> None:
    """Figures and previews on the shrunk grid, where everything is in memory."""
    lattice = fit.lattice
    bases = [
        bspline.basis(n, c)[k]
        for n, c, k in zip(volume.grid.shape, lattice.shape, keep, strict=True)
    ]
    field = np.exp(bspline.evaluate(lattice.astype(np.float64), bases)).astype(np.float32)
    after = correct(shrunk, np.log(field), p.strength)
    inside = field[mask]
    spacing = [s * k.step for s, k in zip(volume.grid.spacing, keep, strict=True)]
    metrics.figures.update(
        levels=[
            {"iterations": level.iterations, "convergence": list(level.convergence)}
            for level in fit.levels
        ],
        cv_before=coefficient_of_variation(shrunk[mask]),
        cv_after=coefficient_of_variation(after[mask]),
        field_min=float(inside.min()),
        field_max=float(inside.max()),
        mask_fraction=float(mask.mean()),
        shrunk_shape=list(shrunk.shape),
        shrunk_spacing=spacing,
        shape=list(volume.grid.shape),
        voxel_size=list(volume.grid.spacing),
    )
    shown = {"before": shrunk, "after": after, "field": field}
    if truth is not None:
        true_tissue, true_field = (
            _truth(truth / f"{name}.ome.zarr", volume, keep, workers) for name in ("tissue", "bias")
        )
        metrics.figures["truth"] = against_truth(
            shrunk, after, field, true_tissue, true_field, mask
        )
        shown["true_field"] = true_field
    step = max(1, -(-max(shrunk.shape) // PREVIEW))
    metrics.figures["preview_spacing"] = [s * step for s in spacing]
    # The plane nearest the middle that has tissue: the middle itself may be a missing section.
    centre = [
        min(np.flatnonzero(mask.any(axis=tuple({0, 1, 2} - {a}))), key=lambda i: abs(i - n // 2))
        for a, n in enumerate(mask.shape)
    ]
    for name, values in shown.items():
        for axis, letter in enumerate("zyx"):
            plane = np.take(values, centre[axis], axis=axis)
            metrics.previews[f"{name}_{letter}"] = plane[::step, ::step]
    counts = mask.sum(axis=(1, 2))
    for name in ("before", "after"):
        total = np.where(mask, shown[name], 0).sum(axis=(1, 2), dtype=np.float64)
        metrics.previews[f"profile_{name}"] = np.where(
            counts > 0, total / np.maximum(counts, 1), np.nan
        )
    metrics.previews["profile_z"] = (
        np.arange(*keep[0].indices(volume.grid.shape[0])) * (volume.grid.spacing[0])
    )
    low, high = np.percentile(shrunk[mask], (0.1, 99.9))
    edges = np.linspace(low, high, 129)
    metrics.previews["histogram_edges"] = edges
    for name in ("before", "after"):
        metrics.previews[f"histogram_{name}"] = np.histogram(shown[name][mask], edges)[0]


def _truth(path: Path, volume: Volume, keep: Region, workers: int) -> npt.NDArray:
    stored = open_volume(path)
    if stored.grid.shape != volume.grid.shape:
        raise OctaneError(
            f"{path} has the shape {stored.grid.shape} and the volume {volume.grid.shape}; make "
            "the phantom with --truth-resolution as the run's --resolution."
        )
    return gather(stored, keep, np.float32, workers=workers)


def _apply(
    volume: Volume,
    fit: BiasFit,
    destination: Path,
    field_path: Path | None,
    p: N4Parameters,
    execution: ExecutionParameters,
    workers: int,
    metrics: Metrics,
    xp: ModuleType,
) -> None:
    """Read, correct and write the whole volume, and the field where it is wanted."""
    dtype = output_type(p.dtype, volume.dtype)
    shape = volume.grid.shape
    with ExitStack() as stack:
        writer, size = stack.enter_context(
            create_volume(
                destination,
                volume,
                dtype,
                codec=p.codec,
                attributes={"step": "n4"},
                overwrite=execution.overwrite,
            )
        )
        field_writer = None
        if field_path is not None:
            field_writer, field_size = stack.enter_context(
                create_volume(
                    field_path,
                    volume,
                    np.float32,
                    codec=p.codec,
                    attributes={"step": "bias"},
                    overwrite=execution.overwrite,
                )
            )
            # Both outputs' shards are owned whole: sizes are multiples of one another.
            size = tuple(max(a, b) for a, b in zip(size, field_size, strict=True))
        regions = blocks(shape, size)
        advance = stack.enter_context(progress("N4", len(regions)))

        def work(region: Region) -> None:
            with metrics.timed("read"):
                block = volume.read(region)
            metrics.count("read", block.nbytes)
            with metrics.timed("compute"):
                corrected, field = correct_block(
                    xp.asarray(block),
                    [FieldPart(fit.lattice, shape, region)],
                    strength=p.strength,
                    dtype=dtype,
                    with_field=field_writer is not None,
                )
            with metrics.timed("write"):
                writer[region] = to_host(corrected)
                if field_writer is not None and field is not None:
                    field_writer[region] = to_host(field)
            metrics.count("written", corrected.nbytes)
            advance(block.nbytes)

        run_tiles(regions, work, workers=workers, describe=lambda r: f"block {r} of {volume.path}")
