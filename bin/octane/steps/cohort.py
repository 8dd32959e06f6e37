"""COHORT: subjects of a samplesheet and their own parameters.

A row's cells take the place of the run's parameters. The output knows nothing of the data, so that
a changed cell changes its subject alone.
"""

import json
import unicodedata
from pathlib import Path

from pydantic import ValidationError

from octane.config.flags import misspelt, sentences
from octane.config.params import FLAT_FIELD_WORDS, MASK_WORDS
from octane.config.schema import WorkflowModel, entries, is_path
from octane.config.sheets import Sheet, read_samplesheet
from octane.config.validation import unfit_name, unlinkable
from octane.core.errors import InputError
from octane.core.metrics import write_json


def make_cohort(request: Path, samplesheet: Path, output: Path, *, look: bool = True) -> None:
    """Check a run's samplesheet, and write the subjects; an OctaneError has a line a problem.

    Parameters
    ----------
    request
        JSON: ``parameters`` of the run; ``samplesheet`` in them is the sheet's own path, which
        problems name and relative paths start from.
    samplesheet, output
        The staged sheet, and where to write the ``subjects`` as JSON: ``id``, ``given`` (a
        subject's own parameters, as text) and ``row`` (where they were read).
    look
        Whether to see that the paths of the rows are there; a container sees only what is staged.
    """
    run: dict[str, object] = json.loads(request.read_text(encoding="utf-8"))["parameters"]
    shown = Path(str(run["samplesheet"]))
    sheet = read_samplesheet(samplesheet, str(shown))
    if not (sheet.rows or sheet.problems):
        raise InputError(f"{sheet.name} holds no subject; add a row for each.")
    _check_columns(sheet)
    _check_names(sheet)
    subjects = []
    for line, cells in sheet.rows:
        paths = {name: shown.parent / cells[name] for name in _path_columns(cells)}
        for name, path in paths.items() if look else ():
            if not path.exists():
                sheet.problem(line, f"{name} {path} does not exist; check the path.")
            elif problem := unlinkable(path):
                sheet.problem(line, problem)
        given = {**cells, **{name: str(path) for name, path in paths.items()}}
        try:
            # Without the run's own values, which PREFLIGHT checks.
            known = {n: value for n, value in given.items() if n in WorkflowModel.model_fields}
            WorkflowModel.model_validate(known)
        except ValidationError as error:
            for problem in sentences(error, WorkflowModel):
                sheet.problem(line, problem)
        row = f"{sheet.name}, line {line}"
        subjects.append({"id": cells.get("subject"), "given": given, "row": row})
    if sheet.problems:
        raise InputError("\n".join(sheet.problems))
    write_json(output, {"subjects": subjects})


def _check_columns(sheet: Sheet) -> None:
    allowed = {entry.name: entry.per_subject for entry in entries()}
    for column, line in sheet.columns.items():
        if column not in allowed:
            columns = [name for name, own in allowed.items() if own]
            sheet.problem(line, misspelt(column, columns))
        elif not allowed[column]:
            sheet.problem(
                line,
                f"{column} is one for the whole run and no column; leave it out, and give "
                f"--{column} to the run.",
            )


def _check_names(sheet: Sheet) -> None:
    first: dict[str, int] = {}
    for line, cells in sheet.rows:
        for column in ("subject", "input"):
            if column not in cells:
                sheet.problem(line, f"the row has no {column}; add it.")
        name = cells.get("subject")
        if name is None:
            continue
        if problem := unfit_name(name):
            sheet.problem(line, problem)
        # Their results are folders, and some file systems know no capitals, or one form of an é.
        before = first.setdefault(unicodedata.normalize("NFC", name).casefold(), line)
        if before != line:
            sheet.problem(
                line,
                f"the subject {name} is there already, in line {before}; give each subject one row "
                "and a name of its own.",
            )


def _path_columns(cells: dict[str, str]) -> list[str]:
    """Columns whose cells name files."""
    found = [entry.name for entry in entries() if entry.name in cells and is_path(entry)]
    words = {"n4_mask": MASK_WORDS, "stitch_flat_field": FLAT_FIELD_WORDS}
    return found + [n for n, own in words.items() if cells.get(n, "none").lower() not in own]
