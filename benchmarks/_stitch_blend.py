"""Part ``blend``: errors at borders of sections with and without --stack_blend, and its cost."""

import tempfile
from itertools import product
from pathlib import Path
from statistics import median

import numpy as np
import numpy.typing as npt
from _common import cores, scratch_folder
from _stitch_cost import stack_costs

from octane.compare.faces import Faces, boundaries, ends_of
from octane.config.parameters import ExecutionParameters, InputParameters
from octane.core.geometry import Grid
from octane.processes.n4.intensity import z_profile_gain
from octane.processes.phantom.parameters import PhantomParameters
from octane.processes.phantom.step import SCALE, Subject, render_tile, tissue
from octane.processes.stack.parameters import StackParameters
from octane.processes.stack.step import stack_sections
from octane.store.image import open_image
from octane.store.stated import Attributes
from octane.store.writer import Level, create_image

SIZES = (48, 96, 144)
"""Heights of sections in voxels of 10 micrometres; widths are 1.5 times as large."""
LOOKS = (1, 4, 16, 0)
"""Independent looks in the speckle of a voxel; 0 for no speckle."""
ATTENUATIONS = (0, 1, 4)
"""Loss of light with depth, 1/mm."""
SEEDS = (1, 2, 3, 4, 5)
SECTIONS, THICK, DEEP, BLEND = 3, 12, 20, 6
"""Sections of a phantom, and the planes that are cut, imaged and blended."""
TISSUE = 0.4 * SCALE
"""Grey level of the truth above which voxels are compared."""
RUNS = 3

Volume = npt.NDArray[np.float32]


