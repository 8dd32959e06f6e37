"""The report of one subject: records and preview arrays in, HTML and pictures out.

Only templates are read; :mod:`octane.steps.report` reads and writes the files.
"""

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cache, partial
from typing import NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt
from jinja2 import Environment, PackageLoader, StrictUndefined
from PIL.Image import Image
from pydantic import BaseModel, ValidationError

from octane.core.errors import OctaneError
from octane.core.geometry import Vector, vector
from octane.core.records import (
    ORDER,
    Context,
    MosaicFigures,
    N4Figures,
    Outcome,
    PyramidFigures,
    Record,
    ResampleFigures,
    StackFigures,
    StitchFigures,
    by_tile,
)
from octane.core.units import counted
from octane.report import charts, pictures
from octane.report.charts import Band
from octane.report.summary import SectionQuality, outliers, qualities, summary_of, title_of
from octane.report.tables import tables
from octane.report.tile_map import (
    Arrows,
    PlacedTile,
    Thumbnail,
    arrow_scale,
    placed_tiles,
    tile_map,
)
from octane.report.verdict import DISPLACED, ROTATED, checks, state_of, verdict

CUTS = {"z": (1, 2), "y": (0, 2), "x": (0, 1)}
"""Axes of a slice, down and across, by the axis orthogonal to it."""
PREVIEWED = {
    "stitch": ("thumbnail",),
    "n4": tuple(f"{kind}_{axis}" for kind in ("before", "after", "field") for axis in CUTS),
    "pyramid": (*(f"slice_{axis}" for axis in CUTS), "slice_spacing"),
}
"""Arrays that the report needs, by the step that makes them."""
JUDGED = ("mosaic", "stitch", "stack")
"""Steps whose warnings only repeat checks of the report, except for remarks."""
THUMBNAIL = 320
"""Longest edge of the volume's picture on the cohort page, pixels."""
ROOMY = 12
"""Number of sections up to which their pictures are large; more would make the file too large."""
LEAST_MOVE = 0.1
"""Smallest move of a tile that an arrow shows, pixels of the section."""
MAPPED, MAPPED_TILES = 6, 3000
"""Most sections whose tiles the page maps, and most tiles in all; the maps of all are files."""


@dataclass(frozen=True)
class TaskRecord:
    """A task's record, the prefix of its file names, and its preview arrays."""

    name: str
    record: Record
    previews: Mapping[str, npt.NDArray] = field(default_factory=dict)


class Report(NamedTuple):
    """The page, its pictures by file name, its verdict, and its JSON twin."""

    html: str
    pictures: dict[str, bytes]
    verdict: str
    twin: Context


M = TypeVar("M", bound=BaseModel)


