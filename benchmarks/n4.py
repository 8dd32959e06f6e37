"""N4 against SimpleITK, ITK and n4ax: agreement, speed, memory; and against a phantom's truth.

Each part is stored in benchmarks/results/n4.json, from which `make generate` writes the tables of
docs/benchmarks.md. ``--only`` chooses parts. ``--quick`` runs some cases of each, in under 10
minutes on two cores, and writes to the scratch folder (OCTANE_BENCH_DIR, else work/bench) instead.
``--against FOLDER`` only compares speed and results of another checkout with this one.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
from _against import call, command, compared
from _common import add_python, command_line, cores, run_parts, scratch_folder
from _n4_agreement import agreement, tissue_volume
from _n4_speed import memory, speed, write_noise
from _n4_truth import levels, modes

PARTS = ("agreement", "speed", "memory", "modes", "levels")


def against(other: Path, *, quick: bool) -> dict[str, object]:
    """Compare N4 of two checkouts, in memory and as a command."""
    with tempfile.TemporaryDirectory(dir=scratch_folder()) as scratch:
        folder = Path(scratch)
        array, store = folder / "tissue.npy", folder / "noise.ome.zarr"
        np.save(array, tissue_volume((64, 128, 128) if quick else (128, 256, 256)))
        write_noise(store, (128, 256, 256) if quick else (256, 512, 512))
        words = ["--n4_mask", "none", "--backend", "cpu", "--workers", str(cores())]
        cases = {
            "in memory, 1 worker": call("n4", array, workers=1, runs=5),
            f"in memory, {cores()} workers": call("n4", array, workers=cores(), runs=5),
            "command": command("n4", store, folder, [*words, "--n4_iterations", "20", "20"]),
        }
        return compared(other, cases, 3 if quick else 7)


def options() -> argparse.Namespace:
    """Parse the command line."""
    parser = command_line(__doc__, PARTS)
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="another checkout of octane")
    add_python(parser, "--itk_python", "itk-filtering, for the cases with weights")
    add_python(parser, "--n4ax_python", "n4ax (Python 3.12 or newer)")
    return parser.parse_args()


def main() -> None:
    """Run the chosen parts."""
    chosen = options()
    if chosen.against is not None:
        against(chosen.against, quick=chosen.quick)
        return
    quick = chosen.quick
    parts = {
        "agreement": lambda: agreement(quick, chosen.itk_python),
        "speed": lambda: speed(quick, chosen.n4ax_python),
        "memory": lambda: memory(quick),
        "modes": lambda: modes(quick),
        "levels": levels,
    }
    run_parts("n4", parts, chosen)


if __name__ == "__main__":
    main()
