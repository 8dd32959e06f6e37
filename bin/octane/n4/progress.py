"""How far N4's fit has come: a line for each level, and in a long one a line now and then."""

import logging
import time
from collections.abc import Callable, Sequence
from threading import Lock

from octane.core.progress import LINE_EVERY_S

__all__ = ["FitLog"]

logger = logging.getLogger(__name__)


class FitLog:
    """Tells of the iterations of one fit, or of several at the same time.

    Parameters
    ----------
    convergence_threshold
        A level ends at this measure or below.
    """

    def __init__(self, convergence_threshold: float) -> None:
        self._threshold = convergence_threshold
        self._last, self._lock = time.monotonic(), Lock()

    def of(self, name: str, iterations: Sequence[int]) -> Callable[[int, int, float], None]:
        """What is called after each iteration of one part.

        Parameters
        ----------
        name
            What is fitted.
        iterations
            The most of each level.

        Returns
        -------
        callable
            Takes the level, the iteration, both from 0, and the measure.
        """
        begun = time.monotonic()

        def tell(level: int, iteration: int, measure: float) -> None:
            nonlocal begun
            now, done, most = time.monotonic(), iteration + 1, iterations[level]
            ends = done == most or measure <= self._threshold
            if not self._due(now, always=ends):
                return
            logger.info(
                "N4: %s, level %d of %d: %s in %.1f s, convergence %.3g",
                name, level + 1, len(iterations),
                _counted(done) if ends else f"{done} of at most {_counted(most)}",
                now - begun, measure,
            )  # fmt: skip
            if ends:
                begun = now

        return tell

    def _due(self, now: float, *, always: bool) -> bool:
        """Whether it is time for a line; sections that are fitted together share the lines."""
        with self._lock:
            due = always or now - self._last >= LINE_EVERY_S
            if due:
                self._last = now
            return due


def _counted(iterations: int) -> str:
    return "1 iteration" if iterations == 1 else f"{iterations} iterations"
