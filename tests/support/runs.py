"""Finished and ongoing runs of Nextflow, and checksums to compare their results."""

import csv
import hashlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import zarr

PATIENCE = 240.0
"""Seconds after which waiting fails."""


def waited(condition: Callable[[], object], what: str) -> object:
    """Wait until a condition is true, and return its value."""
    limit = time.monotonic() + PATIENCE
    while time.monotonic() < limit:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"waited {PATIENCE:g} s for {what}")


def voxels(store: Path, level: str = "0") -> np.ndarray:
    """All voxels of a level of a store."""
    return np.asarray(zarr.open_array(store, path=level, mode="r")[:])


def contents(folder: Path) -> dict[str, bytes]:
    """Contents of all files below a folder by relative path, following links."""
    return {
        Path(root, name).relative_to(folder).as_posix(): Path(root, name).read_bytes()
        for root, _, names in os.walk(folder, followlinks=True)
        for name in names
    }


def checksums(outdir: Path, subject: str = "*") -> dict[str, str]:
    """Checksums of the decoded voxels of every level of every resulting volume."""
    found = {}
    for store in sorted(outdir.glob(f"{subject}/[!.]*.ome.zarr")):
        for level in sorted(p.parent.name for p in store.glob("*/zarr.json")):
            values = voxels(store, level)
            found[f"{store.name}/{level}"] = hashlib.sha256(
                f"{values.dtype} {values.shape} ".encode() + values.tobytes()
            ).hexdigest()
    return found


def last_words(output: str) -> str:
    """Sentences at the end of a stopped run, after Nextflow's own lines."""
    *_, words = re.split(r"(?m)octane stopped: |^(?:\[../.{6}\]|Launching|ERROR ~) .*\n", output)
    if not words.strip():
        raise AssertionError(f"the run does not say why it stopped:\n{output}")
    return words.strip()


def partial_files(*folders: Path) -> list[Path]:
    """Incomplete files left under a temporary name."""
    return [p for folder in folders for p in folder.rglob(".partial-*")]


def whole(folder: Path) -> list[Path]:
    """Stores with their final name in a work directory; each is read to check it is complete."""
    found = [store for store in folder.glob("??/*/*.ome.zarr") if not store.is_symlink()]
    for store in found:
        for level in store.glob("*/zarr.json"):
            voxels(store, level.parent.name)
    return found


@contextmanager
def changed(path: Path, content: bytes | None) -> Generator[None]:
    """Change a file's content or remove it within the block; then restore it with its times."""
    kept, own, above = path.read_bytes(), path.stat(), path.parent.stat()
    path.unlink()
    if content is not None:
        path.write_bytes(content)
        os.utime(path.parent, ns=(above.st_atime_ns, above.st_mtime_ns))
    try:
        yield
    finally:
        path.write_bytes(kept)
        os.utime(path, ns=(own.st_atime_ns, own.st_mtime_ns))
        os.utime(path.parent, ns=(above.st_atime_ns, above.st_mtime_ns))