def phantom(size: int, attenuation: float, looks: float, seed: int) -> PhantomParameters:
    """Return a subject of one tile per section, imaged deeper than it is cut."""
    made = {
        "tiles": (1, 1),
        "edge_fraction": 0,
        "tile_shape": (DEEP, size, 3 * size // 2),
        "voxel_size": 10,
        "section_thickness": 10 * THICK,
        "sections": SECTIONS,
        "speckle_looks": looks,
        "attenuation": attenuation,
        "position_error": 0,
        "bias": 0,
        "shading": 0,
        "section_steps": 0,
        "seed": seed,
    }
    return PhantomParameters.model_validate(made)


def stacked(p: PhantomParameters, folder: Path) -> tuple[Volume, Volume]:
    """Return the volume that STACK makes of a phantom without and with blending."""
    execution = ExecutionParameters(backend="cpu", workers=cores(), overwrite=True)
    sources = []
    for section in range(SECTIONS):
        voxels = render_tile(p, section, (0, 0), p.tile_shape, (0, 0))
        noted = {"number": section + 1, "thickness": 10.0 * THICK}
        level = Level.volume(Grid(voxels.shape, (10.0, 10.0, 10.0), (5.0, 5.0, 5.0)))
        path = folder / f"section_{section + 1}.ome.zarr"
        attributes: Attributes = {"kind": "section", "section": noted}
        with create_image(path, [level], "float32", attributes=attributes, overwrite=True) as (
            writer,
        ):
            writer[tuple(slice(0, n) for n in voxels.shape)] = voxels
        sources.append(path)
    found = []
    for depth in (0, 10 * BLEND):
        parameters = StackParameters(blend=depth)
        path = folder / "stack.ome.zarr"
        stack_sections(sources, path, parameters, InputParameters(), execution)
        image = open_image(path)
        found.append(image.read(tuple(slice(0, n) for n in image.grid.shape)))
    return found[0], found[1]


def truth(p: PhantomParameters) -> Volume:
    """Return the tissue in grey levels, on the grid of the volume."""
    z, y, x = ((np.arange(n) + 0.5) * 10 for n in (SECTIONS * THICK, *p.tile_shape[1:]))
    return tissue(Subject.of(p), z, y, x) * np.float32(SCALE)


def error(volume: Volume, true: Volume) -> float:
    """Return the root mean square error at the borders, relative to the tissue's."""
    planes = np.zeros(len(volume), bool)
    for start in range(THICK, len(volume), THICK):
        planes[start - BLEND : start + BLEND] = True
    inside = (true > TISSUE) & planes[:, None, None]
    own, known = volume[inside].astype(np.float64), true[inside].astype(np.float64)
    own *= known.mean() / own.mean()
    return float(np.sqrt(np.mean((own - known) ** 2) / np.mean(known**2)))


def jump(volume: Volume, blended: int) -> float:
    """Return the largest jump of brightness at a border, as the report's check sees it."""
    planes = [np.arange(start, start + THICK) for start in range(0, len(volume), THICK)]
    ends = {n: ends_of(own, blended * (n > 0)) for n, own in enumerate(planes)}
    faces = Faces(ends, volume.shape[1:])
    faces.add(volume, np.arange(len(volume)), [slice(0, n) for n in volume.shape[1:]])
    return max(max(ratio, 1 / ratio) - 1 for ratio in boundaries(faces).values())


def figures(p: PhantomParameters, folder: Path) -> dict[str, float]:
    """Return the errors and jumps of a phantom, and how many other voxels blending changed."""
    true = truth(p)
    plain, mixed = stacked(p, folder)
    sections = [(start, start + THICK) for start in range(0, len(true), THICK)]
    found: dict[str, float] = {}
    for name, volume, count in (("plain", plain, 0), ("blended", mixed, BLEND)):
        gain = z_profile_gain(volume, true > TISSUE, sections, count)
        even = volume * gain.astype(np.float32)[:, None, None]
        for own, seen in ((name, volume), (f"{name}_gain", even)):
            found[f"rms_{own}"] = error(seen, true)
            found[f"jump_{own}"] = jump(seen, count)
    changed = np.flatnonzero((plain != mixed).any(axis=(1, 2)))
    shared = [start + k for start in range(THICK, len(true), THICK) for k in range(BLEND)]
    found["changed_elsewhere"] = len(set(changed.tolist()) - set(shared))
    return found


def row(size: int, attenuation: float, looks: float, seeds: tuple[int, ...]) -> dict[str, object]:
    """Return the medians of the seeds, and in how many blending lowered the error."""
    with tempfile.TemporaryDirectory(dir=scratch_folder()) as scratch:
        each = [figures(phantom(size, attenuation, looks, s), Path(scratch)) for s in seeds]
    middle = {name: round(median(own[name] for own in each), 4) for name in each[0]}
    lower = sum(own["rms_blended"] < own["rms_plain"] for own in each)
    lower_gain = sum(own["rms_blended_gain"] < own["rms_plain_gain"] for own in each)
    planes = max(own["changed_elsewhere"] for own in each)
    return {
        "size": size,
        "attenuation": attenuation,
        "looks": looks,
        "seeds": len(each),
        **middle,
        "lower": lower,
        "lower_gain": lower_gain,
        "changed_elsewhere": planes,
    }


def cost(runs: int) -> dict[str, object]:
    """Measure STITCH of a subject's sections, and STACK without and with blending."""
    given = {"sections": 4, "section_thickness": 480, "voxel_size": 10}
    depths = (0, 80, 160)
    ways = {f"{depth}": ["--stack_blend", f"{depth}"] for depth in depths}
    shape, costs = stack_costs(2, given, ways, runs)
    return {
        "shape": shape,
        "stitch": costs["stitch"]["cpu_seconds"],
        "stack": [
            {"blend": depth, "cpu_seconds": costs[f"{depth}"]["cpu_seconds"]} for depth in depths
        ],
    }


def blend(quick: bool) -> dict[str, object]:
    """Measure the errors by attenuation, speckle and size, and the cost."""
    seeds = SEEDS[:1] if quick else SEEDS
    cases = product(SIZES[:1] if quick else SIZES, ATTENUATIONS, LOOKS)
    rows = [row(size, attenuation, looks, seeds) for size, attenuation, looks in cases]
    return {"rows": rows, "blend": 10 * BLEND, "cost": cost(1 if quick else RUNS)}
