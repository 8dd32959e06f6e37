"""The compiled loops of N4 against the array code, which other tests compare with SimpleITK."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from n4_volumes import biased_ball

from octane.core.compiled import compiled
from octane.processes.n4 import bspline, kernels
from octane.processes.n4.cpu import CompiledSteps
from octane.processes.n4.grid import FitVoxels
from octane.processes.n4.iteration import Steps
from octane.processes.n4.sharpening import Sharpening

SHARPENING = Sharpening(200, 0.15, 0.01)


def iterate(kind, image, mask=None, weights=None, *, bins=200, slab=700, levels=(3, 3), workers=1):
    """Lattice, u, moments and ITK's measure after every iteration."""
    seen = []
    lattice = np.zeros((4, 5, 4), np.float32)
    with FitVoxels(image, mask, weights, workers, slab) as grid:
        steps = kind(grid, SHARPENING._replace(bins=bins))
        for level, most in enumerate(levels):
            if level:
                lattice = bspline.refine(lattice)
            steps.begin_level(lattice.shape)
            for _ in range(most):
                done = steps.iterate(lattice)
                if done is None:
                    return seen
                lattice, moments = done
                measure = steps.running_variation(moments)
                seen.append((lattice, steps.u.copy(), moments, measure))
    return seen


def check(image, mask=None, weights=None, **options):
    expected = iterate(Steps, image, mask, weights, **options)
    found = iterate(CompiledSteps, image, mask, weights, **options)
    assert len(found) == len(expected) > 0
    # From the second iteration on, the last bit of a division decides whether the largest value is
    # counted, in ITK too: one voxel of a histogram.
    loose = 3 / len(expected[0][1])
    for i, (a, b) in enumerate(zip(found, expected, strict=True)):
        tolerance = 3e-7 if i == 0 else 2e-6 + loose
        scale = max(1.0, float(np.abs(b[0]).max()))
        np.testing.assert_allclose(a[0], b[0], atol=tolerance * scale)
        np.testing.assert_allclose(a[1], b[1], atol=tolerance * scale + 1e-6 * abs(b[1]).max())
        n = len(b[1])
        # p is float32: these are sums of n rounded numbers near 1.
        assert a[2].total == pytest.approx(b[2].total, abs=n * tolerance * scale)
        assert a[2].largest == pytest.approx(b[2].largest, abs=2 * tolerance * scale, rel=1e-3)
        assert a[3] == pytest.approx(b[3], rel=2e-3, abs=2 * tolerance)


SHAPE = (11, 14, 33)


def cases():
    """Image, mask and weights."""
    image = biased_ball(SHAPE)
    weights = np.random.default_rng(1).uniform(0, 2, SHAPE)
    odd = image.copy()
    odd[::3, ::4, ::5] = 0
    odd[1::4, 2::5, ::3] = -5
    bright = image.copy()
    bright[0, 0, 0] = 1.05 * image.max()
    return {
        "whole rows": (image,),
        "weights": (image, None, weights),
        "a mask and weights": (image, image > 40, weights),
        "zeros and negatives": (odd,),
        "the first voxel is the maximum": (bright,),
    }


@pytest.mark.parametrize("name", cases())
def test_loops_equal_arrays(name):
    check(*cases()[name])


@pytest.mark.parametrize("shape", [(5, 6, 300), (2, 2, 500), (30, 31, 2), (2, 40, 3)])
@pytest.mark.parametrize("slab", [1, 64, 1 << 18])
def test_odd_shapes_and_slabs(shape, slab):
    check(biased_ball(shape), slab=slab, levels=(2, 2))


@settings(max_examples=25)
@given(
    st.tuples(st.integers(2, 7), st.integers(2, 9), st.integers(2, 40)),
    st.floats(0.05, 1),
    st.integers(0, 2**32 - 1),
    st.sampled_from([1, 50, 10_000]),
)
def test_any_mask(shape, fill, seed, slab):
    rng = np.random.default_rng(seed)
    image = biased_ball(shape, seed)
    mask = rng.random(shape) < fill
    mask[0, 0, :] = mask[-1, -1, -1] = True
    check(image, mask, slab=slab, levels=(1,))


