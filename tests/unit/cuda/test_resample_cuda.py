"""Resampling by the CUDA kernel, run by the CPU: against arrays, and against SciPy in float64.

The stream's work is done as late as a GPU may do it, so that a host buffer which is filled too
early shows.
"""

import itertools
import math
from typing import cast

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from octane.core.arrays import as_dtype
from octane.core.geometry import Grid
from octane.core.metrics import Metrics
from octane.gpu.pinned import HostMemory
from octane.pipeline.lanes import run_pipeline
from octane.resample.gpu import TYPES, CudaResampler, device_bytes
from octane.resample.operator import AxisOperator, resampled, resampler
from octane.resample.resampler import resample, resample_arrays


@pytest.fixture(scope="module")
def memory(cuda_on_cpu):
    with HostMemory(cuda_on_cpu) as memory:
        yield memory
    assert not cuda_on_cpu.cuda.runtime.locked


@pytest.fixture(scope="module")
def resampler_(cuda_on_cpu, memory):
    """One for all: its buffers hold what earlier volumes left."""
    made = CudaResampler(cuda_on_cpu, memory)
    yield made
    made.close()


def by_arrays(array, operators, dtype=None):
    """The oracle."""
    return as_dtype(resample_arrays(array, operators), dtype or array.dtype)


def by_kernel(resampler, array, operators, dtype=None, batch=None, padding=(0, 0)):
    """Through the kernel, a batch of planes after the other, with what is behind them filled."""
    padded = np.pad(
        array, ((0, 0), (0, padding[0]), (0, padding[1])), mode="maximum", stat_length=1
    )
    resampler.begin(operators, padded.shape[1:], array.dtype, dtype or array.dtype)
    batch = batch or len(array)
    for first in range(0, len(array), batch):
        planes = padded[first : first + batch]
        buffer = resampler.buffer(len(planes))
        buffer[...] = planes
        resampler.push(buffer)
    return resampler.finish().copy()


def voxels(shape, dtype, seed=0):
    dtype, rng = np.dtype(dtype), np.random.default_rng(seed)
    if dtype.kind in "iu":
        limits = np.iinfo(str(dtype))
        return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    values = rng.gamma(2.0, 1.0, shape)
    if dtype.kind == "c":
        values = values * np.exp(2j * np.pi * rng.random(shape))
    return values.astype(dtype)


def operators_of(shape, factors):
    return [resampler(n, 1.0, f) for n, f in zip(shape, factors, strict=True)]


# Down by up to 30 (130 taps), up by up to 3, and as it is.
FACTORS = st.one_of(st.floats(0.34, 4), st.just(1.0), st.integers(2, 30).map(float))


@settings(max_examples=40)
@given(
    shape=st.tuples(st.integers(1, 12), st.integers(1, 24), st.integers(1, 40)),
    factors=st.tuples(FACTORS, FACTORS, FACTORS),
    dtype=st.sampled_from(["f4", "f8", "c8", "c16"]),
    batch=st.integers(1, 13),
    padding=st.tuples(st.integers(0, 3), st.integers(0, 5)),
    seed=st.integers(0, 2**32 - 1),
)
@example((1, 1, 1), (1.0, 1.0, 1.0), "f4", 1, (0, 0), 0)
@example((1, 1, 1), (0.5, 7.0, 0.34), "c8", 1, (1, 1), 0)
@example((5, 140, 150), (2.0, 30.0, 31.5), "f4", 2, (0, 0), 0)
def test_it_agrees_with_scipy_and_has_the_bits_of_the_arrays(
    resampler_, resampled_by_scipy, shape, factors, dtype, batch, padding, seed
):
    array = voxels(shape, dtype, seed)
    grid, operators = resampled(Grid(shape, (1.0, 1.0, 1.0)), factors)
    result = by_kernel(resampler_, array, operators, batch=batch, padding=padding)
    assert result.dtype == dtype
    np.testing.assert_array_equal(result, by_arrays(array, operators))
    expected = resampled_by_scipy(array, (1.0, 1.0, 1.0), factors, grid.shape)
    tolerance = 1e-6 if result.real.dtype == np.float32 else 1e-12
    np.testing.assert_allclose(result, expected, rtol=0, atol=tolerance * np.abs(array).max())


def test_as_many_taps_as_there_may_be(resampler_):
    operators = operators_of((2, 300, 9), (1.0, 33.0, 1.0))
    assert operators[1].taps == 130
    array = voxels((2, 300, 9), "f4")
    np.testing.assert_array_equal(
        by_kernel(resampler_, array, operators), by_arrays(array, operators)
    )


