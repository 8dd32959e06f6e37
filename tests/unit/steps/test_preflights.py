"""PREFLIGHT of a cohort: the problems of all subjects at once, each with the subject's name."""

import json
import os

import numpy as np
import pytest

from octane.core.errors import OctaneError
from octane.steps.preflight import make_plans


@pytest.fixture
def plans(tmp_path, write_json, write_mosaic):
    """Check two subjects of a mosaic each; gives the plans as written."""
    voxels = np.ones((4, 20, 30), np.float32)
    for number in (1, 2):
        write_mosaic(f"input/{number}/brain/section_01.ome.zarr", voxels, (4, 10, 10))
    (tmp_path / "positions" / "1").mkdir(parents=True)

    def run(first, second, table=None, marks=None, **parameters):
        seen = {"marks": marks or {}}
        subjects = [
            {"subject": "a", "row": "cohort.csv, line 2", "given": first, "table": None, **seen},
            {"subject": "b", "row": "", "given": second, "table": table, **seen},
        ]
        run = {"outdir": str(tmp_path / "results"), "subject": None, **parameters}
        request = write_json("request.json", {"parameters": run, "subjects": subjects})
        make_plans(request, tmp_path / "input", tmp_path / "plans.json", tmp_path / "positions")
        return json.loads((tmp_path / "plans.json").read_text())["plans"]

    return run


def test_each_subject_has_a_plan_with_its_own_settings(plans):
    first, second = plans({"overlap": "0"}, {"n4_strength": "0.5"}, overlap=0.2)
    assert (first["subject"], second["subject"]) == ("a", "b")
    assert first["flags"]["stitch"] == "--backend cpu --overlap 0 0"
    assert second["flags"]["stitch"] == "--backend cpu --overlap 0.2 0.2"
    auto = "--mask tissue --shrink-factor auto --iterations auto"
    assert first["flags"]["n4"] == auto
    assert second["flags"]["n4"] == f"{auto} --strength 0.5"


def test_a_table_of_positions_is_one_subjects_own(plans, tmp_path):
    rows = "".join(f"1,{r},{c},{r * 100},{c * 100}\n" for r in range(2) for c in range(3))
    (tmp_path / "positions" / "1" / "p.csv").write_text(f"section,row,column,y,x\n{rows}")
    assert len(plans({"overlap": "0"}, {}, table=1)) == 2


def test_problems_name_their_subject_and_what_all_have_is_said_once(plans, tmp_path):
    with pytest.raises(OctaneError) as caught:
        plans({"n4_strength": "2"}, {"overlap": "x"}, table=None)
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("a (cohort.csv, line 2): --n4_strength is '2'")
    assert lines[1].startswith("b: --overlap is 'x'")
    with pytest.raises(OctaneError) as caught:
        plans({}, {}, overlap=0, resoluton=10)
    assert str(caught.value) == "Unknown parameter --resoluton; did you mean --resolution?"
    assert not (tmp_path / "plans.json").exists()


def test_a_task_must_see_what_the_launch_saw(plans, tmp_path):
    file = tmp_path / "input" / "1" / "brain" / "section_01.ome.zarr" / "zarr.json"
    mark = [file.stat().st_size, int(file.stat().st_mtime)]
    marks = {"section_01.ome.zarr": mark}
    (tmp_path / "input" / "2" / "brain" / "section_01.ome.zarr").joinpath("zarr.json").touch()
    other = tmp_path / "input" / "2" / "brain" / "section_01.ome.zarr" / "zarr.json"
    os.utime(other, (mark[1] + 0.5, mark[1] + 0.5))
    # Fractions of a second, which not every file system keeps, do not matter.
    assert len(plans({"overlap": 0}, {"overlap": 0}, marks=marks)) == 2
    os.utime(other, (mark[1] + 60, mark[1] + 60))
    with pytest.raises(OctaneError, match=r"b: .*/2/brain/section_01.ome.zarr is not what"):
        plans({"overlap": 0}, {"overlap": 0}, marks=marks)


def test_a_folder_without_metadata_has_no_mark(plans):
    with pytest.raises(OctaneError, match="Unknown"):
        plans({}, {}, marks={"gone.zarr": None}, nothing=1)