@cache
def _environment() -> Environment:
    """Template environment, which compiles each template once."""
    environment = Environment(
        loader=PackageLoader("octane.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"command": shlex.join, "counted": counted, "uri": pictures.uri}
    return environment


def rendered(template: str, **content: object) -> str:
    """Render a template of ``templates/``; values are escaped, an undefined one is an error."""
    page = _environment().get_template(template)
    return page.render(**content, light=charts.LIGHT, dark=charts.DARK)


def _of(entries: Sequence[TaskRecord], step: str, model: type[M]) -> list[tuple[TaskRecord, M]]:
    """List the entries of a step, each with its figures."""
    found = []
    for entry in entries:
        if entry.record.step == step:
            try:
                found.append((entry, model.model_validate(entry.record.figures)))
            except ValidationError as error:
                figure = ".".join(map(str, error.errors()[0]["loc"])) or "(all)"
                raise OctaneError(
                    f"{entry.name}_metrics.json lacks a usable figure '{figure}'; "
                    f"run {step.upper()} again with this version of octane."
                ) from error
    return found


class _Gallery:
    """The page's pictures, each also as a file: slices as PNG, charts as SVG."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def chart(self, name: str, title: str, alt: str, chart: charts.Chart) -> Context:
        svg = rendered("chart.svg.j2", **chart._asdict())
        alone = re.sub(r"var\(--(\w+)\)", lambda colour: charts.LIGHT[colour[1]], svg)
        self.files[f"{name}.svg"] = alone.encode()
        return {"title": title, "alt": alt, "svg": svg, "wide": chart.axes.size == charts.WIDE}

    def cuts(
        self,
        name: str,
        spacing: Vector,
        kinds: Mapping[str, tuple[str, pictures.Scale]],
        arrays: Mapping[str, npt.NDArray],
        numbers: pictures.Numbers = (),
    ) -> list[Context]:
        """Make one row per orthogonal cut, with one picture per kind.

        ``numbers`` of sections are written along z.
        """
        rows: list[Context] = []
        for axis, (down, across) in CUTS.items():
            here = (spacing[down], spacing[across])
            slices = [(t, arrays[f"{kind}_{axis}"], scale) for kind, (t, scale) in kinds.items()]
            along = numbers if down == 0 else ()
            self.files[f"{name}_{axis}.png"] = pictures.comparison([(slices, here)], along)
            drawn = [
                (title, pictures.panel(array, here, scale, numbers=along))
                for title, array, scale in slices
            ]
            bar = pictures.in_mm(pictures.bar_of(slices[0][1].shape[1] * here[1]))
            row: Context = {"axis": axis, "down": "zyx"[down], "across": "zyx"[across]}
            rows.append(row | {"drawn": drawn, "bar": bar})
        return rows


def _fields(arrays: dict[str, npt.NDArray]) -> dict[str, str]:
    """Title the fields; scale a true field to the fitted one's geometric mean over the cuts."""
    if not all(f"true_field_{axis}" in arrays for axis in CUTS):
        return {"field": "bias field"}
    # N4 finds a field only up to a factor, which would hide how alike the two are.
    field, true = (
        np.concatenate([arrays[f"{kind}_{axis}"].ravel() for axis in CUTS])
        for kind in ("field", "true_field")
    )
    both = (field > 0) & (true > 0)
    if both.any():
        ratio = np.exp(np.mean(np.log(field[both] / true[both])))
        arrays |= {f"true_field_{axis}": arrays[f"true_field_{axis}"] * ratio for axis in CUTS}
    return {"field": "bias field", "true_field": "true field"}


def _bands(stack: StackFigures | None) -> list[Band]:
    """Extent of each section along z, micrometres."""
    # The position of a plane is its centre; a boundary is half a plane above it.
    z = stack.voxel_size[0] if stack else 0.0
    sections = stack.sections if stack else ()
    return [((s.start - 0.5) * z, (s.stop - 0.5) * z, s.missing) for s in sections]


def _numbers(stack: StackFigures | None) -> pictures.Numbers:
    """Number of each section, and its middle as a fraction of the volume's depth."""
    if stack is None or len(stack.sections) < 2:
        return ()
    return [(s.number, (s.start + s.stop) / 2 / stack.shape[0]) for s in stack.sections]


def _threshold(entry: TaskRecord) -> float | None:
    """Change of the field below which N4 stops."""
    given = entry.record.settings.get("convergence_threshold")
    return float(given) if isinstance(given, int | float) else None


def _correction(entry: TaskRecord, n4: N4Figures, bands: list[Band], gallery: _Gallery) -> Context:
    """Pictures and charts of the bias field correction."""
    arrays = dict(entry.previews)
    fields = _fields(arrays)
    grey = pictures.grey_scale(arrays[f"{k}_{a}"] for k in ("before", "after") for a in CUTS)
    diverging = pictures.field_scale(arrays[f"{k}_{a}"] for k in fields for a in CUTS)
    kinds = {"before": ("before", grey), "after": ("after", grey)}
    kinds |= {kind: (title, diverging) for kind, title in fields.items()}
    threshold = _threshold(entry)
    shown: list[Context] = []
    if "profile_z" in arrays:
        alt = "Mean in tissue of each plane along z, before and after the correction."
        z, before, after = (arrays[f"profile_{k}"] for k in ("z", "before", "after"))
        chart = charts.profile_chart(z, before, after, bands)
        shown.append(gallery.chart("profile", "Profile along z", alt, chart))
    if "histogram_edges" in arrays:
        alt = (
            "Histogram of the intensities in tissue. Their coefficient of variation is "
            f"{n4.cv_before:.1%} before and {n4.cv_after:.1%} after the correction."
        )
        chart = charts.histogram_chart(
            *(arrays[f"histogram_{k}"] for k in ("edges", "before", "after"))
        )
        shown.append(gallery.chart("histogram", "Histogram in tissue", alt, chart))
    return {
        "figures": n4,
        "charts": shown,
        "rows": gallery.cuts("cut", n4.preview_spacing or n4.shrunk_spacing, kinds, arrays),
        "threshold": threshold,
        "grey": grey,
        "field": diverging,
    }


def _sections(
    stitched: list[tuple[TaskRecord, StitchFigures]],
    tiles: StackFigures | ResampleFigures | None,
    quality: Sequence[SectionQuality],
    gallery: _Gallery,
) -> Context:
    """Pictures of the stitched sections by their titles, the chart of the seams, and tile maps."""
    voxel = tiles.voxel_size if tiles else (1.0, 1.0, 1.0)
    limit = outliers([s.seam_median for _, s in stitched])[0]
    grey = pictures.grey_scale(entry.previews["thumbnail"] for entry, _ in stitched)
    drawn: dict[str, Image] = {}
    for entry, figures in stitched:
        thumbnail = entry.previews["thumbnail"]
        sides = zip(voxel, figures.shape, (1, *thumbnail.shape), strict=True)
        pixel = [spacing * n / shown for spacing, n, shown in sides][1:]
        draw = partial(pictures.panel, thumbnail, pixel, grey, bar=tiles is not None)
        large = draw(longest=384)
        gallery.files[f"{entry.name}.png"] = pictures.png(large)
        title = title_of(entry.name, figures.section)
        drawn[title] = large if len(stitched) <= ROOMY else draw(longest=216)
    known = [
        (s.section, s.seam_median, s.seam_max)
        for _, s in stitched
        if s.section is not None and s.seam_median is not None and s.seam_max is not None
    ]
    chart = None
    if len(known) > 1:
        seams = tuple(zip(*sorted(known), strict=True))
        alt = f"Mismatch at the seams of each section; outliers lie above {limit:.1%}."
        chart = gallery.chart("seams", "Seams", alt, charts.seam_chart(*seams, limit))
    return {
        "pictures": drawn,
        "chart": chart,
        "limit": limit,
        "grey": grey,
        "flat": _flat_field(stitched, gallery),
        "maps": _tile_maps(stitched, {s.title for s in quality if s.flags}, grey, gallery),
    }


def _tile_maps(
    stitched: list[tuple[TaskRecord, StitchFigures]],
    marked: Collection[str],
    grey: pictures.Scale,
    gallery: _Gallery,
) -> dict[str, str]:
    """Maps of the sections' tiles by title: of the marked ones, and of those refined most."""
    placed: list[tuple[TaskRecord, StitchFigures, list[PlacedTile]]] = []
    for entry, figures in stitched:
        places, before = by_tile(figures.positions), by_tile(figures.nominal_positions)
        if len(places) < 2 or figures.tile_extent is None or figures.mosaic_extent is None:
            continue
        tiles = placed_tiles(
            places, figures.tile_extent, figures.mosaic_extent,
            not_imaged=figures.not_imaged, before=before,
            misplaced=[(own.row, own.column) for own in figures.misplaced],
        )  # fmt: skip
        placed.append((entry, figures, tiles))
    # One scale, so that the arrows of different sections compare.
    times = arrow_scale([own for *_, tiles in placed for own in tiles if own.imaged])
    maps: dict[str, tuple[bool, float, str]] = {}
    for entry, figures, tiles in placed:
        thumbnail = Thumbnail.over(tiles, entry.previews["thumbnail"], grey)
        pixel = thumbnail.extent[0] / figures.shape[1]
        drawn = tile_map(tiles, thumbnail, Arrows(times, LEAST_MOVE * pixel))
        gallery.files[f"{entry.name}_tiles.svg"] = drawn.encode()
        title = title_of(entry.name, figures.section)
        maps[title] = (title in marked, figures.largest_move, drawn)
    largest = max((figures.tiles for _, figures in stitched), default=1)
    most = max(1, min(MAPPED, MAPPED_TILES // largest))
    worst = sorted(maps, key=lambda title: maps[title][:2], reverse=True)[:most]
    return {title: drawn for title, (*_, drawn) in maps.items() if title in worst}


def _flat_field(
    stitched: list[tuple[TaskRecord, StitchFigures]], gallery: _Gallery
) -> Context | None:
    """Picture of the sections' mean flat field; None if none was estimated."""
    shown = [e.previews["flat_field"] for e, _ in stitched if "flat_field" in e.previews]
    if not shown:
        return None
    mean = np.mean([flat for flat in shown if flat.shape == shown[0].shape], axis=0)
    scale = pictures.field_scale([mean])
    picture = pictures.panel(mean, (1, 1), scale, bar=False, longest=216)
    gallery.files["flat_field.png"] = pictures.png(picture)
    applied = any(s.shading_after is not None for _, s in stitched)
    return {"picture": picture, "scale": scale, "applied": applied}


def _aligned(
    entries: Sequence[TaskRecord], stack: StackFigures | None, gallery: _Gallery
) -> Context | None:
    """Displacements of the sections, and a cut through them before and after alignment."""
    if stack is None or not any(section.shift for section in stack.sections):
        return None
    previews = next(entry.previews for entry in entries if entry.record.step == "stack")
    drawn: list[tuple[str, Image]] = []
    if {"unaligned_y", "slice_y", "slice_spacing"} <= previews.keys():
        cuts = {"before": previews["unaligned_y"], "after": previews["slice_y"]}
        spacing = vector(*previews["slice_spacing"])
        grey = pictures.grey_scale(cuts.values())
        for name, cut in cuts.items():
            here, numbers = (spacing[0], spacing[2]), _numbers(stack)
            drawn.append((name, pictures.panel(cut, here, grey, numbers=numbers)))
            gallery.files[f"alignment_{name}.png"] = pictures.png(drawn[-1][1])
    known = [(s.number, *s.shift, s.rotation or 0.0) for s in stack.sections if s.shift]
    numbers, y, x, turns = zip(*known, strict=True)
    shown = [
        gallery.chart(
            title.lower(),
            title,
            f"{title} of the sections; those beyond {limit:g} {unit} are numbered.",
            charts.displacement_chart(numbers, named, limit, unit),
        )
        for title, named, limit, unit in (
            ("Shifts", {"y": y, "x": x}, DISPLACED * stack.voxel_size[1], "µm"),
            ("Rotations", {"rotation": turns}, ROTATED, "degrees"),
        )
    ]
    return {"drawn": drawn, "sections": stack.sections, "charts": shown}


def _cuts(quality: Sequence[SectionQuality], plane: float, gallery: _Gallery) -> list[Context]:
    """Charts of the sections' surfaces and thicknesses, if any was measured."""
    known = [(s, s.slab) for s in quality if s.slab and not s.slab.missing]
    surfaces = [
        (s.surface and s.surface.depth, slab.surface, s.rise and s.rise[0] / 2) for s, slab in known
    ]
    thicknesses = [
        (slab.measured_thickness, slab.thickness, slab.thickness_std) for _, slab in known
    ]
    shown = []
    for name, rows, bar in (
        ("Section surface", surfaces, "range over the section"),
        ("Section thickness", thicknesses, "± standard deviation"),
    ):
        # None becomes NaN.
        lengths = np.array(rows, float).reshape(-1, 3).T
        if len(known) > 1 and not np.isnan(lengths[0]).all():
            numbers, marked = zip(*((b.number, name in a.flags) for a, b in known), strict=True)
            chart = charts.length_chart(numbers, lengths, bar, marked, plane)
            alt = f"{name} as measured and as used; sections that need a look are numbered."
            shown.append(gallery.chart(name.lower().replace(" ", "_"), name, alt, chart))
    return shown


def _notices(entries: Sequence[TaskRecord]) -> list[tuple[str, str]]:
    """List remarks of tasks that checks do not cover, each with the first task that made it."""
    found: dict[str, list[str]] = {}
    for name, record in ((entry.name, entry.record) for entry in entries):
        if record.attempt > 1:
            text = f"succeeded at attempt {record.attempt}; "
            text += "Nextflow's log says why the earlier ones failed."
            found.setdefault(text, []).append(name)
        remarks = cast("list[str]", record.figures.get("remarks", []))
        for text in remarks if record.step in JUDGED else record.warnings:
            found.setdefault(text, []).append(name)
    for package in sorted({name for entry in entries for name in entry.record.versions}):
        versions = sorted({e.record.versions.get(package, "none") for e in entries})
        if len(versions) > 1:
            text = f"{package} differs between tasks: {', '.join(versions)}."
            found.setdefault(text, []).append("versions")
    return [
        (first + (f" and {len(more)} more" if more else ""), text)
        for text, (first, *more) in found.items()
    ]


def build(
    entries: Sequence[TaskRecord],
    *,
    subject: str,
    run: Mapping[str, str] | None,
    files: Mapping[str, str],
    lost: Outcome | None = None,
) -> Report:
    """Build the page from the records and previews of all tasks.

    ``run`` holds facts of the workflow run, such as its ``input`` and ``command``; ``files``
    describes the files next to the page; ``lost`` is None if the results are complete.
    """
    gallery = _Gallery()
    stack = next((figures for _, figures in _of(entries, "stack", StackFigures)), None)
    corrected = next(iter(_of(entries, "n4", N4Figures)), None)
    n4 = corrected[1] if corrected else None
    threshold = _threshold(corrected[0]) if corrected else None
    pyramid = next(iter(_of(entries, "pyramid", PyramidFigures)), None)
    resampled = next((figures for _, figures in _of(entries, "resample", ResampleFigures)), None)
    grids = (stack, n4, pyramid[1].levels[0] if pyramid else None, resampled)
    stitched = _of(entries, "stitch", StitchFigures)
    mosaics = [figures for _, figures in _of(entries, "mosaic", MosaicFigures)]
    slices: list[Context] = []
    grey = thumbnail = None
    # If results are missing, the last volume is not the finished one.
    if lost is None and (volume := _volume(entries)):
        cuts, spacing = volume
        grey = pictures.grey_scale(cuts.values())
        arrays = {f"volume_{axis}": cut for axis, cut in cuts.items()}
        kinds = {"volume": ("volume", grey)}
        slices = gallery.cuts("volume", spacing, kinds, arrays, _numbers(stack))
        small = pictures.panel(cuts["z"], spacing[1:], grey, bar=False, longest=THUMBNAIL)
        thumbnail = pictures.uri(small)
    unfinished = lost.sections if lost else []
    quality = qualities({entry.name: own for entry, own in stitched}, stack, n4, unfinished)
    notices = _notices(entries)
    checked = checks(quality, {e.name: own for e, own in stitched}, stack, n4, threshold, lost)
    for section in quality:
        section.flags = [check.name for check in checked if section.title in check.sections]
    warned = [check for check in checked if check.state == "warning"]
    sentence = verdict(checked, len(notices))
    records = [entry.record for entry in entries]
    html = rendered(
        "report.html.j2",
        subject=subject,
        run={"input": "", "command": "", **(run or {})},
        when=_when(records),
        grid=next((grid for grid in grids if grid and grid.voxel_size), None),
        notices=notices,
        checks=checked,
        warned=warned,
        verdict=sentence,
        state=state_of(checked),
        lost={name.rpartition("_")[2] for name in lost.missing} if lost else set(),
        stack=stack,
        cuts=_cuts(quality, stack.voxel_size[0], gallery) if stack else [],
        n4=_correction(*corrected, _bands(stack), gallery) if corrected else None,
        pyramid=pyramid[1] if pyramid else None,
        resampled=resampled,
        tile_files=sum(mosaic.files for mosaic in mosaics),
        slices=slices,
        grey=grey,
        sections=_sections(stitched, stack or resampled, quality, gallery) if stitched else None,
        aligned=_aligned(entries, stack, gallery),
        quality=quality,
        **tables(records, workflow=run is not None),
        files=files,
        entries=entries,
    )
    twin: Context = {
        "subject": subject,
        "run": run or {},
        "state": state_of(checked),
        "verdict": sentence,
        "checks": [asdict(check) for check in checked],
        "warnings": [check.sentence for check in warned] + [text for _, text in notices],
        "summary": summary_of(records, quality, n4).model_dump(mode="json"),
        "sections": [section.model_dump(mode="json") for section in quality],
        # A small picture of the volume as a URI; None if no step made one.
        "thumbnail": thumbnail,
        "records": [
            {"name": e.name, **e.record.model_dump(mode="json", by_alias=True)} for e in entries
        ],
    }
    return Report(html, gallery.files, sentence, twin)


def _volume(entries: Sequence[TaskRecord]) -> tuple[dict[str, npt.NDArray], Vector] | None:
    """Find the central cuts of the last volume by their axes, and the spacing of their pixels."""
    for step in reversed(ORDER):
        for arrays in (e.previews for e in entries if e.record.step == step):
            if "slice_spacing" in arrays:
                return {a: arrays[f"slice_{a}"] for a in CUTS}, vector(*arrays["slice_spacing"])
    return None


def _when(records: Sequence[Record]) -> str:
    """Start and end of the work; empty if no times were recorded."""
    spans = [(r.timeline.started, r.timeline.started + r.total) for r in records if r.timeline]
    if not spans:
        return ""
    begin, end = (
        datetime.fromtimestamp(at, UTC) for at in (min(spans)[0], max(s[1] for s in spans))
    )
    form = "%H:%M" if begin.date() == end.date() else "%Y-%m-%d %H:%M"
    return f"{begin:%Y-%m-%d %H:%M} to {end:{form}} UTC"
