"""The voxels that N4 leaves out of the fit: all that spoil it, and no others."""

import numpy as np
import pytest
from refusals import refused
from scipy import ndimage

from octane.processes.n4.inclusion import LeftOut, voxels_to_fit

SHAPE = (40, 60, 60)
Z, Y, X = np.meshgrid(*[np.linspace(-1, 1, n) for n in SHAPE], indexing="ij")
BALL = X**2 + Y**2 + Z**2 < 0.8
BIAS = np.exp(0.4 * X - 0.3 * Y)
RNG = np.random.default_rng(0)
EVERYWHERE = np.ones(SHAPE, bool)


def texture(width):
    made = ndimage.gaussian_filter(RNG.standard_normal(SHAPE), width)
    return made / made.std()


def speckle(looks):
    return RNG.gamma(looks, 1 / looks, SHAPE)


VESSELS = np.where(texture(1.5) > 2.5, 60, 1)
DARK = np.abs(RNG.normal(0, 2, SHAPE))
SOUND = {
    "even": (600 * RNG.normal(1, 0.001, SHAPE), BALL),
    "smooth": (600 * np.exp(0.4 * texture(6)), BALL),
    "fine": (600 * np.exp(0.4 * texture(1)), BALL),
    "layered": (np.where(np.sin(9 * Z) > 0, 20, 700) * RNG.normal(1, 0.03, SHAPE), BALL),
    "1 look": (600 * speckle(1), BALL),
    "amplitude of 1 look": (600 * np.sqrt(speckle(1)), BALL),
    "16 looks": (600 * speckle(16), BALL),
    "bright vessels": (600 * VESSELS * RNG.normal(1, 0.01, SHAPE), BALL),
    "bright vessels of 1 look": (600 * VESSELS * speckle(1), BALL),
    "dark cavities": (np.where(texture(4) > 1.5, DARK, 900 * RNG.normal(1, 0.01, SHAPE)), BALL),
    "background": (np.where(BALL, 600 * speckle(16), DARK), EVERYWHERE),
    "sparse on background": (np.where(VESSELS > 1, 2e4, 1 + 0.01 * speckle(4)), EVERYWHERE),
    "uint8": (np.clip(60 * BIAS * speckle(4) + 1, 1, 255).astype(np.uint8), BALL),
    "uint16 of any range": (RNG.choice([1, 65535, 2], SHAPE, p=[0.9, 0.01, 0.09]), EVERYWHERE),
}


@pytest.mark.parametrize("case", SOUND.values(), ids=SOUND)
def test_no_voxel_of_sound_tissue_is_left_out(case):
    image, mask = case
    for bias in (1, BIAS) if image.dtype.kind == "f" else (1,):
        kept, left_out = voxels_to_fit((image * bias).astype(np.float32), mask, "v")
        assert kept is mask
        assert not any(left_out)


@pytest.mark.parametrize("tissue", ["even", "fine", "1 look", "background"])
@pytest.mark.parametrize("count", [1, 8, 2000])
@pytest.mark.parametrize(
    ("value", "left_out"),
    [
        (np.nan, (1, 0, 0)), (-np.inf, (1, 0, 0)), (0, (0, 1, 0)), (-300, (0, 1, 0)),
        (1e-20, (0, 0, 1)), (1e-44, (0, 0, 1)), (1e12, (0, 0, 1)), (3e38, (0, 0, 1)),
    ],
)  # fmt: skip
def test_values_that_spoil_the_fit_are_left_out_and_counted(tissue, count, value, left_out):
    image, mask = SOUND[tissue]
    image = image.astype(np.float32)
    spoiled = np.zeros(SHAPE, bool)
    spoiled.flat[np.random.default_rng(1).choice(np.flatnonzero(mask), count, replace=False)] = True
    image[spoiled] = value
    kept, counted = voxels_to_fit(image, mask, "v")
    np.testing.assert_array_equal(kept, mask & ~spoiled)
    assert counted == tuple(count * n for n in left_out)


def test_every_kind_is_counted_by_itself():
    image = np.full((4, 5, 6), 7, np.float32)
    image.flat[:6] = (np.nan, np.inf, 0, -1, -2, 1e-30)
    kept, left_out = voxels_to_fit(image, image != 7.5, "v")
    assert left_out == (2, 3, 1)
    assert kept.sum() == image.size - 6
    assert str(left_out) == "2 voxels of NaN or Inf, 3 of 0 or less, 1 far from all others"
    assert str(LeftOut(outliers=1)) == "1 voxel far from all others"


@pytest.mark.parametrize("value", [0, -80, np.nan])
def test_an_image_without_a_value_to_fit_is_refused_by_name(value):
    image = np.full((4, 5, 6), value, np.float32)
    with refused("brain.nii", "0"):
        voxels_to_fit(image, image != 1, "brain.nii")
    # FitVoxels refuses an empty mask.
    assert voxels_to_fit(image, image == 1, "brain.nii")[1] == LeftOut()
