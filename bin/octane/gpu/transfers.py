"""Copies between host and GPU: how many, how large, and how fast by the GPU's own clock.

Two events in the stream of a copy tell what it took there, whether a worker waits for it or not. A
copy that had to wait for another worker's in the same direction is timed with that wait, and in a
stream that has nothing else to do with the host's microseconds between its calls as well: most look
slower than the link. The fastest had it to themselves, so that the link is judged by them.
"""

import math
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from types import ModuleType
from typing import Literal, NamedTuple, Protocol

from pydantic import BaseModel

from octane.core.units import shown

__all__ = [
    "DIRECTIONS",
    "LARGE",
    "Direction",
    "Stream",
    "Transfer",
    "Transfers",
    "link_rate",
    "slow_link",
]

Direction = Literal["to_device", "to_host"]
DIRECTIONS: tuple[Direction, ...] = ("to_device", "to_host")

SHORTEST = 5e-7
"""Seconds that events tell apart: a copy that took none by them is counted as so long."""

STEP = 1.05
"""Ratio of neighbouring rates in the counts from which a median comes."""

LARGE = 1 << 20
"""Bytes from which a copy's rate is its link's; below, the microseconds of each call show."""

SMALL_SHARE = 0.3
"""Of a link's limit, below which copies are called slow: more than headers and calls can cost."""

LANE_RATES = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
"""Bytes a second that one lane carries in either direction, by the generation of PCIe."""


class Transfer(BaseModel):
    """Copies of one kind.

    Attributes
    ----------
    direction
        Where they went.
    memory
        Of the host: page-locked or not.
    waited
        Whether a worker waited for each as soon as it had asked for it.
    size
        Bytes of the smallest copies that belong here, a power of two; all have less than twice as
        many.
    copies, bytes, seconds
        How many, and their sums; each copy has its own seconds, also beside others.
    gigabytes_per_second
        ``median`` (to 5 %) and ``fastest``.
    """

    direction: Direction
    memory: Literal["pinned", "pageable"]
    waited: bool
    size: int
    copies: int
    bytes: int
    seconds: float
    gigabytes_per_second: dict[Literal["median", "fastest"], float]


class Stream(Protocol):
    """Of CuPy's."""

    ptr: int


class _Event(Protocol):
    """Of CuPy's."""

    def record(self, stream: Stream) -> None: ...


class _Kind(NamedTuple):
    direction: Direction
    pinned: bool
    waited: bool
    size: int


class _Asked(NamedTuple):
    """A copy between two events, which may not be done yet."""

    kind: _Kind
    size: int
    begin: _Event
    end: _Event


@dataclass
class _Sum:
    bytes: int = 0
    seconds: float = 0.0
    fastest: float = 0.0
    # How many copies had which rate: a list of them would grow with the mosaic.
    rates: Counter[int] = field(default_factory=Counter)

    def add(self, size: int, seconds: float) -> None:
        rate = size / seconds
        self.bytes += size
        self.seconds += seconds
        self.fastest = max(self.fastest, rate)
        self.rates[round(math.log(rate, STEP))] += 1

    def median(self) -> float:
        half, passed = self.rates.total() / 2, 0
        for step, count in sorted(self.rates.items()):
            passed += count
            if passed >= half:
                return min(STEP**step, self.fastest)
        raise ValueError("no copies")


class Transfers:
    """Collects the copies of all workers on one device; threads may share it.

    Parameters
    ----------
    xp
        ``cupy``; with ``numpy`` nothing is ever copied.
    """

    def __init__(self, xp: ModuleType) -> None:
        self._xp = xp
        self._asked: dict[int, list[_Asked]] = {}
        self._sums: dict[_Kind, _Sum] = {}
        self._lock = Lock()

    @contextmanager
    def timed(
        self, stream: Stream, size: int, direction: Direction, *, pinned: bool, waited: bool
    ) -> Generator[None]:
        """The block asks for one copy in ``stream``, of ``size`` bytes."""
        if not size:
            yield
            return
        begin, end = (self._xp.cuda.Event() for _ in range(2))
        begin.record(stream)
        yield
        end.record(stream)
        kind = _Kind(direction, pinned, waited, 1 << (size.bit_length() - 1))
        with self._lock:
            self._asked.setdefault(stream.ptr, []).append(_Asked(kind, size, begin, end))

    def settle(self, stream: Stream) -> None:
        """Count the copies of a stream, all of which are done."""
        with self._lock:
            for kind, size, begin, end in self._asked.pop(stream.ptr, []):
                seconds = self._xp.cuda.get_elapsed_time(begin, end) / 1e3
                self._sums.setdefault(kind, _Sum()).add(size, max(seconds, SHORTEST))

    @property
    def bytes(self) -> int:
        """Of all copies that were counted."""
        with self._lock:
            return sum(summed.bytes for summed in self._sums.values())

    def found(self) -> list[Transfer]:
        """What was counted, in order of direction, memory and size."""
        with self._lock:
            sums = sorted(self._sums.items())
        return [
            Transfer(
                direction=kind.direction,
                memory="pinned" if kind.pinned else "pageable",
                waited=kind.waited,
                size=kind.size,
                copies=summed.rates.total(),
                bytes=summed.bytes,
                seconds=summed.seconds,
                gigabytes_per_second={
                    "median": summed.median() / 1e9,
                    "fastest": summed.fastest / 1e9,
                },
            )
            for kind, summed in sums
        ]


def link_rate(device: Mapping[str, object]) -> float | None:
    """Bytes a second that a GPU's link carries in either direction at most.

    Parameters
    ----------
    device
        From :func:`octane.core.arrays.describe`.

    Returns
    -------
    float or None
        None where the driver does not tell what the link is.
    """
    generation, width = device.get("pcie_generation"), device.get("pcie_width")
    if not isinstance(generation, int) or not isinstance(width, int):
        return None
    rate = LANE_RATES.get(generation)
    return None if rate is None else rate * width


def slow_link(
    transfers: Sequence[Transfer], device: Mapping[str, object], *, pinned: bool
) -> list[str]:
    """What to say of directions in which large copies took a small share of what the link carries.

    Parameters
    ----------
    transfers
        Of a step.
    device
        From :func:`octane.core.arrays.describe`.
    pinned
        Whether host memory was page-locked. Copies from other memory all the same, as of a volume
        that is kept in memory, are not told: nobody who runs the step can change them.

    Returns
    -------
    list of str
        A sentence each.
    """
    limit = link_rate(device)
    if limit is None:
        return []
    told = []
    for direction, where in zip(DIRECTIONS, ("to the GPU", "from the GPU"), strict=True):
        large = [
            t
            for t in transfers
            if t.direction == direction
            and t.size >= LARGE
            and t.memory == ("pinned" if pinned else "pageable")
        ]
        if not large:
            continue
        best = max(large, key=lambda t: t.gigabytes_per_second["fastest"])
        rate = best.gigabytes_per_second["fastest"] * 1e9
        if rate >= SMALL_SHARE * limit:
            continue
        remedy = (
            "give the task cores of the socket that the GPU hangs on (nvidia-smi topo -m), and see "
            "that nobody else fills the link"
            if pinned
            else "leave --pinned on, and let the task lock memory (ulimit -l)"
        )
        told.append(
            f"Copies {where} reached {shown(rate)}/s at most, {rate / limit:.0%} of what its link "
            f"(PCIe {device['pcie_generation']} x{device['pcie_width']}) carries: {remedy}."
        )
    return told
