"""N4: the bias field fitted on the shrunk volume, applied to the whole one block by block."""

import logging
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from octane.config.params import ExecutionParameters, InputParameters, LeaseParameters, N4Parameters
from octane.core.arrays import namespace, output_type, working_type
from octane.core.errors import OctaneError
from octane.core.files import bring_to_disk
from octane.core.geometry import Region, blocks
from octane.core.metrics import Metrics
from octane.core.progress import IterationLog
from octane.gpu.run import Share, on_device
from octane.n4.apply import correct_block
from octane.n4.figures import Shown, figures, previews
from octane.n4.fit import BiasFit, fit_bias_field
from octane.n4.inputs import (
    block_mask,
    fit_mask,
    kept,
    read_strided,
    read_truth,
    read_weights,
    sections_of,
    shrunk_sections,
)
from octane.n4.intensity import IntensityMaps, along_z, histogram_matching, z_profile_gain
from octane.n4.modes import BiasModel, Part, fit_modes
from octane.n4.plan import Plan, plan_n4, within
from octane.pipeline.lanes import Lane, run_pipeline
from octane.pipeline.outside import note_outside
from octane.store.sections import Section
from octane.store.volumes import Volume, bring_in, create_volume, is_ome_zarr, open_volume

__all__ = ["correct_bias"]

logger = logging.getLogger(__name__)


def correct_bias(
    source: Path,
    destination: Path,
    parameters: N4Parameters,
    reading: InputParameters,
    execution: ExecutionParameters,
    sharing: LeaseParameters | None = None,
    *,
    save_bias_field: Path | None = None,
    truth: Path | None = None,
    dry_run: bool = False,
) -> Metrics:
    """Correct a volume's bias field.

    Parameters
    ----------
    source, destination
        OME-Zarr, NIfTI, MHA, NRRD or TIFF.
    parameters, reading, execution, sharing
        See :mod:`octane.config.params`.
    save_bias_field
        Where to write the multiplicative bias field at full resolution, float32: what the volume
        is divided by, gains of planes included, histogram matching left out.
    truth
        A phantom's truth folder, for figures against it.
    dry_run
        Write the plan to the standard output, and do nothing.

    Raises
    ------
    OctaneError
        For a volume, mask or output that is not usable; nothing is left half-written.
    """
    p = parameters
    volume = open_volume(source, input_unit=reading.input_unit, missing=reading.missing_chunks)
    if volume.dtype.kind not in "fiu":
        raise OctaneError(f"{source} holds {volume.dtype} voxels; N4 needs real intensities.")
    metrics = Metrics("n4", settings=p.recorded(reading, execution))
    outputs = [destination] if save_bias_field is None else [destination, save_bias_field]
    if len({path.resolve() for path in outputs}) < len(outputs):
        raise OctaneError(
            f"{destination} is named for the corrected volume and for the bias field; "
            "give --save-bias-field another name."
        )
    if p.outside == "zero" and p.mask is None:
        raise OctaneError("--outside zero needs a mask; give --mask tissue or a file.")
    voxels = int(np.prod(volume.grid.shape))
    whole = voxels * volume.dtype.itemsize * (not is_ome_zarr(source))
    whole += sum(voxels * 4 for path in outputs if not is_ome_zarr(path))
    sections = sections_of(volume, p)
    plan = plan_n4(volume, sections, p, execution, whole_files=whole)
    if dry_run:
        sys.stdout.write("\n".join(plan.lines()) + "\n")
        return metrics
    for line in plan.lines():
        logger.info("N4: %s", line)
    if p.iterations is not None and sum(p.iterations) == 0:
        metrics.warn("No iterations were asked for: the field is 1 everywhere.")
    _single_axes(plan, metrics)
    finite = p.nonfinite == "error"
    bring_in(volume, metrics)
    if plan.kept:
        volume = kept(volume, plan, finite, metrics)
        finite = False  # looked at already
    with metrics.timed("shrink"):
        shrunk = read_strided(
            volume, plan.keep, np.float32, workers=plan.workers, metrics=metrics, finite=finite,
            label="N4: shrinking" if plan.kept else "N4: reading",
        )  # fmt: skip
    mask = fit_mask(volume, shrunk, plan, sections, p, metrics)
    values = shrunk[mask]
    if values.size and values.min() == values.max():
        raise OctaneError(
            f"{source} holds the one value {values[0]:g} everywhere that is to be fitted; "
            "there is no field to find: check the input and the mask."
        )
    with metrics.timed("level"):
        own = _levelling(shrunk, mask, plan, sections, p)
        levelling = along_z(
            own,
            plan.planes,
            [(s.start, s.stop) for s in sections],
            volume.grid.shape[0],
        )
        levelled, gains = own.apply(shrunk), own.gain
    # A GPU may want them again; on a CPU they go before blocks are corrected.
    arrays = [shrunk, levelled]
    del shrunk, levelled, values

    def work(share: Share) -> None:
        fitted, voxels = arrays
        if share.device is None:
            arrays.clear()
        own = replace(plan, workers=min(plan.workers, share.batch))
        model = _fit(voxels, mask, volume, own, p, share, metrics)
        _record(volume, model, gains, fitted, voxels, mask, own, sections, p, truth, metrics)
        del fitted, voxels
        _apply(
            volume, model, levelling, mask, sections, own, destination, save_bias_field, p,
            execution, metrics, share,
        )  # fmt: skip

    on_device(
        work,
        plan.device_bytes,
        batch=plan.workers,
        backend=execution.backend,
        sharing=LeaseParameters() if sharing is None else sharing,
        metrics=metrics,
        subject=f"{source.name} N4",
    )
    with metrics.timed("to disk"):
        for result in (destination, save_bias_field):
            if result is not None:
                bring_to_disk(result)
    note_outside(metrics)
    return metrics


