import logging
import sys
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octane.core.errors import OctaneError
from octane.n4 import fit as n4
from octane.n4 import iteration
from octane.n4.convergence import running_mean, running_variation, variation
from octane.n4.cpu import CompiledSteps
from octane.n4.cuda import CudaSteps
from octane.n4.grid import FitVoxels
from octane.n4.iteration import Steps, itk_minimum, sharpen


def quick(image, mask=None, *, weights=None, workers=1, on_iteration=None):
    return n4.fit_bias_field(
        image,
        mask,
        weights=weights,
        workers=workers,
        on_iteration=on_iteration,
        iterations=(6, 4),
    )


def phantom(shape=(20, 24, 28), seed=0):
    rng = np.random.default_rng(seed)
    z, y, x = np.meshgrid(*[np.linspace(-1, 1, n) for n in shape], indexing="ij")
    tissue = np.where(x**2 + y**2 + z**2 < 0.8, 100.0, 10.0)
    bias = np.exp(0.3 * x - 0.2 * y**2 + 0.1 * z)
    noisy = tissue * bias * (1 + 0.04 * rng.standard_normal(shape))
    return noisy.astype(np.float32), bias


def equal(a, b):
    np.testing.assert_array_equal(a.lattice, b.lattice)
    assert a.levels == b.levels


@pytest.fixture(params=[Steps, CompiledSteps])
def kind(request, monkeypatch):
    """With arrays and with compiled loops."""
    monkeypatch.setattr(n4, "steps_for", lambda *_: request.param)
    return request.param


# What the fit does


def test_loops_are_compiled_for_numpy_alone():
    assert n4.steps_for(np, (9, 9, 9), 200) is CompiledSteps
    assert n4.steps_for(ModuleType("cupy"), (9, 9, 9), 200) is CudaSteps


@pytest.mark.usefixtures("kind")
def test_a_known_field_is_found():
    image, bias = phantom((32, 32, 32))
    mask = image > 40
    fit = n4.fit_bias_field(image, mask, iterations=(50, 50))
    rest = n4.log_field(fit, image.shape)[mask] - np.log(bias)[mask]
    assert rest.std() < 0.15 * np.log(bias)[mask].std()


@pytest.mark.usefixtures("kind")
def test_the_lattice_is_refined_between_levels():
    image, _ = phantom()
    fit = n4.fit_bias_field(image, iterations=(1, 1, 1), control_points=(4, 5, 6))
    assert fit.lattice.shape == (7, 11, 15)
    assert fit.lattice.dtype == np.float32
    assert [level.iterations for level in fit.levels] == [1, 1, 1]


def test_a_repeated_fit_and_any_number_of_workers_give_the_same_bits(kind, monkeypatch):
    monkeypatch.setattr(kind, "SLAB", 1000)
    image, _ = phantom()
    mask = image > 40
    first = quick(image, mask)
    for workers in (1, 2, 3, 30):
        equal(quick(image, mask, workers=workers), first)


def test_an_error_on_a_thread_is_raised(monkeypatch):
    image, _ = phantom()
    with FitVoxels(image, None, None, 2, 1000) as grid:

        def fail(slab):
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            grid.each(fail)


def test_the_slab_size_changes_rounding_only(kind, monkeypatch):
    image, _ = phantom()
    mask = image > 40
    first = quick(image, mask)
    monkeypatch.setattr(kind, "SLAB", 500)
    second = quick(image, mask)
    np.testing.assert_allclose(second.lattice, first.lattice, atol=1e-6)


@pytest.mark.usefixtures("kind")
def test_a_mask_of_everything_is_no_mask():
    image, _ = phantom()
    ones = np.ones(image.shape, np.uint8)
    equal(quick(image, ones), quick(image))


@pytest.mark.usefixtures("kind")
def test_values_outside_the_mask_do_not_matter():
    image, _ = phantom()
    mask = image > 40
    other = np.where(mask, image, np.nan)
    equal(quick(other, mask), quick(image, mask))


@pytest.mark.usefixtures("kind")
def test_weights_of_one_are_no_weights_and_of_zero_are_a_mask():
    image, _ = phantom()
    mask = image > 40
    expected = quick(image, mask)
    equal(quick(image, mask, weights=np.ones(image.shape)), expected)
    equal(quick(image, weights=mask.astype(float)), expected)
    half = np.where(np.arange(28) < 14, 0.1, 1.0) * np.ones(image.shape)
    weighted = quick(image, mask, weights=half)
    assert np.abs(weighted.lattice - expected.lattice).max() > 1e-3


