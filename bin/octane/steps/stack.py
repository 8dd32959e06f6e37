"""STACK: the sections of a subject on top of each other, with their boundaries recorded."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt

from octane.config.params import ExecutionParameters, InputParameters, StackParameters, bytes_of
from octane.core.arrays import as_dtype, require_cpu, working_type
from octane.core.errors import OctaneError
from octane.core.geometry import Grid, Region, Vector, blocks, vector
from octane.core.metrics import Metrics
from octane.core.records import StackFigures
from octane.gpu.device import describe
from octane.pipeline.lanes import Lane, run_pipeline
from octane.pipeline.workers import plan_workers
from octane.resample.operator import interpolator
from octane.resample.resampler import apply
from octane.stitch.faces import Faces, brightness, flips
from octane.store.image import Attributes, Image, open_image
from octane.store.sections import (
    Section,
    imaged_plane,
    noted_sections,
    numbered,
    read_sections,
    require_alike,
)
from octane.store.volumes import Cuts
from octane.store.writer import Level, create_image

logger = logging.getLogger(__name__)

Box = tuple[Vector, Vector]
"""Edge and extent, micrometres."""


@dataclass(frozen=True)
class Slab:
    """Place of a section in the volume, in micrometres and planes; ``image`` is None for a gap."""

    number: int
    name: str
    image: Image | None
    edge: Vector
    extent: Vector
    surface: float
    thickness: float
    planes: range = range(0)


def _depth(image: Image, extent: Vector) -> float:
    """Imaged depth, of which whole planes may be less."""
    noted = cast("Mapping[str, Sequence[float]]", image.attributes.get("section", {}))
    return max(extent[0], noted.get("extent", extent)[0])


def _thickness(image: Image, parameters: StackParameters, extent: Vector) -> float:
    noted = cast("Mapping[str, Sequence[float]]", image.attributes.get("section", {}))
    if parameters.section_thickness is not None:
        if parameters.section_thickness < image.grid.spacing[0]:
            raise OctaneError(
                f"--section-thickness {parameters.section_thickness:g} is less than one voxel of "
                f"{image.path} ({image.grid.spacing[0]:g} micrometre); give it in micrometres."
            )
        deep = _depth(image, extent)
        if parameters.section_thickness > deep * (1 + 1e-6):
            raise OctaneError(
                f"--section-thickness {parameters.section_thickness:g} is more than the {deep:g} "
                f"micrometre that {image.path} is deep; give what was imaged, or leave it out."
            )
        return parameters.section_thickness
    return float(cast("float", noted.get("thickness", extent[0])))


def _box(section: Image) -> Box:
    """Edge and extent of a section as they were imaged, which whole planes may not fill."""
    noted = cast("Mapping[str, Sequence[float]]", section.attributes.get("section", {}))
    edge, extent = noted.get("edge", section.grid.edge), noted.get("extent", section.grid.extent)
    return vector(*edge), vector(*extent)


def lay_out(
    images: list[Image], boxes: list[Box], parameters: StackParameters, spacing: Vector
) -> tuple[Grid, list[Slab]]:
    """The volume's grid, and its sections in order with the planes whose centres lie in them.

    ``images`` are the sections, or what they will be made of; ``boxes`` their edges and extents.
    A blank slab stands where a number is missing.
    """
    numbers = numbered(images, parameters.allow_missing_sections)
    known = {n: (image, *box) for (n, image), box in zip(numbers.items(), boxes, strict=True)}
    slabs: list[Slab] = []
    surface = 0.0
    for number in range(min(known), max(known) + 1):
        if number not in known:
            slab = replace(slabs[-1], number=number, name="missing", image=None, surface=surface)
        else:
            image, edge, extent = known[number]
            thickness = _thickness(image, parameters, extent)
            slab = Slab(number, image.path.name, image, edge, extent, surface, thickness)
        slabs.append(slab)
        surface += slab.thickness
    low = [min(s.edge[axis] for s in slabs) for axis in (1, 2)]
    high = [max(s.edge[axis] + s.extent[axis] for s in slabs) for axis in (1, 2)]
    extent = vector(surface, high[0] - low[0], high[1] - low[1])
    grid = Grid.covering(vector(0, *low), extent, spacing)
    first = [int(np.ceil(s.surface / spacing[0] - 0.5 - 1e-9)) for s in slabs]
    # The depth is rounded to whole planes: it may end above or below the last section's.
    stops = np.clip([*first, grid.shape[0]], 0, grid.shape[0]).tolist()
    planes = map(range, stops[:-1], stops[1:])
    return grid, [replace(s, planes=p) for s, p in zip(slabs, planes, strict=True)]


def blank_below(images: list[Image], parameters: StackParameters) -> list[str]:
    """Warning for sections whose metadata have a thickness above their imaged depth."""
    found = [
        (image.path.name, thickness, deep)
        for image in images
        if (thickness := _thickness(image, parameters, image.grid.extent))
        > (deep := _depth(image, image.grid.extent)) * (1 + 1e-6)
    ]
    if not found:
        return []
    name, thickness, deep = found[0]
    more = f" (and {len(found) - 1} more)" if found[1:] else ""
    return [
        f"{name}{more} is {thickness:g} micrometre thick by its metadata and {deep:g} deep: planes "
        "below that will be blank; check it, or give --section_thickness."
    ]


def _imaged(slab: Slab, planes: range, grid: Grid) -> npt.NDArray[np.int64]:
    """Planes that are not below a section's imaged depth."""
    z = np.array(planes)
    depth = (z + 0.5) * grid.spacing[0] - slab.surface
    return z[depth <= slab.extent[0] + 1e-6]


