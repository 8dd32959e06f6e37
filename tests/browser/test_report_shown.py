"""The report in a real browser: on a phone, on paper and on a desktop, in light and in dark.

One outer page shows each report page in frames of three widths. A script added to a copy of each
page inspects it and sends its findings to the outer page, which the browser prints.
"""

import html
import json
import os
import re
import shutil
import subprocess

import pytest
from report_subject import Subject

from octane.processes.report.cohort import write_cohort_report

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
OPTIONS = (
    *("--headless=new", "--no-first-run", "--dump-dom", "--virtual-time-budget=60000"),
    # The tests may run as root, and open only their own pages.
    *("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--enable-logging=stderr"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
PAGES = ("few", "many", "channels", "cohort")
PHONE, PAPER, DESK = 390, 718, 1280  # A4 within margins of a centimetre

LOOK = """
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
// Texts with a contrast below WCAG's 4.5, from the colours that the browser computed.
const faint = () => {
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const found = {seen: 0, faint: []};
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || !element.checkVisibility()) continue;
    const below = behind(element);
    const both = [over(parts(getComputedStyle(element).color), below), below].map(luminance);
    const ratio = (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05);
    found.seen += 1;
    if (ratio < 4.5) found.faint.push(`${element.tagName} ${element.className}: ${ratio}`);
  }
  return found;
};
const all = (query, what) => [...document.body.querySelectorAll(query)].map(what);
const scrolls = element => element && (
  ['auto', 'scroll', 'hidden'].includes(getComputedStyle(element).overflowX)
  || scrolls(element.parentElement));
addEventListener('load', () => {
  all('details', part => part.open = true);
  if (innerWidth === PAPER)
    for (const {media} of document.styleSheets[0].cssRules)
      if (media?.mediaText === 'print') media.mediaText = 'all';
  const edge = document.documentElement.clientWidth;
  parent.postMessage({
    dark: matchMedia('(prefers-color-scheme: dark)').matches,
    images: all('img', one => [one.naturalWidth, one.alt.trim(), one.clientWidth]),
    wide: document.documentElement.scrollWidth - edge,
    out: all('*', e => e).filter(
      e => e.getBoundingClientRect().right > edge + 1 && !scrolls(e.parentElement)
    ).map(e => `${e.tagName} ${e.className}`),
    cut: all('.scroll', e => e).filter(e => e.scrollWidth > e.clientWidth).map(e => e.innerText),
    charts: all('.wide', e => {
      const [box, svg] = [e.querySelector('.scroll'), e.querySelector('svg')].map(getComputedStyle);
      return {
        scrolls: e.querySelector('.scroll').scrollWidth > e.querySelector('.scroll').clientWidth,
        says: e.innerText.includes('sideways'),
        fades: box.backgroundAttachment.includes('local') && svg.backgroundColor.endsWith(' 0)'),
      };
    }),
    asked: performance.getEntriesByType('resource').map(e => e.name)
      .filter(address => !address.startsWith('data:')),
    ...faint(),
  }, '*');
});
"""

AROUND = """<!doctype html><title>frames</title><script>
const found = {}, frames = FRAMES;
addEventListener('message', event => {
  const at = [...document.querySelectorAll('iframe')].find(f => f.contentWindow === event.source);
  found[at.id] = event.data;
  if (Object.keys(found).length === frames.length)
    document.documentElement.textContent = 'FOUND' + JSON.stringify(found) + 'END';
});
addEventListener('DOMContentLoaded', () => frames.forEach(([page, width]) => {
  const frame = document.createElement('iframe');
  Object.assign(frame, {id: `${page} ${width}`, width, height: 900, src: `${page}.html`});
  document.body.append(frame);
}));
</script><body></body>"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Pages of a subject with problems, of 40 sections, of 20 channels, and of a cohort."""
    troubled = Subject(tmp_path_factory.mktemp("few"), edge=96)
    surface = {"depth": 31.0, "tilt": [0.9, -0.2], "depth_std": 0.4}
    thick = {"thickness": 150.0, "measured_thickness": 163.2, "thickness_std": 1.1}
    cut = {"surface": 0.0, "surface_from": "as given", **thick}
    troubled.whole(6, missing=(2, 3), outlier=5, surface=surface, cut=cut)
    troubled.on_gpu()
    many = Subject(tmp_path_factory.mktemp("many"), edge=96).whole(40)
    several = Subject(tmp_path_factory.mktemp("several"), edge=96)
    names = ["OCT", "GFP <1>", "channel_of_the_longest_name_that_anybody_gave_405nm_200ms", "axis"]
    several.several([*names, *(f"marker {k}" for k in range(16))], nearest=["axis"])
    run = {"Nextflow": "24.10.0", "revision": "0123456789abcdef" * 3}
    few = troubled.report(subject="sub-01", run=run)
    twin = json.loads(few.with_suffix(".json").read_text(encoding="utf-8"))
    twins = []
    for k in range(1, 8):
        figures = twin["summary"] | {"cv_after": 0.1 + 0.01 * k if k < 7 else 0.4}
        own = {"subject": f"sub-{k:02d}", "summary": figures, "warnings": twin["warnings"][: k % 3]}
        own["state"] = ("good", "look", "incomplete")[k % 3]
        twins.append(few.parent.parent / f"sub-{k:02d}_report.json")
        twins[-1].write_text(json.dumps(twin | own), encoding="utf-8")
    cohort = few.with_name("cohort_report.html")
    write_cohort_report(twins, cohort)
    folder = tmp_path_factory.mktemp("pages")
    shown = (few, many.report(run=run), several.report(run=run, channel="OCT"), cohort)
    for name, page in zip(PAGES, shown, strict=True):
        shutil.copytree(page.parent, folder, dirs_exist_ok=True)
        text = page.read_text(encoding="utf-8")
        # The page's policy forbids all scripts and requests; the copy may run one script.
        for before, after in (
            ("default-src 'none'", "default-src 'none'; script-src 'unsafe-inline'"),
            ("</head>", f"<script>const PAPER = {PAPER};{LOOK}</script></head>"),
        ):
            assert before in text
            text = text.replace(before, after, 1)
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    frames = [[name, width] for name in PAGES for width in (PHONE, PAPER, DESK)]
    around = AROUND.replace("FRAMES", json.dumps(frames))
    (folder / "around.html").write_text(around, encoding="utf-8")
    return folder


@pytest.fixture(scope="module", params=["light", "dark"])
def found(request, folder, tmp_path_factory):
    """Colour scheme, and the script's findings for each page at each width."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is on the PATH")
    done = subprocess.run(
        [
            *(program, *OPTIONS, f"--user-data-dir={tmp_path_factory.mktemp('browser')}"),
            f"--blink-settings=preferredColorScheme={0 if request.param == 'dark' else 1}",
            (folder / "around.html").as_uri(),
        ],
        env={**os.environ, "HOME": str(folder)},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert "CONSOLE" not in done.stderr
    (text,) = re.findall("FOUND(.*)END", html.unescape(done.stdout), re.DOTALL)
    return request.param, json.loads(text)


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_whole_and_can_be_read(found, name):
    scheme, pages = found
    page = pages[f"{name} {DESK}"]
    assert len(page["images"]) >= 7
    assert all(width > 0 and alt for width, alt, _ in page["images"])
    # Pictures are embedded in the page.
    assert page["asked"] == []
    # The browser applied the colour scheme.
    assert page["dark"] == (scheme == "dark")
    assert page["seen"] > 100
    assert page["faint"] == []


@pytest.mark.parametrize("name", PAGES)
def test_the_page_fits_a_phone_and_paper(found, name):
    phone, paper = (found[1][f"{name} {width}"] for width in (PHONE, PAPER))
    assert (phone["wide"], phone["out"]) == (0, [])
    # Nobody scrolls on paper.
    assert (paper["wide"], paper["out"], paper["cut"]) == (0, [], [])


@pytest.mark.parametrize("name", ["few", "many"])
def test_a_chart_that_scrolls_shows_that_it_does(found, name):
    phone, paper, desk = (found[1][f"{name} {width}"]["charts"] for width in (PHONE, PAPER, DESK))
    assert len(phone) >= 2
    assert phone == [{"scrolls": True, "says": True, "fades": True}] * len(phone)
    assert [(c["scrolls"], c["says"]) for c in paper + desk] == [(False, False)] * 2 * len(phone)


def test_the_volumes_of_a_cohort_are_large_enough_to_be_seen(found):
    for width, least in ((PHONE, 100), (DESK, 160)):
        shown = found[1][f"cohort {width}"]["images"]
        # On a screen with two pixels per CSS pixel, the picture is not enlarged.
        assert all(least <= seen <= own / 2 for own, _, seen in shown)
