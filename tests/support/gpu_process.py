"""Code in a separate process, whose CUDA starts with environment variables of the test."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from python_path import python_path

PROJECT = Path(__file__).resolve().parents[2]

PRELUDE = """
import json, logging, os, sys
from pathlib import Path
import numpy as np
from octane.config.parameters import LeaseParameters
from octane.core.metrics import Metrics
from octane.gpu import run
from octane.gpu.device import CupyDevice
from octane.gpu.lease import lease
from octane.gpu import nvml

folder = Path(sys.argv[1])
logging.basicConfig(filename=folder / "log", level=logging.INFO)
os.environ["OCTANE_GPU_LOCK_DIR"] = str(folder / "leases")
sharing = LeaseParameters(gpu_timeout=60)

def on_device(work, backend="auto", batch=1, bytes=10**8):
    metrics = Metrics("test")
    more = {"sharing": sharing, "metrics": metrics, "subject": "test"}
    result = run.on_device(work, lambda _: bytes, batch=batch, backend=backend, **more)
    return result, [attempt["outcome"] for attempt in metrics.figures["gpu"]["attempts"]]
"""
"""First lines of such code: leases and a log in the test's folder, and work on a GPU."""


def run_process(
    folder: Path, code: str, *arguments: str, **variables: str | None
) -> subprocess.CompletedProcess[str]:
    """Run code after the prelude; the folder is its first argument. None unsets a variable."""
    changed = {**os.environ, **python_path(PROJECT / "bin"), **variables}
    return subprocess.run(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(code), folder, *arguments],
        env={name: value for name, value in changed.items() if value is not None},
        capture_output=True,
        text=True,
        timeout=500,
    )


def printed(folder: Path, code: str, *arguments: str, **variables: str | None) -> list[str]:
    """Words that the code prints; it must succeed and write nothing to standard error."""
    done = run_process(folder, code, *arguments, **variables)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout.split()
