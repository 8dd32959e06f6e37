"""Progress: occasional lines, correct with any number of threads."""

import io
import logging
import sys

import pytest

from octane.core.progress import LINE_EVERY_S, IterationLog, Progress, duration


class Clock:
    """Time that passes only when a test advances it."""

    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def lines(caplog, monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    caplog.set_level(logging.INFO, logger="octane")
    return caplog


def test_a_log_has_no_line_in_the_first_minute_and_then_one_a_minute(clock, lines):
    advance = Progress("RESAMPLE", 400, workers=2, clock=clock)
    found = []
    for _ in range(400):
        clock.now += 0.5
        before = len(lines.messages)
        advance(4_000_000)
        found += [clock.now - 100] * (len(lines.messages) - before)
    assert found == [60, 120, 180]
    assert lines.messages[0] == "RESAMPLE: 30 %, 120 of 400 tiles, 8 MB/s, about 2 min left"


def test_a_terminal_has_a_line_every_two_seconds_and_at_the_end(clock, lines, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    advance = Progress("RESAMPLE", 99, workers=1, clock=clock)
    for _ in range(99):
        clock.now += 0.5
        advance(0)
    assert len(lines.messages) == 25
    assert lines.messages[-1] == "RESAMPLE: 100 %, 99 of 99 tiles"


@pytest.mark.parametrize(
    ("workers", "left"), [(1, ", about 18 min left"), (16, ", about 2 min left"), (None, "")]
)
def test_time_left_is_that_of_rounds_of_all_workers(clock, lines, workers, left):
    advance = Progress("STITCH", 19, "blocks", workers=workers, clock=clock)
    clock.now += 61
    advance(0)
    assert lines.messages == [f"STITCH: 5 %, 1 of 19 blocks{left}"]


def test_iterations_of_parts_that_are_fitted_together_share_the_lines(clock, lines):
    log = IterationLog("N4", clock)
    for iteration in range(1, 101):
        clock.now += LINE_EVERY_S / 10
        for section in range(8):
            log(f"section {section}, level 1 of 4", iteration, 200, 1 / iteration)
    assert len(lines.messages) == 10
    assert lines.messages[0] == (
        "N4: section 0, level 1 of 4, 5 %, 10 of at most 200 iterations, convergence 0.1, "
        "at most 19 min left"
    )


def test_the_first_iteration_of_a_level_does_not_say_how_long_the_others_take(clock, lines):
    log = IterationLog("N4", clock)
    clock.now += LINE_EVERY_S
    log("volume, level 1 of 2", 1, 50, 0.5)
    clock.now += LINE_EVERY_S
    log("volume, level 2 of 2", 1, 50, 0.5)
    clock.now += LINE_EVERY_S
    log("volume, level 2 of 2", 50, 50, 0.5)
    assert [message.count("left") for message in lines.messages] == [0, 0, 0]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0 s"), (59, "59 s"), (3550, "59 min"), (7800, "2 h 10 min")]
)
def test_a_time_is_short(seconds, text):
    assert duration(seconds) == text
