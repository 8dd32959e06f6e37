"""Agreement with SimpleITK's N4, run live.

After one iteration the fields agree to units in the last place. Later they differ in small jumps:
the last bit of a float32 division decides whether the largest value is counted in the histogram.
ITK's own field changes as much with its number of threads. So each case runs ITK with two numbers
of threads, and the bounds are ITK's distance from itself.
"""

import numpy as np
import pytest
import SimpleITK as sitk
from hypothesis import given, settings
from hypothesis import strategies as st
from n4_volumes import simpleitk

from octane.processes.n4 import fit as n4


def phantom(shape, seed=0):
    rng = np.random.default_rng(seed)
    z, y, x = np.meshgrid(*[np.linspace(-1, 1, n) for n in shape], indexing="ij")
    tissue = np.where((x / 0.8) ** 2 + (y / 0.75) ** 2 + (z / 0.9) ** 2 < 1, 100.0, 8.0)
    tissue = np.where((x / 0.4) ** 2 + (y / 0.35) ** 2 + (z / 0.5) ** 2 < 1, 160.0, tissue)
    bias = np.exp(0.35 * (0.8 * x - 0.5 * y**2 + 0.4 * z * y + 0.3 * np.sin(2 * x + z)))
    return (tissue * bias * (1 + 0.04 * rng.standard_normal(shape))).astype(np.float32)


def tissue(volume):
    return volume > 30


def corner(volume):
    """A block that touches three borders and extends into the background."""
    mask = np.zeros(volume.shape, bool)
    mask[: volume.shape[0] // 2, :, volume.shape[2] // 3 :] = True
    return mask


def sheet(volume):
    """Few voxels in every row, but a bounding box almost as large as the volume."""
    z, y, x = np.meshgrid(*[np.linspace(0, 1, n) for n in volume.shape], indexing="ij")
    return np.abs(z + 0.4 * y + 0.3 * x - 0.85) < 0.12


def nothing(volume):
    return None


def octane(volume, mask, shrink, iterations, control_points=(4, 4, 4), **options):
    slices = n4.shrink_slices(volume.shape, shrink)
    fit = n4.fit_bias_field(
        volume[slices],
        None if mask is None else mask[slices],
        iterations=iterations,
        control_points=control_points,
        **options,
    )
    return n4.log_field(fit, volume.shape), fit


def difference(a, b):
    return np.abs(np.expm1(a.astype(np.float64) - b))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8, 10, 11, 16, 17])
def test_shrinking_takes_the_voxels_that_simpleitk_takes(n):
    line = np.arange(n, dtype=np.float32)
    volume = np.broadcast_to(line, (3, 2, n)).copy()
    for factor in range(1, n + 3):
        shrunk = sitk.GetArrayFromImage(sitk.Shrink(sitk.GetImageFromArray(volume), [factor, 1, 1]))
        slices = n4.shrink_slices(volume.shape, (1, 1, factor))
        np.testing.assert_array_equal(volume[slices], shrunk)


# name: shape, mask, shrink (z, y, x), iterations, control points and voxel size (z, y, x)
CASES = {
    "cube": ((22, 22, 22), nothing, (1, 1, 1), (20, 20), (4, 4, 4)),
    "cube, tissue": ((24, 24, 24), tissue, (1, 1, 1), (50, 50, 50), (4, 4, 4)),
    "odd sizes": ((19, 27, 23), tissue, (1, 1, 1), (30, 30), (4, 4, 4)),
    "thin mask": ((24, 31, 34), sheet, (1, 1, 1), (12, 12), (4, 4, 4)),
    "one level": ((17, 20, 31), nothing, (1, 1, 1), (25,), (4, 4, 4)),
    "shrink 2, four levels": ((37, 51, 63), tissue, (2, 2, 2), (20, 20, 20, 20), (4, 4, 4)),
    "shrink 2, no mask": ((35, 41, 47), nothing, (2, 2, 2), (15, 15), (4, 4, 4)),
    "shrink 3, at the border": ((50, 61, 71), corner, (3, 3, 3), (15, 15, 15), (4, 4, 4)),
    "shrink 4": ((67, 81, 95), tissue, (4, 4, 4), (50, 50, 50), (4, 4, 4)),
    "shrink 5": ((113, 126, 134), tissue, (5, 5, 5), (20, 20), (4, 4, 4)),
    "shrink 6": ((130, 151, 147), tissue, (6, 6, 6), (20, 20), (4, 4, 4)),
    "anisotropic": ((31, 62, 83), tissue, (2, 4, 3), (30, 30), (5, 4, 6)),
    "anisotropic, no mask": ((21, 43, 64), nothing, (1, 2, 3), (15, 15), (5, 4, 6)),
    "voxel size": ((24, 27, 32), tissue, (1, 1, 1), (10, 10), (6, 5, 7), (2.0, 1.0, 2.2)),
}


