"""Timing of a step by named spans on every thread.

Other code only writes ``with span("decode"):``, at any depth. A thread that works for a record has
a :class:`Track`, on which only the innermost open span counts, so that a read that decodes is not
counted twice. Under NVIDIA's profiler (Nsight Systems) each span is an NVTX range as well.

The sums of a track are exact. It keeps only the longest pieces, so that its memory is bounded
however long the step runs.
"""

import os
import time
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from heapq import heappush, heappushpop
from threading import Lock, current_thread, local, main_thread

MOST = 512
"""Pieces that a track keeps: more than the report has pixels across."""

PROFILED = "NVTX_INJECTION64_PATH"
"""Environment variable in which a profiler names the library that NVTX loads."""

STAGES = ("read", "decode", "copy", "compute", "encode", "write")
"""Stages of a worker's block, in order: input, device, output."""
OTHER = "other"
"""Stage for the time of a worker's block outside these stages."""

Piece = tuple[float, float, str]
"""Start and end in seconds since the start of the timeline, and the stage."""


_here = local()
_nvtx = None
if os.environ.get(PROFILED):
    # Of the extra `profile`, which only those who profile install.
    import nvtx as _nvtx


def summed(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Sum each name over all parts, in order of first appearance."""
    total: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            total[name] = total.get(name, 0) + value
    return total


class Track:
    """Time of one thread or lane: ``seconds`` per stage without nested spans, and pieces."""

    def __init__(self, name: str, start: float) -> None:
        self.name = name
        self.seconds: dict[str, float] = {}
        self._start = start
        # A heap with the shortest first.
        self._longest: list[tuple[float, Piece]] = []
        self._open: list[str] = []
        self._since = 0.0
        # Seconds of the open span that are another stage's, and that stage.
        self._moved, self._moved_to = 0.0, ""

    def begin(self, stage: str) -> None:
        """Open a span and pause the enclosing one."""
        now = time.perf_counter()
        if self._open:
            self._close(now)
        self._open.append(stage)
        self._since = now

    def end(self) -> None:
        """Close the innermost span and resume the enclosing one."""
        now = time.perf_counter()
        self._close(now)
        self._open.pop()
        self._since = now

    def move(self, stage: str, seconds: float) -> None:
        """Count seconds of the open span towards another stage."""
        self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds
        self._moved += seconds
        self._moved_to = stage

    def pieces(self) -> list[Piece]:
        """Return the longest :data:`MOST` pieces in chronological order."""
        return sorted(piece for _, piece in self._longest)

    def _close(self, now: float) -> None:
        stage, length = self._open[-1], now - self._since
        self.seconds[stage] = self.seconds.get(stage, 0.0) + length - self._moved
        if 2 * self._moved > length:
            stage = self._moved_to
        self._moved = 0.0
        piece = length, (self._since - self._start, now - self._start, stage)
        keep = heappush if len(self._longest) < MOST else heappushpop
        keep(self._longest, piece)


class Timeline:
    """Tracks of a step by name; ``started`` is in seconds since 1970."""

    def __init__(self) -> None:
        self.started = time.time()
        self.tracks: dict[str, Track] = {}
        self._start = time.perf_counter()
        self._lock = Lock()

    def track(self, name: str) -> Track:
        """Return the track of this name, which only one thread may use at a time."""
        with self._lock:
            if name not in self.tracks:
                self.tracks[name] = Track(name, self._start)
            return self.tracks[name]

    @contextmanager
    def on(self, track: Track) -> Generator[None]:
        """Put the spans of this thread on a track."""
        before = getattr(_here, "track", None)
        _here.track = track
        try:
            yield
        finally:
            _here.track = before

    @contextmanager
    def here(self) -> Generator[None]:
        """Put the spans of this thread on a track of its own, unless it has one."""
        current = getattr(_here, "track", None)
        if current is not None and self.tracks.get(current.name) is current:
            yield
            return
        thread = current_thread()
        with self.on(self.track("main" if thread is main_thread() else thread.name)):
            yield

    def seconds(self) -> dict[str, float]:
        """Sum the seconds of each stage over the tracks."""
        return summed(track.seconds for track in self.tracks.values())

    def wall_seconds(self) -> dict[str, float]:
        """Wall-clock seconds of each stage: the mean over threads of one kind."""
        kinds = [track.name.rstrip("0123456789") for track in self.tracks.values()]
        return summed(
            {stage: seconds / kinds.count(kind) for stage, seconds in track.seconds.items()}
            for kind, track in zip(kinds, self.tracks.values(), strict=True)
        )

    def record(self) -> dict[str, object]:
        """Timeline for JSON: pieces per track and stage as ``start+length`` in microseconds."""
        return {
            "started": self.started,
            "unit": "microsecond",
            "tracks": [
                {"name": track.name, "stages": _stage_texts(track.pieces())}
                for track in self.tracks.values()
                if track.seconds
            ],
        }


def _stage_texts(pieces: list[Piece]) -> dict[str, str]:
    """Format pieces as one string per stage; numbers would fill most lines of a record."""
    found: dict[str, list[str]] = {}
    for start, end, stage in pieces:
        found.setdefault(stage, []).append(f"{start * 1e6:.0f}+{(end - start) * 1e6:.0f}")
    return {stage: " ".join(texts) for stage, texts in found.items()}


class span:
    """Context that counts its time towards a stage; only profilers see uncounted spans."""

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
    """Count seconds of this thread's open span towards another stage, without a nested span."""
    track = getattr(_here, "track", None)
    if track is not None:
        track.move(stage, seconds)
