"""The report in a real browser: on a phone and on a desk, in light and in dark."""

import json
from itertools import pairwise

import pytest
from report_subject import Subject

from octane.report.cohort import write_cohort_report

PHONE, DESK = 390, 1280

OPENED = "document.querySelectorAll('details').forEach(part => part.open = true)"
"""Opens the folded parts."""

FAINT = """
(() => {
  const parts = text => text.match(/[\\d.]+/g).map(Number);
  const over = ([r, g, b, a = 1], below) => [r, g, b].map((v, i) => a * v + (1 - a) * below[i]);
  const behind = element => {
    if (!element) return [255, 255, 255];
    const colour = parts(getComputedStyle(element).backgroundColor);
    const opaque = colour.length < 4 || colour[3] === 1;
    return opaque ? colour.slice(0, 3) : over(colour, behind(element.parentElement));
  };
  const luminance = colour => colour
    .map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let seen = 0;
  const faint = new Set();
  while (texts.nextNode()) {
    const text = texts.currentNode.data.trim(), element = texts.currentNode.parentElement;
    if (!text || !element.checkVisibility()) continue;
    const below = behind(element);
    const both = [over(parts(getComputedStyle(element).color), below), below].map(luminance);
    const ratio = (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05);
    seen += 1;
    if (ratio < 4.5) faint.add(`${element.tagName} ${element.className}: ${ratio.toFixed(2)}`);
  }
  return {seen, faint: [...faint]};
})()
"""
"""Texts whose contrast is below WCAG's 4.5, from the colours that the browser computed."""

WIDE = """
(() => {
  const edge = document.documentElement.clientWidth;
  const scrolls = element => element && (
    ['auto', 'scroll', 'hidden'].includes(getComputedStyle(element).overflowX)
    || scrolls(element.parentElement));
  return {
    page: document.documentElement.scrollWidth - edge,
    parts: [...document.body.querySelectorAll('*')]
      .filter(e => e.getBoundingClientRect().right > edge + 1 && !scrolls(e.parentElement))
      .map(e => `${e.tagName} ${e.className}`),
  };
})()
"""
"""How much wider than the window the page is, and what sticks out of it."""


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A small subject in which much went wrong, one of 80 sections that went well, and a cohort."""
    troubled = Subject(tmp_path_factory.mktemp("few"), edge=96)
    troubled.whole(6, missing=(2, 3), outlier=5)
    troubled.on_gpu()
    many = Subject(tmp_path_factory.mktemp("many"), edge=216).whole(80)
    run = {"Nextflow": "24.10.0", "revision": "0123456789abcdef" * 3}
    few = troubled.report(subject="sub-01", run=run)
    twin = json.loads(few.with_suffix(".json").read_text(encoding="utf-8"))
    twins = []
    for k in range(1, 8):
        figures = twin["summary"] | {"cv_after": 0.1 + 0.01 * k if k < 7 else 0.4}
        own = {"subject": f"sub-{k:02d}", "summary": figures, "warnings": twin["warnings"][: k % 3]}
        twins.append(few.parent.parent / f"sub-{k:02d}_report.json")
        twins[-1].write_text(json.dumps(twin | own), encoding="utf-8")
    cohort = few.with_name("cohort_report.html")
    write_cohort_report(twins, cohort)
    return {"few": few, "many": many.report(run=run), "cohort": cohort}


@pytest.mark.parametrize("name", ["few", "many", "cohort"])
def test_the_report_asks_for_nothing_and_complains_of_nothing(show, pages, name):
    page = show(pages[name], width=DESK)
    assert page.evaluate("document.images.length") >= 7
    assert page.evaluate("[...document.images].every(image => image.naturalWidth > 0)")
    assert page.requests() == [pages[name].as_uri()]
    assert page.complaints() == []
    assert page.screenshot(f"report-{name}-desk").stat().st_size > 10_000


@pytest.mark.parametrize("name", ["few", "many", "cohort"])
def test_the_report_fits_a_phone(show, pages, name):
    page = show(pages[name], width=PHONE)
    page.screenshot(f"report-{name}-phone")
    page.evaluate(OPENED)
    assert page.evaluate("innerWidth") == PHONE
    assert page.evaluate(WIDE) == {"page": 0, "parts": []}


NAMELESS = """
[...document.querySelectorAll('a, summary, [tabindex]')].filter(
    one => !(one.getAttribute('aria-label') || one.getAttribute('aria-labelledby')
             || one.textContent.trim())
           || one.hasAttribute('tabindex') && !one.hasAttribute('role')
).map(one => one.outerHTML.slice(0, 80))
"""
"""What the keyboard stops at, without a name or without a role."""


@pytest.mark.parametrize("name", ["few", "many", "cohort"])
def test_pictures_and_tables_have_names_and_headings_an_order(show, pages, name):
    page = show(pages[name], width=DESK)
    page.evaluate(OPENED)
    images = page.roles("image")
    assert len(images) == page.evaluate("document.images.length")
    assert all(image["name"].strip() for image in images)
    regions = page.roles("region")
    assert regions
    assert all(region["name"].strip() for region in regions)
    assert page.evaluate(NAMELESS) == []
    levels = [heading["level"] for heading in page.roles("heading")]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(below - above <= 1 for above, below in pairwise(levels))


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", ["few", "many", "cohort"])
def test_all_texts_can_be_read(show, pages, name, dark):
    page = show(pages[name], width=DESK, dark=dark)
    page.evaluate(OPENED)
    # Another page than the one that is light.
    assert page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches") == dark
    found = page.evaluate(FAINT)
    assert found["seen"] > 100
    assert found["faint"] == []
    page.screenshot(f"report-{name}-{'dark' if dark else 'light'}")
