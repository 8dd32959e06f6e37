"""Speed of N4 against SimpleITK and n4ax on the same cores; memory of the command with a limit."""

import json
import logging
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import zarr
from _common import PROJECT, cores, scratch_folder
from _n4_agreement import MASKS, compare, tissue_volume
from _n4_peers import n4ax, simpleitk
from _processes import run
from _timing import timed

from octane.processes.n4 import fit as n4

logger = logging.getLogger(__name__)

LIMIT, LIMIT_BYTES = "2GB", 2 * 10**9
SHAPES = ((256, 512, 1024), (256, 1024, 1024), (512, 1024, 1536), (1024, 1536, 2048))
"""Multiples of a shard: 0.5, 1, 3 and 13 GB."""

CHUNK, SHARD = 128, 256

RUNS = 7
"""Runs of octane after the first; SimpleITK, whose runs take tens of seconds, runs once."""


@dataclass(frozen=True)
class Case:
    """A volume at full resolution and its options; sequences in z, y, x.

    The threshold is 0, so that all programs do every iteration.
    """

    shape: tuple[int, int, int]
    shrink: int
    iterations: tuple[int, ...] = (40, 40, 40)
    mask: str = "none"
    threshold: float = 0.0
    quick: bool = False


CASES = {
    "128x256x256": Case((128, 256, 256), 4, quick=True),
    "128x256x256, masked": Case((128, 256, 256), 4, mask="Otsu", quick=True),
    "128x256x256, ITK's defaults": Case(
        (128, 256, 256), 4, iterations=(50, 50, 50, 50), threshold=1e-3
    ),
    "64x128x128": Case((64, 128, 128), 2, quick=True),
    "96x200x180, masked": Case((96, 200, 180), 3, mask="Otsu"),
    "48x96x96": Case((48, 96, 96), 1, iterations=(20, 20)),
    "256x512x512": Case((256, 512, 512), 4),
}


def speed(quick: bool, n4ax_python: Path | None) -> dict[str, object]:
    """Time all cases, or the quick ones."""
    chosen = {name: case for name, case in CASES.items() if case.quick or not quick}
    cases = []
    for number, (name, case) in enumerate(chosen.items(), 1):
        figures = run_case(case, n4ax_python)
        cases.append({"name": name, **figures})
        logger.info(
            "speed %d of %d, %s: %.3f s, SimpleITK %.1f s, %.0f times",
            number,
            len(chosen),
            name,
            figures["octane"]["median"],
            figures["simpleitk"]["total"],
            figures["ratio"],
        )
    return {"cases": cases}


def run_case(case: Case, n4ax_python: Path | None) -> dict:
    """Time one case."""
    volume = tissue_volume(case.shape, extent=(0.95, 0.9, 0.9))
    mask = MASKS[case.mask](volume)
    shrink = (case.shrink,) * 3
    keep = n4.shrink_slices(volume.shape, shrink)
    shrunk = volume[keep]
    small_mask = None if mask is None else mask[keep]
    included = shrunk.size if small_mask is None else int(small_mask.sum())
    (corrected, fit), octane = timed(
        lambda: n4.n4_bias_field_correction(
            volume,
            mask,
            shrink_factor=shrink,
            iterations=case.iterations,
            convergence_threshold=case.threshold,
            workers=cores(),
        ),
        RUNS,
    )
    done = [level.iterations for level in fit.levels]

    def fit_alone(workers: int) -> dict[str, float]:
        _, seconds = timed(
            lambda: n4.fit_bias_field(
                shrunk,
                small_mask,
                iterations=case.iterations,
                convergence_threshold=case.threshold,
                workers=workers,
            ),
            RUNS,
        )
        per_voxel = seconds["median"] / included / sum(done) * 1e9
        return {**seconds, "ns_per_voxel_and_iteration": per_voxel}

    fits = {str(workers): fit_alone(workers) for workers in (1, 2)}
    itk = simpleitk(
        volume,
        mask,
        shrink=shrink,
        iterations=case.iterations,
        threshold=case.threshold,
        threads=cores(),
    )
    fitted = n4.log_field(fit, shrunk.shape)
    figures = {
        "shape": list(case.shape),
        "shrink": case.shrink,
        "mask": case.mask,
        "included": included,
        "included_fraction": included / shrunk.size,
        "threshold": case.threshold,
        "iterations": done,
        "octane": octane,
        "octane_fit": fits,
        "simpleitk": itk.seconds,
        "simpleitk_iterations": itk.iterations,
        "simpleitk_ns_per_voxel_and_iteration": itk.seconds["fit"]
        / included
        / sum(itk.iterations)
        * 1e9,
        "ratio": itk.seconds["total"] / octane["median"],
        "corrected": {
            "median": float(np.median(error := np.abs(corrected / itk.corrected - 1))),
            "max": float(error.max()),
        },
        "fit_against_simpleitk": compare(fitted, itk.fitted_field),
    }
    if n4ax_python is not None:
        with tempfile.TemporaryDirectory(dir=scratch_folder()) as folder:
            log_field, peer = n4ax(n4ax_python, Path(folder), shrunk, small_mask, done)
        # Like its authors, ignore the global scale, which N4 does not determine.
        shift = np.mean(log_field - itk.fitted_field, dtype=np.float64)
        against = compare(log_field - np.float32(shift), itk.fitted_field)
        figures["n4ax"] = {**peer, "fit_against_simpleitk_but_for_scale": against}
    return figures


