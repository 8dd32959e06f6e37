"""Corrections of light against phantoms' truth: gains of tiles, and the number of N4's levels.

Each part is stored in benchmarks/results/light.json, from which `make generate` writes tables of
docs/benchmarks.md. ``--only`` chooses parts. ``--quick`` runs a few cases of each and writes to the
scratch folder (OCTANE_BENCH_DIR, else work/bench) instead.
"""

from _common import command_line, run_parts
from _light_gains import gains
from _light_levels import levels

PARTS = ("levels", "gains")


def main() -> None:
    """Run the chosen parts."""
    chosen = command_line(__doc__, PARTS).parse_args()
    quick = chosen.quick
    made = {"levels": lambda: levels(quick=quick), "gains": lambda: gains(quick)}
    run_parts("light", made, chosen)


if __name__ == "__main__":
    main()
