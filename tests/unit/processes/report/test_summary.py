import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octane.core.records import Record
from octane.processes.n4.record import N4Figures, VariationFigures
from octane.processes.report.summary import outliers, section_qualities, summary_of
from octane.processes.report.verdict import LEAST_SECTIONS, check_subject
from octane.processes.stack.record import SectionFigures, StackFigures
from octane.processes.stitch.record import StitchFigures


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_outliers_are_above_three_deviations(values):
    limit, far = outliers([*values, None, float("nan")])
    middle = np.median(values)
    deviation = max(np.median(np.abs(np.array(values) - middle)), 0.1 * middle, 0.005)
    assert limit == pytest.approx(middle + 3 * deviation)
    assert far[-2:] == outliers([None, None])[1] == [False, False]
    assert all(v > limit for v, out in zip(values, far, strict=False) if out)


def stitched(number, seam=0.02, uncovered=0):
    seams = {"seam_median": seam, "seam_max": 2 * seam, "uncovered_pixels": uncovered}
    return StitchFigures.model_validate(
        {"section": number, "tiles": 9, "shape": (1, 2, 3), **seams}
    )


def stack(*missing, count=4):
    sections = [
        SectionFigures(number=k, start=k, stop=k + 1, missing=k in missing)
        for k in range(1, count + 1)
    ]
    return StackFigures(sections=sections, shape=(1, 2, 3), voxel_size=(10.0, 10.0, 10.0))


def corrected(*after):
    varied = [VariationFigures(number=k, cv_before=0.3, cv_after=c) for k, c in enumerate(after, 1)]
    return N4Figures.model_construct(
        levels=[], variation=varied, field_min=0.5, field_max=2.0, cv_before=0.3, cv_after=0.1
    )


def test_sections_that_the_user_left_out_are_named_and_not_missing():
    volume = stack(2, 3, count=4).model_copy(update={"excluded_sections": [3, 5, 6]})
    found = section_qualities({}, volume, None)
    states = ["imaged", "missing", "excluded", "imaged", "excluded", "excluded"]
    assert [s.state for s in found] == states
    (check, *_) = check_subject(found, {}, volume, None)
    assert (check.value, check.sections) == (
        *("1 of 3; excluded by the user: 3 5-6", ("Section 2",)),
    )
    summary = summary_of([], found, None)
    assert (summary.sections, summary.missing, summary.excluded) == (3, 1, 3)


def test_every_section_has_its_figures_and_marks_in_order():
    seams = {4: 0.5, 3: 0.02, 1: 0.021}
    of = {f"s{k}": stitched(k, seam, uncovered=7 * (k == 3)) for k, seam in seams.items()}
    volume, n4 = stack(2, count=6), corrected(0.1, 0.1, 0.9, *[0.1] * (LEAST_SECTIONS - 3))
    found = section_qualities(of, volume, n4)
    assert [s.number for s in found] == [1, 2, 3, 4, 5, 6]
    assert [s.state for s in found] == ["stitched", "missing", *["stitched"] * 2, *["imaged"] * 2]
    marked = {c.name: c.sections for c in check_subject(found, of, volume, n4) if c.sections}
    assert marked == {
        "Missing sections": ("Section 2",),
        "Pixels without a tile": ("Section 3",),
        "Seams of a section": ("Section 4",),
        "Variation of a section": ("Section 3",),
    }
    assert found[2].cv_after == pytest.approx(0.9)
    assert found[5].cv_after is None
    few = corrected(0.1, 0.1, 0.9, 0.1)
    states = {
        c.name: c.state
        for c in check_subject(section_qualities(of, stack(2), few), of, stack(2), few)
    }
    assert states["Variation of a section"] == "not checked"


def test_sections_that_came_stitched_lack_nothing():
    assert [s.state for s in section_qualities({}, stack(), None)] == ["imaged"] * 4
    # Nor does a single section without a number, which STACK numbers 1.
    alone = section_qualities({"brain": stitched(None)}, stack(count=1), None)
    assert [s.title for s in alone] == ["brain"]
    # A volume that is not a stack lacks sections.
    assert section_qualities({}, None, corrected(0.1)) == []


def test_the_summary_adds_up_tasks():
    sections = section_qualities({"a": stitched(1), "b": stitched(2, seam=0.04)}, None, None)
    records = [
        Record(step="n4", attempt=2, seconds={"total": 10.0}, peak_memory_bytes=5),
        Record(
            step="resample",
            seconds={"total": 5.0},
            device={"backend": "gpu", "device": "A GPU"},
            figures={"gpu": {"backend": "gpu", "slot_wait_seconds": 3.0}},
        ),
    ]
    summary = summary_of(records, sections, None)
    assert summary.seconds == pytest.approx(15)
    assert summary.gpu_wait_seconds == pytest.approx(3)
    assert summary.seam_median == pytest.approx(0.03)
    assert (summary.sections, summary.retried, summary.devices) == (2, 1, ["A GPU"])
    assert summary.peak_memory_bytes == 5


def test_the_summary_adds_up_the_data_of_all_channels():
    # Aliased: the field in the record's JSON is "bytes".
    record = {"step": "n4", "bytes": {"read": 3, "written": 4, "linked": 100}}
    records = [Record.model_validate(record | {"channel": name}) for name in ("a", "b", "c")]
    assert summary_of(records, [], None).data_bytes == 21