FEW = ("odd sizes", "thin mask", "shrink 2, no mask", "shrink 4", "anisotropic", "voxel size")
"""Those that are not left to soak."""


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=name, marks=[pytest.mark.soak] * (name not in FEW))
        for name, case in CASES.items()
    ],
)
def test_the_field_and_the_iterations_are_those_of_simpleitk(case):
    shape, make_mask, *rest = case
    volume = phantom(shape)
    check(volume, make_mask(volume), *rest)


def check(volume, mask, shrink, iterations, control_points=(4, 4, 4), spacing=(1, 1, 1)):
    field, fit = octane(volume, mask, shrink, iterations, control_points)
    runs = [simpleitk(volume, mask, shrink, iterations, control_points, n, spacing) for n in (1, 3)]
    assert [level.iterations for level in fit.levels] in [run.iterations for run in runs]
    errors = [difference(field, run.field) for run in runs]
    nearest = min((0, 1), key=lambda i: np.median(errors[i]))
    last = fit.levels[-1]
    if last.converged:
        assert last.convergence[-1] == pytest.approx(runs[nearest].measure, rel=1e-2)
    assert np.median(errors[nearest]) <= 1e-4
    assert errors[nearest].max() <= 4e-4
    fields = np.exp([field.ravel(), runs[nearest].field.ravel()], dtype=np.float64)
    assert 1 - np.corrcoef(fields)[0, 1] <= 1e-8


@settings(max_examples=8, deadline=None, derandomize=True)
@given(
    shape=st.tuples(*[st.integers(14, 26)] * 3),
    make_mask=st.sampled_from([nothing, tissue, corner, sheet]),
    shrink=st.tuples(*[st.integers(1, 2)] * 3),
    iterations=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    control_points=st.tuples(*[st.integers(4, 6)] * 3),
    seed=st.integers(0, 9),
)
def test_any_volume_and_options(shape, make_mask, shrink, iterations, control_points, seed):
    volume = phantom(shape, seed)
    check(volume, make_mask(volume), shrink, iterations, control_points)


def test_weights_are_itk_s_confidence_image():
    volume = phantom((24, 27, 31))
    falling = np.linspace(1, 0.1, 24, dtype=np.float32)[:, None, None]
    weights = np.broadcast_to(falling, volume.shape).copy()
    weights[:, :5, :6] = 0
    fit = n4.fit_bias_field(volume, weights=weights, iterations=(8, 8))
    field = n4.log_field(fit, volume.shape)
    # SimpleITK lacks confidence images: these are the corners and the centre of the log field of
    # ITK 5.4.7's own Python package (itk-filtering); the benchmark compares its entire field.
    # Without weights the median difference is 9e-3.
    expected = [-0.08473378, 0.12496012, -0.32737973, 0.0187896]
    expected += [-0.19892363, 0.03064272, -0.14703916, 0.1013487, -0.004031729]
    found = np.append(field[::23, ::26, ::30].ravel(), field[12, 13, 15])
    assert difference(found, np.array(expected)).max() <= 1e-4


def test_zeros_and_negatives_in_the_mask():
    volume = phantom((21, 23, 25))
    volume[::3, ::4, ::5] = 0
    volume[1::4, 2::5, ::3] = -5
    check(volume, None, (1, 1, 1), (15, 15))


@pytest.mark.parametrize("make_mask", [pytest.param(nothing, marks=pytest.mark.soak), tissue])
def test_the_first_voxel_is_the_minimum(make_mask):
    volume = phantom((21, 23, 25))
    mask = make_mask(volume)
    first = (0, 0, 0) if mask is None else tuple(np.argwhere(mask)[0])
    volume[first] = 2 if mask is None else 31
    check(volume, mask, (1, 1, 1), (15, 15))


def test_one_iteration_is_the_same_to_the_last_places():
    volume = phantom((24, 27, 31))
    for mask in (None, tissue(volume)):
        expected = simpleitk(volume, mask, (1, 1, 1), (1,))
        field, _ = octane(volume, mask, (1, 1, 1), (1,))
        assert difference(field, expected.field).max() <= 2.5e-7
