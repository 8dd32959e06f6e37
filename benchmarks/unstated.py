"""Data sets of which nothing is stated, planned and stacked, against the places of their beads.

Stored in benchmarks/results/unstated.json, from which `make generate` writes the tables of
docs/benchmarks.md. Each subject is planned with its input alone, and what octane asks for is given.
It is stacked with the flags of the plan, and once more with everything stated. ``sound`` stacks
phantoms with ``--stack_align auto``. ``--quick`` takes every sixth subject and fewer phantoms, and
writes to the scratch folder (OCTANE_BENCH_DIR, else work/bench) instead.
"""

import logging
import tempfile
from dataclasses import asdict
from pathlib import Path

from _common import command_line, run_parts, scratch_folder
from _unstated_cuts import CUTS
from _unstated_data import Laboratory, write_subject
from _unstated_labs import LABORATORIES
from _unstated_run import Run, run_subject
from _unstated_sound import sound

logger = logging.getLogger(__name__)

PARTS = ("subjects", "sound")
FINE, WORSE = 1.0, 0.25
"""Largest error of a bead that is fine, and by how much it may exceed that with all stated."""


def subjects(quick: bool) -> dict[str, object]:
    """Plan and stack each subject."""
    rows = []
    for number, lab in enumerate([*LABORATORIES, *CUTS][:: 6 if quick else 1]):
        with tempfile.TemporaryDirectory(dir=scratch_folder()) as scratch:
            source = Path(scratch) / "tiles"
            truth = write_subject(lab, source, 100 * number)
            runs = []
            for name, given in (("unstated", {}), ("stated", lab.stated)):
                work = Path(scratch) / name
                work.mkdir()
                runs.append(run_subject(lab, source, given, truth, work))
        own = {"unstated": asdict(runs[0]), "stated": asdict(runs[1])}
        row = {"name": lab.name, "cut": lab.cut is not None, "outcome": outcome(lab, *runs), **own}
        rows.append(row)
        logger.info("%s", row)
    return {"rows": rows}


def outcome(lab: Laboratory, unstated: Run, stated: Run) -> str:
    """Say whether all beads are where they are with everything stated, or the data refused.

    What must stay as it was imaged is named, if the report warns of it.
    """
    if unstated.error is None:
        return "refused"
    usual = 0.0 if stated.error is None else stated.error
    if unstated.error <= max(FINE, usual + WORSE):
        return "fine"
    is_named = lab.cut is not None and lab.cut.named in unstated.named
    return "named" if is_named and not unstated.moved else "wrong"


def main() -> None:
    """Run the benchmark."""
    chosen = command_line(__doc__, PARTS).parse_args()
    parts = {"subjects": lambda: subjects(chosen.quick), "sound": lambda: sound(chosen.quick)}
    run_parts("unstated", parts, chosen)


if __name__ == "__main__":
    main()
