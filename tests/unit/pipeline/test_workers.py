"""Workers: results in order, bounded memory, the first error stops the rest."""

import signal
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused
from tifffile import TiffFile, imwrite

from octane.config.parameters import InputParameters
from octane.pipeline.workers import PROCESS_BYTES, plan_workers, require_decodable, run_tiles
from octane.store.volumes import open_volume


def test_a_signal_stops_the_tiles_that_have_not_begun():
    # As SIGTERM in a command: an exception in the waiting thread.
    begun, ended, main = [], [], threading.main_thread().ident
    assert main is not None

    def work(tile):
        begun.append(tile)
        if tile == 1:
            # When both threads have started.
            time.sleep(0.05)
            signal.pthread_kill(main, signal.SIGINT)
        time.sleep(0.5 if tile == 0 else 0.01)
        ended.append(tile)

    # If a shell runs the tests in the background, they ignore SIGINT.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_tiles(list(range(500)), work, workers=2)
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(begun) < 500
    # A cancelled task removes its output, into which no thread may still write.
    assert sorted(ended) == sorted(begun)


def test_a_signal_while_a_thread_starts_stops_all_threads(monkeypatch):
    # A pool would not know of that thread, nor wait for it.
    class Stopped(BaseException):
        pass

    start, begun, ended = threading.Thread.start, [], []

    def interrupted(thread):
        start(thread)
        monkeypatch.undo()
        while not begun:
            threading.Event().wait(0.001)
        raise Stopped

    def work(tile):
        begun.append(tile)
        threading.Event().wait(0.1)
        ended.append(tile)

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(Stopped):
        run_tiles(list(range(50)), work, workers=2)
    assert begun == ended == [0]


@given(
    size=st.integers(1, 10**9),
    memory=st.integers(1, 10**11),
    requested=st.integers(1, 64),
    blocks=st.integers(1, 10_000),
)
def test_workers_fit_the_memory_and_the_work(size, memory, requested, blocks):
    if size > memory:
        with refused("--memory"):
            plan_workers(size, memory, requested, blocks, fixed=0)
        return
    workers = plan_workers(size, memory, requested, blocks, fixed=0)
    assert 1 <= workers <= min(requested, blocks)
    assert workers * size <= memory


@pytest.mark.parametrize(("size", "blocks", "workers"), [(1, 50, 7), (1, 3, 3), (40, 50, 2)])
def test_unasked_there_is_one_worker_a_core(monkeypatch, size, blocks, workers):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(7)), raising=False)
    assert plan_workers(size, 100, None, blocks, fixed=0) == workers


def test_decoding_a_large_strip_counts_in_the_memory(tmp_path):
    path = tmp_path / "a.tif"
    stack = np.zeros((2, 400, 500), np.uint16)
    imwrite(path, stack, compression="zlib", rowsperstrip=400, photometric="minisblack")
    volume = open_volume(path, InputParameters(voxel_size=(1, 1, 1)))
    with TiffFile(path) as file:
        encoded = max(page.databytecounts[0] for page in file.pages)
    # The plane, and its strip as in the file, as inflated and as unpacked.
    needed = PROCESS_BYTES + encoded + 3 * 400 * 500 * 2
    require_decodable(needed, volume)
    with refused(path, "--memory", "0.3GB"):
        require_decodable(needed - 1, volume)
