"""N4 against SimpleITK and n4ax: agreement, speed, memory; and the pictures of docs/n4.md.

Each part writes its own JSON under benchmarks/results/, from which `make generate` makes the tables
of docs/n4.md. ``--quick`` does a part of each, in under 10 minutes on two cores, and writes into
the scratch folder (OCTANE_BENCH_DIR, else work/bench) in place of the results.
"""

import argparse
import logging
import os
from pathlib import Path

from _common import save
from _n4_agreement import agreement
from _n4_memory import memory
from _n4_modes import modes
from _n4_pictures import pictures
from _n4_speed import speed

PARTS = ("agreement", "speed", "memory", "modes", "pictures")


def python_of(variable: str) -> Path | None:
    """The Python that an environment variable names, if it does."""
    given = os.environ.get(variable)
    return Path(given) if given else None


def main() -> None:
    """Run the parts that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer and smaller cases")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="these parts alone")
    parser.add_argument(
        "--itk-python",
        type=Path,
        default=python_of("OCTANE_ITK_PYTHON"),
        help="a Python that has itk-filtering, for the cases with weights (OCTANE_ITK_PYTHON)",
    )
    parser.add_argument(
        "--n4ax-python",
        type=Path,
        default=python_of("OCTANE_N4AX_PYTHON"),
        help="a Python (3.12 or newer) that has n4ax, to time it too (OCTANE_N4AX_PYTHON)",
    )
    parser.add_argument(
        "--shrink-factor", default="auto", help="of the memory part (default: auto)"
    )
    chosen = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    if "agreement" in chosen.only:
        save("n4_agreement", agreement(chosen.quick, chosen.itk_python), quick=chosen.quick)
    if "speed" in chosen.only:
        save("n4_speed", speed(chosen.quick, chosen.n4ax_python), quick=chosen.quick)
    if "memory" in chosen.only:
        save("n4_memory", memory(chosen.quick, chosen.shrink_factor), quick=chosen.quick)
    if "modes" in chosen.only:
        save("n4_modes", modes(chosen.quick), quick=chosen.quick)
    if "pictures" in chosen.only and not chosen.quick:
        logging.getLogger(__name__).info("drawn: %s", pictures())


if __name__ == "__main__":
    main()
