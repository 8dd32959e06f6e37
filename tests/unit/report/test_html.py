import base64
import json
import re
import shutil
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.image import imread
from report_subject import Subject

from octane.config.params import STEPS, ExecutionParameters, ReportParameters
from octane.core.errors import OctaneError
from octane.report import charts as pictures
from octane.report.summary import outliers
from octane.steps.report import write_report

VOID = {"meta", "link", "img", "br", "hr", "input", "source"}
HEADINGS = {"h1", "h2", "h3", "h4", "h5", "h6"}


class Page(HTMLParser):
    """A page's tags and its text; fails on tags that do not match."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.css = ""
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
        if "style" in self._open:
            self.css += data
        else:
            self.text += " ".join(data.split()) + " "

    def of(self, *names: str) -> list[dict[str, str]]:
        return [attributes for tag, attributes in self.tags if tag in names]

    def pictures(self) -> Iterator[bytes]:
        for tag, attributes in self.tags:
            if tag in ("img", "source"):
                uri = attributes["src" if tag == "img" else "srcset"]
                kind, data = uri.split(",", 1)
                assert kind == "data:image/webp;base64"
                yield base64.b64decode(data, validate=True)


@pytest.fixture
def subject(tmp_path: Path) -> Subject:
    return Subject(tmp_path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a whole subject whose second and third sections are missing."""
    subject = Subject(tmp_path_factory.mktemp("subject")).whole(4, missing=(2, 3))
    return subject.report(run={"Repository": "https://example.org/x"})


def test_the_page_is_well_formed_and_accessible(whole: Path) -> None:
    page = Page(whole)
    levels = [int(tag[1]) for tag, _ in page.tags if tag in HEADINGS]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b - a <= 1 for a, b in pairwise(levels))
    assert all(image["alt"].strip() for image in page.of("img"))
    assert page.of("th")
    assert all(cell.get("scope") in ("row", "col") for cell in page.of("th"))
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    named = {a["href"].removeprefix("#") for a in page.of("a") if a["href"].startswith("#")}
    named |= {a["aria-labelledby"] for _, a in page.tags if "aria-labelledby" in a}
    assert named <= set(ids)
    assert page.of("html") == [{"lang": "en"}]
    assert any(meta.get("name") == "viewport" for meta in page.of("meta"))
    assert "prefers-color-scheme:dark" in page.css


def test_the_page_needs_no_network_and_no_script(whole: Path) -> None:
    page = Page(whole)
    assert not page.of("script", "link", "iframe", "object", "base")
    for tag, attributes in page.tags:
        for name in ("src", "srcset", "href", "action", "data", "poster"):
            address = attributes.get(name, "#")
            # A link is followed when somebody asks for it, to a file beside the page.
            beside = tag == "a" and not urlsplit(address).scheme and not address.startswith("/")
            assert beside or address.startswith(("#", "data:"))
        assert not any(name.startswith("on") for name in attributes)
    assert "url(" not in page.css
    assert "@import" not in page.css
    policy = next(m["content"] for m in page.of("meta") if "http-equiv" in m)
    assert policy.startswith("default-src 'none'")


def test_names_are_shown_and_not_run(subject: Subject) -> None:
    subject.stack(2)
    evil = "<script>alert('1')</script>"
    path = subject.report(subject=evil, run={f"k{evil}": f"v{evil}", "Container": ""})
    html, page = path.read_text(encoding="utf-8"), Page(path)
    assert "<script" not in html
    assert html.count("&lt;script&gt;alert(") >= 3
    assert f"k{evil}" in page.text
    # What is not known is not shown.
    assert "Container" not in page.text


def test_all_pictures_decode(whole: Path) -> None:
    page = Page(whole)
    sizes = []
    for data in page.pictures():
        assert imread(BytesIO(data), format="webp").size > 0
    for image in page.of("img"):
        data = base64.b64decode(image["src"].split(",", 1)[1])
        height, width = imread(BytesIO(data), format="webp").shape[:2]
        sizes.append(width / height - int(image["width"]) / int(image["height"]))
    # 12 cuts, 5 charts, 2 sections, 3 cuts of the volume.
    assert len(sizes) == 22
    np.testing.assert_allclose(sizes, 0, atol=0.02)
    assert len(page.of("source")) == 5
    files = {file.name for file in (whole.parent / "previews").iterdir()}
    assert {"cut_z.png", "volume_x.png", "profile.png", "section_01_stitch.png"} <= files
    for file in (whole.parent / "previews").iterdir():
        assert imread(file).size > 0


