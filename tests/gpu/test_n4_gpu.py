"""N4 on an NVIDIA GPU: the kernels against the CPU and against arrays on the same GPU."""

import functools

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from n4_volumes import biased_ball

from octane.core.arrays import to_host
from octane.n4 import bspline
from octane.n4 import fit as n4
from octane.n4.apply import divide
from octane.n4.cuda import APPLIED, CudaSteps, apply_rows
from octane.n4.grid import FitVoxels
from octane.n4.iteration import Steps
from octane.n4.sharpening import Sharpening, sharpen

SHAPE = (24, 40, 80)


def fit(image, mask, weights, move=np.asarray, **options):
    image, mask, weights = (a if a is None else move(a) for a in (image, mask, weights))
    return n4.fit_bias_field(image, mask, weights=weights, **options)


def near(a, b, shape):
    fields = [n4.log_field(found, shape) for found in (a, b)]
    np.testing.assert_allclose(fields[0], fields[1], atol=1e-5)


def examples(number):
    """The device is one for all examples of a test."""
    return settings(
        max_examples=number,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )


def first_level(cupy, image, mask=None, bins=200):
    """The kernels at the first level."""
    mask = None if mask is None else cupy.asarray(mask)
    grid = FitVoxels(cupy.asarray(image), mask, None, 1, CudaSteps.SLAB)
    steps = CudaSteps(grid, Sharpening(bins, 0.15, 0.01))
    steps.begin_level((4, 4, 4))
    return steps


# Smaller volumes have bins and control points that one voxel decides, where the CPU's own fit moves
# by 1e-3 when the image moves by a unit in the last place.
@pytest.mark.parametrize(
    ("shape", "bins", "masked", "weighted"),
    [
        ((13, 17, 43), 200, "ball", True),
        ((12, 31, 65), 33, "whole", False),
        ((11, 40, 64), 64, "speckle", False),
        ((17, 29, 70), 150, "speckle", True),
        ((16, 33, 52), 300, "ball", False),
    ],
)
def test_a_fit_of_any_shape_is_that_of_the_cpu(cupy, shape, bins, masked, weighted):
    rng = np.random.default_rng(bins)
    image = biased_ball(shape)
    masks = {"ball": image > np.median(image) * 0.7, "speckle": rng.random(shape) < 0.6}
    mask = masks.get(masked)
    weights = rng.uniform(0, 1, shape).astype(np.float32) if weighted else None
    options = {
        "iterations": (3, 2, 2),
        "convergence_threshold": 0.0,
        "number_of_histogram_bins": bins,
        "control_points": (4, 5, 4),
    }
    expected = fit(image, mask, weights, **options)
    found = fit(image, mask, weights, cupy.asarray, **options)
    near(found, expected, shape)
    for level, reference in zip(found.levels, expected.levels, strict=True):
        np.testing.assert_allclose(level.convergence, reference.convergence, rtol=1e-4)


def test_what_the_kernels_cannot_hold_is_fitted_on_arrays(cupy):
    image = biased_ball((8, 9, 10))
    options = {"iterations": (2,), "number_of_histogram_bins": 1025}
    assert n4.steps_for(cupy, image.shape, 1025) is Steps
    found = fit(image, None, None, cupy.asarray, **options)
    assert type(found.lattice) is np.ndarray
    np.testing.assert_allclose(found.lattice, fit(image, None, None, **options).lattice, atol=1e-5)


# The kernels


