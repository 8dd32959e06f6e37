"""Resampling by the CUDA kernel, run by the CPU: against arrays, and against SciPy in float64.

The stream's work is done as late as a GPU may do it, so that a host buffer which is filled too
early shows.
"""

import math
from functools import partial
from typing import cast

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from resampling import operators_of, pushed, resample_arrays, voxels

from octane.core.arrays import as_dtype
from octane.core.geometry import Grid
from octane.core.metrics import Metrics
from octane.gpu.pinned import HostMemory
from octane.gpu.run import Share
from octane.pipeline.lanes import run_pipeline
from octane.resample.gpu import TYPES, CudaResampler, device_bytes
from octane.resample.operator import AxisOperator, resampled
from octane.resample.resampler import resample


@pytest.fixture(scope="module")
def memory(cuda_on_cpu):
    with HostMemory(cuda_on_cpu) as memory:
        yield memory
    assert not cuda_on_cpu.cuda.runtime.locked


@pytest.fixture(scope="module")
def resampler_(cuda_on_cpu, memory):
    """One for all: its buffers hold what earlier volumes left."""
    return CudaResampler(cuda_on_cpu, memory)


def by_arrays(array, operators, dtype=None):
    """The oracle."""
    with np.errstate(over="ignore"):
        return as_dtype(resample_arrays(array, operators), dtype or array.dtype)


def check(resampler, array, factors, dtype=None, **how):
    """Compare the kernel with the oracle, bit for bit; gives the result."""
    operators = operators_of(array.shape, factors)
    result = pushed(resampler, array, operators, dtype, **how)
    assert result.dtype == np.dtype(dtype or array.dtype)
    np.testing.assert_array_equal(result, by_arrays(array, operators, dtype))
    return result


# Down by up to 30 (130 taps), up by up to 3, and as it is.
FACTORS = st.one_of(st.floats(0.34, 4), st.just(1.0), st.integers(2, 30).map(float))


@settings(max_examples=40)
@given(
    shape=st.tuples(st.integers(1, 12), st.integers(1, 24), st.integers(1, 40)),
    factors=st.tuples(FACTORS, FACTORS, FACTORS),
    dtype=st.sampled_from(["f4", "f8", "c8", "c16"]),
    batch=st.integers(1, 13),
    padding=st.tuples(*[st.integers(0, 4)] * 3),
    seed=st.integers(0, 2**32 - 1),
)
@example((1, 1, 1), (1.0, 1.0, 1.0), "f4", 1, (0, 0, 0), 0)
@example((1, 1, 1), (0.5, 7.0, 0.34), "c8", 1, (1, 1, 1), 0)
@example((5, 140, 150), (2.0, 30.0, 31.5), "f4", 2, (0, 0, 0), 0)
def test_it_agrees_with_scipy_and_has_the_bits_of_the_arrays(
    resampler_, resampled_by_scipy, shape, factors, dtype, batch, padding, seed
):
    array = voxels(shape, dtype, seed)
    grid, operators = resampled(Grid(shape, (1.0, 1.0, 1.0)), factors)
    padded = np.pad(array, [(0, n) for n in padding], mode="maximum", stat_length=1)
    result = pushed(resampler_, padded, operators, batch=batch)
    assert result.dtype == dtype
    np.testing.assert_array_equal(result, by_arrays(array, operators))
    expected = resampled_by_scipy(array, (1.0, 1.0, 1.0), factors, grid.shape)
    tolerance = 1e-6 if result.real.dtype == np.float32 else 1e-12
    np.testing.assert_allclose(result, expected, rtol=0, atol=tolerance * np.abs(array).max())


REAL = [t for t in TYPES if t.kind != "c"]


# Values are computed in float32 or float64: each type to these, and from these to each.
PAIRS = [*((t, "f4") for t in REAL), *((w, t) for w in ("f4", "f8") for t in REAL)]
PAIRS += [("c8", "c16"), ("c16", "c8"), (">c8", "c8")]
PAIRS += [(">f4", ">f4"), (">u2", "u2"), ("u2", ">u2")]


@pytest.mark.parametrize(("source", "target"), PAIRS, ids=str)
def test_every_type_is_taken_to_every_other(resampler_, source, target):
    array, size = voxels((4, 6, 9), source), np.dtype(target).itemsize
    if np.dtype(target).kind in "iu" and size < 8 and array.dtype.kind == "f":
        # Halves among them, which are rounded to even, and values out of range.
        array = (np.rint(array * 4) / 2 * 10.0 ** min(array.itemsize, size)).astype(source)
    check(resampler_, array, (1.3, 1.0, 1.7), target, batch=3)


