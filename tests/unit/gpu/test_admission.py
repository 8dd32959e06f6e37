"""Who gets a GPU: the memory account, the rules, and invariants in any order of events."""

import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from octane.gpu import admission
from octane.gpu.admission import (
    BUSY,
    CROWDED,
    HELD,
    QUEUE,
    Held,
    Holder,
    Load,
    Request,
    decide,
    node_state,
    slot_kind,
)
from octane.gpu.inventory import Gpu, GpuProcess
from octane.gpu.lease_folder import Identity, LeaseFolder, LeaseRecord

GB = 10**9
PROJECT = Path(__file__).resolve().parents[3]


def gpu(index=0, total=40, free=None, **other):
    return Gpu(
        index, f"GPU-{index}", "A40", total * GB, round((total if free is None else free) * GB),
        **other,
    )  # fmt: skip


def request(required, *uuids, slots=1):
    return Request(round(required * GB), slots, uuids or ("GPU-0",))


def holder(reserved, allocated=None, slots=1):
    return Holder(round(reserved * GB), None if allocated is None else round(allocated * GB), slots)


def chosen(loads, wanted, earlier=()):
    found = decide(loads, wanted, earlier).gpu
    return None if found is None else found.index


def shown(*processes):
    return Gpu(0, "GPU-0", "A40", 100, 50, processes=tuple(GpuProcess(*p) for p in processes))


def held_by(pid, start=1, required=30, since=1.0, slots=3):
    return LeaseRecord(required, slots, since, pid=pid, start=start)


@pytest.fixture
def account(tmp_path, monkeypatch):
    """State of a node with slots and waiters; all processes have started at 1."""
    taken = []
    monkeypatch.setattr(admission, "identity", lambda pid: Identity(pid, 1))
    monkeypatch.setattr(admission, "own_identity", lambda: Identity(os.getpid(), 1))

    def look(gpu, *records, waiters=()):
        with LeaseFolder(tmp_path / "leases") as folder, folder.mutex():
            taken.extend(folder.take("GPU-0", record) for record in records)
            taken.extend(folder.take(QUEUE, record) for record in waiters)
            return node_state(folder, [gpu])

    yield look
    for slot in taken:
        slot.release()


def test_a_holders_memory_is_found_by_its_process(account):
    (load,) = account(shown((50, 10)), held_by(50)).loads
    assert [holder.allocated for holder in load.holders] == [10]
    assert (load.others, load.available) == (0, 30)


def test_a_number_that_is_used_again_is_not_the_holder(account):
    state = account(shown((50, 10)), held_by(50, start=0))
    assert state.loads[0].holders[0].allocated is None
    assert state.others["GPU-0"] == (50,)
    assert state.loads[0].available == 20


def test_memory_beyond_the_reservation_is_no_credit_to_another(account):
    (load,) = account(shown((50, 45)), held_by(50), held_by(51)).loads
    assert [holder.allocated for holder in load.holders] == [30, None]
    assert load.available == 20


def test_one_process_with_two_leases_fills_them_one_after_another(account):
    (load,) = account(shown((50, 40)), held_by(50), held_by(50)).loads
    assert [holder.allocated for holder in load.holders] == [30, 10]


def test_memory_that_nvml_does_not_tell_counts_as_not_allocated(account):
    (load,) = account(shown((50, None)), held_by(50)).loads
    assert load.holders[0].allocated is None
    assert (load.available, load.others) == (20, 0)


def test_processes_without_a_lease_are_counted_but_not_oneself(account):
    state = account(shown((70, 1), (71, 1), (os.getpid(), 1)))
    assert state.loads[0].others == 2
    assert state.others["GPU-0"] == (70, 71)


def test_where_nvml_lists_no_processes_there_are_none(account):
    (load,) = account(Gpu(0, "GPU-0", "A40", 100, 50, processes=None)).loads
    assert load.others == 0


def test_a_slot_without_a_readable_record_is_closed_to_others(account):
    (load,) = account(shown(), LeaseRecord(30, 3, 1.0, boot="another")).loads
    assert [holder.slots for holder in load.holders] == [1]


