"""Who gets a GPU: the memory account and the rules."""

import os

import pytest

from octane.gpu.admission import BUSY, CROWDED, QUEUE, Load, decide, load_of, waiters
from octane.gpu.inventory import Gpu, GpuProcess
from octane.gpu.lease_folder import UNREADABLE, Held, LeaseFolder, LeaseRecord, pid_namespace

GB = 10**9
MIG, SLOT = "MIG-GPU-1/2/0", "MIG-GPU-1_2_0"  # as old drivers name it


def gpu(index=0, total=40, free=None, **other):
    return Gpu(
        index, f"GPU-{index}", "A40", total * GB, round((total if free is None else free) * GB),
        **other,
    )  # fmt: skip


def record(required, slots=1, since=0.0, **other):
    return LeaseRecord(required=round(required * GB), slots=slots, since=since, **other)


def request(required, *uuids, slots=1):
    return record(required, slots, uuids=uuids or ("GPU-0",))


def load(gpu, *leases, others=0):
    """A GPU with leases: GB promised to each, GB that it uses (None: hidden), its slots."""
    held = tuple(Held(f"slot.{n}", 0, record(g, slots)) for n, (g, _, slots) in enumerate(leases))
    used = tuple(None if used is None else round(used * GB) for _, used, _ in leases)
    return Load(gpu, held, used, others)


@pytest.fixture
def account(tmp_path):
    """Look at a GPU of 100 GB, 50 free, with processes (PID, GB) and leases."""
    taken = []

    def look(processes, *leases):
        listed = processes and tuple(GpuProcess(pid, used and used * GB) for pid, used in processes)
        with LeaseFolder(tmp_path / "leases") as folder:
            taken.extend(folder.take(SLOT, lease) for lease in leases)
            return load_of(folder, Gpu(0, MIG, "A40", 100 * GB, 50 * GB, processes=listed))

    yield look
    for slot in taken:
        slot.release()


def of(pid, namespace=None):
    return record(30, 3, pid=pid, namespace=namespace or pid_namespace())


@pytest.mark.parametrize(
    ("processes", "leases", "allocated", "others", "available"),
    [
        ([(50, 10)], [of(50)], [10], 0, 30),
        # The same PID in a container is another process.
        ([(50, 10)], [of(50, namespace=pid_namespace() + 1)], [None], 1, 20),
        # Memory beyond the promise does not count.
        ([(50, 45)], [of(50), of(51)], [30, None], 0, 20),
        # One process with two leases.
        ([(50, 40)], [of(50), of(50)], [30, 10], 0, 30),
        ([(50, 30)], [of(50), of(50)], [30, 0], 0, 20),
        # NVML does not know how much it uses.
        ([(50, None)], [of(50)], [None], 0, 20),
        # Without a lease; this process does not count.
        ([(70, 1), (71, 1), (os.getpid(), 1)], [], [], 2, 50),
        # NVML does not list processes.
        (None, [], [], 0, 50),
    ],
)
def test_the_account_of_a_gpu(account, processes, leases, allocated, others, available):
    found = account(processes, *leases)
    assert found.allocated == tuple(used and used * GB for used in allocated)
    assert (found.others, found.available) == (others, available * GB)


def test_waiters_come_in_the_order_of_their_arrival(tmp_path):
    with LeaseFolder(tmp_path / "leases") as folder:
        places = [folder.take(QUEUE, record(1, since=since)) for since in (3.0, 1.0)]
        assert [place.record.since for place in waiters(folder)] == [1.0, 3.0]
    for place in places:
        place.release()


ALL = ("GPU-0", "GPU-1")
FULL = load(gpu(), (4, None, 2), (4, None, 2))
LOST = Load(Gpu(0, "GPU-0", "?", 0, 0, fault="GPU is lost"))


