import base64
import json
import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from unittest.mock import Mock
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from refusals import refused
from report_subject import Subject

from octane.config.parameters import ExecutionParameters
from octane.core.geometry import expected_position
from octane.core.orientation import Orientation
from octane.core.records import Outcome
from octane.pictures import charts, pictures
from octane.processes.report.check import Check
from octane.processes.report.step import write_report

VOID = {"meta", "link", "img", "br", "hr", "input"}


class Page(HTMLParser):
    """A page's tags and its text; fails on tags that do not match."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self._open:
            self.text += " ".join(data.replace("\xa0", " ").split()) + " "

    def of(self, *names: str) -> list[dict[str, str]]:
        return [attributes for tag, attributes in self.tags if tag in names]

    def pictures(self) -> Iterator[Image.Image]:
        for tag, attributes in self.tags:
            if tag == "img":
                kind, data = attributes["src"].split(",", 1)
                assert kind == "data:image/webp;base64"
                yield Image.open(BytesIO(base64.b64decode(data, validate=True)), formats=["webp"])


@pytest.fixture
def subject(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Subject:
    """A subject whose pictures are drawn but not encoded, which is faster."""
    monkeypatch.setattr(pictures, "_encode", Mock(return_value=b""))
    return Subject(tmp_path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a complete subject whose second and third sections are missing."""
    subject = Subject(tmp_path_factory.mktemp("subject")).whole(4, missing=(2, 3))
    run = {"Repository": "https://example.org/x", "input": "/data/01", "command": "nextflow run x"}
    return subject.report(run=run)


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_figures(path: Path, **changes: object) -> None:
    figures = json.loads(path.read_text(encoding="utf-8"))["figures"]
    edit(path, figures=figures | changes)


def test_the_page_is_well_formed(whole: Path) -> None:
    page = Page(whole)
    assert all(image["alt"].strip() for image in page.of("img"))
    assert all(cell.get("scope") in ("row", "col") for cell in page.of("th"))
    # Scrolling regions are named and reachable by keyboard, and headings do not skip a level.
    assert all(a.get("aria-label") and a["role"] for _, a in page.tags if "tabindex" in a)
    headings = [int(tag[1]) for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)]
    assert (headings[0], headings.count(1)) == (1, 1)
    assert all(below - above <= 1 for above, below in pairwise(headings))
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    named = {a["href"].removeprefix("#") for a in page.of("a") if a["href"].startswith("#")}
    named |= {a["aria-labelledby"] for _, a in page.tags if "aria-labelledby" in a}
    assert named <= set(ids)
    # It works without network and scripts; links lead to files next to it.
    assert not page.of("script", "link", "iframe", "object", "base")
    assert not any(urlsplit(a["href"]).scheme or a["href"].startswith("/") for a in page.of("a"))
    policy = next(m["content"] for m in page.of("meta") if "http-equiv" in m)
    assert policy.startswith("default-src 'none'")


def test_names_are_shown_and_not_run(subject: Subject) -> None:
    subject.stack(2)
    evil = "<script>alert('1')</script>"
    run = {f"k{evil}": f"v{evil}", "Container": ""}
    path = subject.report(subject=evil, run=run)
    html, page = path.read_text(encoding="utf-8"), Page(path)
    assert "<script" not in html
    assert html.count("&lt;script&gt;alert(") >= 3
    assert f"k{evil}" in page.text
    # Unknown values are not shown.
    assert "Container" not in page.text


def test_all_pictures_decode(whole: Path) -> None:
    page = Page(whole)
    shown = [(int(i["width"]), int(i["height"])) for i in page.of("img")]
    # 12 cuts, 2 sections, 3 cuts of the volume; 3 charts and 2 maps.
    assert (len(shown), len(page.of("svg"))) == (17, 5)
    assert [picture.size for picture in page.pictures()] == shown
    sizes = {i["alt"]: size for i, size in zip(page.of("img"), shown, strict=True)}
    assert sizes["Central XY plane, before"] == (512, 512)
    assert sizes["Central XZ plane, bias field"] == (512, round(512 * 16 / 48))
    assert whole.stat().st_size < 1_000_000
    files = list((whole.parent / "previews").iterdir())
    names = {"cut_z.png", "volume_x.png", "profile.svg", "section_01_stitch.png"}
    assert names <= {file.name for file in files}
    for file in files:
        if file.suffix == ".png":
            Image.open(file).load()


