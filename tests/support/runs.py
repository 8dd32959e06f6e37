"""A run that can be disturbed while it lasts, and what its results are compared by."""

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

import numpy as np
import zarr

__all__ = ["Started", "checksums", "last_words", "partial_files", "waited", "whole"]

PATIENCE = 240.0
"""Seconds after which something that was waited for is taken as failed."""


def waited(condition: Callable[[], object], what: str) -> object:
    """Wait until something holds, and give it."""
    start = time.monotonic()
    while time.monotonic() - start < PATIENCE:
        found = condition()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"{what} did not come about in {PATIENCE:g} s")


def checksums(outdir: Path) -> dict[str, str]:
    """Of the decoded voxels of every level of every volume that is a result."""
    found = {}
    for store in sorted(outdir.glob("*/*.ome.zarr")):
        for level in sorted(p.parent.name for p in store.glob("*/zarr.json")):
            voxels = np.asarray(zarr.open_array(store, path=level, mode="r")[:])
            found[f"{store.name}/{level}"] = hashlib.sha256(
                f"{voxels.dtype} {voxels.shape} ".encode() + voxels.tobytes()
            ).hexdigest()
    return found


def last_words(output: str) -> str:
    """The sentence that a stopped run ends with, or Nextflow's own."""
    for pattern in (
        r"octane stopped: (.+)",
        r"\n(.+ is a link to .+)",
        r"\n(.+-(?:outdir|resume|work-dir)\b.*)",
        r"ERROR ~ (.+)",
    ):
        found = re.findall(pattern, output)
        if found:
            return found[-1]
    raise AssertionError(f"it does not say why it stopped:\n{output}")


def partial_files(*folders: Path) -> list[Path]:
    """Return files left half-written under a temporary name."""
    return [p for folder in folders for p in folder.rglob(".partial-*")]


def whole(folder: Path) -> list[Path]:
    """Stores of a work directory that have their name, and are read to see that they are whole."""
    found = []
    for store in folder.glob("??/*/*.ome.zarr"):
        if store.is_symlink():
            continue
        for level in store.glob("*/zarr.json"):
            zarr.open_array(level.parent, mode="r")[:]
        found.append(store)
    return found


@dataclass
class Started:
    """Nextflow while it runs, in a separate session.

    Attributes
    ----------
    process
        What was started.
    folder
        Where it was launched.
    log
        What it has said so far.
    """

    process: subprocess.Popen[bytes]
    folder: Path
    log: Path

    @property
    def output(self) -> str:
        """Output so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def says(self, text: str) -> None:
        """Wait until it has said something."""

        def said() -> bool:
            return text in self.output or self.process.poll() is not None

        waited(said, f"'{text}'")
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
        """Number of Nextflow's Java."""
        (found,) = (
            pid for pid, words in self.processes() if words[0].endswith("java") and len(words) > 5
        )
        return found

    def of_task(self, part: str, script: str) -> int:
        """Wait for a process of a task.

        Parameters
        ----------
        part
            ``python``, ``.command.sh`` or ``.command.run``: the program, the script that starts it,
            or the wrapper around both.
        script
            The program, ``n4.py``.
        """

        def found() -> int | None:
            lines = dict(self.processes())
            inner = [p for p, words in lines.items() if words[1:2] and script in words[1]]
            if not inner:
                return None
            chosen = inner[0]
            while part != "python" and chosen in lines:
                above = parent(chosen)
                # The same script is called again inside, with the name of a function, and its
                # subshells are called as it is: the outermost is the one.
                if (
                    lines[chosen][-1].endswith(part)
                    and lines.get(above, [""])[-1] != lines[chosen][-1]
                ):
                    return chosen
                chosen = above
            return chosen if part == "python" else None

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

    def end(self) -> int:
        """Wait for its end and give its exit code."""
        return self.process.wait(timeout=300)

    def kill(self) -> None:
        """Kill Nextflow's Java, as the kernel does when memory runs out."""
        os.kill(self.launcher(), signal.SIGKILL)
        self.process.wait(timeout=60)


def parent(pid: int) -> int:
    """Number of a process's parent; 0 where it is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
