"""Progress of long work: a log line now and then."""

import logging
import sys
import time
from threading import Lock

logger = logging.getLogger(__name__)

LINE_EVERY_S = 10.0
"""Seconds between lines of a log."""
TERMINAL_EVERY_S = 2.0
"""Seconds between updates on an interactive terminal."""


class Progress:
    """Counts finished blocks and their bytes; safe to call from several threads."""

    def __init__(self, label: str, total: int, unit: str = "tiles") -> None:
        self.label, self.total, self.done, self.bytes = label, total, 0, 0
        self._unit, self._lock = unit, Lock()
        self._every = TERMINAL_EVERY_S if sys.stderr.isatty() else LINE_EVERY_S
        self._start = self._last = time.monotonic()

    def __call__(self, size: int) -> None:
        """One block of ``size`` bytes is finished; without any, none are shown."""
        with self._lock:
            self.done += 1
            self.bytes += size
            now = time.monotonic()
            if now - self._last < self._every and self.done < self.total:
                return
            self._last, seconds = now, max(now - self._start, 1e-6)
            logger.info(
                "%s: %d of %d, %.1f %s/s, %s%.0f s left",
                *(self.label, self.done, self.total, self.done / seconds, self._unit),
                f"{self.bytes / seconds / 1e6:.0f} MB/s, " if self.bytes else "",
                (self.total - self.done) * seconds / self.done,
            )


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
