"""Programs in separate processes: their output, their seconds and their peak memory."""

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
from python_path import python_path

POLL_S = 0.01


@dataclass(frozen=True)
class Run:
    """A program that has ended.

    Attributes
    ----------
    output
        Its standard output.
    seconds, cpu_seconds
        Wall time, and CPU time on all cores, including that of its child processes.
    peak_bytes
        Peak of resident memory.
    """

    output: str
    seconds: float
    cpu_seconds: float
    peak_bytes: int


def run(
    command: Sequence[str | Path],
    *,
    limit: int | None = None,
    environment: Mapping[str, str] | None = None,
    cores: int | None = None,
    folder: Path | None = None,
) -> Run:
    """Run a program to its end.

    The peak is the kernel's high-water mark of the program; getrusage would include that of the
    process that starts it.

    Parameters
    ----------
    command
        The program and its arguments.
    limit
        Bytes of memory that it may map for writing, touched or not (RLIMIT_DATA). Mapped files
        count in the peak, but not here.
    environment
        Variables in addition to those of this process.
    cores
        Number of cores that it may use; by default all of this process's.
    folder
        Working folder.

    Raises
    ------
    RuntimeError
        If it fails; the message is the end of its error output.
    """
    allowed = sorted(os.sched_getaffinity(0))[:cores]

    def restrict() -> None:
        os.sched_setaffinity(0, allowed)
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))

    peak = 0
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        start, spent = time.perf_counter(), _cpu_seconds()
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=errors,
            env={**os.environ, **(environment or {})},
            cwd=folder,
            preexec_fn=None if cores is None and limit is None else restrict,
        )
        status = Path(f"/proc/{process.pid}/status")
        while process.poll() is None:
            peak = max(peak, _high_water(status))
            time.sleep(POLL_S)
        seconds = time.perf_counter() - start
        if process.returncode:
            errors.seek(0)
            output.seek(0)
            # Nextflow writes its errors to standard output.
            raise RuntimeError(
                f"{_name(command)} failed: {(errors.read() or output.read())[-2000:]}"
            )
        output.seek(0)
        return Run(output.read(), seconds, _cpu_seconds() - spent, peak)


def run_workflow(checkout: Path, flags: str, folder: Path) -> Run:
    """Run the workflow of a checkout, which must be set up, in a folder; errors as in :func:`run`.

    With the checkout's own Nextflow, which its environment adds if PATH lacks one.
    """
    places = os.environ["PATH"].split(":")
    path = ":".join(place for place in places if not place.endswith("tools/nextflow"))
    line = f"source '{checkout}/tools/env.sh' && nextflow run '{checkout}/main.nf' {flags}"
    return run(["bash", "-c", line], environment={"PATH": path}, folder=folder)


def run_script(
    script: str,
    request: Mapping[str, object],
    *,
    python: Path | None = None,
    checkout: Path = PROJECT,
    cores: int,
) -> tuple[dict, Run]:
    """Run a script in this folder, whose last line of output is JSON.

    Parameters
    ----------
    script
        The file's name.
    request
        Passed to the script as JSON; paths become text.
    python
        The Python that runs it, if not the project's own.
    checkout
        The checkout whose octane the script imports.
    cores
        Number of cores that it may use.
    """
    path = PROJECT / "benchmarks" / script
    found = run(
        [python or sys.executable, path, json.dumps(request)],
        environment=python_path(checkout / "bin") if python is None else None,
        cores=cores,
    )
    return json.loads(found.output.strip().splitlines()[-1]), found


def _name(command: Sequence[str | Path]) -> str:
    """Return the script among the first words of a command, else the program."""
    return next((Path(word).name for word in command[:2] if str(word).endswith(".py")), "a program")


def _cpu_seconds() -> float:
    """Return the CPU seconds of all programs that this process started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _high_water(status: Path) -> int:
    """Return the peak of resident memory so far in bytes, 0 once the process has ended."""
    for line in status.read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0
