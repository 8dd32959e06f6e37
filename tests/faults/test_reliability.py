"""Every test of a fault has a row in docs/reliability.md, and every row has its test."""

import subprocess
import sys
from pathlib import Path

from reliability import GROUPS, rows

FOLDER = Path(__file__).parent


def collected(marks):
    """Names of the tests of faults that have such marks."""
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", marks, str(FOLDER)],
        cwd=FOLDER.parents[1],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout
    return {line.rpartition("/")[2] for line in found.splitlines() if "::" in line}


def test_every_fault_test_has_a_row_and_every_row_a_test():
    assert len(rows()) > 10
    assert collected("fault and not soak") == {t for t, row in rows().items() if "soak" not in row}
    assert collected("fault and soak") == {t for t, row in rows().items() if "soak" in row}


def test_every_row_says_everything():
    for test, row in rows().items():
        assert row["group"] in GROUPS, test
        for name in ("fault", "does", "result", "observed"):
            assert row[name], test
            assert "\n" not in row[name], test
            # Folders of the machine that saw it.
            assert "/tmp/" not in row[name], test
