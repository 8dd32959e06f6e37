"""What compiled loops cost a process that has just started: numba's import, and the cache.

Every figure is from processes of their own: one that imports NumPy alone, and ones that import a
part of octane, N4 or resampling, and use it on a small volume, with an empty cache and with a full
one. What the kernels add is the time of the first call less that of the second; in CPU seconds too,
which other work on the machine changes less.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from _common import PROJECT, save

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
    """Run a script in a fresh process."""
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
    """Median and smallest of every figure, seconds; the latter is nearest to an idle machine's."""
    return {
        name: {
            "median": round(statistics.median(run[name] for run in runs), 4),
            "smallest": round(min(run[name] for run in runs), 4),
        }
        for name in runs[0]
    }


def main() -> None:
    """Measure and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    quick = parser.parse_args().quick
    repeats = 3 if quick else 5
    plain: list[dict[str, float]] = []
    cold: dict[str, list[dict[str, float]]] = {name: [] for name in PARTS}
    warm: dict[str, list[dict[str, float]]] = {name: [] for name in PARTS}
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            cache = Path(folder)
            plain.append(measure(NUMPY, cache))
            for name, script in PARTS.items():
                cold[name].append(measure(script, cache))
                warm[name].append(measure(script, cache))
    save(
        "warmup",
        {
            "unit": "s",
            "repeats": repeats,
            "numpy_alone": summary(plain),
            **{
                name: {"empty_cache": summary(cold[name]), "full_cache": summary(warm[name])}
                for name in PARTS
            },
        },
        quick=quick,
    )


if __name__ == "__main__":
    main()