@pytest.mark.usefixtures("kind")
def test_on_iteration_sees_every_iteration():
    image, _ = phantom()
    seen = []
    fit = quick(image, on_iteration=lambda *a: seen.append(a))
    expected = [
        (number, i, value)
        for number, level in enumerate(fit.levels)
        for i, value in enumerate(level.convergence)
    ]
    assert seen == expected


@pytest.mark.usefixtures("kind")
def test_exact_stopping_uses_the_true_value(monkeypatch):
    def refuse(*_):
        raise AssertionError

    monkeypatch.setattr(iteration, "running_variation", refuse)
    image, _ = phantom()
    fit = n4.fit_bias_field(image, stopping="exact")
    assert all(level.convergence[-1] <= 1e-3 for level in fit.levels if level.converged)


@pytest.mark.usefixtures("kind")
def test_a_constant_image_has_no_bias(caplog):
    with caplog.at_level(logging.WARNING):
        fit = n4.fit_bias_field(np.full((8, 9, 10), 7.0))
    assert (fit.lattice == 0).all()
    assert [level.iterations for level in fit.levels] == [0, 0, 0, 0]
    assert len(caplog.records) == 1
    assert "same value" in caplog.text


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_an_axis_of_one_voxel_is_left_out_of_the_fit(axis, kind, caplog):
    """The field of a plane is nearly that of planes which repeat it, and does not change across."""
    image, _ = phantom((32, 32, 32))
    plane = np.take(image, [10], axis=axis)
    with caplog.at_level(logging.WARNING):
        fit = quick(plane)
    assert f"one voxel along {'zyx'[axis]}" in caplog.text
    field = n4.log_field(fit, plane.shape)
    assert field.std() > 0.02
    many = [6 if a == axis else n for a, n in enumerate(plane.shape)]
    across = n4.log_field(fit, many)
    np.testing.assert_allclose(across, np.broadcast_to(field, many), atol=1e-6)
    repeated = n4.log_field(quick(np.repeat(plane, 6, axis=axis)), plane.shape)
    np.testing.assert_allclose(field, repeated, atol=0.25 * field.std())


def test_a_thin_volume_that_shrinks_to_one_plane():
    image, _ = phantom((3, 24, 28))
    corrected, fit = n4.n4_bias_field_correction(image, iterations=(5,))
    field = n4.log_field(fit, image.shape)
    assert np.ptp(field, axis=0).max() < 1e-6
    np.testing.assert_allclose(corrected, image / np.exp(field), rtol=1e-6)


def spoiled(index, value):
    image, _ = phantom()
    image[index] = value
    return image


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"image": np.ones((9, 9))}, "2 axes"),
        ({"image": np.ones((9, 9, 9), np.complex64)}, "complex64"),
        ({"control_points": (4, 3, 4)}, "at least 4 control points"),
        ({"mask": np.zeros((20, 24, 28), bool)}, "empty"),
        ({"mask": np.full((20, 24, 28), 255, np.uint8)}, "threshold it"),
        ({"mask": np.ones((20, 24, 27), bool)}, r"\(20, 24, 27\)"),
        ({"weights": np.ones((20, 24, 27))}, "weight image has shape"),
        ({"image": spoiled((3, 4, 5), np.nan)}, r"1 voxels .*\(3, 4, 5\)"),
        ({"image": spoiled((0, 4, 5), np.inf)}, r"\(0, 4, 5\)"),
        ({"number_of_histogram_bins": 1}, "2 bins"),
    ],
)
def test_what_cannot_be_fitted_is_refused(change, words):
    arguments = {"image": phantom()[0]} | change
    with pytest.raises(OctaneError, match=words):
        n4.fit_bias_field(**arguments)


# The device path, without a device


class FakeArray(np.ndarray):
    """A NumPy array that passes for a CuPy array."""


FakeArray.__module__ = "cupy"