@dataclass(frozen=True)
class Run:
    """A finished run of Nextflow: its launch folder, results, exit code and output."""

    folder: Path
    outdir: Path
    code: int
    output: str

    @property
    def trace(self) -> list[dict[str, str]]:
        """Nextflow's trace of the tasks; empty if the run ended before any.

        A refused run leaves no trace: its tasks' names and states are those in Nextflow's log.
        """
        path = self.outdir / "pipeline_info" / "trace.txt"
        if not path.exists():
            log = (self.folder / ".nextflow.log").read_text(encoding="utf-8")
            ended = re.findall(r"Task completed > .*?name: (?:\w+:)*(.*?); status: (\w+);", log)
            return [{"name": name, "status": status} for name, status in ended]
        with path.open(newline="", encoding="utf-8") as stream:
            rows = sorted(csv.DictReader(stream, delimiter="\t"), key=lambda r: int(r["task_id"]))
        return [row | {"name": re.sub(r"^[A-Z0-9_:]*:", "", row["name"])} for row in rows]

    def tasks(self, status: str | None = None) -> list[str]:
        """Names of the tasks, such as ``N4 (sub-01)``, of one status or all."""
        return sorted(row["name"] for row in self.trace if status in (None, row["status"]))

    def processes(self, status: str | None = None) -> set[str]:
        """Names of the processes, of one status or all."""
        return {task.split(" ", maxsplit=1)[0] for task in self.tasks(status)}

    def tries(self, task: str, *fields: str) -> list[tuple[str, ...]]:
        """Status and other fields of each attempt at tasks whose name contains ``task``."""
        return [
            tuple(row[field] for field in ("status", *fields))
            for row in self.trace
            if task in row["name"]
        ]

    def task_file(self, task: str, name: str) -> Path:
        """A file in the work folder of the last task whose name contains ``task``."""
        digest = next(row["hash"] for row in reversed(self.trace) if task in row["name"])
        (found,) = (self.folder / "work").glob(f"{digest}*/{name}")
        return found

    def wrapper(self, task: str) -> str:
        """Text of Nextflow's wrapper script of a task."""
        return self.task_file(task, ".command.run").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Started:
    """A running Nextflow in a separate session; its output goes to the stream."""

    folder: Path
    outdir: Path
    process: subprocess.Popen[bytes]
    stream: IO[bytes]

    @property
    def output(self) -> str:
        """Output so far; not by a seek, because the process writes at the same place."""
        size = os.fstat(self.stream.fileno()).st_size
        return os.pread(self.stream.fileno(), size, 0).decode("utf-8", "replace")

    def wait(self) -> Run:
        """Wait for the end, and return the finished run."""
        try:
            code = self.process.wait(540)
        finally:
            self.process.kill()
            self.process.wait()
        return Run(self.folder, self.outdir, code, self.output)

    def says(self, text: str) -> None:
        """Wait until the output contains a text."""
        waited(lambda: text in self.output or self.process.poll() is not None, f"'{text}'")
        assert text in self.output, self.output

    def processes(self) -> Iterator[tuple[int, list[str]]]:
        """PIDs and command lines of all processes in the run's session."""
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdigit() and os.getsid(int(entry.name)) == self.process.pid:
                    line = (entry / "cmdline").read_bytes().decode(errors="replace")
                    # A zombie has none.
                    if line:
                        yield int(entry.name), line.rstrip("\0").split("\0")

    def launcher(self) -> int:
        """PID of Nextflow's Java; a child that it has just forked has the same command line."""
        found = (pid for pid, w in self.processes() if w[0].endswith("java") and len(w) > 5)
        return min(found)

    def of_task(self, part: str, script: str) -> int:
        """Wait for a process of the task that runs a script such as ``n4.py``; return its PID.

        ``part`` is ``python``, ``.command.sh`` or ``.command.run``: the program, the shell script
        that starts it, or the wrapper around both.
        """

        def found() -> int | None:
            lines = dict(self.processes())
            above = [p for p, words in lines.items() if words[1:2] and script in words[1]][:1]
            if part == "python" or not above:
                return above[0] if above else None
            while parent(above[-1]) in lines:
                above.append(parent(above[-1]))
            # The wrapper calls itself with the name of a function, and its subshells have its
            # command line: take the outermost.
            return next((p for p in reversed(above) if lines[p][-1].endswith(part)), None)

        pid = waited(found, f"the {part} of {script}")
        assert isinstance(pid, int)
        return pid

    @contextmanager
    def paused(self) -> Generator[None]:
        """Stop Nextflow within the block, so that fast tasks cannot end the run."""
        pid = self.launcher()
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def orphans(self) -> list[list[str]]:
        """Command lines of processes that Nextflow left running."""
        return [words for pid, words in self.processes() if pid != self.process.pid]

    def kill(self) -> None:
        """Kill Nextflow's Java, as the kernel does when memory runs out."""
        os.kill(self.launcher(), signal.SIGKILL)
        self.process.wait(timeout=60)

    def kill_all(self) -> None:
        """Kill all processes of the run."""
        for pid, _ in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(timeout=60)


def parent(pid: int) -> int:
    """PID of a process's parent; 0 if the process is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
