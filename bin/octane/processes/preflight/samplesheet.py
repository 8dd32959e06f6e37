"""Samplesheet of a cohort: one row per subject with its parameters, all checked at once."""

import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from pydantic import ValidationError

from octane.config.flags import misspelt, sentences
from octane.config.sheets import Sheet, read_samplesheet
from octane.config.validation import unfit_name
from octane.core.errors import InputError
from octane.processes.preflight.parameters import entries
from octane.processes.preflight.schema import WorkflowModel


def check_samplesheet(
    path: Path, name: str, subjects: Sequence[Mapping[str, object]]
) -> dict[str, str]:
    """Check a samplesheet; return the file and line of each subject's row, for messages about it.

    Parameters
    ----------
    path, name
        The sheet, and its name in messages.
    subjects
        The rows as Nextflow reads them: ``id``, the cells that are not empty (``given``), and
        messages about the files that they name (``problems``).

    Raises
    ------
    InputError
        With one line per problem.
    """
    sheet = read_samplesheet(path, name)
    if not (sheet.rows or sheet.problems):
        raise InputError(f"{name} lists no subjects; add a row for each.")
    _check_columns(sheet)
    _check_names(sheet)
    read = {subject["id"]: subject for subject in subjects}
    for line, cells in sheet.rows:
        own = read.get(cells.get("subject", ""), {})
        for problem in cast("list[str]", own.get("problems") or []):
            sheet.problem(line, problem)
        try:
            # The run's own values are checked with each subject.
            WorkflowModel.model_validate(
                {n: value for n, value in cells.items() if n in WorkflowModel.model_fields}
            )
        except ValidationError as error:
            for problem in sentences(error, WorkflowModel):
                sheet.problem(line, problem)
    if not sheet.problems:
        _require_same(sheet, read, len(subjects))
    if sheet.problems:
        raise InputError("\n".join(sheet.problems))
    return {cells["subject"]: f"{name}, line {line}" for line, cells in sheet.rows}


def _check_columns(sheet: Sheet) -> None:
    allowed = {entry.name: entry.per_subject for entry in entries()}
    for column, line in sheet.columns.items():
        if column not in allowed:
            columns = [name for name, own in allowed.items() if own]
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


def _require_same(sheet: Sheet, read: Mapping[object, Mapping[str, object]], number: int) -> None:
    """Note the first row that Nextflow, which reads line by line, splits into other cells."""
    for line, cells in sheet.rows:
        if read.get(cells["subject"], {}).get("given") != cells or number != len(sheet.rows):
            sheet.problem(
                line,
                "Nextflow reads this sheet differently; write each row on one line, without quotes "
                "inside a cell.",
            )
            break
