"""Progress of long work, as occasional log lines."""

import logging
import sys
import time
from threading import Lock

logger = logging.getLogger(__name__)

LINE_EVERY_S = 10.0
"""Seconds between lines in a log."""
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
        """Count a finished block of ``size`` bytes; without bytes, no MB/s are shown."""
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
    """Occasional log lines on iterations; parts that are fitted together share them."""

    def __init__(self, label: str) -> None:
        self._label, self._last, self._lock = label, time.monotonic(), Lock()

    def __call__(self, part: str, done: int, most: int, convergence: float) -> None:
        """Report that a part has done ``done`` of at most ``most`` iterations."""
        with self._lock:
            now = time.monotonic()
            if now - self._last < LINE_EVERY_S:
                return
            self._last = now
        logger.info(
            "%s: %s, %d of at most %d iterations, convergence %.3g",
            *(self._label, part, done, most, convergence),
        )
