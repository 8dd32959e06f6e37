"""Runs of Nextflow, ended or going on, and what their results are compared by."""

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
"""Seconds after which something that was waited for is taken as failed."""


def waited(condition: Callable[[], object], what: str) -> object:
    """Wait until something holds, and give it."""
    limit = time.monotonic() + PATIENCE
    while time.monotonic() < limit:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"{what} did not come about in {PATIENCE:g} s")


def voxels(store: Path, level: str = "0") -> np.ndarray:
    """All voxels of a level of a store."""
    return np.asarray(zarr.open_array(store, path=level, mode="r")[:])


def contents(folder: Path) -> dict[str, bytes]:
    """All files below a folder, links followed."""
    return {
        Path(root, name).relative_to(folder).as_posix(): Path(root, name).read_bytes()
        for root, _, names in os.walk(folder, followlinks=True)
        for name in names
    }


def checksums(outdir: Path, subject: str = "*") -> dict[str, str]:
    """Of the decoded voxels of every level of every volume that is a result."""
    found = {}
    for store in sorted(outdir.glob(f"{subject}/[!.]*.ome.zarr")):
        for level in sorted(p.parent.name for p in store.glob("*/zarr.json")):
            values = voxels(store, level)
            found[f"{store.name}/{level}"] = hashlib.sha256(
                f"{values.dtype} {values.shape} ".encode() + values.tobytes()
            ).hexdigest()
    return found


def last_words(output: str) -> str:
    """The sentences that a stopped run ends with: those after Nextflow's own lines."""
    *_, words = re.split(r"(?m)octane stopped: |^(?:\[../.{6}\]|Launching|ERROR ~) .*\n", output)
    if not words.strip():
        raise AssertionError(f"it does not say why it stopped:\n{output}")
    return words.strip()


def partial_files(*folders: Path) -> list[Path]:
    """Return files left half-written under a temporary name."""
    return [p for folder in folders for p in folder.rglob(".partial-*")]


def whole(folder: Path) -> list[Path]:
    """Stores of a work directory that have their name, and are read to see that they are whole."""
    found = [store for store in folder.glob("??/*/*.ome.zarr") if not store.is_symlink()]
    for store in found:
        for level in store.glob("*/zarr.json"):
            voxels(store, level.parent.name)
    return found


@contextmanager
def changed(path: Path, content: bytes | None) -> Generator[None]:
    """A file with other content, or gone; all is put back at the end, its times as well."""
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
    """A run of Nextflow that has ended, where it was launched, its results and all it said."""

    folder: Path
    outdir: Path
    code: int
    output: str

    @property
    def trace(self) -> list[dict[str, str]]:
        """Nextflow's record of the tasks; none when it did not get that far."""
        path = self.outdir / "pipeline_info" / "trace.txt"
        if not path.exists():
            return []
        with path.open(newline="", encoding="utf-8") as stream:
            rows = sorted(csv.DictReader(stream, delimiter="\t"), key=lambda r: int(r["task_id"]))
        return [row | {"name": re.sub(r"^[A-Z0-9:]*:", "", row["name"])} for row in rows]

    def tasks(self, status: str | None = None) -> list[str]:
        """Names of the tasks, ``N4 (sub-01)``, of one status or all."""
        return sorted(row["name"] for row in self.trace if status in (None, row["status"]))

    def processes(self, status: str | None = None) -> set[str]:
        """Names of the processes, of one status or all."""
        return {task.split(" ", maxsplit=1)[0] for task in self.tasks(status)}

    def tries(self, task: str, *fields: str) -> list[tuple[str, ...]]:
        """Status and other fields of each attempt of the tasks of such a name."""
        return [
            tuple(row[field] for field in ("status", *fields))
            for row in self.trace
            if task in row["name"]
        ]

    def task_file(self, task: str, name: str) -> Path:
        """A file in the work directory of a task, of the last one of such a name."""
        digest = next(row["hash"] for row in reversed(self.trace) if task in row["name"])
        (found,) = (self.folder / "work").glob(f"{digest}*/{name}")
        return found

    def wrapper(self, task: str) -> str:
        """Text of what Nextflow starts for a task."""
        return self.task_file(task, ".command.run").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Started:
    """A run of Nextflow that goes on, in a separate session; the stream takes all it says."""

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
        """The run when it has ended."""
        try:
            code = self.process.wait(540)
        finally:
            self.process.kill()
            self.process.wait()
        return Run(self.folder, self.outdir, code, self.output)

    def says(self, text: str) -> None:
        """Wait until it has said something."""
        waited(lambda: text in self.output or self.process.poll() is not None, f"'{text}'")
        assert text in self.output, self.output

    def processes(self) -> Iterator[tuple[int, list[str]]]:
        """Numbers and command lines of its processes and of all that they started."""
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdigit() and os.getsid(int(entry.name)) == self.process.pid:
                    line = (entry / "cmdline").read_bytes().decode(errors="replace")
                    # One that has ended and is not waited for has none.
                    if line:
                        yield int(entry.name), line.rstrip("\0").split("\0")

    def launcher(self) -> int:
        """Number of Nextflow's Java; a child that it is just starting has the same words."""
        found = (pid for pid, w in self.processes() if w[0].endswith("java") and len(w) > 5)
        return min(found)

    def of_task(self, part: str, script: str) -> int:
        """Wait for a process of the task of a program, ``n4.py``.

        The part is ``python``, ``.command.sh`` or ``.command.run``: the program, the script that
        starts it, or the wrapper around both.
        """

        def found() -> int | None:
            lines = dict(self.processes())
            above = [p for p, words in lines.items() if words[1:2] and script in words[1]][:1]
            if part == "python" or not above:
                return above[0] if above else None
            while parent(above[-1]) in lines:
                above.append(parent(above[-1]))
            # The same script is called again inside, with the name of a function, and its
            # subshells are called as it is: the outermost is the one.
            return next((p for p in reversed(above) if lines[p][-1].endswith(part)), None)

        pid = waited(found, f"the {part} of {script}")
        assert isinstance(pid, int)
        return pid

    @contextmanager
    def paused(self) -> Generator[None]:
        """Within it Nextflow stands still, so that it is there however fast its tasks are."""
        pid = self.launcher()
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def orphans(self) -> list[list[str]]:
        """Command lines of what it left running."""
        return [words for pid, words in self.processes() if pid != self.process.pid]

    def kill(self) -> None:
        """Kill Nextflow's Java, as the kernel does when memory runs out."""
        os.kill(self.launcher(), signal.SIGKILL)
        self.process.wait(timeout=60)

    def kill_all(self) -> None:
        """Kill it and whatever is left of it."""
        for pid, _ in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(timeout=60)


def parent(pid: int) -> int:
    """Number of a process's parent; 0 where it is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
