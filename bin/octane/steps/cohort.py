"""COHORT: subjects of a samplesheet and their own parameters.

The rows of a samplesheet are checked by the models that check a run's own parameters: a row's cells
take the place of the run's, and every problem of the sheet is named at once. What passes is a list
of subjects with what is their own. It knows nothing of the data, so that a changed cell changes its
subject alone.
"""

import difflib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from pydantic import ValidationError

from octane.config.params import MASK_WORDS
from octane.config.samplesheet import Row, Sheet, is_subject_name, read_samplesheet
from octane.config.schema import WorkflowModel, entries, is_path
from octane.config.validation import read_object, spelled, unlinkable
from octane.core.errors import OctaneError
from octane.core.metrics import write_json

logger = logging.getLogger(__name__)

Subject = dict[str, object]
"""``subject``, ``row`` (where it was read) and ``given`` (its own parameters, as text)."""


def make_cohort(
    request: Path, samplesheet: Path, output: Path, *, look: bool = True
) -> list[Subject]:
    """Check a run's parameters and its samplesheet, and write the subjects.

    Parameters
    ----------
    request
        JSON of all workflow parameters, as given; ``samplesheet`` in it is the sheet's own path,
        which problems name and relative paths start from.
    samplesheet
        The sheet, as staged.
    output
        Where to write the subjects as JSON.
    look
        Whether to see that the paths of the rows are there; a container sees only what is staged.

    Raises
    ------
    OctaneError
        With one line for each problem.
    """
    run = read_object(request)
    own = _problems_of(run)
    shown = Path(str(run.get("samplesheet") or samplesheet))
    sheet = read_samplesheet(samplesheet, str(shown))
    _check_columns(sheet)
    _check_names(sheet)
    subjects = [_subject(row, sheet, shown.parent) for row in sheet.rows]
    known = {entry.name for entry in entries()}
    for row, subject in zip(sheet.rows, subjects, strict=True):
        given = cast("dict[str, str]", subject["given"])
        cells = {name: text for name, text in given.items() if name in known}
        # What is wrong with the run's own parameters is said once, and not for every row.
        for line in _problems_of({**run, **cells}, among=set(cells)):
            sheet.problem(row.line, line)
        if look:
            _look(row, given, sheet)
    if problems := own + sheet.problems:
        raise OctaneError("\n".join(problems))
    write_json(output, subjects)
    logger.info("%s: %d subject(s), no problem found", shown, len(subjects))
    return subjects


def _problems_of(parameters: Mapping[str, object], among: set[str] | None = None) -> list[str]:
    """Sentences on the values; those of a row concern its cells alone, and name columns."""
    try:
        WorkflowModel.model_validate(parameters)
    except ValidationError as error:
        return spelled(error, WorkflowModel, "parameter" if among is None else "key", among)
    return []


def _check_columns(sheet: Sheet) -> None:
    allowed = {entry.name: entry.per_subject for entry in entries()}
    columns = [name for name, own in allowed.items() if own]
    for column, line in sheet.columns.items():
        if column not in allowed:
            near = difflib.get_close_matches(column, columns, n=1)
            hint = f"did you mean {near[0]}?" if near else "docs/parameters.md lists all."
            sheet.problem(line, f"there is no parameter {column}; {hint}")
        elif not allowed[column]:
            sheet.problem(
                line,
                f"{column} is one for the whole run and no column; leave it out, and give "
                f"--{column} to the run.",
            )


def _check_names(sheet: Sheet) -> None:
    first: dict[str, int] = {}
    for row in sheet.rows:
        for column in ("subject", "input"):
            if column not in row.cells:
                sheet.problem(row.line, f"the row has no {column}; add it.")
        name = row.cells.get("subject")
        if name is None:
            continue
        if not is_subject_name(name):
            sheet.problem(
                row.line,
                f"'{name}' is no name for a subject; use letters, digits, blanks and ._()-, with "
                "no . or - first.",
            )
        # Their results are folders, and some file systems know no capitals.
        if name.casefold() in first:
            sheet.problem(
                row.line,
                f"the subject {name} is there already, in line {first[name.casefold()]}; give each "
                "subject one row and a name of its own.",
            )
        first.setdefault(name.casefold(), row.line)


def _paths(cells: Mapping[str, str]) -> Sequence[str]:
    """Columns whose cells name files."""
    found = [entry.name for entry in entries() if entry.name in cells and is_path(entry)]
    if cells.get("n4_mask", "none").lower() not in MASK_WORDS:
        found.append("n4_mask")
    return found


def _subject(row: Row, sheet: Sheet, folder: Path) -> Subject:
    paths = {name: str(folder / row.cells[name]) for name in _paths(row.cells)}
    return {
        "subject": row.cells.get("subject", ""),
        "row": sheet.where(row.line),
        "given": {**row.cells, **paths},
    }


def _look(row: Row, given: Mapping[str, str], sheet: Sheet) -> None:
    for name in _paths(row.cells):
        if not Path(given[name]).exists():
            sheet.problem(row.line, f"{name} {given[name]} does not exist; check the path.")
        elif problem := unlinkable(Path(given[name])):
            sheet.problem(row.line, problem)
