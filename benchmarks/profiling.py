"""What the record of where time went costs, and whether it names the right bound.

The same RESAMPLE with spans switched off, with them, and with them as NVTX ranges besides; then
runs that are made slow in one place, of which the sentence must name that place.
"""

import argparse
import logging
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from unittest import mock

import numpy.typing as npt
import nvtx
from _common import cores, save, scratch_folder
from _resample_stores import RESOLUTION, Mosaic, mosaic

from octane.config.params import ExecutionParameters, InputParameters, ResampleParameters
from octane.core import timing
from octane.core.metrics import Metrics
from octane.resample.cpu import CompiledResampler
from octane.steps.resample import resample_image
from octane.store import writer

logger = logging.getLogger(__name__)

SLOW = 40e6
"""Bytes a second of what is made slow: a tenth of what a worker does in the other stages."""


def resampled(source: Mosaic) -> tuple[Metrics, float]:
    """RESAMPLE of a mosaic, and its seconds."""
    with tempfile.TemporaryDirectory(dir=scratch_folder()) as folder:
        start = time.perf_counter()
        metrics = resample_image(
            source.path,
            Path(folder) / "out.ome.zarr",
            ResampleParameters(resolution=(RESOLUTION,) * 3),
            InputParameters(),
            ExecutionParameters(backend="cpu", workers=cores()),
        )
        return metrics, time.perf_counter() - start


def nothing(*_arguments: object) -> None:
    """Do nothing; a mock would take longer than what it stands for."""


@contextmanager
def without_spans() -> Generator[None]:
    """No span is noted."""
    with (
        mock.patch.object(timing.span, "__enter__", nothing),
        mock.patch.object(timing.span, "__exit__", nothing),
        mock.patch("octane.store.decode.moved", nothing),
    ):
        yield


@contextmanager
def as_ranges() -> Generator[None]:
    """Every span is an NVTX range as well, to which nobody listens."""
    with mock.patch.object(timing, "_nvtx", nvtx):
        yield


def overhead(source: Mosaic, runs: int) -> dict[str, object]:
    """Medians of each mode, taken in turn, and their ratios to spans switched off.

    Off is there twice: what the two differ by is this machine's own.
    """
    modes: dict[str, Callable[[], AbstractContextManager[object]]] = {
        "off": without_spans,
        "off, again": without_spans,
        "on": nullcontext,
        "on, with NVTX": as_ranges,
    }
    seconds: dict[str, list[float]] = {mode: [] for mode in modes}
    for run in range(runs + 1):
        for mode, entered in modes.items():
            with entered():
                _, spent = resampled(source)
            # The first of each finds nothing loaded.
            if run:
                seconds[mode].append(spent)
    medians = {mode: statistics.median(values) for mode, values in seconds.items()}
    return {
        "megabytes": source.bytes / 1e6,
        "runs": runs,
        "seconds": medians,
        "smallest": {mode: min(values) for mode, values in seconds.items()},
        "ratio": {mode: medians[mode] / medians["off"] for mode in modes},
        "ratio_of_smallest": {
            mode: min(values) / min(seconds["off"]) for mode, values in seconds.items()
        },
    }


@contextmanager
def slow_read() -> Generator[None]:
    """Files that come slowly."""
    read = os.preadv

    def slowly(descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        count = read(descriptor, buffers, offset)
        time.sleep(count / SLOW)
        return count

    with mock.patch("os.preadv", slowly):
        yield


@contextmanager
def slow_compute() -> Generator[None]:
    """Operators that take long."""
    push = CompiledResampler.push

    def slowly(self: CompiledResampler, planes: npt.NDArray) -> None:
        push(self, planes)
        end = time.thread_time() + planes.nbytes / SLOW
        while time.thread_time() < end:
            pass

    with mock.patch.object(CompiledResampler, "push", slowly):
        yield


@contextmanager
def slow_write() -> Generator[None]:
    """A disk that takes them slowly; the result is a fraction of the input."""
    write = writer.write_object

    def slowly(path: Path, pieces: Sequence[bytes]) -> None:
        write(path, pieces)
        time.sleep(sum(map(len, pieces)) / (SLOW / 20))

    with mock.patch.object(writer, "write_object", slowly):
        yield


def bounds(source: Mosaic) -> dict[str, object]:
    """What is named as the bound of runs that are made slow in one place."""
    found: dict[str, object] = {}
    for made, slow in (("read", slow_read), ("compute", slow_compute), ("write", slow_write)):
        with slow():
            metrics, _ = resampled(source)
        told = metrics.figures["pipeline"]["RESAMPLE"]  # ty: ignore[not-subscriptable]
        found[made] = {
            "named": told["bound_by"],
            "right": told["bound_by"] == made,
            "sentence": told["bound"],
        }
    return found


def main() -> None:
    """Measure and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less data and fewer runs")
    quick = parser.parse_args().quick
    counts = (2, 2) if quick else (8, 8)
    with mosaic(scratch_folder(), "zstd", (128, 256, 256), counts) as source:
        source.warm()
        figures: dict[str, object] = {"overhead": overhead(source, 3 if quick else 15)}
    with mosaic(scratch_folder(), "zstd", (32, 128, 128), (4, 4)) as source:
        source.warm()
        figures["bounds"] = bounds(source)
    save("profiling", figures, quick=quick)


if __name__ == "__main__":
    main()
