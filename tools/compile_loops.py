"""Compile and cache the loops of RESAMPLE, STACK and N4 for the usual voxel types.

Otherwise the first run of each step waits some seconds for them.
"""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bin"))

# Loops of fixed types, such as the fit's, are compiled on import.
from octane.processes.n4.division import divider
from octane.processes.stack.sampling import sampler
from octane.resample.kernels import push

real = np.dtype(np.float32)
sampler(real)
for dtype in (real, np.dtype(np.uint16)):
    push(dtype, real, dtype)
    divider(dtype.name, dtype.name, dtype.name, real.name)
