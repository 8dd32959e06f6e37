"""A storm of SIGKILLs among takers of leases, perhaps beside a hostile user, and what it left.

Takers share two made-up GPUs with real locks, and are killed one after the other. Each writes down
when it had a share; two such spans of one slot that overlap are one share given twice. Beside a
hostile user, which needs root, half of the takers are a second user's. As a script, because it
forks, it prints its counts as JSON.
"""

import fcntl
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
from octane.gpu.lease_folder import LeaseFolder, LeaseRecord

__all__ = ["storm"]

SIZE = 40 * 10**9
SLOTS = 2
DESCRIBED = "2x40GB"
GPUS = simulated_gpus(DESCRIBED)
REQUESTS = [4 * 10**9, 12 * 10**9, 24 * 10**9, 36 * 10**9]
HELD_FOR = 0.03
SECOND_USER, HOSTILE_USER = 65534, 65533
LIMIT = 0.5
"""Seconds that a taker waits beside a hostile user; without one it is served in the end."""

GRACE = 3.0
"""Seconds beyond: one for a folder that is locked, and some for a machine with other work."""


@dataclass
class Span:
    """A share from one moment to another, ns."""

    slot: str
    size: int
    start: int
    stop: int
    taker: int = 0


def take(folder: Path, log: int, taker: int, limit: float | None) -> None:
    """Take, hold and give back until killed."""
    rng = random.Random(taker)
    random.seed(taker)
    while True:
        size, asked = rng.choice(REQUESTS), time.monotonic()
        backend = "gpu" if limit is None else "auto"
        with lease.lease(size, backend=backend, timeout=limit, slots=SLOTS, folder=folder) as held:
            waited = time.monotonic() - asked
            late = limit is not None and waited > limit + GRACE
            write(log, "late" if late else "in_time", taker, "-", round(1e3 * waited))
            if held.slot is None:
                write(log, "refused", taker, "-", size)
                continue
            # Another user could remove his file while it is held.
            assert os.fstat(held.slot.fd).st_uid == os.getuid()
            write(log, "granted", taker, held.slot.held.name, size)
            time.sleep(rng.uniform(0, HELD_FOR))
            write(log, "released", taker, held.slot.held.name, size)


def write(log: int, what: str, taker: int, slot: str, size: int) -> None:
    """One line, written in one piece."""
    os.write(log, f"{what} {time.monotonic_ns()} {taker} {slot} {size}\n".encode())


class Hostile:
    """A user who does in the lease folder what he can, to a file or by a new name."""

    def __init__(self, folder: Path, log: int, seed: int) -> None:
        self.folder, self.log, self.rng = folder, log, random.Random(seed)
        self.uuids = tuple(gpu.uuid for gpu in GPUS)
        self.kinds = [*map(slot_kind, self.uuids), QUEUE]
        self.numbers = [*map(str, range(8)), "²", "9" * 200]
        self.kept: list[int] = []

    def go_on(self) -> None:
        """Do everything in any order, for ever; note what was refused, and what must have been."""
        changes = [
            lambda one, _: os.pwrite(self.opened(one, os.O_RDWR), b"junk", 0),
            lambda one, _: one.rmdir() if one.is_dir() else one.unlink(),
            lambda one, new: (new.touch(), new.replace(one)),
            lambda one, _: one.rename(self.folder / "renamed"),
            lambda one, _: one.chmod(self.rng.choice([0, 0o600, 0o666])),
        ]
        attacks = [
            *changes,
            lambda one, new: new.hardlink_to(one),
            lambda one, new: new.symlink_to(one),
            lambda _, new: new.mkdir(),
            lambda _, new: os.mkfifo(new),
            lambda _, new: new.touch(0o600),
            lambda one, _: self.locked(one, os.O_RDONLY),
            lambda _, new: os.pwrite(self.locked(new, os.O_RDWR | os.O_CREAT), self.promise(), 0),
            *2 * [lambda *_: self.let_go()],
        ]
        while True:
            for attack in [*self.rng.sample(12 * attacks, 12 * len(attacks)), self.lock_and_stop]:
                new = self.folder / f"{self.rng.choice(self.kinds)}.{self.rng.choice(self.numbers)}"
                one = self.rng.choice([*self.folder.iterdir(), self.folder])
                try:
                    owner = one.lstat().st_uid
                    attack(one, new)
                    fatal = owner != HOSTILE_USER and attack in changes
                    write(self.log, "broken" if fatal else "done", 0, one.name, 0)
                except PermissionError:
                    write(self.log, "prevented", 0, one.name, 0)
                except OSError:
                    pass  # what he did before stands in his own way
                time.sleep(self.rng.uniform(0, 0.002))

    def opened(self, path: Path, flags: int) -> int:
        """Open a file, until :meth:`let_go`."""
        self.kept.append(os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW, 0o644))
        return self.kept[-1]

    def locked(self, path: Path, flags: int) -> int:
        """Open and lock a file."""
        fcntl.flock(self.opened(path, flags), fcntl.LOCK_EX | fcntl.LOCK_NB)
        return self.kept[-1]

    def promise(self) -> bytes:
        """Record of as much as there is, or of none, and of the first in the queue for ever."""
        required = self.rng.choice([0, REQUESTS[0], 10**18, 10**400, -1])
        slots = self.rng.choice([1, 10**9])
        return LeaseRecord(required, slots, -1e9, "\x1b[2J", 1e9, self.uuids).packed()

    def let_go(self) -> None:
        """Close all that was opened."""
        while self.kept:
            os.close(self.kept.pop())

    def lock_and_stop(self, *_: Path) -> None:
        """Stop with the folder's lock, until somebody sends SIGCONT."""
        fd = self.opened(self.folder, os.O_RDONLY)
        fcntl.flock(fd, fcntl.LOCK_EX)
        os.kill(os.getpid(), signal.SIGSTOP)
        fcntl.flock(fd, fcntl.LOCK_UN)