def _paste(result: npt.NDArray, region: Region, slab: Slab, grid: Grid, lane: Lane) -> None:
    """Interpolate a section into a block that it may meet."""
    image, planes = slab.image, slab.planes
    if image is None or planes.start >= region[0].stop or planes.stop <= region[0].start:
        return
    own = image.grid
    here = range(max(planes.start, region[0].start), min(planes.stop, region[0].stop))
    spans = [_imaged(slab, here, grid)]
    for axis in (1, 2):
        r, t = region[axis], grid.spacing[axis]
        first = (slab.edge[axis] - grid.edge[axis]) / t
        last = (slab.edge[axis] + slab.extent[axis] - grid.edge[axis]) / t
        low = int(np.ceil(first - 0.5 - 1e-6))
        high = int(np.floor(last - 0.5 + 1e-6)) + 1
        spans.append(np.arange(max(r.start, low), min(r.stop, high)))
    if not all(len(span) for span in spans):
        return
    # The volume counts depth from its own top, a section from where it was imaged.
    offsets = (slab.edge[0] - slab.surface, *grid.edge[1:])
    parts = []
    for span, s, offset, o, n in zip(
        spans, own.spacing, offsets, own.origin, own.shape, strict=True
    ):
        index = ((span + 0.5) * s + offset - o) / s
        # Indices that are whole within 1e-6 copy and do not blur.
        whole = np.abs(index - np.round(index)) < 1e-6
        operator = interpolator(np.where(whole, np.round(index), index), n)
        parts.append(operator.part(slice(None)))
    needed = tuple(taken for _, taken in parts)
    with lane.timed("read"):
        memory = lane.buffer("section", [r.stop - r.start for r in needed], image.dtype)
        values = image.read(needed, memory)
    lane.metrics.count("read", values.nbytes)
    with lane.timed("compute"):
        values = values.astype(working_type(image.dtype), copy=False)
        for axis, (operator, _) in enumerate(parts):
            values = apply(operator, values, axis)
        place = tuple(
            slice(int(s[0]) - r.start, int(s[-1]) + 1 - r.start)
            for s, r in zip(spans, region, strict=True)
        )
        result[place] = as_dtype(values, result.dtype)


