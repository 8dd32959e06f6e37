"""Data sets of which nothing is stated, planned and stitched, against the places of their beads.

Stored in benchmarks/results/unstated.json, from which `make generate` writes the table of
docs/benchmarks.md. Each subject is planned with its input alone, and what octane asks for is given.
Its sections are stitched with the flags of the plan, and once more with everything stated.
``--quick`` takes every sixth, and writes to the scratch folder (OCTANE_BENCH_DIR, else work/bench)
instead.
"""

import logging
import tempfile
from dataclasses import asdict
from pathlib import Path

from _common import command_line, run_parts, scratch_folder
from _unstated_data import write_subject
from _unstated_labs import LABORATORIES
from _unstated_run import Run, run_subject

logger = logging.getLogger(__name__)

PARTS = ("subjects",)
FINE, WORSE = 1.0, 0.25
"""Largest error of a bead that is fine, and by how much it may exceed that with all stated."""


def subjects(quick: bool) -> dict[str, object]:
    """Plan and stitch each subject."""
    rows = []
    for number, lab in enumerate(LABORATORIES[:: 6 if quick else 1]):
        with tempfile.TemporaryDirectory(dir=scratch_folder()) as scratch:
            source = Path(scratch) / "tiles"
            truth = write_subject(lab, source, 100 * number)
            runs = []
            for name, given in (("unstated", {}), ("stated", lab.stated)):
                work = Path(scratch) / name
                work.mkdir()
                runs.append(run_subject(lab, source, given, truth, work))
        own = {"unstated": asdict(runs[0]), "stated": asdict(runs[1])}
        rows.append({"name": lab.name, "outcome": outcome(*runs), **own})
        logger.info("%s", rows[-1])
    return {"rows": rows}


def outcome(unstated: Run, stated: Run) -> str:
    """Say whether all beads are where they are with everything stated, or the data refused."""
    if unstated.error is None:
        return "refused"
    usual = 0.0 if stated.error is None else stated.error
    return "fine" if unstated.error <= max(FINE, usual + WORSE) else "wrong"


def main() -> None:
    """Run the benchmark."""
    chosen = command_line(__doc__, PARTS).parse_args()
    run_parts("unstated", {"subjects": lambda: subjects(chosen.quick)}, chosen)


if __name__ == "__main__":
    main()
