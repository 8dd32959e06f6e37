"""Say how a run ended, as subworkflows/completion.nf asks."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path

from octane.tools.summary.changes import changed_files
from octane.tools.summary.failures import lost_tasks
from octane.tools.summary.step import Run, conclude


def main() -> None:
    """Answer each line of JSON from stdin by one, which has texts by level.

    With the argument ``lost`` a line asks what a subject's results lack. ``missing`` says why tasks
    have no record, and ``changed`` which files changed during the run. With ``end`` it is a run
    that has ended, whose files are put in order: ``info`` and ``warn`` are lines of its log, and
    ``fail`` is there if results are not published.
    """
    answer = {"lost": _shortfall, "end": _end}[sys.argv[1]]
    for line in sys.stdin:
        print(json.dumps(answer(line)), flush=True)


def _shortfall(text: str) -> dict[str, list[str]]:
    question = json.loads(text)
    trace = Path(question["trace"]) if question["trace"] else None
    missing = question["missing"] and [lost_tasks(trace, question["subject"], question["missing"])]
    return {"missing": missing, "changed": changed_files(question["states"])}


def _end(text: str) -> dict[str, list[str]]:
    texts = defaultdict[str, list[str]](list)
    if not conclude(Run.from_json(text), texts["info"].append, texts["warn"].append):
        texts["fail"].append("")
    return texts
