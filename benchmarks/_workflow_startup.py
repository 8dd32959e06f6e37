"""Start-up: seconds of commands that do nothing, and of loading compiled loops.

Every figure is from separate processes: one that imports NumPy alone, and ones that import a part
of octane and use it on a small volume, with an empty cache and with a full one. What the kernels
add is the time of the first call less that of the second; also in CPU seconds, which other work on
the machine changes less.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from _common import PROJECT
from _processes import run

COMMANDS = ("n4", "resample", "stitch", "stack", "pyramid", "preflight", "report", "gpu_slot")

NUMPY = """
import json, time
start = time.perf_counter()
import numpy
print(json.dumps({"numpy": time.perf_counter() - start}))
"""

OURS = """
import json, time
start = time.perf_counter()
import numpy
after_numpy = time.perf_counter()
{imports}
after_octane = time.perf_counter()
rng = numpy.random.default_rng(0)
image = rng.uniform(50, 100, (16, 16, 16)).astype(numpy.float32)
{prepare}
begin, begin_cpu = time.perf_counter(), time.process_time()
{call}
first, first_cpu = time.perf_counter(), time.process_time()
{call}
second, second_cpu = time.perf_counter(), time.process_time()
print(json.dumps({{
    "numpy": after_numpy - start,
    "octane": after_octane - after_numpy,
    "first_call": first - begin,
    "second_call": second - first,
    "added_by_kernels": 2 * first - begin - second,
    "added_by_kernels_cpu": 2 * first_cpu - begin_cpu - second_cpu,
}}))
"""

PARTS = {
    "n4": OURS.format(
        imports="from octane.n4 import fit",
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
        "PYTHONPATH": str(PROJECT / "bin"),
    }
    found = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    return json.loads(found.stdout)


def summary(runs: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Return median and smallest of every figure; the latter is nearest to an idle machine's."""
    return {
        name: {
            "median": round(statistics.median(run[name] for run in runs), 4),
            "smallest": round(min(run[name] for run in runs), 4),
        }
        for name in runs[0]
    }


def startup(quick: bool) -> dict[str, object]:
    """Time the commands with ``--help``, and the first calls of octane's parts."""
    repeats = 3 if quick else 5
    plain: list[dict[str, float]] = []
    cold: dict[str, list[dict[str, float]]] = {name: [] for name in PARTS}
    warm: dict[str, list[dict[str, float]]] = {name: [] for name in PARTS}
    commands: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(repeats):
        for name, seconds in commands.items():
            script = PROJECT / "bin" / f"{name}.py"
            seconds.append(run([sys.executable, script, "--help"]).seconds)
        with tempfile.TemporaryDirectory() as folder:
            cache = Path(folder)
            plain.append(measure(NUMPY, cache))
            for name, script in PARTS.items():
                cold[name].append(measure(script, cache))
                warm[name].append(measure(script, cache))
    return {
        "unit": "s",
        "repeats": repeats,
        "commands": {name: statistics.median(found) for name, found in commands.items()},
        "numpy_alone": summary(plain),
        **{
            name: {"empty_cache": summary(cold[name]), "full_cache": summary(warm[name])}
            for name in PARTS
        },
    }