def test_a_chart_takes_the_colours_of_the_page_and_its_file_the_light_ones(whole: Path) -> None:
    html = whole.read_text(encoding="utf-8")
    style = html[html.index("<style>") : html.index("</style>")]
    # Maps of tiles are dark everywhere.
    drawn = [s for s in re.findall(r"<svg.*?</svg>", html, re.DOTALL) if "<image" not in s]
    for svg, name in zip(drawn, ("seams", "profile", "histogram"), strict=True):
        used = set(re.findall(r"var\(--(\w+)\)", svg))
        assert {"card", "ink", "muted", "grid", "accent"} <= used
        for colour in used:
            # For light screens and for dark ones.
            found = re.findall(rf"--{colour}:(#\w+)", style)
            assert found == [charts.LIGHT_PALETTE[colour], charts.DARK_PALETTE[colour]]
            svg = svg.replace(f"var(--{colour})", charts.LIGHT_PALETTE[colour])
        file = whole.parent / "previews" / f"{name}.svg"
        assert file.read_text(encoding="utf-8").strip() == svg
        assert ElementTree.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"


def test_before_and_after_share_one_scale_and_fields_another(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    panel = Mock(wraps=pictures.panel)
    monkeypatch.setattr(pictures, "panel", panel)
    subject.n4(truth=True)
    subject.report()
    # In page order; the cuts of the volume come first.
    shown = [call for call in panel.call_args_list if call.kwargs.get("longest") == 512]
    scales = [call.args[2] for call in shown][3:]
    rows = [scales[k : k + 4] for k in range(0, 12, 4)]
    grey, field = rows[0][0], rows[0][2]
    assert rows == [[grey, grey, field, field]] * 3
    # On its own scale, the darker one would end at a fifth.
    assert grey.high > 1000
    assert field.logarithmic


def test_headline_figures_and_gaps_stand_out(whole: Path) -> None:
    page = Page(whole)
    for words in (
        "30.0 % → 10.0 %",
        "66.7 % lower",
        "r = 0.988",
        "31.0 % → 6.00 %",
        "Voxel size 10 µm",
        "0.6 × 0.96 × 1.44 mm",
        "iteration limit",
        "0, 1234, 8",
        "Sections 2, 3: missing and left blank",
        "2 of 4",
    ):
        assert words in page.text
    # Missing sections keep their places in the row.
    order = [page.text.index(f"Section {k}") for k in (1, 2, 3, 4)]
    assert order == sorted(order)


def test_the_page_opens_with_the_volume_and_tells_what_was_run(whole: Path) -> None:
    page = Page(whole)
    ids = [attributes["id"] for attributes in page.of("section")]
    assert ids[:3] == ["volume", "checks", "run"]
    assert ids[3:7] == ["sections", "bias", "pyramid", "steps"]
    assert "bar" in page.text[page.text.index("XY plane : x to the right, y down") :][:50]
    begin, end = (page.text.index(words) for words in ("Input /data/01", "Sections and seams"))
    ran = " ".join(page.text[begin:end].split())
    # The first task starts at 1.7e9 seconds, the last one 16 later.
    assert "Computed 2023-11-14 22:13 to 22:13 UTC Command nextflow run x Steps" in ran
    assert page.text.index("/data/01") == page.text.rindex("/data/01")


@pytest.mark.parametrize(
    ("orientation", "said"),
    [
        (("anterior-to-posterior", "superior-to-inferior", "left-to-right"),
         "PIR z anterior to posterior, y superior to inferior, x left to right"),
        (("", "proximal-to-distal", ""), "stated y proximal to distal"),
        (("", "", ""), None),
    ],
)  # fmt: skip
def test_the_orientation_is_among_the_key_figures(
    subject: Subject, orientation: Orientation, said: str | None
) -> None:
    subject.orientation = orientation
    subject.n4()
    text = " ".join(Page(subject.report()).text.split())
    assert f"Orientation {said}" in text if said else "Orientation" not in text


CHECKS = [
    Check("Seams along y", "0.3 %", "at most 5 %", "good"),
    Check("Overlap along x", "0.2", "0.25", "warning", "Give --overlap 0.25,0.2."),
    Check("Brightness", "", "", "not checked", "fewer than 3 sections"),
]


def test_a_subject_that_lacks_results_is_incomplete_first_of_all(subject: Subject) -> None:
    subject.resample(1)
    subject.resample(2)
    subject.stitch(1)
    missing = ["section_02_stitch", "stack", "n4", "pyramid"]
    sentence = "STITCH of section_02 failed: a chunk is damaged."
    lost = Outcome(missing=missing, sentence=sentence)
    destination = subject.report(run={"input": "/data/01"}, lost=lost)
    twin = json.loads(destination.with_suffix(".json").read_text(encoding="utf-8"))
    assert (twin["state"], twin["verdict"]) == ("incomplete", f"Incomplete: {sentence}")
    assert [check["name"] for check in twin["checks"]][:2] == ["Results", "Missing sections"]
    assert twin["checks"][0]["value"] == "4 tasks not done"
    assert twin["checks"][1]["value"] == "1 of 2"
    assert twin["summary"]["missing"] == 1
    text = Page(destination).text
    assert "Sections 1 of 2 stitched" in text
    assert "Stitch – not finished, 1 done" in text
    assert "N4 – not finished" in text
    assert ".ome.zarr" not in text
    assert "finished volume" not in text


def test_a_subject_without_a_single_record_is_incomplete(subject: Subject) -> None:
    lost = Outcome(missing=["n4"], sentence="N4 failed (exit 1).")
    destination = subject.report(run={}, lost=lost)
    assert "Incomplete: N4 failed (exit 1)." in Page(destination).text


def test_a_volume_of_an_input_that_changed_is_not_shown(subject: Subject) -> None:
    subject.resample(1, volume=True)
    lost = Outcome(changed="a changed", sentence="a changed.")
    text = Page(subject.report(run={}, lost=lost)).text
    assert "Incomplete: a changed." in text
    assert "finished volume" not in text
    assert ".ome.zarr" not in text


@pytest.mark.parametrize(
    ("checks", "sentence", "state"),
    [
        (CHECKS, "Look at 1 of 2 checks: Overlap along x.", "look"),
        (CHECKS[::2], "Good: 1 check passed.", "good"),
        (CHECKS[2:], "Nothing could be checked.", "look"),
    ],
)
def test_the_verdict_stands_first_and_its_checks_follow(
    subject: Subject,
    monkeypatch: pytest.MonkeyPatch,
    checks: list[Check],
    sentence: str,
    state: str,
) -> None:
    monkeypatch.setattr("octane.processes.report.html.check_subject", Mock(return_value=checks))
    subject.stack(1)
    path = subject.report()
    page, twin = Page(path), json.loads(path.with_suffix(".json").read_text())
    assert page.text.index(sentence) < page.text.index("XY plane")
    assert all(f"{c.name} {c.value}".strip() in page.text for c in checks)
    assert page.text.count("▲ look") == page.text.count(CHECKS[1].sentence) == (len(checks) == 3)
    assert [p for p in page.of("p") if "look" in p.get("class", "")] == [
        {"class": "verdict look"}
    ] * (len(checks) == 3)
    assert (twin["verdict"], twin["state"]) == (sentence, state)
    assert [c["state"] for c in twin["checks"]] == [c.state for c in checks]
    assert twin["warnings"] == [c.sentence for c in checks if c.state == "warning"]


def test_fields_of_sections_have_a_table_and_no_empty_chart(subject: Subject) -> None:
    subject.n4(by_section=True)
    text = Page(subject.report()).text
    for words in ("section_07", "14 – 27", "3 + 3", "nothing to fit in section_09"):
        assert words in text
    assert "Fitting levels" not in text


def test_judged_levels_have_rows(subject: Subject) -> None:
    subject.n4(judged=True)
    text = Page(subject.report()).text
    for words in ("2 of 3", "0.500, 0.250, 0.125, 0.750"):
        assert words in text


NUMBERED = {"stack": (2,), "stitch": (1,), "resample": (1,)}


@pytest.mark.parametrize(
    ("steps", "volume"),
    [
        *((steps, False) for steps in ("stitch", "resample", "resample stitch")),
        *((steps, True) for steps in ("resample", "stack", "n4", "pyramid", "stitch n4 pyramid")),
        *((steps, True) for steps in ("resample stack n4", "resample stack n4 pyramid")),
    ],
)
def test_steps_may_be_switched_off_and_the_last_volume_is_shown(
    subject: Subject, steps: str, *, volume: bool
) -> None:
    given = steps.split()
    for step in given:
        more = {"volume": True} if steps == "resample" and volume else {}
        getattr(subject, step)(*NUMBERED.get(step, ()), **more)
    path = subject.report()
    page, twin = Page(path), json.loads(path.with_suffix(".json").read_text())
    assert page.text.count("– not run") == 5 - len(given)
    assert all(f"{step.capitalize()} – not run" not in page.text for step in given)
    # Columns without figures are left out.
    assert page.text.count("Largest seam") == ("stitch" in given)
    assert "GB/s" not in page.text
    shown = [i["alt"] for i in page.of("img") if "of the finished volume" in i["alt"]]
    planes = ["XY", "XZ", "YZ"] if volume else []
    assert shown == [f"Central {plane} plane of the finished volume" for plane in planes]
    assert (twin["thumbnail"] is not None) == volume
    assert bool(list((path.parent / "previews").glob("volume_*.png"))) == volume


def test_marked_sections_are_marked_everywhere(subject: Subject) -> None:
    for k in range(1, 7):
        subject.stitch(k, seam=0.4 if k == 4 else None, uncovered=12 if k == 5 else 0)
    subject.n4(sections=range(1, 7))
    figures = json.loads(subject.records[-1].read_text())["figures"]
    figures["variation"][1]["cv_after"] = 0.5
    edit(subject.records[-1], figures=figures)
    path = subject.report()
    text = Page(path).text
    # On the card and in the table.
    for flag in ("Seams of a section", "Pixels without a tile", "Variation of a section"):
        assert text.count(f"▲ {flag}") == 2
    assert "Section 4: far above the other sections" in text
    assert "Section 2: far above the other sections" in text
    twin = json.loads(path.with_suffix(".json").read_text())
    assert twin["summary"]["flagged"] == ["Section 2", "Section 4", "Section 5"]


def test_displacements_have_a_table_and_a_cut_before_and_after(subject: Subject) -> None:
    subject.stack(4, shifts={1: -0.04, 2: -23.4, 3: 12.0})
    page = subject.report().read_text(encoding="utf-8")
    assert "-23.4 µm" in page
    assert "+0.0 µm" in page
    assert "-0.0 µm" not in page
    assert "+0.50°" in page
    assert page.count("no match") == 1
    # In each chart, those of three that are more than a voxel or a degree off.
    for name, far in (("Shifts", ["2", "3"]), ("Rotations", [])):
        chart = page[page.index(f'aria-label="{name} of the sections') :]
        drawn = chart[: chart.index("</svg>")]
        assert re.findall(r">(\d+)</text>", drawn[drawn.rindex("var(--alarm)") :]) == far
    assert 'alt="Central XZ plane before alignment"' in page
    assert 'alt="Central XZ plane after alignment"' in page


def test_surfaces_and_thicknesses_are_charted_and_tabled_where_measured(subject: Subject) -> None:
    found = {"depth": 31.0, "tilt": [0.1, -0.2], "depth_std": 0.4, "rough": 1.0}
    cuts = {
        1: {"surface": 31.0, "surface_from": "measured", "levelled": [0.1, -0.2]},
        2: {"surface": 31.0, "surface_from": "of the other sections"},
    }
    cuts[1] |= {"measured_thickness": 163.2, "thickness_std": 1.1, "thickness": 163.2}
    cuts[2] |= {"thickness_reason": "no structure in common", "thickness": 150.0}
    subject.stitch(1, surface=found)
    subject.stitch(2, surface={"reason": "two interfaces"})
    subject.stack(2, cuts=cuts)
    path = subject.report()
    page, twin = Page(path), json.loads(path.with_suffix(".json").read_text())
    text = " ".join(page.text.split())
    for words in (
        "31.0 ± 0.4 µm +0.10°, -0.20°, levelled",
        "Section 2 (two interfaces): no surface was measured, 31 µm is cropped",
        "163.2 ± 1.1 µm",
        "Section 2 (no structure in common): not measured, so it is as stated",
    ):
        assert words in text
    # The section that was not measured is numbered in both.
    for name in ("section_surface", "section_thickness"):
        svg = (path.parent / "previews" / f"{name}.svg").read_text(encoding="utf-8")
        alarm = svg[svg.index(f'color="{charts.LIGHT_PALETTE["alarm"]}"') :]
        assert re.findall(r">(\d+)</text>", alarm) == ["2"]
    surfaces = [section["surface"] for section in twin["sections"]]
    assert surfaces[0]["depth"] == 31.0
    assert surfaces[1]["reason"] == "two interfaces"
    assert [section["rise"] for section in twin["sections"]] == [[0.0, 0.0], None]


def test_the_depth_over_which_a_section_is_blended_is_tabled(subject: Subject) -> None:
    subject.stack(2, cuts={2: {"blended": 25.0}})
    assert "Blended" not in Page(subject.report()).text
    figures = json.loads(subject.records[-1].read_text())["figures"]
    edit(subject.records[-1], figures=figures | {"blend": 30.0})
    text = " ".join(Page(subject.report(overwrite=True)).text.split())
    assert "Section 1 0 – 14 150 µm – Section 2 15 – 29 150 µm 25 µm" in text


def test_nothing_is_shown_of_surfaces_that_nobody_measured(subject: Subject) -> None:
    for number in (1, 2):
        subject.stitch(number, surface={"reason": "data begin within the tissue"})
    subject.stack(2, cuts={k: {"surface": 0.0, "surface_from": "as given"} for k in (1, 2)})
    path = subject.report()
    text = Page(path).text
    assert "no surface was measured" in text
    assert "Tilt" not in text
    assert "Measured " not in text
    assert not list((path.parent / "previews").glob("section_surface*"))


@pytest.mark.parametrize(
    ("after", "words"), [(None, "tiles were not corrected"), (0.011, "were divided by")]
)
def test_the_flat_field_is_shown_with_the_shading(subject: Subject, after, words) -> None:
    for number in (1, 2):
        subject.stitch(number, shading=(0.29, after))
    subject.stack(2)
    report = subject.report()
    text = " ".join(Page(report).text.split())
    assert words in text
    assert ("1.1 %, 29.0 % before" if after else "29.0 %") in text.replace("\u00a0", " ")
    assert (report.parent / "previews" / "flat_field.png").exists()


def test_the_tiles_of_each_section_are_mapped(subject: Subject) -> None:
    subject.stitch(1, moved=30, not_imaged=[(0, 0)])
    subject.stitch(2)
    page = subject.report()
    html = page.read_text(encoding="utf-8")
    first, second = html.split("<h3>Section 1</h3>")[1].split("<h3>Section 2</h3>")
    assert "not imaged: 1 of 9 tiles" in first
    assert "moved by refinement by up to 30 µm" in first
    assert not re.search("not imaged: |refinement", second.partition("</svg>")[0])
    assert "9 tiles, 1 of them not imaged" in html
    maps = {path.name: path.read_text("utf-8") for path in (page.parent / "previews").iterdir()
            if path.name.endswith("_tiles.svg")}  # fmt: skip
    assert maps.keys() == {"section_01_stitch_tiles.svg", "section_02_stitch_tiles.svg"}
    assert all(drawn in html for drawn in maps.values())
    assert "previews/</code> holds" not in html


def test_of_many_sections_those_are_mapped_that_are_marked_or_moved_most(subject: Subject) -> None:
    for number in range(1, 21):
        subject.stitch(number, seam=0.5 if number == 5 else None, moved=number)
    page = subject.report()
    shown = re.findall("Tiles of Section (\\d+) as placed", page.read_text(encoding="utf-8"))
    assert [*map(int, shown)] == [5, 16, 17, 18, 19, 20]
    assert "previews/</code> holds the maps of all" in page.read_text(encoding="utf-8")
    assert len([*(page.parent / "previews").glob("*_tiles.svg")]) == 20


def test_performance_is_one_row_for_each_step(subject: Subject) -> None:
    subject.resample(1)
    subject.resample(2)
    subject.on_gpu()
    seconds = {"total": 3700.0}
    edit(subject.records[0], wall_seconds={"read": 3.0}, seconds=seconds, versions={"numpy": "0"})
    edit(subject.records[1], wall_seconds={"read": 1.0, "decode": 5.0}, seconds={"total": 0.0})
    for record in subject.records[:2]:
        edit(record, warnings=["The same of both."])
    text = Page(subject.report()).text
    assert "1 h 1 min in 2 tasks" in text
    row = text[text.index("Resample 2 3 700") :]
    # Two tasks of 3 MB read and 1 MB written.
    assert " ".join(row.split()).startswith(
        "Resample 2 3 700 75 of them waiting for a GPU 0.00216 "
    )
    assert "decode" in row
    assert "section_01_resample: succeeded at attempt 2" in text
    assert "section_01_resample and 1 more: The same of both." in text
    assert "numpy differs between tasks: 0, " in text


def test_one_of_a_kind_is_in_the_singular(subject: Subject) -> None:
    subject.stitch(1)
    figures = json.loads(subject.records[0].read_text())["figures"]
    edit(subject.records[0], figures=figures | {"tiles": 1})
    text = " ".join(Page(subject.report()).text.split())
    assert "in 1 task " in text
    assert re.findall(r"(?<![\d.,])1 [a-z]+s\b", text) == []


def test_links_name_what_is_published(whole: Path) -> None:
    links = [a["href"] for a in Page(whole).of("a") if not a["href"].startswith("#")]
    beside = {path.name for path in whole.parent.iterdir()}
    # Steps publish the volume, the records and the displacements.
    published = beside - {whole.name} | {"sub-01.ome.zarr", "metrics", "sub-01_displacements.csv"}
    assert {unquote(link).rstrip("/") for link in links} == published


def test_positions_of_all_sections_are_in_one_table_in_order(subject: Subject) -> None:
    for number in (10, 2):
        subject.stitch(number)
        positions = {"0,10": [0.1, number / 3], "0,9": [0.0, 0.0]}
        edit_figures(subject.records[-1], positions=positions)
    page = subject.report()
    table = page.with_name("report_positions.csv").read_text(encoding="utf-8")
    assert table.splitlines() == [
        "section,row,column,y,x",
        "2,0,9,0.0,0.0",
        f"2,0,10,0.1,{2 / 3}",
        "10,0,9,0.0,0.0",
        f"10,0,10,0.1,{10 / 3}",
    ]
    assert "the positions of all tiles" in page.read_text(encoding="utf-8")


def test_depths_are_in_the_table_if_a_tile_was_moved(subject: Subject) -> None:
    for number, depths in ((1, {}), (2, {"0,1": -3})):
        subject.stitch(number)
        positions = {"0,0": [0.0, 0.0], "0,1": [0.1, 7.0]}
        changed = {"positions": positions, "depths": depths, "voxel_size": [3.5, 4, 4]}
        edit_figures(subject.records[-1], **changed)
    table = subject.report().with_name("report_positions.csv").read_text(encoding="utf-8")
    assert table.splitlines() == [
        "section,row,column,y,x,z",
        "1,0,0,0.0,0.0,0.0",
        "1,0,1,0.1,7.0,0.0",
        "2,0,0,0.0,0.0,0.0",
        "2,0,1,0.1,7.0,-10.5",
    ]


def test_rows_of_tiles_that_were_not_imaged_are_left_out_if_others_give_their_place(
    subject: Subject,
) -> None:
    subject.stitch(1, not_imaged=[(0, 0), (0, 2)])
    places = {"0,0": [0.3, -0.1], "0,1": [0.2, 70.1], "1,0": [80.7, 0.1], "1,1": [80.4, 70.3]}
    tiles = {(int(name[0]), int(name[2])): (y, x) for name, (y, x) in places.items()}
    imaged = {tile: tiles[tile] for tile in tiles if any(tile)}
    corner, end = (expected_position(tile, imaged) for tile in ((0, 0), (0, 2)))
    # A row that stays would change the fit of one that does not.
    for first, second, count in ((places["0,0"], end, 5), (corner, end, 3)):
        positions = {**places, "0,0": first, "0,2": second}
        edit_figures(subject.records[-1], positions=positions)
        page = subject.report(overwrite=True)
        table = page.with_name("report_positions.csv").read_text(encoding="utf-8")
        assert len(table.splitlines()) == 1 + count
        assert ("1,0,0," in table) == ("1,0,2," in table) == (count == 5)


def test_gains_of_all_sections_are_in_one_table_as_they_were_recorded(subject: Subject) -> None:
    for number in (10, 2):
        subject.stitch(number)
        edit_figures(subject.records[-1], gains={"0,10": 0.1 + 0.2, "0,9": 1.0})
    page = subject.report()
    table = page.with_name("report_gains.csv").read_text(encoding="utf-8")
    assert table.splitlines() == [
        "section,row,column,gain",
        "2,0,9,1.0",
        f"2,0,10,{0.1 + 0.2}",
        "10,0,9,1.0",
        f"10,0,10,{0.1 + 0.2}",
    ]
    assert "the gains of all tiles" in page.read_text(encoding="utf-8")


def test_the_twin_is_strict_json_and_holds_every_record(subject: Subject) -> None:
    subject.n4()
    record = json.loads(subject.records[0].read_text())
    edit(subject.records[0], figures=record["figures"] | {"odd": float("nan")})
    subject.stack(2, missing=(1,))
    stack = json.loads(subject.records[1].read_text())
    remark = "Sections 1 and 2 do not match."
    changed = {"figures": stack["figures"] | {"remarks": [remark]}}
    edit(subject.records[1], warnings=[*stack["warnings"], remark], **changed)
    text = subject.report().with_suffix(".json").read_text()
    assert "NaN" not in text
    twin = json.loads(text)
    assert [entry["name"] for entry in twin["records"]] == ["n4", "stack"]
    assert twin["records"][0]["figures"]["odd"] is None
    assert twin["records"][0]["bytes"] == record["bytes"]
    assert twin["warnings"] == [
        "Section 1: missing and left blank, as --allow_missing_sections permits.",
        remark,
    ]


def test_the_same_records_make_the_same_page(tmp_path: Path) -> None:
    subject = Subject(tmp_path)
    subject.stitch(1)
    subject.stack(1)
    path = subject.report()
    before = path.read_bytes()
    with refused(path, "--overwrite"):
        subject.report(subject="other")
    assert path.read_bytes() == before
    names = ["report.html", "report.json", "report_positions.csv", "report_trace.json.gz"]
    assert sorted(p.name for p in path.parent.iterdir()) == ["previews", *names]
    path.parent.rename(subject.folder / "first")
    subject.records.reverse()
    assert subject.report().read_bytes() == before


def test_a_report_with_charts_is_written_again(subject: Subject) -> None:
    subject.whole(2)
    assert list((subject.report().parent / "previews").glob("*.svg"))
    assert "other" in subject.report(subject="other", overwrite=True).read_text(encoding="utf-8")


def test_a_failure_leaves_nothing_behind(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    subject.stack(1)
    monkeypatch.setattr(Path, "write_bytes", Mock(side_effect=OSError(28, "No space left")))
    with refused(subject.folder):
        subject.report()
    assert list((subject.folder / "out").iterdir()) == []


def flip(path: Path) -> None:
    """Change a byte of the first array's compressed values."""
    content = bytearray(path.read_bytes())
    content[100] ^= 255
    path.write_bytes(content)


def cut(path: Path) -> None:
    """Truncate a file."""
    path.write_bytes(path.read_bytes()[:-40])


RECORD, PREVIEW = "section_01_stitch_metrics.json", "section_01_stitch_preview.npz"
NO_RECORD, NO_PREVIEW = f"{RECORD} is not the record", f"{PREVIEW} is not a readable NPZ"
BROKEN = {"started": 1, "tracks": [{"name": "main", "stages": {"fit": "12"}}]}
HARMS: dict[str, tuple[Callable[[Subject], object], str]] = {
    "half a record": (lambda s: cut(s.records[0]), NO_RECORD),
    "no step": (lambda s: s.records[0].write_text("{}"), NO_RECORD),
    "no pieces": (lambda s: edit(s.records[0], timeline=BROKEN), NO_RECORD),
    "no file": (lambda s: s.records[0].unlink(), "metrics.json does not exist"),
    "no figure": (lambda s: edit(s.records[0], figures={}), "lacks a usable figure 'tiles'"),
    "no preview": (lambda s: s.previews.clear(), f"give {PREVIEW}"),
    "a text": (lambda s: s.previews[0].write_text("hello"), NO_PREVIEW),
    "half a preview": (lambda s: cut(s.previews[0]), NO_PREVIEW),
    "a changed byte": (lambda s: flip(s.previews[0]), NO_PREVIEW),
    "no picture": (lambda s: np.savez(s.previews[0], a=np.zeros(2)), "usable picture 'thumbnail'"),
    "a line": (lambda s: np.savez(s.previews[0], thumbnail=np.zeros(4)), "usable picture"),
}


@pytest.mark.parametrize("harm", HARMS)
def test_bad_input_is_named(subject: Subject, harm: str) -> None:
    subject.stitch(1)
    do, said = HARMS[harm]
    do(subject)
    with refused(said) as caught:
        subject.report()
    assert "\n" not in str(caught.value)
    assert not (subject.folder / "out" / "report.html").exists()


def test_a_page_ends_in_html(subject: Subject) -> None:
    page, execution = subject.folder / "report.json", ExecutionParameters()
    with refused(".html"):
        write_report([], [], page, subject="x", run=None, execution=execution)


def reversed_signs(value):
    """Every number of a record as -1."""
    if isinstance(value, dict):
        return {name: reversed_signs(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [reversed_signs(inner) for inner in value]
    return -1 if isinstance(value, int | float) and not isinstance(value, bool) else value


@pytest.mark.parametrize("step", ["resample", "stitch", "stack", "n4", "pyramid"])
def test_a_record_of_impossible_sizes_is_named(subject, step):
    subject.whole(2)
    record = next(path for path in subject.records if path.name.endswith(f"{step}_metrics.json"))
    content = json.loads(record.read_text(encoding="utf-8"))
    content["figures"] = reversed_signs(content["figures"])
    record.write_text(json.dumps(content), encoding="utf-8")
    with refused(record.name):
        subject.report()
