"""N4: the bias field, fitted on the shrunk volume and applied to the full one block by block."""

import copy
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from octane.compare.faces import Ends, Faces, boundaries, ends_of
from octane.config.parameters import ExecutionParameters, InputParameters, LeaseParameters
from octane.config.types import AUTO
from octane.core.arrays import Backend, namespace, output_type, working_type
from octane.core.errors import InputError, OctaneError
from octane.core.files import bring_to_disk
from octane.core.geometry import Region, blocks, bounds, shape_of
from octane.core.metrics import Metrics
from octane.core.progress import IterationLog
from octane.core.units import bytes_of
from octane.gpu.run import Share, on_device
from octane.layout.sections import Section, blended_planes, imaged_plane, read_sections
from octane.pipeline.cuts import Cuts
from octane.pipeline.lanes import Lane, run_pipeline
from octane.pipeline.workers import require_decodable
from octane.processes.n4.apply import correct_block
from octane.processes.n4.channels import Made, joined, require_joinable, save_each
from octane.processes.n4.figures import Shown, figures, jumps, previews, unchanged
from octane.processes.n4.fit import BiasFit, fit_bias_field
from octane.processes.n4.grid import require_varied
from octane.processes.n4.inputs import (
    TISSUE,
    Reference,
    fit_mask,
    leave_out,
    open_reference,
    read_companion,
    read_strided,
    read_weights,
    shrunk_sections,
)
from octane.processes.n4.intensity import IntensityMaps, along_z, histogram_matching, z_profile_gain
from octane.processes.n4.judgement import judged
from octane.processes.n4.layout import sections_of
from octane.processes.n4.modes import BiasModel, fit_modes
from octane.processes.n4.parameters import N4Parameters
from octane.processes.n4.plan import Part, Plan, plan_copy, plan_n4, within
from octane.processes.n4.record import N4Figures, PassedThroughFigures
from octane.store.channels import is_nearest, name_of, names_of
from octane.store.companions import open_companions
from octane.store.stated import stated_orientation
from octane.store.volumes import (
    ArrayVolume,
    Volume,
    Writer,
    bring_in,
    create_volume,
    each_channel,
    is_whole,
    open_volume,
    require_holds,
)
from octane.store.writer import Level

logger = logging.getLogger(__name__)

GPU_WORK = 1e9
"""Voxels times iterations for each core from which a GPU pays: some seconds of work on a core.

A GPU needs about as long to start, and to compile its kernels at first use.
"""
CLIPPED = 1e-3
"""Fraction of the fitted voxels that may be clipped without a warning."""

Create = Callable[..., AbstractContextManager[tuple[Writer, tuple[int, int, int]]]]
"""Creates a volume, or finds its place in an image of several channels, as `create_volume` does."""


@dataclass(frozen=True)
class Run:
    """A volume to correct, its companions (mask, weights, truth), its reference and its output."""

    volume: Volume
    sections: list[Section]
    plan: Plan
    parameters: N4Parameters
    execution: ExecutionParameters
    metrics: Metrics
    destination: Path
    field_path: Path | None
    companions: dict[str, Volume]
    reference: Reference | None
    create: Create = create_volume


def correct_bias(run: Run, sharing: LeaseParameters) -> Metrics:
    """Correct the bias field of a volume, as :func:`prepare` planned it.

    A volume whose values must not be averaged is copied.

    Raises an OctaneError that names what is not usable; nothing is left half-written.
    """
    _correct(run, sharing)
    with run.metrics.timed("to disk"):
        bring_to_disk(run.destination, None if run.plan.copies else run.field_path)
    return run.metrics