@examples(20)
@given(
    st.lists(st.integers(-3, 6), min_size=2, max_size=90).filter(lambda u: len(set(u)) > 1),
)
@example([0, 1, 2, 3, 4, 5])
@example([0, 1, 2, 1, 4, -1])
@example([3, 2, 1, 0, -1, -2])
def test_the_minimum_is_that_of_itk_s_scan(cupy, values):
    # Values up to 0 stay as they are, so that any order of values can be had.
    values = np.array(values, np.float32)
    image = np.zeros((2, 2, max(2, -(-len(values) // 4))), np.float32)
    image.flat[: len(values)] = np.where(values > 0, np.exp(values), values)
    mask = np.arange(image.size).reshape(image.shape) < len(values)
    steps = first_level(cupy, image, mask)
    steps._expand()
    steps._update()
    lowest, highest = np.inf, -np.inf
    for u in steps.u.tolist():
        if u > highest:
            highest = u
        elif u < lowest:
            lowest = u
    low, slope = steps.state.tolist()
    assert low == (steps.u.tolist()[0] if np.isinf(lowest) else lowest)
    assert slope == (np.float32(highest) - np.float32(low)) / np.float32(199)


@pytest.mark.parametrize(("bins", "crowd"), [(2, 0), (33, 0), (200, 0), (1024, 0), (200, 9000)])
def test_bins_are_counted_exactly(cupy, bins, crowd):
    u = np.random.default_rng(bins).normal(0, 1, 20_000).astype(np.float32)
    low, high = np.float32(-1.5), u.max()  # a part is below what ITK took for the minimum
    if crowd:  # tiles of 4096 full of one bin do not overflow
        u = np.full(crowd, 6 - 2**-18, np.float32)
        low, high = np.float32(0), np.float32(bins - 1)
    slope = np.float32((high - low) / np.float32(bins - 1))
    c = (u - low) / slope
    c = c[(c >= 0) & (c <= bins - 1)]
    k = c.astype(int)
    share = np.rint((c - k.astype(np.float32)) * 2.0**24).astype(int)
    expected = [np.bincount(k, minlength=bins), [share[k == b].sum() for b in range(bins)]]
    steps = first_level(cupy, biased_ball((6, 8, 20)), bins=bins)
    state = cupy.asarray(np.array([low, slope]))
    for blocks in (1, 3, 7):
        histogram = cupy.zeros(2 * bins, np.uint64)
        steps._run("count_bins", blocks, cupy.asarray(u), len(u), state, bins, histogram)
        np.testing.assert_array_equal(to_host(histogram).reshape(2, bins), expected)


@examples(12)
@given(
    bins=st.sampled_from([2, 3, 33, 64, 65, 200, 256, 511, 1024]),
    seed=st.integers(0, 2**32 - 1),
)
def test_sharpening_is_the_cpu_s(cupy, bins, seed):
    rng = np.random.default_rng(seed)
    # Filled everywhere: where a histogram is empty, the expected value is one rounding error by
    # another, and no two transforms agree on it.
    counts = rng.integers(1000, 2000, bins) + (1e5 * rng.random(bins) ** 8).astype(int)
    shares = (counts * rng.random(bins) * 2**24).astype(np.uint64)
    shares[-1] = 0
    low, slope = np.float32(rng.uniform(-1, 3)), np.float32(rng.uniform(1, 4) / bins)
    given = counts, shares.astype(np.int64), float(low), float(slope)
    expected = sharpen(*given, Sharpening(bins, 0.15, 0.01))[:, 0]

    steps = first_level(cupy, biased_ball((6, 8, 20)), bins=bins)
    steps.state.set(np.array([low, slope]))
    steps.histogram.set(np.concatenate([counts.astype(np.uint64), shares]))
    steps._run(
        "sharpen",
        1,
        *(steps.state, bins, int(counts.sum()), 0.15, 0.01),
        *(steps.roots, steps.histogram, steps.table),
        threads=len(steps.roots),
    )
    assert not to_host(steps.histogram).any()
    table = to_host(steps.table)
    np.testing.assert_allclose(table[:, 0], expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(table[:-1, 1], np.diff(table[:, 0]))
    assert table[-1, 1] == 0


@pytest.mark.parametrize("n", [1, 2, 64, 65, 129, 1500, 30_000])
@pytest.mark.parametrize("spread", [3e-4, 0.3])
def test_the_running_mean_is_itk_s_bit_for_bit(cupy, n, spread):
    rng = np.random.default_rng(n)
    p = 1 + spread * (np.sin(np.arange(n) / 700) + 0.5 * rng.standard_normal(n).clip(-1, 1))
    p = p.astype(np.float32)
    expected = p.copy()
    for i in range(1, n):
        kept = float(expected[i - 1]) * (1 - 1 / (i + 1))
        expected[i] = kept + float(p[i] / np.float32(i + 1))
    steps = first_level(cupy, biased_ball((6, 8, 20)))
    mean = cupy.empty(n, np.float32)
    steps._run("running_mean", 1, cupy.asarray(p), n, mean, threads=1024)
    np.testing.assert_array_equal(to_host(mean), expected)


# The application


@pytest.mark.parametrize(
    ("source", "target"),
    [
        *((kind, kind) for kind in APPLIED),
        (np.dtype("u2"), np.dtype("f4")),
        (np.dtype("f4"), np.dtype("u1")),
    ],
    ids=str,
)
@pytest.mark.parametrize("strength", [1.0, 0.4])
def test_the_correction_is_that_of_the_cpu_however_it_is_cut(cupy, source, target, strength):
    rng = np.random.default_rng(2)
    lattice = rng.normal(0, 0.8, (5, 6, 7)).astype(np.float32)
    ceiling = np.iinfo(str(source)).max if source.kind in "iu" else 300
    image = rng.uniform(0 if source.kind == "u" else -ceiling, ceiling, SHAPE).astype(source)
    whole_grid = tuple(slice(0, n) for n in SHAPE)
    rows, _ = bspline.region_rows(cupy.asarray(lattice), SHAPE, whole_grid)
    axis = functools.partial(bspline.axis_weights, SHAPE[2], lattice.shape[2])
    field = cupy.empty(SHAPE, np.float32)
    whole = to_host(apply_rows(cupy.asarray(image), rows, axis(), strength, target, field))
    assert whole.dtype == target
    on_host = to_host(field)
    np.testing.assert_allclose(on_host, bspline.evaluate_region(lattice, SHAPE), atol=1e-6)
    expected = divide(image, on_host, strength, target, image)
    if target.kind == "f":
        np.testing.assert_allclose(whole, expected, rtol=1e-6 if target.itemsize == 4 else 1e-14)
    else:
        # An exponential that differs in its last bit may fall on the other side of a half.
        assert abs(whole.astype(int) - expected).max() <= 1
        assert (whole == expected).mean() > 0.99
    for begin, end in ((0, 1), (1, 33), (33, 80)):
        cut = cupy.asarray(image[:, :, begin:end])
        part = apply_rows(cut, rows, axis(begin, end), strength, target)
        np.testing.assert_array_equal(to_host(part), whole[:, :, begin:end])