@settings(max_examples=20)
@given(
    data=st.data(),
    dtype=st.sampled_from(["f4", "u2", "c8"]),
    factors=st.tuples(*[st.floats(0.6, 3.5)] * 3),
)
def test_blocks_have_the_bits_of_the_whole(resampler_, data, dtype, factors):
    array = voxels((11, 17, 23), dtype)
    operators = operators_of(array.shape, factors)
    whole = by_kernel(resampler_, array, operators)
    outputs = []
    for axis in operators:
        first = data.draw(st.integers(0, axis.size - 1))
        outputs.append(slice(first, data.draw(st.integers(first + 1, axis.size))))
    parts = [axis.part(part) for axis, part in zip(operators, outputs, strict=True)]
    block = np.ascontiguousarray(array[tuple(taken for _, taken in parts)])
    result = by_kernel(resampler_, block, [axis for axis, _ in parts], batch=3)
    np.testing.assert_array_equal(result, whole[tuple(outputs)])


REAL = [t for t in TYPES if t.kind != "c"]


@pytest.mark.parametrize("target", REAL, ids=str)
@pytest.mark.parametrize("source", REAL, ids=str)
def test_every_type_is_taken_to_every_other(resampler_, source, target):
    array = voxels((4, 6, 9), source)
    if target.kind in "iu" and target.itemsize < 8 and source.kind == "f":
        # Halves among them, which are rounded to even, and values out of range.
        array = (np.rint(array * 4) / 2 * 10.0 ** min(source.itemsize, target.itemsize)).astype(
            source
        )
    operators = operators_of(array.shape, (1.3, 1.0, 1.7))
    result = by_kernel(resampler_, array, operators, target)
    with np.errstate(over="ignore"):
        expected = as_dtype(resample_arrays(array, operators), target)
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize(("source", "target"), [("c8", "c16"), ("c16", "c8")])
def test_complex_values_are_taken_to_complex_ones(resampler_, source, target):
    array = voxels((4, 6, 9), source)
    operators = operators_of(array.shape, (2.0, 1.5, 1.7))
    np.testing.assert_array_equal(
        by_kernel(resampler_, array, operators, target), by_arrays(array, operators, target)
    )


@pytest.mark.parametrize(("source", "target"), [(">f4", ">f4"), (">u2", "u2"), ("u2", ">u2")])
def test_bytes_of_the_other_order_are_turned(resampler_, source, target):
    array = voxels((7, 6, 9), np.dtype(source).newbyteorder("=")).astype(source)
    operators = operators_of(array.shape, (1.3, 1.0, 1.7))
    result = by_kernel(resampler_, array, operators, target, batch=2)
    assert result.dtype == target
    np.testing.assert_array_equal(result, by_arrays(array, operators, target))


def test_halves_are_rounded_to_even_and_the_rest_clipped(resampler_):
    array = np.array([-1.5, -0.5, 0.5, 1.5, 2.5, 254.5, 255.5, 1e9, -1e9], "f4")[None, None]
    same = operators_of(array.shape, (1.0, 1.0, 1.0))
    for dtype, expected in {
        "u1": [0, 0, 0, 2, 2, 254, 255, 255, 0],
        "i1": [-2, 0, 0, 2, 2, 127, 127, 127, -128],
        "i4": [-2, 0, 0, 2, 2, 254, 256, 10**9, -(10**9)],
        "?": [0, 0, 1, 1, 1, 1, 1, 1, 0],
    }.items():
        np.testing.assert_array_equal(by_kernel(resampler_, array, same, dtype)[0, 0], expected)
    far = np.array([3e9, -3e9, 2.0**31], "f4")[None, None]
    same = operators_of(far.shape, (1.0, 1.0, 1.0))
    np.testing.assert_array_equal(
        by_kernel(resampler_, far, same, "i4")[0, 0], [2**31 - 128, -(2**31), 2**31 - 128]
    )


def test_every_float16_is_read(resampler_):
    bits = np.arange(1 << 16, dtype=np.uint16)
    array = bits.view(np.float16).reshape(16, 64, 64)
    same = operators_of(array.shape, (1.0, 1.0, 1.0))
    np.testing.assert_array_equal(by_kernel(resampler_, array, same, "f4"), array.astype("f4"))


def test_float16_is_written_to_the_nearest(resampler_):
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype("f4")
    between = (halves[1:] + halves[:-1]) / 2
    values = np.concatenate([halves, between, np.nextafter(between, 0), np.nextafter(between, 9e9)])
    values = np.append(values, np.array([65519.996, 65520, 1e9, np.inf, np.nan, 1e-9], "f4"))
    array = np.concatenate([values, -values]).astype("f4")[None, None]
    same = operators_of(array.shape, (1.0, 1.0, 1.0))
    with np.errstate(over="ignore"):
        expected = array.astype("f2")
    np.testing.assert_array_equal(by_kernel(resampler_, array, same, "f2"), expected)


