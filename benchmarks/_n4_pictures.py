"""Before, field and after of the phantom, for docs/n4.md."""

import tempfile
from pathlib import Path

import matplotlib as mpl
import numpy as np
from _common import PROJECT, scratch_folder
from _demo import corrected, volume_of

from octane.config.params import PhantomParameters, StitchParameters

__all__ = ["pictures"]


def pictures() -> Path:
    """Draw docs/n4.png: a plane and a section through the depth of each."""
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    with tempfile.TemporaryDirectory(dir=scratch_folder()) as scratch:
        folder = Path(scratch) / "demo"
        volume = volume_of(folder, PhantomParameters(), StitchParameters())
        shown = corrected(folder, volume, (50, 50)).previews
    panels = {"before": "before", "field": "field", "true field": "true_field", "after": "after"}
    for name in ("field", "true_field"):
        # N4 leaves the field's scale open: shown is how it varies.
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
            low, high = (fields.min(), fields.max()) if "field" in name else grey
            panel.imshow(
                image, "viridis" if "field" in name else "gray", vmin=low, vmax=high, aspect="equal"
            )
            panel.set_axis_off()
    for panel, name in zip(axes[0], panels, strict=True):
        panel.set_title(name, fontsize=9)
    path = PROJECT / "docs" / "n4.png"
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)
    return path
