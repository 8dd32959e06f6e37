"""Start-up: CPU seconds of commands that do nothing or little, and of loading compiled loops.

CPU seconds are summed over all cores: other load on the machine affects them less than wall time.
Every figure comes from separate processes. The overhead of the kernels is the time of the first
call of a part of octane on a small volume minus the second, with an empty and with a full cache.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from _common import PROJECT, scratch_folder
from _processes import run
from python_path import python_path

COMMANDS = ("n4", "resample", "stitch", "stack", "pyramid", "preflight", "report", "gpu_slot")
PHANTOM = ("--sections", "1", "--tiles", "2", "2", "--tile_shape", "32", "64", "64")
BASE = "import numpy, pydantic"
WORK = (
    ("resample", "phantom/mosaics/section_01.ome.zarr", ("--resolution", "10")),
    ("stitch", "resample.ome.zarr", ()),
    ("n4", "stitch.ome.zarr", ("--n4_shrink_factor", "2")),
    ("pyramid", "n4.ome.zarr", ()),
)
"""Commands, their inputs and flags; each reads the output of an earlier one."""

OURS = """
import json, time
import numpy
{imports}
rng = numpy.random.default_rng(0)
image = rng.uniform(50, 100, (16, 16, 16)).astype(numpy.float32)
{prepare}
begin = time.process_time()
{call}
first = time.process_time()
{call}
second = time.process_time()
print(json.dumps({{"added_by_kernels": 2 * first - begin - second}}))
"""

PARTS = {
    "n4": OURS.format(
        imports="from octane.processes.n4 import fit",
        prepare="",
        call="fit.n4_bias_field_correction(image, shrink_factor=(1, 1, 1), iterations=(2,))",
    ),
    "resample": OURS.format(
        imports="from octane.resample import operator, resampler",
        prepare="axes = [operator.resampler(16, 3.5, 10.0)] * 3",
        call="resampler.resample(image, axes)",
    ),
}


def measure(script: str, cache: Path) -> dict[str, float]:
    """Run a script in a new process."""
    environment = {
        **os.environ,
        "NUMBA_CACHE_DIR": str(cache),
        **python_path(PROJECT / "bin"),
    }
    found = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    return json.loads(found.stdout)


def summary(runs: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Return the median and minimum of every figure; the latter is closest to an idle machine's."""
    return {
        name: {
            "median": round(statistics.median(run[name] for run in runs), 4),
            "smallest": round(min(run[name] for run in runs), 4),
        }
        for name in runs[0]
    }


def startup(quick: bool, checkouts: Mapping[str, Path]) -> dict[str, object]:
    """Time commands of all checkouts alternately, and the first calls of this one's parts."""
    repeats = 3 if quick else 7
    cold: dict[str, list[dict[str, float]]] = {name: [] for name in PARTS}
    warm: dict[str, list[dict[str, float]]] = {name: [] for name in PARTS}
    commands: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory(dir=scratch_folder()) as scratch:
        folder = Path(scratch)
        run([sys.executable, PROJECT / "bin" / "phantom.py", folder / "phantom", *PHANTOM])
        # The first round makes the inputs, and the machine code of each checkout.
        for number in range(1 + repeats):
            base = run([sys.executable, "-c", BASE]).cpu_seconds
            commands.setdefault(f"python -c '{BASE}'", {}).setdefault("new", []).append(base)
            for label, checkout in checkouts.items():
                for name, words in small(folder).items():
                    found = run([python_of(checkout), checkout / "bin" / words[0], *words[1:]])
                    commands.setdefault(name, {}).setdefault(label, []).append(found.cpu_seconds)
            if number:
                with tempfile.TemporaryDirectory() as cache:
                    for name, script in PARTS.items():
                        cold[name].append(measure(script, Path(cache)))
                        warm[name].append(measure(script, Path(cache)))
    return {
        "unit": "s",
        "repeats": repeats,
        "commands": {
            name: {label: statistics.median(seconds[1:]) for label, seconds in found.items()}
            for name, found in commands.items()
        },
        **{
            name: {"empty_cache": summary(cold[name]), "full_cache": summary(warm[name])}
            for name in PARTS
        },
    }


def small(folder: Path) -> dict[str, list[str | Path]]:
    """Return the commands by their names in the table."""
    found: dict[str, list[str | Path]] = {
        f"bin/{name}.py --help": [f"{name}.py", "--help"] for name in COMMANDS
    }
    for name, source, flags in WORK:
        result = folder / f"{name}.ome.zarr"
        words = [f"{name}.py", folder / source, result, *flags, "--overwrite"]
        found[f"bin/{name}.py of a small mosaic"] = words
    return found


def python_of(checkout: Path) -> str | Path:
    """Return a checkout's own Python if it is set up, else this one."""
    own = checkout / ".venv" / "bin" / "python"
    return own if own.exists() else sys.executable
