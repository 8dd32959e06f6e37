"""How near each mode of N4 comes to a phantom's truth, where sections differ in brightness."""

import logging
import tempfile
import time
from pathlib import Path

from _common import scratch_folder
from _demo import EXECUTION, READING, volume_of

from octane.config.params import N4Parameters, PhantomParameters, StitchParameters
from octane.steps.n4 import correct_bias

__all__ = ["modes"]

logger = logging.getLogger(__name__)

STEPS, ATTENUATION = 0.3, 2.0

MODES: dict[str, dict[str, object]] = {
    "global": {},
    "per_section": {"mode": "per_section"},
    "two_pass": {"mode": "two_pass"},
    "global, sections matched": {"histogram_matching": "section"},
    "global, planes matched": {"histogram_matching": "plane"},
    "global, gain along z": {"z_profile_gain": True},
    "global, sections matched, gain along z": {
        "histogram_matching": "section",
        "z_profile_gain": True,
    },
    "per_section, sections matched, gain along z": {
        "mode": "per_section",
        "histogram_matching": "section",
        "z_profile_gain": True,
    },
    "two_pass, sections matched, gain along z": {
        "mode": "two_pass",
        "histogram_matching": "section",
        "z_profile_gain": True,
    },
}


def modes(quick: bool) -> dict[str, object]:
    """Correct one subject in every mode, with meshes and shrink factors that are derived."""
    start = time.perf_counter()
    subject = PhantomParameters(
        sections=2 if quick else 6, section_steps=STEPS, attenuation=ATTENUATION
    )
    cases = {}
    with tempfile.TemporaryDirectory(dir=scratch_folder()) as scratch:
        folder = Path(scratch)
        volume = volume_of(folder, subject, StitchParameters())
        for name, settings in MODES.items():
            given = {"mask": "tissue", "shrink_factor": "auto", "iterations": "auto", **settings}
            begun = time.perf_counter()
            figures = correct_bias(
                volume,
                folder / "corrected.ome.zarr",
                N4Parameters.model_validate(given),
                READING,
                EXECUTION,
                truth=folder / "truth",
            ).figures
            cases[name] = {
                "settings": settings,
                "truth": figures["truth"],
                "seconds": time.perf_counter() - begun,
            }
            logger.info("mode %s: %s", name, figures["truth"])
    return {
        "sections": subject.sections,
        "section_steps": STEPS,
        "attenuation_per_mm": ATTENUATION,
        "shading": subject.shading,
        "bias": subject.bias,
        "speckle_looks": subject.speckle_looks,
        "cases": cases,
        "seconds": time.perf_counter() - start,
    }
