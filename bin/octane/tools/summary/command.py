"""Say how a run ended, as subworkflows/completion.nf asks."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from octane.tools.summary.changes import changed_files
from octane.tools.summary.failures import lost_tasks
from octane.tools.summary.step import Run, conclude


def main() -> None:
    """Read what is asked from stdin, as JSON, and print lines of the log, as JSON.

    With the argument ``lost`` it asks what a subject's results lack: why tasks have no record, and
    which files changed during the run. Else it is a run that has ended, whose files are put in
    order. A line of the level ``fail`` says that results are not
    published.
    """
    text = sys.stdin.read()
    if sys.argv[1:] == ["lost"]:
        asked = json.loads(text)
        trace = Path(asked["trace"]) if asked["trace"] else None
        if asked["missing"]:
            _write("missing", lost_tasks(trace, asked["subject"], asked["missing"]))
        for path in changed_files(asked["states"]):
            _write("changed", path)
        return
    run = Run.from_json(text)
    if not conclude(run, lambda text: _write("info", text), lambda text: _write("warn", text)):
        _write("fail", "")


def _write(level: str, text: str) -> None:
    print(json.dumps({"level": level, "text": text}), flush=True)
