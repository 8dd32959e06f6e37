"""Progress: a line now and then in a log, a bar on a terminal, right however many threads count."""

import io
import logging
import sys
from types import SimpleNamespace

import pytest

from octane.core import progress as module
from octane.core.progress import LINE_EVERY_S, IterationLog, progress


@pytest.fixture
def clock(monkeypatch):
    """Time that passes only where a test moves it."""
    made = SimpleNamespace(now=100.0)
    made.monotonic = lambda: made.now
    monkeypatch.setattr(module, "time", made)
    return made


@pytest.fixture
def lines(caplog, monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    caplog.set_level(logging.INFO, logger="octane")
    return caplog


def test_without_a_terminal_a_line_comes_now_and_then_and_at_the_end(clock, lines):
    with progress("RESAMPLE", 100) as advance:
        for _ in range(100):
            clock.now += 0.5
            advance(4_000_000)
    assert len(lines.messages) == 5
    assert lines.messages[0] == "RESAMPLE: 20 of 100, 2.0 tiles/s, 8 MB/s, 40 s left"
    assert lines.messages[-1].startswith("RESAMPLE: 100 of 100, 2.0 tiles/s")


def test_on_a_terminal_there_is_a_bar(monkeypatch, caplog):
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with progress("STITCH", 4) as advance:
        for _ in range(4):
            advance(1000)
    assert "STITCH" in terminal.getvalue()
    assert "4/4" in terminal.getvalue()
    assert caplog.messages == []


def test_iterations_of_parts_that_are_fitted_together_share_the_lines(clock, lines):
    log = IterationLog("N4")
    for iteration in range(1, 101):
        clock.now += LINE_EVERY_S / 10
        for section in range(8):
            log(f"section {section}, level 1", iteration, 200, 1 / iteration)
    assert len(lines.messages) == 10
    assert lines.messages[0] == (
        "N4: section 0, level 1, 10 of at most 200 iterations, convergence 0.1"
    )
