"""Why tasks failed: a row of the trace, what the task wrote, or the meaning of its exit code."""

import csv

import pytest

from octane.tools.summary.failures import failures, lost_tasks, report_cause, task_words


@pytest.fixture
def trace(tmp_path):
    """Write Nextflow's table of tasks: each a name, a status, an exit code and its error."""

    def write(*rows):
        path = tmp_path / "trace.txt"
        with path.open("w", newline="") as file:
            table = csv.writer(file, delimiter="\t")
            table.writerow(["name", "status", "exit", "workdir"])
            for number, (name, status, code, said) in enumerate(rows):
                folder = tmp_path / str(number)
                folder.mkdir()
                if said:
                    (folder / ".command.err").write_text(said)
                table.writerow([name, status, code, folder])
        return path

    return write


@pytest.mark.parametrize(
    ("task", "words"),
    [("stack", "STACK"), ("s_1_red_stitch", "STITCH of s_1_red"), ("report", "REPORT")],
)
def test_a_task_is_named_by_its_process_and_item(task, words):
    assert task_words(task) == words


def test_a_task_that_failed_gives_its_own_error_or_the_meaning_of_its_code(trace, tmp_path):
    path = trace(
        ("OCTANE:STITCH (a:s_1)", "FAILED", "1", "INFO x\nerror: s_1.zarr is damaged; copy it.\n"),
        ("OCTANE:STITCH_OTHERS (a:s_1_red)", "FAILED", "137", ""),
        ("OCTANE:STACK (a)", "COMPLETED", "0", ""),
        ("OCTANE:STITCH (b:s_1)", "FAILED", "1", "error: another subject's"),
        ("OCTANE:N4 (a)", "ABORTED", "-", ""),
        ("OCTANE:PYRAMID (a)", "FAILED", "9", "Killed"),
    )
    found = failures(path, "a")
    assert [*found] == ["s_1_stitch", "s_1_red_stitch", "n4", "pyramid"]
    assert found["s_1_stitch"] == "failed: s_1.zarr is damaged; copy it."
    assert "exit 137" in found["s_1_red_stitch"]
    assert str(tmp_path / "4") in found["n4"]
    assert str(tmp_path / "5") in found["pyramid"]
    assert failures(None, "a") == failures(tmp_path / "none", "a") == {}


def test_a_trace_may_lack_columns(tmp_path):
    path = tmp_path / "trace.txt"
    path.write_text("name\tstatus\nOCTANE:STACK (a)\tFAILED\n", encoding="utf-8")
    assert failures(path, "a") == {"stack": "failed (exit unknown), see .nextflow.log."}
    path.write_text("status\nFAILED\n", encoding="utf-8")
    assert failures(path, "a") == {}


def test_tasks_that_never_began_are_listed_after_those_that_failed(trace):
    path = trace(("OCTANE:N4 (a)", "FAILED", "1", "error: No mask."))
    assert lost_tasks(path, "a", ["n4", "pyramid"]) == "N4 failed: No mask. Not started: PYRAMID."
    (first, *_) = lost_tasks(path, "b", ["s_1_stitch", "stack"]).split(" failed or")
    assert first == "STITCH of s_1 and STACK"


def test_many_tasks_are_counted(trace):
    rows = [(f"STITCH (a:s{n})", "FAILED", "1", f"error: s{n}.") for n in range(5)]
    missing = [f"s{n}_stitch" for n in range(5)] + [f"t{n}_stitch" for n in range(9)]
    text = lost_tasks(trace(*rows), "a", missing)
    assert [f"s{n}." in text for n in range(5)] == [True, True, True, False, False]
    assert "2 more failed. Not started: STITCH of t0," in text
    assert text.endswith("STITCH of t4 and 4 more.")


WARNED = [
    "/x/y.py:3: UserWarning: odd",
    "  y = 1 / x",
    "WARNING: IPv4 is off.",
    "08:50:00 INFO N4: 1",
]
ENDED = "Process `N4 (a)` terminated with an error exit status (3)"
CAUSES = {
    ("Cannot connect to the daemon.", "See 'docker --help'."): "Cannot connect to the daemon.",
    (*WARNED, "", "bash: n4.py: not found"): "bash: n4.py: not found",
    (
        *WARNED,
        "Traceback (most recent call last):",
        '  File "n4.py"',
        "ValueError: x",
    ): "ValueError: x",
    (*WARNED,): ENDED,
    (): ENDED,
}
"""What a task wrote to stderr, and the cause."""


def nextflows_report(lines):
    """Nextflow's report on a task that wrote these lines to stderr."""
    said = "".join(f"  {line}\n" for line in lines)
    stderr = f"\nCommand error:\n{said}" if lines else ""
    return (
        f"Error executing process > 'N4 (a)'\n\nCaused by:\n  {ENDED}\n\n"
        f"Command exit status:\n  3\n{stderr}\nWork dir:\n  /scratch/ab/cd\n\nTip: look there\n"
    )


@pytest.mark.parametrize(("lines", "line"), CAUSES.items())
def test_the_cause_is_found_in_nextflows_report(lines, line):
    assert report_cause(nextflows_report(lines)) == line
