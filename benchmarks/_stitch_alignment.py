"""Part ``alignment``: errors of displacements against phantoms' truth, and what they cost STACK."""

import json
import subprocess
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import SimpleITK as sitk
from _common import scratch_folder
from _stitch_cost import stack_costs

from octane.processes.phantom.parameters import PhantomParameters
from octane.processes.phantom.step import BACKGROUND, Subject, displacements, render_tile, tissue
from octane.processes.stack.alignment import register_faces, structure_pyramid
from octane.processes.stack.layout.displacement import Displacement

SIZES = (128, 256, 512)
"""Heights of sections in voxels of 10 micrometres; widths are 1.5 times as large."""
LOOKS = (1, 4, 16, 0)
"""Independent looks in the speckle of a voxel; 0 for no speckle."""
SEEDS = (1, 2, 3, 4, 5)
SECTIONS, FACING = 4, 2
"""Sections of a phantom, and the planes of each that its neighbour imaged as well."""
TILES = (3, 6)
"""Tiles of a section along y and x in the measurement of STITCH and STACK."""
RUNS = 3

TORN, FOLDED = 1, 2
"""Indices of the damaged sections."""
FOLD = 0.72
"""Position of the fold, as a fraction of the width."""
FOLD_UM = 60.0
"""Width of tissue hidden under the fold, an equally wide strip of twice the brightness."""
TEAR = (0.3, 0.35, 0.17)
"""Centre (y, x) and radius of the torn tissue, as fractions of the extent."""

Sections = list[npt.NDArray[np.float32]]
Faces = list[tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]]
"""Facing planes of neighbours."""
Found = list[tuple[float, float, float]]
"""Displacement of the second relative to the first: pixels (y, x) and degrees."""

SKIMAGE = """
import json, sys, time
import numpy as np
from skimage.registration import phase_cross_correlation
faces = np.load(sys.argv[1])
start = time.perf_counter()
found = [phase_cross_correlation(b, a, upsample_factor=20)[0].tolist() for a, b in faces]
print(json.dumps([found, time.perf_counter() - start]))
"""