# The kernels


def check_histogram(u, low, slope, bins):
    histogram = kernels.count(u, np.float32(low), np.float32(slope), bins)
    c = (u - np.float32(low)) / np.float32(slope)
    outside = (c < 0) | (c > bins - 1)
    k = np.where(outside, bins, c.astype(int))
    share = np.where(outside, 0, np.rint((c - np.floor(c)) * np.float32(2**24)))
    np.testing.assert_array_equal(histogram[0], np.bincount(k, minlength=bins + 1))
    np.testing.assert_array_equal(histogram[1], np.bincount(k, weights=share, minlength=bins + 1))


@settings(max_examples=60)
@given(
    st.lists(st.floats(-3, 3, width=32), min_size=1, max_size=300),
    st.floats(-2, 2, width=32),
    st.floats(0.0078125, 0.5, width=32),
    st.integers(2, 300),
)
def test_the_histogram_is_that_of_the_array_code(values, low, slope, bins):
    """Including values outside the bins, and to the last bit of the sums of shares."""
    check_histogram(np.array(values, np.float32), low, slope, bins)


def test_a_bin_holds_any_number_of_voxels():
    check_histogram(np.full(3 * kernels.PACKED + 5, 1 - 2**-24, np.float32), 0, 1, 2)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("unit", [1, 300, 1 << 20])
def test_threads_and_their_units_of_work_do_not_change_a_bit(monkeypatch, unit, workers):
    image = biased_ball((9, 21, 37))
    mask = np.random.default_rng(0).random(image.shape) < 0.9
    expected = iterate(CompiledSteps, image, mask, slab=2000)
    monkeypatch.setattr(CompiledSteps, "UNIT", unit)
    monkeypatch.setattr(CompiledSteps, "SHARED", 0)
    for found, one in zip(
        iterate(CompiledSteps, image, mask, slab=2000, workers=workers), expected, strict=True
    ):
        np.testing.assert_array_equal(found[0], one[0])
        np.testing.assert_array_equal(found[1], one[1])
        assert found[2:] == one[2:]


def test_the_exponential_is_within_a_unit_in_the_last_place():
    x = np.linspace(-87, 87, 20_001, dtype=np.float32)
    with np.errstate(over="ignore"):
        y = np.array([kernels.exp32(v) for v in x])
    assert y.dtype == np.float32
    true = np.exp(x.astype(np.float64))
    assert (np.abs(y - true) <= np.spacing(true.astype(np.float32))).all()
    assert kernels.exp32(np.float32(0)) == 1
    assert kernels.exp32(np.float32(1000)) == kernels.exp32(np.float32(87))


def sum_of_rows(weights, first, rows, start, step, out, at):
    kernels.blend(weights, first, rows, start, step, out, at)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_vector_of_four_rows_has_the_bits_of_single_values(dtype):
    rng = np.random.default_rng(0)
    weights, rows = rng.normal(size=9).astype(dtype), rng.normal(size=(7, 23)).astype(dtype)
    kernel = compiled(
        f"void({dtype}[::1], int64, {dtype}[:, ::1], int64, int64, float32[::1], int64)"
    )(sum_of_rows)
    found = np.zeros(40, np.float32)
    kernel(weights, 3, rows, 25, 23, found, 5)
    lanes = bspline.LANES * 4 // rows.itemsize
    flat = rows.reshape(-1)
    total = sum(weights[3 + k] * flat[25 + 23 * k :][:lanes] for k in range(4))
    np.testing.assert_array_equal(found[5 : 5 + lanes], total.astype(np.float32))
    assert not found[:5].any()
    assert not found[5 + lanes :].any()
