"""The CUDA kernels of N4, run by the CPU."""

import functools
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from n4_volumes import biased_ball

from octane.n4 import bspline
from octane.n4 import fit as n4
from octane.n4.apply import FieldPart, correct_block, divide
from octane.n4.cuda import CudaSteps, apply_rows
from octane.n4.grid import FitVoxels
from octane.n4.iteration import Moments, Sharpening, Steps, itk_variation, sharpen


def on_device(array):
    """Of the device fixture's CuPy."""
    return sys.modules["cupy"].asarray(array)


def examples(number):
    """The device is one for all examples of a test."""
    return settings(
        max_examples=number, suppress_health_check=[HealthCheck.function_scoped_fixture]
    )


def phantom(shape=(13, 17, 43), seed=0):
    return biased_ball(shape, seed)


def pair(image, mask=None, weights=None, bins=200, control_points=(4, 4, 4)):
    """The array form on the host and the kernels, both at the first level."""
    sharpening = Sharpening(bins, 0.15, 0.01)
    others = [a if a is None else on_device(a) for a in (mask, weights)]
    both = (
        Steps(FitVoxels(image, mask, weights, 1, Steps.SLAB), sharpening),
        CudaSteps(FitVoxels(on_device(image), *others, 1, CudaSteps.SLAB), sharpening),
    )
    for steps in both:
        steps.begin_level(control_points)
    return both


# The whole fit


@examples(12)
@given(
    # With fewer voxels than this there are bins and control points that one voxel decides, where
    # the array form itself moves by 1e-3 when the image moves by a unit in the last place.
    shape=st.tuples(st.integers(6, 11), st.integers(8, 19), st.integers(20, 70)),
    seed=st.integers(0, 2**32 - 1),
    bins=st.sampled_from([33, 64, 150, 200, 256, 300]),
    levels=st.integers(1, 4),
    masked=st.sampled_from(["whole", "ball", "speckle"]),
    weighted=st.booleans(),
)
@example((13, 17, 43), 0, 200, 4, "ball", True)
def test_the_fit_is_that_of_the_array_form(device, shape, seed, bins, levels, masked, weighted):
    rng = np.random.default_rng(seed)
    image = phantom(shape, seed)
    masks = {"ball": image > np.median(image) * 0.7, "speckle": rng.random(shape) < 0.6}
    mask = masks.get(masked)
    weights = rng.uniform(0, 1, shape).astype(np.float32) if weighted else None
    fit_ = functools.partial(
        n4.fit_bias_field,
        iterations=(3, 2, 2, 1)[:levels],
        convergence_threshold=0.0,
        number_of_histogram_bins=bins,
        control_points=(4, 5, 4),
    )
    expected = fit_(image, mask, weights=weights)
    mask, weights = (a if a is None else on_device(a) for a in (mask, weights))
    fit = fit_(on_device(image), mask, weights=weights)
    assert "sharpen" in device.calls
    np.testing.assert_allclose(n4.log_field(fit, shape), n4.log_field(expected, shape), atol=1e-5)
    for level, reference in zip(fit.levels, expected.levels, strict=True):
        np.testing.assert_allclose(level.convergence, reference.convergence, rtol=1e-4)


@pytest.mark.parametrize("order", [1, 2])
def test_the_order_of_threads_does_not_change_a_bit(device, order):
    """Nor do repeats: what depended on the order would be a race, or a sum in no fixed order."""
    image = on_device(phantom())
    mask = on_device(image > 50)
    first = n4.fit_bias_field(image, mask, iterations=(8, 3))
    device.order(order)
    second = n4.fit_bias_field(image, mask, iterations=(8, 3))
    np.testing.assert_array_equal(second.lattice, first.lattice)
    assert second.levels == first.levels


def test_an_iteration_is_eight_launches_and_one_small_copy(device):
    _, steps = pair(phantom())
    lattice, _ = steps.iterate(device.zeros((4, 4, 4), np.float32))
    device.calls.clear()
    device.copies = 0
    _, moments = steps.iterate(lattice)
    launched = "count_bins sharpen contract_x contract_y contract_z expand update finish"
    assert device.calls == launched.split()
    assert device.copies == 1
    assert steps.result.nbytes == 32
    steps.running_variation(moments)
    assert device.calls[8:] == ["change", "running_mean", "scatter"]
    assert device.copies == 2


def test_a_constant_image_has_no_bias(device):
    fit = n4.fit_bias_field(on_device(np.full((8, 9, 10), 7.0)))
    assert (fit.lattice == 0).all()
    assert [level.iterations for level in fit.levels] == [0, 0, 0, 0]


