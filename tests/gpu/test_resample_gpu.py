"""Resampling on an NVIDIA GPU: the kernel against the host, its memory and its threads."""

import threading

import numpy as np
import pytest
from resampling import operators_of, pushed, voxels

from octane.core.arrays import as_dtype
from octane.gpu.pinned import HostMemory
from octane.resample.gpu import TYPES, CudaResampler, device_bytes
from octane.resample.resampler import resample

pytestmark = pytest.mark.gpu

SHAPE = (40, 70, 96)
FACTORS = {
    "10 over 3.5": (10 / 3.5,) * 3,
    "each axis its own": (1.0, 2.5, 7.0),
    "finer": (0.7, 0.5, 0.9),
    "coarser than the axis": (100.0, 3.0, 3.0),
}


@pytest.fixture
def memory(cupy):
    with HostMemory(cupy) as memory:
        yield memory


@pytest.fixture
def resampler_(cupy, memory):
    return CudaResampler(cupy, memory)


@pytest.mark.parametrize("factors", FACTORS.values(), ids=FACTORS)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_the_result_is_that_of_the_cpu(resampler_, dtype, factors):
    array = voxels(SHAPE, dtype)
    operators = operators_of(SHAPE, factors)
    expected = resample(array, operators)
    values = pushed(resampler_, array, operators, expected.dtype)
    np.testing.assert_allclose(values, expected, rtol=0, atol=1e-6 * np.abs(expected).max())
    # The arithmetic is the same, so that the bits are: a value that is near to a half as well.
    np.testing.assert_array_equal(pushed(resampler_, array, operators), as_dtype(expected, dtype))


@pytest.mark.parametrize("dtype", ["f4", "f8", "u2", "c8"])
def test_blocks_and_repeats_have_the_same_bits(resampler_, dtype):
    array = voxels(SHAPE, dtype)
    operators = operators_of(SHAPE, FACTORS["10 over 3.5"])
    whole = pushed(resampler_, array, operators)
    for batch in (1, 16, SHAPE[0]):
        again = pushed(resampler_, array, operators, batch=batch)
        np.testing.assert_array_equal(again, whole)
    outputs = (slice(3, 9), slice(0, 11), slice(5, whole.shape[2]))
    parts = [axis.part(part) for axis, part in zip(operators, outputs, strict=True)]
    block = array[tuple(taken for _, taken in parts)]
    result = pushed(resampler_, block, [axis for axis, _ in parts])
    np.testing.assert_array_equal(result, whole[outputs])


def test_planes_are_copied_while_the_next_buffer_is_filled(resampler_):
    """Buffers are filled again as soon as they are given: a copy that still read one would show."""
    array = voxels((64, 256, 256), "f4")
    operators = operators_of(array.shape, FACTORS["10 over 3.5"])
    first = pushed(resampler_, array, operators, batch=64)
    for _ in range(10):
        np.testing.assert_array_equal(pushed(resampler_, array, operators, batch=2), first)


def test_tiles_take_the_memory_that_was_foreseen_and_no_more(cupy, memory):
    array = voxels(SHAPE, "u2")
    operators = operators_of(SHAPE, FACTORS["10 over 3.5"])
    pool = cupy.get_default_memory_pool()
    before = pool.used_bytes()
    own = CudaResampler(cupy, memory)
    pushed(own, array, operators)
    foreseen = device_bytes(operators, SHAPE[1:], array.dtype, 7, array.dtype)
    assert pool.used_bytes() - before == foreseen.device
    assert memory.size == foreseen.host
    after = pool.used_bytes(), pool.total_bytes(), memory.size
    for _ in range(5):
        pushed(own, array, operators)
    assert (pool.used_bytes(), pool.total_bytes(), memory.size) == after


@pytest.mark.parametrize("why", ["refused", "switched off"])
def test_without_page_locked_memory_the_result_is_the_same(cupy, resampler_, monkeypatch, why):
    array = voxels(SHAPE, "f4")
    operators = operators_of(SHAPE, FACTORS["10 over 3.5"])
    expected = pushed(resampler_, array, operators)
    warnings = []
    if why == "refused":

        def refuse(*_):
            raise MemoryError("no more of it")

        monkeypatch.setattr(cupy.cuda.runtime, "hostRegister", refuse)
    with HostMemory(cupy, pinned=why == "refused", warn=warnings.append) as memory:
        own = CudaResampler(cupy, memory)
        np.testing.assert_array_equal(pushed(own, array, operators), expected)
        assert not memory.pinned
    assert len(warnings) == (why == "refused")


def test_memory_is_page_locked_where_the_host_allows_it(cupy):
    warnings = []
    with HostMemory(cupy, warn=warnings.append) as memory:
        taken = memory.take(10_000_000)
        taken[...] = 1
        assert memory.pinned, warnings


def test_copies_are_timed_in_each_direction(cupy, memory, resampler_):
    array = voxels((64, 512, 512), "f4")
    operators = operators_of(array.shape, FACTORS["10 over 3.5"])
    result = pushed(resampler_, array, operators, batch=16)
    found = memory.transfers.found()
    assert {way: t.bytes for way, t in found.items()} == {
        "to_device": array.nbytes,
        "to_host": result.nbytes,
    }
    for copies in found.values():
        assert 1e8 < copies.bytes / copies.seconds < 1e12


def test_several_workers_resample_at_once(cupy, memory):
    operators = operators_of(SHAPE, FACTORS["10 over 3.5"])
    tiles = [voxels(SHAPE, "f4", seed) for seed in range(4)]
    own = CudaResampler(cupy, memory)
    expected = [pushed(own, tile, operators) for tile in tiles]
    wrong, failed = [], []

    def work(number):
        try:
            mine = CudaResampler(cupy, memory)
            for turn in range(8):
                which = (number + turn) % len(tiles)
                found = pushed(mine, tiles[which], operators, batch=3)
                if not np.array_equal(found, expected[which]):
                    wrong.append((number, turn))
        except (RuntimeError, ValueError) as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert not wrong
