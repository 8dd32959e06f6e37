"""The CUDA kernels of N4, run by the CPU."""

import functools
import itertools
import logging
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from octane.core.arrays import as_dtype
from octane.n4 import bspline, cuda
from octane.n4 import fit as n4
from octane.n4.apply import FieldPart, correct_block
from octane.n4.convergence import running_mean, running_variation
from octane.n4.cuda import CudaSteps, apply_rows, device_steps
from octane.n4.grid import FitVoxels
from octane.n4.iteration import Sharpening, Steps, sharpen


def on_device(array):
    """Of the device fixture's CuPy."""
    return sys.modules["cupy"].asarray(array)


def examples(number):
    """The device is one for all examples of a test."""
    return settings(
        max_examples=number, suppress_health_check=[HealthCheck.function_scoped_fixture]
    )


def phantom(shape=(13, 17, 43), seed=0):
    rng = np.random.default_rng(seed)
    z, y, x = np.meshgrid(*[np.linspace(-1, 1, n) for n in shape], indexing="ij")
    tissue = np.where(x**2 + y**2 + z**2 < 0.8, 100.0, 30.0)
    bias = np.exp(0.3 * x - 0.2 * y**2 + 0.1 * z)
    noisy = tissue * bias * (1 + 0.05 * rng.standard_normal(shape))
    return noisy.astype(np.float32)


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
    mask = {
        "whole": None,
        "ball": image > np.median(image) * 0.7,
        "speckle": rng.random(shape) < 0.6,
    }[masked]
    weights = rng.uniform(0, 1, shape).astype(np.float32) if weighted else None
    fit_ = functools.partial(
        n4.fit_bias_field,
        iterations=(3, 2, 2, 1)[:levels],
        convergence_threshold=0.0,
        number_of_histogram_bins=bins,
        control_points=(4, 5, 4),
    )
    expected = fit_(image, mask, weights=weights)
    fit = fit_(
        on_device(image),
        None if mask is None else on_device(mask),
        weights=None if weights is None else on_device(weights),
    )
    assert "sharpen" in device.calls
    np.testing.assert_allclose(n4.log_field(fit, shape), n4.log_field(expected, shape), atol=1e-5)
    for level, reference in zip(fit.levels, expected.levels, strict=True):
        np.testing.assert_allclose(level.convergence, reference.convergence, rtol=1e-4)


def test_itk_s_stopping_measure_ends_the_levels_where_the_array_form_does(device):
    image = phantom()
    mask = image > 50
    expected = n4.fit_bias_field(image, mask, iterations=(60, 60))
    fit = n4.fit_bias_field(on_device(image), on_device(mask), iterations=(60, 60))
    assert "running_mean" in device.calls
    assert [level.iterations for level in fit.levels] == [
        level.iterations for level in expected.levels
    ]
    assert all(level.converged for level in fit.levels)
    for level, reference in zip(fit.levels, expected.levels, strict=True):
        # Sensitive where it jumps; see how near the fields are in spite of it.
        np.testing.assert_allclose(level.convergence, reference.convergence, rtol=2e-3)
    found, wanted = (n4.log_field(f, image.shape) for f in (fit, expected))
    # Rounding grows over some fifty iterations: forms on the CPU differ by as much.
    np.testing.assert_allclose(found, wanted, atol=3e-5)


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
    lattice, moments = steps.iterate(lattice)
    assert device.calls == [
        "count_bins",
        "sharpen",
        "contract_x",
        "contract_y",
        "contract_z",
        "expand",
        "update",
        "finish",
    ]
    assert device.copies == 1
    assert steps.result.nbytes == 32
    steps.running_variation(moments)
    assert device.calls[8:] == ["change", "running_mean", "scatter"]
    assert device.copies == 2


def test_a_constant_image_has_no_bias(device, caplog):
    image = on_device(np.full((8, 9, 10), 7.0))
    with caplog.at_level(logging.WARNING):
        fit = n4.fit_bias_field(image)
    assert (fit.lattice == 0).all()
    assert [level.iterations for level in fit.levels] == [0, 0, 0, 0]
    assert "same value" in caplog.text
    _, steps = pair(image)
    assert steps.iterate(device.zeros((4, 4, 4), np.float32)) is None