def _single_axes(plan: Plan, metrics: Metrics) -> None:
    for name, n in zip("zyx", plan.shrunk_shape, strict=True):
        if n == 1:
            metrics.warn(
                f"{plan.volume.path} has one voxel along {name} after --shrink-factor: the field "
                "is constant along it, and the other axes are fitted."
            )


def _levelling(
    shrunk: npt.NDArray[np.float32],
    mask: npt.NDArray[np.bool_],
    plan: Plan,
    sections: list[Section],
    p: N4Parameters,
) -> IntensityMaps:
    """Maps of the shrunk grid's planes."""
    within = shrunk_sections(plan, sections)
    level = IntensityMaps.identity(len(shrunk))
    if p.histogram_matching != "none":
        planes = [(k, k + 1) for a, b in within for k in range(a, b)]
        groups = within if p.histogram_matching == "section" else planes
        level = histogram_matching(shrunk, mask, groups)
    if p.z_profile_gain:
        level = replace(level, gain=z_profile_gain(level.apply(shrunk), mask, within))
    return level


def _fit(
    levelled: npt.NDArray[np.float32],
    mask: npt.NDArray[np.bool_],
    volume: Volume,
    plan: Plan,
    p: N4Parameters,
    share: Share,
    metrics: Metrics,
) -> BiasModel:
    xp = share.xp
    weights = None if p.weights is None else read_weights(Path(p.weights), volume, plan, metrics)
    log = IterationLog("N4")

    def fit(
        values: np.ndarray, inside: np.ndarray, weight: np.ndarray | None, part: Part, threads: int
    ) -> BiasFit:
        with share.active():
            done = fit_bias_field(
                xp.asarray(values),
                xp.asarray(inside),
                weights=None if weight is None else xp.asarray(weight),
                iterations=part.mesh.iterations,
                convergence_threshold=p.convergence_threshold,
                bias_field_fwhm=p.bias_field_fwhm,
                wiener_filter_noise=p.wiener_filter_noise,
                number_of_histogram_bins=p.number_of_histogram_bins,
                control_points=part.mesh.control_points,
                fitting_levels=part.mesh.fitting_levels,
                stopping=p.stopping,
                on_iteration=lambda level, iteration, measure: log(
                    f"{part.name}, level {level + 1}",
                    iteration + 1,
                    part.mesh.iterations[level],
                    measure,
                ),
                workers=threads,
            )
        logger.info(
            "N4: %s fitted in %s iterations", part.name,
            " + ".join(str(level.iterations) for level in done.levels),
        )  # fmt: skip
        return done

    with metrics.timed("fit"):
        model = fit_modes(
            levelled,
            mask,
            weights,
            shape=volume.grid.shape,
            keep=plan.keep,
            sections=plan.sections,
            whole=plan.whole,
            fit=fit,
            # On a device sections queue up anyway, and one at a time needs the least of its memory.
            workers=plan.workers if xp is np else 1,
        )
    for name in model.skipped:
        metrics.warn(f"{name} has nothing to be fitted and gets no field of its own.")
    return model