def correct_channels(
    runs: Sequence[Run],
    sharing: LeaseParameters,
    metrics: Path | None = None,
    preview: Path | None = None,
) -> None:
    """Correct channels one after the other, as :func:`prepare_channels` planned them.

    Several become one image (c, z, y, x). The record and the preview of each have the channel's
    name in their own. Errors are those of :func:`correct_bias`.
    """
    if len(runs) == 1:
        correct_bias(runs[0], sharing).save(metrics, preview)
        return
    first, fitted = runs[0], [run for run in runs if not run.plan.copies]
    dtype = output_type(first.parameters.dtype, first.volume.dtype)
    names, made = names_of([run.volume.attributes for run in runs]), []
    with ExitStack() as stack:
        join = partial(joined, codec=first.parameters.codec, overwrite=first.execution.overwrite)
        volumes = [run.volume for run in runs]
        results = stack.enter_context(join(first.destination, volumes, dtype, "n4"))
        fields: Iterator[Writer] = iter(())
        if first.field_path is not None and fitted:
            volumes = [run.volume for run in fitted]
            fields = iter(stack.enter_context(join(first.field_path, volumes, "f4", "bias")))
        for name, run, result in zip(names, runs, results, strict=True):
            writers = {run.destination: result}
            if run.field_path is not None and not run.plan.copies:
                writers[run.field_path] = next(fields)
            made.append(_correct_channel(name, run, writers, sharing))
    bring_to_disk(first.destination, first.field_path if fitted else None)
    save_each(names, made, metrics, preview)


def _correct_channel(
    name: str, run: Run, writers: dict[Path, Writer], sharing: LeaseParameters
) -> Made:
    """Correct one of several channels into the writers of its results; its record and previews."""

    def create(
        path: Path, like: Volume, **_: object
    ) -> AbstractContextManager[tuple[Writer, tuple[int, int, int]]]:
        return nullcontext((writers[path], Level.volume(like.grid).object_shape))

    logger.info("N4: channel %s", name)
    # Its own copy of the volume, so that a decoded TIFF is removed when the channel is done.
    metrics = run.metrics
    metrics = Metrics("n4", metrics.channel, metrics.orientation, metrics.settings)
    own = replace(run, volume=copy.copy(run.volume), metrics=metrics, create=create)
    try:
        _correct(own, sharing)
    except OctaneError as error:
        error.add_note(f"channel {name}")
        raise
    return Made(metrics.record(), metrics.previews)


def _correct(run: Run, sharing: LeaseParameters) -> None:
    plan, metrics = run.plan, run.metrics
    for line in plan.lines():
        logger.info("N4: %s", line)
    if plan.copies:
        _copy(run)
        return
    backend, reason = _backend(run)
    for text in plan.warnings():
        metrics.warn(text)
    run, shrunk, mask, weights = _read(run)
    with metrics.timed("level"):
        own = _intensity_maps(run, shrunk, mask)
        sections = [(s.start, s.stop) for s in run.sections]
        maps = along_z(own, plan.planes, sections, run.volume.grid.shape[0])
        mapped = own.apply(shrunk)
    # A retry after a GPU failure needs them; on a CPU they are freed before blocks are corrected.
    arrays = [shrunk, mapped]
    del shrunk, mapped

    def work(share: Share) -> None:
        # Only now: without a GPU, the log has already given the reason for the CPU.
        if backend == "auto" and share.device is not None:
            logger.info("backend auto: GPU, because %s", reason)
        before, mapped = arrays
        if share.device is None:
            arrays.clear()
        shared = replace(run, plan=replace(plan, workers=min(plan.workers, share.batch)))
        model = _fit(shared, mapped, mask, weights, share)
        _record(shared, model, own.gain, before, mapped, mask)
        del before, mapped
        # Lanes allocate for streams of their own, and cannot reuse the memory of the fit.
        share.empty()
        _apply(shared, model, maps, share)

    on_device(
        work,
        plan.device_bytes,
        batch=plan.workers,
        backend=backend,
        sharing=sharing,
        metrics=metrics,
        subject=f"{run.volume.path.name} N4",
    )


def _copy(run: Run) -> None:
    """Copy a volume whose values must not be averaged, block by block, and record that."""
    volume, metrics = run.volume, run.metrics
    bring_in(volume, metrics, run.destination)
    grid, p = volume.grid, run.parameters
    if not np.can_cast(volume.dtype, dtype := output_type(p.dtype, volume.dtype)):
        metrics.warn(
            f"Values of {volume.path} are rounded or clipped to {dtype}; give --n4_dtype input to "
            "keep them."
        )
    plain = replace(run, parameters=p.model_copy(update={"strength": 0.0}), field_path=None)
    maps = IntensityMaps.identity(grid.shape[0])
    _apply(plain, BiasModel(grid.shape, None), maps, Share(np, run.plan.workers))
    figures = {"shape": grid.shape, "voxel_size": grid.spacing}
    metrics.add_figures(PassedThroughFigures.model_validate(figures))
    metrics.figures["predicted_memory_bytes"] = run.plan.predicted_bytes


