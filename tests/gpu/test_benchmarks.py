"""benchmarks/gpu.py: copies, N4 and RESAMPLE on a device; test_first_run.py has the other parts."""

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

PARTS = ("transfers", "cold_start", "n4", "resample")
pytestmark = pytest.mark.slow


@pytest.fixture
def gpu_py(tmp_path):
    """Run the benchmark; it writes into its own folder."""
    environment = {
        **os.environ,
        "OCTANE_BENCH_DIR": str(tmp_path / "data"),
        "OCTANE_BENCH_RESULTS": str(tmp_path / "results"),
        "OCTANE_GPU_LOCK_DIR": str(tmp_path / "leases"),
    }

    def run(*words, **variables):
        return subprocess.run(
            [sys.executable, BENCHMARKS / "gpu.py", *words],
            env=environment | variables, capture_output=True, text=True, check=False,
        )  # fmt: skip

    return run


def record_of(tmp_path):
    return json.loads((tmp_path / "data" / "gpu_quick.json").read_text(encoding="utf-8"))


@pytest.mark.soak
def test_each_part_runs_and_says_on_which_device_and_of_which_commit(gpu_py, cupy, tmp_path):
    done = gpu_py("--quick", "--only", *PARTS, OCTANE_COMMIT="0123abc")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    record = record_of(tmp_path)
    assert record.keys() == set(PARTS)
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
    assert case["in_memory"].keys() == {"gpu", "gpu_page_locked", "cpu"}
    for command in ("n4", "resample"):
        found = record["cold_start"]["command_seconds"][command]
        assert found.keys() == {"empty", "warm"}
    # The table in the documentation is made from the same figures.
    (tmp_path / "gpu.json").write_text(json.dumps(record), encoding="utf-8")
    assert TABLES["gpu"](tmp_path).startswith("| ")


@pytest.mark.emulated
def test_figures_of_an_emulated_gpu_are_not_written(gpu_py, tmp_path):
    done = gpu_py("--only", "transfers")
    assert done.returncode == 3
    assert "gpu was not measured: CUDA is emulated, which only --quick supports" in done.stderr
    assert not (tmp_path / "results").exists()


@pytest.mark.emulated  # which has the project's own packages; pytest may load more elsewhere
def test_it_needs_only_the_listed_packages():
    code = """
import runpy, sys
from importlib.metadata import packages_distributions
import pytest
assert pytest.main(["-q", "-p", "no:cacheprovider", "--collect-only", "../tests/gpu"]) == 0
import _gpu_checks, _gpu_commands, _gpu_kernels
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
    # Loaded if installed, but not needed.
    others |= {"fsspec", "charset-normalizer", "platformdirs", "pytest-xdist", "execnet"}
    assert needed - others <= carried.keys()
    assert {"pydantic", "pytest", "zarr"} <= needed
    # The tests have run with these versions.
    tested = (PROJECT / "requirements" / "test.txt").read_text(encoding="utf-8")
    assert carried.items() <= dict(re.findall(r"(?m)^(\S+)==(\S+)", tested)).items()
