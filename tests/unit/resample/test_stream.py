"""A volume resampled block by block equals the whole bit for bit."""

import json
import math
from pathlib import Path
from typing import ClassVar

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st
from resampling import operators_of
from resampling import voxels as noise

from octane.config.parameters import ExecutionParameters
from octane.core.arrays import as_dtype
from octane.core.geometry import Grid
from octane.core.metrics import Metrics
from octane.pipeline.workers import PROCESS_BYTES
from octane.resample.operator import resampled
from octane.resample.resampler import resample
from octane.resample.stream import StreamPlan, stream_resample
from octane.store.image import open_image
from octane.store.writer import Level


class Source:
    """A volume that records what is read from it."""

    path = Path("source.zarr")
    attributes: ClassVar = {}
    worker_bytes = 0

    def __init__(self, voxels, slab=16):
        self.voxels, self.largest, self.read_bytes = voxels, 0, 0
        self.chunks = (slab, *voxels.shape[1:])
        self.grid, self.dtype = Grid(voxels.shape, (1.0, 1.0, 1.0)), voxels.dtype
        self.whole_bytes = voxels.nbytes

    def read(self, region, out=None):
        block = self.voxels[region]
        # Slabs end at chunk borders.
        assert region[0].start // self.chunks[0] == (region[0].stop - 1) // self.chunks[0]
        self.largest = max(self.largest, block.size)
        self.read_bytes += block.nbytes
        if out is None:
            return block.copy()
        out[...] = block
        return out


class Result:
    """An array that refuses to be written twice."""

    def __init__(self, shape, dtype):
        self.voxels, self.written = np.zeros(shape, dtype), np.zeros(shape, int)

    def __setitem__(self, region, block):
        self.voxels[region] = block
        self.written[region] += 1

    def fill(self, region, make, _):
        self[region] = make(region)


def level_of(operators, owned):
    return Level(Grid(tuple(operator.size for operator in operators), (1.0, 1.0, 1.0)), owned)


def stream(
    voxels, operators, owned, dtype, memory="2GB", slab=16, metrics=None, workers=2, averaged=True
):
    source = Source(voxels, slab)
    result = Result([operator.size for operator in operators], dtype)
    execution = ExecutionParameters(backend="cpu", memory=memory, workers=workers)
    level = level_of(operators, owned)
    plan = StreamPlan(source, level, np.dtype(dtype), operators, averaged)  # ty: ignore
    metrics = Metrics("test") if metrics is None else metrics
    stream_resample(plan, plan.lanes(execution), result, label="TEST", metrics=metrics)
    return result, source


def whole(voxels, operators, dtype):
    return as_dtype(resample(voxels, operators), dtype)


def halved(voxels, factor=2.0):
    return operators_of(voxels.shape, (factor,) * 3)


@settings(max_examples=25)
@given(
    dtype=st.sampled_from(["float32", "uint16", "complex64", "float64"]),
    shape=st.tuples(*[st.integers(1, 25)] * 3),
    target=st.tuples(*[st.floats(0.5, 5)] * 3),
    owned=st.tuples(*[st.integers(1, 9)] * 3),
    slab=st.integers(1, 30),
)
@example("float32", (29, 34, 41), (math.pi, math.e, 1.3), (7, 5, 100), 1)
@example("uint16", (29, 34, 41), (3.0, 1.0, 1.0), (100, 3, 11), 1)
def test_any_cut_of_any_volume_gives_the_same_bits(dtype, shape, target, owned, slab):
    voxels = noise(shape, dtype)
    _, operators = resampled(Grid(shape, (1.0, 1.0, 1.0)), target)
    result, _ = stream(voxels, operators, owned, dtype, slab=slab)
    np.testing.assert_array_equal(result.voxels, whole(voxels, operators, dtype))
    assert (result.written == 1).all()


@settings(max_examples=25)
@given(
    dtype=st.sampled_from(["float32", "uint64", "complex64"]),
    shape=st.tuples(*[st.integers(1, 25)] * 3),
    target=st.tuples(*[st.floats(0.5, 5)] * 3),
    owned=st.tuples(*[st.integers(1, 9)] * 3),
    slab=st.integers(1, 30),
)
def test_the_nearest_voxels_are_the_same_in_any_cut(dtype, shape, target, owned, slab):
    voxels = noise(shape, dtype)
    _, operators = resampled(Grid(shape, (1.0, 1.0, 1.0)), target, averaged=False)
    result, _ = stream(voxels, operators, owned, dtype, slab=slab, averaged=False)
    expected = voxels[np.ix_(*(operator.start for operator in operators))]
    np.testing.assert_array_equal(result.voxels, expected)


def test_slabs_are_cut_where_memory_is_short():
    voxels = noise((64, 400, 400), "float32")
    operators = halved(voxels, 8.0)
    # Memory for the whole source and half as much again.
    memory = f"{(PROCESS_BYTES + voxels.nbytes * 3 // 2) // 1000} kB"
    result, source = stream(voxels, operators, (8, 50, 50), "float32", memory, slab=64)
    assert source.largest < voxels.size / 1.9
    np.testing.assert_array_equal(result.voxels, whole(voxels, operators, "float32"))


def test_slabs_of_chunks_that_are_read_in_parts_stay_in_the_cache(write_image, monkeypatch):
    voxels = noise((64, 40, 40), "float32")
    monkeypatch.setattr("octane.resample.stream.SLAB_BYTES", voxels[:12].nbytes)
    path = write_image("raw.zarr", voxels, chunks=(32, 40, 40), codec="none")
    operators, execution = halved(voxels), ExecutionParameters()

    def slab():
        level = level_of(operators, (32, 20, 20))
        plan = StreamPlan(open_image(path), level, np.dtype("float32"), operators)
        return plan.lanes(execution).planes

    # A checksum needs the entire chunk.
    assert slab() == 32
    metadata = json.loads((path / "0" / "zarr.json").read_text())
    metadata["codecs"].pop()
    (path / "0" / "zarr.json").write_text(json.dumps(metadata))
    assert slab() == 8
