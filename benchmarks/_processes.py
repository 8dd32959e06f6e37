"""Programs as processes of their own: what they print, how long they take, their peak memory."""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from _common import PROJECT

__all__ = ["Run", "run", "run_script"]

POLL_S = 0.01


@dataclass(frozen=True)
class Run:
    """How a program ended: what it printed, wall seconds, peak of resident memory in bytes."""

    output: str
    seconds: float
    peak_bytes: int


def run(
    command: Sequence[str | Path],
    *,
    limit: int | None = None,
    environment: Mapping[str, str] | None = None,
    cores: int | None = None,
) -> Run:
    """Run a program to its end.

    The peak is the kernel's own high-water mark of this process: getrusage would hand down that of
    the process that started it.

    Parameters
    ----------
    command
        The program and its arguments.
    limit
        Bytes that it may map to write in, touched or not (RLIMIT_DATA): stricter than a limit on
        resident memory, and needs no rights. It leaves out the files that are mapped, which the
        peak has.
    environment
        Added to this process's own.
    cores
        How many of this process's cores it may use; all unless given.

    Raises
    ------
    RuntimeError
        When it fails; with the end of what it said.
    """
    allowed = sorted(os.sched_getaffinity(0))[:cores]

    def restrict() -> None:
        os.sched_setaffinity(0, allowed)
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))

    peak = 0
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        start = time.perf_counter()
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=errors,
            env={**os.environ, **(environment or {})},
            preexec_fn=None if cores is None and limit is None else restrict,
        )
        status = Path(f"/proc/{process.pid}/status")
        while process.poll() is None:
            peak = max(peak, _high_water(status))
            time.sleep(POLL_S)
        seconds = time.perf_counter() - start
        if process.returncode:
            errors.seek(0)
            raise RuntimeError(f"{_name(command)} failed: {errors.read()[-2000:]}")
        output.seek(0)
        return Run(output.read(), seconds, peak)


def run_script(
    script: str, request: Mapping[str, object], *, python: Path | None = None, cores: int
) -> tuple[dict, Run]:
    """Run one of the scripts beside this file; what it prints last is JSON.

    Parameters
    ----------
    script
        The file's name.
    request
        Given to the script as JSON; paths as text.
    python
        The Python that runs it, where it is not the project's own.
    cores
        How many it may use.
    """
    path = PROJECT / "benchmarks" / script
    found = run(
        [python or sys.executable, path, json.dumps(request)],
        environment={"PYTHONPATH": str(PROJECT / "bin")} if python is None else None,
        cores=cores,
    )
    return json.loads(found.output.strip().splitlines()[-1]), found


def _name(command: Sequence[str | Path]) -> str:
    """The script among a command's first words, else the program."""
    return next((Path(word).name for word in command[:2] if str(word).endswith(".py")), "a program")


def _high_water(status: Path) -> int:
    """Most resident memory so far, in bytes; 0 once the process has ended."""
    for line in status.read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0
