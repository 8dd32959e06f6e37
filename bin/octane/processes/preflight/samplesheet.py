"""Samplesheet of a cohort: one row per subject with its parameters, all checked at once."""

import unicodedata
from pathlib import Path

from pydantic import ValidationError

from octane.config.flags import misspelt, sentences
from octane.config.sheets import Sheet, read_samplesheet
from octane.config.validation import unfit_name
from octane.core.errors import InputError
from octane.processes.preflight.parameters import entries
from octane.processes.preflight.request import FILES, WORDS, Run, file_at
from octane.processes.preflight.schema import WorkflowModel


def read_subjects(run: Run) -> list[dict[str, object]]:
    """The subjects of a samplesheet: name (``id``), own parameters (``given``), ``row`` and input.

    Paths become absolute; the sheet's are relative to its folder. Raises an InputError with a line
    for each problem.
    """
    path = Path(str(run.parameters["samplesheet"]))
    if not path.is_file():
        raise InputError(f"--samplesheet {path} is not a file; check the path.")
    sheet = read_samplesheet(path)
    if not (sheet.rows or sheet.problems):
        raise InputError(f"{path} lists no subjects; add a row for each.")
    _check_columns(sheet)
    _check_names(sheet)
    for line, cells in sheet.rows:
        try:
            # The run's own values are checked with each subject.
            WorkflowModel.model_validate(
                {n: value for n, value in cells.items() if n in WorkflowModel.model_fields}
            )
        except ValidationError as error:
            for problem in sentences(error, WorkflowModel):
                sheet.problem(line, problem)
        paths = {n: text for n, text in cells.items() if n in FILES}
        words = {n for n, text in paths.items() if text.lower() in WORDS.get(n, ())}
        for name in {*paths} - words:
            try:
                cells[name] = str(file_at(path.parent, name, paths[name]))
            except InputError as error:
                sheet.problem(line, str(error))
    if sheet.problems:
        raise InputError("\n".join(sheet.problems))
    return [
        {
            "id": cells["subject"],
            "given": cells,
            "row": f"{sheet.name}, line {line}",
            "input": cells["input"],
        }
        for line, cells in sheet.rows
    ]


def _check_columns(sheet: Sheet) -> None:
    allowed = {entry.name: entry.per_subject for entry in entries()}
    for column, line in sheet.columns.items():
        if column not in allowed:
            columns = [name for name, is_column in allowed.items() if is_column]
            sheet.problem(line, misspelt(column, columns))
        elif not allowed[column]:
            sheet.problem(
                line,
                f"{column} applies to the entire run and cannot be a column; remove it, and give "
                f"--{column} to the run.",
            )


def _check_names(sheet: Sheet) -> None:
    first: dict[str, int] = {}
    for line, cells in sheet.rows:
        for column in ("subject", "input"):
            if column not in cells:
                sheet.problem(line, f"the {column} is missing; add it.")
        name = cells.get("subject")
        if name is None:
            continue
        if problem := unfit_name(name):
            sheet.problem(line, problem)
        # Subjects name folders, and some file systems ignore case or normalize an é.
        before = first.setdefault(unicodedata.normalize("NFC", name).casefold(), line)
        if before != line:
            sheet.problem(
                line,
                f"the subject {name} is already in line {before}; give each subject one row and a "
                "unique name.",
            )
