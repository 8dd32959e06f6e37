"""The demo of the README: seconds of its run and of ``-resume``, and when its steps run."""

import re
import statistics
import tempfile
from collections.abc import Mapping
from csv import DictReader
from datetime import datetime
from pathlib import Path

from _common import scratch_folder
from _processes import run_workflow

UNITS = {"ms": 1e-3, "s": 1, "m": 60}
FLAGS = "-profile test -ansi-log false --outdir out"


def demo(quick: bool, checkouts: Mapping[str, Path]) -> dict[str, object]:
    """Run the demo of every checkout alternately, as stubs if ``quick``."""
    runs: dict[str, list[dict]] = {label: [] for label in checkouts}
    for _ in range(1 if quick else 5):
        for label, checkout in checkouts.items():
            runs[label].append(once(checkout, "-stub" if quick else ""))
    return {
        label: {
            "seconds": {
                name: statistics.median(one["seconds"][name] for one in found)
                for name in ("first", "resumed")
            },
            # The run of the median length, or the one below it.
            "profile": sorted(found, key=lambda one: one["seconds"]["first"])[
                (len(found) - 1) // 2
            ]["profile"],
        }
        for label, found in runs.items()
    }


def once(checkout: Path, flags: str) -> dict[str, dict]:
    """Run the demo of a checkout and its ``-resume`` in a new folder."""
    seconds = {}
    with tempfile.TemporaryDirectory(dir=scratch_folder()) as scratch:
        folder = Path(scratch)
        begun = datetime.now()
        for name, more in (("first", ""), ("resumed", " -resume")):
            seconds[name] = run_workflow(checkout, f"{FLAGS} {flags}{more}", folder).seconds
            if name == "first":
                trace = folder / "out" / "pipeline_info" / "trace.txt"
                profile = steps(trace, begun, seconds[name])
    return {"seconds": seconds, "profile": profile}


def steps(trace: Path, begun: datetime, whole: float) -> dict[str, dict[str, float]]:
    """Return the tasks of each step, when the first began and the last ended, and their work.

    In seconds since the start of the run, which took ``whole``, from Nextflow's trace. The first
    entry is Nextflow's start, the last its end.
    """
    found: dict[str, dict[str, float]] = {"(start)": {"tasks": 0, "begin": 0, "end": 0, "work": 0}}
    with trace.open(newline="", encoding="utf-8") as stream:
        for row in sorted(DictReader(stream, delimiter="\t"), key=lambda row: row["submit"]):
            begin = (datetime.fromisoformat(row["submit"]) - begun).total_seconds()
            step = row["name"].split(" ")[0].split(":")[-1]
            own = found.setdefault(step, {"tasks": 0, "begin": begin, "end": 0, "work": 0})
            own["tasks"] += 1
            own["end"] = max(own["end"], begin + spent(row["duration"]))
            own["work"] += spent(row["realtime"])
    last = max(own["end"] for own in found.values())
    found["(start)"]["end"] = min(own["begin"] for own in [*found.values()][1:])
    return found | {"(end)": {"tasks": 0, "begin": last, "end": whole, "work": 0}}


def spent(text: str) -> float:
    """Parse a duration of Nextflow, such as ``1m 2s`` or ``524ms``, to seconds."""
    return sum(float(n) * UNITS[unit] for n, unit in re.findall(r"([\d.]+)(ms|s|m)", text))
