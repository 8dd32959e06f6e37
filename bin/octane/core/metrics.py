"""Record of a step as JSON: settings, figures, seconds, bytes, versions, device."""

import json
import logging
import os
import platform
import re
import resource
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, TypeAdapter

from octane.core.arrays import processor
from octane.core.files import ATTEMPT, writing
from octane.core.orientation import UNSTATED, Orientation
from octane.core.timing import Timeline, span
from octane.core.versions import versions

logger = logging.getLogger(__name__)


@dataclass
class Metrics:
    """Record of a running step; ``previews`` are small arrays for the report's pictures.

    ``inputs`` maps each argument that names an input to its original path; ``channel`` is the name
    of the channel, if it has one, and ``orientation`` that of the axes z, y and x.
    """

    step: str
    channel: str = ""
    orientation: Orientation = UNSTATED
    settings: dict[str, object] = field(default_factory=dict)
    figures: dict[str, object] = field(default_factory=dict)
    previews: dict[str, npt.NDArray] = field(default_factory=dict)
    device: dict[str, str | int | None] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    timeline: Timeline = field(default_factory=Timeline)
    inputs: dict[str, dict[str, str]] = field(default_factory=lambda: _staged(sys.argv[1:]))
    _start: float = field(default_factory=time.perf_counter)
    _lock: Lock = field(default_factory=Lock)

    @contextmanager
    def timed(self, stage: str) -> Generator[None]:
        """Add the seconds of the block to ``stage``, except those of nested spans."""
        with self.timeline.here(), span(stage):
            yield

    def count(self, stage: str, size: int) -> None:
        """Add bytes to ``stage``."""
        with self._lock:
            self.bytes[stage] = self.bytes.get(stage, 0) + int(size)

    def add_figures(self, figures: BaseModel) -> None:
        """Add the figures of a model, under the names that the report reads."""
        self.figures.update(figures.model_dump(mode="json", by_alias=True))

    def warn(self, message: str) -> None:
        """Log a warning and keep it for the report."""
        logger.warning(message)
        self.warnings.append(message)

    def warn_in_report(self, message: str) -> None:
        """Warn, and show the warning at the top of the report, whose checks cannot find it."""
        self.warn(message)
        remarks = self.figures.setdefault("remarks", [])
        assert isinstance(remarks, list)
        remarks.append(message)

    def record(self) -> dict[str, object]:
        """Return the complete record, ready for JSON."""
        elapsed = time.perf_counter() - self._start
        return {
            "step": self.step,
            "channel": self.channel,
            "orientation": self.orientation,
            "attempt": int(os.environ.get(ATTEMPT, "1")),
            "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
            "inputs": self.inputs,
            "settings": self.settings,
            "figures": self.figures,
            "device": self.device or {"backend": "cpu"},
            "host": {
                "node": platform.node(),
                "processor": processor(),
                "cores": os.cpu_count(),
                "machine": platform.machine(),
                "system": f"{platform.system()} {platform.release()}",
            },
            "seconds": {"total": elapsed, **self.timeline.seconds()},
            "wall_seconds": self.timeline.wall_seconds(),
            "timeline": self.timeline.record(),
            "bytes": self.bytes,
            "peak_memory_bytes": peak_memory(),
            "warnings": self.warnings,
            "versions": versions(),
        }

    def save(self, path: Path | None, preview: Path | None) -> None:
        """Write the record and the previews to the paths that are given, replacing files."""
        save_record(self.record(), self.previews, path, preview)


def save_record(
    record: Mapping[str, object],
    previews: Mapping[str, npt.NDArray],
    path: Path | None,
    preview: Path | None,
) -> None:
    """Write a :meth:`Metrics.record` and its previews as :meth:`Metrics.save` does."""
    if path is not None:
        write_json(path, record)
    if preview is not None:
        with writing(preview, overwrite=True) as partial, partial.open("wb") as stream:
            np.savez_compressed(stream, allow_pickle=False, **previews)


def _staged(arguments: Sequence[str]) -> dict[str, dict[str, str]]:
    """Find the inputs of a task: links staged by Nextflow, or its copies in ``input/``."""
    return {
        argument: {"path": str(Path(argument).resolve())}
        for argument in arguments
        # Path.is_symlink raises if an argument is too long for a file name.
        if os.path.islink(argument) or argument.startswith("input/")  # noqa: PTH114
    }


def peak_memory() -> int:
    """Return the largest resident memory of this process so far, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():
        # getrusage would include the peak of the process that started this one.
        found = re.search(r"^VmHWM:\s+(\d+) kB", status.read_text(encoding="utf-8"), re.MULTILINE)
        if found is not None:
            return int(found[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux counts kilobytes, macOS bytes.
    return peak if sys.platform == "darwin" else peak * 1024


def write_json(path: Path, content: object) -> None:
    """Write ``content`` as indented JSON, replacing a file; NaN and Inf become null."""
    with writing(path, overwrite=True) as partial:
        partial.write_text(as_json(content), encoding="utf-8")


def as_json(content: object) -> str:
    """Format ``content`` as indented JSON; NaN and Inf become null."""
    anything = TypeAdapter(object, config=ConfigDict(ser_json_inf_nan="null"))
    plain = anything.dump_python(content, mode="json", fallback=_without_numpy)
    return json.dumps(plain, indent=2, allow_nan=False) + "\n"


def _without_numpy(value: object) -> object:
    """Convert NumPy arrays and scalars for JSON."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")
