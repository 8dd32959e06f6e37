"""COHORT: subjects of a samplesheet, as CSV or YAML, and their own parameters.

A row's cells take the place of the run's parameters; PREFLIGHT checks their values. Every cell
stays the text that was written, so that a subject 01 stays "01". The output knows nothing of the
data, so that a changed cell changes its subject alone.
"""

import csv
import io
import json
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from octane.config.params import FLAT_FIELD_WORDS, MASK_WORDS
from octane.config.schema import entries, is_path
from octane.config.validation import misspelt, unfit_name, unlinkable
from octane.core.errors import OctaneError
from octane.core.metrics import write_json

SEPARATORS = ",;\t"
"""Spreadsheets write semicolons where the comma is the decimal sign."""


@dataclass
class Sheet:
    """Line and cells of each row, without empty ones; lines of the columns; problems, as sentences.

    A column belongs to the line that it first stands in.
    """

    name: str
    columns: dict[str, int] = field(default_factory=dict)
    rows: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def problem(self, line: int, sentence: str) -> None:
        """Note a problem."""
        self.problems.append(f"{self.name}, line {line}: {sentence}")


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
        raise OctaneError(f"{sheet.name} holds no subject; add a row for each.")
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
        row = f"{sheet.name}, line {line}"
        subjects.append({"id": cells.get("subject"), "given": given, "row": row})
    if sheet.problems:
        raise OctaneError("\n".join(sheet.problems))
    write_json(output, {"subjects": subjects})


def read_samplesheet(path: Path, name: str) -> Sheet:
    """Read a samplesheet in CSV (separated by commas, semicolons or tabs) or YAML, in UTF-8.

    Sentences call it by ``name``. An OctaneError says that it is no table.
    """
    readers = {".csv": _read_csv, ".tsv": _read_csv, ".yml": _read_yaml, ".yaml": _read_yaml}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise OctaneError(
            f"{name} is no samplesheet that octane knows; save it as .csv, .tsv or .yaml."
        )
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise OctaneError(f"{name} cannot be read as text; save it as CSV in UTF-8.") from error
    sheet = Sheet(name)
    reader(text, sheet)
    return sheet


def separator_of(text: str) -> str:
    """Separator of the cells of a CSV table: the most frequent one of its first line."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    return max(SEPARATORS, key=first.count)


def _read_csv(text: str, sheet: Sheet) -> None:
    # A quote counts also after a blank.
    reader = csv.reader(
        io.StringIO(text, newline=""),
        delimiter=separator_of(text),
        strict=True,
        skipinitialspace=True,
    )
    header: list[str] = []
    try:
        for row in reader:
            cells, line = [cell.strip() for cell in row], reader.line_num
            while cells and not cells[-1] and len(cells) != len(header):
                cells.pop()
            if not any(cells):
                continue
            if not header:
                header, sheet.columns = cells, dict.fromkeys(cells, line)
                if "" in header or len(sheet.columns) < len(header):
                    sheet.problem(line, "a column has no name or that of another; name each once.")
            elif len(cells) != len(header):
                sheet.problem(
                    line,
                    f"there are {len(cells)} cells and {len(header)} columns; fill it up, and put "
                    "a cell that holds the separator in quotes.",
                )
            else:
                texts = zip(header, cells, strict=True)
                sheet.rows.append((line, {column: text for column, text in texts if text}))
    except csv.Error as error:
        raise OctaneError(
            f"{sheet.name}, line {reader.line_num}: this is no row of a CSV table ({error}); "
            "correct the quotes."
        ) from error


def _read_yaml(text: str, sheet: Sheet) -> None:
    try:
        # Its nodes know their lines, and every value is the text that it is: 01 is no number.
        node = yaml.compose(text, yaml.BaseLoader)
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{sheet.name}, line {mark.line + 1}" if mark is not None else sheet.name
        reason = getattr(error, "problem", None) or "signs of no text, or nested too deeply"
        raise OctaneError(f"{where}: this is no YAML ({reason}); correct it.") from error
    if not isinstance(node, yaml.SequenceNode | None):
        raise OctaneError(
            f"{sheet.name} is no list of subjects; begin each with '- subject: NAME'."
        )
    for subject in node.value if node else []:
        cells: dict[str, str] = {}
        if isinstance(subject, yaml.MappingNode):
            for key, value in subject.value:
                _add(key, value, cells, sheet)
            sheet.rows.append((_line(subject), cells))
        else:
            sheet.problem(_line(subject), "this is no subject; begin it with '- subject: NAME'.")


def _add(key: yaml.Node, value: yaml.Node, cells: dict[str, str], sheet: Sheet) -> None:
    """Add a parameter of a subject in YAML to its cells."""
    values = value.value if isinstance(value, yaml.SequenceNode) else [value]
    if not all(isinstance(node, yaml.ScalarNode) for node in (key, *values)):
        sheet.problem(_line(key), "this is neither a value nor a list of values; correct it.")
        return
    if key.value in cells:
        sheet.problem(_line(key), f"{key.value} is there twice in one subject; remove one.")
    sheet.columns.setdefault(key.value, _line(key))
    text = " ".join(node.value for node in values).strip()
    if text not in ("", "~", "null"):
        cells[key.value] = text


def _line(node: yaml.Node) -> int:
    return node.start_mark.line + 1


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
        # Their results are folders, and some file systems know no capitals.
        before = first.setdefault(name.casefold(), line)
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
