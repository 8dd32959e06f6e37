"""The compiled resampler equals sums over whole arrays bit for bit, however planes are pushed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from resampling import operators_of, resample_arrays, voxels

from octane.core.arrays import as_dtype
from octane.resample.cpu import CompiledResampler
from octane.resample.operator import AxisOperator, interpolator

REAL = ["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8"]
OTHERS = ["?", "f2", ">u2", ">f4", ">c8", "c8", "c16"]
QUICK = ["u2", "f4", "f8", *OTHERS]
"""Types that are not left to soak; on a fresh machine each has to be compiled."""


def case(dtype):
    """Case of a test on one type."""
    return pytest.param(dtype, marks=() if dtype in QUICK else pytest.mark.soak)


# Shared by all tests, so that leftovers of an earlier tile in its buffers would show.
KEPT = CompiledResampler()


def stream(planes, operators, out_dtype, batches=(1000,), resampler=KEPT):
    """Push planes in batches of alternating sizes, half of them through the buffer."""
    resampler.begin(operators, planes.shape[1:], planes.dtype, out_dtype)
    start, turn = 0, 0
    while start < len(planes):
        part = planes[start : start + batches[turn % len(batches)]]
        if turn % 2:
            buffer = resampler.buffer(len(part))
            buffer[...] = part
            part = buffer
        resampler.push(part)
        start, turn = start + len(part), turn + 1
    return resampler.finish()


def same_bits(result, expected):
    assert result.dtype == expected.dtype
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("dtype", [case(dtype) for dtype in REAL + OTHERS])
def test_it_equals_sums_of_whole_arrays_bit_for_bit(dtype):
    array = voxels((13, 21, 37), dtype)
    operators = operators_of(array.shape, (2.5, 3.0, 10 / 3.5))
    expected = resample_arrays(array, operators)
    same_bits(stream(array, operators, expected.dtype, (3, 1, 4)), expected)
    same_bits(stream(array, operators, dtype, (2,)), as_dtype(expected, dtype))


@pytest.mark.parametrize(
    ("dtype", "out"),
    [
        *(("f4", out) for out in ("u1", "i2", "?", "f2", ">i2")),
        *(pytest.param("f4", out, marks=pytest.mark.soak) for out in ("u4", "i8", "f8")),
        *(pytest.param("f8", out, marks=pytest.mark.soak) for out in ("i4", "u8", "f4")),
    ],
)
def test_integers_are_rounded_half_to_even_and_clipped(dtype, out):
    some = [-1.5, -0.5, 0.49, 0.5, 1.5, 2.5]
    if np.dtype(out).kind in "iu":
        some += [np.iinfo(out).min, np.iinfo(out).max, -1e20, 1e20]
    line = np.array(some, dtype).reshape(1, 1, -1)
    same = [interpolator(np.arange(float(n)), n) for n in line.shape]
    same_bits(stream(line, same, out), as_dtype(line, out))


@settings(max_examples=120)
@given(data=st.data())
def test_any_part_pushed_in_any_batches_gives_the_bits_of_the_whole(data):
    draw = data.draw
    shape = draw(st.tuples(st.integers(1, 30), st.integers(1, 40), st.integers(1, 70)))
    factors = draw(st.tuples(*[st.floats(0.4, 6)] * 3))
    dtype = draw(st.sampled_from(["f4", "f4", "u2", "c8", "f8"]))
    array = voxels(shape, dtype)
    operators = operators_of(shape, factors)
    whole = as_dtype(resample_arrays(array, operators), dtype)
    region = []
    for operator in operators:
        start = draw(st.integers(0, operator.size - 1))
        region.append(slice(start, draw(st.integers(start + 1, operator.size))))
    parts, needed = zip(*(o.part(r) for o, r in zip(operators, region, strict=True)), strict=True)
    padding = draw(st.tuples(*[st.integers(0, 3)] * 3))
    padded = np.pad(array[needed], [(0, n) for n in padding], constant_values=99)
    batches = draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    expected = whole[tuple(region)]
    same_bits(stream(padded, parts, dtype, batches), expected)


@pytest.mark.parametrize("taps", range(1, 40))
def test_any_number_of_taps_is_summed_in_order(taps):
    rng = np.random.default_rng(taps)
    n = taps + 9
    operator = AxisOperator(np.array([0, 2, 3, 3, 9]), rng.normal(size=(5, taps)))
    for axis in range(3):
        shape = [3, 4, 5]
        shape[axis] = n
        operators = [interpolator(np.arange(float(k)), k) for k in shape]
        operators[axis] = operator
        array = voxels(shape, "f4")
        same_bits(stream(array, operators, "f4", (2, 3)), resample_arrays(array, operators))


def test_planes_that_no_output_takes_are_passed_over():
    array = voxels((12, 3, 4), "f4")
    operators = [interpolator(np.arange(float(n)), n) for n in array.shape]
    operators[0] = AxisOperator(np.array([2, 7]), np.ones((2, 1)))
    for batches in ((1,), (3, 2)):
        same_bits(stream(array, operators, "f4", batches), array[[2, 7]])


@pytest.mark.parametrize(
    "change",
    [
        np.asfortranarray,
        lambda a: np.repeat(a, 2, axis=2)[:, :, ::2],
        lambda a: a[::-1, ::-1].copy()[::-1, ::-1],
        lambda a: a.view(),
    ],
    ids=["fortran", "strides", "reversed", "read-only"],
)
def test_arrays_of_any_strides_are_taken_and_left_as_they_were(change):
    array = voxels((9, 12, 15), "f4")
    kept = array.copy()
    operators = operators_of(array.shape, (2.0, 2.5, 3.0))
    view = change(array)
    view.flags.writeable = view.base is not array
    same_bits(stream(view, operators, "f4"), resample_arrays(array, operators))
    np.testing.assert_array_equal(view, kept)


def test_planes_that_are_too_small_are_refused():
    own, operators = CompiledResampler(), operators_of((9, 12, 15), (2.0, 2.0, 2.0))
    with refused(error=ValueError):
        own.begin(operators, (12, 14), "f4", "f4")
