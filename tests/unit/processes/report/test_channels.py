"""The report of several channels: one was measured, the others lie where it does."""

import json
import re
from unittest.mock import Mock

import pytest
from refusals import refused
from report_subject import Subject

from octane.core.errors import InputError
from octane.core.records import Outcome
from octane.pictures import pictures

NAMES = ("OCT", "GFP <1> & 2", "axis")


@pytest.fixture
def subject(tmp_path, monkeypatch):
    """Two sections in three channels, the last of which is of angles; pictures are not encoded."""
    monkeypatch.setattr(pictures, "_encode", Mock(return_value=b""))
    return Subject(tmp_path).several(NAMES, nearest=["axis"])


def change(subject, task, **figures):
    """Change figures of a task's record."""
    (path,) = (path for path in subject.records if path.name == f"{task}_metrics.json")
    record = json.loads(path.read_text(encoding="utf-8"))
    record["figures"] |= figures
    path.write_text(json.dumps(record), encoding="utf-8")


def twin_of(page):
    return json.loads(page.with_suffix(".json").read_text(encoding="utf-8"))


def test_each_channel_is_shown_and_those_that_are_averaged_together(subject):
    page = subject.report(channel="OCT", run={})
    html = page.read_text(encoding="utf-8")
    assert "<1>" not in html
    shown = re.findall('alt="Central XY plane of ([^"]*)"', html)
    added = "the finished volume, channels added in their colours"
    assert shown == [added, "OCT", "GFP &lt;1&gt; &amp; 2", "axis"]
    assert "Left out, as their values are never averaged: axis" in html
    files = {path.name for path in (page.parent / "previews").iterdir()}
    assert {"volume_z.png", *(f"channel_{k}_y.png" for k in range(3))} <= files
    assert "GFP-1-2_n4_cut_z.png" in files
    assert "axis_n4_cut_z.png" not in files
    assert re.search("axis</th><td[^>]*>passed through", html)
    twin = twin_of(page)
    channels = [(own["name"], own["is_reference"], own["kind"]) for own in twin["channels"]]
    assert channels == [(NAMES[0], True, None), (NAMES[1], False, None), ("axis", False, "nearest")]
    assert twin["thumbnail"] is not None
    # The reference's tiles alone: two sections of nine.
    table = page.with_name("report_positions.csv").read_text(encoding="utf-8")
    assert len(table.splitlines()) == 19


def test_places_are_checked_on_the_reference_and_brightness_on_each(subject):
    other = "section_02_GFP-1-2_stitch"
    tile = {"row": 1, "column": 1}
    change(subject, other, seam_y=0.9, seam_x=0.9, seam_median=0.9, misplaced=[tile])
    change(subject, other, uncovered_pixels=7, uneven=[{**tile, "brightness": 0.3}])
    change(subject, "section_01_axis_stitch", uneven=[{**tile, "brightness": 0.1}])
    # A fit to noise may leave a little more variation.
    change(subject, "GFP-1-2_n4", cv_before=0.5, cv_after=0.501, truth=None)
    page = subject.report(channel="OCT")
    twin = twin_of(page)
    warned = [check["name"] for check in twin["checks"] if check["state"] == "warning"]
    assert warned == ["Tile brightness (GFP <1> & 2)"]
    assert twin["verdict"].startswith("Look at 1 of ")
    assert twin["summary"]["flagged"] == ["Section 2"]
    html = page.read_text(encoding="utf-8")
    assert re.search(r"<details open><summary>GFP &lt;1&gt; &amp; 2: 1 to look at, \d of 7", html)
    assert "axis: not checked, because its values have no brightness" in html


def test_brightness_of_another_channel_is_judged_where_it_can_be(subject):
    change(subject, "GFP-1-2_n4", cv_before=0.5, cv_after=0.6, truth=None, field_max=9.0)
    for number in (1, 2):
        change(subject, f"section_{number:02d}_GFP-1-2_stitch", shading_before=0.2)
    found = {own["name"]: own["state"] for own in twin_of(subject.report(channel="OCT"))["checks"]}
    for name in ("Variation in tissue", "Range of the bias field", "Shading of tiles"):
        assert found[f"{name} (GFP <1> & 2)"] == "warning"
    assert not {"Seams along y (GFP <1> & 2)", "Section boundaries (GFP <1> & 2)"} & {*found}


def test_a_reference_that_is_only_measured_is_not_in_the_volume(subject):
    change(subject, "channels", channels=[
        {"name": "GFP <1> & 2", "kind": None, "color": "FFFFFF", "window": [5.0, 5.0]}
    ])  # fmt: skip
    page = subject.report(channel="OCT")
    assert [own["name"] for own in twin_of(page)["channels"]] == ["GFP <1> & 2", "OCT", "axis"]
    html = page.read_text(encoding="utf-8")
    assert "1 channel of the volume" in html
    assert "added in their colours" not in html


def test_records_of_several_channels_need_the_name_of_the_reference(subject):
    with refused("GFP", "--channel", "NAME", error=InputError):
        subject.report()
    assert not (subject.folder / "out" / "report.html").exists()


def test_the_page_of_a_single_channel_names_none(tmp_path):
    page = Subject(tmp_path).whole(2).report()
    html, _, _ = page.read_text(encoding="utf-8").partition("Command line of each task")
    assert "channel" not in html.lower()
    assert ".legend" not in html
    assert twin_of(page)["channels"] == []


def test_a_lost_task_of_another_channel_is_no_section(subject):
    missing = ["stack", "GFP_stack", "section_02_GFP_stitch", "section_02_stitch", "GFP_n4"]
    lost = Outcome(missing=[*missing, "REF_pyramid", "channels"], sentence="STITCH failed.")
    assert lost.sections == ["section_02"]
    assert Outcome(missing=["section_02_GFP_stitch", "GFP_stack"], sentence="").sections == []
    html = subject.report(channel="OCT", lost=lost).read_text(encoding="utf-8")
    assert "Channels – not finished" in html
    assert "of the finished volume" not in html
