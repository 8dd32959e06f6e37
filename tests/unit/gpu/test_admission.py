"""Who gets a GPU: the memory account and the rules."""

import os

import pytest

from octane.gpu.admission import BUSY, CROWDED, HELD, QUEUE, Held, Holder, Load, decide, node_state
from octane.gpu.inventory import Gpu, GpuProcess
from octane.gpu.lease_folder import LeaseFolder, LeaseRecord, mark

GB = 10**9
MIG, SLOT = "MIG-GPU-1/2/0", "MIG-GPU-1_2_0"  # as old drivers name it


def gpu(index=0, total=40, free=None, **other):
    return Gpu(
        index, f"GPU-{index}", "A40", total * GB, round((total if free is None else free) * GB),
        **other,
    )  # fmt: skip


def request(required, *uuids, slots=1):
    return LeaseRecord(round(required * GB), slots, 0.0, uuids=uuids or ("GPU-0",))


def holder(reserved, allocated=None, slots=1):
    return Holder(round(reserved * GB), None if allocated is None else round(allocated * GB), slots)


def shown(processes=()):
    listed = None if processes is None else tuple(GpuProcess(*p) for p in processes)
    return Gpu(0, MIG, "A40", 100, 50, processes=listed)


def held_by(pid, required=30, since=1.0):
    return pid, LeaseRecord(required, 3, since)


@pytest.fixture
def account(tmp_path, monkeypatch):
    """State of a node with leases and waiters, each the record of a process."""
    taken, pids = [], {}
    monkeypatch.setattr(LeaseFolder, "_lockers", pids)

    def look(gpu, *leases, waiters=()):
        with LeaseFolder(tmp_path / "leases") as folder:
            for kind, owned in ((SLOT, leases), (QUEUE, waiters)):
                for pid, record in owned:
                    taken.append(folder.take(kind, record))
                    pids[os.fstat(taken[-1].fd).st_ino] = pid
            return node_state(folder, [gpu])

    yield look
    for slot in taken:
        slot.release()


@pytest.mark.parametrize(
    ("processes", "records", "allocated", "others", "available"),
    [
        ([(50, 10)], [held_by(50)], [10], (), 30),
        # The kernel does not show who it is.
        ([(50, 10)], [held_by(None)], [None], (50,), 20),
        # No credit beyond the promise.
        ([(50, 45)], [held_by(50), held_by(51)], [30, None], (), 20),
        # One process with two leases.
        ([(50, 40)], [held_by(50), held_by(50)], [30, 10], (), 30),
        ([(50, 30)], [held_by(50), held_by(50)], [30, 0], (), 20),
        # NVML does not know how much.
        ([(50, None)], [held_by(50)], [None], (), 20),
        # Without a lease; oneself does not count.
        ([(70, 1), (71, 1), (os.getpid(), 1)], [], [], (70, 71), 50),
        # NVML lists no processes.
        (None, [], [], (), 50),
    ],
)
def test_the_account_of_a_gpu(account, processes, records, allocated, others, available):
    state = account(shown(processes), *records)
    (load,) = state.loads
    assert [holder.allocated for holder in load.holders] == allocated
    assert (state.others[MIG], load.others) == (others, len(others))
    assert load.available == available


def test_a_lease_without_a_readable_record_is_closed_to_others(account):
    (load,) = account(shown(), held_by(50, required=-1)).loads
    assert [holder.slots for holder in load.holders] == [1]


def test_the_lease_that_a_command_runs_under_does_not_stand_in_its_way(account, monkeypatch):
    outer = held_by(50)
    assert len(account(shown(), outer, held_by(51)).loads[0].holders) == 2
    monkeypatch.setenv(HELD, f"GPU-1.0@2.0,{mark(Held(f'{SLOT}.0', *outer[::-1]))}")
    state = account(shown())
    assert [len(part) for part in (state.loads[0].holders, state.loads[0].under)] == [1, 1]
    assert len(state.held[MIG]) == 2
    # An earlier lease of the same file gives nothing.
    monkeypatch.setenv(HELD, mark(Held(f"{SLOT}.0", *held_by(50, since=0.5)[::-1])))
    assert len(account(shown()).loads[0].holders) == 2


def test_waiters_come_in_the_order_of_their_arrival(account):
    state = account(shown(), waiters=[held_by(5, since=3.0), held_by(6, since=1.0)])
    assert [place.pid for place, _ in state.waiters] == [6, 5]


ALL = ("GPU-0", "GPU-1")
FULL = Load(gpu(), (holder(4, slots=2), holder(4, slots=2)))
LOST = Load(Gpu(0, "GPU-0", "?", 0, 0, fault="GPU is lost"))


