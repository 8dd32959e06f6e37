"""Part ``levelling``: volumes of tilted sections against phantoms' truth, and STACK's cost."""

import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
import zarr
from _common import cores, scratch_folder
from _stitch_cost import stack_costs
from uneven_sections import UnevenParameters, make_phantom

from octane.config.parameters import ExecutionParameters, InputParameters
from octane.processes.stack.parameters import StackParameters
from octane.processes.stack.step import stack_sections
from octane.processes.stitch.parameters import StitchParameters
from octane.processes.stitch.step import stitch_section

SIZES = (64, 96, 128)
"""Edges of tiles in voxels of 10 micrometres; a section has 2 x 2."""
LOOKS = (1, 4, 16, 0)
SEEDS = (1, 2, 3, 4, 5)
SURFACE = 60.0
"""Depth of the sections' surface in micrometres; it varies by a third, and by up to 2 degrees."""
WAYS = {
    "nothing": StackParameters(),
    "a constant": StackParameters(section_surface=SURFACE),
    "auto": StackParameters(section_surface="auto"),
    "auto, levelled": StackParameters(section_surface="auto", section_level=True),
}
MEAN = 4
"""Voxels along y and x whose mean is compared, which leaves less speckle."""
TILES, RUNS = 4, 3


def phantom(size: int, looks: float, seed: int) -> UnevenParameters:
    """Return a subject of three sections, evenly lit, imaged 90 micrometres deeper than thick."""
    made = {
        "sections": 3,
        "tiles": (2, 2),
        "edge_fraction": 0,
        "tile_shape": (24, size, size),
        "voxel_size": 10,
        "section_thickness": 90,
        "speckle_looks": looks,
        "seed": seed,
        "surface": SURFACE,
        "surface_jitter": SURFACE / 3,
        "tilt": 2,
        "attenuation": 0,
        "shading": 0,
        "bias": 0,
    }
    return UnevenParameters.model_validate(made)


def coarse(path: Path) -> npt.NDArray[np.float64]:
    """Return a volume's means over squares of each plane."""
    voxels = np.asarray(zarr.open_array(path / "0", mode="r")[:])
    nz, ny, nx = voxels.shape
    squares = voxels[:, : ny // MEAN * MEAN, : nx // MEAN * MEAN]
    return squares.reshape(nz, ny // MEAN, MEAN, nx // MEAN, MEAN).mean(axis=(2, 4), dtype=float)


def errors(p: UnevenParameters) -> dict[str, float]:
    """Return the rms difference of each way's volume from the truth, relative to its mean."""
    execution = ExecutionParameters(backend="cpu", workers=cores(), overwrite=True)
    reading = InputParameters()
    with tempfile.TemporaryDirectory(dir=scratch_folder()) as scratch:
        folder = Path(scratch)
        make_phantom(folder / "made", p, execution)
        sections = []
        for mosaic in sorted((folder / "made" / "mosaics").iterdir()):
            sections.append(folder / mosaic.name)
            stitch_section(mosaic, sections[-1], StitchParameters(), reading, execution)
        truth = coarse(folder / "made" / "truth" / "tissue.ome.zarr")
        found = {}
        for way, parameters in WAYS.items():
            stack_sections(sections, folder / "stack.ome.zarr", parameters, reading, execution)
            wrong = coarse(folder / "stack.ome.zarr") - truth
            found[way] = float(np.sqrt(np.mean(wrong**2)) / truth.mean())
    return found


def row(size: int, looks: float, seeds: tuple[int, ...]) -> dict[str, object]:
    """Return the mean error of each way over the seeds."""
    found = [errors(phantom(size, looks, seed)) for seed in seeds]
    means = {way: float(np.mean([own[way] for own in found])) for way in WAYS}
    best = sum(own["auto, levelled"] == min(own.values()) for own in found)
    return {"size": size, "looks": looks, "subjects": len(seeds), "error": means, "best": best}


def cost(tiles: int, runs: int) -> dict[str, object]:
    """Measure STITCH of a subject's sections, and STACK by way."""
    given = {"sections": 4, "surface": SURFACE, "surface_jitter": 20, "tilt": 1}
    ways = {way: parameters.flags() for way, parameters in WAYS.items()}
    shape, costs = stack_costs(tiles, given, ways, runs)
    return {"shape": shape, "stitch": costs.pop("stitch"), "ways": costs}


def levelling(quick: bool) -> dict[str, object]:
    """Measure the errors by size and speckle, and the cost."""
    seeds = SEEDS[:1] if quick else SEEDS
    sizes = SIZES[:1] if quick else SIZES
    rows = [row(size, looks, seeds) for size in sizes for looks in LOOKS]
    return {"rows": rows, "cost": cost(2, 1) if quick else cost(TILES, RUNS)}
