"""A volume resampled block by block equals the whole bit for bit."""

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octane import streaming
from octane.dtypes import as_dtype
from octane.errors import OctaneError
from octane.geometry import Grid
from octane.metrics import Metrics
from octane.operators import resampled
from octane.resample import resample


class Source:
    """An array that counts what is read of it, at most at once and altogether."""

    def __init__(self, voxels):
        self.voxels, self.largest, self.total = voxels, 0, 0

    def __call__(self, region):
        block = self.voxels[region].copy()
        self.largest = max(self.largest, block.size)
        self.total += block.size
        return block


class Result:
    """An array that refuses to be written twice."""

    def __init__(self, shape, dtype):
        self.voxels, self.written = np.zeros(shape, dtype), np.zeros(shape, int)

    def __setitem__(self, region, block):
        self.voxels[region] = block
        self.written[region] += 1


def stream(voxels, operators, owned, dtype, memory=2 * 10**9):
    source = Source(voxels)
    result = Result([operator.size for operator in operators], dtype)
    streaming.stream_resample(
        source,
        result,
        operators,
        owned,
        dtype,
        label="TEST",
        source_dtype=voxels.dtype,
        xp=np,
        metrics=Metrics("test"),
        memory=memory,
        workers=2,
    )
    return result, source


def whole(voxels, operators, dtype):
    return as_dtype(resample(voxels, operators), dtype)


def noise(dtype, shape):
    rng = np.random.default_rng(3)
    values = rng.gamma(2.0, 200.0, shape)
    if dtype == "complex64":
        values = values * np.exp(2j * np.pi * rng.random(shape))
    return values.astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "uint16", "complex64", "float64"])
@pytest.mark.parametrize(
    "target", [(2.5, 2.5, 2.5), (math.pi, math.e, 1.3), (3.0, 1.0, 1.0), (0.7, 0.8, 2.0)]
)
@pytest.mark.parametrize("owned", [(4, 8, 8), (7, 5, 100), (100, 3, 11)])
def test_blocks_equal_the_whole_bit_for_bit(dtype, target, owned, monkeypatch):
    # One plane at a time, the most that blocks can be cut.
    monkeypatch.setattr(streaming, "SLAB_BYTES", 1)
    voxels = noise(dtype, (29, 34, 41))
    _, operators = resampled(Grid(voxels.shape, (1.0, 1.0, 1.0)), target)
    result, source = stream(voxels, operators, owned, dtype)
    np.testing.assert_array_equal(result.voxels, whole(voxels, operators, dtype))
    assert (result.written == 1).all()
    assert source.largest < voxels.size


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    shape=st.tuples(*[st.integers(1, 20)] * 3),
    target=st.tuples(*[st.floats(0.5, 5)] * 3),
    owned=st.tuples(*[st.integers(1, 9)] * 3),
    slab=st.sampled_from([1, 2000, 64_000_000]),
)
def test_any_cut_of_any_volume_gives_the_same_bits(shape, target, owned, slab, monkeypatch):
    monkeypatch.setattr(streaming, "SLAB_BYTES", slab)
    voxels = noise("float32", shape)
    _, operators = resampled(Grid(shape, (1.0, 1.0, 1.0)), target)
    result, _ = stream(voxels, operators, owned, "float32")
    np.testing.assert_array_equal(result.voxels, whole(voxels, operators, "float32"))
    assert (result.written == 1).all()


def test_a_slab_holds_no_more_than_it_may(monkeypatch):
    voxels = noise("float32", (64, 40, 40))
    _, operators = resampled(Grid(voxels.shape, (1.0, 1.0, 1.0)), (2.0, 2.0, 2.0))
    monkeypatch.setattr(streaming, "SLAB_BYTES", voxels.nbytes // 4)
    _, source = stream(voxels, operators, (32, 20, 20), "float32")
    assert source.largest <= voxels.size / 4
    assert source.total == voxels.size


@pytest.mark.parametrize("slab_bytes", [1, 30_000])
def test_what_an_output_takes_of_the_slab_before_is_not_read_again(slab_bytes, monkeypatch):
    voxels = noise("float32", (64, 40, 40))
    _, operators = resampled(Grid(voxels.shape, (1.0, 1.0, 1.0)), (2.0, 2.0, 2.0))
    monkeypatch.setattr(streaming, "SLAB_BYTES", slab_bytes)
    _, source = stream(voxels, operators, (16, 20, 20), "float32")
    needed = [operators[0].part(slice(start, start + 16))[1] for start in (0, 16)]
    assert source.total == sum(n.stop - n.start for n in needed) * 40 * 40


def test_what_was_read_and_written_is_counted():
    voxels = noise("uint16", (10, 12, 14))
    _, operators = resampled(Grid(voxels.shape, (1.0, 1.0, 1.0)), (2.0, 2.0, 2.0))
    metrics = Metrics("test")
    result = Result([operator.size for operator in operators], "float32")
    streaming.stream_resample(
        Source(voxels),
        result,
        operators,
        (100, 100, 100),
        "float32",
        label="TEST",
        source_dtype=voxels.dtype,
        xp=np,
        metrics=metrics,
        memory=10**9,
        workers=1,
    )
    assert metrics.bytes == {"read": voxels.nbytes, "written": result.voxels.nbytes}
    assert set(metrics.seconds) == {"read", "compute", "write"}


def test_too_little_memory_is_said_before_anything_is_read():
    voxels = noise("float32", (10, 12, 14))
    _, operators = resampled(Grid(voxels.shape, (1.0, 1.0, 1.0)), (2.0, 2.0, 2.0))
    with pytest.raises(OctaneError, match="--memory"):
        stream(voxels, operators, (4, 4, 4), "float32", memory=1000)
