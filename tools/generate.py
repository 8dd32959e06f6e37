#!/usr/bin/env python3
"""Write generated files: those from the parameter models, and the benchmark tables in docs/."""

import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
sys.path[1:1] = [str(PROJECT / "bin"), str(PROJECT / "benchmarks")]

from _tables import PAGE, fill_tables  # noqa: E402

from octane.processes.preflight.schema import GENERATED  # noqa: E402

for name, make in GENERATED.items():
    (PROJECT / name).write_text(make(), encoding="utf-8")
PAGE.write_text(fill_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
