import logging
import threading
from functools import partial
from types import ModuleType
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from n4_volumes import biased_ball
from refusals import refused

from octane.core.errors import OctaneError
from octane.processes.n4 import apply, kernels
from octane.processes.n4 import fit as n4
from octane.processes.n4.cpu import CompiledSteps
from octane.processes.n4.cuda import CudaSteps
from octane.processes.n4.iteration import Moments, Steps, itk_minimum, itk_variation


def quick(image, mask=None, **options):
    return n4.fit_bias_field(image, mask, iterations=(6, 4), **options)


SHAPE = (20, 24, 28)
IMAGE = biased_ball(SHAPE)
MASK = IMAGE > 40


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
    cupy = ModuleType("cupy")
    assert n4.steps_for(cupy, (9, 9, 1 << 16), 1024) is CudaSteps
    assert n4.steps_for(cupy, (9, 9, 9), 1025) is n4.steps_for(cupy, (9, 9, 65537), 200) is Steps


def test_the_lattice_is_refined_between_levels():
    seen = []
    fit = n4.fit_bias_field(
        IMAGE,
        iterations=(1, 1, 1),
        control_points=(4, 5, 6),
        on_iteration=lambda *a: seen.append(a),
    )
    assert fit.lattice.shape == (7, 11, 15)
    assert fit.lattice.dtype == np.float32
    assert [level.iterations for level in fit.levels] == [1, 1, 1]
    assert seen == [(k, 0, level.convergence[0]) for k, level in enumerate(fit.levels)]


def test_repeats_and_any_number_of_workers_give_the_same_bits_and_slabs_change_rounding_only(
    kind, monkeypatch
):
    whole = quick(IMAGE, MASK)
    monkeypatch.setattr(kind, "SLAB", 1000)
    monkeypatch.setattr(CompiledSteps, "SHARED", 0)
    first = quick(IMAGE, MASK)
    np.testing.assert_allclose(first.lattice, whole.lattice, atol=1e-6)
    for workers in (1, 2, 30):
        equal(quick(IMAGE, MASK, workers=workers), first)


def test_an_error_between_iterations_ends_the_threads(monkeypatch):
    monkeypatch.setattr(CompiledSteps, "SLAB", 1000)
    monkeypatch.setattr(CompiledSteps, "SHARED", 0)
    before = threading.active_count()
    during = []

    def fail(*_):
        during.append(threading.active_count())
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        quick(IMAGE, MASK, workers=3, on_iteration=fail)
    assert before < during[0] <= before + 3
    assert threading.active_count() == before


@pytest.mark.usefixtures("kind")
def test_values_outside_the_mask_do_not_matter_and_a_mask_of_everything_is_no_mask():
    equal(quick(np.where(MASK, IMAGE, np.nan), MASK), quick(IMAGE, MASK))
    equal(quick(IMAGE, np.ones(IMAGE.shape, np.uint8)), quick(IMAGE))


@pytest.mark.usefixtures("kind")
def test_weights_of_one_are_no_weights_and_of_zero_are_a_mask():
    expected = quick(IMAGE, MASK)
    equal(quick(IMAGE, MASK, weights=np.ones(IMAGE.shape)), expected)
    equal(quick(IMAGE, weights=MASK.astype(float)), expected)
    half = np.where(np.arange(28) < 14, 0.1, 1.0) * np.ones(IMAGE.shape)
    weighted = quick(IMAGE, MASK, weights=half)
    assert np.abs(weighted.lattice - expected.lattice).max() > 1e-3


@pytest.mark.usefixtures("kind")
def test_a_constant_image_has_no_bias(caplog):
    with caplog.at_level(logging.WARNING):
        fit = n4.fit_bias_field(np.full((8, 9, 10), 7.0))
    assert (fit.lattice == 0).all()
    assert [level.iterations for level in fit.levels] == [0, 0, 0, 0]
    assert len(caplog.records) == 1
    assert "same value" in caplog.text


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_an_axis_of_one_voxel_is_left_out_of_the_fit(axis, kind):
    """A plane's field nearly equals that of its repetitions, and is constant across them."""
    plane = np.take(biased_ball((32, 32, 32)), [10], axis=axis)
    fit = quick(plane)
    field = n4.log_field(fit, plane.shape)
    assert field.std() > 0.02
    many = [6 if a == axis else n for a, n in enumerate(plane.shape)]
    across = n4.log_field(fit, many)
    np.testing.assert_allclose(across, np.broadcast_to(field, many), atol=1e-6)
    repeated = n4.log_field(quick(np.repeat(plane, 6, axis=axis)), plane.shape)
    np.testing.assert_allclose(field, repeated, atol=0.25 * field.std())


def spoiled(index, value):
    image = IMAGE.copy()
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
        ({"bias_field_fwhm": 0}, "bias_field_fwhm is 0 .* above 0"),
        ({"wiener_filter_noise": 0}, "wiener_filter_noise 0: give both above 0"),
        ({"iterations": 50}, "iterations is 50: give a list"),
        ({"iterations": (50, -1)}, "-1.*: give a list .* 0 or more"),
    ],
)
def test_what_cannot_be_fitted_is_refused(change, words):
    arguments = {"image": IMAGE} | change
    with pytest.raises(OctaneError, match=words):
        n4.fit_bias_field(**arguments)


# On arrays, as a whole


