"""The report of one subject: records and preview arrays in, HTML and pictures out.

Only templates are read; :mod:`octane.processes.report.step` reads and writes the files.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import NamedTuple, cast

import numpy.typing as npt

from octane.core.geometry import Vector, vector
from octane.core.orientation import UNSTATED, code_of, spelled_orientation
from octane.core.records import ORDER, Context, Decision, Outcome, Record
from octane.pictures import pictures
from octane.processes.mosaic.record import MosaicFigures
from octane.processes.pyramid.record import PyramidFigures
from octane.processes.report.channels import (
    THUMBNAIL_EDGE,
    channel_pictures,
    channels_of,
    check_others,
    fit_of,
    fits_of,
    sections_of_others,
)
from octane.processes.report.correction import bands_of, correction_of, threshold_of
from octane.processes.report.decisions import list_decisions
from octane.processes.report.gallery import Gallery, render
from octane.processes.report.sections import (
    MOST_LARGE,
    alignment_of,
    cut_charts,
    numbers_of,
    sections_of,
)
from octane.processes.report.summary import section_qualities, summary_of
from octane.processes.report.tables import step_tables
from octane.processes.report.tasks import CUTS, TaskRecord, figures_of, settings_of
from octane.processes.report.verdict import check_subject, state_of, verdict
from octane.processes.resample.record import ResampleFigures
from octane.processes.stack.record import StackFigures
from octane.processes.stitch.record import StitchFigures

CHECKED_STEPS = ("mosaic", "stitch", "stack")
"""Steps whose warnings only repeat checks of the report, except for remarks."""


class Report(NamedTuple):
    """The page, its pictures by file name, its verdict, and its JSON twin."""

    html: str
    pictures: dict[str, bytes]
    verdict: str
    twin: Context


def _notices(entries: Sequence[TaskRecord]) -> list[tuple[str, str]]:
    """List remarks of tasks that checks do not cover, each with the first task that made it."""
    by_text: dict[str, list[str]] = {}
    for name, record in ((entry.name, entry.record) for entry in entries):
        if record.attempt > 1:
            text = f"succeeded at attempt {record.attempt}; "
            text += "see Nextflow's log for why earlier ones failed."
            by_text.setdefault(text, []).append(name)
        remarks = cast("list[str]", record.figures.get("remarks", []))
        for text in remarks if record.step in CHECKED_STEPS else record.warnings:
            by_text.setdefault(text, []).append(name)
    for package in sorted({name for entry in entries for name in entry.record.versions}):
        versions = sorted({e.record.versions.get(package, "none") for e in entries})
        if len(versions) > 1:
            text = f"{package} differs between tasks: {', '.join(versions)}."
            by_text.setdefault(text, []).append("versions")
    return [
        (first + (f" and {len(more)} more" if more else ""), text)
        for text, (first, *more) in by_text.items()
    ]


def build_report(
    entries: Sequence[TaskRecord],
    *,
    subject: str,
    run: Mapping[str, str] | None,
    files: Mapping[str, str],
    outcome: Outcome | None = None,
    reference: str | None = None,
    preflight_decisions: Sequence[Decision] = (),
) -> Report:
    """Build the page from the records and previews of all tasks.

    ``reference`` names the channel that was measured, if there are several. ``run`` holds facts of
    the workflow run, such as its ``input`` and ``command``; ``files`` describes the files next to
    the page; ``outcome`` is None if the results are complete.
    """
    gallery, channels = Gallery(_smallest_width(entries)), channels_of(entries, reference)
    tasks, settings = channels.reference_tasks, settings_of(channels.reference_tasks)
    fit = fit_of(tasks)
    stack = next((figures for _, figures in figures_of(tasks, "stack", StackFigures)), None)
    n4 = fit[1] if fit else None
    threshold = threshold_of(fit[0]) if fit else None
    # A reference channel that is only measured has none.
    pyramid = next(iter(figures_of([*tasks, *entries], "pyramid", PyramidFigures)), None)
    resamples = figures_of(tasks, "resample", ResampleFigures)
    resampled = next((figures for _, figures in resamples), None)
    grids = (stack, n4, pyramid[1].levels[0] if pyramid else None, resampled)
    stitched = figures_of(tasks, "stitch", StitchFigures)
    mosaics = [figures for _, figures in figures_of(tasks, "mosaic", MosaicFigures)]
    slices: list[Context] = []
    grey = thumbnail = joined = None
    # If results are missing, the last volume is not the finished one.
    if outcome is None and channels.channels_task and reference is not None:
        joined = channel_pictures(channels, numbers_of(stack), gallery)
        thumbnail = joined["thumbnail"]
    elif outcome is None and (volume := _volume_cuts(tasks)):
        cuts, spacing = volume
        grey = pictures.grey_scale(cuts.values())
        arrays = {f"volume_{axis}": cut for axis, cut in cuts.items()}
        kinds = {"volume": ("volume", grey)}
        slices = gallery.cuts("volume", spacing, kinds, arrays, numbers_of(stack))
        small = pictures.panel(cuts["z"], spacing[1:], grey, bar=False, longest=THUMBNAIL_EDGE)
        thumbnail = pictures.uri(small)
    unfinished = outcome.sections if outcome else []
    sections = {entry.name: figures for entry, figures in stitched}
    quality = section_qualities(sections, stack, n4, unfinished)
    notices = _notices(entries)
    checks = check_subject(quality, sections, stack, n4, threshold, outcome, settings)
    decisions = list_decisions(preflight_decisions, sections, stack, n4, settings)
    others = check_others(channels)
    all_checks = [*checks, *(check for of_channel in others.values() for check in of_channel)]
    for section in quality:
        section.flags = [check.name for check in all_checks if section.title in check.sections]
    warned = [check for check in all_checks if check.state == "warning"]
    sentence = verdict(all_checks, len(notices))
    records = [entry.record for entry in entries]
    orientation = next((r.orientation for r in records if any(r.orientation)), UNSTATED)
    html = render(
        "report.html.j2",
        subject=subject,
        run={"input": "", "command": "", **(run or {})},
        when=_time_span(records),
        grid=next((grid for grid in grids if grid and grid.voxel_size), None),
        orientation=spelled_orientation(orientation),
        code=code_of(orientation),
        decisions=decisions,
        notices=notices,
        checks=checks,
        other_checks=others,
        warned=warned,
        verdict=sentence,
        state=state_of(all_checks),
        channels=channels,
        joined=joined,
        fits=fits_of(channels, bands_of(stack), gallery),
        unfinished_steps={name.rpartition("_")[2] for name in (outcome.missing if outcome else ())},
        stack=stack,
        cuts=cut_charts(quality, stack.voxel_size[0], gallery) if stack else [],
        n4=correction_of(*fit, bands_of(stack), gallery) if fit else None,
        pyramid=pyramid[1] if pyramid else None,
        resampled=resampled,
        tile_files=sum(mosaic.files for mosaic in mosaics),
        slices=slices,
        grey=grey,
        sections=sections_of(stitched, stack or resampled, quality, gallery) if stitched else None,
        other_sections=sections_of_others(channels, stack or resampled, gallery, MOST_LARGE),
        aligned=alignment_of(tasks, stack, gallery),
        quality=quality,
        **step_tables(records, workflow=run is not None),
        files=files,
        entries=entries,
    )
    channels_shown = {channel.name: channel.model_dump(mode="json") for channel in channels.shown}
    twin: Context = {
        "subject": subject,
        "run": run or {},
        "state": state_of(all_checks),
        "verdict": sentence,
        "decisions": [decision.model_dump() for decision in decisions],
        # Those of the result in its order, then a reference channel that is only measured.
        "channels": [
            {"name": name, "is_reference": name == reference, **channels_shown.get(name, {})}
            for name in channels.names
        ],
        "checks": [asdict(check) for check in all_checks],
        "warnings": [
            *(check.sentence for check in checks if check.state == "warning"),
            *(f"{k}: {c.sentence}" for k, cs in others.items() for c in cs if c.state == "warning"),
            *(text for _, text in notices),
        ],
        "summary": summary_of(records, quality, n4).model_dump(mode="json"),
        "sections": [section.model_dump(mode="json") for section in quality],
        # A small picture of the volume as a URI; None if no step made one.
        "thumbnail": thumbnail,
        "records": [
            {"name": e.name, **e.record.model_dump(mode="json", by_alias=True)} for e in entries
        ],
    }
    return Report(html, gallery.files, sentence, twin)


def _smallest_width(entries: Sequence[TaskRecord]) -> float | None:
    """Width of the narrowest cut through a volume, micrometres; None without one."""
    widths: list[float] = []
    for arrays in (entry.previews for entry in entries if "slice_spacing" in entry.previews):
        _, *spacing = arrays["slice_spacing"].tolist()
        sizes = [array.shape for name, array in arrays.items() if name.startswith("slice_z")]
        widths += [n * s for size in sizes for n, s in zip(size, spacing, strict=True)]
    return min(widths, default=None)


def _volume_cuts(entries: Sequence[TaskRecord]) -> tuple[dict[str, npt.NDArray], Vector] | None:
    """Find the central cuts of the last volume by their axes, and the spacing of their pixels."""
    for step in reversed(ORDER):
        for arrays in (e.previews for e in entries if e.record.step == step):
            if "slice_spacing" in arrays:
                return {a: arrays[f"slice_{a}"] for a in CUTS}, vector(*arrays["slice_spacing"])
    return None


def _time_span(records: Sequence[Record]) -> str:
    """Start and end of the work; empty if no times were recorded."""
    spans = [(r.timeline.started, r.timeline.started + r.total) for r in records if r.timeline]
    if not spans:
        return ""
    begin, end = (
        datetime.fromtimestamp(at, UTC) for at in (min(spans)[0], max(s[1] for s in spans))
    )
    form = "%H:%M" if begin.date() == end.date() else "%Y-%m-%d %H:%M"
    return f"{begin:%Y-%m-%d %H:%M} to {end:{form}} UTC"
