"""Part ``gains``: gains of tiles that were put in, as STITCH finds them, and tiles without any."""

from collections.abc import Mapping
from itertools import product

import numpy as np
import numpy.typing as npt
from _stitch_flat_field import LOOKS, SEEDS, left, phantom

from octane.layout.mosaic import Tile
from octane.layout.placement import TilePlacement
from octane.processes.stitch.flat_field import estimate_flat_field
from octane.processes.stitch.gains import (
    MeasuredGains,
    equalise_brightness,
    judge_flat_field,
    measure_gains,
)

RANGE = (0.7, 1.4)
"""Least and largest gain."""
OVERLAPS = (0.15, 0.2)
SHADINGS = (0.0, 0.2, 0.3)
TILT = 0.05
"""Rise of the light from a tile's middle to its edges along y and x, in cases with a tilt."""
TILES = {"tiles": (4, 5), "tile_shape": (24, 128, 128)}

Image = npt.NDArray[np.float32]


def drifting(tiles: Mapping[Tile, Image], seed: int) -> dict[Tile, float]:
    """Gains whose logarithms are uniform, and their geometric mean 1."""
    logs = np.random.default_rng(seed).uniform(*np.log(RANGE), len(tiles))
    return dict(zip(tiles, map(float, np.exp(logs - logs.mean())), strict=True))


def found_in(
    tiles: Mapping[Tile, Image], placement: TilePlacement, shading: float
) -> MeasuredGains:
    """Octane's gains, with those of a flat field if there is shading."""
    found = measure_gains(tiles, placement, with_flat_field=shading > 0)
    if found is None:
        raise RuntimeError("nothing to compare")
    return found


def field_left(tiles: Mapping[Tile, Image], placement: TilePlacement, true: Image) -> float:
    """Root mean square of the shading that an estimated flat field leaves."""
    flat = estimate_flat_field(tiles, placement)
    if flat is None:
        raise RuntimeError("nothing to compare")
    return left(flat.profile, true)[0]


def without_trend(logs: Mapping[Tile, float]) -> npt.NDArray[np.float64]:
    """Logarithms of gains without what looks like a tilt of a flat field."""
    at = np.array([(1, *tile) for tile in logs], float)
    values = np.array([*logs.values()])
    return values - at @ np.linalg.lstsq(at, values, rcond=None)[0]


def case(overlap: float, shading: float, tilt: float, looks: int, seed: int) -> dict[str, float]:
    """Figures of one phantom: with gains, and sound."""
    tiles, placement, true = phantom({**TILES, "overlap": overlap}, looks, seed, shading)
    ramps = (tilt * ((2 * np.arange(n) + 1) / n - 1) for n in true.shape)
    tilted = np.exp(np.add.outer(*ramps)).astype(np.float32)
    tiles, true = {tile: own * tilted for tile, own in tiles.items()}, true * tilted
    gains = drifting(tiles, seed)
    seen = equalise_brightness(tiles, {tile: 1 / gain for tile, gain in gains.items()}, 0.0)
    found, sound = (found_in(own, placement, shading) for own in (seen, tiles))
    errors = {t: float(np.log(found.gains.get(t, 1.0) / gain)) for t, gain in gains.items()}
    evened = equalise_brightness(seen, found.gains, 0.0)
    judged = judge_flat_field(evened, placement)
    changes = (
        [abs(gain - 1) for gain in sound.gains.values()] if sound.held_out.lowers_seams else [0.0]
    )
    return {
        "error": float(np.std([*errors.values()])),
        "without_trend": float(np.std(without_trend(errors))),
        "largest": max(map(abs, errors.values())),
        "helped": float(found.held_out.lowers_seams),
        "before": max(found.held_out.before),
        "after": max(found.held_out.after),
        "flat": field_left(evened, placement, true),
        "flat_alone": field_left(tiles, placement, true),
        "flat_helped": float(judged is not None and judged.lowers_seams),
        "sound_helped": float(sound.held_out.lowers_seams),
        "sound_change": max(changes),
    }


def gains(quick: bool) -> dict[str, object]:
    """Measure the errors of gains and of the flat field; figures of the worst of the seeds.

    ``helped`` figures count seeds. ``sound`` tiles have no gains; ``sound_change`` is the largest
    that is applied to one of them. ``without_trend`` is the error without a trend over rows and
    columns, which overlaps cannot tell from a tilt of the flat field.
    """
    seeds = SEEDS[:1] if quick else SEEDS
    overlaps, shadings = (OVERLAPS[:1], SHADINGS[::2]) if quick else (OVERLAPS, SHADINGS)
    cases = [*product(overlaps, shadings, (0.0,)), (OVERLAPS[-1], SHADINGS[1], TILT)]
    rows = []
    for (overlap, shading, tilt), looks in product(cases, LOOKS):
        every = [case(overlap, shading, tilt, looks, seed) for seed in seeds]
        figures = {
            name: (sum if name.endswith("helped") else max)(own[name] for own in every)
            for name in every[0]
        }
        setting = {"overlap": overlap, "shading": shading, "tilt": tilt, "looks": looks}
        rows.append({**setting, "seeds": len(seeds), **figures})
    return {"rows": rows}
