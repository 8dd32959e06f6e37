"""Takers of leases that are killed at any moment leave nothing, and no share is given twice."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from lease_storm import Span, over, overlaps, spans_of

PROJECT = Path(__file__).resolve().parents[2]


def storm(*arguments):
    """Counts of a storm, none of which may be a fault."""
    done = subprocess.run(
        [sys.executable, PROJECT / "tests" / "support" / "lease_storm.py", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=500,
    )
    counts = json.loads(done.stdout)
    assert counts["kills"] == int(arguments[0])
    assert counts["kills_while_holding"] > 0
    assert counts["grants"] > 50
    for fault in ("leaks", "double_grants", "over_slots", "over_memory"):
        assert counts[fault] == 0, counts
    return counts


@pytest.mark.fault
def test_a_hundred_kills_leave_nothing_and_give_nothing_twice(observed):
    counts = storm("100", "6", "7")
    # Two slots on each of two GPUs, and a place in the queue for each taker, of each user.
    users = 1 + (os.getuid() == 0)
    assert counts["files_left"] <= users * (2 * 2 + 6)
    assert (counts["grants_of_the_second_user"] > 0) == (users == 2)
    observed(
        f"{counts['kills_while_holding']} of them held a lease; {counts['grants']} were given; "
        f"{counts['leaks']} leaks, {counts['double_grants']} given twice"
    )


def test_what_the_storm_looks_for_is_found_where_it_is():
    separate = [Span("GPU-0.0", 30, 0, 10), Span("GPU-0.1", 5, 5, 20), Span("GPU-0.0", 30, 10, 30)]
    assert overlaps(separate) == 0
    assert overlaps([*separate, Span("GPU-0.0", 1, 29, 40)]) == 1
    assert over(separate, lambda span: 1, 2) == 0
    assert over(separate, lambda span: span.size, 35) == 0
    assert over(separate, lambda span: span.size, 34) == 2
    assert over([*separate, Span("GPU-0.2", 1, 6, 7)], lambda span: 1, 2) == 1
    # The share of one that is killed lasts until just before the kill.
    log = "granted 5 1 GPU-0.0 30\nreleased 8 1 GPU-0.0 30\ngranted 9 1 GPU-0.1 4\n"
    spans, holding = spans_of(log, {1: 20})
    assert [(span.start, span.stop) for span in spans] == [(5, 8), (9, 20)]
    assert holding == 1
