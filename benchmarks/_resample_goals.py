"""The goals of resampling on a CPU, and what was measured beside each."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from _table_parts import record_of

__all__ = ["Goal", "goals"]

FLAT = 1.1
"""Peak of the most tiles over that of the fewest, up to which memory counts as flat."""

GAUSSIANS = ("linumpy", "scipy-workers", "dask-image", "ngff-zarr")


@dataclass(frozen=True)
class Goal:
    """A figure in every case that it was measured in, and its bound.

    Attributes
    ----------
    name
        What the figure is.
    measured
        One value a case; none where nothing was measured.
    bound
        The goal.
    least
        Whether the bound is the least that is good enough, not the most.
    form
        Format of a value; ``{}`` stands for it.
    """

    name: str
    measured: tuple[float, ...]
    bound: float
    least: bool
    form: str

    @property
    def held(self) -> int:
        """In how many cases it holds."""
        if self.least:
            return sum(value >= self.bound for value in self.measured)
        return sum(value <= self.bound for value in self.measured)

    @property
    def verdict(self) -> str:
        """Whether it holds."""
        if not self.measured:
            return ""
        if self.held == len(self.measured):
            return "yes"
        return "**no**" if self.held == 0 else f"in {self.held} of {len(self.measured)} cases"

    @property
    def range(self) -> str:
        """Smallest and largest of what was measured."""
        if not self.measured:
            return "not measured"
        ends = [self.form.format(value) for value in (min(self.measured), max(self.measured))]
        return ends[0] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"

    @property
    def wanted(self) -> str:
        """The bound as text."""
        return f"{'>=' if self.least else '<='} {self.form.format(self.bound)}"

    def __str__(self) -> str:
        """One line of a log."""
        return f"{self.name}: {self.range}, wanted {self.wanted}: {self.verdict or '-'}"


def goals(results: Path, *, quick: bool = False) -> list[Goal]:
    """All goals, from the records in a folder; what has no record is not measured."""
    suffix = "_quick" if quick else ""

    def each(part: str, figures: Callable[[dict], Iterator[float]]) -> tuple[float, ...]:
        record = record_of(results, f"resample_{part}{suffix}")
        return () if record is None else tuple(figures(record))

    return [
        Goal(
            "kernel against the scipy method, 1 core",
            each("kernel", lambda r: _of_method(r, "zoom", "octane_times_faster")),
            *(50, True, "{:.0f}"),
        ),
        Goal(
            "largest error of the kernel",
            each("kernel", lambda r: _of_method(r, "octane", "error")),
            *(5e-7, False, "{:.0e}"),
        ),
        Goal(
            "end to end against linumpy's loop",
            each("end_to_end", lambda r: _against(r, ["linumpy"])),
            *(11, True, "{:.1f}"),
        ),
        Goal(
            "end to end against the fastest Gaussian of others",
            each("end_to_end", lambda r: _against(r, GAUSSIANS)),
            *(5, True, "{:.1f}"),
        ),
        Goal(
            "end to end against tensorstore's mean",
            each("end_to_end", lambda r: _against(r, ["tensorstore"])),
            *(1.4, True, "{:.2f}"),
        ),
        Goal(
            "end to end over the sum of its stages",
            each("end_to_end", lambda r: (c["stages"]["total_over_sum"] for c in r["cases"])),
            *(1.05, False, "{:.2f}"),
        ),
        Goal(
            "end to end over reading and decoding alone",
            each("end_to_end", lambda r: (c["stages"]["total_over_read"] for c in r["cases"])),
            *(1.2, False, "{:.2f}"),
        ),
        Goal(
            "peak memory, most tiles over fewest",
            each("memory", _growth),
            *(FLAT, False, "{:.2f}"),
        ),
        Goal(
            "peak memory over what was predicted, off by",
            each("memory", _off),
            *(0.2, False, "{:.2f}"),
        ),
        Goal(
            "memory of one worker more, MB, tiles of 67 MB",
            each("memory", lambda r: _of_worker(r, [256, 256, 256])),
            *(150, False, "{:.0f}"),
        ),
        Goal(
            "memory of one worker more, MB, tiles of 419 MB",
            each("memory", lambda r: _of_worker(r, [400, 512, 512])),
            *(40, False, "{:.0f}"),
        ),
    ]


def _of_method(record: dict, method: str, figure: str) -> Iterator[float]:
    return (case["methods"][method][figure] for case in record["cases"])


def _against(record: dict, names: Sequence[str]) -> Iterator[float]:
    """Of the fastest of these, where any was measured."""
    for case in record["cases"]:
        programs = case["programs"]
        found = [programs[name]["seconds"] for name in names if name in programs]
        if found:
            yield min(found) / programs["octane"]["seconds"]


def _growth(record: dict) -> Iterator[float]:
    by_tile: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for case in record["cases"]:
        if case["workers"] == 2:
            by_tile.setdefault(tuple(case["tile"]), []).append((case["tiles"], case["peak_bytes"]))
    for found in by_tile.values():
        if len(found) > 1:
            yield max(found)[1] / min(found)[1]


def _off(record: dict) -> Iterator[float]:
    return (
        abs(case["peak_bytes"] / case["predicted_bytes"] - 1)
        for case in record["cases"]
        if case["predicted_bytes"] is not None
    )


def _of_worker(record: dict, tile: list[int]) -> Iterator[float]:
    """Peak with two workers less that with one, on the same mosaic."""
    peaks = {
        (case["tiles"], case["workers"]): case["peak_bytes"]
        for case in record["cases"]
        if case["tile"] == tile
    }
    for (tiles, workers), peak in peaks.items():
        if workers == 1 and (tiles, 2) in peaks:
            yield (peaks[tiles, 2] - peak) / 1e6
