"""Pictures and charts of the sections: their tiles, surfaces and displacements."""

from collections.abc import Collection, Sequence
from functools import partial

import numpy as np
from PIL.Image import Image

from octane.core.geometry import vector
from octane.core.records import Context
from octane.pictures import charts, pictures
from octane.pictures.tile_map import (
    Arrows,
    PlacedTile,
    Thumbnail,
    arrow_scale,
    placed_tiles,
    tile_map,
)
from octane.processes.report.gallery import Gallery
from octane.processes.report.summary import SectionQuality, outliers, title_of
from octane.processes.report.tasks import TaskRecord
from octane.processes.report.verdict import ROTATION_LIMIT, SHIFT_LIMIT
from octane.processes.resample.record import ResampleFigures
from octane.processes.stack.record import StackFigures
from octane.processes.stitch.record import StitchFigures, by_tile

MOST_LARGE = 12
"""Number of sections up to which their pictures are large; more would make the file too large."""
LEAST_MOVE = 0.1
"""Smallest move of a tile that an arrow shows, pixels of the section."""
MOST_MAPS, MOST_MAP_TILES = 6, 3000
"""Most sections whose tiles the page maps, and most tiles in all; the maps of all are files."""


def numbers_of(stack: StackFigures | None) -> pictures.Numbers:
    """Number of each section, and its middle as a fraction of the volume's depth."""
    if stack is None or len(stack.sections) < 2:
        return ()
    return [(s.number, (s.start + s.stop) / 2 / stack.shape[0]) for s in stack.sections]


def sections_of(
    stitched: list[tuple[TaskRecord, StitchFigures]],
    tiles: StackFigures | ResampleFigures | None,
    quality: Sequence[SectionQuality],
    gallery: Gallery,
) -> Context:
    """Pictures of the stitched sections by their titles, the chart of the seams, and tile maps."""
    limit = outliers([s.seam_median for _, s in stitched])[0]
    grey = pictures.grey_scale(entry.previews["thumbnail"] for entry, _ in stitched)
    are_large = len(stitched) <= MOST_LARGE
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
        "pictures": thumbnails(stitched, tiles, grey, gallery, are_large=are_large),
        "chart": chart,
        "limit": limit,
        "grey": grey,
        "flat": flat_field_of(stitched, gallery),
        "maps": _tile_maps(stitched, {s.title for s in quality if s.flags}, grey, gallery),
    }


def thumbnails(
    stitched: list[tuple[TaskRecord, StitchFigures]],
    tiles: StackFigures | ResampleFigures | None,
    grey: pictures.Scale,
    gallery: Gallery,
    *,
    are_large: bool,
) -> dict[str, Image]:
    """Pictures of stitched sections by their titles; ``are_large`` ones are large on the page."""
    voxel = tiles.voxel_size if tiles else (1.0, 1.0, 1.0)
    drawn = {}
    for entry, figures in stitched:
        thumbnail = entry.previews["thumbnail"]
        sides = zip(voxel, figures.shape, (1, *thumbnail.shape), strict=True)
        pixel = [spacing * n / pixels for spacing, n, pixels in sides][1:]
        draw = partial(
            pictures.panel, thumbnail, pixel, grey, bar=tiles is not None and gallery.bar
        )
        large = draw(longest=384)
        gallery.files[f"{entry.name}.png"] = pictures.png(large)
        drawn[title_of(entry.name, figures.section)] = large if are_large else draw(longest=216)
    return drawn


def _tile_maps(
    stitched: list[tuple[TaskRecord, StitchFigures]],
    marked: Collection[str],
    grey: pictures.Scale,
    gallery: Gallery,
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
            misplaced=[(tile.row, tile.column) for tile in figures.misplaced],
        )  # fmt: skip
        placed.append((entry, figures, tiles))
    # One scale, so that the arrows of different sections compare.
    times = arrow_scale([tile for *_, tiles in placed for tile in tiles if tile.imaged])
    maps: dict[str, tuple[bool, float, str]] = {}
    for entry, figures, tiles in placed:
        thumbnail = Thumbnail.over(tiles, entry.previews["thumbnail"], grey)
        pixel = thumbnail.extent[0] / figures.shape[1]
        drawn = tile_map(tiles, thumbnail, Arrows(times, LEAST_MOVE * pixel), gallery.bar)
        gallery.files[f"{entry.name}_tiles.svg"] = drawn.encode()
        title = title_of(entry.name, figures.section)
        maps[title] = (title in marked, figures.largest_move, drawn)
    largest = max((figures.tiles for _, figures in stitched), default=1)
    most = max(1, min(MOST_MAPS, MOST_MAP_TILES // largest))
    worst = sorted(maps, key=lambda title: maps[title][:2], reverse=True)[:most]
    return {title: drawn for title, (*_, drawn) in maps.items() if title in worst}


def flat_field_of(
    stitched: list[tuple[TaskRecord, StitchFigures]], gallery: Gallery, prefix: str = ""
) -> Context | None:
    """Picture of the sections' mean flat field; None if none was estimated.

    ``prefix`` begins the name of its file.
    """
    fields = [e.previews["flat_field"] for e, _ in stitched if "flat_field" in e.previews]
    if not fields:
        return None
    mean = np.mean([flat for flat in fields if flat.shape == fields[0].shape], axis=0)
    scale = pictures.field_scale([mean])
    picture = pictures.panel(mean, (1, 1), scale, bar=False, longest=216)
    gallery.files[f"{prefix}flat_field.png"] = pictures.png(picture)
    applied = any(s.shading_after is not None for _, s in stitched)
    return {"picture": picture, "scale": scale, "applied": applied}


def alignment_of(
    entries: Sequence[TaskRecord], stack: StackFigures | None, gallery: Gallery
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
            here, numbers = (spacing[0], spacing[2]), numbers_of(stack)
            drawn.append((name, pictures.panel(cut, here, grey, numbers=numbers, bar=gallery.bar)))
            gallery.files[f"alignment_{name}.png"] = pictures.png(drawn[-1][1])
    known = [(s.number, *s.shift, s.rotation or 0.0) for s in stack.sections if s.shift]
    numbers, y, x, turns = zip(*known, strict=True)
    drawn_charts = [
        gallery.chart(
            title.lower(),
            title,
            f"{title} of the sections; those beyond {limit:g} {unit} are numbered.",
            charts.displacement_chart(numbers, lengths, limit, unit),
        )
        for title, lengths, limit, unit in (
            ("Shifts", {"y": y, "x": x}, SHIFT_LIMIT * stack.voxel_size[1], "µm"),
            ("Rotations", {"rotation": turns}, ROTATION_LIMIT, "degrees"),
        )
    ]
    return {"drawn": drawn, "sections": stack.sections, "charts": drawn_charts}


def cut_charts(quality: Sequence[SectionQuality], plane: float, gallery: Gallery) -> list[Context]:
    """Charts of the sections' surfaces and thicknesses, if any was measured."""
    known = [(s, s.slab) for s in quality if s.slab and not s.slab.missing]
    surfaces = [
        (s.surface and s.surface.depth, slab.surface, s.rise and s.rise[0] / 2) for s, slab in known
    ]
    thicknesses = [
        (slab.measured_thickness, slab.thickness, slab.thickness_std) for _, slab in known
    ]
    drawn_charts = []
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
            drawn_charts.append(gallery.chart(name.lower().replace(" ", "_"), name, alt, chart))
    return drawn_charts
