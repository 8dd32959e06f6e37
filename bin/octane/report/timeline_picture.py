"""The timeline of a run: what the workers of each step were at, over time."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.artist import Artist
from matplotlib.figure import Figure

from octane.report.charts import DPI, WIDE, Theme

__all__ = ["timeline_chart"]

COLOURS = {
    "read": "#3b7dd8",
    "decode": "#7fb2f0",
    "copy": "#8e6bd1",
    "compute": "#2f9e62",
    "encode": "#f0b04c",
    "write": "#d9772b",
    "lease": "#d64545",
    "own": "#8a949e",
}
"""Input blue, device violet and green, output orange, waiting red: told apart by lightness too."""

NAMES = {"lease": "waiting for a GPU", "own": "the step's own work"}


def timeline_chart(
    edges: npt.NDArray[np.float64],
    steps: Mapping[str, Mapping[str, npt.NDArray[np.float64]]],
    pauses: Sequence[float],
    theme: Theme,
) -> Figure:
    """Draw a strip for each step: its busy workers, by what they did.

    Parameters
    ----------
    edges
        Of the bins, seconds.
    steps
        By the step's name, the mean number of workers in each bin for each kind of work.
    pauses
        Where time was left out in which nothing ran, seconds.
    theme
        Colours.
    """
    size = (WIDE[0], 0.9 + 0.62 * len(steps))
    figure = Figure(figsize=size, dpi=DPI, facecolor=theme.surface, layout="constrained")
    rows = figure.subplots(len(steps), 1, sharex=True, squeeze=False)[:, 0]
    end = edges[-1]
    unit, scale = ("min", 60.0) if end >= 600 else ("s", 1.0)
    shown: dict[str, Artist] = {}
    for axes, (step, kinds) in zip(rows, steps.items(), strict=True):
        axes.set_facecolor(theme.surface)
        base = np.zeros(len(edges) - 1)
        for kind, workers in kinds.items():
            if not workers.any():
                continue
            shown[kind] = axes.stairs(
                base + workers, edges / scale, baseline=base, fill=True, color=COLOURS[kind]
            )
            base = base + workers
        for pause in pauses:
            axes.axvline(pause / scale, color=theme.muted, linewidth=0.8, linestyle=":")
        top = max(1.0, float(base.max()))
        axes.set(ylim=(0, 1.05 * top), xlim=(0, end / scale), yticks=[0, round(top)])
        axes.set_ylabel(step, rotation=0, ha="right", va="center", color=theme.ink, fontsize=9)
        axes.tick_params(colors=theme.muted, labelsize=8, length=3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(theme.muted)
    rows[-1].set_xlabel(f"time in which something ran ({unit})", color=theme.ink)
    if shown:
        figure.legend(
            [shown[kind] for kind in COLOURS if kind in shown],
            [NAMES.get(kind, kind) for kind in COLOURS if kind in shown],
            loc="outside upper left",
            ncols=8,
            frameon=False,
            fontsize=9,
            labelcolor=theme.ink,
            handlelength=1.2,
            columnspacing=1.2,
        )
    return figure
