"""Seconds of a call, and what many of them come to. Needs nothing but Python."""

import statistics
import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["timed"]

T = TypeVar("T")


def timed(work: Callable[[], T], runs: int) -> tuple[T, dict[str, float]]:
    """What a call gives; seconds of the first call, and the best and the median of those after."""
    seconds = []
    for _ in range(1 + runs):
        start = time.perf_counter()
        result = work()
        seconds.append(time.perf_counter() - start)
    first, *others = seconds
    return result, {"first": first, "best": min(others), "median": statistics.median(others)}
