"""N4 on a phantom's volume: its modes and levels against the truth.

All steps run as commands in ``bin/``.
"""

import json
import logging
import sys
import tempfile
import time
from pathlib import Path

from _common import PROJECT, scratch_folder
from _processes import run

logger = logging.getLogger(__name__)

STEPS, ATTENUATION = 0.3, 2.0

MODES: dict[str, tuple[str, ...]] = {
    "global": (),
    "per_section": ("--n4_mode", "per_section"),
    "two_pass": ("--n4_mode", "two_pass"),
    "global, sections matched": ("--n4_histogram_matching", "section"),
    "global, planes matched": ("--n4_histogram_matching", "plane"),
    "global, gain along z": ("--n4_z_profile_gain",),
    **{
        f"{mode}, sections matched, gain along z": (
            *("--n4_mode", mode, "--n4_histogram_matching", "section"),
            "--n4_z_profile_gain",
        )
        for mode in ("global", "per_section", "two_pass")
    },
}


def command(name: str, *words: str | Path) -> None:
    """Run a command of the workflow on the CPU."""
    run([sys.executable, PROJECT / "bin" / f"{name}.py", *words, "--backend", "cpu"])


def volume_of(folder: Path, *words: str) -> Path:
    """Make a phantom and process it up to a stacked volume."""
    command("phantom", folder, *words)
    sections = []
    for mosaic in sorted((folder / "mosaics").glob("*.ome.zarr")):
        resampled, section = folder / "resampled" / mosaic.name, folder / "sections" / mosaic.name
        command("resample", mosaic, resampled, "--resolution", "10")
        command("stitch", resampled, section)
        sections.append(section)
    volume = folder / "volume.ome.zarr"
    command("stack", volume, *sections)
    return volume


def corrected(folder: Path, volume: Path, *words: str) -> dict:
    """Correct a phantom's volume and return the figures of the record."""
    record = folder / "n4.json"
    command(
        *("n4", volume, folder / "corrected.ome.zarr", "--overwrite", "--n4_mask", "tissue"),
        *("--truth", folder / "truth", "--metrics", record, "--preview", folder / "n4.npz"),
        *words,
    )
    return json.loads(record.read_text(encoding="utf-8"))["figures"]


def modes(quick: bool) -> dict[str, object]:
    """Correct one subject in every mode, with derived meshes and shrink factors."""
    sections = 2 if quick else 6
    cases = {}
    with tempfile.TemporaryDirectory(dir=scratch_folder()) as scratch:
        folder = Path(scratch) / "phantom"
        volume = volume_of(
            folder,
            *("--sections", str(sections), "--section_steps", str(STEPS)),
            *("--attenuation", str(ATTENUATION)),
        )
        for name, words in MODES.items():
            begun = time.perf_counter()
            figures = corrected(
                folder, volume, "--n4_shrink_factor", "auto", "--n4_iterations", "auto", *words
            )
            cases[name] = {"truth": figures["truth"], "seconds": time.perf_counter() - begun}
            logger.info("mode %s: %s", name, figures["truth"])
    return {
        "sections": sections,
        "section_steps": STEPS,
        "attenuation_per_mm": ATTENUATION,
        "cases": cases,
    }


def fifty(levels: int) -> tuple[str, ...]:
    """Return the flags of a fit with ``levels`` levels of 50 iterations."""
    return ("--n4_shrink_factor", "2", "2", "2", "--n4_iterations", *["50"] * levels)


def levels() -> dict[str, object]:
    """Correct the phantom of ``make demo`` with one, two and three levels."""
    found: dict[str, object] = {}
    with tempfile.TemporaryDirectory(dir=scratch_folder()) as scratch:
        folder = Path(scratch) / "phantom"
        volume = volume_of(folder)
        for count in (1, 2, 3):
            figures = corrected(folder, volume, *fifty(count))
            found[str(count)] = {
                "truth": figures["truth"],
                "cv_before": figures["cv_before"],
                "cv_after": figures["cv_after"],
                "iterations": [level["iterations"] for level in figures["levels"]],
            }
    return {"n4_by_fitting_levels": found}
