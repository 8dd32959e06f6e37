"""What octane decided, as the report lists it."""

from typing import Any

import pytest

from octane.core.records import Context, Decision
from octane.processes.n4.record import N4Figures
from octane.processes.report.check import Settings
from octane.processes.report.decisions import list_decisions
from octane.processes.stack.record import StackFigures
from octane.processes.stitch.record import StitchFigures

BEFORE = Decision(subject="a", evidence="b", done="c", flag="--overlap 0.2,0.3")
PLACED = {"nominal_positions": {"0,0": (0, 0)}, "positions": {"0,0": (0, 3)}}
KEPT = {"nominal_positions": {"0,0": (0, 0)}, "positions": {"0,0": (0, 0)}, "not_refined": "why"}
HELD = {"before": (0.1, 0.1), "after": (0.02, 0.02), "noise": (0.001, 0.001)}
IDLE = {**HELD, "after": (0.1, 0.1)}
"""Seams of two halves that a correction lowers, and that one does not."""


def stitched(*sections: dict[str, Any]) -> dict[str, StitchFigures]:
    """Sections with these figures, by title."""
    base = {"tiles": 1, "shape": (1, 2, 3)}
    return {
        f"Section {n}": StitchFigures.model_validate({**base, "section": n, **own})
        for n, own in enumerate(sections, start=1)
    }


def stacked(*sections: dict[str, Any]) -> StackFigures:
    """A stack of sections with these figures."""
    slabs = [{"number": n, "start": n, "stop": n + 1, **own} for n, own in enumerate(sections)]
    figures = {"sections": slabs, "shape": (3, 2, 3), "voxel_size": (1.0, 1.0, 1.0)}
    return StackFigures.model_validate(figures)


def corrected(entropy: list[float], levels: int) -> N4Figures:
    """A fit of so many levels, of the relative entropy with 0, 1 and more."""
    level = {"iterations": 1, "convergence": [0.1]}
    given: dict[str, Any] = {
        "relative_entropy": entropy,
        "levels": [level] * levels,
        **{"cv_before": 0.2, "cv_after": 0.1, "field_min": 1.0, "field_max": 1.1},
        **{"mask_fraction": 0.5, "shrunk_shape": (1, 2, 3), "shrunk_spacing": (1.0, 1.0, 1.0)},
    }
    return N4Figures.model_validate(given)


def listed(sections=None, stack=None, n4=None, before=(), **settings):
    """Decisions by the flag that states them."""
    given = Settings(*(settings.get(step, {}) for step in ("stitch", "stack", "n4")))
    found = list_decisions(before, sections or {}, stack, n4, given)
    assert all(own.subject and own.evidence and own.done for own in found)
    return {own.flag: own for own in found}


def test_nothing_is_listed_that_was_stated():
    n4 = corrected([], 2)
    surface = {"surface": 30.0, "surface_from": "as given"}
    assert listed(stitched({}, {}), stacked(surface, surface), n4) == {}


def test_what_was_decided_before_any_work_comes_first():
    found = listed(stitched(PLACED), before=[BEFORE], stitch={"refine": "auto"})
    assert [*found] == [BEFORE.flag, "--positions SUBJECT_positions.csv"]


def test_places_say_where_they_changed_and_why_not():
    (own,) = listed(stitched(PLACED, KEPT), stitch={"refine": "auto"}).values()
    assert "1 of 2" in own.evidence
    assert "why" in own.evidence
    assert "3.0" in own.done
    (own,) = listed(stitched(KEPT, KEPT), stitch={"refine": "auto"}).values()
    assert "0 of 2" in own.evidence


@pytest.mark.parametrize(
    ("kind", "used"), [("gains_held_out", "1 of 2"), ("flat_held_out", "2 of 2")]
)
def test_corrections_of_light_show_the_seams_that_judge_them(kind, used):
    (own,) = listed(stitched({kind: HELD}, {kind: IDLE})).values()
    assert "10.0 % before" in own.evidence
    assert used in own.done


def test_what_was_measured_of_sections_is_counted():
    cut = {"surface": 30.0, "surface_from": "measured", "measured_thickness": 150.0}
    stack = stacked({**cut, "moved": True, "shift": (5, 0)}, {"surface": 0.0})
    given: Context = {
        "section_surface": "auto",
        "section_thickness": "auto",
        "align": "translation",
    }
    found = list_decisions([], {}, stack, None, Settings({}, given, {}))
    assert ["1 of 2" in own.evidence for own in found] == [True] * 3
    assert [own.flag for own in found] == [
        "--section_surface auto",
        "--displacements SUBJECT_displacements.csv",
        "--displacements SUBJECT_displacements.csv",
    ]


def test_levels_of_n4_show_the_entropy_that_judges_them():
    assert [*listed(n4=corrected([0.3, 0.2, 0.1], 2))] == ["--n4_levels 2"]
    (own,) = listed(n4=corrected([0.1, 0.1], 0)).values()
    assert own.flag == "--n4_levels 0"
    assert "0.100" in own.evidence