def test_the_device_path_gives_the_same_field(monkeypatch):
    """Of the array form: one slab, arrays of a foreign namespace, results on the host."""
    cupy = ModuleType("cupy")
    vars(cupy).update(
        __getattr__=lambda name: getattr(np, name),
        asarray=lambda a, *args: np.asarray(a, *args).view(FakeArray),
        asnumpy=lambda a: np.asarray(a).view(np.ndarray),
    )
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(n4, "device_steps", lambda *_: iteration.Steps)
    image, _ = phantom()
    mask = image > 40
    expected = quick(image, mask)
    device = np.asarray(image).view(FakeArray)
    assert len(FitVoxels(device, mask, None, 1, 1000).slabs) == 1
    fit = quick(device, mask)
    assert type(fit.lattice) is np.ndarray
    np.testing.assert_allclose(fit.lattice, expected.lattice, atol=1e-6)
    field = n4.log_field(fit, image.shape, xp=cupy)
    np.testing.assert_array_equal(field, n4.log_field(fit, image.shape))


# On arrays, as a whole


@pytest.mark.parametrize("dtype", ["u2", "f4"])
def test_a_volume_is_shrunk_fitted_and_divided(monkeypatch, dtype):
    image = (10 * phantom((21, 24, 28))[0]).astype(dtype)
    mask = image > 400

    def run(workers):
        return n4.n4_bias_field_correction(
            image, mask, shrink_factor=(1, 2, 3), iterations=(6, 4), strength=0.7, workers=workers
        )

    corrected, fit = run(1)
    keep = n4.shrink_slices(image.shape, (1, 2, 3))
    equal(fit, quick(image[keep], mask[keep]))
    assert corrected.dtype == image.dtype
    expected = n4.correct(image, n4.log_field(fit, image.shape), 0.7)
    # The last bit may differ, and with it the way an integer is rounded.
    np.testing.assert_allclose(corrected, expected, rtol=1e-6, atol=dtype == "u2")
    monkeypatch.setattr(n4, "BLOCK", 5 * 24 * 28)
    again, _ = run(3)
    np.testing.assert_array_equal(again, corrected)


def test_arrays_that_do_not_fit_are_refused_before_they_are_shrunk():
    image, _ = phantom()
    with pytest.raises(OctaneError, match=r"mask has shape \(10, 24, 28\), the volume \(20"):
        n4.n4_bias_field_correction(image, np.ones((10, 24, 28)))
    with pytest.raises(OctaneError, match="2 axes"):
        n4.n4_bias_field_correction(image[0])
    with pytest.raises(OctaneError, match="0 to 1"):
        n4.n4_bias_field_correction(image, strength=-1)


# The pieces


def minimum(u):
    return itk_minimum(u, u[1:].min())


@given(
    st.lists(st.floats(-10, 10, width=32), min_size=2, max_size=40).filter(
        lambda u: len(set(u)) > 1
    )
)
def test_the_minimum_is_that_of_itk_s_scan(values):
    low, high = np.inf, -np.inf
    for v in values:
        if v > high:
            high = v
        elif v < low:
            low = v
    if np.isinf(low):
        low = values[0]
    assert minimum(np.array(values, np.float32)) == np.float32(low)


def test_the_minimum_of_a_ramp_is_found_in_one_pass():
    ramp = np.arange(100_000, dtype=np.float32)
    assert minimum(ramp) == 0
    ramp[-1] = 99_000
    assert minimum(ramp) == 99_000


def test_sharpening_pulls_values_to_the_peaks():
    x = np.linspace(0, 2, 200)
    histogram = 1e4 * (np.exp(-((x - 0.5) ** 2) / 0.02) + np.exp(-((x - 1.5) ** 2) / 0.02))
    mapped = sharpen(histogram, 0.0, x[1], 0.15, 0.01)
    assert 0.4 < mapped[np.argmin(abs(x - 0.4))] < 0.5
    assert 1.5 < mapped[np.argmin(abs(x - 1.6))] < 1.6


def sequential(p):
    """ITK's loop, one voxel at a time, in its types: the value, and the mean after each voxel."""
    f = np.float32
    n, mu, s, path = f(0), f(0), f(0), []
    for value in p:
        n = f(n + f(1))
        count = float(n)
        if count > 1:
            d = f(value - mu)
            s = f(float(s) + float(f(d * d)) * (count - 1) / count)
        mu = f(float(mu) * (1 - 1 / count) + float(f(value / n)))
        path.append(mu)
    return float(f(np.sqrt(f(float(s) / (len(p) - 1))) / mu)), np.array(path)


def measure(p):
    d = p.astype(np.float64) - 1
    return running_variation(lambda k: p[:k], d.sum(), np.square(d).sum(), np.abs(d).max(), len(p))


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 3000), st.floats(1e-5, 0.5), st.floats(0.9, 1.1), st.integers(0, 2**32 - 1))
def test_the_running_mean_equals_the_loop(n, spread, centre, seed):
    p = (centre + spread * np.random.default_rng(seed).uniform(-1, 1, n)).astype(np.float32)
    value, path = sequential(p)
    np.testing.assert_array_equal(running_mean(p), path)
    assert measure(p) == pytest.approx(value, rel=1e-5)