def start(work: Callable[[], None], user: int) -> int:
    """Fork a process that works as a user."""
    child = os.fork()
    if child == 0:
        try:
            if user != os.getuid():
                os.setgroups([])
                os.setgid(user)
                os.setuid(user)
            work()
        finally:
            # The child must not go on as its parent does, whatever it was.
            traceback.print_exc()
            os._exit(1)
    return child


def storm(kills: int, takers: int, seed: int = 1, *, hostile: bool = False) -> dict[str, object]:
    """Kill takers, and count what should not be."""
    rng = random.Random(seed)
    lease.TICK = 0.003
    logging.disable()
    os.environ[VARIABLE] = DESCRIBED
    with tempfile.TemporaryDirectory(dir="/var/tmp") as scratch:
        Path(scratch).chmod(0o711)
        folder, path = Path(scratch) / "leases", Path(scratch) / "log"
        if hostile:
            with LeaseFolder(folder):
                pass  # the owner of the folder may remove files of others
        log = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)

        def taker(number: int) -> int:
            work = partial(take, folder, log, number, LIMIT if hostile else None)
            return start(work, SECOND_USER if hostile and number % 2 else os.getuid())

        alive = {number: taker(number) for number in range(takers)}
        enemy = start(Hostile(folder, log, seed).go_on, HOSTILE_USER) if hostile else None
        killed: dict[int, int] = {}
        stops, stopped = 0, False
        begun = time.monotonic()
        while len(killed) < kills:
            time.sleep(0.2 if stopped else rng.uniform(0, 2 * HELD_FOR))
            victim = rng.choice(list(alive))
            killed[victim] = time.monotonic_ns()
            ended(alive.pop(victim))
            number = takers + len(killed) - 1
            alive[number] = taker(number)
            if enemy is None:
                continue
            if stopped:
                os.kill(enemy, signal.SIGCONT)
                stopped = False
            elif os.waitpid(enemy, os.WNOHANG | os.WUNTRACED)[0]:
                stopped, stops = True, stops + 1
                if stops % 10 == 1:  # for longer than anybody waits
                    time.sleep(LIMIT + GRACE + 1)
        seconds = time.monotonic() - begun
        for number, pid in alive.items():
            killed[number] = time.monotonic_ns()
            ended(pid)
        if enemy is not None:
            ended(enemy)
        with LeaseFolder(folder) as opened:
            kinds = [*(slot_kind(gpu.uuid) for gpu in GPUS), QUEUE]
            leaks = sum(len(opened.held(kind)) for kind in kinds)
            files = len(list(folder.iterdir()))
        text = path.read_text(encoding="utf-8")
        os.close(log)
    spans, holding = spans_of(text, killed)
    lines = Counter(line.split()[0] for line in text.splitlines())
    met = {
        "grants_of_the_second_user": sum(span.taker % 2 for span in spans),
        **{what: lines[what] for what in ("refused", "late", "done", "prevented", "broken")},
        "stops": stops,
    }
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
        **(met if hostile else {}),
    }


def ended(pid: int) -> None:
    """Kill a process, which must have lived so far."""
    os.kill(pid, signal.SIGKILL)
    if not os.WIFSIGNALED(os.waitpid(pid, 0)[1]):
        raise RuntimeError("a process ended by itself, see above")


def spans_of(text: str, killed: dict[int, int]) -> tuple[list[Span], int]:
    """Return the spans of all takers, and how many takers were killed while they held a share."""
    spans: list[Span] = []
    current: dict[int, Span] = {}
    for line in text.splitlines():
        what, moment, taker, slot, size = line.split()
        if what == "granted":
            span = Span(slot, int(size), int(moment), killed[int(taker)], int(taker))
            spans.append(span)
            current[span.taker] = span
        elif what == "released":
            current.pop(int(taker)).stop = int(moment)
    # A taker may write of its grant in the moment in which it is killed.
    return [span for span in spans if span.start < span.stop], len(current)


def overlaps(spans: list[Span]) -> int:
    """Spans that begin before an earlier one of the same slot has ended."""
    found = 0
    last: dict[str, int] = defaultdict(int)
    for span in sorted(spans, key=lambda one: one.start):
        found += span.start < last[span.slot]
        last[span.slot] = max(last[span.slot], span.stop)
    return found


def over(spans: list[Span], weight: Callable[[Span], int], most: int) -> int:
    """Count the moments in which a GPU carried more than it may."""
    found = 0
    carried: dict[str, int] = defaultdict(int)
    # Where one ends as another begins, the end comes first.
    events = [(span.stop, 0, -weight(span), span.slot) for span in spans]
    events += [(span.start, 1, weight(span), span.slot) for span in spans]
    for _, begins, change, slot in sorted(events):
        gpu = slot.rpartition(".")[0]
        carried[gpu] += change
        found += begins and carried[gpu] > most
    return found


if __name__ == "__main__":
    found = storm(*map(int, sys.argv[1:4]), hostile=sys.argv[4:] == ["hostile"])
    sys.stdout.write(json.dumps(found) + "\n")
