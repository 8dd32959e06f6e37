"""Copies between host and GPU: bytes and seconds in each direction, by the clock of the GPU."""

from types import SimpleNamespace

import pytest

from octane.gpu.pinned import Transfer, Transfers


class Clock:
    """A device whose events are as far apart as the test says."""

    now = 0.0

    def __init__(self):
        self.cuda = SimpleNamespace(
            Event=self.event, get_elapsed_time=lambda a, b: 1e3 * (b.t - a.t)
        )

    def event(self):
        event = SimpleNamespace()
        event.record = lambda stream: vars(event).update(t=self.now)
        return event


def copied(transfers, clock, size, seconds, direction="to_device", number=1):
    stream = SimpleNamespace(ptr=number)
    with transfers.timed(stream, size, direction):
        clock.now += seconds
    return stream


@pytest.fixture
def clock():
    return Clock()


def test_copies_are_summed_by_direction(clock):
    transfers = Transfers(clock)
    for copy in ((1000, 1.0, "to_device"), (600, 2.0, "to_device"), (10, 1.0, "to_host")):
        transfers.settle(copied(transfers, clock, *copy))
    assert transfers.found() == {"to_device": Transfer(1600, 3.0), "to_host": Transfer(10, 1.0)}


def test_a_copy_is_counted_once_when_its_stream_is_done(clock):
    transfers = Transfers(clock)
    first = copied(transfers, clock, 10, 1.0, number=1)
    copied(transfers, clock, 20, 1.0, number=2)
    assert transfers.found() == {}
    for _ in range(2):
        transfers.settle(first)
        assert transfers.found() == {"to_device": Transfer(10, 1.0)}


def test_a_copy_that_failed_is_not_counted(clock):
    transfers, stream = Transfers(clock), SimpleNamespace(ptr=1)
    with pytest.raises(RuntimeError, match="no memory"), transfers.timed(stream, 10, "to_device"):
        raise RuntimeError("no memory")
    transfers.settle(stream)
    assert transfers.found() == {}
