"""Part ``sound``: sections of phantoms that STACK may move, and whether they then lie better."""

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np
import numpy.typing as npt
from _common import scratch_folder
from _unstated_run import call

from octane.core.geometry import Grid, vector
from octane.processes.phantom.parameters import PhantomParameters
from octane.processes.phantom.step import displacements, render_tile
from octane.processes.stack import command as stack
from octane.processes.stack.layout.displacement import IN_PLACE, Displacement
from octane.processes.stack.record import MEASURED, MEDIAN, StackFigures
from octane.store.stated import Attributes
from octane.store.writer import Level, create_image

SOUND, DISPLACED = 100, 50
"""Numbers of phantoms."""
WORSE = 0.25
"""By how much neighbours may lie farther apart than imaged, voxels."""
SHARED = 3
"""Planes of the next section that a section shows, where depth is shared."""


@dataclass(frozen=True)
class Case:
    """A phantom stacked with --stack_align auto.

    ``moved`` counts its sections that were moved. The largest distances of neighbours from where
    they belong are those as ``imaged`` and ``left``, and ``worse`` is by how much one rose; voxels.
    With ``is_measured`` the thickness is measured, otherwise the true one is given; ``is_misled``
    if STACK takes one that is measured more than a plane off, or contradicts the true one.
    """

    seed: int
    is_displaced: bool
    is_shared: bool
    is_measured: bool
    moved: int
    imaged: float
    left: float
    worse: float
    is_misled: bool


def sound(quick: bool) -> dict[str, object]:
    """Stack phantoms of which nothing, or every section, is displaced."""
    counts = (SOUND // 20, DISPLACED // 10) if quick else (SOUND, DISPLACED)
    cases = [
        case
        for is_displaced, count in zip((False, True), counts, strict=True)
        for seed in range(count)
        for case in cases_of(seed, is_displaced=is_displaced)
    ]
    kinds: dict[tuple[bool, bool, bool], list[Case]] = {}
    for case in cases:
        key = (case.is_measured, case.is_displaced, not case.is_shared)
        kinds.setdefault(key, []).append(case)
    rows = [
        {
            "measured": kind[0],
            "displaced": kind[1],
            "shared": not kind[2],
            "phantoms": len(own),
            "moved": sum(case.moved > 0 for case in own),
            "moved_seeds": [] if kind[1] else [case.seed for case in own if case.moved],
            "worse_seeds": [case.seed for case in own if case.worse > WORSE],
            "misled_seeds": [case.seed for case in own if case.is_misled],
            "imaged": round(max(case.imaged for case in own), 3),
            "left": round(max(case.left for case in own), 3),
            "left_median": round(median(case.left for case in own), 3),
        }
        for kind, own in sorted(kinds.items())
    ]
    return {"rows": rows}


def phantom(seed: int, *, is_displaced: bool) -> tuple[PhantomParameters, bool]:
    """Draw a phantom, and whether its sections show planes of the next one."""
    rng = np.random.default_rng(seed)
    size = int(rng.choice([96, 128, 192, 256]))
    planes, is_shared = int(rng.choice([6, 10, 16])), bool(rng.integers(2))
    deep, wide = (float(rng.choice(sizes)) for sizes in ((5, 10, 20), (5, 10)))
    most = float(rng.choice([5, 20, 40])) if is_displaced else 0.0
    given = {
        "tiles": (1, 1),
        "edge_fraction": 0,
        "tile_shape": (planes + SHARED * is_shared, size, int(size * rng.choice([1, 1.5]))),
        "voxel_size": (deep, wide, wide),
        "section_thickness": deep * planes,
        "sections": int(rng.choice([3, 5, 8])),
        "speckle_looks": float(rng.choice([1, 4, 16])),
        "attenuation": float(rng.choice([0, 1, 3])),
        "section_steps": float(rng.choice([0, 0.3])),
        "shading": float(rng.choice([0, 0.3])),
        "seed": seed,
        "shift": most,
        "rotation": float(rng.choice([0, 1])) if is_displaced else 0.0,
    }
    return PhantomParameters.model_validate(given), is_shared


def cases_of(seed: int, *, is_displaced: bool) -> list[Case]:
    """Stack a phantom with its thickness given and measured, and compare it with the truth."""
    p, is_shared = phantom(seed, is_displaced=is_displaced)
    cases = []
    with tempfile.TemporaryDirectory(dir=scratch_folder()) as scratch:
        written = _sections(p, Path(scratch))
        for is_measured in (False, True):
            record = Path(scratch) / "record.json"
            thickness = "auto" if is_measured else p.section_thickness
            flags = ("--stack_align", "auto", "--section_thickness", thickness)
            output = Path(scratch) / f"volume_{thickness}.ome.zarr"
            call(stack.main, "stack", output, *written, *flags, "--metrics", record)
            found = StackFigures.model_validate(json.loads(record.read_text())["figures"])
            kind = (seed, is_displaced, is_shared, is_measured)
            moved = sum(own.moved for own in found.sections)
            cases.append(Case(*kind, moved, *_errors(p, found), _is_misled(p, found)))
    return cases


def _errors(p: PhantomParameters, found: StackFigures) -> tuple[float, float, float]:
    """Distances of neighbours as imaged and in the volume, and the largest rise."""
    undone = [
        Displacement(*(own.shift or (0.0, 0.0)), own.rotation or 0.0) if own.moved else IN_PLACE
        for own in found.sections
    ]
    true = displacements(p)
    imaged, left = _apart(p, true, [IN_PLACE] * len(true)), _apart(p, true, undone)
    return float(imaged.max()), float(left.max()), float((left - imaged).max())


def _is_misled(p: PhantomParameters, found: StackFigures) -> bool:
    plane, distance = p.voxel_size[0], found.distance
    taken = [s.thickness or 0.0 for s in found.sections if s.thickness_from in (MEASURED, MEDIAN)]
    is_off = any(abs(size - p.section_thickness) > plane for size in taken)
    return is_off or (distance is not None and distance.differs(plane))


def _sections(p: PhantomParameters, folder: Path) -> list[Path]:
    grid = Grid.covering(
        (0, 0, 0),
        vector(*(n * s for n, s in zip(p.tile_shape, p.voxel_size, strict=True))),
        vector(*p.voxel_size),
    )
    paths = []
    for k in range(p.sections):
        voxels = render_tile(p, k, (0, 0), p.tile_shape, (0, 0))
        paths.append(folder / f"section_{k + 1:02d}.ome.zarr")
        stated: Attributes = {"kind": "section", "section": {"number": k + 1}}
        level = Level.volume(grid)
        with create_image(paths[-1], [level], voxels.dtype, attributes=stated) as (writer,):
            writer[tuple(slice(0, n) for n in voxels.shape)] = voxels
    return paths


def _apart(
    p: PhantomParameters, true: Sequence[Displacement], undone: Sequence[Displacement]
) -> npt.NDArray[np.float64]:
    """Largest distance of a place in two neighbours, of all neighbours; voxels."""
    height, width = (n * s for n, s in zip(p.tile_shape[1:], p.voxel_size[1:], strict=True))
    middle, part = (height / 2, width / 2), np.array([0, 0.5, 1])
    y, x = (place.ravel() for place in np.meshgrid(part * height, part * width))
    seen = [
        np.stack(back.undo(*own.apply(y, x, middle), middle))
        for own, back in zip(true, undone, strict=True)
    ]
    apart = [np.hypot(*(b - a)).max() for a, b in pairwise(seen)]
    return np.array(apart) / p.voxel_size[1]
