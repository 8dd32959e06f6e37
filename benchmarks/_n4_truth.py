"""N4 on a phantom's volume: its modes and levels against the truth, and the picture of docs/n4.md.

Everything runs by the commands in ``bin/``.
"""

import json
import logging
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from _common import PROJECT, scratch_folder
from _processes import run

logger = logging.getLogger(__name__)

STEPS, ATTENUATION = 0.3, 2.0

MODES: dict[str, tuple[str, ...]] = {
    "global": (),
    "per_section": ("--mode", "per_section"),
    "two_pass": ("--mode", "two_pass"),
    "global, sections matched": ("--histogram-matching", "section"),
    "global, planes matched": ("--histogram-matching", "plane"),
    "global, gain along z": ("--z-profile-gain",),
    **{
        f"{mode}, sections matched, gain along z": (
            *("--mode", mode, "--histogram-matching", "section"),
            "--z-profile-gain",
        )
        for mode in ("global", "per_section", "two_pass")
    },
}


def command(name: str, *words: str | Path) -> None:
    """Run a command of the workflow on the CPU."""
    run([sys.executable, PROJECT / "bin" / f"{name}.py", *words, "--backend", "cpu"])


def volume_of(folder: Path, *words: str) -> Path:
    """Make a phantom and bring it to a stacked volume."""
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
        *("n4", volume, folder / "corrected.ome.zarr", "--overwrite", "--mask", "tissue"),
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
            *("--sections", str(sections), "--section-steps", str(STEPS)),
            *("--attenuation", str(ATTENUATION)),
        )
        for name, words in MODES.items():
            begun = time.perf_counter()
            figures = corrected(
                folder, volume, "--shrink-factor", "auto", "--iterations", "auto", *words
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
    """Return the flags of a fit with so many levels of 50 iterations."""
    return ("--shrink-factor", "2", "2", "2", "--iterations", *["50"] * levels)


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


def pictures() -> Path:
    """Draw docs/n4.png: a plane and a section through the depth, before and after."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    with tempfile.TemporaryDirectory(dir=scratch_folder()) as scratch:
        folder = Path(scratch) / "phantom"
        corrected(folder, volume_of(folder), *fifty(2))
        with np.load(folder / "n4.npz") as saved:
            shown = dict(saved)
    panels = {"before": "before", "field": "field", "true field": "true_field", "after": "after"}
    for name in ("field", "true_field"):
        # N4 leaves the scale of the field open; the picture shows its variation.
        scale = np.exp(np.mean([np.log(shown[f"{name}_{axis}"]).mean() for axis in "zy"]))
        shown.update({f"{name}_{axis}": shown[f"{name}_{axis}"] / scale for axis in "zy"})
    planes = [[shown[f"{name}_{axis}"] for name in panels.values()] for axis in "zy"]
    grey = (0, float(np.percentile(shown["before_z"], 99.5)))
    fields = np.concatenate(
        [shown[f"{n}_{a}"].ravel() for n in ("field", "true_field") for a in "zy"]
    )
    heights = [plane[0].shape[0] / plane[0].shape[1] for plane in planes]
    figure, axes = plt.subplots(
        2, 4, figsize=(8, 2.1 * sum(heights)), height_ratios=heights, layout="constrained"
    )
    for row, images in zip(axes, planes, strict=True):
        for panel, name, image in zip(row, panels, images, strict=True):
            field = "field" in name
            low, high = (fields.min(), fields.max()) if field else grey
            panel.imshow(image, "viridis" if field else "gray", vmin=low, vmax=high, aspect="equal")
            panel.set_axis_off()
    for panel, name in zip(axes[0], panels, strict=True):
        panel.set_title(name, fontsize=9)
    path = PROJECT / "docs" / "n4.png"
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)
    return path