def stack_sections(
    sources: list[Path],
    destination: Path,
    parameters: StackParameters,
    reading: InputParameters,
    execution: ExecutionParameters,
) -> Metrics:
    """Stack sections into one volume.

    Each section gives the planes from its surface down to the next section's; deeper ones, which
    were imaged twice, are left. Its boundaries stand in the volume's metadata.

    Parameters
    ----------
    sources
        OME-Zarr sections; ordered by the number in their metadata or name.
    destination
        OME-Zarr volume to be written.

    Raises
    ------
    OctaneError
        For sections that do not fit together, gaps, and output that is not usable.
    """
    require_cpu(execution.backend, "STACK")
    images = [open_image(path, reading) for path in sources]
    first = images[0]
    require_alike([(image.path, image.grid.spacing, image.dtype) for image in images])
    grid, slabs = lay_out(images, [*map(_box, images)], parameters, first.grid.spacing)
    sections = noted_sections(
        [Section(s.name, s.number, s.planes.start, s.planes.stop, s.image is None) for s in slabs]
    )
    missing = [s.number for s in slabs if s.image is None]
    metrics = Metrics("stack", settings=parameters.recorded(reading))
    metrics.device = describe(np)
    if missing:
        metrics.warn(
            f"Sections {', '.join(map(str, missing))} are missing: blank slabs stand there."
        )
    named = {k: v for k, v in first.attributes.items() if k == "channel"}
    attributes: Attributes = {**named, "kind": "volume", "step": "stack", "sections": sections}
    imaged = {s.number: _imaged(s, s.planes, grid) for s in slabs if s.image is not None}
    faces = Faces(imaged, grid.shape[1:])
    _write(destination, slabs, grid, first.dtype, attributes, faces, execution, metrics)
    beyond = sum(len(s.planes) - len(imaged[s.number]) for s in slabs if s.number in imaged)
    if beyond:
        metrics.warn(
            "The section thickness exceeds the imaged depth: planes below it are zero; "
            "check --section-thickness."
        )
    with metrics.timed("check"):
        pairs = [*faces.sums.values()]
        found = {
            number: {"brightness": bright, "flipped": flipped}
            for number, bright, flipped in zip(
                faces.sums, brightness(pairs), flips(pairs), strict=True
            )
        }
    figures = {
        "sections": [section | found.get(section["number"], {}) for section in sections],
        "missing_sections": missing,
        "planes_not_imaged": beyond,
        "shape": grid.shape,
        "voxel_size": grid.spacing,
    }
    metrics.note(StackFigures.model_validate(figures))
    return metrics


def _write(
    destination: Path,
    slabs: list[Slab],
    grid: Grid,
    dtype: np.dtype,
    attributes: Attributes,
    faces: Faces,
    execution: ExecutionParameters,
    metrics: Metrics,
) -> None:
    """Interpolate and write the volume block by block, and keep the faces of its sections."""
    level = Level.volume(grid)
    need = 5 * int(np.prod(np.minimum(level.owned, grid.shape))) * max(4, dtype.itemsize)
    regions = blocks(grid.shape, level.owned)
    workers = plan_workers(need, bytes_of(execution.memory), execution.workers, len(regions))
    with create_image(
        destination, [level], dtype, attributes=attributes, overwrite=execution.overwrite
    ) as (writer,):
        sections = read_sections(attributes, grid.shape[0])
        cuts = Cuts(writer, grid, dtype, imaged_plane(sections, grid.shape[0]))

        def work(region: Region, lane: Lane) -> int:
            result = lane.buffer("result", [r.stop - r.start for r in region], dtype)
            result[...] = 0
            for slab in slabs:
                _paste(result, region, slab, grid, lane)
            faces.add(result, region)
            with lane.timed("write"):
                cuts[region] = result
            metrics.count("written", result.nbytes)
            return result.nbytes

        run_pipeline(
            regions,
            work,
            label="STACK",
            workers=workers,
            metrics=metrics,
            describe=lambda region: f"block {region} of {destination}",
        )
    cuts.note(metrics)
