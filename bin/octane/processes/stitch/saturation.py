"""Saturation of a tile: voxels at its highest value, above which nothing was recorded."""

import numpy as np
import numpy.typing as npt

TOPS = (255, 4095, 16383, 65535)
"""Highest values of cameras and of types: a tile that holds nothing else is saturated."""
FEW = 0.1
"""Voxels between the lowest and the highest value, relative to those at the latter: a mask has
fewer, and a clipped image more."""
PILED = 4
"""Voxels at the highest value over those at the next lower one: where few grey levels show smooth
tissue, both are as many."""


def saturation(block: npt.NDArray, least: float) -> tuple[float, float]:
    """Share of the voxels at the highest value of a block that is not negative, and that value.

    NaN and Inf do not count. The share is 0 if the block is blank or a mask, or if the next lower
    value is as frequent; that is only looked at for a share above ``least``.
    """
    top = block.max(initial=0)
    if not np.isfinite(top):
        block = block[np.isfinite(block)]
        top = block.max(initial=0)
    highest = int(np.count_nonzero(block == top))
    if highest <= least * block.size:
        return highest / max(1, block.size), float(top)
    below = block[block < top]
    if not len(below):
        return float(top in TOPS), float(top)
    between = len(below) - int(np.count_nonzero(below == below.min()))
    near = int(np.count_nonzero(below == below.max()))
    piled = between >= FEW * highest and highest >= PILED * near
    return (highest / block.size if piled else 0.0), float(top)
