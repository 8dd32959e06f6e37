"""The nearest voxel of any type keeps its bits, against a definition in exact fractions."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from resampling import pushed, voxels

from octane.core.arrays import as_dtype
from octane.core.geometry import samples
from octane.core.metrics import Metrics
from octane.gpu.pinned import HostMemory
from octane.pipeline.lanes import Lane
from octane.resample.nearest import NearestResampler
from octane.resample.operator import resampler

TYPES = ["?", "u1", "i2", ">u2", "i4", "u8", ">i8", "f2", "f4", ">f8", "c8", "c16"]


@pytest.fixture(scope="module")
def taking():
    """One resampler for all tests."""
    metrics = Metrics("test")
    with HostMemory(np) as memory:
        lane = Lane(np, metrics, memory, metrics.timeline.track("lane"))
        with lane.active():
            yield NearestResampler(lane)


def nearest_samples(n, spacing, target, first_edge=None):
    """The sample whose centre is nearest to each output's, of two the first."""
    spacing, target = Fraction(spacing), Fraction(target)
    m = samples(float(n * spacing), float(target))
    edge = (n * spacing - m * target) / 2 if first_edge is None else first_edge
    centres = [edge + (k + Fraction(1, 2)) * target for k in range(m)]
    return [
        min(range(n), key=lambda i: (abs((i + Fraction(1, 2)) * spacing - c), i)) for c in centres
    ]


@settings(max_examples=60)
@given(n=st.integers(1, 60), spacing=st.integers(1, 40), target=st.integers(1, 160))
@example(n=8, spacing=1, target=2)
@example(n=9, spacing=1, target=2)
@example(n=9, spacing=2, target=1)
def test_each_output_is_the_nearest_sample_and_of_two_the_first(n, spacing, target):
    # As decimals, such as 0.7 and 2.1, most of which are not binary fractions.
    operator = resampler(n, spacing / 10, target / 10, averaged=False)
    assert operator.start.tolist() == nearest_samples(n, spacing, target)
    assert operator.weight.tolist() == [[1.0]] * operator.size
    level = resampler(n, spacing / 10, target / 10, operator.size, averaged=False)
    assert level.start.tolist() == nearest_samples(n, spacing, target, 0)


def operators_of(shape, factors):
    return [resampler(n, 1.0, f, averaged=False) for n, f in zip(shape, factors, strict=True)]


def taken_from(array, operators):
    return array[np.ix_(*(operator.start for operator in operators))]


@settings(max_examples=60)
@given(
    dtype=st.sampled_from(TYPES),
    shape=st.tuples(*[st.integers(1, 20)] * 3),
    factors=st.tuples(*[st.one_of(st.floats(0.34, 4), st.integers(1, 30).map(float))] * 3),
    batch=st.integers(1, 21),
    padding=st.tuples(st.just(0), *[st.integers(0, 4)] * 2),
)
def test_every_type_keeps_its_bits_in_any_batches(taking, dtype, shape, factors, batch, padding):
    # Any bits, so that there are NaNs of any payload, -0.0 and large integers.
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    bits = np.random.default_rng(size).integers(0, 2 if dtype == "?" else 256, size, np.uint8)
    array = bits.view(dtype).reshape(shape)
    operators = operators_of(shape, factors)
    padded = np.pad(array, [(0, n) for n in padding], mode="edge")
    native = np.dtype(dtype).newbyteorder("=")
    found = pushed(taking, padded, operators, native, batch=batch)
    assert found.dtype == native
    assert found.tobytes() == taken_from(array, operators).astype(native).tobytes()


@pytest.mark.parametrize("made", ["u1", "i4", "f4", "f8", "?"])
@pytest.mark.parametrize("dtype", ["f4", "i2", ">u2"])
def test_another_type_is_that_of_the_voxels_taken(taking, dtype, made):
    array = voxels((9, 10, 11), dtype)
    operators = operators_of(array.shape, (2.0, 1.3, 3.0))
    found = pushed(taking, array, operators, made, batch=4)
    np.testing.assert_array_equal(found, as_dtype(taken_from(array, operators), made))
