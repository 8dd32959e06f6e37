"""The end of a run: where the results are and what they lack, or why it stopped.

It runs where Nextflow runs, also where the tasks run in containers, and so needs nothing but Python
3.9 and its standard library.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from octane.tools.summary.failures import (
    exit_meaning,
    failures,
    lost_tasks,
    report_cause,
    task_words,
)
from octane.tools.summary.results import (
    RECORD_ENDING,
    MadeFile,
    made_files,
    remove_empty_stores,
    set_aside,
    unpublished_results,
)

ORDER = ("incomplete", "failed", "unfinished", "not begun", "to look at", "done", "good")
"""States of a subject, the worst first."""
ENDED = ORDER[4:]
"""States in which nothing is left to do."""
MOST_RESULTS = 20
"""More results than these are listed by their folders."""
FULL_BYTES = 1_000_000
"""Bytes; a work directory with fewer is full."""
RESUME_ADVICE = "Finished work is kept: fix the cause, and run again with -resume."
SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")

Say = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """What a subject's results lack: tasks that are ``missing``, in a ``sentence``.

    ``changed`` is a sentence if the input changed during the run, else empty.
    """

    sentence: str
    missing: list[str] = field(default_factory=list)
    changed: str = ""


@dataclass(frozen=True)
class Plan:
    """Names of a subject's tasks and results, and paths of its inputs."""

    tasks: list[str]
    results: list[str]
    inputs: list[str]


@dataclass
class Run:
    """A run that has ended.

    Attributes
    ----------
    outdir, work
        Folders of the results, and of tasks.
    trace
        Nextflow's table of tasks, or None.
    started
        When, as part of a folder's name.
    is_successful, is_reported, is_linked
        It succeeded; it makes reports; its results are links.
    report, message, exit
        What Nextflow says of an error.
    plans, outcomes
        By subject. One whose tasks have ended has an outcome, None if nothing is missing.
    files
        Subjects and paths of all files that it published, in the folders of their tasks.
    """

    outdir: Path
    work: Path
    trace: Path | None
    started: str
    materialize: str
    is_successful: bool
    is_reported: bool
    is_linked: bool
    report: str
    message: str
    exit: int | None
    plans: dict[str, Plan]
    outcomes: dict[str, Outcome | None]
    files: list[tuple[str, Path]]

    @classmethod
    def from_json(cls, text: str) -> Run:
        """Read a run as subworkflows/completion.nf writes it."""
        given = json.loads(text)
        for name in ("outdir", "work"):
            given[name] = Path(given[name])
        given["trace"] = Path(given["trace"]) if given["trace"] else None
        given["plans"] = {name: Plan(**plan) for name, plan in given["plans"].items()}
        given["outcomes"] = {
            name: outcome and Outcome(**outcome) for name, outcome in given["outcomes"].items()
        }
        given["files"] = [(subject, Path(path)) for subject, path in given["files"]]
        return cls(**given)


def conclude(run: Run, say: Say, warn: Say) -> bool:
    """Say how a run ended, and put its files in order; return False if results are not published.

    Earlier results of incomplete subjects are set aside.
    """
    made = made_files(run.outdir, run.files, {name: p.inputs for name, p in run.plans.items()})
    reports = {(item.subject, item.path.name) for item in made}
    if run.is_successful and run.is_reported:
        for name, plan in run.plans.items():
            is_open = plan.tasks and not run.outcomes.get(name)
            if is_open and (name, f"{name}_report.html") not in reports:
                words = lost_tasks(run.trace, name, ["report"])
                run.outcomes[name] = Outcome(words, ["report"])
    # A run that stops may not have published what its last tasks made.
    is_lacking = run.is_successful and _note_missing_results(run)
    words = " ".join(
        [run.report, *(outcome.sentence for outcome in run.outcomes.values() if outcome)]
    )
    remove_empty_stores(made, words)
    for name, outcome in run.outcomes.items():
        if outcome:
            made_here = [item for item in made if item.subject == name]
            set_aside(run.outdir, name, made_here, run.started, mixed=bool(outcome.changed))
    if run.is_successful:
        _say_results(run, made, say, warn)
    else:
        _say_failure(run, made, say, warn)
    return not is_lacking


def _note_missing_results(run: Run) -> bool:
    """Note subjects whose results are not in outdir; tell whether there are any."""
    is_lacking = False
    for name in [name for name, outcome in run.outcomes.items() if not outcome]:
        files = [file for subject, file in run.files if subject == name]
        if names := unpublished_results(run.outdir, name, files, run.plans[name].results):
            is_lacking = True
            run.outcomes[name] = Outcome(
                f"{run.outdir / name} lacks {', '.join(names)} of this run, although all tasks "
                "succeeded; see that no config changes process.publishDir, check the disk, and run "
                "again with -resume."
            )
    return is_lacking


