"""Part ``verdict``: simulated faults in phantoms, and how many of them the checks find."""

import tempfile
from pathlib import Path

from _common import cores, scratch_folder
from made_faults import FAULTS, Fault, judged

from octane.config.parameters import ExecutionParameters

TILES = (64, 128, 256)
"""Edges of tiles, voxels."""
LOOKS = (1, 16, 0)
"""Independent looks in the speckle; 0: no speckle."""
SOUND = Fault(None, None, [], "")
TYPES = ("float32", "uint16")
"""Types of the voxels, in turn by seed."""
SEEDS = (11, 12, 13, 14, 15)
"""Subjects other than those used to choose the limits."""


def verdict(quick: bool) -> dict[str, object]:
    """Check phantoms of each size with each fault, and without one."""
    execution = ExecutionParameters(backend="cpu", workers=cores())
    rows = []
    for tile in TILES[:1] if quick else TILES:
        for looks in LOOKS:
            seeds, jumps = SEEDS[:1] if quick else SEEDS, []
            found, passed = dict.fromkeys(FAULTS, 0), dict.fromkeys(FAULTS, 0)
            false, seams = (dict.fromkeys((*FAULTS, "none"), 0) for _ in range(2))
            for seed in seeds:
                given = {
                    "seed": seed,
                    "speckle_looks": looks,
                    "dtype": TYPES[seed % 2],
                    "tile_shape": (8, tile, tile),
                }
                for fault in false:
                    own = FAULTS.get(fault, SOUND)
                    # A fault's own depth, but tiles of this size.
                    shape = (own.depth, tile, tile)
                    put = own._replace(given={**own.given, "tile_shape": shape})
                    stitching = {"overlap": own.overlap, "check_overlap": "warning"}
                    with tempfile.TemporaryDirectory(dir=scratch_folder()) as scratch:
                        made = judged(Path(scratch), given, execution, own.change, stitching, put)
                    names = own.checks
                    if fault == "none":
                        jumps += [
                            float(check.value.removesuffix(" %"))
                            for check in made
                            if check.name == "Section boundaries"
                        ]
                    warned = {check.name for check in made if check.state == "warning"}
                    false[fault] += bool(
                        {w for w in warned if not w.startswith("Seams")} - {*names}
                    )
                    seams[fault] += any(w.startswith("Seams") for w in warned)
                    if names:
                        found[fault] += warned.issuperset(names)
                        states = {check.state for check in made if check.name in names}
                        passed[fault] += states == {"good"}
            counts = {"found": found, "passed": passed, "other": false, "seams": seams}
            counts["jump"] = max(jumps)
            rows.append({"tile": tile, "looks": looks, "of": len(seeds), **counts})
    return {"rows": rows}
