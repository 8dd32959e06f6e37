"""benchmarks/gpu.py, the first run on a device: its parts, and what it writes."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
BENCHMARKS = PROJECT / "benchmarks"
sys.path.append(str(BENCHMARKS))

from _tables import TABLES  # noqa: E402

PARTS = {"tests", "transfers", "cold_start", "n4", "resample", "memcheck", "racecheck"}
pytestmark = pytest.mark.slow

SANITIZER = """#!/bin/bash
while [[ $1 == --* ]]; do printf '%s ' "$1" "$2" >> "$NOTED"; shift 2; done
"$@" || exit
echo "7 passed in 1.00s"
echo "========= ERROR SUMMARY: $ERRORS errors"
exit $((ERRORS ? 9 : 0))
"""
"""A stand-in, which has the tests that it is given found, and not run."""


@pytest.fixture
def gpu_py(tmp_path):
    """Run the benchmark, with all that it writes in a folder of its own."""
    sanitizer = tmp_path / "compute-sanitizer"
    sanitizer.write_text(SANITIZER, encoding="utf-8")
    sanitizer.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PYTEST_ADDOPTS": "--collect-only",
        "OCTANE_BENCH_DIR": str(tmp_path / "data"),
        "OCTANE_BENCH_RESULTS": str(tmp_path / "results"),
        "OCTANE_GPU_LOCK_DIR": str(tmp_path / "leases"),
        "NOTED": str(tmp_path / "noted"),
        "ERRORS": "0",
    }

    def run(*words, **variables):
        return subprocess.run(
            [sys.executable, BENCHMARKS / "gpu.py", *words],
            env=environment | variables, capture_output=True, text=True, check=False,
        )  # fmt: skip

    return run


def record_of(tmp_path):
    return json.loads((tmp_path / "data" / "gpu_quick.json").read_text(encoding="utf-8"))


def test_every_part_runs_and_says_on_which_device_and_of_which_commit(gpu_py, cupy, tmp_path):
    done = gpu_py("--quick", OCTANE_COMMIT="0123abc")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    record = record_of(tmp_path)
    assert record.keys() == PARTS
    name = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    for part in record.values():
        assert part["commit"] == "0123abc"
        assert part["device"]["device"] == name
        assert part["device"]["driver"]
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", part["date"])
    assert {case["memory"] for case in record["transfers"]["cases"]} == {"pageable", "pinned"}
    (case,) = record["n4"]["cases"]
    # The fit of so few voxels follows every rounding error.
    assert case["largest_difference_of_log_fields"] < 0.1
    assert case["host_to_host"]["median"] > 0
    assert case["estimate"]["seconds"]["total"] > case["estimate"]["seconds"]["fit"]
    for command in ("n4", "resample"):
        found = record["cold_start"]["command_seconds"][command]
        assert found.keys() == {"empty", "warm"}
    assert record["tests"]["passed"]
    assert record["memcheck"]["summary"] == "7 passed in 1.00s; ERROR SUMMARY: 0 errors"
    assert record["racecheck"]["passed"]
    noted = (tmp_path / "noted").read_text(encoding="utf-8")
    assert re.findall(r"--tool (\w+) --error-exitcode [1-9]", noted) == ["memcheck", "racecheck"]
    # The tables of the documentation are made of the same figures.
    (tmp_path / "gpu.json").write_text(json.dumps(record), encoding="utf-8")
    for table in (name for name in TABLES if name.startswith("gpu-")):
        assert TABLES[table](tmp_path).startswith("| ")


def test_a_part_that_fails_takes_nothing_from_the_others(gpu_py, tmp_path):
    done = gpu_py("--quick", "--only", "memcheck", "transfers", ERRORS="3")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "These parts failed: memcheck."
    record = record_of(tmp_path)
    assert record.keys() == {"memcheck", "transfers"}
    assert record["memcheck"]["passed"] is False
    assert "3 errors" in record["memcheck"]["summary"]


@pytest.mark.emulated
def test_figures_of_an_emulated_gpu_are_not_written(gpu_py, tmp_path):
    done = gpu_py("--only", "transfers", "tests")
    assert done.returncode == 3
    assert "gpu was not measured: CUDA is emulated, which only --quick takes" in done.stderr
    assert not (tmp_path / "results").exists()


@pytest.mark.emulated  # which has the project's own packages; pytest may load more elsewhere
def test_it_needs_no_other_packages_than_those_that_are_named():
    code = """
import runpy, sys
from importlib.metadata import packages_distributions
import pytest
assert pytest.main(["-q", "-p", "no:cacheprovider", "--collect-only", "../tests/gpu"]) == 0
import gpu
sys.path.insert(0, "../bin")
for command in ("n4", "resample"):
    sys.argv = [command, "--help"]
    try:
        runpy.run_module(command, run_name="__main__")
    except SystemExit:
        pass
loaded = {module.partition(".")[0] for module in sys.modules}
of = packages_distributions()
print(*{name.lower().replace("_", "-") for module in loaded for name in of.get(module, ())})
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=BENCHMARKS, capture_output=True, text=True, check=True
    )
    text = (PROJECT / "requirements" / "first-run.txt").read_text(encoding="utf-8")
    carried = dict(re.findall(r"(?m)^(\S+)==(\S+)", text))
    needed = set(done.stdout.splitlines()[-1].split())
    others = {name for name in needed if name.startswith(("cupy", "cuda-"))}
    others |= {"numpy", "scipy", "numba", "llvmlite", "setuptools"}
    # Loaded where they are, and needed by none.
    others |= {"fsspec", "charset-normalizer", "pytest-xdist", "execnet"}
    assert needed - others <= carried.keys()
    assert {"pydantic", "pytest", "zarr"} <= needed
    # The tests have run with these versions.
    tested = (PROJECT / "requirements" / "test.txt").read_text(encoding="utf-8")
    assert carried.items() <= dict(re.findall(r"(?m)^(\S+)==(\S+)", tested)).items()
