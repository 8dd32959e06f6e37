"""A samplesheet: all problems of its rows are reported at once."""

import unicodedata

import pytest

from octane.config.sheets import read_samplesheet
from octane.core.errors import OctaneError
from octane.processes.preflight.parameters import entries
from octane.processes.preflight.samplesheet import check_samplesheet


@pytest.fixture
def check(tmp_path):
    """Check a sheet staged under another name; returns the places of the subjects' rows."""

    def run(text, lost=(), read=None):
        staged = tmp_path / "staged.csv"
        staged.write_text(text, encoding="utf-8")
        rows = read or [cells for _, cells in read_samplesheet(staged, "cohort.csv").rows]
        # As Nextflow reads it.
        subjects = [
            {
                "id": cells.get("subject", ""),
                "given": cells,
                "problems": [f"{cells['input']} does not exist; check --input."]
                if cells.get("input") in lost
                else [],
            }
            for cells in rows
        ]
        return check_samplesheet(staged, "cohort.csv", subjects)

    return run


@pytest.fixture
def problems(check):
    """Problems of a sheet, by line."""

    def run(*arguments, **options):
        with pytest.raises(OctaneError) as caught:
            check(*arguments, **options)
        return str(caught.value).splitlines()

    return run


def test_each_subject_has_the_place_of_its_row(check):
    found = check("subject,input,resolution,n4_mask\n01,data,010,\n\nb,data,,NONE\n")
    assert found == {"01": "cohort.csv, line 2", "b": "cohort.csv, line 4"}


def test_every_parameter_that_acts_per_subject_may_be_a_column_and_no_other(problems):
    names = [entry.name for entry in entries() if entry.name not in ("subject", "input")]
    found = problems(f"{','.join(['subject', 'input', *names])}\n01,data{',' * len(names)}\n")
    refused = {
        entry.name
        for entry in entries()
        if any(f"line 1: {entry.name} applies to the entire run" in line for line in found)
    }
    assert refused == {entry.name for entry in entries() if not entry.per_subject}
    # Those that the workflow or a directive reads.
    assert {"outdir", "skip_n4", "publish_dir_mode", "scratch_dir", "gpu_count"} <= refused
    assert {"gpu_slots", "save_bias_field", "samplesheet"} <= refused


@pytest.mark.parametrize("text", ["", "subject,input\n"])
def test_a_sheet_without_a_subject_is_refused(problems, text):
    assert problems(text) == ["cohort.csv lists no subjects; add a row for each."]


def test_two_forms_of_an_accent_are_one_name(problems):
    names = [unicodedata.normalize(form, "Coupé") for form in ("NFC", "NFD")]
    (line,) = problems(f"subject,input\n{names[0]},data\n{names[1].upper()},data\n")
    assert "is already in line 2" in line


def test_names_and_inputs_are_checked(problems):
    sheet = "subject,input\n../x,nowhere\nAb,data\naB,data\n,data\nd,\n"
    assert problems(sheet, lost=["nowhere"]) == [
        "cohort.csv, line 2: '../x' is not a subject name; use letters, digits, blanks "
        "and ._()-, and do not start with . or -.",
        "cohort.csv, line 4: the subject aB is already in line 3; give each subject one row "
        "and a unique name.",
        "cohort.csv, line 5: the subject is missing; add it.",
        "cohort.csv, line 6: the input is missing; add it.",
        "cohort.csv, line 2: nowhere does not exist; check --input.",
    ]


def test_values_of_cells_are_checked_together_with_paths(problems):
    sheet = "subject,input,resolution,n4_strength\na,data,10,0.5\nb,nowhere,10 x 10,2\nc,data,,y\n"
    assert problems(sheet, lost=["nowhere"]) == [
        "cohort.csv, line 3: nowhere does not exist; check --input.",
        "cohort.csv, line 3: --resolution is 'x': input should be a valid number, unable to parse "
        "string as a number.",
        "cohort.csv, line 3: --n4_strength is '2': input should be less than or equal to 1.",
        "cohort.csv, line 4: --n4_strength is 'y': input should be a valid number, unable to parse "
        "string as a number.",
    ]


@pytest.mark.parametrize(
    "read",
    [
        [{"subject": "01", "input": "a"}],
        [{"subject": "01", "input": "a"}, {"subject": "02", "input": '"b'}],
        [{"subject": name, "input": name} for name in "abc"],
    ],
)
def test_a_sheet_that_nextflow_reads_otherwise_is_refused(problems, read):
    (line,) = problems('subject,input\n01,a\n02,"b ""c"""\n', read=read)
    assert "Nextflow reads this sheet differently; write each row on one line" in line
    assert line.startswith(f"cohort.csv, line {3 if len(read) == 2 else 2}: ")