def phantom(size: int, looks: float, seed: int, **given: object) -> PhantomParameters:
    """Return a subject of undamaged sections, displaced by up to 40 um and 1 degree."""
    made = {
        "tiles": (1, 1),
        "edge_fraction": 0,
        "tile_shape": (2 * FACING, size, 3 * size // 2),
        "voxel_size": 10,
        "section_thickness": 10 * FACING,
        "sections": SECTIONS,
        "speckle_looks": looks,
        "seed": seed,
        "shift": 40,
        "rotation": 1,
    }
    return PhantomParameters.model_validate({**made, **given})


def sections_of(p: PhantomParameters) -> Sections:
    """Render the sections as imaged."""
    return [render_tile(p, k, (0, 0), p.tile_shape, (0, 0)) for k in range(p.sections)]


def harmed_sections_of(p: PhantomParameters) -> Sections:
    """Render the sections, one of them torn and one folded."""
    sections, subject, moves = sections_of(p), Subject.of(p), displacements(p)
    _, height, width = subject.extent
    depth, y, x = (
        (np.arange(n) + 0.5) * s for n, s in zip(p.tile_shape, p.voxel_size, strict=True)
    )
    for k in (TORN, FOLDED):
        z = depth + k * p.section_thickness
        own_y, own_x = moves[k].undo(y[:, None], x[None, :], (height / 2, width / 2))
        whole = tissue(subject, z, own_y, own_x)
        if k == TORN:
            apart = np.hypot(own_y / height - TEAR[0], own_x / width - TEAR[1])
            seen = np.where(apart < TEAR[2], np.float32(BACKGROUND), whole)
        else:
            beyond = own_x - FOLD * width
            seen = tissue(subject, z, own_y, np.where(beyond > 0, own_x + FOLD_UM, own_x))
            seen *= np.where((beyond > 0) & (beyond < FOLD_UM), np.float32(2), np.float32(1))
        sections[k] *= seen / whole
    return sections


def facing(
    p: PhantomParameters, imaged: Callable[[PhantomParameters], Sections]
) -> tuple[Faces, Found]:
    """Return the planes in which neighbours show the same tissue, and the true displacements."""
    faces = [
        (one[-FACING:].mean(axis=0), other[:FACING].mean(axis=0))
        for one, other in pairwise(imaged(p))
    ]
    true = []
    for one, other in pairwise(displacements(p)):
        rotation = other.rotation - one.rotation
        back = Displacement(rotation=rotation).turn * complex(one.y, one.x)
        true.append(((other.y - back.real) / 10, (other.x - back.imag) / 10, rotation))
    return faces, true


def octane(faces: Faces) -> Found:
    """Register with octane."""
    levels = [(structure_pyramid(one), structure_pyramid(other)) for one, other in faces]
    return [tuple(register_faces(a, b, 2.0 ** (len(a) - 1), rotate=True)[0]) for a, b in levels]


def itk(faces: Faces) -> Found:
    """Register with SimpleITK: correlation of all pixels at three resolutions."""
    sitk.ProcessObject.SetGlobalDefaultNumberOfThreads(1)
    found: Found = []
    for one, other in faces:
        fixed, moving = (sitk.GetImageFromArray(face) for face in (one, other))
        method = sitk.ImageRegistrationMethod()
        method.SetMetricAsCorrelation()
        method.SetInterpolator(sitk.sitkLinear)
        method.SetShrinkFactorsPerLevel([4, 2, 1])
        method.SetSmoothingSigmasPerLevel([2, 1, 0])
        method.SetOptimizerAsRegularStepGradientDescent(1.0, 1e-4, 200)
        method.SetOptimizerScalesFromPhysicalShift()
        start = sitk.Euler2DTransform([(n - 1) / 2 for n in fixed.GetSize()])
        method.SetInitialTransform(start, inPlace=True)
        method.Execute(fixed, moving)
        angle, x, y = start.GetParameters()
        found.append((y, x, float(np.rad2deg(angle))))
    return found


def peer(python: Path, faces: Faces) -> tuple[Found, float]:
    """Register with scikit-image, which only finds shifts."""
    with tempfile.TemporaryDirectory(dir=scratch_folder()) as folder:
        path = Path(folder) / "faces.npy"
        np.save(path, np.array(faces))
        words = [str(python), "-c", SKIMAGE, str(path)]
        done = subprocess.run(words, check=True, capture_output=True, text=True)
    shifts, seconds = json.loads(done.stdout)
    return [(y, x, 0.0) for y, x in shifts], seconds


def timed(function: Callable[[Faces], Found], faces: Faces) -> tuple[Found, float]:
    """Return a function's result, and its CPU seconds."""
    start = time.process_time()
    return function(faces), time.process_time() - start


def row(
    name: str,
    cases: list[PhantomParameters],
    peers: Path | None,
    imaged: Callable[[PhantomParameters], Sections] = sections_of,
) -> dict[str, object]:
    """Compare the programs on the same faces of the sections as imaged."""
    errors: dict[str, list[tuple[float, float]]] = {}
    seconds: dict[str, float] = {}
    for faces, true in (facing(case, imaged) for case in cases):
        found = {"octane": timed(octane, faces), "SimpleITK": timed(itk, faces)}
        if peers is not None:
            found["scikit-image"] = peer(peers, faces)
        for program, (moves, spent) in found.items():
            seconds[program] = seconds.get(program, 0.0) + spent / len(faces)
            errors.setdefault(program, []).extend(
                (float(np.hypot(m[0] - t[0], m[1] - t[1])), abs(m[2] - t[2]))
                for m, t in zip(moves, true, strict=True)
            )
    programs = {}
    for program, own in errors.items():
        shift, rotation = np.percentile(own, 95, axis=0)
        programs[program] = {
            "shift": round(float(shift), 3),
            "rotation": round(float(rotation), 3),
            "seconds": round(seconds[program] / len(cases), 3),
        }
    return {"name": name, "pairs": len(errors["octane"]), "programs": programs}


def cost(tiles: int, runs: int) -> dict[str, object]:
    """Measure STITCH of a subject's sections, and STACK by kind of alignment."""
    given = {"sections": SECTIONS, "shift": 40, "rotation": 1}
    ways = {way: ["--stack_align", way] for way in ("none", "translation", "rigid")}
    shape, costs = stack_costs(tiles, given, ways, runs)
    return {"shape": shape, "stitch": costs.pop("stitch"), "ways": costs}


def alignment(quick: bool, peers: Path | None) -> dict[str, object]:
    """Measure the errors by size and speckle, and the cost."""
    seeds = SEEDS[:1] if quick else SEEDS
    rows = [
        row(
            f"{size} x {3 * size // 2}, {looks} looks",
            [phantom(size, looks, s) for s in seeds],
            peers,
        )
        for size in (SIZES[:1] if quick else SIZES)
        for looks in LOOKS
    ]
    displaced = [phantom(256, 4, seed) for seed in seeds]
    name = "256 x 384, 4 looks, one folded and one torn"
    rows.append(row(name, displaced, peers, harmed_sections_of))
    good = [phantom(256, 4, seed, shift=0, rotation=0) for seed in seeds]
    rows.append(row("256 x 384, 4 looks, none displaced", good, peers))
    costs = [cost(2, 1)] if quick else [cost(tiles, RUNS) for tiles in TILES]
    return {"rows": rows, "cost": costs}
