"""Seams of tiles: they measure mismatch and not speckle."""

import numpy as np
import pytest

from octane.processes.stitch.seams import block_seam, seam, seam_without_speckle, speckle_seam

pytestmark = pytest.mark.filterwarnings("error")


@pytest.mark.parametrize("step", [0.0, 0.2])
def test_a_seam_counts_a_step_and_no_speckle(rng, step):
    first, second = (rng.gamma(4.0, 0.25, (200, 200)) for _ in range(2))
    second *= 1 + step
    found = seam_without_speckle(first, second, seam(first, second))
    assert found == pytest.approx(step, abs=0.05)


@pytest.mark.parametrize("looks", [1, 16])
def test_speckle_is_told_from_structure_that_does_not_fit(rng, looks):
    y, x = np.indices((64, 256)) / 9
    tissue = [3 + np.sin(y) + np.sin(x + phase) for phase in (0, 0.4)]
    first, second = (own * rng.gamma(looks, 1 / looks, own.shape) for own in tissue)
    speckle = speckle_seam(first, second)
    assert speckle == pytest.approx((2 / looks) ** 0.5 / 4, rel=0.15)
    # The rms difference of two sines shifted by 0.4.
    excess = block_seam(first, second) ** 2 - speckle**2
    assert excess == pytest.approx((2 * np.sin(0.2) / 3) ** 2 / 2, abs=0.3 * speckle**2 + 1e-3)
    assert speckle_seam(*tissue) < 0.01
    assert speckle_seam(0 * first, 0 * second) == 0
