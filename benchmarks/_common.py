"""Parts of a benchmark: their selection on the command line, records and folders."""

import argparse
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
# Benchmarks are scripts, and octane is not installed. Last on the path, because commands in bin/
# have the names of benchmarks.
sys.path += [str(PROJECT / part) for part in ("bin", "tests/support", "tools")]

from record import stamped  # noqa: E402

from octane.core.metrics import write_json  # noqa: E402
from octane.pipeline.workers import cores as cores  # noqa: E402

RESULTS = Path(os.environ.get("OCTANE_BENCH_RESULTS", PROJECT / "benchmarks" / "results"))

Part = Callable[[], Mapping[str, object]]
"""Measures one part of a benchmark and returns its figures."""


def scratch_folder() -> Path:
    """Return the folder of benchmark data: OCTANE_BENCH_DIR, else work/bench in the project."""
    folder = Path(os.environ.get("OCTANE_BENCH_DIR", PROJECT / "work" / "bench"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def size(path: Path) -> int:
    """Return the bytes of a file, or of all files below a folder."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def command_line(description: str | None, parts: tuple[str, ...]) -> argparse.ArgumentParser:
    """Return the parser of a benchmark, with ``--quick`` and ``--only``."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer and smaller cases")
    parser.add_argument("--only", nargs="+", choices=parts, default=parts, help="only these parts")
    return parser


def add_python(parser: argparse.ArgumentParser, flag: str, packages: str) -> None:
    """Add a flag for a Python with packages that octane does not depend on (--peers_python)."""
    variable = f"OCTANE{flag[1:].replace('-', '_').upper()}"
    parser.add_argument(
        flag,
        type=Path,
        default=os.environ.get(variable) or None,
        help=f"a Python that has {packages} ({variable})",
    )


def run_parts(subject: str, parts: Mapping[str, Part], chosen: argparse.Namespace) -> dict:
    """Measure the chosen parts and update each in ``benchmarks/results/{subject}.json``.

    Figures of a quick run are written to the scratch folder, so that they never replace those that
    the documentation quotes. Returns the content of the file.
    """
    path = RESULTS / f"{subject}.json"
    if chosen.quick:
        path = scratch_folder() / f"{subject}_quick.json"
    kept: dict[str, dict] = {}
    for name in chosen.only:
        start = time.perf_counter()
        figures = parts[name]()
        seconds = time.perf_counter() - start
        kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        kept[name] = stamped({**figures, "seconds": seconds})
        write_json(path, kept)
        sys.stdout.write(json.dumps({name: kept[name]}, indent=2) + "\n")
    return kept
