"""A storm of SIGKILLs among takers of leases, and a look at what it left.

Takers wait for, hold and give back shares of two made-up GPUs, with real locks, while one of them
after the other is killed at a random moment: waiting, deciding, holding, giving back. Each writes
down when it had a share, from after the grant to before the release; a killed one had it until just
before the kill. So two such spans of one slot that overlap are one share given twice.

As a script it prints its counts as JSON: a separate process, because it forks.
"""

import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "bin"))

from octane.gpu import lease
from octane.gpu.admission import QUEUE, slot_kind
from octane.gpu.lease_folder import LeaseFolder
from octane.gpu.simulated import VARIABLE, SimulatedGpus

__all__ = ["storm"]

SIZE = 40 * 10**9
SLOTS = 2
GPUS = SimulatedGpus("2x40GB")
REQUESTS = [4 * 10**9, 12 * 10**9, 24 * 10**9, 36 * 10**9]
HELD_FOR = 0.01


@dataclass
class Span:
    """A share from one moment to another, ns."""

    slot: str
    size: int
    start: int
    stop: int | None = None


def take(folder: Path, log: int, taker: int) -> None:
    """Take, hold and give back until killed."""
    rng = random.Random(taker)
    random.seed(taker)
    while True:
        size = rng.choice(REQUESTS)
        with lease.lease(size, backend="gpu", slots=SLOTS, folder=folder) as held:
            assert held.slot is not None
            write(log, "granted", taker, held.slot.held.name, size)
            time.sleep(rng.uniform(0, HELD_FOR))
            write(log, "released", taker, held.slot.held.name, size)


def write(log: int, what: str, taker: int, slot: str, size: int) -> None:
    """One line, written in one piece."""
    os.write(log, f"{what} {time.monotonic_ns()} {taker} {slot} {size}\n".encode())


def start(folder: Path, log: int, taker: int) -> int:
    """Fork a taker."""
    child = os.fork()
    if child == 0:
        try:
            take(folder, log, taker)
        finally:
            # The child must not go on as its parent does, whatever it was.
            traceback.print_exc()
            os._exit(1)
    return child


def storm(kills: int, takers: int, seed: int = 1) -> dict[str, object]:
    """Kill takers, and count what should not be."""
    rng = random.Random(seed)
    lease.TICK = 0.003
    os.environ[VARIABLE] = GPUS.description
    with tempfile.TemporaryDirectory() as scratch:
        folder, path = Path(scratch) / "leases", Path(scratch) / "log"
        log = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        alive = {number: start(folder, log, number) for number in range(takers)}
        killed: dict[int, int] = {}
        begun = time.monotonic()
        while len(killed) < kills:
            time.sleep(rng.uniform(0, 2 * HELD_FOR))
            victim = rng.choice(list(alive))
            pid = alive.pop(victim)
            killed[victim] = time.monotonic_ns()
            os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            if not os.WIFSIGNALED(status):
                raise RuntimeError("a taker ended by itself, see above")
            alive[takers + len(killed) - 1] = start(folder, log, takers + len(killed) - 1)
        seconds = time.monotonic() - begun
        for number, pid in alive.items():
            killed[number] = time.monotonic_ns()
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        with LeaseFolder(folder) as opened, opened.mutex():
            kinds = [*(slot_kind(gpu.uuid) for gpu in GPUS.read()), QUEUE]
            leaks = sum(len(opened.held(kind)) for kind in kinds)
            files = len(list(folder.iterdir()))
        spans, holding = spans_of(path.read_text(encoding="utf-8"), killed)
        os.close(log)
    return {
        "kills": kills,
        "takers": takers,
        "kills_while_holding": holding,
        "grants": len(spans),
        "leaks": leaks,
        "double_grants": overlaps(spans),
        "over_slots": over(spans, lambda _: 1, SLOTS),
        "over_memory": over(spans, lambda span: span.size, SIZE),
        "files_left": files,
        "seconds": round(seconds, 1),
    }


def spans_of(text: str, killed: dict[int, int]) -> tuple[list[Span], int]:
    """Return the spans of all takers, and how many takers were killed while they held a share."""
    spans: list[Span] = []
    current: dict[int, Span] = {}
    for line in text.splitlines():
        what, moment, taker, slot, size = line.split()
        if what == "granted":
            span = Span(slot, int(size), int(moment))
            spans.append(span)
            current[int(taker)] = span
        else:
            current.pop(int(taker)).stop = int(moment)
    for taker, span in current.items():
        span.stop = max(span.start, killed[taker])
    return spans, len(current)


def overlaps(spans: list[Span]) -> int:
    """Spans that begin before an earlier one of the same slot has ended."""
    found = 0
    last: dict[str, int] = defaultdict(int)
    for span in sorted(spans, key=lambda one: one.start):
        found += span.start < last[span.slot]
        last[span.slot] = max(last[span.slot], span.stop or 0)
    return found


def over(spans: list[Span], weight: Callable[[Span], int], most: int) -> int:
    """Count the moments in which a GPU carried more than it may."""
    found = 0
    for gpu in {span.slot.rpartition(".")[0] for span in spans}:
        own = [span for span in spans if span.slot.rpartition(".")[0] == gpu]
        # Where one ends as another begins, the end comes first.
        events = sorted(
            [(span.start, 1, weight(span)) for span in own]
            + [(span.stop or 0, 0, -weight(span)) for span in own if (span.stop or 0) > span.start]
        )
        # A span without length was killed in the moment of its grant: it never counts.
        short = {span.start for span in own if span.stop == span.start}
        carried = 0
        for moment, begins, change in events:
            if begins and moment in short:
                continue
            carried += change
            found += carried > most
    return found


if __name__ == "__main__":
    kills, takers, seed = map(int, sys.argv[1:])
    sys.stdout.write(json.dumps(storm(kills, takers, seed)) + "\n")
