"""A samplesheet: all problems of its rows are reported at once."""

import unicodedata

import pytest
from plans import launched
from refusals import refused

from octane.core.errors import OctaneError
from octane.processes.preflight.parameters import entries
from octane.processes.preflight.samplesheet import read_subjects


@pytest.fixture
def check(tmp_path):
    """Check a sheet; returns its subjects."""

    def run(text, name="cohort.csv"):
        sheet = tmp_path / name
        sheet.write_text(text, encoding="utf-8")
        return read_subjects(launched(tmp_path, parameters={"samplesheet": str(sheet)}))

    return run


@pytest.fixture
def problems(check, tmp_path):
    """Problems of a sheet, by line."""

    def run(*arguments, **options):
        with pytest.raises(OctaneError) as caught:
            check(*arguments, **options)
        return str(caught.value).replace(f"{tmp_path}/", "").splitlines()

    return run


def test_each_subject_has_its_row_and_absolute_paths(check, tmp_path):
    sheet = "subject,input,resolution,n4_mask\n01,data,010,\n\nb,/data,,NONE\nc,d,,m.nii\n"
    found = {own["id"]: own for own in check(sheet)}
    assert [own["row"] for own in found.values()] == [
        f"{tmp_path}/cohort.csv, line {line}" for line in (2, 4, 5)
    ]
    assert found["01"]["given"] == {
        "subject": "01", "input": f"{tmp_path}/data", "resolution": "010",
    }  # fmt: skip
    assert found["b"]["given"]["n4_mask"] == "NONE"
    assert found["b"]["input"] == "/data"
    assert found["c"]["given"]["n4_mask"] == f"{tmp_path}/m.nii"


def test_cells_may_hold_quotes_and_line_breaks(check):
    (own,) = check('subject,input\n01,"a ""b"", c\nd"\n')
    assert own["input"].endswith('/a "b", c\nd')


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
    assert problems(sheet) == [
        "cohort.csv, line 2: '../x' is not a subject name; use letters, digits, blanks "
        "and ._()-, and do not start with . or -.",
        "cohort.csv, line 4: the subject aB is already in line 3; give each subject one row "
        "and a unique name.",
        "cohort.csv, line 5: the subject is missing; add it.",
        "cohort.csv, line 6: the input is missing; add it.",
    ]


def test_values_of_cells_and_addresses_are_checked(problems):
    sheet = "subject,input,resolution,n4_strength\na,data,10,0.5\nb,s3://x/y,10 x 10,2\nc,data,,y\n"
    assert problems(sheet) == [
        "cohort.csv, line 3: --resolution is 'x': input should be a valid number, unable to parse "
        "string as a number.",
        "cohort.csv, line 3: --n4_strength is '2': input should be less than or equal to 1.",
        "cohort.csv, line 3: --input s3://x/y is an address, but octane reads and writes files "
        "only: mount or copy it, as in docs/faq.md#remote.",
        "cohort.csv, line 4: --n4_strength is 'y': input should be a valid number, unable to parse "
        "string as a number.",
    ]


def test_a_sheet_that_is_not_there_is_named(tmp_path):
    with refused("--samplesheet", f"{tmp_path}/x.csv"):
        read_subjects(launched(tmp_path, parameters={"samplesheet": f"{tmp_path}/x.csv"}))