def test_planes_rows_and_columns_behind_those_that_are_taken_are_passed_over(resampler_):
    array = voxels((9, 11, 13), "f4")
    operators = [axis.part(slice(0, 2))[0] for axis in operators_of(array.shape, (2.0, 2.0, 2.0))]
    assert all(
        axis.start.max() + axis.taps < n for axis, n in zip(operators, array.shape, strict=True)
    )
    expected = by_arrays(array, operators)
    array[8], array[:, 10], array[:, :, 12] = np.nan, np.nan, np.nan
    for batch in (1, 4, 9):
        np.testing.assert_array_equal(
            by_kernel(resampler_, array, operators, batch=batch), expected
        )


def test_planes_from_other_arrays_are_copied_before_the_return(resampler_):
    array = voxels((9, 11, 13), "f4")
    operators = operators_of(array.shape, (2.0, 1.5, 3.0))
    resampler_.begin(operators, (11, 13), "f4", "f4")
    for first in range(0, 9, 2):
        planes = array[first : first + 2].copy()
        resampler_.push(planes)
        planes[...] = np.nan
    np.testing.assert_array_equal(resampler_.finish(), by_arrays(array, operators))
    for planes in (array[::-1][::-1], np.asfortranarray(array)):
        resampler_.begin(operators, (11, 13), "f4", "f4")
        resampler_.push(planes)
        np.testing.assert_array_equal(resampler_.finish(), by_arrays(array, operators))


def test_it_has_the_bits_of_the_compiled_loops(resampler_):
    array = voxels((9, 21, 33), "f4")
    operators = operators_of(array.shape, (2.0, 1.5, 3.0))
    np.testing.assert_array_equal(
        by_kernel(resampler_, array, operators), resample(array, operators)
    )


@pytest.mark.parametrize("order", [1, 2])
def test_the_order_of_threads_does_not_change_a_bit(cuda_on_cpu, resampler_, order):
    array = voxels((9, 21, 33), "f4")
    operators = operators_of(array.shape, (2.0, 1.5, 3.0))
    first = by_kernel(resampler_, array, operators)
    cuda_on_cpu.order(order)
    second = by_kernel(resampler_, array, operators)
    cuda_on_cpu.order(0)
    np.testing.assert_array_equal(second, first)


def test_a_buffer_is_handed_out_again_when_its_copy_is_done_and_not_before(resampler_):
    array = voxels((6, 5, 7), "f4")
    operators = operators_of(array.shape, (1.0, 1.0, 1.0))
    resampler_.begin(operators, (5, 7), "f4", "f4")
    given, seen = [], []
    for plane in array:
        buffer = resampler_.buffer(1)
        seen.append((resampler_.stream.done, resampler_.stream.asked))
        given.append(buffer.ctypes.data)
        buffer[...] = plane
        resampler_.push(buffer)
    assert len(set(given)) == 2
    assert given[:2] * 3 == given
    # A copy between two events of the clock and a pass a plane: the newest plane's four are still
    # to be done each time, and the pass of the one before.
    assert [asked - done for done, asked in seen[2:]] == [5, 5, 5, 5]
    np.testing.assert_array_equal(resampler_.finish(), array)


def test_resamplers_of_several_workers_do_not_disturb_one_another(cuda_on_cpu, memory):
    cases = [
        (voxels((7, 9, 11), "f4", 1), (2.0, 1.5, 3.0)),
        (voxels((7, 5, 8), "u2", 2), (1.0, 2.5, 0.7)),
        (voxels((7, 6, 6), "c8", 3), (3.0, 1.0, 2.0)),
    ]
    workers = [CudaResampler(cuda_on_cpu, memory) for _ in cases]
    for worker, (array, factors) in zip(workers, cases, strict=True):
        worker.begin(operators_of(array.shape, factors), array.shape[1:], array.dtype, array.dtype)
    for first in range(0, 7, 2):
        for worker, (array, _) in zip(workers, cases, strict=True):
            planes = array[first : first + 2]
            buffer = worker.buffer(len(planes))
            buffer[...] = planes
            worker.push(buffer)
    results = [worker.finish() for worker in workers]
    for result, (array, factors) in zip(results, cases, strict=True):
        np.testing.assert_array_equal(result, by_arrays(array, operators_of(array.shape, factors)))
    for worker in workers:
        worker.close()


