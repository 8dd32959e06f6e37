"""Progress: occasional lines, correct with any number of threads."""

import io
import logging
import sys
from types import SimpleNamespace

import pytest

from octane.core import progress as module
from octane.core.progress import LINE_EVERY_S, IterationLog, Progress


@pytest.fixture
def clock(monkeypatch):
    """Time that passes only when a test advances it."""
    made = SimpleNamespace(now=100.0)
    made.monotonic = lambda: made.now
    monkeypatch.setattr(module, "time", made)
    return made


@pytest.fixture
def lines(caplog, monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    caplog.set_level(logging.INFO, logger="octane")
    return caplog


@pytest.mark.parametrize(("terminal", "first", "count"), [(False, 20, 5), (True, 4, 25)])
def test_a_line_comes_now_and_then_and_at_the_end(
    clock, lines, monkeypatch, terminal, first, count
):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    advance = Progress("RESAMPLE", 100)
    for _ in range(100):
        clock.now += 0.5
        advance(4_000_000)
    assert len(lines.messages) == count
    left = f"{(100 - first) // 2} s left"
    assert lines.messages[0] == f"RESAMPLE: {first} of 100, 2.0 tiles/s, 8 MB/s, {left}"
    assert lines.messages[-1].startswith("RESAMPLE: 100 of 100, 2.0 tiles/s")


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
