"""Compile the loops of RESAMPLE, STACK and N4 for the usual types of voxels, to be kept.

Otherwise the first run of each step waits some seconds for them.
"""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bin"))

from octane.n4.fit import n4_bias_field_correction
from octane.resample.resampler import load
from octane.stitch.sampling import sampled

sampled(np.zeros((1, 2, 2), np.float32), (0, 0), 1 + 0j, (1, 1))

for dtype in ("float32", "uint16"):
    load(np, dtype, dtype)
    image = np.random.default_rng(0).uniform(50, 100, (16, 16, 16)).astype(dtype)
    # The second ends at once, for which ITK's measure is computed.
    for threshold in (0.0, 1e9):
        n4_bias_field_correction(
            image, image > 60, shrink_factor=1, iterations=(2,), convergence_threshold=threshold
        )