def test_a_volume_that_was_not_finished_leaves_nothing_behind(resampler_):
    array = voxels((8, 9, 10), "f4")
    operators = operators_of(array.shape, (2.0, 2.0, 2.0))
    resampler_.begin(operators, (9, 10), "f4", "f4")
    buffer = resampler_.buffer(5)
    buffer[...] = np.nan
    resampler_.push(buffer)
    np.testing.assert_array_equal(
        by_kernel(resampler_, array, operators, batch=3), by_arrays(array, operators)
    )


def test_tiles_like_those_before_allocate_nothing(cuda_on_cpu, memory):
    own = CudaResampler(cuda_on_cpu, memory)
    # A full tile and a cut one, as a grid has them, and blocks of a volume with parts made anew.
    shapes = [(8, 16, 20), (8, 11, 20), (8, 11, 7)]

    def tiles():
        for shape, dtype in itertools.product(shapes, ["f4", "u2"]):
            operators = operators_of(shape, (2.0, 1.5, 3.0))
            parts = [axis.part(slice(1, axis.size))[0] for axis in operators]
            for chosen in (operators, parts):
                by_kernel(own, voxels(shape, dtype), chosen, batch=3)

    tiles()
    before = cuda_on_cpu.allocated, memory.size, len(cuda_on_cpu.libraries)
    taken, memory.take = memory.take, pytest.fail
    for _ in range(2):
        tiles()
    memory.take = taken
    assert (cuda_on_cpu.allocated, memory.size, len(cuda_on_cpu.libraries)) == before
    own.close()


@settings(max_examples=25)
@given(
    shape=st.tuples(st.integers(1, 9), st.integers(1, 15), st.integers(1, 30)),
    factors=st.tuples(*[st.floats(0.5, 4)] * 3),
    dtypes=st.sampled_from([("f4", "f4"), ("u2", "u2"), ("f8", "u1"), ("c8", "c8"), (">u2", "f8")]),
    batch=st.integers(1, 12),
    padding=st.tuples(st.integers(0, 3), st.integers(0, 5)),
)
@example((4, 4, 4), (2.0, 2.0, 2.0), ("f4", "f4"), 2, (0, 0))
def test_what_it_takes_is_what_was_foreseen(cuda_on_cpu, shape, factors, dtypes, batch, padding):
    operators = operators_of(shape, factors)
    plane = (shape[1] + padding[0], shape[2] + padding[1])
    # What is beyond the planes that the operators take, a batch brings to the host alone.
    taken = int(operators[0].start.max()) + operators[0].taps
    batch = min(batch, taken)
    foreseen = device_bytes(operators, plane, dtypes[0], batch, dtypes[1])
    with HostMemory(cuda_on_cpu) as memory:
        own = CudaResampler(cuda_on_cpu, memory)
        before = cuda_on_cpu.allocated
        own.begin(operators, plane, *dtypes)
        for _ in range(max(2, math.ceil(taken / batch))):
            buffer = own.buffer(batch)
            buffer[...] = 0
            own.push(buffer)
        own.finish()
        assert cuda_on_cpu.allocated - before == foreseen.device
        assert memory.size == foreseen.host
        assert sum(cuda_on_cpu.cuda.runtime.locked.values()) >= foreseen.host
        own.close()
        assert memory.size == 0


def test_where_the_host_refuses_to_lock_memory_the_result_is_the_same(
    cuda_on_cpu, resampler_, monkeypatch
):
    array = voxels((8, 9, 10), "u2")
    operators = operators_of(array.shape, (2.0, 2.0, 2.0))
    expected = by_kernel(resampler_, array, operators, batch=3)
    monkeypatch.setattr(cuda_on_cpu.cuda.runtime, "refuses", True)
    told = []
    with HostMemory(cuda_on_cpu, warn=told.append) as memory:
        own = CudaResampler(cuda_on_cpu, memory)
        result = by_kernel(own, array, operators, batch=3)
        np.testing.assert_array_equal(result, expected)
        assert len(told) == 1
        own.close()


def test_copies_are_counted_in_each_direction(cuda_on_cpu):
    array = voxels((9, 10, 12), "u2")
    operators = operators_of(array.shape, (2.0, 2.0, 2.0))
    with HostMemory(cuda_on_cpu) as memory:
        own = CudaResampler(cuda_on_cpu, memory)
        result = by_kernel(own, array, operators, batch=4)
        own.begin(operators, array.shape[1:], array.dtype, array.dtype)
        own.push(array)
        own.finish()
        own.close()
        found = {way: copies.bytes for way, copies in memory.transfers.found().items()}
    assert found == {"to_device": 2 * array.nbytes, "to_host": 2 * result.nbytes}