def test_the_lease_that_a_command_runs_under_does_not_stand_in_its_way(account, monkeypatch):
    outer = held_by(50)
    assert len(account(shown(), outer, held_by(51)).loads[0].holders) == 2
    monkeypatch.setenv(HELD, f"GPU-1.0@2.0,{Held('GPU-0.0', outer).mark}")
    state = account(shown())
    assert len(state.loads[0].holders) == 1
    assert len(state.held["GPU-0"]) == 2


def test_a_variable_that_names_an_earlier_lease_of_a_slot_gives_nothing(account, monkeypatch):
    monkeypatch.setenv(HELD, Held("GPU-0.0", held_by(50, since=1.0)).mark)
    assert len(account(shown(), held_by(50, since=2.0)).loads[0].holders) == 1


def test_waiters_come_in_the_order_of_their_arrival(account):
    state = account(shown(), waiters=[held_by(5, since=3.0), held_by(6, since=1.0)])
    assert [record.pid for _, record in state.waiters] == [6, 5]


def test_a_uuid_with_slashes_makes_no_folders():
    assert "/" not in slot_kind("MIG-GPU-1/2/0")


LAST = Path("/proc/sys/kernel/ns_last_pid")


def started_as(pid):
    """A process with a number of our choice, or None: others start processes as well."""
    for _ in range(50):
        try:
            LAST.write_text(str(pid - 1))
        except OSError as error:
            pytest.skip(f"the next process's number cannot be chosen ({error.strerror})")
        process = subprocess.Popen(["sleep", "60"])
        if process.pid == pid:
            return process
        process.kill()
        process.wait()
    return None


def test_a_process_that_gets_a_dead_holders_number_is_a_stranger(tmp_path):
    # The parent is killed, its forked child keeps the slot, and the number is used again.
    code = """
    import os, sys
    from pathlib import Path
    from octane.gpu.lease_folder import LeaseFolder, LeaseRecord
    folder = LeaseFolder(Path(sys.argv[1]))
    with folder.mutex():
        slot = folder.take("GPU-0", LeaseRecord(30, 3, 1.0))
    if os.fork() == 0:
        sys.stdin.read()
        os._exit(0)
    print("held", flush=True)
    input()
    """
    holder = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), tmp_path / "leases"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(PROJECT / "bin")},
    )
    with holder, LeaseFolder(tmp_path / "leases") as folder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        gpu = shown((holder.pid, 10))
        with folder.mutex():
            assert node_state(folder, [gpu]).loads[0].holders[0].allocated == 10
        holder.kill()
        holder.wait()
        again = started_as(holder.pid)
        if again is None:
            pytest.skip("another process was quicker to take the number")
        with again, folder.mutex():
            state = node_state(folder, [gpu])
            again.kill()
        assert state.loads[0].holders[0].allocated is None
        assert state.others["GPU-0"] == (holder.pid,)
    with LeaseFolder(tmp_path / "leases") as folder:
        assert holder.stdin is not None
        # Its end of the pipe is closed by now, so that the child has come to its end.
        while True:
            with folder.mutex():
                if not folder.held("GPU-0"):
                    break


def test_an_idle_gpu_is_granted():
    assert chosen([Load(gpu())], request(40)) == 0


def test_what_no_gpu_has_is_impossible_and_said():
    found = decide([Load(gpu()), Load(gpu(1, 24))], request(41, "GPU-0", "GPU-1"))
    assert (found.gpu, found.possible) == (None, False)
    assert found.reasons == {"GPU-0": "has 40.0 GB in all", "GPU-1": "has 24.0 GB in all"}


def test_a_gpu_outside_the_allocation_is_never_granted():
    found = decide([Load(gpu()), Load(gpu(1))], request(4, "GPU-7"))
    assert (found.gpu, found.reasons, found.possible) == (None, {}, False)


@pytest.mark.parametrize(
    ("own", "held", "granted"), [(1, 1, False), (2, 1, False), (1, 2, False), (2, 2, True)]
)
def test_a_gpu_is_shared_only_when_both_allow_it(own, held, granted):
    load = Load(gpu(), (holder(4, slots=held),))
    assert (chosen([load], request(4, slots=own)) == 0) == granted


def test_a_gpu_that_is_full_says_so():
    load = Load(gpu(), (holder(4, slots=2), holder(4, slots=2)))
    assert decide([load], request(4, slots=2)).reasons == {"GPU-0": "2 of 2 slots taken"}
    assert decide([load], request(4)).reasons == {"GPU-0": "2 leases there, 1 allowed"}


