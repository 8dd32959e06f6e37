"""Where time goes: named spans of every thread, kept for the step's record and shown to a profiler.

``with span("decode"):`` is all that code says, at any depth; it knows neither the step nor its
record. A thread that works for a record has a :class:`Track`, on which the innermost open span
counts: reading within which something is decoded is not counted twice. Under NVIDIA's profiler
(Nsight Systems) each span is an NVTX range as well, and so needs no second set of marks.

A track keeps a bounded number of pieces, however long the step: when there are too many it becomes
coarser, a piece then being the stage that took most of its time. Sums stay exact.
"""

import os
import time
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from threading import Lock, current_thread, local, main_thread
from types import ModuleType

from octane.core.idling import COMPUTE, Idling

__all__ = ["PROFILED", "Piece", "Timeline", "Track", "coarsened", "moved", "span", "summed"]

MOST = 4096
"""Pieces that a track holds before it becomes coarser: 400 kB of memory."""

RECORDED = 512
"""Pieces of a track in the record: more than a page is wide."""

PROFILED = "NVTX_INJECTION64_PATH"
"""By this variable a profiler names the library that NVTX loads; without it NVTX does nothing."""

Piece = tuple[float, float, str]
"""Start and end in seconds since the timeline's own start, and the stage."""

_here = local()


def _load_nvtx() -> ModuleType | None:
    """NVTX where a profiler listens: loading it for nobody would cost every command 20 ms."""
    if not os.environ.get(PROFILED):
        return None
    try:
        import nvtx
    except ModuleNotFoundError:
        # There is no wheel for macOS, where Nsight does not run either.
        return None
    return nvtx


_nvtx = _load_nvtx()