def test_a_pipeline_notes_its_copies(cuda_on_cpu):
    array = voxels((64, 160, 256), "u2")
    operators = operators_of(array.shape, (1.0, 1.0, 1.0))
    metrics = Metrics("resample")

    def work(tile, lane):
        own = lane.keep("resampler", lambda: CudaResampler(cuda_on_cpu, lane.host))
        by_kernel(own, array, operators)
        return 1

    run_pipeline(range(3), work, label="RESAMPLE", workers=1, xp=cuda_on_cpu, metrics=metrics)
    assert metrics.bytes["copy"] == 3 * 2 * array.nbytes
    noted = cast("dict", metrics.figures["pipeline"])["RESAMPLE"]["transfers"]
    assert {way: of["bytes"] for way, of in noted.items()} == {
        "to_device": 3 * array.nbytes,
        "to_host": 3 * array.nbytes,
    }


def test_a_lane_copies_there_and_back_and_counts_both(cuda_on_cpu):
    array = voxels((5, 6, 7), "f4")
    found = []

    def work(tile, lane):
        block = lane.buffer("block", array.shape, array.dtype)
        block[...] = array + tile
        device = lane.to_device(block)
        # A lane's buffer may be filled anew at once.
        block[...] = -1
        found.append(lane.to_host(device * 2, "result").copy())
        lane.to_device(array)
        return 1

    metrics = Metrics("n4")
    run_pipeline(range(3), work, label="N4", workers=1, xp=cuda_on_cpu, metrics=metrics)
    for tile, result in enumerate(found):
        np.testing.assert_array_equal(result, (array + tile) * 2)
    noted = cast("dict", metrics.figures["pipeline"])["N4"]["transfers"]
    assert noted["to_device"]["bytes"] == 6 * array.nbytes
    assert noted["to_host"]["bytes"] == 3 * array.nbytes
    assert all(of["seconds"] > 0 for of in noted.values())


def test_bytes_of_a_try_that_failed_are_counted_as_its_seconds_are(cuda_on_cpu):
    array = voxels((5, 6, 7), "f4")
    metrics = Metrics("n4")

    def work(tile, lane):
        lane.to_device(array)
        if tile:
            raise MemoryError
        return 1

    with pytest.raises(MemoryError):
        run_pipeline([0, 1], work, label="N4", workers=1, xp=cuda_on_cpu, metrics=metrics)
    assert metrics.bytes["copy"] == 2 * array.nbytes
    assert "copy" in metrics.seconds


def test_memory_is_given_back_when_copies_that_an_error_left_are_done(cuda_on_cpu):
    array = voxels((6, 5, 7), "f4")
    with HostMemory(cuda_on_cpu) as memory:
        own = CudaResampler(cuda_on_cpu, memory)
        own.begin(operators_of(array.shape, (1.0, 1.0, 1.0)), (5, 7), "f4", "f4")
        own.push(own.buffer(3))
        assert own.stream.done < own.stream.asked
    assert own.stream.done == own.stream.asked


def test_it_says_what_it_does_not_take(resampler_):
    operators = operators_of((4, 5, 6), (2.0, 2.0, 2.0))
    for source, target in (("f4", "c8"), ("c8", "f4"), ("U4", "f4"), ("f4", "g")):
        with pytest.raises(ValueError, match="the kernel does not take"):
            resampler_.begin(operators, (5, 6), source, target)
    with pytest.raises(ValueError, match=r"take 5 x 6 of planes of \(5, 5\)"):
        resampler_.begin(operators, (5, 5), "f4", "f4")
    resampler_.begin(operators, (5, 6), "f4", "f4")
    with pytest.raises(ValueError, match="float64"):
        resampler_.push(np.zeros((1, 5, 6)))
    with pytest.raises(ValueError, match=r"\(6, 5\)"):
        resampler_.push(np.zeros((1, 6, 5), "f4"))
    resampler_.push(np.zeros((3, 5, 6), "f4"))
    with pytest.raises(ValueError, match="3 of 4 planes"):
        resampler_.finish()


def test_operators_may_come_from_elsewhere(resampler_):
    """Any band: not only those whose windows move evenly."""
    rng = np.random.default_rng(5)
    array = voxels((6, 20, 24), "f4")
    operators = [
        AxisOperator(rng.integers(0, n - taps + 1, m), rng.normal(size=(m, taps)))
        for n, m, taps in zip(array.shape, (4, 33, 19), (3, 7, 24), strict=True)
    ]
    np.testing.assert_array_equal(
        by_kernel(resampler_, array, operators), by_arrays(array, operators)
    )