@pytest.mark.parametrize("dtype", ["u1", "i1", "i4", "?"])
def test_halves_are_rounded_to_even_and_the_rest_clipped(resampler_, dtype):
    values = [-1.5, -0.5, 0.5, 1.5, 2.5, 254.5, 255.5, 1e9, -1e9, 3e9, -3e9, 2.0**31]
    check(resampler_, np.array(values, "f4")[None, None], (1.0, 1.0, 1.0), dtype)


def test_every_float16_is_read(resampler_):
    bits = np.arange(1 << 16, dtype=np.uint16)
    array = bits.view(np.float16).reshape(16, 64, 64)
    result = check(resampler_, array, (1.0, 1.0, 1.0), "f4")
    np.testing.assert_array_equal(result, array.astype("f4"))


def test_float16_is_written_to_the_nearest(resampler_):
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype("f4")
    between = (halves[1:] + halves[:-1]) / 2
    values = np.concatenate([halves, between, np.nextafter(between, 0), np.nextafter(between, 9e9)])
    values = np.append(values, np.array([65519.996, 65520, 1e9, np.inf, np.nan, 1e-9], "f4"))
    array = np.concatenate([values, -values]).astype("f4")[None, None]
    check(resampler_, array, (1.0, 1.0, 1.0), "f2")


def test_planes_from_other_arrays_are_copied_before_the_return(resampler_):
    array = voxels((9, 11, 13), "f4")
    operators = operators_of(array.shape, (2.0, 1.5, 3.0))
    for layout in (np.copy, lambda planes: planes[::-1].copy()[::-1], np.asfortranarray):
        resampler_.begin(operators, (11, 13), "f4", "f4")
        for first in range(0, 9, 2):
            planes = layout(array[first : first + 2].copy())
            resampler_.push(planes)
            planes[...] = np.nan
        np.testing.assert_array_equal(resampler_.finish(), by_arrays(array, operators))


def test_the_order_of_threads_does_not_change_a_bit(cuda_on_cpu, resampler_):
    array = voxels((9, 21, 33), "f4")
    operators = operators_of(array.shape, (2.0, 1.5, 3.0))
    expected = resample(array, operators)
    for order in (1, 2, 0):
        cuda_on_cpu.order(order)
        np.testing.assert_array_equal(pushed(resampler_, array, operators), expected)


def test_the_buffer_is_handed_out_when_its_copy_is_done_and_not_later(resampler_):
    array = voxels((6, 5, 7), "f4")
    operators = operators_of(array.shape, (1.0, 1.0, 1.0))
    resampler_.begin(operators, (5, 7), "f4", "f4")
    left = []
    for plane in array:
        buffer = resampler_.buffer(1)
        left.append(resampler_.stream.asked - resampler_.stream.done)
        buffer[...] = plane
        resampler_.push(buffer)
    # The y pass of the plane before is still to be done.
    assert left[1:] == [1] * 5
    np.testing.assert_array_equal(resampler_.finish(), array)


def test_resamplers_of_several_workers_do_not_disturb_one_another(cuda_on_cpu, memory):
    cases = []
    for seed, dtype in enumerate(["f4", "u2", "c8"]):
        array = voxels((7, 9 - seed, 11), dtype, seed)
        operators = operators_of(array.shape, (2.0, 1.5, 3.0))
        worker = CudaResampler(cuda_on_cpu, memory)
        worker.begin(operators, array.shape[1:], dtype, dtype)
        cases.append((worker, array, operators))
    for first in range(0, 7, 2):
        for worker, array, _ in cases:
            buffer = worker.buffer(len(array[first : first + 2]))
            buffer[...] = array[first : first + 2]
            worker.push(buffer)
    for worker, array, operators in cases:
        np.testing.assert_array_equal(worker.finish(), by_arrays(array, operators))


def test_a_volume_that_was_not_finished_leaves_nothing_behind(resampler_):
    array = voxels((8, 9, 10), "f4")
    resampler_.begin(operators_of(array.shape, (2.0, 2.0, 2.0)), (9, 10), "f4", "f4")
    buffer = resampler_.buffer(5)
    buffer[...] = np.nan
    resampler_.push(buffer)
    check(resampler_, array, (2.0, 2.0, 2.0), batch=3)


