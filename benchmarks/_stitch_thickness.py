"""Part ``thickness``: errors of measured section thicknesses on phantoms, and their cost."""

import time
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from _stitch_cost import stack_costs
from uneven_sections import UnevenParameters, render_tile, thicknesses

from octane.compare.columns import columns
from octane.processes.phantom.step import speckle
from octane.processes.stack.shared_depth import PLANE_EDGE
from octane.processes.stack.thickness import FEWEST_PLANES, MIN_CHANGE, Distance, measure_distance

SIZES = (128, 256, 512)
"""Heights of sections in voxels of 10 micrometres; widths are 1.5 times as large."""
LOOKS = (1, 4, 16, 0)
"""Independent looks in the speckle of a voxel; 0 for no speckle."""
SEEDS = (1, 2, 3, 4, 5)
PLANES = 16
"""Stated thickness of a section; half as much is imaged below it."""
RUNS = 3

Section = npt.NDArray[np.float32]


def phantom(size: int, seed: int, **given: object) -> UnevenParameters:
    """Return a subject of four sections, 3 planes thinner or thicker than stated at most."""
    made = {
        "tiles": (1, 1),
        "edge_fraction": 0,
        "tile_shape": (3 * PLANES // 2, size, 3 * size // 2),
        "voxel_size": 10,
        "section_thickness": 10 * PLANES,
        "thickness_jitter": 30,
        "attenuation": 1,
        "scattering": 1,
        "section_steps": 0.3,
        "speckle_looks": 0,
        "seed": seed,
    }
    return UnevenParameters.model_validate({**made, **given})


def measured(
    sections: list[Section], p: UnevenParameters, looks: float
) -> list[tuple[Distance, float, float]]:
    """Return each pair's distance, its error in planes and the CPU seconds that it took."""
    step = -(-max(p.tile_shape) // PLANE_EDGE)
    seen = [
        columns(own * speckle(looks, own.shape, [p.seed, k]) if looks else own, step)
        for k, own in enumerate(sections)
    ]
    found = []
    for (upper, lower), true in zip(pairwise(seen), thicknesses(p), strict=False):
        start = time.process_time()
        deepest = min(3 * PLANES // 2, len(upper) - FEWEST_PLANES)
        own = measure_distance(upper, lower, range(PLANES // 2, deepest + 1))
        seconds = time.process_time() - start
        found.append((own, own.planes - true / p.voxel_size[0], seconds))
    return found


def rows(name: str, cases: list[UnevenParameters], looks: tuple[int, ...]) -> list[dict]:
    """Measure the same sections with each amount of speckle."""
    found: dict[int, list[tuple[Distance, float, float]]] = {}
    for p in cases:
        sections = [render_tile(p, k, (0, 0), p.tile_shape, (0, 0)) for k in range(p.sections)]
        for own in looks:
            found.setdefault(own, []).extend(measured(sections, p, own))
    table = []
    for own, pairs in found.items():
        errors = [abs(error) for one, error, _ in pairs if not one.problem]
        away = [one for one, _, _ in pairs if abs(one.planes - PLANES) >= max(one.std, MIN_CHANGE)]
        table.append({
            "name": f"{name}, {own} looks",
            "pairs": len(pairs),
            "measured": len(errors),
            "error_95": round(float(np.percentile(errors, 95)), 3) if errors else None,
            "largest": round(max(errors), 3) if errors else None,
            "replaced": sum(not one.problem for one in away),
            "seconds": round(sum(seconds for *_, seconds in pairs) / len(pairs), 3),
        })  # fmt: skip
    return table


def cost(tiles: int, runs: int) -> dict[str, object]:
    """Measure STITCH of a subject's sections, and STACK with and without thickness."""
    ways = {"stack": [], "auto": ["--section_thickness", "auto"]}
    _, costs = stack_costs(tiles, {"sections": 4}, ways, runs)
    return {"tiles": tiles, **{name: own["cpu_seconds"] for name, own in costs.items()}}


def thickness(quick: bool) -> dict[str, object]:
    """Measure the errors by size and speckle, special cases, and the cost."""
    seeds, sizes = (SEEDS[:1], SIZES[:1]) if quick else (SEEDS, SIZES)
    table = []
    for size in sizes:
        cases = [phantom(size, seed) for seed in seeds]
        table += rows(f"{size} x {3 * size // 2}", cases, LOOKS)
    size = SIZES[0] if quick else SIZES[1]
    special = {
        "12 sections, in which tissue changes slowly": {"sections": 12},
        "three times as much scattering": {"scattering": 3},
        "as thick as stated": {"thickness_jitter": 0},
        "no shared depth": {"thickness_jitter": 0, "tile_shape": (PLANES, size, 3 * size // 2)},
    }
    for name, given in special.items():
        cases = [phantom(size, seed, **given) for seed in seeds]
        table += rows(f"{size} x {3 * size // 2}, {name}", cases, (4,))
    return {"rows": table, "cost": cost(2, 1 if quick else RUNS)}
