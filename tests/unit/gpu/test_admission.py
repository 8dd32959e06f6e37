"""Who gets a GPU: the rules one by one, and what must hold whatever happens."""

from dataclasses import dataclass, field, replace

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

from octane.gpu.admission import BUSY, CROWDED, Holder, Load, Request, decide
from octane.gpu.inventory import Gpu

GB = 10**9


def gpu(index=0, total=40, free=None, **other):
    return Gpu(
        index, f"GPU-{index}", "A40", total * GB, round((total if free is None else free) * GB),
        **other,
    )  # fmt: skip


def request(required, *uuids, slots=1, arrived=100.0):
    return Request(round(required * GB), slots, uuids or ("GPU-0",), arrived)


def holder(reserved, allocated=None, slots=1, since=0.0):
    return Holder(
        round(reserved * GB), None if allocated is None else round(allocated * GB), slots, since
    )


def chosen(loads, wanted, earlier=()):
    found = decide(loads, wanted, earlier).gpu
    return None if found is None else found.index


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


def test_an_earlier_request_goes_first():
    first = request(4, arrived=1.0)
    assert chosen([Load(gpu())], request(4), [first]) is None
    assert chosen([Load(gpu()), Load(gpu(1))], request(4, "GPU-0", "GPU-1"), [first]) == 1


def test_what_an_earlier_request_will_take_is_not_free():
    first = request(30, slots=2, arrived=1.0)
    assert chosen([Load(gpu())], request(10, slots=2), [first]) == 0
    assert chosen([Load(gpu())], request(10.1, slots=2), [first]) is None


def test_the_room_that_an_earlier_request_needs_beside_others_is_kept():
    load = Load(gpu(free=20), others=1)
    first = request(12, slots=3, arrived=1.0)  # takes 12, where 18 are free
    assert chosen([load], request(2, slots=3), [first]) == 0
    assert chosen([load], request(2.1, slots=3), [first]) is None


def test_a_small_request_does_not_overtake_a_large_one_that_it_would_hold_up():
    load = Load(gpu(free=20), (holder(20, allocated=20, slots=4),))
    large = request(35, slots=4, arrived=1.0)
    assert chosen([load], request(10, slots=4)) == 0
    found = decide([load], request(10, slots=4), [large])
    assert found.gpu is None
    assert found.reasons["GPU-0"] == "kept for an earlier request"


def test_a_small_request_goes_ahead_where_the_large_one_still_fits():
    load = Load(gpu(free=20), (holder(20, allocated=20, slots=4),))
    large = request(35, slots=4, arrived=1.0)
    assert chosen([load], request(5, slots=4), [large]) == 0


def test_those_that_went_ahead_count_as_staying():
    load = Load(
        gpu(free=15),
        (holder(20, allocated=20, slots=4), holder(5, allocated=5, slots=4, since=2.0)),
    )
    large = request(35, slots=4, arrived=1.0)
    assert chosen([load], request(5, slots=4), [large]) is None


def test_a_large_request_holds_one_gpu_and_not_all():
    loads = [Load(gpu(n, free=20), (holder(20, allocated=20, slots=4),)) for n in range(2)]
    large = request(35, "GPU-0", "GPU-1", slots=4, arrived=1.0)
    assert chosen(loads, request(10, "GPU-0", "GPU-1", slots=4), [large]) == 1


def test_a_large_request_claims_no_gpu_that_its_leases_alone_do_not_fill():
    # The other process would keep it out even with all leases gone.
    load = Load(gpu(free=20), (holder(5, allocated=5, slots=4),), others=1)
    assert chosen([load], request(10, slots=4), [request(30, slots=4, arrived=1.0)]) == 0


def test_a_large_request_that_only_those_who_went_ahead_keep_out_waits_for_them():
    # They could, because it was the other GPU that it waited for; somebody has taken that since.
    loads = [Load(gpu(0, free=1), others=1), Load(gpu(1), (holder(5, slots=4, since=2.0),))]
    both = ("GPU-0", "GPU-1")
    large = request(38, *both, slots=4, arrived=1.0)
    assert chosen(loads, request(1, *both, slots=4)) == 1
    assert chosen(loads, request(1, *both, slots=4), [large]) is None


def test_memory_that_does_not_show_is_waited_for_only_where_nothing_else_is():
    # On GPU 0 the holder may free 20 GB or nothing; on GPU 1 it frees what is needed.
    hidden = Load(gpu(0, free=17), (holder(20, slots=4),))
    shown = Load(gpu(1, free=20), (holder(20, allocated=20, slots=4, since=2.0),) * 2)
    both = ("GPU-0", "GPU-1")
    large = request(30, *both, slots=4, arrived=1.0)
    assert chosen([hidden, shown], request(1, "GPU-1", slots=4), [large]) is None
    roomy = Load(gpu(0, free=39), (holder(20, slots=4),))
    assert chosen([roomy, shown], request(5, "GPU-0", slots=4), [large]) == 0
    assert chosen([roomy], request(10, "GPU-0", slots=4), [large]) is None


@dataclass
class Job:
    number: int
    request: Request
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
                        Holder(
                            job.request.required,
                            job.allocated or None,
                            job.request.slots,
                            job.since,
                        )
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
        earlier = [
            other.request for other in self.waiting() if other.request.arrived < job.request.arrived
        ]
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
            large, came = Job(-1, Request(required, slots, everything, node.clock)), step
            node.jobs.append(large)
        for _ in range(1 if large is None else 3):
            node.clock += 1
            number = len(started) + 1000 * step + len(node.jobs)
            node.jobs.append(Job(number, Request(small, 4, everything, node.clock)))
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
        job = Job(self.jobs_made, Request(required, slots, allowed, self.node.clock))
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
        first = min(waiting, key=lambda job: job.request.arrived)
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
                    Job(-1 - 2 * step - small, Request(2 + small, 3, everything, node.clock))
                )
        raise AssertionError(f"{mine} was not served: {node}")


TestSharing = Sharing.TestCase
TestSharing.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)  # fmt: skip