def test_what_the_kernels_cannot_hold_is_fitted_on_arrays(device, caplog):
    image = on_device(phantom())
    with caplog.at_level(logging.INFO):
        assert device_steps((9, 9, 1 << 16), 1024) is CudaSteps
        assert not caplog.records
        assert device_steps((9, 9, 9), 1025) is Steps
        assert "1025 bins" in caplog.text
        assert device_steps((9, 9, 65537), 200) is Steps
        assert "65537 voxels" in caplog.text
    image = on_device(phantom((8, 9, 10)))
    n4.fit_bias_field(image, iterations=(1,), number_of_histogram_bins=1025)
    assert not device.calls


def test_an_iteration_starts_from_any_lattice_and_moves_the_same_array(device):
    image = phantom()
    mask = image > 50
    host, kernels = pair(image, mask)
    lattice, _ = host.iterate(np.zeros((4, 4, 4), np.float32))
    on_gpu, _ = kernels.iterate(device.zeros((4, 4, 4), np.float32))
    fine = bspline.refine(lattice)
    for steps in (host, kernels):
        steps.begin_level(fine.shape)
    lattice, moments = host.iterate(fine)
    on_gpu, found = kernels.iterate(bspline.refine(on_gpu))
    np.testing.assert_allclose(on_gpu, lattice, atol=1e-5)
    np.testing.assert_allclose(found, moments, rtol=1e-4)
    np.testing.assert_allclose(kernels.u, host.u, atol=1e-5)
    assert kernels.running_variation(found) == pytest.approx(
        host.running_variation(moments), rel=1e-4
    )
    assert kernels.iterate(on_gpu)[0] is on_gpu


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


@pytest.mark.parametrize("bins", [2, 33, 200, 1024])
def test_bins_are_counted_exactly(device, bins):
    rng = np.random.default_rng(bins)
    u = rng.normal(0, 1, 20_000).astype(np.float32)
    low, high = np.float32(-1.5), u.max()  # a part is below what ITK took for the minimum
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


@pytest.mark.parametrize("crowd", [4096, 9000])
def test_a_tile_full_of_one_bin_does_not_overflow(device, crowd):
    _, steps = pair(phantom())
    share = np.float32(1 - 2**-18)
    u = np.full(crowd, 5 + share, np.float32)
    histogram = device.zeros(400, np.uint64)
    state = on_device(np.array([0, 1], np.float32))
    steps._run("count_bins", 1, on_device(u), crowd, state, 200, histogram)
    assert histogram[5] == crowd
    assert histogram[205] == crowd * int((np.float32(5 + share) - 5) * 2**24)


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
    i = np.arange(n)
    rng = np.random.default_rng(n)
    p = 1 + spread * (np.sin(i / 700) + 0.5 * rng.standard_normal(n).clip(-1, 1))
    p = p.astype(np.float32)
    _, steps = pair(phantom())
    mean = device.empty(n, np.float32)
    steps._run("running_mean", 1, on_device(p), n, mean, threads=1024)
    np.testing.assert_array_equal(mean, running_mean(p))


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
    whole = running_variation(lambda k: p[:k], *moments, n)
    assert steps.running_variation(moments) == pytest.approx(whole, rel=1e-9)
    # The rest of the voxels by their sums, the mean frozen.
    for module in (cuda, sys.modules[running_variation.__module__]):
        monkeypatch.setattr(module, "head_length", lambda *_: 1000)
    part = running_variation(lambda k: p[:k], *moments, n)
    assert part != whole
    assert steps.running_variation(moments) == pytest.approx(part, rel=1e-9)


def test_the_measure_of_one_voxel_is_zero(device):
    mask = np.zeros((13, 17, 43), bool)
    mask[3, 4, 5] = True
    _, steps = pair(phantom(), mask)
    assert steps.iterate(device.zeros((4, 4, 4), np.float32)) is None
    assert steps.running_variation(cuda.Moments(0.0, 0.0, 0.0)) == 0


