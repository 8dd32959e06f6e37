"""Takers of leases that are killed at any moment leave nothing, and no share is given twice."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from lease_storm import SIZE, Span, faults, spans_of

PROJECT = Path(__file__).resolve().parents[2]


@pytest.mark.fault
@pytest.mark.parametrize("kills", ["100", pytest.param("2000", marks=pytest.mark.soak)])
def test_kills_leave_nothing_and_give_nothing_twice(kills):
    done = subprocess.run(
        [sys.executable, PROJECT / "tests" / "support" / "lease_storm.py", kills, "6", "7"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=500,
    )
    counts = json.loads(done.stdout)
    assert counts["kills_while_holding"] > 0
    assert counts["grants"] > 50
    for fault in ("leaks", "double_grants", "over_slots", "over_memory"):
        assert counts[fault] == 0, counts
    # Of each of two users: two slots on each of two GPUs, and a place in the queue for each taker.
    assert counts["files_left"] <= 2 * (2 * 2 + 6)


def test_what_the_storm_looks_for_is_found_where_it_is():
    half = SIZE // 2
    sound = [Span("GPU-0.0", half, 0, 10), Span("GPU-0.1", half, 5, 20), Span("GPU-0.0", 5, 10, 30)]
    assert not any(faults(sound).values())
    for span, fault in (
        (Span("GPU-0.0", 1, 29, 40), "double_grants"),
        (Span("GPU-0.2", 1, 15, 16), "over_slots"),
        (Span("GPU-0.3", half, 6, 7), "over_memory"),
    ):
        assert faults([*sound, span])[fault] == 1
    # The share of one that is killed lasts until just before the kill.
    log = "granted 5 1 GPU-0.0 30\nreleased 8 1 GPU-0.0 30\ngranted 9 1 GPU-0.1 4\n"
    spans, holding = spans_of(log, {1: 20})
    assert [(span.start, span.stop) for span in spans] == [(5, 8), (9, 20)]
    assert holding == 1