def test_what_is_reserved_and_not_allocated_is_not_free():
    load = Load(gpu(free=35), (holder(20, allocated=5, slots=2),))
    assert load.available == 20 * GB
    assert chosen([load], request(20, slots=2)) == 0
    assert chosen([load], request(20.1, slots=2)) is None


def test_a_holder_that_nvml_does_not_show_has_allocated_nothing():
    assert Load(gpu(free=20), (holder(20, slots=2),)).available == 0


def test_a_holder_that_allocates_more_than_it_reserved_takes_nothing_twice():
    assert Load(gpu(free=10), (holder(20, allocated=30),)).available == 10 * GB


@pytest.mark.parametrize(
    ("free", "utilisation", "others", "granted"),
    [
        (15, BUSY, 1, True),
        (14.9, 0, 1, False),
        (40, BUSY + 1, 1, False),
        (40, None, 1, True),  # MIG
        (10, 100, 0, True),  # nobody else, or none that is listed: memory decides
        (9.9, 0, 0, False),
    ],
)
def test_beside_processes_without_a_lease_more_memory_and_idle_time_are_asked_for(
    free, utilisation, others, granted
):
    load = Load(gpu(free=free, utilisation=utilisation), others=others)
    assert CROWDED == 1.5
    assert (chosen([load], request(10)) == 0) == granted


def test_a_gpu_with_a_fault_is_passed_over_and_may_come_back():
    lost = Gpu(0, "GPU-0", "?", 0, 0, fault="GPU is lost")
    found = decide([Load(lost)], request(4))
    assert (found.gpu, found.possible) == (None, True)
    assert "GPU is lost" in found.reasons["GPU-0"]
    assert chosen([Load(lost), Load(gpu(1))], request(4, "GPU-0", "GPU-1")) == 1


def test_leases_spread_and_leave_the_larger_gpu_to_those_who_need_it():
    both = ("GPU-0", "GPU-1")
    assert chosen([Load(gpu(0, 80)), Load(gpu(1, 40))], request(4, *both)) == 1
    busy = Load(gpu(1, 40), (holder(4, slots=2),))
    assert chosen([Load(gpu(0, 80)), busy], request(4, *both, slots=2)) == 0


def test_the_reasons_name_every_gpu_that_was_not_taken():
    found = decide([Load(gpu()), Load(gpu(1))], request(4, "GPU-0", "GPU-1"))
    assert found.gpu is not None
    assert found.reasons == {"GPU-1": "would do; GPU 0 suits better"}


BOTH = ("GPU-0", "GPU-1")


def test_an_earlier_request_goes_first_on_every_gpu_that_it_may_use():
    first = request(4)
    found = decide([Load(gpu())], request(4), [first])
    assert found.gpu is None
    assert found.reasons["GPU-0"] == "kept for an earlier request"
    both = [Load(gpu()), Load(gpu(1))]
    assert chosen(both, request(4, *BOTH), [first]) == 1
    assert chosen(both, request(4, *BOTH), [request(4, *BOTH)]) is None


@pytest.mark.parametrize("required", [0, 5, 10])
def test_a_small_request_does_not_overtake_a_large_one_that_waits_for_leases(required):
    load = Load(gpu(free=20), (holder(20, allocated=20, slots=4),))
    assert chosen([load], request(required, slots=4)) == 0
    assert chosen([load], request(required, slots=4), [request(35, slots=4)]) is None
    assert chosen([load], request(required, slots=4), [request(4, slots=1)]) is None


@pytest.mark.parametrize(
    ("load", "earlier"),
    [
        (Load(gpu()), request(41)),
        (Load(gpu()), request(4, "GPU-1")),
        # The other process would keep it out even with all leases gone.
        (Load(gpu(free=20), (holder(5, allocated=5, slots=4),), others=1), request(30, slots=4)),
    ],
    ids=["too small a GPU", "not allowed there", "no room beside another process"],
)
def test_a_later_request_goes_ahead_where_the_earlier_could_not_run_at_all(load, earlier):
    assert chosen([load], request(4, slots=4), [earlier]) == 0


