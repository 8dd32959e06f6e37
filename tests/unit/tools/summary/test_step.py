"""The last words of a run."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from octane.tools.summary.step import Outcome, Plan, Run, cause_of, conclude

SUMMARY = Path(__file__).resolve().parents[4] / "bin" / "summary.py"


@pytest.fixture
def run(tmp_path):
    """A run without any file, of the subjects a and b."""
    (tmp_path / "work").mkdir()
    plans = {name: Plan(["stack", "n4"], [f"{name}.ome.zarr"], []) for name in "ab"}
    return Run(
        *(tmp_path / "out", tmp_path / "work", None, "2026", "bin/materialize.py"),
        *(True, True, True, "", "", 0, plans, {"a": None, "b": None}, []),
    )


@pytest.fixture
def make(run):
    """Write a file of a subject, as a task makes and publishes it."""

    def write(subject, name, content="{}"):
        task = run.work / f"{subject}-{name}"
        task.mkdir()
        (task / ".command.run").touch()
        (task / name).write_text(content)
        place = run.outdir / subject / ("metrics" if "metrics" in name else "") / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(task / name)
        run.files.append((subject, task / name))

    return write


def said(run):
    """Whether results are published, and the lines and warnings on the run's end."""
    lines, warnings = [], []
    return conclude(run, lines.append, warnings.append), lines, warnings


def report(state="good", verdict="Good: 22 checks passed.", warnings=()):
    return json.dumps({"state": state, "verdict": verdict, "warnings": warnings})


def test_a_good_run_names_its_results_and_each_subjects_verdict(run, make):
    for name in "ab":
        make(name, f"{name}.ome.zarr")
        make(name, f"{name}_report.html")
    make("a", "a_report.json", report())
    make("b", "b_report.json", report("look", "Look at it.", ["A band."]))
    is_published, lines, warnings = said(run)
    assert is_published
    results, links, command, *states = lines
    assert results.splitlines()[1:] == [
        f"  {run.outdir / name / name}{end}"
        for name in "ab"
        for end in (".ome.zarr", "_report.html")
    ]
    assert str(run.work) in links
    assert command.split() == ["bin/materialize.py", str(run.outdir)]
    # The worst first.
    assert states[:2] == ["b: Look at it.", "a: Good: 22 checks passed."]
    assert states[2:] == ["2 subjects: 1 to look at, 1 good."]
    assert warnings == ["b: A band."]


def test_results_that_are_not_published_fail_the_run(run, make):
    for name in "ab":
        make(name, f"{name}.ome.zarr")
        make(name, f"{name}_report.html")
        make(name, f"{name}_report.json", report())
    (run.outdir / "a" / "a.ome.zarr").unlink()
    is_published, lines, _ = said(run)
    assert not is_published
    (line,) = [line for line in lines if line.startswith("a: Incomplete: ")]
    assert "a.ome.zarr" in line
    assert "-resume" in lines[-1]


def test_a_subject_without_a_report_is_incomplete_though_all_else_succeeded(run, make):
    for name in "ab":
        make(name, f"{name}.ome.zarr")
    make("b", "b_report.html")
    make("b", "b_report.json", report())
    _, lines, _ = said(run)
    assert [line.split(":")[0] for line in lines if "REPORT" in line] == ["a"]
    assert lines[-2] == "2 subjects: 1 incomplete, 1 good."


@pytest.mark.parametrize(
    ("outcomes", "made", "state"),
    [
        ({}, [], "not begun"),
        ({}, ["stack_metrics.json"], "unfinished: 1 of 2 tasks are done"),
        ({"a": None}, ["stack_metrics.json"], "unfinished: all but its report is done"),
        ({"a": None}, ["a_report.json"], "done"),
        ({"a": Outcome("N4 failed.", ["n4"])}, ["a_report.json"], "Incomplete: N4 failed."),
    ],
)
def test_a_run_that_stopped_says_how_far_each_subject_is(run, make, outcomes, made, state):
    for name in made:
        make("a", name)
    stopped = replace(run, is_successful=False, message="SIGINT", outcomes=outcomes)
    stopped.plans.pop("b")
    _, lines, _ = said(stopped)
    assert lines[0] == f"a: {state}"
    assert "SIGINT" in lines[-1]


def test_the_failed_task_its_folder_and_its_error_are_named(run):
    text = "Error executing process > 'OCTANE:N4 (a)'\n\nWork dir:\n  /scratch/12/ab\n"
    failed = replace(
        *(run,), is_successful=False, report=text, message="x\nerror: No mask.", outcomes={}
    )
    _, lines, _ = said(failed)
    assert lines[0] == "N4 (a) failed in /scratch/12/ab"
    assert lines[-1] == "octane stopped: N4 (a): No mask."
    assert "-resume" in lines[-2]


@pytest.mark.parametrize(
    ("message", "task", "code", "words"),
    [
        ("java.nio.file.FileSystemException: /out/a -> /b: No space left", "", 0, "/b could not"),
        ("java.nio.file.AccessDeniedException: /out/a", "", 0, "(permission denied)"),
        ("", "N4 (a)", 137, "N4 (a) was killed (exit 137)"),
        ("", "N4 (a)", None, "N4 (a): "),
        ("", "", None, ""),
    ],
)
def test_the_cause_is_named_with_a_remedy(run, message, task, code, words):
    assert words in cause_of(replace(run, message=message, exit=code), task)


def test_earlier_results_of_an_incomplete_subject_are_set_aside(run):
    (run.outdir / "a").mkdir(parents=True)
    (run.outdir / "a" / "a.ome.zarr").mkdir()
    run.outcomes["a"] = Outcome("N4 failed.", ["n4"])
    said(replace(run, is_successful=False))
    assert (run.outdir / "a" / "earlier_2026" / "a.ome.zarr").exists()


def test_the_command_needs_no_package(run, tmp_path):
    given = {
        **{key: str(value) for key, value in vars(run).items() if key in ("outdir", "work")},
        **{"trace": None, "started": "2026", "materialize": "m", "is_successful": True},
        **{"is_reported": False, "is_linked": False, "report": "", "message": "", "exit": None},
        "plans": {"a": {"tasks": ["stack"], "results": ["a.ome.zarr"], "inputs": []}},
        **{"outcomes": {"a": None}, "files": []},
    }

    def answers(word, *questions):
        lines = "".join(f"{json.dumps(question)}\n" for question in questions)
        command = [sys.executable, "-S", SUMMARY, word]
        told = subprocess.run(command, input=lines, capture_output=True, text=True, check=True)
        return [json.loads(line) for line in told.stdout.splitlines()]

    (ended,) = answers("end", given)
    assert {level for level, texts in ended.items() if texts} == {"info", "fail"}
    states = [{"path": str(tmp_path / "gone"), "parts": [""], "state": "1"}]
    asked = {"trace": None, "subject": "a", "missing": ["stack"], "states": states}
    lacking, whole = answers("lost", asked, {**asked, "missing": [], "states": []})
    assert lacking["missing"][0].startswith("STACK ")
    assert lacking["changed"] == [str(tmp_path / "gone")]
    assert whole == {"missing": [], "changed": []}