def _record(
    volume: Volume,
    model: BiasModel,
    gain: npt.NDArray[np.float64],
    shrunk: npt.NDArray[np.float32],
    levelled: npt.NDArray[np.float32],
    mask: npt.NDArray[np.bool_],
    plan: Plan,
    sections: list[Section],
    p: N4Parameters,
    truth: Path | None,
    metrics: Metrics,
) -> None:
    """Figures and previews on the shrunk grid, where everything is in memory."""
    field = np.exp(model.on_grid(plan.keep))
    after = shrunk + (levelled / field - shrunk) * np.float32(p.strength)
    field /= gain.astype(np.float32)[:, None, None]
    known = None
    if truth is not None:
        tissue, bias = (
            read_truth(truth / f"{name}.ome.zarr", volume, plan, metrics)
            for name in ("tissue", "bias")
        )
        known = (tissue, bias)
    spacing = [s * k.step for s, k in zip(volume.grid.spacing, plan.keep, strict=True)]
    shown = Shown(shrunk, after, field, mask, spacing, known)
    metrics.figures.update(
        mode=plan.mode,
        most_iterations=list(plan.whole.mesh.iterations) if plan.whole is not None else [],
        predicted_memory_bytes=plan.predicted_bytes,
        kept_in_memory=plan.kept,
        shape=list(volume.grid.shape),
        voxel_size=list(volume.grid.spacing),
        **figures(shown, model, [(s, within(plan.planes, s)) for s in sections]),
    )
    metrics.previews, metrics.figures["preview_spacing"] = previews(shown)
    metrics.previews["profile_z"] = np.array(plan.planes) * volume.grid.spacing[0]


def _apply(
    volume: Volume,
    model: BiasModel,
    levelling: IntensityMaps,
    inside: npt.NDArray[np.bool_],
    sections: list[Section],
    plan: Plan,
    destination: Path,
    field_path: Path | None,
    p: N4Parameters,
    execution: ExecutionParameters,
    metrics: Metrics,
    share: Share,
) -> None:
    """Read, correct and write the whole volume, and the field where it is wanted."""
    xp = share.xp
    dtype = output_type(p.dtype, volume.dtype)
    shape = volume.grid.shape
    mask = block_mask(volume, inside, sections, plan, p)
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

        def work(region: Region, lane: Lane) -> int:
            with lane.timed("read"):
                memory = lane.buffer("block", [r.stop - r.start for r in region], volume.dtype)
                block = volume.read(region, memory)
            if not plan.kept:
                metrics.count("read", block.nbytes)
            with lane.timed("compute"):
                corrected, field = _corrected(
                    lane.to_device(block), region, model, levelling, p.strength, dtype,
                    with_field=field_writer is not None,
                )  # fmt: skip
                if mask is not None:
                    corrected = xp.where(lane.to_device(mask(region)), corrected, dtype.type(0))
                corrected = lane.to_host(corrected, "corrected")
                if field is not None:
                    field = lane.to_host(field, "field")
            with lane.timed("write"):
                writer[region] = corrected
                if field_writer is not None and field is not None:
                    field_writer[region] = field
                    metrics.count("written", field.nbytes)
            metrics.count("written", corrected.nbytes)
            return block.nbytes

        run_pipeline(
            blocks(shape, size),
            work,
            label="N4",
            workers=plan.workers,
            xp=xp,
            metrics=metrics,
            active=share.active,
            describe=lambda region: f"block {region} of {volume.path}",
            pinned=execution.pinned,
        )


def _corrected(
    block: npt.NDArray,
    region: Region,
    model: BiasModel,
    levelling: IntensityMaps,
    strength: float,
    dtype: np.dtype,
    *,
    with_field: bool,
) -> tuple[npt.NDArray, npt.NDArray | None]:
    """A block levelled and divided by the fields over it, and what it was divided by."""
    xp = namespace(block)
    levelled = block
    if levelling.changes:
        plain = block.astype(working_type(block.dtype), copy=False)
        levelled = levelling.apply(plain, region[0].start)
    result = xp.empty(block.shape, dtype)
    field = xp.empty(block.shape, xp.float32) if with_field else None
    for planes, fields in model.pieces(region):
        result[planes], divisor = correct_block(
            levelled[planes], fields, strength=strength, dtype=dtype, source=block[planes],
            with_field=with_field,
        )  # fmt: skip
        if field is not None and divisor is not None:
            field[planes] = divisor
    if field is not None and levelling.changes:
        gain = levelling.gain[region[0]].astype(np.float32)
        field /= xp.asarray(gain)[:, None, None]
    return result, field