# The application


def along(values, axis):
    """Evaluate along the first axis, in the order of octane.n4.bspline."""
    shape = (-1,) + (1,) * (values.ndim - 1)
    total = values[axis.first] * axis.weights[:, 0].reshape(shape)
    for tap in (1, 2, 3):
        total = total + values[axis.first + tap] * axis.weights[:, tap].reshape(shape)
    return total


def rows_of(fit, shape, region):
    """The log field's control points along x, for the rows of a block."""
    z, y, x = (
        bspline.axis_weights(n, c, part.start, part.stop)
        for n, c, part in zip(shape, fit.lattice.shape, region, strict=True)
    )
    field = along(along(fit.lattice.astype(np.float64), z).swapaxes(0, 1), y).swapaxes(0, 1)
    return on_device(field.astype(np.float32).reshape(-1, fit.lattice.shape[2])), x


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("f4", "f4"),
        ("f8", "f8"),
        ("u1", "u1"),
        ("u2", "u2"),
        ("i2", "i2"),
        ("u2", "f4"),
        ("f4", "u1"),
    ],
)
@pytest.mark.parametrize("strength", [1.0, 0.37])
def test_the_correction_is_that_of_the_array_form_however_it_is_cut(
    device, source, target, strength
):
    rng = np.random.default_rng(1)
    lattice = rng.normal(0, 0.8, (5, 4, 6)).astype(np.float32)
    fit = n4.BiasFit(lattice, ())
    shape = (5, 7, 70)
    ceiling = {"u1": 255, "u2": 65535, "i2": 32767}.get(source, 300)
    floor = -ceiling if source in ("i2", "f4", "f8") else 0
    image = rng.uniform(floor, ceiling, shape).astype(source)

    whole = np.empty(shape, target)
    field = np.empty(shape, np.float32)
    for cuts in ([0, 70], [0, 1, 33, 70]):
        for begin, end in itertools.pairwise(cuts):
            region = (slice(0, 5), slice(0, 7), slice(begin, end))
            rows, axis = rows_of(fit, shape, region)
            out = device.empty((5, 7, end - begin), np.float32)
            block = on_device(image[region])
            part = apply_rows(block, rows, axis, strength, np.dtype(target), out)
            if len(cuts) == 2:
                whole[region], field[region] = part, out
            np.testing.assert_array_equal(part, whole[region])
            np.testing.assert_array_equal(out, field[region])
            without = apply_rows(block, rows, axis, strength, np.dtype(target))
            np.testing.assert_array_equal(without, part)

    np.testing.assert_array_equal(field, n4.log_field(fit, shape))
    work = image if source == target else image.astype(np.float32)
    expected = as_dtype(n4.correct(work, field, strength), target)
    assert whole.dtype == expected.dtype
    if np.dtype(target).kind == "f":
        np.testing.assert_allclose(whole, expected, rtol=3e-7 if target == "f4" else 1e-15)
    else:
        # An exponential that differs in its last bit may fall on the other side of a half.
        assert abs(whole.astype(int) - expected).max() <= 1
        assert (whole == expected).mean() > 0.99


def test_the_correction_refuses_what_the_kernel_does_not_take(device):
    axis = bspline.axis_weights(8, 4)
    rows = on_device(np.zeros((6, 4), np.float32))
    block = on_device(np.ones((2, 3, 8), np.float32))
    with pytest.raises(ValueError, match="int32"):
        apply_rows(block.astype(np.int32), rows, axis)
    with pytest.raises(ValueError, match="float16"):
        apply_rows(block, rows, axis, dtype=np.dtype(np.float16))
    with pytest.raises(ValueError, match="0 to 1"):
        apply_rows(block, rows, axis, 1.5)
    with pytest.raises(ValueError, match="5 rows"):
        apply_rows(block, rows[:5], axis)
    with pytest.raises(ValueError, match="log field of float64"):
        apply_rows(block, rows, axis, log_field=device.empty(block.shape))


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
