"""Part ``planes``: phantoms' tiles that are rolled along z, how many STITCH finds, and its cost."""

from collections.abc import Mapping

import numpy as np
from _stitch_cost import section_cost
from uneven_sections import UnevenParameters, render_tile

from octane.compare.columns import Columns, columns
from octane.layout.mosaic import Position, Tile
from octane.layout.placement import TilePlacement
from octane.processes.phantom.step import Block, Subject, speckle, stage_errors
from octane.processes.stitch.planes import find_depth_shifts, refine_depths

VOXEL = (3.5, 4.0, 4.0)
"""Voxel size, micrometres."""
SIZES = (64, 96, 128)
"""Edges of tiles, voxels."""
PLANES = 32
TILES = (3, 3)
ROLLED = (1, 2, 3, 5, 8)
ODD = (1, 1)
"""Tile that is rolled along z."""
LOOKS = (1, 4, 16, 0)
"""Independent looks in the speckle of a voxel; 0 for no speckle."""
SEEDS = (1, 2, 3, 4, 5)
WATER = {"surface": 25, "surface_jitter": 10, "tilt": 3}
"""Water above the tissue: depth of the surface in micrometres, its tilt in degrees."""
ERRORS = {"position_error": 10}
"""Errors of the stage, micrometres, in further good phantoms with water."""
RUNS = 5

Tiles = Mapping[Tile, Block]


def phantom(size: int, seed: int, **given: float) -> UnevenParameters:
    """Return a subject of one section, which has no speckle yet."""
    made = {
        "sections": 1,
        "tiles": TILES,
        "tile_shape": (PLANES, size, size),
        "voxel_size": VOXEL,
        "section_thickness": PLANES * VOXEL[0],
        "speckle_looks": 0,
        "seed": seed,
    }
    return UnevenParameters.model_validate({**made, **given})


def rendered(p: UnevenParameters) -> tuple[Tiles, dict[Tile, Position]]:
    """Return the tiles without speckle, and the nominal indices of their first voxels."""
    subject = Subject.of(p)
    places = {
        (row, column): (row * subject.pitch[0], column * subject.pitch[1])
        for row, column in np.ndindex(*p.tiles)
    }
    errors = stage_errors(p, 0, [*places])
    depth, *full = p.tile_shape
    tiles = {}
    for tile, (y, x) in places.items():
        ends = zip(tile, p.tiles, full, subject.edge_tile, strict=True)
        shape = (depth, *(last if own == n - 1 else edge for own, n, edge, last in ends))
        tiles[tile] = render_tile(p, 0, tile, shape, (y + errors[tile][0], x + errors[tile][1]))
    return tiles, {tile: (y / VOXEL[1], x / VOXEL[2]) for tile, (y, x) in places.items()}


def profiled(p: UnevenParameters, tiles: Tiles, looks: int) -> dict[Tile, Columns]:
    """Return the columns of tiles with speckle."""
    if not looks:
        return {tile: columns(voxels) for tile, voxels in tiles.items()}
    return {
        tile: columns(voxels * speckle(looks, voxels.shape, [p.seed, 0, *tile]))
        for tile, voxels in tiles.items()
    }


def rows(size: int, seeds: tuple[int, ...], water: bool) -> list[dict[str, object]]:
    """Count rolled tiles that are found, and false alarms, by looks."""
    given = WATER if water else {}
    counted: dict[int, dict] = {
        looks: {
            **{name: dict.fromkeys(ROLLED, 0) for name in ("found", "exact", "near")},
            "others": 0,
            "alarms": 0,
            **dict.fromkeys(("right", "nearer", "wrong", "wrong_good"), 0),
        }
        for looks in LOOKS
    }
    for seed in seeds:
        good = [phantom(size, seed, **given), *([phantom(size, seed, **given, **ERRORS)] * water)]
        # Rendered once for all looks.
        seen = [rendered(p) for p in good]
        for looks, counts in counted.items():
            profiles = [profiled(p, tiles, looks) for p, (tiles, _) in zip(good, seen, strict=True)]
            for own, (_, starts) in zip(profiles, seen, strict=True):
                counts["alarms"] += len(find_depth_shifts(own, starts, ()))
                counts["wrong_good"] += len(refine_depths(own, starts, (), {})[0])
            for planes in ROLLED:
                own = {**profiles[0], ODD: np.roll(profiles[0][ODD], planes, axis=0)}
                found = find_depth_shifts(own, seen[0][1], ())
                depths, _ = refine_depths(own, seen[0][1], (), {})
                # Rolled deeper, a tile lies right if it is moved higher.
                left = abs(depths.get(ODD, 0) + planes)
                counts["right"] += left == 0
                counts["nearer"] += 0 < left < planes
                counts["wrong"] += (left > planes) + len(depths.keys() - {ODD})
                counts["others"] += len(found.keys() - {ODD})
                if ODD in found:
                    # Rolled deeper, a tile fits higher.
                    apart = abs(found[ODD] + planes)
                    counts["found"][planes] += 1
                    counts["exact"][planes] += apart == 0
                    counts["near"][planes] += apart == 1
    of = {"of": len(seeds), "good": len(seeds) * (1 + water)}
    return [
        {"tile": size, "looks": looks, "water": water, **of, **counts}
        for looks, counts in counted.items()
    ]


def cost(tiles: int, runs: int) -> dict[str, object]:
    """Measure the comparison along z within STITCH of a section."""

    def compare(profiles: Mapping[Tile, Columns], placement: TilePlacement) -> None:
        starts = {tile: (y.shift, x.shift) for tile, (y, x) in placement.places.items()}
        find_depth_shifts(profiles, starts, ())

    return section_cost(tiles, runs, "planes", compare)


def planes(quick: bool) -> dict[str, object]:
    """Count what is found by size and speckle, with water and without, and measure the cost."""
    found = [
        own
        for water in (True, False)
        for size in (SIZES[:1] if quick else SIZES)
        for own in rows(size, SEEDS[:1] if quick else SEEDS, water)
    ]
    return {"rows": found, "cost": cost(2, 1) if quick else cost(3, RUNS)}
