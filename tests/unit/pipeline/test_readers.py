"""Blocks read outside of the tile pipeline: every one is counted, results are in order."""

import io
import logging
import re
import sys
import time

import pytest

from octane.core.metrics import Metrics
from octane.core.timing import span
from octane.pipeline.readers import READER, read_blocks


def test_results_are_in_order_and_progress_counts_blocks_and_bytes(caplog, monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    caplog.set_level(logging.INFO, logger="octane")
    found = read_blocks(
        range(9),
        lambda n: (n * n, 1000),
        label="N4: reading",
        workers=3,
        metrics=Metrics("n4"),
        describe=str,
    )
    assert found == [n * n for n in range(9)]
    (line,) = caplog.messages
    assert re.fullmatch(r"N4: reading: 9 of 9, [\d.]+ tiles/s, \d+ MB/s, 0 s left", line)


def test_an_error_names_its_block():
    def work(n):
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken") as error:
        read_blocks(
            [7], work, label="x", workers=1, metrics=Metrics("x"), describe=lambda n: f"block {n}"
        )
    assert "while working on block 7" in error.value.__notes__


def test_threads_have_tracks_of_the_record_whatever_becomes_of_their_blocks():
    metrics = Metrics("n4")

    def work(n):
        with span("read"):
            time.sleep(0.01)
        if n == 5:
            raise ValueError("broken")
        return n, 1

    with pytest.raises(ValueError, match="broken"):
        read_blocks(range(6), work, label="x", workers=2, metrics=metrics, describe=str)
    assert list(metrics.timeline.tracks) == [f"{READER} {n}" for n in range(2)]
    assert 0.06 <= metrics.seconds["read"] < 1
    assert metrics.timeline.own() == {}
