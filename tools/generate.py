#!/usr/bin/env python3
"""Write generated files: those from the parameter models, and the benchmark tables in docs/.

And the version where other files repeat it.
"""

import re
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
sys.path[1:1] = [str(PROJECT / "bin"), str(PROJECT / "benchmarks")]

from _tables import PAGE, fill_tables  # noqa: E402

from octane import __version__  # noqa: E402
from octane.processes.preflight.schema import GENERATED  # noqa: E402

CHANGES = (PROJECT / "CHANGELOG.md").read_text(encoding="utf-8")
LAST_RELEASE = re.findall(r"(?m)^## (\S+) - (\S+)$", CHANGES)[0]
"""Version and date of the last release, which CITATION.cff describes."""

REPEATED = {
    "nextflow.config": {r"(?m)^(    version = ')[^']*": __version__},
    "docs/hpc.md": {r"(octane[:-])\d+(?:\.\d+)+": __version__},
    "CITATION.cff": {
        r"(?m)^(version: ).*": LAST_RELEASE[0],
        r"(?m)^(date-released: ).*": LAST_RELEASE[1],
    },
}

for name, make in GENERATED.items():
    (PROJECT / name).write_text(make(), encoding="utf-8")
PAGE.write_text(fill_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
for name, values in REPEATED.items():
    text = (PROJECT / name).read_text(encoding="utf-8")
    for pattern, value in values.items():
        text = re.sub(pattern, rf"\g<1>{value}", text)
    (PROJECT / name).write_text(text, encoding="utf-8")