def prepare_channels(
    source: Path,
    destination: Path,
    parameters: N4Parameters,
    reading: InputParameters,
    execution: ExecutionParameters,
    channels: str | None,
    save_bias_field: Path | None = None,
    truth: Path | None = None,
    reference: Path | None = None,
    reference_channel: str | None = None,
) -> list[Run]:
    """Check the input and plan a run for each of ``channels``, as ``--channels`` names them.

    Without them, it is one of the channel that ``reading`` chooses. A tissue mask is made once,
    from that channel, unless ``reference`` is given. Other parameters are as for :func:`prepare`.
    """
    tissue = parameters.mask == TISSUE
    like = open_reference(reference, reference_channel, reading, is_used=tissue)
    chosen = [reading] if channels is None else each_channel(source, channels, reading)
    if channels is not None and (reading.channel is not None or (tissue and like is None)):
        # This refuses a wrong or missing --channel.
        measured = open_volume(source, reading)
        if tissue and like is None and len(measured.channels) > 1:
            like = Reference(measured)
    if len(chosen) > 1:
        require_joinable((destination, save_bias_field), truth)
    return [
        prepare(source, destination, parameters, own, execution, save_bias_field, truth, like)
        for own in chosen
    ]


def prepare(
    source: Path,
    destination: Path,
    parameters: N4Parameters,
    reading: InputParameters,
    execution: ExecutionParameters,
    save_bias_field: Path | None = None,
    truth: Path | None = None,
    reference: Reference | None = None,
) -> Run:
    """Check the input and plan the run, before any voxel is read.

    Volumes are OME-Zarr, NIfTI, MHA, NRRD or TIFF. ``save_bias_field`` is the path of the
    multiplicative bias field, float32 at full resolution: the divisor of the volume, including
    gains of planes, without histogram matching. ``truth`` is the truth folder of a phantom. The
    tissue mask is that of ``reference``, if given.
    """
    p = parameters
    volume = open_volume(source, reading)
    if volume.dtype.kind not in "fiu":
        raise InputError(f"{source} holds {volume.dtype} voxels; N4 needs real intensities.")
    metrics = Metrics(
        "n4",
        channel=name_of(volume.attributes),
        orientation=stated_orientation(volume.attributes),
        settings=p.recorded(reading, execution),
    )
    outputs = [destination] if save_bias_field is None else [destination, save_bias_field]
    for path, dtype in zip(outputs, (output_type(p.dtype, volume.dtype), np.float32), strict=False):
        require_holds(path, dtype)
    require_decodable(memory := bytes_of(execution.memory), volume)
    voxels = int(np.prod(volume.grid.shape))
    whole = voxels * volume.dtype.itemsize * is_whole(source)
    whole += sum(voxels * 4 for path in outputs if is_whole(path))
    planes = volume.grid.shape[0]
    if is_nearest(volume.attributes):
        sections = [s for s in read_sections(volume.attributes, planes) if not s.missing]
        plan = plan_copy(volume, execution, whole_files=whole)
        return Run(
            volume, sections, plan, p, execution, metrics, destination, save_bias_field, {}, None
        )
    if reference is not None:
        reference.require_fit(volume, memory)
        whole += reference.whole_bytes
    sections = sections_of(volume, p, planes)
    plan = plan_n4(
        volume, sections, p, execution, whole_files=whole, referenced=reference is not None
    )
    mask = None if p.mask in (None, TISSUE) else Path(p.mask)
    weights = None if p.weights is None else Path(p.weights)
    companions = open_companions(volume, mask, weights, truth)
    require_decodable(memory, *companions.values())
    return Run(
        *(volume, sections, plan, p, execution, metrics, destination, save_bias_field, companions),
        reference,
    )


def _backend(run: Run) -> tuple[Backend, str]:
    """Return the backend and the reason: the CPU if it is open and the fit is a small one."""
    backend = run.execution.backend
    per_core = run.plan.voxel_iterations / run.plan.workers
    pays = per_core >= GPU_WORK
    reason = (
        f"N4 has {per_core:.2g} voxels times iterations for each core, and a GPU pays from "
        f"{GPU_WORK:.0e}"
    )
    if backend == "auto" and not pays:
        logger.info("backend auto: CPU, because %s", reason)
        return "cpu", reason
    return backend, reason


