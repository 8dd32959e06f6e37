"""N4's fit in the log: a line for each level, and in a long one no more than the period allows."""

import logging

import pytest

from octane.core.progress import LINE_EVERY_S
from octane.n4 import progress
from octane.n4.progress import FitLog


class Clock:
    """Time that passes only when it is told to."""

    now = 50.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(progress, "time", made)
    return made


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, logger="octane")
    return caplog


def test_a_level_is_a_line_with_its_iterations_seconds_and_convergence(clock, lines):
    tell = FitLog(0.001).of("the volume", (3, 50, 4))
    for level, measures in enumerate([(0.5, 0.4, 0.3), (0.2, 0.0009), (0.001,)]):
        for iteration, measure in enumerate(measures):
            clock.now += 0.5
            tell(level, iteration, measure)
    assert lines.messages == [
        "N4: the volume, level 1 of 3: 3 iterations in 1.5 s, convergence 0.3",
        "N4: the volume, level 2 of 3: 2 iterations in 1.0 s, convergence 0.0009",
        "N4: the volume, level 3 of 3: 1 iteration in 0.5 s, convergence 0.001",
    ]


def test_a_long_level_has_a_line_now_and_then(clock, lines):
    tell = FitLog(0.0).of("the volume", (50,))
    for iteration in range(50):
        clock.now += LINE_EVERY_S / 5
        tell(0, iteration, 1 / (iteration + 1))
    assert len(lines.messages) == 10
    assert lines.messages[0] == (
        "N4: the volume, level 1 of 1: 5 of at most 50 iterations in 10.0 s, convergence 0.2"
    )
    assert lines.messages[-1].startswith("N4: the volume, level 1 of 1: 50 iterations in 100.0 s")


def test_sections_fitted_together_share_the_lines(clock, lines):
    log = FitLog(0.0)
    sections = [log.of(f"section {n}", (1000,)) for n in range(8)]
    for iteration in range(100):
        clock.now += LINE_EVERY_S / 10
        for tell in sections:
            tell(0, iteration, 0.5)
    assert len(lines.messages) == 10