def _say_results(run: Run, made: list[MadeFile], say: Say, warn: Say) -> None:
    if not made:
        say("Nothing was made.")
        return
    paths = [i.path for i in made if i.path.name.endswith((".ome.zarr", "_report.html"))]
    paths = [path for path in paths if path.exists()]
    if paths:
        listed_paths = paths if len(paths) <= MOST_RESULTS else [path.parent for path in paths]
        say("\n".join(["Results:", *(f"  {path}" for path in sorted({*listed_paths}))]))
    if run.is_linked:
        say(f"They are links into {run.work}, which must stay. To replace them by real files:")
        say(f"  {shlex.join([run.materialize, str(run.outdir)])}")
    _say_states(run, made, say, warn)


def _say_states(run: Run, made: list[MadeFile], say: Say, warn: Say, task: str = "") -> None:
    """Say the state of each subject, the worst first; for several, the count of each state.

    Also how to continue, if a ``task`` failed or some are not done.
    """
    states = [(name, *subject_state(run, name, made)) for name in sorted(run.plans)]
    for name, _, words, warnings in sorted(states, key=lambda row: ORDER.index(row[1])):
        say(f"{name}: {words}")
        for text in warnings:
            warn(f"{name}: {text}")
    if len(states) > 1:
        counts = Counter(row[1] for row in sorted(states, key=lambda row: ORDER.index(row[1])))
        listed = ", ".join(f"{count} {kind}" for kind, count in counts.items())
        say(f"{len(states)} subjects: {listed}.")
    if task or (run.is_successful and any(row[1] not in ENDED for row in states)):
        say(RESUME_ADVICE)


def subject_state(run: Run, subject: str, made: list[MadeFile]) -> tuple[str, str, list[str]]:
    """A subject's state, one of ORDER, a sentence on it, and warnings."""
    files = [item.path for item in made if item.subject == subject]
    outcome = run.outcomes.get(subject)
    if outcome:
        return "incomplete", f"Incomplete: {outcome.sentence}", []
    # The report's verdict; without a report, STACK's warnings.
    record: dict = {}
    for name in (f"{subject}_report.json", "stack_metrics.json"):
        paths = [p for p in files if p.name == name and p.exists() and p.stat().st_size > 0]
        if paths:
            record = json.loads(paths[0].read_text(encoding="utf-8"))
            break
    warnings = record.get("warnings") or []
    if record.get("verdict"):
        kind = "to look at" if record["state"] == "look" else record["state"]
        return kind, record["verdict"], warnings
    has_ended = subject in run.outcomes
    if has_ended and (
        not run.is_reported or any(p.name == f"{subject}_report.json" for p in files)
    ):
        return "done", "done", warnings
    if has_ended:
        return "unfinished", "unfinished: all but its report is done", warnings
    failed = failures(run.trace, subject)
    if failed:
        return "failed", f"failed: {', '.join(task_words(task) for task in failed)}", warnings
    count_done = sum(path.name.endswith(RECORD_ENDING) for path in files)
    if count_done:
        count = len(run.plans[subject].tasks)
        return "unfinished", f"unfinished: {count_done} of {count} tasks are done", warnings
    return "not begun", "not begun", warnings


def _say_failure(run: Run, made: list[MadeFile], say: Say, warn: Say) -> None:
    """Say the failed task and its folder from Nextflow's report, the states, and the cause."""
    match = re.search(r"Error executing process > '(?:[A-Z0-9_]+:)*(.+)'", run.report)
    task = match[1] if match else ""
    if task:
        place = re.search(r"Work dir:\s+(\S.*)", run.report)
        say(f"{task} failed in {place[1] if place else run.work}")
    _say_states(run, made, say, warn, task)
    if why := cause_of(run, task):
        say(f"octane stopped: {why}")


def cause_of(run: Run, task: str) -> str:
    """Why a run stopped, where ``task`` is the one that failed, if any."""
    message = run.message or run.report
    denied = r"(?:FileSystem|AccessDenied)Exception: (?:.* -> )?([^:\n]+)(?:: (.*))?"
    if message in SIGNALS:
        return f"interrupted ({message}); run again with -resume to go on."
    if "error: " in message:
        return ": ".join(filter(None, (task, message.split("error: ", 1)[1])))
    if refusal := re.search(denied, message):
        why = refusal[2] or "Permission denied"
        return (
            f"{refusal[1]} could not be written ({why[:1].lower()}{why[1:]}), so the results in "
            f"{run.outdir} are incomplete; check its free space and permissions, and run again "
            "with -resume."
        )
    if shutil.disk_usage(run.work).free < FULL_BYTES:
        return (
            f"no space is left in the work directory {run.work}; free some and run again "
            "with -resume, or choose another with -work-dir."
        )
    if task and exit_meaning(run.exit):
        return f"{task} {exit_meaning(run.exit)}."
    return f"{task}: {report_cause(run.report)}" if task else ""
