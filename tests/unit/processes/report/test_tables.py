"""Settings, time and performance of a step in the report, over all its tasks."""

from typing import Any

from octane.core.records import Record
from octane.processes.preflight.parameters import STEPS
from octane.processes.report.tables import performance, step_tables

SURFACES = {"section_surface": "auto", "section_level": "auto"}
"""The workflow's own defaults."""


def test_the_slowest_stage_of_a_step_and_its_waiting_are_those_of_its_tasks_together():
    walls = [{"read": 5.0, "compute": 4.0}, {"compute": 4.0}]
    records = [Record(step="resample", wall_seconds=of) for of in walls]
    records.append(Record(step="resample", device={"backend": "gpu", "device": "A GPU"}))
    found = [performance(some)["slowest"] for some in (records, records[:1], records[2:])]
    assert found == ["compute", "read", None]
    for record, seconds in zip(records, (30.0, 90.0), strict=False):
        record.figures["gpu"] = {"backend": "gpu", "slot_wait_seconds": seconds}
    assert performance(records)["waited"] == 120


def test_changed_settings_come_first_and_are_marked():
    given = STEPS["n4"].model_validate({"mask": "tissue", "iterations": "auto", "strength": 0.75})
    record = Record(step="n4", settings=given.model_dump(mode="json"))
    # The workflow has its own defaults.
    for workflow, changed in (
        (False, ["mask", "iterations", "strength"]),
        (True, ["shrink_factor", "strength"]),
    ):
        found: Any = step_tables([record], workflow=workflow)["settings"]
        marks = [row["changed"] for row in found["n4"]]
        assert marks == sorted(marks, reverse=True)
        assert [row["name"] for row in found["n4"] if row["changed"]] == changed
        assert len(marks) == len(record.settings)


def test_only_numbers_have_a_unit():
    for surface, unit in ((30, "micrometer"), ("auto", "")):
        given = STEPS["stack"].model_validate({"section_surface": surface})
        record = Record(step="stack", settings=given.model_dump(mode="json"))
        found: Any = step_tables([record], workflow=True)["settings"]
        units = {row["name"]: row["unit"] for row in found["stack"]}
        assert (units["section_surface"], units["section_thickness"]) == (unit, "")


def test_sections_that_the_user_excluded_are_marked_as_changed():
    given = STEPS["stack"].model_validate(
        {"excluded_sections": "2", "codec": "blosc-lz4", "align": "auto", **SURFACES}
    )
    record = Record(step="stack", settings=given.model_dump(mode="json"))
    found: Any = step_tables([record], workflow=True)["settings"]
    assert [row["name"] for row in found["stack"] if row["changed"]] == ["excluded_sections"]


def test_a_table_in_use_comes_first_without_a_mark():
    given = {"refine": "auto", "flat_field": "auto"}
    own = STEPS["stitch"].model_validate(given).model_dump(mode="json")
    for value, in_use in (("from a table", True), ("unset", False)):
        record = Record(step="stitch", settings={**own, "positions": value})
        found: Any = step_tables([record], workflow=True)["settings"]
        assert [row["name"] for row in found["stitch"] if row["table"]] == ["positions"] * in_use
        assert not any(row["changed"] for row in found["stitch"])
        assert found["stitch"][0]["name"] == ("positions" if in_use else "overlap")


def test_what_the_workflow_sets_by_itself_is_not_marked_as_changed():
    given = STEPS["stack"].model_validate({"codec": "blosc-lz4", "align": "rigid", **SURFACES})
    record = Record(step="stack", settings=given.model_dump(mode="json"))
    for workflow, changed in ((False, ["align", *SURFACES, "codec"]), (True, ["align"])):
        found: Any = step_tables([record], workflow=workflow)["settings"]
        assert [row["name"] for row in found["stack"] if row["changed"]] == changed
