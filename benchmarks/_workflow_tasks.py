"""A lab's day of many subjects whose tasks are stubs, with the local executor.

The figures are Nextflow's own: its time for a task, its memory, its files, and the time of a second
run with ``-resume``.
"""

import logging
import os
import subprocess
import tempfile
import time
from collections import Counter
from csv import DictReader
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISLNK

from _common import PROJECT, cores, scratch_folder

logger = logging.getLogger(__name__)

POLL_S = 0.5
SETTINGS = """
executor {{ queueSize = {queue}; pollInterval = '{poll}'; cpus = {cpus}; memory = 1.TB }}
process {{ cpus = 1; memory = 1.MB; maxForks = {queue} }}
"""
PAGES = ("trace", "timeline", "report", "dag")
"""Nextflow's own records of a run."""


@dataclass(frozen=True)
class Case:
    """Numbers of subjects and of their sections, and Nextflow's settings."""

    subjects: int
    sections: int
    queue: int = 4
    poll: str = "100 ms"
    records: bool = True


def made(folder: Path, case: Case) -> Path:
    """Make empty inputs and the samplesheet, and return the latter."""
    rows = ["subject,input"]
    for subject in range(1, case.subjects + 1):
        place = folder / "data" / f"sub-{subject:03}"
        for section in range(1, case.sections + 1):
            (place / f"section_{section:02}.ome.zarr").mkdir(parents=True)
        rows.append(f"sub-{subject:03},{place}")
    sheet = folder / "cohort.csv"
    sheet.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return sheet


def children(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    found = [pid]
    for process in found:
        tasks = Path(f"/proc/{process}/task/{process}/children")
        if tasks.exists():
            found += map(int, tasks.read_text().split())
    return found


def resident(pid: int) -> int:
    """Return the peak memory in bytes of the Java process below ``pid``, or 0 without one."""
    for process in children(pid)[:5]:
        try:
            status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
        except OSError:
            continue
        facts = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        if facts["Name"].strip() == "java":
            # The process may have just ended.
            return int(facts.get("VmHWM", "0").split()[0]) * 1024
    return 0


def run(folder: Path, sheet: Path, case: Case, *arguments: str) -> dict[str, object]:
    """Run the workflow once: seconds, tasks, memory."""
    config = folder / "settings.config"
    off = "".join(f"{name}.enabled = false\n" for name in PAGES if not case.records)
    settings = SETTINGS.format(queue=case.queue, poll=case.poll, cpus=case.queue)
    config.write_text(settings + off, encoding="utf-8")
    command = [
        *("nextflow", "run", str(PROJECT / "main.nf"), "-stub", "-c", str(config)),
        *("--samplesheet", str(sheet), "--outdir", str(folder / "out"), "--resolution", "10"),
        *arguments,
    ]
    environment = {**os.environ, "NXF_ANSI_LOG": "false"}
    start, cpu = time.perf_counter(), os.times()
    peak = 0
    with (folder / "run.log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT
        )
        while process.poll() is None:
            peak = max(peak, resident(process.pid))
            time.sleep(POLL_S)
    seconds, after = time.perf_counter() - start, os.times()
    if process.returncode:
        raise RuntimeError((folder / "run.log").read_text(encoding="utf-8")[-3000:])
    used = after.children_user + after.children_system - cpu.children_user - cpu.children_system
    found: dict[str, object] = {"seconds": seconds, "cpu_seconds": used, "java_peak_bytes": peak}
    trace = folder / "out" / "pipeline_info" / "trace.txt"
    if case.records:
        with trace.open(newline="", encoding="utf-8") as stream:
            states = Counter(row["status"] for row in DictReader(stream, delimiter="\t"))
        found["tasks"] = dict(states)
        found["record_bytes"] = sum(f.stat().st_size for f in trace.parent.iterdir())
    return found


def counted(folder: Path) -> dict[str, int]:
    """Count files, folders and links below a folder, and their bytes on disk."""
    kinds: Counter[str] = Counter()
    for place, folders, files in os.walk(folder):
        kinds["folders"] += len(folders)
        for name in files:
            status = os.lstat(Path(place) / name)
            kinds["links" if S_ISLNK(status.st_mode) else "files"] += 1
            kinds["bytes"] += status.st_blocks * 512
    return dict(kinds)


def day(case: Case) -> dict[str, object]:
    """Measure a run and its ``-resume``."""
    with tempfile.TemporaryDirectory(dir=scratch_folder()) as scratch:
        folder = Path(scratch)
        sheet = made(folder, case)
        first = run(folder, sheet, case)
        count = len(list((folder / "work").glob("??/*")))
        found: dict[str, object] = {
            "subjects": case.subjects,
            "sections": case.sections,
            "tasks": count,
            "queueSize": case.queue,
            "pollInterval": case.poll,
            "records": case.records,
            "first": first,
            "work": counted(folder / "work"),
            "cache": counted(folder / ".nextflow"),
            "resumed": run(folder, sheet, case, "-resume"),
        }
        seconds = first["seconds"]
        assert isinstance(seconds, float)
        found["ms_per_task"] = 1000 * seconds / count
    logger.info("%s", found)
    return found


def tasks(quick: bool) -> dict[str, object]:
    """Run cohorts of stubs under several settings of Nextflow."""
    settings = [Case(2, 3), Case(2, 3, queue=2)]
    if not quick:
        settings = [
            Case(10, 60, queue=cores()),
            Case(10, 60),
            Case(10, 60, queue=16),
            Case(10, 60, poll="1 s"),
            Case(10, 60, records=False),
            Case(100, 60),
        ]
    return {"cases": [day(case) for case in settings]}
