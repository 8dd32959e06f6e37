"""The page of a run that is watched: live.html, one file that needs no server."""

import base64
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from octane import __version__
from octane.core.files import writing
from octane.core.records import Context
from octane.core.units import counted, format_bytes
from octane.processes.report.gallery import render
from octane.tools.watch.outlook import usual_period
from octane.tools.watch.state import LINES, SectionEntry, State

PAGE = "live.html"
"""Name of the page, in outdir."""
MOST_ALERTS = 30
"""Alerts that the page shows, the newest ones."""
PICTURES = "watch/pictures"
"""Folder of the sections' pictures, in outdir."""


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("octane.tools.watch"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def picture_of(number: int) -> str:
    """Path of a section's picture, in outdir."""
    return f"{PICTURES}/section_{number:03d}.png"


def save_pictures(outdir: Path, number: int, pictures: Mapping[str, bytes]) -> None:
    """Write a section's picture, and the map of its tiles next to it."""
    for ending, data in pictures.items():
        path = outdir / picture_of(number)
        if ending in (".png", "_tiles.svg"):
            with writing(path.with_name(path.stem + ending), overwrite=True) as partial:
                partial.write_bytes(data)


def headline(
    state: State, trouble: str, alerts: Sequence[Context], *, is_done: bool
) -> tuple[str, str, str]:
    """Colour, words and sentence of the state; ``alerts`` are the newest first."""
    odd = [n for n, section in state.sections.items() if section.state != "good"]
    summary = f"{counted(len(state.sections), 'section')} taken, {len(odd)} with faults."
    if trouble:
        return "waiting", "Waiting", trouble
    if is_done:
        return "done", "Done", f"{summary} The whole run has ended."
    if not state.sections:
        return "waiting", "Waiting", "No section is complete yet."
    last = state.sections[max(state.sections)]
    if last.state != "good" or any(not key[:1].isdigit() for key in state.alerts):
        return "look", "Look now", str(alerts[0]["sentence"]) if alerts else summary
    return "good", "Good", summary


def write_page(
    outdir: Path,
    folder: Path,
    state: State,
    alerts: Sequence[Context],
    open_sections: Collection[int],
    *,
    trouble: str = "",
    to_come: int | None = None,
    is_done: bool = False,
) -> None:
    """Write the page; ``alerts`` are events, the newest first."""
    sections = state.sections
    last = max(sections, default=None)
    entry = None if last is None else sections[last]
    picture = None if last is None else outdir / picture_of(last)
    tiles = picture and picture.with_name(f"{picture.stem}_tiles.svg")
    now = datetime.now(UTC)
    colour, words, sentence = headline(state, trouble, alerts, is_done=is_done)
    page: Context = {
        "name": folder.name,
        "folder": str(folder),
        "colour": colour,
        "state": words,
        "sentence": sentence,
        "to_come": to_come,
        "sections": [
            {
                "number": n,
                "state": section.state,
                "picture": section.state != "refused" and picture_of(n),
            }
            for n, section in sorted(sections.items())
        ],
        "open": sorted({*open_sections} - sections.keys()),
        "faulty": sum(section.state != "good" for section in sections.values()),
        "period": _period([section for _, section in sorted(sections.items())]),
        "free": format_bytes(min(entry.free.values())) if entry and entry.free else "–",
        "when": f"{now:%H:%M}",
        "day": f"{now:%Y-%m-%d}",
        "last": last,
        "faults": [alert["sentence"] for alert in alerts if alert.get("section") == last]
        if entry and entry.state != "good"
        else [],
        "picture": picture and picture.exists() and _data_uri(picture),
        "tiles": tiles and tiles.exists() and tiles.read_text(encoding="utf-8"),
        "alerts": [*alerts][:MOST_ALERTS],
    }
    template = _environment().get_template("live.html.j2")
    html = template.render(
        page=page, style=render("style.css.j2"), version=__version__, lines=LINES
    )
    with writing(outdir / PAGE, overwrite=True) as partial:
        partial.write_text(html, encoding="utf-8")


def _data_uri(picture: Path) -> str:
    return f"data:image/png;base64,{base64.b64encode(picture.read_bytes()).decode()}"


def _period(sections: Sequence[SectionEntry]) -> str:
    seconds = usual_period(sections)
    if seconds is None:
        return "–"
    return f"{seconds / 60:.0f} min" if seconds > 90 else f"{seconds:.0f} s"
