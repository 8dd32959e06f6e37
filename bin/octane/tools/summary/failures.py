"""Why tasks failed, according to Nextflow's trace and to what they wrote."""

from __future__ import annotations

import csv
import re
from pathlib import Path

MEANINGS = {
    104: "lost its GPU or its node (exit 104); .command.log in its folder may say more",
    137: "was killed (exit 137), by a user or for lack of memory; give it more, as in docs/hpc.md",
    140: "exceeded its time limit (exit 140); give it more, as in docs/hpc.md",
    143: "was terminated (exit 143), like a cancelled job; .command.log in its folder may say why",
    247: "was killed (exit 247), by a user or for lack of memory; give it more, as in docs/hpc.md",
}
"""Meanings of exit codes, for tasks that could not report their error."""
MOST_REASONS = 3
"""Most failed tasks of a subject whose reason is given."""
MOST_NAMES = 6
"""Most tasks that are named in a sentence."""


def task_words(task: str) -> str:
    """Name a task, such as section_01_resample or stack, as RESAMPLE of section_01 or STACK."""
    item, _, step = task.rpartition("_")
    return step.upper() + (f" of {item}" if item else "")


def failures(trace: Path | None, subject: str) -> dict[str, str]:
    """Reasons why tasks of a subject failed, by the names of their records.

    Parameters
    ----------
    trace
        Nextflow's table of tasks; without one, no failure is known.
    """
    reasons: dict[str, str] = {}
    if trace is None or not trace.is_file():
        return reasons
    with trace.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            if row.get("status") in ("FAILED", "ABORTED"):
                name = row.get("name", "")
                parts = re.fullmatch(r"(?:.*:)?([A-Z0-9_]+) \(([^:]*):?(.*)\)", name)
                if parts and parts[2] == subject:
                    step = parts[1].lower().replace("_others", "")
                    reasons["_".join(filter(None, (parts[3], step)))] = reason(row)
    return reasons


def reason(row: dict[str, str]) -> str:
    """A task's own error as a sentence, else the meaning of its exit code.

    A user's ``trace.fields`` may leave out its folder.
    """
    code, folder = row.get("exit", ""), row.get("workdir", "")
    stderr = Path(folder, ".command.err")
    text = (
        stderr.read_text(encoding="utf-8", errors="replace") if folder and stderr.is_file() else ""
    )
    if "error: " in text:
        words = f"failed: {text.split('error: ', 1)[1].strip()}"
    else:
        place = f"see {folder}" if folder else "see .nextflow.log"
        words = exit_meaning(code) or f"failed (exit {code or 'unknown'}), {place}"
    return words if words.endswith(".") else f"{words}."


def exit_meaning(code: object) -> str:
    """Meaning of an exit code, or nothing."""
    return MEANINGS.get(int(str(code)), "") if str(code).isdecimal() else ""


def lost_tasks(trace: Path | None, subject: str, missing: list[str]) -> str:
    """Sentences on why a subject's tasks lack a record."""
    known = failures(trace, subject)
    ends = {task: known[task] for task in missing if task in known}
    texts = [f"{task_words(task)} {end}" for task, end in [*ends.items()][:MOST_REASONS]]
    if len(ends) > MOST_REASONS:
        texts.append(f"{len(ends) - MOST_REASONS} more failed.")
    idle = [task_words(task) for task in missing if task not in ends]
    if idle:
        if len(idle) > MOST_NAMES:
            idle = [*idle[: MOST_NAMES - 1], f"{len(idle) - MOST_NAMES + 1} more"]
        listed = f"{', '.join(idle[:-1])} and {idle[-1]}" if idle[1:] else idle[0]
        texts.append(
            f"Not started: {listed}."
            if ends
            else f"{listed} failed or did not start; .nextflow.log has the reason."
        )
    return " ".join(texts)


def report_cause(report: str) -> str:
    """The line of Nextflow's report on a task that names the cause.

    From its stderr, the end of a traceback or the first line that is neither a warning nor on
    progress; else what Nextflow says.
    """
    match = re.search(r"Command error:\n(.*?)(?:\n\n|\Z)", report, re.DOTALL)
    stderr = match[1] if match else ""
    lines = [
        line
        for line in stderr.splitlines()
        if re.match(r"  \S", line) and not re.search(r"(?i:warn(?:ing)?\b)|\bINFO\b", line)
    ]
    if lines:
        return (lines[-1] if "Traceback (most recent call last)" in stderr else lines[0]).strip()
    other = re.search(r"Caused by:\s+(\S.*)", report)
    return other[1] if other else "see .nextflow.log."