@pytest.mark.parametrize(
    ("loads", "wanted", "granted", "reasons", "possible"),
    [
        pytest.param([load(gpu())], request(40), 0, {}, True, id="idle"),
        pytest.param(
            [load(gpu()), load(gpu(1, 24))], request(41, *ALL), None,
            {"GPU 0": "has only 40.0 GB", "GPU 1": "has only 24.0 GB"}, False, id="too large",
        ),
        pytest.param(
            [load(gpu()), load(gpu(1))], request(4, "GPU-7"), None, {}, False, id="not allowed",
        ),
        pytest.param(
            [FULL], request(4, slots=2), None, {"GPU 0": "2 of 2 slots taken"}, True, id="full",
        ),
        pytest.param(
            [FULL], request(4), None, {"GPU 0": "2 leases there, 1 allowed"}, True, id="alone",
        ),
        pytest.param(
            [load(gpu(), (4, None, 1))], request(4, slots=2), None,
            {"GPU 0": "1 of 1 slots taken"}, True, id="alone there",
        ),
        pytest.param([LOST], request(4), None, {"GPU 0": "NVML reports: GPU is lost"}, True,
                     id="a fault may pass"),
        pytest.param([LOST, load(gpu(1))], request(4, *ALL), 1,
                     {"GPU 0": "NVML reports: GPU is lost"}, True, id="beside a fault"),
        pytest.param([load(gpu()), load(gpu(1))], request(4, *ALL), 0,
                     {}, True, id="first"),
        pytest.param([load(gpu(0, 80)), load(gpu(1, 40))], request(4, *ALL), 1,
                     {}, True, id="the smaller one"),
        pytest.param([load(gpu(0, 80)), load(gpu(1, 40), (4, None, 2))],
                     request(4, *ALL, slots=2), 0,
                     {}, True, id="spread"),
        pytest.param([load(gpu(), others=1), load(gpu(1, 80))], request(4, *ALL), 1,
                     {}, True, id="where nobody else is"),
        # Memory that is promised but not allocated is not free.
        pytest.param([load(gpu(free=35), (20, 5, 2))], request(20, slots=2), 0, {},
                     True, id="all available"),
        pytest.param([load(gpu(free=35), (20, 5, 2))], request(20.1, slots=2), None,
                     {"GPU 0": "20.0 GB available; needs 20.1 GB"}, True, id="more than available"),
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
        (10, 100, 0, 0),  # no other process, or none listed: memory decides
        (9.9, 0, 0, None),
    ],
)
def test_next_to_processes_without_a_lease_more_memory_and_idle_time_are_needed(
    free, utilisation, others, granted
):
    assert CROWDED == 1.5
    found = decide([load(gpu(free=free, utilisation=utilisation), others=others)], request(10)).gpu
    assert (found and found.index) == granted


LEASED = load(gpu(free=20), (20, 20, 4))
CROWDED_OUT = load(gpu(free=20), (5, 5, 4), others=1)
# The holder that NVML does not show may free all that it was promised.
HIDDEN = load(gpu(free=18), (20, None, 4), (2, 2, 4))


@pytest.mark.parametrize(
    ("loads", "wanted", "earlier", "granted"),
    [
        ([load(gpu())], request(4), request(4), None),
        ([load(gpu()), load(gpu(1))], request(4, *ALL), request(4), 1),
        ([load(gpu()), load(gpu(1))], request(4, *ALL), request(4, *ALL), None),
        # A small request does not overtake a large one that waits for leases to end.
        *(
            ([LEASED], request(small, slots=4), earlier, None)
            for small in (0, 5, 10)
            for earlier in (request(35, slots=4), request(4, slots=1))
        ),
        ([HIDDEN], request(0, slots=4), request(40, slots=4), None),
        # It goes first if the earlier one could not run at all.
        ([load(gpu())], request(4, slots=4), request(41), 0),
        ([load(gpu())], request(4, slots=4), request(4, "GPU-1"), 0),
        ([CROWDED_OUT], request(4, slots=4), request(30, slots=4), 0),
        ([load(gpu(), (20, None, 4), others=2)], request(4, slots=4), request(30, slots=4), 0),
    ],
)
def test_an_earlier_request_goes_first_where_it_could_run(loads, wanted, earlier, granted):
    found = decide(loads, wanted, [earlier])
    assert (found.gpu and found.gpu.index) == granted
    if granted is None:
        assert "kept for an earlier request" in found.reasons.values()


def test_a_gpu_whose_leases_have_ended():
    # A hidden holder may be the process without a lease.
    assert load(gpu(free=20), (20, None, 4), others=1).emptied() == load(gpu())
    found = load(gpu(free=35, utilisation=100), (4, 4, 2), others=1).emptied()
    assert found == load(gpu(free=39), others=1)


def test_content_that_is_not_a_record_shares_its_gpu_with_nobody_and_holds_up_nobody():
    held = Load(gpu(), (Held("slot.0", 0, UNREADABLE),), (None,))
    assert decide([held], request(4, slots=4)).reasons == {"GPU 0": "1 of 1 slots taken"}
    assert decide([load(gpu())], request(4), [UNREADABLE]).gpu is not None