def test_what_the_kernels_cannot_hold_is_fitted_on_arrays(device):
    image = phantom((8, 9, 10))
    fit_ = functools.partial(n4.fit_bias_field, iterations=(2,), number_of_histogram_bins=1025)
    fit = fit_(on_device(image))
    assert not device.calls
    assert type(fit.lattice) is np.ndarray
    np.testing.assert_allclose(fit.lattice, fit_(image).lattice, atol=1e-5)


# The pieces


@examples(30)
@given(
    st.lists(st.integers(-3, 6), min_size=2, max_size=90).filter(lambda u: len(set(u)) > 1),
    st.integers(0, 2),
)
@example([0, 1, 2, 3, 4, 5], 0)
@example([0, 1, 2, 1, 4, -1], 0)
@example([3, 2, 1, 0, -1, -2], 1)
def test_the_minimum_is_that_of_itk_s_scan(device, values, order):
    device.order(order)
    # Values up to 0 stay as they are, so that any order of values can be had.
    values = np.array(values, np.float32)
    image = np.zeros((2, 2, max(2, -(-len(values) // 4))), np.float32)
    image.flat[: len(values)] = np.where(values > 0, np.exp(values), values)
    mask = np.arange(image.size).reshape(image.shape) < len(values)
    _, steps = pair(image, mask)
    steps._expand()
    steps._update()
    lowest, highest = np.inf, -np.inf
    for u in steps.u.tolist():
        if u > highest:
            highest = u
        elif u < lowest:
            lowest = u
    low, slope = steps.state
    assert low == (steps.u[0] if np.isinf(lowest) else lowest)
    assert slope == (np.float32(highest) - low) / np.float32(199)


@pytest.mark.parametrize(("bins", "crowd"), [(2, 0), (33, 0), (200, 0), (1024, 0), (200, 9000)])
def test_bins_are_counted_exactly(device, bins, crowd):
    u = np.random.default_rng(bins).normal(0, 1, 20_000).astype(np.float32)
    low, high = np.float32(-1.5), u.max()  # a part is below what ITK took for the minimum
    if crowd:  # tiles of 4096 full of one bin do not overflow
        u = np.full(crowd, 6 - 2**-18, np.float32)
        low, high = np.float32(0), np.float32(bins - 1)
    slope = np.float32((high - low) / np.float32(bins - 1))
    _, steps = pair(phantom(), bins=bins)
    histogram = device.zeros(2 * bins, np.uint64)
    state = on_device(np.array([low, slope]))
    for order, blocks in enumerate((1, 3, 7)):
        device.order(order)
        histogram[...] = 0
        steps._run("count_bins", blocks, on_device(u), len(u), state, bins, histogram)
        c = (u - low) / slope
        c = c[(c >= 0) & (c <= bins - 1)]
        k = c.astype(int)
        share = np.rint((c - k.astype(np.float32)) * 2.0**24).astype(int)
        np.testing.assert_array_equal(histogram[:bins], np.bincount(k, minlength=bins))
        expected = [share[k == b].sum() for b in range(bins)]
        np.testing.assert_array_equal(histogram[bins:], expected)


@examples(15)
@given(
    bins=st.sampled_from([2, 3, 33, 64, 65, 200, 256, 511, 1024]),
    seed=st.integers(0, 2**32 - 1),
    order=st.integers(0, 2),
)
def test_sharpening_is_that_of_numpy_s_transforms(device, bins, seed, order):
    rng = np.random.default_rng(seed)
    # Filled everywhere: where a histogram is empty, the expected value is one rounding error by
    # another, and no two transforms agree on it.
    counts = rng.integers(1000, 2000, bins) + (1e5 * rng.random(bins) ** 8).astype(int)
    shares = (counts * rng.random(bins) * 2**24).astype(np.uint64)
    shares[-1] = 0
    histogram = counts - shares / 2**24
    histogram[1:] += shares[:-1] / 2**24
    low, slope = np.float32(rng.uniform(-1, 3)), np.float32(rng.uniform(1, 4) / bins)
    expected = sharpen(histogram, float(low), float(slope), 0.15, 0.01).astype(np.float32)

    device.order(order)
    _, steps = pair(phantom(), bins=bins)
    steps.state[...] = low, slope
    steps.histogram[:bins], steps.histogram[bins:] = counts, shares
    steps._run(
        "sharpen",
        1,
        *(steps.state, bins, int(counts.sum()), 0.15, 0.01),
        *(steps.roots, steps.histogram, steps.table),
        threads=len(steps.roots),
    )
    assert not steps.histogram.any()
    np.testing.assert_allclose(steps.table[:, 0], expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(steps.table[:-1, 1], np.diff(steps.table[:, 0]))
    assert steps.table[-1, 1] == 0


@pytest.mark.parametrize(
    ("n", "order"),
    [(1, 0), (2, 0), (64, 0), (65, 1), (129, 2), (1500, 0), (1500, 1), (1500, 2), (30_000, 0)],
)
@pytest.mark.parametrize("spread", [3e-4, 0.3])
def test_the_running_mean_is_itk_s_bit_for_bit(device, n, spread, order):
    device.order(order)
    rng = np.random.default_rng(n)
    p = 1 + spread * (np.sin(np.arange(n) / 700) + 0.5 * rng.standard_normal(n).clip(-1, 1))
    p = p.astype(np.float32)
    expected = p.copy()
    for i in range(1, n):
        kept = float(expected[i - 1]) * (1 - 1 / (i + 1))
        expected[i] = kept + float(p[i] / np.float32(i + 1))
    _, steps = pair(phantom())
    mean = device.empty(n, np.float32)
    steps._run("running_mean", 1, on_device(p), n, mean, threads=1024)
    np.testing.assert_array_equal(mean, expected)


@pytest.mark.parametrize("masked", [False, True])
def test_the_stopping_measure_is_that_of_the_array_form(device, masked, monkeypatch):
    image = phantom()
    _, steps = pair(image, image > 50 if masked else None)
    lattice = device.zeros((4, 4, 4), np.float32)
    for _ in range(3):
        lattice, moments = steps.iterate(lattice)
    n = steps.grid.size
    p = device.empty(n, np.float32)
    places = (steps.columns, steps.starts, steps.n_rows, 4, steps.x.first, steps.x.evaluate)
    steps._run("change", steps.n_rows, *places, steps.rows, steps.previous, n, p)
    p = np.array(p)
    d = p.astype(np.float64) - 1
    np.testing.assert_allclose(moments, (d.sum(), np.square(d).sum(), abs(d).max()), rtol=1e-5)
    whole = itk_variation(moments, n, lambda k: p[:k])
    assert steps.running_variation(moments) == pytest.approx(whole, rel=1e-9)
    # The rest of the voxels by their sums, the mean frozen.
    monkeypatch.setattr(Moments, "head", lambda *_: 1000)
    part = itk_variation(moments, n, lambda k: p[:k])
    assert part != whole
    assert steps.running_variation(moments) == pytest.approx(part, rel=1e-9)


# The application


CONVERTED = [("u2", "f4"), ("f4", "u1")]


@pytest.mark.parametrize(
    ("source", "target"), [(t, t) for t in ("f4", "f8", "u1", "u2", "i2")] + CONVERTED
)
@pytest.mark.parametrize("strength", [1.0, 0.37])
def test_the_correction_is_that_of_the_array_form_however_it_is_cut(
    device, source, target, strength
):
    rng = np.random.default_rng(1)
    lattice = rng.normal(0, 0.8, (5, 4, 6)).astype(np.float32)
    shape = (5, 7, 70)
    ceiling = {"u1": 255, "u2": 65535, "i2": 32767}.get(source, 300)
    floor = -ceiling if source in ("i2", "f4", "f8") else 0
    image = rng.uniform(floor, ceiling, shape).astype(source)

    field = device.empty(shape, np.float32)
    whole = np.empty(shape, target)
    for begin, end in ((0, 70), (0, 1), (1, 33), (33, 70)):
        region = (slice(0, 5), slice(0, 7), slice(begin, end))
        rows, axis = bspline.region_rows(on_device(lattice), shape, region)
        out = field if end - begin == 70 else None
        block = on_device(image[region])
        part = apply_rows(block, rows, axis, strength, np.dtype(target), out)
        if out is not None:
            whole[...] = part
        np.testing.assert_array_equal(part, whole[region])

    field = np.array(field)
    np.testing.assert_array_equal(field, bspline.evaluate_region(lattice, shape))
    work = image if source == target else image.astype(np.float32)
    expected = divide(work, field, strength, np.dtype(target), work)
    if np.dtype(target).kind == "f":
        np.testing.assert_allclose(whole, expected, rtol=3e-7 if target == "f4" else 1e-15)
    else:
        # An exponential that differs in its last bit may fall on the other side of a half.
        assert abs(whole.astype(int) - expected).max() <= 1
        assert (whole == expected).mean() > 0.99


@pytest.mark.parametrize("strength", [1.0, 0.5, 0.0])
@pytest.mark.parametrize("dtype", ["f4", "u2"])
def test_a_block_on_the_device_is_corrected_as_on_the_host(device, strength, dtype):
    image = phantom((6, 9, 40)).astype(dtype)
    lattice = np.random.default_rng(3).normal(0, 0.2, (4, 5, 6)).astype(np.float32)
    part = FieldPart(lattice, (12, 18, 80), (slice(2, 8), slice(9, 18), slice(30, 70)))

    def corrected(block):
        return correct_block(block, [part], strength=strength, dtype="f4", with_field=True)

    for found, expected in zip(corrected(on_device(image)), corrected(image), strict=True):
        assert found is not None
        assert expected is not None
        np.testing.assert_allclose(found, expected, rtol=1e-6)
