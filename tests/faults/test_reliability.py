"""Every test of a fault has a row in docs/reliability.md, and every row has its test."""

import subprocess
import sys
from pathlib import Path

from reliability import GROUPS, rows

FOLDER = Path(__file__).parent


def test_every_fault_test_has_a_row_and_every_row_a_test():
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "fault", str(FOLDER)],
        cwd=FOLDER.parents[1],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout
    tests = {line.rpartition("/")[2] for line in found.splitlines() if "::" in line}
    assert len(tests) > 10
    assert tests == set(rows())


def test_every_row_says_everything():
    for test, row in rows().items():
        assert row.group in GROUPS, test
        for text in (row.fault, row.does, row.result, row.observed):
            assert text, test
            assert "\n" not in text, test
            # Folders of the machine that saw it.
            assert "/tmp/" not in text, test