def test_tiles_like_those_before_take_no_more_host_memory_and_compile_nothing(cuda_on_cpu, memory):
    own = CudaResampler(cuda_on_cpu, memory)

    def tiles():
        # A full tile and a cut one, as a grid has them.
        for shape, dtype in [((8, 16, 20), "f4"), ((8, 11, 20), "f4"), ((8, 16, 7), "u2")]:
            check(own, voxels(shape, dtype), (2.0, 1.5, 3.0), batch=3)

    tiles()
    before = memory.size, len(cuda_on_cpu.libraries)
    tiles()
    assert (memory.size, len(cuda_on_cpu.libraries)) == before


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


@pytest.mark.parametrize("refuses", [False, True])
def test_copies_are_counted_also_from_memory_that_is_not_locked(cuda_on_cpu, monkeypatch, refuses):
    monkeypatch.setattr(cuda_on_cpu.cuda.runtime, "refuses", refuses)
    array, told = voxels((8, 10, 12), "u2"), []
    with HostMemory(cuda_on_cpu, warn=told.append) as memory:
        check(CudaResampler(cuda_on_cpu, memory), array, (2.0, 2.0, 2.0), batch=3)
        copied = {way: of.bytes for way, of in memory.transfers.found().items()}
    assert copied == {"to_device": array.nbytes, "to_host": array.nbytes // 8}
    assert len(told) == refuses


@pytest.mark.parametrize("dtype", ["f4", ">u2"])
def test_a_lane_copies_there_and_back_and_counts_both_also_of_a_try_that_fails(cuda_on_cpu, dtype):
    array, found, metrics = voxels((5, 6, 7), dtype), [], Metrics("n4")

    def work(tile, lane):
        block = lane.buffer("block", array.shape, array.dtype)
        block[...] = array
        device = lane.to_device(block)
        # A lane's buffer may be filled again at once.
        block[...] = 0
        found.append(lane.to_host(device + device.dtype.type(tile), "result").copy())
        lane.to_device(array)
        if tile == 3:
            raise MemoryError
        return 1

    share = Share(cuda_on_cpu, 1)
    run = partial(run_pipeline, label="T", workers=1, metrics=metrics, share=share)
    run(range(3), work)
    noted = cast("dict", metrics.figures["pipeline"])["T"]["transfers"]
    assert noted["to_device"]["bytes"] == 6 * array.nbytes
    assert noted["to_host"]["bytes"] == 3 * array.nbytes
    assert all(of["seconds"] > 0 for of in noted.values())
    with pytest.raises(MemoryError):
        run([3], work)
    assert metrics.bytes["copy"] == 12 * array.nbytes
    assert "copy" in metrics.seconds
    for tile, result in enumerate(found):
        np.testing.assert_array_equal(result, array + array.dtype.type(tile))


def test_memory_is_given_back_when_copies_that_an_error_left_are_done(cuda_on_cpu):
    with HostMemory(cuda_on_cpu) as memory:
        own = CudaResampler(cuda_on_cpu, memory)
        own.begin(operators_of((6, 5, 7), (1.0, 1.0, 1.0)), (5, 7), "f4", "f4")
        own.push(own.buffer(3))
        assert own.stream.done < own.stream.asked
    assert own.stream.done == own.stream.asked


def test_it_says_what_it_does_not_take(resampler_):
    operators = operators_of((4, 5, 6), (2.0, 2.0, 2.0))
    for source, target in (("f4", "c8"), ("c8", "f4"), ("U4", "f4"), ("f4", "g")):
        with pytest.raises(ValueError, match="the kernel does not take"):
            resampler_.begin(operators, (5, 6), source, target)
    with pytest.raises(ValueError, match="take 5 x 6 voxels"):
        resampler_.begin(operators, (5, 5), "f4", "f4")
    resampler_.begin(operators, (5, 6), "f4", "f4")
    for planes in (np.zeros((1, 5, 6)), np.zeros((1, 6, 5), "f4")):
        with pytest.raises(ValueError, match="announced"):
            resampler_.push(planes)


def test_windows_need_not_move_evenly(resampler_):
    rng = np.random.default_rng(5)
    array = voxels((6, 20, 24), "f4")
    operators = [
        AxisOperator(np.sort(rng.integers(0, n - taps + 1, m)), rng.normal(size=(m, taps)))
        for n, m, taps in zip(array.shape, (4, 33, 19), (3, 7, 24), strict=True)
    ]
    np.testing.assert_array_equal(pushed(resampler_, array, operators), by_arrays(array, operators))
