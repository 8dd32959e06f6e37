"""The workflow: the demo, start-up of commands, many tasks, the speed of each step.

Each part is stored in benchmarks/results/workflow.json, from which `make generate` writes the
tables of docs/benchmarks.md. ``--only`` chooses parts. ``--quick`` runs a few cases of each and
writes to the scratch folder (OCTANE_BENCH_DIR, else work/bench) instead. A GPU is not needed.
``--against FOLDER`` measures ``demo`` and ``startup`` of another checkout alternately with this
one; both must be set up (``make setup``).

``demo``
    ``make demo``'s run and its ``-resume``, and when each of its steps began and ended.
``startup``
    CPU seconds of commands, and of loading compiled loops with an empty and a full cache.
``tasks``
    A lab's day of many subjects with stubs: the overhead of Nextflow.
``steps``
    Seconds and peak memory of each step, and the time that a subject of 80 GB needs.
``channels``
    CPU seconds and peak memory of each step on subjects with one, two and four channels.
``nifti``
    N4's command on a small NIfTI file, and SimpleITK only reading and writing it.
``verdict``
    Simulated faults in phantoms, and how many of them the report's checks find.
"""

from pathlib import Path

from _common import PROJECT, command_line, run_parts
from _workflow_channels import channels
from _workflow_demo import demo
from _workflow_startup import startup
from _workflow_steps import nifti, steps
from _workflow_tasks import tasks
from _workflow_verdict import verdict

PARTS = ("demo", "startup", "tasks", "steps", "channels", "nifti", "verdict")


def main() -> None:
    """Run the chosen parts."""
    parser = command_line(__doc__, PARTS)
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="another checkout of octane")
    chosen = parser.parse_args()
    quick = chosen.quick
    checkouts = {"new": PROJECT} | ({"old": chosen.against.resolve()} if chosen.against else {})
    parts = {
        "demo": lambda: demo(quick, checkouts),
        "startup": lambda: startup(quick, checkouts),
        "tasks": lambda: tasks(quick),
        "steps": lambda: steps(quick),
        "channels": lambda: channels(quick),
        "nifti": nifti,
        "verdict": lambda: verdict(quick),
    }
    run_parts("workflow", parts, chosen)


if __name__ == "__main__":
    main()
