"""Lines in a plain log that count the finished tasks of each step."""

import os
import pty
import re
import subprocess

import pytest

ENDS = ["RESAMPLE 2/2", "STITCH 2/2", "STACK 1/1", "N4 1/1", "PYRAMID 1/1"]


def counts(output):
    """Lines that count tasks, without what the log puts before them."""
    return re.findall(r"(?:MOSAIC|RESAMPLE) \d+/\d+, .*\b", output)


@pytest.fixture(scope="module")
def given(phantom):
    return ("-stub", "--input", phantom / "mosaics", "--resolution", "10")


@pytest.mark.parametrize("resumed", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_a_plain_log_counts_the_tasks_of_each_step(succeeding, given, tmp_path, resumed):
    first = succeeding(tmp_path, *given)
    lines = counts(first.output)
    # One for each step that is complete, and one more for each minute on a busy machine.
    assert {end for line in lines for end in line.split(", ")} >= set(ENDS)
    assert len(lines) >= len(ENDS)
    assert lines[-1] == ", ".join(ENDS)
    if resumed:
        again = succeeding(tmp_path, *given, "-resume")
        assert again.tasks("COMPLETED") == ["PREFLIGHT (run)"]
        assert counts(again.output)[-1] == ", ".join(ENDS)


@pytest.mark.parametrize(
    ("words", "last"),
    [
        pytest.param((), [], id="ansi", marks=pytest.mark.soak),
        pytest.param(("-ansi-log", "false"), [", ".join(ENDS)], id="plain", marks=pytest.mark.soak),
    ],
)
def test_a_terminal_with_nextflows_display_gets_no_such_line(
    project, environment, given, words, last, tmp_path
):
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        ["nextflow", "run", str(project / "main.nf"), "--outdir", "out", *words, *map(str, given)],
        cwd=tmp_path, env=environment | {"NXF_ANSI_LOG": "", "TERM": "xterm"}, stdout=theirs,
        stderr=theirs, stdin=subprocess.DEVNULL,
    ) as run:  # fmt: skip
        os.close(theirs)
        shown = bytearray()
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:
                # The end of a terminal on Linux.
                break
            if not part:
                break
            shown += part
    os.close(ours)
    assert run.returncode == 0, shown.decode()
    assert b"RESAMPLE" in shown
    assert counts(shown.decode())[-1:] == last
