#!/usr/bin/env python3
"""Write the files that are generated from the parameter models."""

import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PROJECT / "bin"))

from octane.schema import GENERATED  # noqa: E402

for name, make in GENERATED.items():
    (PROJECT / name).write_text(make(), encoding="utf-8")
