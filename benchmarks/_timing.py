"""Seconds of repeated calls. Needs only the standard library, as peers' Pythons load it."""

import statistics
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def timed(work: Callable[[], T], runs: int) -> tuple[T, dict[str, float]]:
    """Return the result of a call, the seconds of the first, and best and median of the others."""
    seconds = []
    for _ in range(1 + runs):
        start = time.perf_counter()
        result = work()
        seconds.append(time.perf_counter() - start)
    first, *others = seconds
    return result, {"first": first, "best": min(others), "median": statistics.median(others)}


def median_ratio(seconds: Iterable[float], others: Iterable[float]) -> float:
    """Return the median of the ratios within each round, when conditions were most similar."""
    return statistics.median(a / b for a, b in zip(seconds, others, strict=True))
