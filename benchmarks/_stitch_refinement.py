"""Part ``refinement``: how far from the truth STITCH places tiles, by their size and speckle."""

from collections.abc import Mapping

import numpy as np
from _stitch_flat_field import grid_of
from _stitch_planes import rendered
from uneven_sections import UnevenParameters

from octane.compare.correlation import TilePair, neighbours, overlap_shift
from octane.core.geometry import vector
from octane.layout.mosaic import MosaicGrid, Position, Tile
from octane.layout.placement import TilePlacement
from octane.processes.phantom.step import Subject, speckle, stage_errors
from octane.processes.stitch.blending import Projections, overlap
from octane.processes.stitch.refinement import refine_positions
from octane.processes.stitch.registration import solve_positions

VOXEL = (3.5, 4.0, 4.0)
"""Voxel size, micrometres."""
SIZES = (64, 128, 256)
"""Edges of tiles, voxels."""
PLANES = 8
"""Few planes, so that their mean keeps much of the speckle."""
TILES = (3, 3)
ERROR = 10.5
"""Largest error of the stage along an axis, micrometres: 2 px from the truth on average."""
LOOKS = (1, 2, 4, 16, 0)
"""Independent looks in the speckle of a voxel; 0 for no speckle."""
SEEDS = (101, 102, 103, 104, 105)
MAX_SHIFT = 50.0
"""Largest correction, micrometres: STITCH's default."""
WAYS = ("stated", "highest", "refined")


def every_peak(
    grid: MosaicGrid, nominal: Mapping[Tile, Position], seen: Projections
) -> dict[Tile, Position]:
    """Return the places that fit the highest correlation of each overlap, in two passes."""
    pixel, reach = grid.spacing[1], (MAX_SHIFT / grid.spacing[1], MAX_SHIFT / grid.spacing[2])
    places = dict(nominal)
    for _ in range(2):
        placement, pairs = TilePlacement(grid, places), []
        for pair in neighbours([*places]):
            if views := overlap(placement, seen, *pair):
                pairs.append(TilePair(*pair, *overlap_shift(*views, (2 * reach[0], 2 * reach[1]))))
        start = {tile: (y / pixel, x / pixel) for tile, (y, x) in places.items()}
        solved = solve_positions(start, pairs, reach)
        places = {tile: (y * pixel, x * pixel) for tile, (y, x) in solved.items()}
    return places


def wrong(places: Mapping[Tile, Position], true: Mapping[Tile, Position]) -> list[float]:
    """Return the distances of tiles from the truth but for a common one, pixels."""
    off = np.array([np.subtract(places[tile], place) for tile, place in true.items()]) / VOXEL[1]
    return np.hypot(*(off - off.mean(axis=0)).T).tolist()


def section(size: int, seed: int) -> list[tuple[int, dict[str, list[float]], bool]]:
    """Return the errors of one section's tiles in each way, and if it was refined, by looks."""
    p = UnevenParameters.model_validate(
        {
            "sections": 1,
            "tiles": TILES,
            "tile_shape": (PLANES, size, size),
            "voxel_size": VOXEL,
            "section_thickness": PLANES * VOXEL[0],
            "edge_fraction": 0,
            "position_error": ERROR,
            "speckle_looks": 0,
            "seed": seed,
        }
    )
    pitch = Subject.of(p).pitch
    grid = grid_of((PLANES, size, size), TILES, vector(*VOXEL), pitch)
    nominal = grid.positions(pitch)
    errors = stage_errors(p, 0, grid.tiles)
    true = {t: (y + errors[t][0], x + errors[t][1]) for t, (y, x) in nominal.items()}
    tiles, _ = rendered(p)
    found = []
    for looks in LOOKS:
        seen = {
            tile: (voxels * speckle(looks, voxels.shape, [seed, 0, *tile]) if looks else voxels)
            .mean(axis=0)
            .astype(np.float32)
            for tile, voxels in tiles.items()
        }
        refinement = refine_positions(grid, nominal, seen, MAX_SHIFT)
        places = (nominal, every_peak(grid, nominal, seen), refinement.positions)
        off = {name: wrong(own, true) for name, own in zip(WAYS, places, strict=True)}
        found.append((looks, off, not refinement.reason))
    return found


def refinement(quick: bool) -> dict[str, object]:
    """Measure the median and the largest error of all sections' tiles, by size and looks."""
    rows = []
    for size in SIZES[:1] if quick else SIZES:
        seeds = SEEDS[:1] if quick else SEEDS
        for cases in zip(*(section(size, seed) for seed in seeds), strict=True):
            off = {name: np.concatenate([own[name] for _, own, _ in cases]) for name in WAYS}
            figures = {
                name: {"median": float(np.median(own)), "max": float(own.max())}
                for name, own in off.items()
            }
            refined = sum(is_refined for *_, is_refined in cases)
            rows.append(
                {"tile": size, "looks": cases[0][0], "of": len(seeds), "refined": refined}
                | {"error": figures}
            )
    return {"rows": rows}
