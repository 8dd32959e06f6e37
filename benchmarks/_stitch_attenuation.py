"""Part ``attenuation``: sections against phantoms' truth, by how the decay along depth is undone.

N4 fits one smooth field to the stacked sections, and the gain is that of ``--n4_z_profile_gain``.
Errors are those of means over blocks of pixels, in which speckle averages out.
"""

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from _common import PROJECT, cores, scratch_folder
from _processes import run
from uneven_sections import UnevenParameters, render_tile

from octane.processes.n4.fit import n4_bias_field_correction
from octane.processes.n4.intensity import z_profile_gain
from octane.processes.phantom.step import SCALE, Subject, tissue
from octane.processes.stitch.attenuation import CompensatedSection, compensate_light

Volume = npt.NDArray[np.float32]

SPACING = 10.0
SIZES = (64, 96, 192)
"""Heights of sections in voxels of 10 micrometres; widths are 1.5 times as large."""
LOOKS = (1, 4, 16, 0)
"""Independent looks in the speckle of a voxel; 0 for no speckle."""
SEEDS = (1, 2, 3, 4, 5)
SECTIONS = 3
DEPTHS = ((150.0, 100.0), (300.0, 200.0), (500.0, 200.0))
"""Imaged depth and thickness of sections, micrometres."""
SCATTERING = (2.0, 5.0, 10.0)
"""Attenuation coefficients of tissue of reflectivity 1, 1/mm."""
BLOCK = 8
"""Pixels along y and x over which intensities are averaged."""
TISSUE = 0.2
"""Least reflectivity of tissue."""
NOISE, NOISE_LOOKS = 0.05, 4
"""Mean of the noise, as reflectivity, and its independent looks."""
FOCUS, RAYLEIGH = 100.0, 150.0
"""Depth and length of the focus, micrometres."""
TILES, RUNS = 3, 3
"""Tiles along y and x, and runs, in the measurement of the cost."""


class Case(NamedTuple):
    """Sections to compare, and how light departs from the model, if it does."""

    name: str
    depth: float
    thickness: float
    given: dict[str, float]
    seen: Callable[[Volume, int], Volume] = lambda section, _: section
    root: bool = False
    """Whether the truth is that of square roots, as of amplitudes."""


def noisy(section: Volume, seed: int) -> Volume:
    """Add noise and subtract its mean."""
    mean = NOISE * SCALE
    noise = np.random.default_rng(seed).gamma(NOISE_LOOKS, mean / NOISE_LOOKS, section.shape)
    return (section + noise - mean).astype(np.float32)


def focused(section: Volume, _: int) -> Volume:
    """Dim what lies away from the focus."""
    z = (np.arange(len(section)) + 0.5) * SPACING
    light = 1 / (1 + ((z - FOCUS) / RAYLEIGH) ** 2)
    return section * light[:, None, None].astype(np.float32)


def cases() -> list[Case]:
    """Return cases in which the model holds, roughly holds, and does not."""
    deep, thick = DEPTHS[1]
    five = {"scattering": 5.0}
    return [
        *(
            Case(f"scattering {s:g} / mm", *own, {"scattering": s})
            for own in DEPTHS
            for s in SCATTERING
        ),
        Case("scattering 5 / mm, all light 2 / mm", deep, thick, {**five, "attenuation": 2}),
        Case("scattering 5 / mm, noise", deep, thick, five, noisy),
        Case("scattering 5 / mm, focus", deep, thick, five, focused),
        Case("scattering 5 / mm, amplitudes", deep, thick, five, lambda s, _: np.sqrt(s), True),
        Case("all light 3 / mm", deep, thick, {"attenuation": 3}),
        Case("no decay", deep, thick, {}),
    ]


