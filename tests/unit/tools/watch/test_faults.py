"""Faults of a section, and what sections so far say of the next ones."""

from pathlib import Path

import pytest

from octane.core.records import Record
from octane.processes.stack.record import StackFigures
from octane.processes.stitch.record import StitchFigures, SurfaceFigures
from octane.tools.watch.faults import StitchedSection, faults_of
from octane.tools.watch.folder import TileState
from octane.tools.watch.outlook import disk_warning, usual_pause
from octane.tools.watch.sections import largest_pause, missing_files
from octane.tools.watch.state import UNMATCHED, SectionEntry

SOUND = {"tiles": 4, "shape": (40, 99, 99), "voxel_size": (2, 2, 2)}


@pytest.fixture
def stitched():
    def make(number, **figures):
        given = {**SOUND, "section": number, "digest": f"{number}", **figures}
        own, record = StitchFigures.model_validate(given), Record(step="stitch")
        return StitchedSection(number, Path(f"section_{number:02d}.ome.zarr"), record, own, Path())

    return make


@pytest.fixture
def pair():
    """What STACK says of sections 4 and 5."""

    def make(unlike=(), thickness=None, **own):
        sections = [
            {
                "number": 4,
                "start": 0,
                "stop": 9,
                "brightness": 100.0,
                "measured_thickness": thickness,
            },
            {"number": 5, "start": 9, "stop": 18, **own},
        ]
        given = {"sections": sections, "shape": (18, 99, 99), "voxel_size": (2, 2, 2)}
        return StackFigures.model_validate({**given, "unlike": unlike}), Record(step="stack")

    return make


def taken(**more):
    return SectionEntry(name="", state="good", fingerprint="", files=4, size=1, **more)


def kinds(faults):
    return [fault.kind for fault in faults]


def test_a_sound_section(stitched, pair):
    before = [taken(surface=20.0, thickness=50.0)] * 4
    found = {"surface": SurfaceFigures(depth=21.0, used=9, columns=9), "seam_y": 0.01}
    own = stitched(5, **found)
    assert faults_of(own, [stitched(4)], pair(thickness=51.0, brightness=0.9), before) == []


def test_faults_are_those_of_the_section_alone(stitched, pair):
    uneven = {"uneven": [{"row": 0, "column": 1, "brightness": 0.2}], "seam_median": 0.01}
    assert kinds(faults_of(stitched(5, **uneven), [stitched(4)], None)) == ["Tile brightness"]
    assert faults_of(stitched(5, seam_median=0.01), [stitched(4, **uneven)], None) == []
    (dark,) = faults_of(stitched(5), [stitched(4)], pair(brightness=0.01))
    assert dark.kind == "Section brightness"
    assert "Section 4" not in dark.sentence
    assert kinds(faults_of(stitched(5), [], pair(unlike=[(4, 5)]))) == [UNMATCHED]


@pytest.mark.parametrize(
    ("surface", "thickness", "expected"),
    [(None, None, ["Surface"]), (40.0, 50.0, ["Surface"]), (20.0, 90.0, ["Depth of the cut"])],
)
def test_surface_and_cut_are_compared_with_those_before(
    stitched, pair, surface, thickness, expected
):
    before = [taken(surface=20.0, thickness=50.0)] * 4
    own = stitched(5, surface=SurfaceFigures(depth=surface, used=0, columns=9, reason="no light"))
    given = (own, [stitched(4)], pair(thickness=thickness))
    assert kinds(faults_of(*given, before)) == expected
    assert faults_of(*given, before[:2]) == []


def test_missing_files_are_named_by_those_of_the_first_section():
    keys = {"1a": (0, 0), "1b": (0, 1), "2a": (0, 0)}
    assert missing_files(["2a"], ["1a", "1b"], keys.__getitem__) == ["1b"]
    assert missing_files(["2a", "2x"], ["1a", "1b"], keys.__getitem__) == []


def test_a_disk_that_fills():
    day = 86400 * 10**9
    rows = [taken(free={"/disk": 1000 - 100 * k}, last=k * day) for k in range(8)]
    assert disk_warning(rows, "/disk", 300, 2) is None
    assert disk_warning(rows, "/disk", 300, 5) == (3, 3.0)
    assert disk_warning(rows, "/disk", 300, None) == (3, 3.0)
    assert disk_warning(rows[:2], "/disk", 300, 5) is None


def test_pauses_by_the_files_own_times_outlast_a_clock_that_jumps():
    states = {str(k): TileState(1, k * 10**9) for k in (100, 110, 150)}
    assert largest_pause(states, None) == 40
    assert largest_pause(states, 0) == 100
    sections = [taken(pause=pause) for pause in (0, 50, 60, 1e9, 55)]
    assert usual_pause(sections) == 57.5
    assert usual_pause(sections[:3]) is None