def _read(
    run: Run,
) -> tuple[Run, npt.NDArray[np.float32], npt.NDArray[np.bool_], npt.NDArray[np.float32] | None]:
    """Read the volume: the run, with it in memory if planned, shrunk voxels, mask and weights."""
    plan, metrics = run.plan, run.metrics
    finite = run.parameters.nonfinite == "error"
    for volume in (run.volume, *run.companions.values()):
        bring_in(volume, metrics, run.destination)
    volume, tissue = run.volume, None
    if run.reference is not None:
        # Before the volume's own voxels, so that one shrunk grid at a time is in memory.
        tissue = run.reference.mask(plan, run.sections, metrics, run.destination)
    whole = np.empty(volume.grid.shape, volume.dtype) if plan.kept else None
    with metrics.timed("shrink"):
        shrunk = read_strided(
            volume, plan.keep, np.float32, workers=plan.workers, metrics=metrics, finite=finite,
            whole=whole,
        )  # fmt: skip
    if whole is not None:
        metrics.count("read", whole.nbytes)
        held = ArrayVolume(volume.path, whole, volume.grid, volume.attributes)
        run = replace(run, volume=held)
    mask = fit_mask(run.companions, shrunk, plan, run.sections, run.parameters, metrics, tissue)
    companions = dict(run.companions)
    weights = (
        read_weights(companions.pop("weights"), plan, metrics) if "weights" in companions else None
    )
    name = name_of(run.volume.attributes)
    named = f"{run.volume.path}, channel '{name}'," if name else f"{run.volume.path}"
    mask = leave_out(shrunk, mask, weights, named, run.parameters, metrics)
    require_varied(named, shrunk[mask])
    companions.pop("mask", None)
    # Companions that are no longer needed are dropped, with their open files.
    return replace(run, companions=companions), shrunk, mask, weights


def _blended(run: Run) -> list[int]:
    """Number of planes of each section that are blended with the section above."""
    thick = run.volume.grid.spacing[0]
    return [blended_planes(section.blended, thick) for section in run.sections]


