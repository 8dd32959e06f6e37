"""Resampling against other methods, readers and programs: speed and memory.

Each part is stored in benchmarks/results/resample.json, from which `make generate` writes the
tables of docs/benchmarks.md. ``--only`` chooses parts. ``--quick`` runs some cases of each, in
under 10 minutes on two cores, and writes to the scratch folder (OCTANE_BENCH_DIR, else work/bench)
instead. Data, up to 3 GB at a time, are written to the scratch folder too, and removed.
``--against FOLDER`` only compares speed and results of another checkout with this one.

Peers that octane does not depend on need a separate Python, created by
``python -m venv PEERS && PEERS/bin/pip install 'ngff-zarr[dask-image]' itk-filtering
tensorstore scikit-image zarrs`` and given as ``--peers_python PEERS/bin/python``. Without it they
are skipped, and the tables say so.
"""

import tempfile
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from _against import Measure, call, command, compared
from _common import add_python, command_line, cores, run_parts, scratch_folder
from _resample_end_to_end import end_to_end, memory
from _resample_kernel import kernel
from _resample_reading import reading
from _resample_stores import RESOLUTION, mosaic, speckle

PARTS = ("kernel", "end_to_end", "memory", "reading")


def against(other: Path, *, quick: bool) -> dict[str, object]:
    """Compare RESAMPLE of two checkouts, in memory and as a command."""
    tile = (128, 128, 128) if quick else (256, 256, 256)
    words = ["--resolution", f"{RESOLUTION:g}", "--backend", "cpu", "--workers", str(cores())]
    with tempfile.TemporaryDirectory(dir=scratch_folder()) as scratch, ExitStack() as opened:
        folder = Path(scratch)
        array = folder / "tile.npy"
        np.save(array, speckle(tile))
        cases: dict[str, Measure] = {
            "one tile in memory": call("resample", array, workers=1, runs=15)
        }
        for kind in ("zstd", "uncompressed", "zstd, shards of 2 x 2"):
            name = f"section_{len(cases):02d}"
            source = opened.enter_context(mosaic(folder, kind, tile, (4, 4), name))
            source.warm()
            cases[f"command, {kind}"] = command("resample", source.path, folder, words)
        return compared(other, cases, 3 if quick else 9)


def main() -> None:
    """Run the chosen parts."""
    parser = command_line(__doc__, PARTS)
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="another checkout of octane")
    add_python(parser, "--peers_python", "the peers")
    chosen = parser.parse_args()
    quick, peers = chosen.quick, chosen.peers_python
    if chosen.against is not None:
        against(chosen.against, quick=quick)
        return
    parts = {
        "kernel": lambda: kernel(quick, peers),
        "end_to_end": lambda: end_to_end(quick, peers),
        "memory": lambda: memory(quick),
        "reading": lambda: reading(quick, peers),
    }
    run_parts("resample", parts, chosen)


if __name__ == "__main__":
    main()
