"""Progress of long work, as occasional log lines."""

import logging
import sys
import time
from collections.abc import Callable
from threading import Lock

logger = logging.getLogger(__name__)

LINE_EVERY_S = 60.0
"""Seconds before the first line in a log, and between lines: shorter work has none."""
TERMINAL_EVERY_S = 2.0
"""The same on an interactive terminal."""

Clock = Callable[[], float]
"""Returns seconds since any time."""


class Progress:
    """Counts finished blocks and their bytes; safe to call from several threads.

    ``workers`` is the number of blocks at once if all are of equal work. Without it, no line says
    how much time is left.
    """

    def __init__(
        self,
        label: str,
        total: int,
        unit: str = "tiles",
        *,
        workers: int | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self.label, self.total, self.done, self.bytes = label, total, 0, 0
        self._unit, self._workers, self._clock, self._lock = unit, workers, clock, Lock()
        self._live = sys.stderr.isatty()
        self._every = TERMINAL_EVERY_S if self._live else LINE_EVERY_S
        self._start = self._last = clock()

    def __call__(self, size: int) -> None:
        """Count a finished block of ``size`` bytes; without bytes, no MB/s are shown."""
        with self._lock:
            self.done += 1
            self.bytes += size
            now, is_last = self._clock(), self.done == self.total
            if now - self._last < self._every and not (is_last and self._live):
                return
            self._last, seconds = now, max(now - self._start, 1e-6)
            share = 100 * self.done // self.total
            parts = [f"{share} %", f"{self.done} of {self.total} {self._unit}"]
            if self.bytes:
                parts.append(f"{self.bytes / seconds / 1e6:.0f} MB/s")
            if self._workers is not None and not is_last:
                # In rounds of all workers: the first blocks end at about the same time.
                rounds = [-(-n // self._workers) for n in (self.done, self.total - self.done)]
                parts.append(f"about {duration(seconds / rounds[0] * rounds[1])} left")
            logger.info("%s: %s", self.label, ", ".join(parts))


class IterationLog:
    """Occasional log lines on iterations; parts that are fitted together share them."""

    def __init__(self, label: str, clock: Clock = time.monotonic) -> None:
        self._label, self._clock, self._lock = label, clock, Lock()
        self._every = TERMINAL_EVERY_S if sys.stderr.isatty() else LINE_EVERY_S
        self._last = clock()
        self._first: dict[str, float] = {}

    def __call__(self, part: str, done: int, most: int, convergence: float) -> None:
        """Report that a part, or its level, has done ``done`` of at most ``most`` iterations.

        They are of equal work, but convergence may end them sooner.
        """
        with self._lock:
            now = self._clock()
            if done == 1:
                self._first[part] = now
            if now - self._last < self._every:
                return
            self._last, seconds = now, now - self._first[part]
        left = ""
        if 1 < done < most:
            left = f", at most {duration(seconds / (done - 1) * (most - done))} left"
        logger.info(
            "%s: %s, %d %%, %d of at most %d iterations, convergence %.3g%s",
            *(self._label, part, 100 * done // most, done, most, convergence, left),
        )


def duration(seconds: float) -> str:
    """Write a time to its first digits: 40 s, 12 min or 2 h 10 min."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
