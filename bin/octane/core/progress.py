"""Progress of long work: a bar on a terminal, a timed log line now and then elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

logger = logging.getLogger(__name__)

LINE_EVERY_S = 10.0
"""A log that is read later wants a line now and then, not one a tile."""


class Advance:
    """Counts finished blocks and their bytes; safe to call from several threads."""

    def __init__(self, label: str, total: int, bar: Progress | None, unit: str) -> None:
        self.label, self.total, self.done, self.bytes = label, total, 0, 0
        self._unit, self._bar, self._lock = unit, bar, Lock()
        self._task = bar.add_task(label, total=total, rate="") if bar else None
        self._start = self._last = time.monotonic()

    def __call__(self, size: int) -> None:
        """One block of ``size`` bytes is finished."""
        with self._lock:
            self.done += 1
            self.bytes += size
            now = time.monotonic()
            seconds = max(now - self._start, 1e-6)
            rate = (
                f"{self.done / seconds:.1f} {self._unit}/s, {self.bytes / seconds / 1e6:.0f} MB/s, "
                f"{(self.total - self.done) * seconds / self.done:.0f} s left"
            )
            if self._bar is not None and self._task is not None:
                self._bar.update(self._task, completed=self.done, rate=rate)
            elif now - self._last >= LINE_EVERY_S or self.done == self.total:
                self._last = now
                logger.info("%s: %d of %d, %s", self.label, self.done, self.total, rate)


class IterationLog:
    """A line in the log now and then for iterations; parts fitted together share the lines."""

    def __init__(self, label: str) -> None:
        self._label, self._last, self._lock = label, time.monotonic(), Lock()

    def __call__(self, part: str, done: int, most: int, convergence: float) -> None:
        """Count an iteration: ``done`` of at most ``most`` of a part, and its measure."""
        with self._lock:
            now = time.monotonic()
            if now - self._last < LINE_EVERY_S:
                return
            self._last = now
        logger.info(
            "%s: %s, %d of at most %d iterations, convergence %.3g",
            *(self._label, part, done, most, convergence),
        )


@contextmanager
def progress(label: str, total: int, unit: str = "tiles") -> Generator[Advance]:
    """Show how far ``label`` has come, in ``unit``, on standard error."""
    if not sys.stderr.isatty():
        yield Advance(label, total, None, unit)
        return
    from rich import progress as parts
    from rich.console import Console

    columns = (
        parts.TextColumn("{task.description}"),
        parts.BarColumn(),
        parts.MofNCompleteColumn(),
        parts.TextColumn("{task.fields[rate]}"),
        parts.TimeRemainingColumn(),
    )
    with parts.Progress(*columns, console=Console(stderr=True)) as bar:
        yield Advance(label, total, bar, unit)
