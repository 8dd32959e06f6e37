"""Copies between host and GPU: their sums by kind, and what is said of a slow link."""

import math
from types import SimpleNamespace

import pytest

from octane.gpu.transfers import LARGE, STEP, Transfer, Transfers, link_rate, slow_link

PCIE_4 = {"backend": "gpu", "pcie_generation": 4, "pcie_width": 16}


class Clock:
    """A device whose events are as far apart as is said."""

    def __init__(self):
        self.now, self.asked = 0.0, 0
        self.cuda = SimpleNamespace(
            Event=lambda: Event(self),
            get_elapsed_time=lambda begin, end: 1e3 * (end.moment - begin.moment),
        )


class Event:
    def __init__(self, clock):
        self.clock = clock

    def record(self, stream):
        self.clock.asked += 1
        self.moment = self.clock.now


def copied(transfers, clock, size, seconds, direction="to_device", *, number=1, **kind):
    stream = SimpleNamespace(ptr=number)
    with transfers.timed(stream, size, direction, **({"pinned": True, "waited": False} | kind)):
        clock.now += seconds
    return stream


@pytest.fixture
def clock():
    return Clock()


def test_copies_are_summed_by_direction_memory_waiting_and_size(clock):
    transfers = Transfers(clock)
    for size, seconds, kind in (
        (1000, 1e-6, {}),
        (600, 2e-6, {}),
        (1024, 1e-6, {}),
        (1000, 1e-6, {"pinned": False}),
        (1000, 1e-6, {"waited": True}),
        (1000, 1e-6, {"direction": "to_host"}),
    ):
        transfers.settle(copied(transfers, clock, size, seconds, **kind))
    found = {(t.direction, t.memory, t.waited, t.size): t for t in transfers.found()}
    assert set(found) == {
        ("to_device", "pinned", False, 512),
        ("to_device", "pinned", False, 1024),
        ("to_device", "pageable", False, 512),
        ("to_device", "pinned", True, 512),
        ("to_host", "pinned", False, 512),
    }
    both = found["to_device", "pinned", False, 512]
    assert (both.copies, both.bytes) == (2, 1600)
    assert both.seconds == pytest.approx(3e-6)


@pytest.mark.parametrize("count", [1, 2, 5, 1000])
def test_the_median_is_that_of_the_rates_to_five_percent(clock, count):
    transfers, size = Transfers(clock), 1 << 20
    rates = [1e9 * (1 + number) for number in range(count)]
    for rate in reversed(rates):
        transfers.settle(copied(transfers, clock, size, size / rate))
    (found,) = transfers.found()
    middle = rates[(count - 1) // 2] / 1e9
    assert abs(math.log(found.gigabytes_per_second["median"] / middle)) <= math.log(STEP)
    assert found.gigabytes_per_second["fastest"] == pytest.approx(rates[-1] / 1e9)
    assert found.gigabytes_per_second["median"] <= found.gigabytes_per_second["fastest"]


def test_a_copy_is_counted_when_its_stream_is_done(clock):
    transfers = Transfers(clock)
    first = copied(transfers, clock, 10, 1.0, number=1)
    copied(transfers, clock, 20, 1.0, number=2)
    assert transfers.found() == []
    transfers.settle(first)
    assert [t.bytes for t in transfers.found()] == [10]
    transfers.settle(first)
    assert [t.bytes for t in transfers.found()] == [10]


def test_a_copy_too_short_for_the_clock_has_no_endless_rate(clock):
    transfers = Transfers(clock)
    transfers.settle(copied(transfers, clock, 32, 0.0))
    (found,) = transfers.found()
    assert found.gigabytes_per_second["fastest"] == pytest.approx(32 / 5e-7 / 1e9)


def test_a_copy_of_nothing_is_none(clock):
    transfers = Transfers(clock)
    transfers.settle(copied(transfers, clock, 0, 0.0))
    assert (transfers.found(), transfers.bytes, clock.asked) == ([], 0, 0)


def test_a_copy_that_failed_is_not_counted(clock):
    transfers, stream = Transfers(clock), SimpleNamespace(ptr=1)
    with (
        pytest.raises(RuntimeError, match="no memory"),
        transfers.timed(stream, 10, "to_device", pinned=True, waited=True),
    ):
        raise RuntimeError("no memory")
    transfers.settle(stream)
    assert transfers.found() == []


@pytest.mark.parametrize(
    ("device", "rate"),
    [
        (PCIE_4, 31.5e9),
        ({"pcie_generation": 5, "pcie_width": 16}, 63.0e9),
        ({"pcie_generation": 3, "pcie_width": 8}, 7.88e9),
        ({"pcie_generation": 9, "pcie_width": 16}, None),
        ({"pcie_generation": 4, "pcie_width": None}, None),
        ({"backend": "cpu"}, None),
    ],
)
def test_the_limit_of_a_link(device, rate):
    assert link_rate(device) == (None if rate is None else pytest.approx(rate, rel=0.01))


def transfer(rate, direction="to_device", size=LARGE, memory="pinned"):
    return Transfer(
        direction=direction,
        memory=memory,
        waited=False,
        size=size,
        copies=1,
        bytes=size,
        seconds=1.0,
        gigabytes_per_second={"median": rate / 2, "fastest": rate},
    )


def test_large_copies_that_are_slow_are_told_with_the_remedy():
    (told,) = slow_link([transfer(3.15), transfer(20.0, "to_host")], PCIE_4, pinned=True)
    assert told.startswith("Copies to the GPU reached 3.15 GB/s at most, 10% of what its link ")
    assert "(PCIe 4 x16) carries: give the task cores of the socket" in told
    slow = [transfer(3.15, "to_host", memory="pageable")]
    (told,) = slow_link(slow, PCIE_4, pinned=False)
    assert "Copies from the GPU" in told
    assert "leave --pinned on" in told


@pytest.mark.parametrize(
    ("transfers", "device"),
    [
        ([transfer(25.0)], PCIE_4),
        # Nobody can change it: pinned memory was asked for and had.
        ([transfer(3.0, memory="pageable")], PCIE_4),
        # One copy that had the link to itself is enough.
        ([transfer(2.0), transfer(25.0, size=2 * LARGE)], PCIE_4),
        ([transfer(0.1, size=LARGE // 2)], PCIE_4),
        ([transfer(0.1)], {"backend": "gpu", "pcie_generation": None, "pcie_width": None}),
        ([], PCIE_4),
    ],
    ids=["fast", "pageable", "shared", "small", "unknown link", "none"],
)
def test_of_others_nothing_is_said(transfers, device):
    assert slow_link(transfers, device, pinned=True) == []
