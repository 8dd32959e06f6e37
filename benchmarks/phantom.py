"""How well the steps recover a phantom's truth: seams, geometry and bias field.

Writes benchmarks/results/phantom.json. ``--quick`` changes nothing: it takes some ten seconds.
"""

import logging
import tempfile
import time
from pathlib import Path

import numpy as np
from _common import save, scratch_folder
from _demo import corrected, volume_of

from octane.config.params import PhantomParameters, StitchParameters
from octane.store.image import open_image


def error_against_truth(folder: Path, volume: Path) -> dict[str, float]:
    """Relative error of a volume without speckle, shading and attenuation against its truth."""
    whole = (slice(None),) * 3
    found, tissue, bias = (
        np.asarray(open_image(path).array[whole], np.float64)
        for path in (volume, folder / "truth/tissue.ome.zarr", folder / "truth/bias.ome.zarr")
    )
    true = tissue * bias
    error = (found - true) / true.max()
    return {"rms": float(np.sqrt((error**2).mean())), "max": float(np.abs(error).max())}


def main() -> None:
    """Run all cases and write the result."""
    logging.basicConfig(level=logging.WARNING)
    with tempfile.TemporaryDirectory(dir=scratch_folder()) as scratch:
        start = time.perf_counter()
        clean = Path(scratch) / "clean"
        plain = PhantomParameters(sections=2, speckle_looks=0, shading=0, attenuation=0)
        geometry = error_against_truth(clean, volume_of(clean, plain, StitchParameters()))
        demo = Path(scratch) / "demo"
        volume = volume_of(demo, PhantomParameters(), StitchParameters())
        levels: dict[str, object] = {}
        for count in (1, 2, 3):
            figures = corrected(demo, volume, (50,) * count).figures
            levels[str(count)] = {
                "truth": figures["truth"],
                "cv_before": figures["cv_before"],
                "cv_after": figures["cv_after"],
                "iterations": [level["iterations"] for level in figures["levels"]],  # ty: ignore
            }
        save(
            "phantom",
            {
                "error_of_clean_volume_against_truth": geometry,
                "n4_by_fitting_levels": levels,
                "seconds": time.perf_counter() - start,
            },
        )


if __name__ == "__main__":
    main()