@pytest.mark.parametrize(
    ("loads", "wanted", "granted", "reasons", "possible"),
    [
        pytest.param([Load(gpu())], request(40), 0, {}, True, id="idle"),
        pytest.param(
            [Load(gpu()), Load(gpu(1, 24))], request(41, *ALL), None,
            {"GPU 0": "has 40.0 GB in all", "GPU 1": "has 24.0 GB in all"}, False, id="too large",
        ),
        pytest.param(
            [Load(gpu()), Load(gpu(1))], request(4, "GPU-7"), None, {}, False, id="not allowed",
        ),
        pytest.param(
            [FULL], request(4, slots=2), None, {"GPU 0": "2 of 2 slots taken"}, True, id="full",
        ),
        pytest.param(
            [FULL], request(4), None, {"GPU 0": "2 leases there, 1 allowed"}, True, id="alone",
        ),
        pytest.param(
            [Load(gpu(), (holder(4),))], request(4, slots=2), None,
            {"GPU 0": "1 of 1 slots taken"}, True, id="alone there",
        ),
        pytest.param([LOST], request(4), None, {"GPU 0": "NVML reports: GPU is lost"}, True,
                     id="a fault may pass"),
        pytest.param([LOST, Load(gpu(1))], request(4, *ALL), 1,
                     {"GPU 0": "NVML reports: GPU is lost"}, True, id="beside a fault"),
        pytest.param([Load(gpu()), Load(gpu(1))], request(4, *ALL), 0,
                     {}, True, id="first"),
        pytest.param([Load(gpu(0, 80)), Load(gpu(1, 40))], request(4, *ALL), 1,
                     {}, True, id="the smaller one"),
        pytest.param([Load(gpu(0, 80)), Load(gpu(1, 40), (holder(4, slots=2),))],
                     request(4, *ALL, slots=2), 0,
                     {}, True, id="spread"),
        pytest.param([Load(gpu(), others=1), Load(gpu(1, 80))], request(4, *ALL), 1,
                     {}, True, id="where nobody else is"),
        # What is promised and not allocated is not free.
        pytest.param([Load(gpu(free=35), (holder(20, 5, slots=2),))], request(20, slots=2), 0, {},
                     True, id="as much as is to give"),
        pytest.param([Load(gpu(free=35), (holder(20, 5, slots=2),))], request(20.1, slots=2), None,
                     {"GPU 0": "20.0 GB to give; needs 20.1 GB"}, True, id="more than is to give"),
    ],
)  # fmt: skip
def test_a_decision_and_its_reasons(loads, wanted, granted, reasons, possible):
    found = decide(loads, wanted)
    assert (found.gpu and found.gpu.index) == granted
    assert (found.reasons, found.possible) == (reasons, possible)


@pytest.mark.parametrize(
    ("free", "utilisation", "others", "granted"),
    [
        (15, BUSY, 1, 0),
        (14.9, 0, 1, None),
        (40, BUSY + 1, 1, None),
        (40, None, 1, 0),  # MIG
        (10, 100, 0, 0),  # nobody else, or none that is listed: memory decides
        (9.9, 0, 0, None),
    ],
)
def test_beside_processes_without_a_lease_more_memory_and_idle_time_are_asked_for(
    free, utilisation, others, granted
):
    load = Load(gpu(free=free, utilisation=utilisation), others=others)
    assert CROWDED == 1.5
    found = decide([load], request(10)).gpu
    assert (found and found.index) == granted


LEASED = Load(gpu(free=20), (holder(20, allocated=20, slots=4),))
CROWDED_OUT = Load(gpu(free=20), (holder(5, allocated=5, slots=4),), others=1)
# One may free all that it was promised, as NVML does not show it.
HIDDEN = Load(gpu(free=18), (holder(20, slots=4), holder(2, allocated=2, slots=4)))


@pytest.mark.parametrize(
    ("loads", "wanted", "earlier", "granted"),
    [
        ([Load(gpu())], request(4), request(4), None),
        ([Load(gpu()), Load(gpu(1))], request(4, *ALL), request(4), 1),
        ([Load(gpu()), Load(gpu(1))], request(4, *ALL), request(4, *ALL), None),
        # A small request does not overtake a large one that waits for leases to end.
        *(
            ([LEASED], request(small, slots=4), earlier, None)
            for small in (0, 5, 10)
            for earlier in (request(35, slots=4), request(4, slots=1))
        ),
        ([HIDDEN], request(0, slots=4), request(40, slots=4), None),
        # It goes ahead where the earlier could not run at all.
        ([Load(gpu())], request(4, slots=4), request(41), 0),
        ([Load(gpu())], request(4, slots=4), request(4, "GPU-1"), 0),
        ([CROWDED_OUT], request(4, slots=4), request(30, slots=4), 0),
        ([Load(gpu(), (holder(20, slots=4),), 2)], request(4, slots=4), request(30, slots=4), 0),
        # The earlier waits for the lease that the asking process runs under: both would for ever.
        ([Load(gpu(), under=(holder(30),))], request(4), request(4), 0),
        ([Load(gpu(), under=(holder(30, slots=4),))], request(4), request(9, slots=4), None),
    ],
)
def test_an_earlier_request_goes_first_where_it_could_run(loads, wanted, earlier, granted):
    found = decide(loads, wanted, [earlier])
    assert (found.gpu and found.gpu.index) == granted
    if granted is None:
        assert "kept for an earlier request" in found.reasons.values()


def test_a_gpu_whose_leases_have_ended():
    # A holder that does not show may be the process without a lease.
    assert Load(gpu(free=20), (holder(20, slots=4),), others=1).drained() == Load(gpu())
    outer = (holder(30),)
    assert Load(gpu(free=20), (holder(20, 20),), under=outer).drained() == Load(gpu(), outer)
    load = Load(gpu(free=35, utilisation=100), (holder(4, allocated=4, slots=2),), others=1)
    assert load.drained().gpu.utilisation is None
    assert Load(gpu(utilisation=100), others=1).drained().gpu.utilisation == 100
