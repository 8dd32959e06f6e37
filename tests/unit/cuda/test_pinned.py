"""Page-locked memory, of a CUDA that counts what is locked, and the copies from and to it."""

import mmap
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from octane.gpu.pinned import HostMemory, Transfer, Transfers, whole_pages


@pytest.fixture
def runtime(cuda_on_cpu):
    """CUDA's runtime, with nothing locked."""
    found = cuda_on_cpu.cuda.runtime
    assert not found.locked
    yield found
    found.refuses = False
    assert not found.locked, "memory was not unlocked"


@pytest.mark.parametrize("size", [1, 4096, 4097, 3_000_000])
def test_memory_begins_at_a_page_and_takes_no_more_than_it_needs(cuda_on_cpu, runtime, size):
    with HostMemory(cuda_on_cpu) as memory:
        taken = memory.take(size)
        assert taken.nbytes == size
        assert taken.ctypes.data % mmap.PAGESIZE == 0
        assert runtime.locked == {taken.ctypes.data: whole_pages(size)}
        assert memory.size == whole_pages(size) < size + mmap.PAGESIZE
        taken[...] = 7


def test_what_is_given_back_is_unlocked_and_the_rest_at_the_end(cuda_on_cpu, runtime):
    with HostMemory(cuda_on_cpu) as memory:
        first, second = memory.take(5000), memory.take(6000)
        memory.give_back(first)
        assert list(runtime.locked) == [second.ctypes.data]
        with pytest.raises(KeyError):
            memory.give_back(first)
    assert not runtime.locked
    assert memory.size == 0
    # Arrays that somebody still holds stay what they are.
    second[...] = 3
    assert (second == 3).all()


@pytest.mark.parametrize("error", ["CUDA's", "Python's"])
def test_a_host_that_refuses_is_told_of_once_and_the_run_goes_on(
    cuda_on_cpu, runtime, error, monkeypatch, caplog
):
    if error == "Python's":
        monkeypatch.setattr(runtime, "CUDARuntimeError", MemoryError)
    with HostMemory(cuda_on_cpu) as memory:
        before = memory.take(100)
        runtime.refuses = True
        assert memory.pinned
        taken = [memory.take(8_000_000), memory.take(9_000_000)]
        assert not memory.pinned
        assert list(runtime.locked) == [before.ctypes.data]
        (message,) = caplog.messages
        assert "page-lock 8 MB" in message
        assert "cudaErrorMemoryAllocation" in message
        for array in taken:
            array[...] = 1
        # Not asked again, although it would agree by now.
        runtime.refuses = False
        memory.take(10)
        assert list(runtime.locked) == [before.ctypes.data]


@pytest.mark.parametrize("why", ["switched off", "no GPU"])
def test_ordinary_memory_is_not_locked(cuda_on_cpu, runtime, why):
    chosen = {"switched off": (cuda_on_cpu, False), "no GPU": (np, True)}
    xp, pinned = chosen[why]
    with HostMemory(xp, pinned=pinned, warn=pytest.fail) as memory:
        assert not memory.pinned
        taken = memory.take(70_000)
        taken[...] = 9
        assert taken.ctypes.data % mmap.PAGESIZE == 0
        assert memory.size == whole_pages(70_000)
        assert not runtime.locked


def test_threads_share_it(cuda_on_cpu, runtime):
    with HostMemory(cuda_on_cpu) as memory, ThreadPoolExecutor(4) as pool:

        def work(number):
            for _ in range(50):
                taken = memory.take(8192)
                taken[...] = number
                assert (taken == number).all()
                memory.give_back(taken)
            memory.take(4096)

        list(pool.map(work, range(4)))
        assert memory.size == 4 * 4096
        assert len(runtime.locked) == 4


def test_copies_are_summed_by_direction_once_when_their_stream_is_done(cuda_on_cpu, monkeypatch):
    monkeypatch.setattr(cuda_on_cpu.cuda, "get_elapsed_time", lambda *_: 500.0)
    transfers = Transfers(cuda_on_cpu)
    one, two = (cuda_on_cpu.cuda.Stream(non_blocking=True) for _ in range(2))
    for size, way in ((1000, "to_device"), (600, "to_device"), (10, "to_host")):
        with transfers.timed(one, size, way), transfers.timed(two, 7, way):
            pass
    with pytest.raises(MemoryError), transfers.timed(one, 10, "to_device"):
        raise MemoryError
    assert transfers.found() == {}
    for _ in range(2):
        transfers.settle(one)
        assert transfers.found() == {"to_device": Transfer(1600, 1.0), "to_host": Transfer(10, 0.5)}
