"""Every test of a fault has a row in docs/reliability.md, and every row has its test."""

import re
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
PAGE = FOLDER.parents[1] / "docs" / "reliability.md"


def test_every_fault_test_has_a_row_and_every_row_a_test():
    collected = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "fault", str(FOLDER)],
        cwd=FOLDER.parents[1],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout
    named = re.findall(r"\| `(test_\w+)` \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(named) == sorted({*re.findall(r"(?m)::(test_\w+)", collected)})
