"""Checks on a GPU: the tests, memory and races, shared leases, hardware counters."""

import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from _common import PROJECT, RESULTS, scratch_folder

TESTS = PROJECT / "tests" / "gpu"
PYTEST = ("-m", "pytest", "-p", "pytest_timeout", "-p", "no:cacheprovider", "-q")
# CuPy's memory pool would hide accesses out of bounds.
UNPOOLED = """
import sys, cupy, pytest
cupy.cuda.set_allocator(None)
sys.exit(pytest.main(sys.argv[1:]))
"""

SANITIZER = {
    "memcheck_n4": ("memcheck", "test_n4_gpu.py", ""),
    "memcheck_resample": ("memcheck", "test_resample_gpu.py", "not command"),
    "racecheck_n4": (
        "racecheck",
        "test_n4_gpu.py",
        "bins or sharpening or running_mean or shape0 or minimum",
    ),
    "synccheck_n4": ("synccheck", "test_n4_gpu.py", "bins or sharpening or running_mean or shape0"),
    "initcheck_n4": ("initcheck", "test_n4_gpu.py", "shape0 or shape1 or running_mean"),
}
"""Tool, file and selection of tests. RESAMPLE's kernel uses no shared memory that could race."""

COUNTED = "regex:count_bins|sharpen|contract|expand|update|finish|apply|band"

HOLDER = """
import json, os, sys, time, cupy
start = time.time()
memory = cupy.zeros(int(sys.argv[1]), cupy.uint8)
cupy.cuda.Device().synchronize()
free, _ = cupy.cuda.runtime.memGetInfo()
time.sleep(float(sys.argv[2]))
gpu = os.environ["CUDA_VISIBLE_DEVICES"]
print(json.dumps({"gpu": gpu, "free": free, "from": start, "to": time.time()}))
"""
"""Program that holds bytes of a GPU (first argument) for seconds (second argument)."""


class Done(NamedTuple):
    """A program that has ended, or was stopped at its time limit (exit code 124)."""

    exit_code: int
    seconds: float
    output: str

    def record(self) -> dict[str, object]:
        """Return its figures with the last line of its output; print the whole output."""
        sys.stdout.write(self.output)
        last = self.output.strip().rpartition("\n")[2]
        return {"exit_code": self.exit_code, "seconds": self.seconds, "last_line": last}


def limited(seconds: int, *command: str | Path) -> Done:
    """Run a program, and stop it and its children after some seconds.

    pytest loads only the plugins that are named: a machine may have others, of other versions.
    """
    start = time.perf_counter()
    done = subprocess.run(
        ["timeout", "--kill-after=5", str(seconds), *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        cwd=PROJECT,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )
    return Done(done.returncode, time.perf_counter() - start, done.stdout)


def left_out(tool: str) -> dict[str, object]:
    """Return the record of a check whose tool is missing."""
    return {"left_out": f"{tool} was not found on the PATH; it comes with the CUDA toolkit"}


def tests(quick: bool) -> dict[str, object]:
    """Run tests/gpu, except the tests of Nextflow, the benchmarks and tools/first_run.sh.

    Meanwhile test_compile.py, which uses no GPU, compiles the kernels for all generations.
    """
    others = ("workflow_gpu", "benchmarks", "first_run", "compile")
    left = [f"--ignore={TESTS / f'test_{name}.py'}" for name in others]
    suites = {
        "gpu": ["-o", "timeout=120", "--durations=8", *left, TESTS],
        "compile": [TESTS / "test_compile.py"],
    }
    if quick:
        suites = {"gpu": [TESTS / "test_pinned.py"]}
    with ThreadPoolExecutor() as pool:
        done = pool.map(
            lambda chosen: limited(320, sys.executable, *PYTEST, *chosen), suites.values()
        )
        return summary(dict(zip(suites, done, strict=True)))


def summary(done: dict[str, Done]) -> dict[str, object]:
    """Return whether all programs have passed, and their records."""
    return {
        "passed": all(one.exit_code == 0 for one in done.values()),
        "runs": {name: one.record() for name, one in done.items()},
    }


def sanitizer(quick: bool) -> dict[str, object]:
    """Run CUDA's compute-sanitizer on the kernels' tests, all tools side by side.

    A quick run only collects the tests.
    """
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        return left_out("compute-sanitizer")

    def checked(name: str) -> Done:
        kind, file, selection = SANITIZER[name]
        return limited(
            220,
            *(tool, "--error-exitcode", "9", "--target-processes", "application-only"),
            *("--tool", kind, sys.executable, "-c", UNPOOLED, *PYTEST[2:], "-o", "timeout=600"),
            *(["--collect-only"] if quick else []),
            *(TESTS / file, "-k", selection),
        )

    with ThreadPoolExecutor(len(SANITIZER)) as pool:
        return summary(dict(zip(SANITIZER, pool.map(checked, SANITIZER), strict=True)))


def leases(xp: ModuleType, quick: bool) -> dict[str, object]:
    """Let three processes share a GPU that has slots and memory for two of them.

    The third must wait until one of the others has ended.
    """
    total = xp.cuda.Device().mem_info[1]
    reserved, used, seconds = (10**9, 10**6, 2) if quick else (int(0.37 * total), total // 4, 12)
    slot = [sys.executable, PROJECT / "bin" / "gpu_slot.py", "--gpu_slots", "2"]
    # Of several GPUs, the same for all three.
    one = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": one}
    command = [*slot, "--backend", "gpu", "--gpu_timeout", "60", "--memory", f"{reserved}B", "--"]
    holders = [
        subprocess.Popen(
            [*command, sys.executable, "-c", HOLDER, str(used), str(seconds)],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for _ in range(3)
    ]
    time.sleep(seconds)
    sys.stdout.write(limited(20, *slot, "--status").output)
    outputs = [holder.communicate(timeout=120)[0] for holder in holders]
    if any(holder.returncode for holder in holders):
        return {"passed": False, "exit_codes": [holder.returncode for holder in holders]}
    held = sorted((json.loads(output) for output in outputs), key=lambda one: one["from"])
    return {
        "passed": held[2]["from"] >= min(one["to"] for one in held[:2]),
        "memory_bytes": reserved,
        "holders": held,
    }


def counters(quick: bool) -> dict[str, object]:
    """Profile each kernel once with Nsight Compute, into ncu.ncu-rep and ncu.csv."""
    tool = shutil.which("ncu")
    if tool is None:
        return left_out("ncu")
    folder = scratch_folder() if quick else RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    report, table = folder / "ncu.ncu-rep", folder / "ncu.csv"
    script = [sys.executable, PROJECT / "benchmarks" / "_gpu_kernels.py"]
    done = limited(
        180,
        *(tool, "--clock-control", "none", "--set", "full", "--kernel-name", COUNTED),
        *("--force-overwrite", "--export", report, *script, *(["quick"] if quick else [])),
    )
    if done.exit_code == 0:
        read = limited(60, tool, "--import", report, "--page", "details", "--csv")
        table.write_text(read.output, encoding="utf-8")
    return {"passed": done.exit_code == 0, **done.record()}