def summed(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Of each name that any part has, the sum; names in the order in which they come."""
    total: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            total[name] = total.get(name, 0) + value
    return total


def coarsened(pieces: Iterable[Piece], grain: float) -> list[Piece]:
    """The same pieces on a grid.

    Parameters
    ----------
    pieces
        In order, without overlap.
    grain
        Width of the grid's cells, seconds.

    Returns
    -------
    list of Piece
        Each cell has the stage that took most of it, or none where that was nothing; neighbours of
        one stage are one piece.
    """
    cells: dict[int, dict[str, float]] = {}
    for start, end, stage in pieces:
        cell = int(start / grain)
        while cell * grain < end:
            shares = cells.setdefault(cell, {})
            part = min(end, (cell + 1) * grain) - max(start, cell * grain)
            shares[stage] = shares.get(stage, 0.0) + part
            cell += 1
    made: list[Piece] = []
    for cell, shares in sorted(cells.items()):
        stage, most = max(shares.items(), key=lambda share: share[1])
        if most < grain - sum(shares.values()):
            continue
        if made and made[-1][2] == stage and abs(made[-1][1] - cell * grain) < grain / 2:
            made[-1] = (made[-1][0], (cell + 1) * grain, stage)
        else:
            made.append((cell * grain, (cell + 1) * grain, stage))
    return made


class Track:
    """What one thread, or one lane of the tile pipeline, did.

    Attributes
    ----------
    name
        What it is called.
    seconds
        Of each stage, those of spans within it left out.
    meanwhile
        Of each stage, the seconds in which no thread computed, as far as it is watched for that.
    grain
        Width of the grid on which its pieces lie, seconds; 0 while they are exact.
    """

    def __init__(self, name: str, start: float) -> None:
        self.name = name
        self.seconds: dict[str, float] = {}
        self.meanwhile: dict[str, float] = {}
        self.grain = 0.0
        self._idling: Idling | None = None
        self._passed = 0.0
        self._start = start
        self._pieces: list[Piece] = []
        self._open: list[str] = []
        self._since = 0.0
        self._moved: dict[str, float] = {}

    def watch(self, idling: Idling) -> None:
        """Tell a clock when this thread computes, and read from it; between spans alone."""
        self._idling = idling
        self.meanwhile = {}

    def begin(self, stage: str) -> None:
        """Open a span; the one around it stands still."""
        now = time.perf_counter()
        passed = self._turn(now, stage)
        if self._open:
            self._close(now, passed)
        self._open.append(stage)
        self._since, self._passed = now, passed

    def end(self) -> None:
        """Close the innermost span; the one around it goes on."""
        now = time.perf_counter()
        passed = self._turn(now, self._open[-2] if len(self._open) > 1 else None)
        self._close(now, passed)
        self._open.pop()
        self._since, self._passed = now, passed

    def move(self, stage: str, seconds: float) -> None:
        """Count seconds of the open span to another stage."""
        self._moved[stage] = self._moved.get(stage, 0.0) + seconds

    def pieces(self, most: int = MOST) -> list[Piece]:
        """What it did when, in ``most`` pieces or fewer."""
        made, grain = self._pieces, self.grain
        while len(made) > most:
            # A cell is a piece at most; the first try halves what there is, if it has no gaps.
            grain = max(2 * grain, (made[-1][1] - made[0][0]) / most)
            made = coarsened(made, grain)
        return made

    def _turn(self, now: float, becomes: str | None) -> float:
        if self._idling is None:
            return 0.0
        was = self._open[-1] if self._open else None
        return self._idling.turn(now, leaves=was == COMPUTE, enters=becomes == COMPUTE)

    def _close(self, now: float, passed: float) -> None:
        stage, length = self._open[-1], now - self._since
        if passed > self._passed:
            rest = share = passed - self._passed
            for other, seconds in self._moved.items():
                part = share * min(1.0, seconds / max(length, 1e-12))
                self.meanwhile[other] = self.meanwhile.get(other, 0.0) + part
                rest -= part
            self.meanwhile[stage] = self.meanwhile.get(stage, 0.0) + rest
        if self._moved:
            for other, seconds in self._moved.items():
                self.seconds[other] = self.seconds.get(other, 0.0) + seconds
                length -= seconds
            longest = max(self._moved, key=lambda other: self._moved[other])
            self.seconds[stage] = self.seconds.get(stage, 0.0) + length
            stage = longest if self._moved[longest] > length else stage
            self._moved.clear()
        else:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + length
        start, end = self._since - self._start, now - self._start
        pieces = self._pieces
        # One span that another interrupted for less than a clock's tick is still one.
        if pieces and pieces[-1][2] == stage and start - pieces[-1][1] < 1e-6:
            pieces[-1] = (pieces[-1][0], end, stage)
            return
        pieces.append((start, end, stage))
        if len(pieces) > MOST:
            span = end - self._pieces[0][0]
            self.grain = max(2 * self.grain, 2 * span / MOST)
            self._pieces = coarsened(self._pieces, self.grain)


class Timeline:
    """The tracks of a step.

    Attributes
    ----------
    started
        When it began, in seconds since 1970: by this, the timelines of several steps are joined.
    tracks
        By name.
    """

    def __init__(self) -> None:
        self.started = time.time()
        self.tracks: dict[str, Track] = {}
        self._start = time.perf_counter()
        self._lock = Lock()

    def track(self, name: str) -> Track:
        """The track of a name; not to be used by two threads at once."""
        with self._lock:
            if name not in self.tracks:
                self.tracks[name] = Track(name, self._start)
            return self.tracks[name]

    @contextmanager
    def on(self, track: Track) -> Generator[None]:
        """Within it, the spans of this thread are the track's."""
        before = getattr(_here, "track", None)
        _here.track = track
        try:
            yield
        finally:
            _here.track = before

    @contextmanager
    def here(self) -> Generator[None]:
        """Within it, this thread's spans are on one of the tracks: its own, unless it has one."""
        current = getattr(_here, "track", None)
        if current is not None and self.tracks.get(current.name) is current:
            yield
            return
        with self.on(self.track(_thread())):
            yield

    def own(self) -> dict[str, float]:
        """Of each stage, the seconds of this thread's own track."""
        track = self.tracks.get(_thread())
        return {} if track is None else dict(track.seconds)

    def record(self) -> dict[str, object]:
        """For JSON: per track and stage, text of ``start+length`` in microseconds."""
        tracks = [track for track in self.tracks.values() if track.seconds]
        shown = [track.pieces(RECORDED) for track in tracks]
        return {
            "started": self.started,
            "unit": "microsecond",
            "tracks": [
                {"name": track.name, "stages": _written(pieces)}
                for track, pieces in zip(tracks, shown, strict=True)
            ],
        }

    def seconds(self) -> dict[str, float]:
        """Of each stage, summed over the tracks."""
        return summed(track.seconds for track in self.tracks.values())


def _thread() -> str:
    """What the track of this thread is called."""
    thread = current_thread()
    return "main" if thread is main_thread() else thread.name


def _written(pieces: list[Piece]) -> dict[str, str]:
    """One text a stage: as JSON's numbers, a timeline would be most of a record's lines."""
    found: dict[str, list[str]] = {}
    for start, end, stage in pieces:
        found.setdefault(stage, []).append(f"{start * 1e6:.0f}+{(end - start) * 1e6:.0f}")
    return {stage: " ".join(texts) for stage, texts in found.items()}


class span:
    """Within it, this thread works at ``stage``.

    Parameters
    ----------
    stage
        A word: read, decode, copy, compute, encode, write, lease, or a step's own.
    counted
        Whether it has its place on the track; otherwise it is a part of the span around it that a
        profiler alone sees.
    """

    __slots__ = ("_counted", "_stage", "_track")

    def __init__(self, stage: str, *, counted: bool = True) -> None:
        self._stage, self._counted = stage, counted
        self._track: Track | None = None

    def __enter__(self) -> None:
        self._track = getattr(_here, "track", None) if self._counted else None
        if self._track is not None:
            self._track.begin(self._stage)
        if _nvtx is not None:
            _nvtx.push_range(self._stage, domain="octane")

    def __exit__(self, *error: object) -> None:
        if _nvtx is not None:
            _nvtx.pop_range(domain="octane")
        if self._track is not None:
            self._track.end()


def moved(stage: str, seconds: float) -> None:
    """Count seconds of this thread's open span to another stage.

    For what is too short for a span of its own: this takes a tenth of its microseconds.
    """
    track = getattr(_here, "track", None)
    if track is not None:
        track.move(stage, seconds)
