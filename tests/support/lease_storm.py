"""A storm of signals to processes that take leases, and a check of its consequences.

Takers share two simulated GPUs with real locks, and are ended one after the other: killed,
terminated as commands are, or stopped first; some are only paused. Each logs when it held a share;
two overlapping spans of one slot mean that a share was granted twice. As root, half of the takers
run as another user. Because it forks, this is a script, which prints its counts as JSON.
"""

import json
import logging
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "bin"))

from octane.gpu import lease
from octane.gpu.admission import QUEUE, slot_kind
from octane.gpu.inventory import VARIABLE, simulated_gpus
from octane.gpu.lease_folder import LeaseFolder

SIZE = 40 * 10**9
SLOTS = 2
DESCRIBED = "2x40GB"
GPUS = simulated_gpus(DESCRIBED)
REQUESTS = [4 * 10**9, 12 * 10**9, 24 * 10**9, 36 * 10**9]
HELD_FOR = 0.03
OTHER_USER = 65534
TERMINATED = 143
STOPPED_FOR_A_MOMENT = 0.3
"""Probability that another taker is paused before an end."""

ENDS = {
    "KILL": [signal.SIGKILL],
    "TERM": [signal.SIGTERM],
    "STOP and KILL": [signal.SIGSTOP, signal.SIGKILL],
}
"""Signals that end a taker, by name."""


@dataclass
class Span:
    """A share held from ``start`` to ``stop``, ns."""

    slot: str
    size: int
    start: int
    stop: int


def take(folder: Path, log: int, taker: int) -> None:
    """Take, hold and release leases until killed."""
    rng = random.Random(taker)
    random.seed(taker)
    while True:
        size = rng.choice(REQUESTS)
        with lease.lease(size, backend="gpu", slots=SLOTS, folder=folder) as held:
            assert held.slot is not None
            # Another owner could remove the file while it is held.
            assert os.fstat(held.slot.fd).st_uid == os.getuid()
            write(log, "granted", taker, held.slot.name, size)
            time.sleep(rng.uniform(0, HELD_FOR))
            write(log, "released", taker, held.slot.name, size)


def write(log: int, what: str, taker: int, slot: str, size: int) -> None:
    """Write one line atomically."""
    os.write(log, f"{what} {time.monotonic_ns()} {taker} {slot} {size}\n".encode())


def terminate(*_: object) -> None:
    """Unwind, as octane's commands do."""
    raise SystemExit


def start(work: Callable[[], None], user: int) -> int:
    """Fork a process that does the work as a user."""
    child = os.fork()
    if child == 0:
        try:
            signal.signal(signal.SIGTERM, terminate)
            if user != os.getuid():
                os.setgroups([])
                os.setgid(user)
                os.setuid(user)
            work()
        except SystemExit:
            os._exit(TERMINATED)
        finally:
            # Whatever was raised, the child must not continue as its parent.
            traceback.print_exc()
            os._exit(1)
    return child


def storm(count: int, takers: int, seed: int) -> dict[str, object]:
    """End ``count`` takers, and count faults."""
    rng = random.Random(seed)
    lease.TICK = 0.003
    logging.disable()
    os.environ[VARIABLE] = DESCRIBED
    with tempfile.TemporaryDirectory(dir="/var/tmp") as scratch:
        Path(scratch).chmod(0o711)
        folder, path = Path(scratch) / "leases", Path(scratch) / "log"
        with LeaseFolder(folder):
            pass  # created now: the other user may not create it here
        log = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)

        def taker(number: int) -> int:
            other = os.getuid() == 0 and number % 2
            work = partial(take, folder, log, number)
            return start(work, OTHER_USER if other else os.getuid())

        alive = {number: taker(number) for number in range(takers)}
        ended: dict[int, int] = {}
        ends: Counter[str] = Counter()
        continued = 0
        for number in range(takers, takers + count):
            time.sleep(rng.uniform(0, HELD_FOR))
            if rng.random() < STOPPED_FOR_A_MOMENT:
                pid = rng.choice(list(alive.values()))
                os.kill(pid, signal.SIGSTOP)
                time.sleep(rng.uniform(0, HELD_FOR))
                os.kill(pid, signal.SIGCONT)
                continued += 1
            victim, how = rng.choice(list(alive)), rng.choice(list(ENDS))
            ended[victim] = end(alive.pop(victim), how, rng.uniform(0, HELD_FOR))
            ends[how] += 1
            alive[number] = taker(number)
        for number, pid in alive.items():
            ended[number] = end(pid, "KILL", 0)
        with LeaseFolder(folder) as opened:
            kinds = [*(slot_kind(gpu.uuid) for gpu in GPUS), QUEUE]
            leaks = sum(len(opened.held(kind)) for kind in kinds)
            files = len(list(folder.iterdir()))
        text = path.read_text(encoding="utf-8")
        os.close(log)
    spans, holding = spans_of(text, ended)
    return {
        "ends": ends,
        "stopped_and_continued": continued,
        "ended_while_holding": holding,
        "grants": len(spans),
        "leaks": leaks,
        "files_left": files,
        **faults(spans),
    }


def end(pid: int, how: str, pause: float) -> int:
    """End a process, which must still run; return the time just before its last signal, ns."""
    *before, last = ENDS[how]
    for number in before:
        os.kill(pid, number)
        time.sleep(pause)
    moment = time.monotonic_ns()
    os.kill(pid, last)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    # A new process lacks a handler at first.
    if code not in (-signal.SIGKILL, -signal.SIGTERM, TERMINATED):
        raise RuntimeError("a process ended before it was signalled; see its traceback above")
    return moment


def spans_of(text: str, ended: dict[int, int]) -> tuple[list[Span], int]:
    """Return the spans of all takers, and how many takers were ended while they held a share."""
    spans: list[Span] = []
    current: dict[int, Span] = {}
    for line in text.splitlines():
        what, moment, taker, slot, size = line.split()
        if what == "granted":
            spans.append(Span(slot, int(size), int(moment), ended[int(taker)]))
            current[int(taker)] = spans[-1]
        else:
            current.pop(int(taker)).stop = int(moment)
    # A taker may log its grant just as it is ended.
    return [span for span in spans if span.start < span.stop], len(current)


def faults(spans: list[Span]) -> dict[str, int]:
    """Count slots granted twice, and grants that exceed a GPU's slots or memory."""
    found = {"double_grants": 0, "over_slots": 0, "over_memory": 0}
    carried: dict[str, Counter[str]] = defaultdict(Counter)
    # If one span ends when another begins, the end comes first.
    events = [(span.stop, 0, span.slot, -span.size) for span in spans]
    events += [(span.start, 1, span.slot, span.size) for span in spans]
    for _, begins, slot, size in sorted(events):
        held = carried[slot.rpartition(".")[0]]
        found["double_grants"] += begins and held[slot] > 0
        held[slot] += size
        found["over_slots"] += begins and sum(size > 0 for size in held.values()) > SLOTS
        found["over_memory"] += begins and held.total() > SIZE
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(storm(*map(int, sys.argv[1:]))) + "\n")
