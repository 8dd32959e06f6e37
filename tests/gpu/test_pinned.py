"""Host memory for copies: locking it, giving it back, refusals."""

import mmap
from concurrent.futures import ThreadPoolExecutor

import pytest
from device import taken_from

from octane.gpu.pinned import HostMemory, whole_pages


@pytest.fixture
def locked(cupy):
    """Tell whether CUDA reports an array's memory as page-locked."""
    return lambda array: cupy.cuda.runtime.pointerGetAttributes(array.ctypes.data).type == 1


@pytest.mark.parametrize("size", [1, 4096, 4097, 3_000_000])
def test_memory_begins_at_a_page_and_takes_no_more_than_it_needs(cupy, locked, size):
    with HostMemory(cupy) as memory:
        taken = memory.take(size)
        assert taken.nbytes == size
        assert taken.ctypes.data % mmap.PAGESIZE == 0
        assert taken_from(memory) == whole_pages(size) < size + mmap.PAGESIZE
        assert locked(taken)
        assert locked(taken[-1:])


def test_memory_is_unlocked_when_given_back_and_the_rest_at_the_end(cupy, locked):
    with HostMemory(cupy) as memory:
        first, second = memory.take(5000), memory.take(6000)
        memory.give_back(first)
        assert (locked(first), locked(second)) == (False, True)
        with pytest.raises(KeyError):
            memory.give_back(first)
    assert not locked(second)
    assert taken_from(memory) == 0
    # Arrays that are still referenced keep their contents.
    second[...] = 3
    assert (second == 3).all()


@pytest.mark.parametrize("error", ["CUDA's", "Python's"])
def test_a_host_that_refuses_is_asked_once_and_the_run_goes_on(
    cupy, locked, error, monkeypatch, caplog
):
    def refuse(*_):
        raise MemoryError if error == "Python's" else cupy.cuda.runtime.CUDARuntimeError(2)

    with HostMemory(cupy) as memory:
        before = memory.take(100)
        with monkeypatch.context() as patched:
            patched.setattr(cupy.cuda.runtime, "hostRegister", refuse)
            taken = [memory.take(8_000_000), memory.take(9_000_000)]
        assert not memory.pinned
        (message,) = caplog.messages
        assert "page-lock 8 MB" in message
        for array in taken:
            array[...] = 1
        taken.append(memory.take(10))
        assert [locked(array) for array in (before, *taken)] == [True, False, False, False]


def test_threads_share_it(cupy, locked):
    def work(number):
        for _ in range(50):
            taken = memory.take(8192)
            taken[...] = number
            assert (taken == number).all()
            memory.give_back(taken)
        return memory.take(4096)

    with HostMemory(cupy) as memory, ThreadPoolExecutor(4) as pool:
        kept = list(pool.map(work, range(4)))
        assert taken_from(memory) == 4 * 4096
        assert all(map(locked, kept))


def test_the_first_error_is_shown_where_a_gpu_refuses_to_unlock(cupy, monkeypatch):
    refused = []

    def refuse(address):
        refused.append(address)
        raise cupy.cuda.runtime.CUDARuntimeError(719)

    def fail_with(taken):
        kept.append(taken)
        raise ValueError("first")

    kept = []
    with monkeypatch.context() as patched:
        patched.setattr(cupy.cuda.runtime, "hostUnregister", refuse)
        with pytest.raises(ValueError, match="first"), HostMemory(cupy) as memory:
            fail_with(memory.take(100))
        with pytest.raises(cupy.cuda.runtime.CUDARuntimeError), HostMemory(cupy) as memory:
            kept.append(memory.take(100))
    assert refused == [memory.ctypes.data for memory in kept]
    for address in refused:
        cupy.cuda.runtime.hostUnregister(address)