def test_a_holder_that_does_not_show_may_free_all_that_it_was_promised():
    # In a container, or by a child process, which then counts as one without a lease.
    load = Load(gpu(free=20), (holder(20, slots=4),), others=1)
    assert load.drained() == Load(gpu())
    load = Load(gpu(free=18), (holder(20, slots=4), holder(2, allocated=2, slots=4)))
    assert chosen([load], request(0, slots=4), [request(40, slots=4)]) is None


def test_utilisation_beside_leases_may_be_theirs():
    load = Load(gpu(free=35, utilisation=100), (holder(4, allocated=4, slots=2),), others=1)
    assert load.drained().gpu.utilisation is None
    assert Load(gpu(utilisation=100), others=1).drained().gpu.utilisation == 100


@dataclass
class Job:
    number: int
    request: Request
    arrived: float
    looks: int = 0
    gpu: str | None = None
    since: float = 0.0
    allocated: int = 0


@dataclass
class Node:
    """GPUs with leases, waiters and a foreign load, as NVML would show them."""

    totals: list[int]
    foreign: list[int]
    processes: list[bool]
    utilisation: list[int]
    faults: list[bool]
    jobs: list[Job] = field(default_factory=list)
    clock: float = 0.0

    def holders(self, uuid):
        return [job for job in self.jobs if job.gpu == uuid]

    def loads(self):
        found = []
        for n, total in enumerate(self.totals):
            uuid = f"GPU-{n}"
            held = self.holders(uuid)
            free = total - self.foreign[n] - sum(job.allocated for job in held)
            shown = Gpu(
                n, uuid, "simulated", total, free, utilisation=self.utilisation[n],
                fault="lost" if self.faults[n] else None,
            )  # fmt: skip
            if self.faults[n]:
                shown = replace(shown, total=0, free=0)
            found.append(
                Load(
                    shown,
                    tuple(
                        Holder(job.request.required, job.allocated or None, job.request.slots)
                        for job in held
                    ),
                    int(self.processes[n]),
                )
            )
        return found

    def waiting(self):
        return [job for job in self.jobs if job.gpu is None]

    def look(self, job):
        """One look of a waiter, as a taker does it; whether it got a GPU."""
        self.clock += 1
        earlier = [other.request for other in self.waiting() if other.arrived < job.arrived]
        found = decide(self.loads(), job.request, earlier)
        if found.gpu is None:
            return None
        job.gpu, job.since = found.gpu.uuid, self.clock
        return found


@pytest.mark.parametrize(("required", "slots"), [(40, 4), (30, 4), (20, 1), (35, 2)])
@pytest.mark.parametrize("small", [3, 9])
def test_a_stream_of_small_requests_does_not_starve_a_large_one(required, slots, small):
    """It waits no longer than those who were there when it came."""
    lasts = 6
    node = Node([40, 40], [0, 0], [False, False], [0, 0], [False, False])
    everything = ("GPU-0", "GPU-1")
    started, large, came = {}, None, None
    for step in range(60):
        for job in [job for job in node.jobs if started.get(job.number, step) + lasts <= step]:
            node.jobs.remove(job)
        if step == 20:
            node.clock += 1
            large, came = Job(-1, Request(required, slots, everything), node.clock), step
            node.jobs.append(large)
        for _ in range(1 if large is None else 3):
            node.clock += 1
            number = len(started) + 1000 * step + len(node.jobs)
            node.jobs.append(Job(number, Request(small, 4, everything), node.clock))
        for job in node.waiting()[::-1]:  # the last to come looks first
            if node.look(job) is not None:
                started[job.number] = step
        if large is not None and large.gpu is not None:
            break
    assert came is not None
    assert step - came <= lasts