def phantom(case: Case, size: int, looks: float, seed: int) -> UnevenParameters:
    """Return a subject whose sections differ from the truth only by what light loses."""
    made = {
        "tiles": (1, 1),
        "edge_fraction": 0,
        "tile_shape": (round(case.depth / SPACING), size, 3 * size // 2),
        "voxel_size": SPACING,
        "section_thickness": case.thickness,
        "sections": SECTIONS,
        "speckle_looks": looks,
        "seed": seed,
        "attenuation": 0,
        "shading": 0,
        "bias": 0,
    }
    return UnevenParameters.model_validate({**made, **case.given})


def stacked(sections: list[Volume], planes: int) -> Volume:
    """Return the planes of each section that STACK keeps."""
    return np.concatenate([section[:planes] for section in sections])


def averaged(volume: npt.NDArray) -> npt.NDArray:
    """Average blocks of pixels of each plane."""
    planes, rows, columns = volume.shape
    rows, columns = rows // BLOCK, columns // BLOCK
    cut = volume[:, : rows * BLOCK, : columns * BLOCK]
    return cut.reshape(planes, rows, BLOCK, columns, BLOCK).mean(axis=(2, 4), dtype=np.float64)


def errors(values: Volume, truth: Volume, planes: int) -> tuple[float, float]:
    """Return the rms of the log ratio to the truth after the best constant, and at borders.

    That at borders is of the step of the ratio from one section's last plane to the next's first.
    """
    inside = averaged(truth > TISSUE) == 1
    ratio = np.full(inside.shape, np.nan)
    means = averaged(values)[inside] / averaged(truth)[inside]
    ratio[inside] = np.log(np.maximum(means, 1e-3 * np.median(means)))
    first = np.arange(planes, len(ratio), planes)
    step = ratio[first] - ratio[first - 1]
    return float(np.nanstd(ratio)), float(np.sqrt(np.nanmean(step**2)))


def ways(
    sections: list[Volume], found: list[CompensatedSection], truth: Volume
) -> dict[str, Volume]:
    """Return the stacked sections, by the way in which the decay is undone."""
    planes = len(truth) // SECTIONS
    mask = truth > TISSUE
    parts = [(k, k + planes) for k in range(0, len(truth), planes)]

    def gained(volume: Volume) -> Volume:
        return volume * z_profile_gain(volume, mask, parts)[:, None, None].astype(np.float32)

    seen = stacked(sections, planes)
    own = stacked([each.section for each in found], planes)
    positive = np.maximum(seen, 1e-3 * np.median(seen[mask]))
    return {
        "none": seen,
        "N4": n4_bias_field_correction(positive, mask, shrink_factor=(1, 4, 4))[0],
        "gain": gained(seen),
        "compensate": own,
        "compensate, gain": gained(own),
    }


def steady(found: list[CompensatedSection]) -> float:
    """Return the part of the light from columns that do not decay."""
    parts = [own.brightness[~own.decaying].sum() / own.brightness.sum() for own in found]
    return float(np.mean(parts))


def row(case: Case, size: int, looks: float, seeds: tuple[int, ...]) -> dict[str, object]:
    """Compare the ways on one kind of sections: medians over seeds."""
    left: dict[str, list[tuple[float, float]]] = {}
    coefficients, still = [], []
    planes = round(case.thickness / SPACING)
    for seed in seeds:
        p = phantom(case, size, looks, seed)
        sections = [
            case.seen(render_tile(p, k, (0, 0), p.tile_shape, (0, 0)), seed)
            for k in range(SECTIONS)
        ]
        lengths = (SECTIONS * planes, *p.tile_shape[1:])
        z, y, x = ((np.arange(n) + 0.5) * SPACING for n in lengths)
        truth = tissue(Subject.of(p), z, y, x)
        found = [compensate_light(section, SPACING) for section in sections]
        still.append(steady(found))
        aim = np.sqrt(truth) if case.root else truth
        for way, volume in ways(sections, found, truth).items():
            left.setdefault(way, []).append(errors(volume, aim, planes))
        if p.scattering and not case.root:
            true = p.scattering * truth + p.attenuation / 2
            inside = averaged(truth > TISSUE) == 1
            coefficient = averaged(stacked([own.coefficient for own in found], planes))
            ratio = coefficient[inside] / averaged(true)[inside]
            coefficients.append([*np.percentile(ratio, (10, 50, 90))])
    return {
        "name": case.name,
        "depth": case.depth,
        "thickness": case.thickness,
        "size": size,
        "looks": looks,
        "ways": {
            way: dict(zip(("error", "border"), np.median(own, axis=0).round(3), strict=True))
            for way, own in left.items()
        },
        "steady": round(median(still), 3),
        "coefficient": np.median(coefficients, axis=0).round(3).tolist() if coefficients else None,
    }


def cost(tiles: int, runs: int) -> dict[str, object]:
    """Measure STITCH of a section with and without the compensation, alternately."""
    found: dict[str, list[tuple[float, int]]] = {}
    words = ["--sections", "1", "--tiles", str(tiles), "--tile_shape", "64", "256", "256"]
    with tempfile.TemporaryDirectory(dir=scratch_folder()) as scratch:
        folder = Path(scratch)
        run([sys.executable, PROJECT / "bin" / "phantom.py", folder / "made", *words])
        (mosaic,) = (folder / "made" / "mosaics").iterdir()
        for _ in range(runs):
            for way in ("none", "compensate"):
                more = ["--stitch_attenuation", way, "--overwrite", "--workers", str(cores())]
                pair = (mosaic, folder / "section.ome.zarr")
                done = run([sys.executable, PROJECT / "bin" / "stitch.py", *pair, *more])
                found.setdefault(way, []).append((done.cpu_seconds, done.peak_bytes))
    return {
        "bytes": tiles**2 * 64 * 256**2 * 4,
        **{
            way: {
                "cpu_seconds": round(median(seconds for seconds, _ in own), 2),
                "peak_bytes": max(peak for _, peak in own),
            }
            for way, own in found.items()
        },
    }


def attenuation(quick: bool) -> dict[str, object]:
    """Measure the errors by case, size and speckle, and the cost."""
    seeds = SEEDS[:1] if quick else SEEDS
    middle, ideal = SIZES[1], Case("scattering 5 / mm", *DEPTHS[1], {"scattering": 5.0})
    rows = [row(case, SIZES[0] if quick else middle, 4, seeds) for case in cases()]
    rows += [
        row(ideal, size, looks, seeds)
        for size in (SIZES[:1] if quick else SIZES)
        for looks in LOOKS
        if (size, looks) != (middle, 4)
    ]
    return {"rows": rows, "cost": cost(1 if quick else TILES, 1 if quick else RUNS)}