def _shrunk_ends(run: Run) -> dict[int, Ends]:
    """Faces of the sections on the shrunk grid, by number."""
    step, found = run.plan.keep[0].step, dict[int, Ends]()
    for section, blended in zip(run.sections, _blended(run), strict=True):
        part = within(run.plan.planes, section)
        found[section.number] = ends_of(np.arange(part.start, part.stop), -(-blended // step))
    return found


def _intensity_maps(
    run: Run, shrunk: npt.NDArray[np.float32], mask: npt.NDArray[np.bool_]
) -> IntensityMaps:
    """Maps of the planes of the shrunk grid."""
    p = run.parameters
    sections = shrunk_sections(run.plan, run.sections)
    maps = IntensityMaps.identity(len(shrunk))
    if p.histogram_matching != "none":
        planes = [(k, k + 1) for a, b in sections for k in range(a, b)]
        groups = sections if p.histogram_matching == "section" else planes
        maps = histogram_matching(shrunk, mask, groups)
    if p.z_profile_gain:
        blended = -(-max(_blended(run), default=0) // run.plan.keep[0].step)
        gain = z_profile_gain(maps.apply(shrunk), mask, sections, blended)
        maps = replace(maps, gain=gain)
    return maps


def _fit(
    run: Run,
    mapped: npt.NDArray[np.float32],
    mask: npt.NDArray[np.bool_],
    weights: npt.NDArray[np.float32] | None,
    share: Share,
) -> BiasModel:
    p, plan, metrics, xp = run.parameters, run.plan, run.metrics, share.xp
    log = IterationLog("N4")

    def fit(
        values: np.ndarray, inside: np.ndarray, weight: np.ndarray | None, part: Part, threads: int
    ) -> BiasFit:
        with share.active():
            done = fit_bias_field(
                values,
                inside,
                weights=weight,
                iterations=part.mesh.iterations,
                convergence_threshold=p.convergence_threshold,
                bias_field_fwhm=p.bias_field_fwhm,
                wiener_filter_noise=p.wiener_filter_noise,
                number_of_histogram_bins=p.number_of_histogram_bins,
                control_points=part.mesh.control_points,
                fitting_levels=part.mesh.fitting_levels,
                on_iteration=lambda level, iteration, measure: log(
                    f"{part.name}, level {level + 1} of {len(part.mesh.iterations)}",
                    iteration + 1,
                    part.mesh.iterations[level],
                    measure,
                ),
                workers=threads,
                xp=xp,
            )
        if p.levels == AUTO:
            fitted = inside if weight is None else inside & (weight > 0)
            most, done = len(done.levels), judged(done, values, fitted)
            logger.info("N4: %s: %d of %d levels correct bias", part.name, len(done.levels), most)
        logger.info(
            "N4: %s fitted in %s iterations, convergence %s",
            part.name,
            " + ".join(str(level.iterations) for level in done.levels),
            ", ".join(f"{level.convergence[-1]:.3g}" for level in done.levels if level.convergence),
        )
        return done

    with metrics.timed("fit"):
        # On a GPU sections run one after another anyway, and one at a time needs the least memory.
        workers = plan.workers if xp is np else 1
        model = fit_modes(plan, mapped, mask, weights, fit, workers)
    for name in model.skipped:
        metrics.warn(f"{name} has nothing to fit and does not get its own field.")
    return model


def _record(
    run: Run,
    model: BiasModel,
    gain: npt.NDArray[np.float64],
    before: npt.NDArray[np.float32],
    mapped: npt.NDArray[np.float32],
    mask: npt.NDArray[np.bool_],
) -> None:
    """Record figures and previews on the shrunk grid, where everything is in memory."""
    volume, plan, metrics = run.volume, run.plan, run.metrics
    log_field = model.on_grid(plan.keep)
    field = np.exp(log_field)
    after = before + (mapped / field - before) * np.float32(run.parameters.strength)
    field /= gain.astype(np.float32)[:, None, None]
    dtype = output_type(run.parameters.dtype, volume.dtype)
    if dtype.kind in "iu":
        clipped = np.count_nonzero(after[mask] > np.iinfo(dtype).max) / np.count_nonzero(mask)
        if clipped > CLIPPED:
            metrics.warn(
                f"{100 * clipped:.1f} % of the fitted voxels of {volume.path} exceed the "
                f"largest {dtype} after the correction and are clipped; give --n4_dtype float32 to "
                "keep them."
            )
    known = None
    if "tissue" in run.companions:
        known = [
            read_companion(run.companions[name], plan, metrics, "the truth")
            for name in ("tissue", "bias")
        ]
    spacing = [s * k.step for s, k in zip(volume.grid.spacing, plan.keep, strict=True)]
    shown = Shown(before, after, field, mask, spacing, known)
    found = {
        "mode": plan.mode,
        "most_iterations": plan.whole.mesh.iterations if plan.whole is not None else [],
        "predicted_memory_bytes": plan.predicted_bytes,
        "kept_in_memory": plan.kept,
        "jumps": None if mapped is before else jumps(before, mapped, _shrunk_ends(run)),
        "unchanged": unchanged(mapped, log_field, mask, model, run.parameters),
        "shape": volume.grid.shape,
        "voxel_size": volume.grid.spacing,
        **figures(shown, model, [(s, within(plan.planes, s)) for s in run.sections]),
        # Of the mask as it was before voxels were left out.
        **{name: metrics.figures[name] for name in ("left_out", "mask_fraction")},
    }
    metrics.add_figures(N4Figures.model_validate(found))
    metrics.previews, metrics.figures["preview_spacing"] = previews(shown)
    metrics.previews["profile_z"] = np.array(plan.planes) * volume.grid.spacing[0]


def _apply(run: Run, model: BiasModel, maps: IntensityMaps, share: Share) -> None:
    """Read, correct and write the entire volume, and the field if requested."""
    volume, plan, p, metrics, xp = run.volume, run.plan, run.parameters, run.metrics, share.xp
    dtype = output_type(p.dtype, volume.dtype)
    mixed = zip(run.sections, _blended(run), strict=True)
    ends = {s.number: ends_of(np.arange(s.start, s.stop), count) for s, count in mixed}
    faces = Faces({} if plan.copies else ends, volume.grid.shape[1:])
    create = partial(run.create, like=volume, codec=p.codec, overwrite=run.execution.overwrite)
    with ExitStack() as stack:
        writer, size = stack.enter_context(
            create(run.destination, dtype=dtype, attributes={"step": "n4"})
        )
        cuts = Cuts(writer, volume.grid, dtype, imaged_plane(run.sections, volume.grid.shape[0]))
        field_writer = None
        if run.field_path is not None:
            field_writer, field_size = stack.enter_context(
                create(run.field_path, dtype="f4", attributes={"step": "bias", "channel": "bias"})
            )
            # Blocks hold entire shards of both outputs, whose sizes are multiples of each other.
            size = tuple(max(a, b) for a, b in zip(size, field_size, strict=True))

        correct = partial(
            _corrected, model=model, maps=maps, strength=p.strength, dtype=dtype,
            with_field=field_writer is not None,
        )  # fmt: skip

        def made(region: Region, lane: Lane) -> tuple[npt.NDArray, npt.NDArray | None]:
            block = _read_block(volume, region, lane)
            if not plan.kept:
                metrics.count("read", block.nbytes)
            with lane.timed("compute"):
                corrected, field = correct(lane.to_device(block), region)
                corrected = lane.to_host(corrected, "corrected")
                if field is not None:
                    field = lane.to_host(field, "field")
            cuts.take(region, corrected)
            faces.add(corrected, np.arange(region[0].start, region[0].stop), region[1:])
            metrics.count("written", corrected.nbytes)
            return corrected, field

        def work(region: Region, lane: Lane) -> int:
            with lane.timed("write"):
                # A GPU takes larger blocks than chunks.
                if share.device is None and field_writer is None:
                    writer.fill(region, lambda part: made(part, lane)[0], volume)
                else:
                    writer[region], field = made(region, lane)
                    if field_writer is not None and field is not None:
                        field_writer[region] = field
                        metrics.count("written", field.nbytes)
            return int(np.prod(shape_of(region))) * volume.dtype.itemsize

        if share.device is not None:
            # Lanes that start together would each compile all kernels: CuPy's cache lacks a lock.
            shape = [min(n, 4) for n in volume.grid.shape]
            corner = tuple(slice(0, n) for n in shape)
            with share.active():
                voxels = xp.zeros(shape, volume.dtype.newbyteorder("="))
                correct(voxels, corner)
        run_pipeline(
            blocks(volume.grid.shape, size),
            work,
            label="N4",
            workers=plan.workers,
            metrics=metrics,
            share=share,
            describe=lambda region: f"block {bounds(region)} of {volume.path}",
        )
    cuts.note(metrics)
    if not plan.copies:
        metrics.figures["boundaries"] = boundaries(faces)


def _read_block(volume: Volume, region: Region, lane: Lane) -> npt.NDArray:
    """Read a block into the lane's buffer, from which copies to a GPU overlap with other work.

    On a CPU the result overwrites it.
    """
    with lane.timed("read"):
        memory = lane.buffer("block", shape_of(region), volume.dtype)
        block = volume.read(region, memory)
        if block is not memory:
            # It is a view of the volume in memory.
            memory[...] = block
    return memory


def _corrected(
    block: npt.NDArray,
    region: Region,
    *,
    model: BiasModel,
    maps: IntensityMaps,
    strength: float,
    dtype: np.dtype,
    with_field: bool,
) -> tuple[npt.NDArray, npt.NDArray | None]:
    """Map a block and divide it by the fields over it; also return the divisor."""
    xp = namespace(block)
    mapped = block
    if maps.changes:
        plain = block.astype(working_type(block.dtype), copy=False)
        mapped = maps.apply(plain, region[0].start)
    # On a CPU the block, which is the lane's own, is overwritten.
    result = block if xp is np and block.dtype == dtype else xp.empty(block.shape, dtype)
    field = xp.empty(block.shape, xp.float32) if with_field else None
    for planes, fields in model.pieces(region):
        _, divisor = correct_block(
            mapped[planes], fields, strength=strength,
            source=block[planes] if maps.changes else None, out=result[planes],
            with_field=with_field,
        )  # fmt: skip
        if field is not None and divisor is not None:
            field[planes] = divisor
    if field is not None and maps.changes:
        gain = maps.gain[region[0]].astype(np.float32)
        field /= xp.asarray(gain)[:, None, None]
    return result, field