class Sharing(RuleBasedStateMachine):
    """A node over time, in any order of events."""

    @initialize(
        totals=st.lists(st.sampled_from([8, 24, 40]), min_size=1, max_size=3),
    )
    def start(self, totals):
        count = len(totals)
        self.node = Node(totals, [0] * count, [False] * count, [0] * count, [False] * count)
        self.jobs_made = 0

    @rule(
        required=st.one_of(st.integers(1, 12), st.integers(0, 45)),
        slots=st.sampled_from([1, 2, 2, 3, 3]),
        without=st.sets(st.integers(0, 2), max_size=1),
    )
    def arrives(self, required, slots, without):
        allowed = tuple(f"GPU-{n}" for n in range(len(self.node.totals)) if n not in without)
        self.node.clock += 1
        self.jobs_made += 1
        job = Job(self.jobs_made, Request(required, slots, allowed), self.node.clock)
        self.node.jobs.append(job)
        self._look(job)

    @precondition(lambda self: self.node.waiting())
    @rule(data=st.data())
    def looks(self, data):
        self._look(data.draw(st.sampled_from(self.node.waiting())))

    def _look(self, job):
        before = {load.gpu.uuid: load for load in self.node.loads()}
        found = self.node.look(job)
        if found is None:
            return
        load = before[found.gpu.uuid]
        assert found.gpu.uuid in job.request.uuids
        assert found.gpu.fault is None
        assert load.available >= job.request.required
        if load.others:
            assert load.available >= CROWDED * job.request.required
            assert load.gpu.utilisation <= BUSY

    @precondition(lambda self: any(job.gpu for job in self.node.jobs))
    @rule(data=st.data(), share=st.floats(0, 1))
    def allocates(self, data, share):
        job = data.draw(st.sampled_from([job for job in self.node.jobs if job.gpu]))
        job.allocated = round(share * job.request.required)

    @precondition(lambda self: self.node.jobs)
    @rule(data=st.data())
    def ends_or_is_killed(self, data):
        self.node.jobs.remove(data.draw(st.sampled_from(self.node.jobs)))

    @rule(data=st.data(), utilisation=st.integers(0, 100))
    def foreign_load_changes(self, data, utilisation):
        n = data.draw(st.integers(0, len(self.node.totals) - 1))
        held = sum(job.request.required for job in self.node.holders(f"GPU-{n}"))
        # It may grow only into what nobody was promised: nothing can hold it back beyond that.
        self.node.foreign[n] = data.draw(st.integers(0, max(0, self.node.totals[n] - held)))
        self.node.processes[n] = self.node.foreign[n] > 0
        self.node.utilisation[n] = utilisation

    @rule(data=st.data())
    def a_gpu_fails_or_comes_back(self, data):
        n = data.draw(st.integers(0, len(self.node.totals) - 1))
        self.node.faults[n] = not self.node.faults[n]

    @invariant()
    def never_more_holders_than_each_of_them_allows(self):
        for n in range(len(self.node.totals)):
            held = self.node.holders(f"GPU-{n}")
            assert all(len(held) <= job.request.slots for job in held)

    @invariant()
    def never_less_free_memory_than_was_promised(self):
        for n, total in enumerate(self.node.totals):
            held = self.node.holders(f"GPU-{n}")
            promised = sum(job.request.required for job in held)
            assert promised + self.node.foreign[n] <= total

    @invariant()
    def nobody_starves_when_the_others_come_to_an_end(self):
        """Leave the node to itself, with ever new small requests: the first in line is served."""
        waiting = self.node.waiting()
        if not waiting:
            return
        first = min(waiting, key=lambda job: job.arrived)
        node = Node(
            self.node.totals, self.node.foreign, self.node.processes,
            [min(u, BUSY) for u in self.node.utilisation], self.node.faults,
            [replace(job) for job in self.node.jobs], self.node.clock,
        )  # fmt: skip
        mine = next(job for job in node.jobs if job.number == first.number)
        everything = tuple(f"GPU-{n}" for n in range(len(node.totals)))
        alone = [replace(load, holders=()) for load in node.loads()]
        alone = [
            replace(load, gpu=replace(load.gpu, free=load.gpu.total - node.foreign[n]))
            for n, load in enumerate(alone)
            if not node.faults[n]
        ]
        if decide(alone, mine.request).gpu is None:
            return  # not even an empty node would do
        for step in range(40):
            # The last to come looks first, as nobody minds the order in which waiters look.
            for job in [job for job in node.jobs if job.gpu is None][::-1]:
                node.look(job)
            if mine.gpu is not None:
                return
            # Whoever has held longest ends; two small ones come that anybody would let in.
            held = sorted((job for job in node.jobs if job.gpu), key=lambda job: job.since)
            if held and step % 2:
                node.jobs.remove(held[0])
            for small in range(2):
                node.clock += 1
                node.jobs.append(
                    Job(-1 - 2 * step - small, Request(2 + small, 3, everything), node.clock)
                )
        raise AssertionError(f"{mine} was not served: {node}")


TestSharing = Sharing.TestCase
TestSharing.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)  # fmt: skip