@pytest.mark.parametrize("dtype", ["u2", "f4"])
def test_a_volume_is_shrunk_fitted_and_divided(monkeypatch, dtype):
    image = (10 * biased_ball((21, 24, 28))).astype(dtype)
    mask = image > 400

    def run(workers):
        return n4.n4_bias_field_correction(
            image, mask, shrink_factor=(1, 2, 3), iterations=(6, 4), strength=0.7, workers=workers
        )

    corrected, fit = run(1)
    keep = n4.shrink_slices(image.shape, (1, 2, 3))
    equal(fit, quick(image[keep], mask[keep]))
    assert corrected.dtype == image.dtype
    field = n4.log_field(fit, image.shape)
    expected = apply.divide(image, field, 0.7, image.dtype, image)
    # The last bit may differ, and with it the rounding of an integer.
    np.testing.assert_allclose(corrected, expected, rtol=1e-6, atol=dtype == "u2")
    monkeypatch.setattr(n4, "BLOCK", 5 * 24 * 28)
    again, _ = run(3)
    np.testing.assert_array_equal(again, corrected)


def test_arrays_that_do_not_fit_are_refused_before_they_are_shrunk():
    with refused("mask", "(10, 24, 28)", f"{IMAGE.shape}"):
        n4.n4_bias_field_correction(IMAGE, np.ones((10, 24, 28)))
    with refused("2 axes"):
        n4.n4_bias_field_correction(IMAGE[0])
    with refused("0 to 1"):
        n4.n4_bias_field_correction(IMAGE, strength=-1)
    with refused("shrink factor"):
        n4.n4_bias_field_correction(IMAGE, shrink_factor=(1, 0, 1))
    for wrong in ((4, 4), 2.5, "auto"):
        with refused(wrong):
            n4.n4_bias_field_correction(IMAGE, shrink_factor=cast("int", wrong))
        with refused("control_points"):
            n4.n4_bias_field_correction(IMAGE, control_points=cast("int", wrong))
    # So are constant volumes, and those constant within the mask.
    for volume, mask in ((np.full((8, 9, 10), 7.0), None), (np.where(MASK, 7, IMAGE), MASK)):
        with refused("the same value, 7"):
            n4.n4_bias_field_correction(volume, mask)


@pytest.mark.parametrize("dtype", ["f4", "f8", "i2"])
@pytest.mark.parametrize("given", ["nothing", "mask", "weights"])
@pytest.mark.parametrize("value", [0, -300, 1e-20, 1e9, 1e30, np.nan, -np.inf])
def test_voxels_that_spoil_the_fit_are_left_out_of_a_volume(caplog, dtype, given, value):
    caplog.set_level("INFO")
    if dtype == "i2" and value not in (0, -300):
        pytest.skip("not an integer of 16 bits")
    image = (10 * IMAGE).astype(dtype)
    spoiled = image.copy()
    spoiled[8:12:2, 10:14:2, 12:16:2] = value
    mask = MASK.astype(np.uint8) if given == "mask" else None
    weights = MASK.astype(np.uint8) if given == "weights" else None
    sound = (spoiled == image) & (1 if mask is None else mask)
    correct = partial(
        n4.n4_bias_field_correction, weights=weights, shrink_factor=1, iterations=(6, 4)
    )
    corrected, fit = correct(spoiled, mask)
    _, expected = correct(image, sound)
    equal(fit, expected)
    assert corrected.dtype == image.dtype
    assert "excluded from the fit: 8 voxels" in caplog.text
    if np.isfinite(value):
        _, literal = correct(spoiled, mask, use_all_voxels=True)
        equal(literal, quick(spoiled, mask, weights=weights))
        assert np.abs(literal.lattice - expected.lattice).max() > 1e-3


def test_a_volume_that_needs_no_voxel_left_out_has_the_bits_of_itk_s_way(caplog):
    for mask in (None, MASK):
        for image in (IMAGE, np.rint(IMAGE).astype(np.uint8)):
            fits = [
                n4.n4_bias_field_correction(
                    image, mask, shrink_factor=2, iterations=(4,), use_all_voxels=every
                )[1]
                for every in (False, True)
            ]
            equal(*fits)
    assert not caplog.records


def test_a_volume_without_a_value_above_0_is_refused():
    with refused("above 0"):
        n4.n4_bias_field_correction(IMAGE - 1000)


def test_one_number_stands_for_three():
    correct = partial(n4.n4_bias_field_correction, IMAGE, MASK, iterations=(3,))
    one, _ = correct(shrink_factor=2, control_points=5)
    three, _ = correct(shrink_factor=(2, 2, 2), control_points=(5, 5, 5))
    np.testing.assert_array_equal(one, three)


# The pieces


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
    u = np.array(values, np.float32)
    assert itk_minimum(u, u[1:].min()) == np.float32(low)


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
    moments = Moments(d.sum(), np.square(d).sum(), np.abs(d).max())
    return itk_variation(moments, len(p), lambda k: p[:k]), moments.variation(len(p))


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
    found, true = measure(p)
    assert found == pytest.approx(value, rel=2e-5)
    assert kernels.follow(p[:40_000])[1] == path[39_999]
    assert true == pytest.approx(p.std(ddof=1, dtype=np.float64) / p.mean(dtype=np.float64))
    assert value > true * (1 - 7e-4)
    if order == "ramp":
        assert value > 1.05 * true  # the case the emulation is for