def memory(quick: bool) -> dict[str, object]:
    """Correct volumes of growing size with the command, with the same memory limit."""
    cases = []
    for shape in SHAPES[:2] if quick else SHAPES:
        with tempfile.TemporaryDirectory(dir=scratch_folder()) as folder:
            cases.append(one_volume(Path(folder), shape))
        logger.info("memory, %s", cases[-1])
    return {
        "limit": LIMIT,
        "limit_bytes": LIMIT_BYTES,
        "limited_by": "RLIMIT_DATA",
        "cases": cases,
    }


def one_volume(folder: Path, shape: tuple[int, int, int]) -> dict[str, object]:
    """Correct one volume with the command."""
    source, record = folder / "noise.ome.zarr", folder / "n4.json"
    write_noise(source, shape)
    command = [
        *(sys.executable, PROJECT / "bin" / "n4.py", source, folder / "corrected.ome.zarr"),
        *("--n4_shrink_factor", "auto", "--memory", LIMIT, "--workers", str(cores())),
        *("--backend", "cpu", "--metrics", record),
    ]
    found = run(command, limit=LIMIT_BYTES)
    made = json.loads(record.read_text(encoding="utf-8"))
    predicted = made["figures"]["predicted_memory_bytes"]
    return {
        "shape": list(shape),
        "bytes": sum(f.stat().st_size for f in source.rglob("*") if f.is_file()),
        "fit_shape": made["figures"]["shrunk_shape"],
        "iterations": [level["iterations"] for level in made["figures"]["levels"]],
        "peak_bytes": found.peak_bytes,
        "predicted_bytes": predicted,
        "peak_over_predicted": found.peak_bytes / predicted,
        "seconds": found.seconds,
        "ns_per_voxel": found.seconds / float(np.prod(shape)) * 1e9,
        "stages": made["seconds"],
    }


def write_noise(path: Path, shape: tuple[int, int, int]) -> None:
    """Write noise under a smooth bias as uncompressed OME-Zarr, as large on disk as in memory."""
    noise = np.random.default_rng(0).normal(100, 10, (SHARD,) * 3).astype(np.float32)
    ramps = [np.exp(np.linspace(-0.2, 0.2, n, dtype=np.float32)) for n in shape]
    group = zarr.open_group(path, mode="w", zarr_format=3)
    group.attrs["ome"] = {
        "version": "0.5",
        "multiscales": [
            {
                "axes": [{"name": n, "type": "space", "unit": "micrometer"} for n in "zyx"],
                "datasets": [
                    {
                        "path": "0",
                        "coordinateTransformations": [{"type": "scale", "scale": [10.0] * 3}],
                    }
                ],
            }
        ],
    }
    array = group.create_array(
        "0",
        shape=shape,
        chunks=(CHUNK,) * 3,
        shards=tuple(SHARD if n > CHUNK else CHUNK for n in shape),
        dtype=np.float32,
        compressors=None,
    )
    for corner in np.ndindex(*(-(-n // SHARD) for n in shape)):
        region = tuple(slice(c * SHARD, (c + 1) * SHARD) for c in corner)
        bias = np.einsum("i,j,k", *(r[part] for r, part in zip(ramps, region, strict=True)))
        array[region] = noise[tuple(slice(n) for n in bias.shape)] * bias