def test_small_subjects_make_small_files(tmp_path: Path) -> None:
    path = Subject(tmp_path, edge=384).whole(4).report()
    assert path.stat().st_size < 1_000_000


@pytest.mark.slow
def test_large_subjects_make_bearable_files(tmp_path: Path) -> None:
    path = Subject(tmp_path, edge=384).whole(80).report()
    assert path.stat().st_size < 5_000_000


def test_before_and_after_share_one_scale_and_fields_another(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    scales: list[pictures.Scale] = []
    panel = pictures.panel

    def watched(
        array: np.ndarray, spacing: tuple[float, float], scale: pictures.Scale, **more: bool
    ):
        scales.append(scale)
        return panel(array, spacing, scale, **more)

    monkeypatch.setattr(pictures, "panel", watched)
    subject.n4(truth=True)
    subject.report()
    rows = [scales[k : k + 4] for k in range(0, 12, 4)]
    grey, field = rows[0][0], rows[0][2]
    assert rows == [[grey, grey, field, field]] * 3
    # The darker of the two would end at a fifth.
    assert grey.high > 1000
    assert field.logarithmic
    assert field.low * field.high == pytest.approx(1)


def test_slices_have_their_physical_aspect(subject: Subject) -> None:
    subject.n4()
    page = Page(subject.report())
    sizes = {i["alt"]: (int(i["width"]), int(i["height"])) for i in page.of("img")}
    assert sizes["Central cut across z, before"] == (512, 512)
    assert sizes["Central cut across y, bias field"] == (512, round(512 * 16 / 48))


def test_headline_figures(whole: Path) -> None:
    text = Page(whole).text.replace("\xa0", " ")
    assert "30.0 % → 10.0 %" in text
    assert "66.7 % lower" in text
    assert "r = 0.988" in text
    assert "31.0 % → 6.00 %" in text
    assert "Voxel size 10 µm" in text
    assert "0.6 × 0.96 × 1.44 mm" in text
    assert "limit of iterations" in text


def test_fields_of_sections_have_a_table_and_no_empty_chart(subject: Subject) -> None:
    subject.n4(by_section=True)
    text = Page(subject.report()).text
    for words in ("section_07", "14 – 27", "3 + 3", "nothing to fit in section_09"):
        assert words in text
    assert "Fitting levels" not in text
    assert "Convergence" not in text


@pytest.mark.parametrize("step", ["stitch", "stack", "n4", "pyramid", "resample"])
def test_each_step_may_be_the_only_one(subject: Subject, step: str) -> None:
    if step == "stack":
        subject.stack(2)
    elif step in ("stitch", "resample"):
        getattr(subject, step)(1)
    else:
        getattr(subject, step)()
    page = Page(subject.report())
    assert page.text.count("– not run") == 4
    assert f"{'N4' if step == 'n4' else step.capitalize()} – not run" not in page.text


@pytest.mark.parametrize("left_out", ["stitch", "stack"])
def test_each_step_may_be_switched_off(subject: Subject, left_out: str) -> None:
    subject.whole(2)
    kept = [p for p in subject.records if f"{left_out}_metrics" not in p.name]
    subject.previews = [p for p in subject.previews if f"{left_out}_preview" not in p.name]
    subject.records = kept
    assert Page(subject.report()).text.count("– not run") == 1


def test_missing_sections_stand_out(whole: Path) -> None:
    page = Page(whole)
    assert "Sections 2, 3 are missing" in page.text
    assert "2 of 4" in page.text
    assert any("severe" in a.get("class", "") for a in page.of("aside"))
    # Their places in the row of sections are kept.
    order = [page.text.index(f"Section {k}") for k in (1, 2, 3, 4)]
    assert order == sorted(order)


def test_without_missing_sections_none_is_claimed(subject: Subject) -> None:
    page = Page(subject.whole(2).report())
    assert not page.of("aside")
    assert "No step gave a warning" in page.text


def test_every_warning_is_shown_before_anything_else(subject: Subject) -> None:
    subject.stitch(1)
    figures = {"sections": [], "shape": [1, 1, 1], "voxel_size": [1, 1, 1]}
    subject.save("stack", figures, warning="Something <odd> happened.")
    page = Page(subject.report())
    assert page.text.index("Something <odd> happened.") < page.text.index("Time and data")
    assert "No step gave a warning" not in page.text


def test_a_section_without_a_record_is_not_passed_over(subject: Subject) -> None:
    subject.stitch(1)
    subject.stack(2)
    assert "Section 2: in the volume, but without a record." in Page(subject.report()).text


def test_a_correction_that_made_it_worse_is_said(subject: Subject) -> None:
    subject.n4(after=0.4)
    text = Page(subject.report()).text
    assert "The variation in tissue rose" in text
    assert "higher after N4" in text


def test_sections_with_much_variation_left_are_marked(subject: Subject) -> None:
    subject.n4(sections=(1, 2, 3))
    record = json.loads(subject.records[0].read_text())
    record["figures"]["variation"][1]["cv_after"] = 0.5
    subject.records[0].write_text(json.dumps(record))
    path = subject.report()
    text = Page(path).text.replace("\xa0", " ")
    assert "Section 2: variation in tissue above median" in text
    assert text.count("▲ CV outlier") == 1
    twin = json.loads(path.with_suffix(".json").read_text())
    assert [s["cv_after"] for s in twin["sections"]] == pytest.approx([0.101, 0.5, 0.103])
    assert twin["summary"]["flagged"] == ["Section 2"]


def test_gpus_and_who_waited_for_them_are_shown(subject: Subject) -> None:
    subject.whole(1)
    assert "Failed tries" not in Page(subject.report()).text
    subject.on_gpu()
    shutil.rmtree(subject.folder / "out")
    text = Page(subject.report()).text.replace("\xa0", " ")
    assert "1 of 1 1 min 15 s 1 min 15 s 4 – 1 × out of memory" in text
    assert "section_01_resample: done at attempt 2" in text


def test_each_step_has_one_word_one_stage_and_one_remedy(subject: Subject) -> None:
    subject.whole(2)
    edit(subject.records[0], wall_seconds={"read": 3.0})
    edit(subject.records[2], wall_seconds={"read": 1.0, "decode": 5.0})
    text = Page(subject.report()).text
    assert text.count("What bounds each step") == 1
    assert "Resample cores decode give the task more cpus" in text


def test_links_lead_to_what_is_published(whole: Path) -> None:
    links = [a["href"] for a in Page(whole).of("a") if not a["href"].startswith("#")]
    beside = {path.name for path in whole.parent.iterdir()} - {whole.name}
    # Steps publish the volume and the records.
    published = {"sub-01.ome.zarr", "metrics"}
    assert {unquote(link).rstrip("/") for link in links} == beside | published


def test_the_crate_lists_what_stands_beside_it_and_describes_each_once(whole: Path) -> None:
    graph = json.loads((whole.parent / "ro-crate-metadata.json").read_text())["@graph"]
    names = [entity["@id"] for entity in graph]
    assert len(names) == len(set(names))
    (root,) = (entity for entity in graph if entity["@id"] == "./")
    parts = {part["@id"].rstrip("/") for part in root["hasPart"]}
    beside = {path.name for path in whole.parent.iterdir()} - {"ro-crate-metadata.json"}
    assert beside < parts
    assert {"metrics/n4_metrics.json", "sub-01.ome.zarr", "main.nf"} <= parts


def test_outlying_seams_and_uncovered_pixels_are_marked(subject: Subject) -> None:
    for k in range(1, 7):
        subject.stitch(k, seam=0.4 if k == 4 else None, uncovered=12 if k == 5 else 0)
    text = Page(subject.report()).text
    # On the card and in the table.
    assert text.count("▲ seam outlier") == 2
    assert "Section 4: seams above median" in text
    assert "▲ 12 pixels uncovered" in text


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_outliers_are_above_three_deviations(values: list[float]) -> None:
    limit, far = outliers([*values, None, float("nan")])
    middle = np.median(values)
    assert limit == pytest.approx(middle + 3 * np.median(np.abs(np.array(values) - middle)))
    assert far[-2:] == [False, False]
    # At most half of the values can lie beyond a deviation of three.
    assert sum(far) <= len(values) / 2
    assert all(v > limit for v, out in zip(values, far, strict=False) if out)


def test_outliers_of_nothing() -> None:
    limit, far = outliers([None])
    assert np.isnan(limit)
    assert far == [False]


def test_changed_settings_come_first_and_are_marked(subject: Subject) -> None:
    subject.n4()
    html = subject.report().read_text(encoding="utf-8")
    rows = re.findall(r'<tr( class="changed")?><th scope="row"><code>(\w+)</code>', html)
    assert [name for changed, name in rows if changed] == ["mask", "iterations", "strength"]
    assert all(changed for changed, _ in rows[:3])
    assert len(rows) == len(STEPS["n4"].model_fields)


def test_the_workflows_default_is_no_change_in_the_workflow(subject: Subject) -> None:
    subject.n4()
    html = subject.report(run={"Profile": "test"}).read_text(encoding="utf-8")
    assert '<tr><th scope="row"><code>mask</code>' in html


def test_times_bytes_and_versions_are_listed(subject: Subject) -> None:
    subject.whole(2)
    record = json.loads(subject.records[0].read_text())
    record["versions"]["numpy"] = "0.0.1"
    record["device"] = {"backend": "gpu", "device": "Some GPU", "memory_bytes": 48_000_000_000}
    record["seconds"]["total"] = 3700.0
    subject.records[0].write_text(json.dumps(record))
    text = Page(subject.report(run={"Command line": "nextflow run x"})).text.replace("\xa0", " ")
    assert "1 h 1 min" in text
    # Two tasks of 3 MB read.
    assert "6 MB" in text
    assert "GPU (Some GPU)" in text
    assert "memory 48 GB" in text
    assert "numpy was not the same for all tasks: 0.0.1, " in text
    assert "nextflow run x" in text


def test_the_heading_is_a_parameter(subject: Subject) -> None:
    subject.stack(2)
    page = Page(subject.report(heading="A fine brain"))
    assert page.text.count("A fine brain") == 2
    assert "of sub-01" in page.text


def test_the_twin_is_strict_json_and_holds_every_record(subject: Subject) -> None:
    subject.n4()
    record = json.loads(subject.records[0].read_text())
    record["figures"]["odd"] = float("nan")
    subject.records[0].write_text(json.dumps(record))
    subject.stack(2, missing=(1,))

    def refuse(constant: str) -> float:
        raise AssertionError(constant)

    text = subject.report().with_suffix(".json").read_text()
    twin = json.loads(text, parse_constant=refuse)
    assert [entry["name"] for entry in twin["records"]] == ["n4", "stack"]
    assert twin["records"][0]["figures"]["odd"] is None
    assert twin["records"][0]["bytes"] == record["bytes"]
    assert twin["warnings"] == ["Sections 1 are missing: blank slabs stand there."]


def test_the_same_records_make_the_same_page(tmp_path: Path) -> None:
    subject = Subject(tmp_path)
    subject.stitch(1)
    first = subject.report().read_bytes()
    (tmp_path / "out").rename(tmp_path / "first")
    subject.records.reverse()
    assert subject.report().read_bytes() == first


def test_what_is_there_is_not_replaced_unasked(subject: Subject) -> None:
    subject.stack(2)
    path = subject.report()
    before = path.read_bytes()
    with pytest.raises(OctaneError, match="exists already"):
        subject.report(subject="other")
    assert path.read_bytes() == before
    assert sorted(p.name for p in path.parent.iterdir()) == [
        "previews",
        "report.html",
        "report.json",
        "report_mqc.json",
        "report_trace.json.gz",
    ]


def test_a_failure_leaves_nothing_behind(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    subject.whole(1)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OctaneError, match="No space"):
        subject.report()
    assert list((subject.folder / "out").iterdir()) == []


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def rename_record(s: Subject, name: str) -> None:
    s.records[0] = s.records[0].rename(s.folder / name)


def flip(path: Path) -> None:
    """Change a byte of the first array's compressed values."""
    content = bytearray(path.read_bytes())
    content[100] ^= 255
    path.write_bytes(content)


RECORD, PREVIEW = "section_01_stitch_metrics.json", "section_01_stitch_preview.npz"
HARMS: dict[str, tuple[Callable[[Subject], object], str]] = {
    "half a record": (lambda s: s.records[0].write_text('{"step": '), f"{RECORD} is not JSON"),
    "binary": (lambda s: s.records[0].write_bytes(b"\xff\xfe"), f"{RECORD} is not JSON"),
    "a list": (lambda s: s.records[0].write_text("[]"), f"{RECORD} is no record"),
    "no step": (lambda s: s.records[0].write_text("{}"), "octane step ('step' is wrong"),
    "no file": (lambda s: s.records[0].unlink(), f"{RECORD} cannot be read"),
    "no figure": (lambda s: edit(s.records[0], figures={}), "has no usable figure 'tiles'"),
    "no preview": (lambda s: s.previews.clear(), f"give {PREVIEW}"),
    "a text": (lambda s: s.previews[0].write_text("hello"), f"{PREVIEW} is not a readable NPZ"),
    "half a preview": (
        lambda s: s.previews[0].write_bytes(s.previews[0].read_bytes()[:-40]),
        f"{PREVIEW} is not a readable NPZ",
    ),
    "empty": (lambda s: s.previews[0].write_bytes(b""), f"{PREVIEW} is not a readable NPZ"),
    "a changed byte": (lambda s: flip(s.previews[0]), f"{PREVIEW} is not a readable NPZ"),
    "no picture": (lambda s: np.savez(s.previews[0], a=np.zeros(2)), "usable picture 'thumbnail'"),
    "a line": (
        lambda s: np.savez(s.previews[0], thumbnail=np.zeros(4)),
        "usable picture 'thumbnail'",
    ),
    "no record": (lambda s: rename_record(s, "x_metrics.json"), f"{PREVIEW} has no record"),
    "misnamed": (lambda s: rename_record(s, "x.json"), "x.json does not end in _metrics.json"),
    "twice": (lambda s: s.records.append(s.records[0]), "give each step once"),
}


@pytest.mark.parametrize("harm", HARMS)
def test_bad_input_is_named(subject: Subject, harm: str) -> None:
    subject.stitch(1)
    do, said = HARMS[harm]
    do(subject)
    with pytest.raises(OctaneError, match=re.escape(said)) as caught:
        subject.report()
    assert "\n" not in str(caught.value)
    assert not (subject.folder / "out" / "report.html").exists()


@pytest.mark.parametrize("left", [0.0, 0.1, 0.4, 0.9, 0.999])
@pytest.mark.parametrize("name", [RECORD, PREVIEW])
def test_a_file_that_a_copy_cut_short_is_named(subject: Subject, name: str, left: float) -> None:
    subject.stitch(1)
    (path,) = (p for p in (*subject.records, *subject.previews) if p.name == name)
    # Without the line break at its end a record is whole.
    content = path.read_bytes().rstrip()
    path.write_bytes(content[: int(left * len(content))])
    with pytest.raises(OctaneError, match=f"{name} is not"):
        subject.report()


def test_no_records_at_all(subject: Subject) -> None:
    with pytest.raises(OctaneError, match="no record"):
        subject.report()


def test_a_page_ends_in_html(subject: Subject) -> None:
    with pytest.raises(OctaneError, match=r"does not end in \.html"):
        write_report(
            [],
            [],
            subject.folder / "report.json",
            ReportParameters(),
            subject="x",
            run=None,
            execution=ExecutionParameters(),
        )
