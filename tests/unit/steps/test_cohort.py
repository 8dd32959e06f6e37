"""COHORT: every problem of the sheet is named at once."""

import json
import unicodedata

import pytest

from octane.config.schema import entries
from octane.core.errors import OctaneError
from octane.steps.cohort import make_cohort


@pytest.fixture
def cohort(tmp_path, write_json):
    """Check a sheet, staged under another name as a task has it; gives the subjects."""

    def run(text, *, look=True, **parameters):
        (tmp_path / "data").mkdir(exist_ok=True)
        staged = tmp_path / "staged.csv"
        staged.write_text(text, encoding="utf-8")
        given = {"samplesheet": str(tmp_path / "cohort.csv"), "outdir": "r", **parameters}
        request = write_json("request.json", {"parameters": given})
        make_cohort(request, staged, tmp_path / "cohort.json", look=look)
        return json.loads((tmp_path / "cohort.json").read_text())["subjects"]

    return run


@pytest.fixture
def problems(cohort, tmp_path):
    """The lines of what is wrong with a sheet."""

    def run(text, **parameters):
        with pytest.raises(OctaneError) as caught:
            cohort(text, **parameters)
        assert not (tmp_path / "cohort.json").exists()
        return str(caught.value).replace(f"{tmp_path}/", "").splitlines()

    return run


def test_cells_stay_text_and_paths_start_from_the_sheets_folder(cohort, tmp_path):
    (tmp_path / "mask.nii").touch()
    (tmp_path / "flat.tif").touch()
    found = cohort(
        "subject,input,resolution,n4_mask,stitch_flat_field\n01,data,010,,estimate\n"
        "\nb,data,,mask.nii,flat.tif\nc,data,,NONE,\n"
    )
    data = str(tmp_path / "data")
    assert [subject["given"] for subject in found] == [
        {"subject": "01", "input": data, "resolution": "010", "stitch_flat_field": "estimate"},
        {
            "subject": "b",
            "input": data,
            "n4_mask": str(tmp_path / "mask.nii"),
            "stitch_flat_field": str(tmp_path / "flat.tif"),
        },
        {"subject": "c", "input": data, "n4_mask": "NONE"},
    ]
    assert [subject["id"] for subject in found] == ["01", "b", "c"]
    assert found[1]["row"] == f"{tmp_path}/cohort.csv, line 4"


def test_every_parameter_that_acts_per_subject_may_be_a_column_and_no_other(problems):
    names = [entry.name for entry in entries() if entry.name not in ("subject", "input")]
    found = problems(f"{','.join(['subject', 'input', *names])}\n01,data{',' * len(names)}\n")
    refused = {
        entry.name
        for entry in entries()
        if any(f"line 1: {entry.name} is one for the whole run" in line for line in found)
    }
    assert refused == {entry.name for entry in entries() if not entry.per_subject}
    # Those that the wiring or a directive reads.
    assert {"outdir", "skip_n4", "publish_dir_mode", "scratch_dir", "gpu_count"} <= refused
    assert {"max_memory", "gpu_slots", "save_bias_field", "samplesheet"} <= refused


@pytest.mark.parametrize("text", ["", "subject,input\n"])
def test_a_sheet_without_a_subject_is_refused(problems, text):
    assert problems(text) == ["cohort.csv holds no subject; add a row for each."]


def test_two_forms_of_an_accent_are_one_name(problems):
    names = [unicodedata.normalize(form, "Coupé") for form in ("NFC", "NFD")]
    (line,) = problems(f"subject,input\n{names[0]},data\n{names[1].upper()},data\n")
    assert "is there already, in line 2" in line


def test_names_and_inputs_are_checked(problems, tmp_path):
    (tmp_path / "study[1]").mkdir()
    sheet = "subject,input\n../x,nowhere\nAb,data\naB,data\n,data\nd,\ne,study[1]\n"
    assert problems(sheet) == [
        "cohort.csv, line 2: '../x' is not a subject name; use letters, digits, blanks and "
        "._()-, with no . or - first.",
        "cohort.csv, line 4: the subject aB is there already, in line 3; give each subject one row "
        "and a name of its own.",
        "cohort.csv, line 5: the row has no subject; add it.",
        "cohort.csv, line 6: the row has no input; add it.",
        "cohort.csv, line 2: input nowhere does not exist; check the path.",
        "cohort.csv, line 7: study[1] has a [ in its path, which Nextflow cannot hand to tasks; "
        "rename it.",
    ]


def test_values_of_cells_are_checked_together_with_paths(problems):
    sheet = "subject,input,resolution,n4_strength\na,data,10,0.5\nb,nowhere,10 x 10,2\nc,data,,y\n"
    assert problems(sheet, overlap="none") == [
        "cohort.csv, line 3: input nowhere does not exist; check the path.",
        "cohort.csv, line 3: --resolution is 'x': input should be a valid number, unable to parse "
        "string as a number.",
        "cohort.csv, line 3: --n4_strength is '2': input should be less than or equal to 1.",
        "cohort.csv, line 4: --n4_strength is 'y': input should be a valid number, unable to parse "
        "string as a number.",
    ]


def test_unseen_paths_are_not_looked_for(cohort, tmp_path):
    (found,) = cohort("subject,input,n4_strength\n01,nowhere,0.5\n", look=False)
    assert found["given"]["input"] == f"{tmp_path}/nowhere"
    assert found["given"]["n4_strength"] == "0.5"
