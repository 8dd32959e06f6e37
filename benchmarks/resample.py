"""Resampling against other methods, readers and programs: speed, memory, scaling, goals.

Each part writes its own JSON under benchmarks/results/, from which `make generate` makes the tables
of docs/resample.md. ``--quick`` does a part of each, in under 10 minutes on two cores, and writes
into the scratch folder (OCTANE_BENCH_DIR, else work/bench) in place of the results. Data, up to
3 GB at a time, goes to the scratch folder too, and is removed.

The peers that octane does not depend on need a Python of their own, made by
``python -m venv PEERS && PEERS/bin/pip install dask-image 'ngff-zarr[dask-image]' itk-filtering
tensorstore scikit-image zarrs`` and named by ``--peers-python PEERS/bin/python``. Without it they
are left out, and the tables say so.
"""

import argparse
import logging
import os
from pathlib import Path

from _common import PROJECT, save, scratch_folder
from _resample_codecs import codecs
from _resample_end_to_end import end_to_end
from _resample_goals import goals
from _resample_kernel import kernel
from _resample_memory import memory
from _resample_read import read
from _resample_scaling import scaling

PARTS = ("kernel", "read", "end_to_end", "codecs", "memory", "scaling")


def main() -> None:
    """Run the parts that were asked for, and say which goals they reach."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer and smaller cases")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="these parts alone")
    parser.add_argument(
        "--peers-python",
        type=Path,
        default=os.environ.get("OCTANE_PEERS_PYTHON"),
        help="a Python that has the peers (OCTANE_PEERS_PYTHON)",
    )
    chosen = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    quick, peers = chosen.quick, chosen.peers_python
    parts = {
        "kernel": lambda: kernel(quick, peers),
        "read": lambda: read(quick, peers),
        "end_to_end": lambda: end_to_end(quick, peers),
        "codecs": lambda: codecs(quick),
        "memory": lambda: memory(quick),
        "scaling": lambda: scaling(quick),
    }
    for name in chosen.only:
        save(f"resample_{name}", parts[name](), quick=quick)
    results = scratch_folder() if quick else PROJECT / "benchmarks" / "results"
    for goal in goals(results, quick=quick):
        logging.getLogger(__name__).info("goal: %s", goal)


if __name__ == "__main__":
    main()