@pytest.mark.parametrize("order", ["smooth", "random", "ramp"])
@pytest.mark.parametrize("spread", [3e-4, 2e-3])
def test_the_measure_equals_the_loop_where_the_mean_freezes(order, spread):
    n = 150_000
    i = np.arange(n)
    shapes = {
        "smooth": np.sin(i / 700) + 0.5 * np.cos(i / 31_000),
        "random": np.random.default_rng(0).standard_normal(n),
        "ramp": i / n,
    }
    p = (1.001 + spread * shapes[order]).astype(np.float32)
    value, path = sequential(p)
    assert measure(p) == pytest.approx(value, rel=2e-5)
    np.testing.assert_array_equal(running_mean(p[:40_000]), path[:40_000])
    d = p.astype(np.float64) - 1
    true = variation(d.sum(), np.square(d).sum(), n)
    assert true == pytest.approx(p.std(ddof=1, dtype=np.float64) / p.mean(dtype=np.float64))
    assert value > true * (1 - 7e-4)
    if order == "ramp":
        assert value > 1.05 * true  # the case the emulation is for


def test_the_measure_of_one_voxel_is_zero():
    assert measure(np.ones(1, np.float32)) == 0
    assert variation(0.0, 0.0, 1) == 0


# What is done with the field


def test_the_field_chunk_by_chunk_is_the_whole_field():
    image, _ = phantom()
    fit = quick(image)
    shape = (41, 47, 57)
    whole = n4.log_field(fit, shape)
    parts = np.empty_like(whole)
    for z in range(0, 41, 13):
        for y in range(0, 47, 16):
            for x in range(0, 57, 20):
                region = tuple(
                    slice(a, min(a + s, n))
                    for a, s, n in zip((z, y, x), (13, 16, 20), shape, strict=True)
                )
                parts[region] = n4.log_field(fit, shape, region)
    np.testing.assert_array_equal(parts, whole)


@pytest.mark.parametrize("dtype", ["u1", "u2", "i4", "u8", "f2", "f4", "f8"])
def test_strength_zero_is_the_input(dtype):
    block = np.arange(60).reshape(3, 4, 5).astype(dtype)
    field = np.full(block.shape, 0.3, np.float32)
    result = n4.correct(block, field, 0.0)
    assert result.dtype == block.dtype
    assert result.tobytes() == block.tobytes()


@given(st.floats(0, 1), st.floats(-1, 1), st.floats(0.125, 1000))
def test_strength_blends_against_the_input(strength, field, value):
    block = np.full((1, 1, 2), value)
    result = n4.correct(block, np.full(block.shape, field, np.float32), strength)
    full = value / np.exp(np.float64(np.float32(field)))
    np.testing.assert_allclose(result, (1 - strength) * value + strength * full, rtol=1e-12)


@pytest.mark.parametrize("dtype", ["u1", "i2", "u2", "i4", "u4", "i8", "u8"])
def test_integers_are_rounded_and_clipped(dtype):
    info = np.iinfo(dtype)
    block = np.array([[[0, 3, 100, info.max, info.min]]], dtype)
    brighter = n4.correct(block, np.full(block.shape, -np.log(1.5), np.float32))
    assert brighter.dtype == block.dtype
    assert brighter[0, 0, :2].tolist() == [0, 4]  # 4.5 to even
    # The largest value that float64 holds of 64-bit integers is not quite their maximum.
    assert int(brighter[0, 0, 3]) == pytest.approx(info.max, rel=1e-12)
    assert brighter[0, 0, 4] == (info.min if info.min else 0)
    darker = n4.correct(block, np.full(block.shape, np.log(1.5), np.float32))
    assert darker[0, 0, 2] == 67


def test_correct_refuses_what_it_cannot_do():
    field = np.zeros((1, 1, 1), np.float32)
    with pytest.raises(OctaneError, match="0 to 1"):
        n4.correct(field, field, 1.5)
    with pytest.raises(OctaneError, match="complex64"):
        n4.correct(field.astype(np.complex64), field)
    with pytest.raises(OctaneError, match="shrink factor"):
        n4.shrink_slices((4, 4, 4), (1, 0, 1))
