"""Stitching and stacking against phantoms' truth and other programs, and their cost.

Each part is stored in benchmarks/results/stitch.json, from which `make generate` writes the tables
of docs/benchmarks.md. ``--only`` chooses parts. ``--quick`` runs a few cases of each and writes to
the scratch folder (OCTANE_BENCH_DIR, else work/bench) instead.

scikit-image needs a separate Python, as for resample.py, given as ``--peers_python``. BaSiC needs
one created by ``python -m venv BASIC && BASIC/bin/pip install basicpy`` and given as
``--basic_python BASIC/bin/python``. Without them they are skipped, and the tables say so.
"""

from _common import add_python, command_line, run_parts
from _stitch_alignment import alignment
from _stitch_attenuation import attenuation
from _stitch_blend import blend
from _stitch_flat_field import flat_field
from _stitch_levelling import levelling
from _stitch_planes import planes
from _stitch_refinement import refinement
from _stitch_surface import surface
from _stitch_thickness import thickness

PARTS = (
    *("flat_field", "alignment", "levelling", "surface", "planes", "thickness", "blend"),
    *("attenuation", "refinement"),
)


def main() -> None:
    """Run the chosen parts."""
    parser = command_line(__doc__, PARTS)
    add_python(parser, "--basic_python", "BaSiCPy")
    add_python(parser, "--peers_python", "scikit-image")
    chosen = parser.parse_args()
    parts = {
        "flat_field": lambda: flat_field(chosen.quick, chosen.basic_python),
        "alignment": lambda: alignment(chosen.quick, chosen.peers_python),
        "levelling": lambda: levelling(chosen.quick),
        "surface": lambda: surface(chosen.quick),
        "planes": lambda: planes(chosen.quick),
        "blend": lambda: blend(chosen.quick),
        "attenuation": lambda: attenuation(chosen.quick),
        "thickness": lambda: thickness(chosen.quick),
        "refinement": lambda: refinement(chosen.quick),
    }
    run_parts("stitch", parts, chosen)


if __name__ == "__main__":
    main()
