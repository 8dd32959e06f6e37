"""Config of a new subject, from the metadata of its data.

Nothing is guessed: settings that the metadata do not determine stay comments that say what is
missing, and PREFLIGHT asks for them. At most a few tiles are read, to measure their shading, the
surface of three sections and the depth that two share; with a preview, those of one mosaic.
"""

import logging
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from shlex import join
from typing import cast

import numpy as np
import numpy.typing as npt

from octane.compare.columns import columns
from octane.config.types import AUTO, NEAREST
from octane.config.validation import unfit_name, unlinkable
from octane.core.errors import InputError, OctaneError, collecting
from octane.core.files import require_free, writing
from octane.core.geometry import shape_of, slopes, spelled
from octane.core.orientation import code_of, spelled_orientation
from octane.core.units import format_bytes, format_lengths
from octane.layout.mosaic import MosaicGrid, Position, Tile, completed, position_rows
from octane.layout.placement import TilePlacement
from octane.layout.sections import distances, gaps, listed, number_of
from octane.pictures.tile_map import placed_tiles, preview_map, require_svg
from octane.processes.mosaic.checks_before import holds_tiles, planned_mosaic, unplaced_tiles
from octane.processes.mosaic.parameters import TileParameters
from octane.processes.mosaic.section_tiles import SectionTiles
from octane.processes.mosaic.survey import Acquisition
from octane.processes.mosaic.survey import survey as survey_tiles
from octane.processes.preflight.inputs import doubted_sizes, find_inputs, kind_of
from octane.processes.preflight.plan import idle_flags
from octane.processes.stack.shared_depth import SMALL, TOP, WINDOW
from octane.processes.stack.thickness import FEWEST_PLANES, distance
from octane.processes.stitch.flat_field import estimate, shading_of
from octane.processes.stitch.layout import nominal_positions
from octane.processes.stitch.parameters import ESTIMATE, StitchParameters
from octane.processes.stitch.record import SHADING, SurfaceFigures
from octane.processes.stitch.surface import measured_surface
from octane.store.channels import ALL, channel_names
from octane.store.image import Image
from octane.store.stated import stated_orientation
from octane.store.volumes import Volume, open_volume, overruled
from octane.tools.new_subject.parameters import SubjectOverrides
from octane.tools.new_subject.subject import Setting, config_text

logger = logging.getLogger(__name__)

PROJECT = Path(__file__).resolve().parents[4]
LEVELS = (10, 25, 50, 100)
"""Voxel sizes to suggest: the first that is not finer than the data."""
CLOSING = "What is a comment has the default that it shows. The command line wins."
MEASURED_BYTES = 1e9
"""Maximum bytes read to measure the shading, or the surface."""
NOT_AVERAGED = re.compile("angle|axis|orient|azimuth|phase|label|mask|segment", re.IGNORECASE)
"""Words in the names of channels whose mean may be meaningless."""
SPREAD = ((0.5, 0.5), (0.2, 0.2), (0.2, 0.8), (0.8, 0.2), (0.8, 0.8))
"""Places in a section, as fractions of it, whose tiles show its surface."""


def write_subject(
    data: Path,
    name: str | None = None,
    overrides: SubjectOverrides | None = None,
    tiles: TileParameters | None = None,
    *,
    config: Path | None = None,
    preview: Path | None = None,
    project: Path = PROJECT,
    overwrite: bool = False,
) -> tuple[Path, str]:
    """Write the config of a subject, and return its path and the command that runs it.

    The config is ``conf/subjects/NAME.config`` in the project unless ``config`` names another file.
    ``preview`` is an SVG to write, which shows the tiles of the middle mosaic as they are placed.
    If the data or the name cannot be used, or the config exists, nothing is written.
    """
    overrides = overrides or SubjectOverrides()
    # Links are kept as given: a folder of links may point to other data later.
    source = Path(os.path.abspath(data))  # noqa: PTH100
    name = name or source.name.split(".")[0]
    written = config or project / "conf" / "subjects" / f"{name}.config"
    if problem := unfit_name(name) or unlinkable(source):
        raise InputError(problem)
    require_free(written, overwrite=overwrite)
    tiles = tiles or TileParameters()
    found: Acquisition | None = None
    if overrides.input_kind in ("auto", "mosaic") and holds_tiles(source, tiles):
        found = survey_tiles(source, tiles, overrides, overrides.overlap)
        kind, volumes = "mosaic", [planned_mosaic(s, source, overrides) for s in found.sections]
    else:
        kind, volumes = survey(source, overrides)
    if idle := idle_flags(source, kind, tiles, overrides.overlap, found):
        raise InputError("\n".join(idle.values()))
    settings = subject_settings(name, source, kind, volumes, overrides, found)
    about = _about(kind, volumes)
    if found is not None:
        settings |= _names(found, tiles)
        about += [found.about(), *found.remarks]
    call = join(["nextflow", "run", str(project / "main.nf"), "-c", str(written.absolute())])
    remedy = "give --config FILE to write the config elsewhere"
    with ExitStack() as outputs:
        if preview is not None:
            drawn = _map(preview, kind, volumes, source, overrides, found)
            outputs.enter_context(writing(preview, overwrite=overwrite)).write_text(drawn, "utf-8")
        partial = outputs.enter_context(writing(written, overwrite=overwrite, remedy=remedy))
        head = [f"Subject {name}. Run with: {call}", *about, CLOSING]
        partial.write_text(config_text(head, settings), encoding="utf-8")
    for line in about:
        logger.info("%s", line)
    for parameter, setting in settings.items():
        if setting.found and not setting.stated:
            logger.info("%s: %s", parameter, " ".join(setting.found))
    return written, call


def survey(source: Path, overrides: SubjectOverrides) -> tuple[str, list[Volume]]:
    """Kind and volumes of an input; an OctaneError names each store that cannot be used."""
    problems: list[str] = []
    volumes: list[Volume] = []
    # PREFLIGHT checks for missing chunks: it knows whether they are allowed.
    reading = overrides.model_copy(update={"missing_chunks": "fill"})
    for path in find_inputs(source):
        with collecting(problems):
            volumes.append(open_volume(path, reading))
    if problems:
        raise InputError("\n".join(problems))
    return kind_of(volumes, overrides.input_kind), volumes


def _numbers(volumes: Iterable[Volume]) -> list[int]:
    return [number for volume in volumes if (number := number_of(volume)) is not None]


def results_folder(data: Path, given: Path | None = None) -> Path:
    """Folder of the results: as given, else in the current folder or next to data around it."""
    folder = Path(os.path.abspath(given or "results"))  # noqa: PTH100
    source = data.resolve()
    if given is None and folder.resolve().is_relative_to(source):
        return source.parent / ("octane" if source.name == folder.name else folder.name)
    return folder


def subject_settings(
    name: str,
    source: Path,
    kind: str,
    volumes: Sequence[Volume],
    overrides: SubjectOverrides,
    found: Acquisition | None = None,
) -> dict[str, Setting]:
    """Settings that the data and the user's overrides determine, by parameter.

    With tiles that were ``found``, the volumes are their mosaics, which are not written yet.
    """
    outdir = results_folder(source, overrides.outdir)
    settings = {
        "subject": Setting(name),
        "input": Setting(str(source)),
        "outdir": Setting(str(outdir), [f"The results are in {outdir / name}."]),
        "resolution": _resolution(kind, volumes),
        "orientation": _orientation(volumes[0]),
    }
    table = None
    if found is not None:
        settings |= _tiles(volumes, None)
        if found.source:
            sentence = f"Not needed: {found.source} states the places of the tiles."
            settings["overlap"] = Setting(None, [sentence], False)
    elif kind == "mosaic":
        # A table of positions would override an overlap.
        table = _table(source) if overrides.overlap is None else None
        settings |= _tiles(volumes, table) | _light(volumes, table, overrides)
    if kind == "mosaic":
        settings |= _surface(volumes, table, overrides, found)
    if kind != "volume":
        settings["section_thickness"] = _thickness(volumes, kind, found)
        settings["allow_missing_sections"] = _missing(volumes)
    settings |= _channels(volumes[0].channels if found is None else found.channels, overrides)
    stated = overrides.model_dump(exclude={"outdir"}, exclude_defaults=True)
    return settings | {parameter: Setting(value) for parameter, value in stated.items()}


def _map(
    preview: Path,
    kind: str,
    volumes: Sequence[Volume],
    source: Path,
    overrides: SubjectOverrides,
    found: Acquisition | None,
) -> str:
    """Draw the tiles of the middle mosaic as placed; raise if that is not known."""
    require_svg(preview)
    if kind != "mosaic":
        raise InputError(
            f"--preview shows the tiles of mosaics, but {source} is a {kind}; omit it."
        )
    if found is not None and not found.source and overrides.overlap is None:
        raise unplaced_tiles(found.folder)
    image = cast("Image", volumes[len(volumes) // 2])
    tiling = MosaicGrid.of(image)
    section = None if found is None else found.sections[len(volumes) // 2]
    table = _table(source) if found is None and overrides.overlap is None else None
    places = _places(image, tiling, section, table, overrides)
    sizes = (tiling.tile_extent[1:], tiling.extent[1:])
    tiles = placed_tiles(places, *sizes, not_imaged=tiling.not_imaged)
    middle = tiling.shape[0] // 2

    def plane(tile: Tile) -> npt.NDArray:
        if section is not None:
            return section.read(tile)[middle]
        return image.read((slice(middle, middle + 1), *tiling.region(tile)[1:]))[0]

    return preview_map(tiles, tiling.voxels * image.dtype.itemsize, plane)


def _places(
    image: Image,
    tiling: MosaicGrid,
    section: SectionTiles | None,
    table: Path | None,
    overrides: SubjectOverrides,
) -> dict[Tile, Position]:
    """Positions of a mosaic's tiles; raise if they are not known."""
    if section is not None and section.positions:
        return completed(section.positions, tiling)
    return nominal_positions(image, tiling, StitchParameters(overlap=overrides.overlap), table)


def _names(found: Acquisition, given: TileParameters) -> dict[str, Setting]:
    """Settings of tiles in files: as given, and the pattern of their names."""
    stated = {**given.model_dump(exclude_defaults=True), "pattern": found.pattern.text}
    if given.table is not None:
        # A config may be used in any folder.
        stated["table"] = os.path.abspath(given.table)  # noqa: PTH100
    settings = {given.prefix + field: Setting(value) for field, value in stated.items()}
    if given.pattern is None:
        pattern = Setting(found.pattern.text, ["Found in the names of the files."])
        settings["tile_pattern"] = pattern
    return settings


def _table(source: Path) -> Path | None:
    """Find a table of positions in the folder of the data, or next to it."""
    for table in (source / "positions.csv", source.parent / "positions.csv"):
        if table.is_file():
            position_rows(table)
            return table
    return None


def _about(kind: str, volumes: Sequence[Volume]) -> list[str]:
    """Describe the data, one sentence per line."""
    numbers = _numbers(volumes)
    what = {"mosaic": "mosaic grid(s)", "section": "whole section(s)", "volume": "volume"}
    several = numbers and len(volumes) > 1
    span = f", numbered {min(numbers)} to {max(numbers)}" if several else ""
    decoded = sum(math.prod(v.grid.shape) * v.dtype.itemsize for v in volumes)
    lines = [
        f"Found: {len(volumes)} {what[kind]}{span}; {format_bytes(decoded)} decoded.",
        f"Voxels: {_spread(f'{spelled(v.grid.spacing)} micrometre' for v in volumes)} (z y x), "
        f"{_spread(str(v.dtype) for v in volumes)}.",
        f"Shape (z y x): {_spread(spelled(v.grid.shape) for v in volumes)}; "
        f"{_spread(format_lengths(v.grid.extent) for v in volumes)}.",
    ]
    if kind == "mosaic":
        grids = [MosaicGrid.of(cast("Image", v)) for v in volumes]
        cut = _spread(spelled((grid.rows, grid.columns)) for grid in grids)
        field = _spread(format_lengths(grid.tile_extent[1:]) for grid in grids)
        whole = _spread(format_lengths(grid.extent) for grid in grids)
        gone = sum(len(grid.not_imaged) for grid in grids)
        lost = f"; {gone} of {sum(len(g.tiles) for g in grids)} were not imaged" if gone else ""
        lines[-1] = (
            f"Tiles, rows x columns: {cut}; each {field} (y x), side by side {whole} (z y x){lost}."
        )
    return lines + doubted_sizes(volumes) + overruled(volumes)


def _spread(values: Iterable[str]) -> str:
    """Spell a common value, or that the values differ."""
    kinds = sorted(set(values))
    return kinds[0] if len(kinds) == 1 else f"{' or '.join(kinds[:3])} (they differ)"


def _orientation(volume: Volume) -> Setting:
    stated = stated_orientation(volume.attributes)
    if not any(stated):
        return Setting(None, ["The data do not state it."], False)
    sentence = f"The data state it: {spelled_orientation(stated)}. Set it to override that."
    return Setting(code_of(stated) or None, [sentence], False)


def _resolution(kind: str, volumes: Sequence[Volume]) -> Setting:
    sizes = [volume.grid.spacing for volume in volumes]
    have = f"The voxels are {_spread(f'{spelled(size)} micrometre' for size in sizes)}."
    suggested = next((level for level in LEVELS if level >= max(map(max, sizes))), None)
    if kind != "mosaic" or suggested is None:
        return Setting(suggested, [f"{have} They stay as they are unless you set this."], False)
    reason = "the first of the pyramid's sizes that is not finer"
    return Setting(suggested, [f"{have} Suggested: {suggested}, {reason}."])


def _tiles(volumes: Sequence[Volume], table: Path | None) -> dict[str, Setting]:
    """Overlap of tiles, which is never guessed, or the table of their positions."""
    if table is not None:
        sentence = "Not needed: the table of positions determines it."
        return {
            "overlap": Setting(None, [sentence], False),
            "positions": Setting(str(table), ["Found next to the data."]),
        }
    grids = [MosaicGrid.of(cast("Image", volume)) for volume in volumes]
    overlaps = {
        g.pitch
        and tuple(round(1 - p / n, 4) for p, n in zip(g.pitch, g.tile_extent[1:], strict=True))
        for g in grids
    }
    if None in overlaps:
        value = "0.2"
        sentence = (
            "The data do not say how their tiles overlap, and it is never guessed. Set it here (0 "
            "if tiles abut), or give a positions table; otherwise PREFLIGHT stops the run and "
            "asks."
        )
    elif len(overlaps) > 1:
        value, sentence = None, "Each mosaic's own metadata state it; they differ."
    else:
        value, sentence = overlaps.pop(), "From the mosaics' own metadata; set it to override them."
    return {"overlap": Setting(value, [sentence], False)}


def _light(
    volumes: Sequence[Volume], table: Path | None, overrides: SubjectOverrides
) -> dict[str, Setting]:
    """Flat field, if the tiles in the middle of the data are shaded."""
    image = cast("Image", volumes[len(volumes) // 2])
    tiling = MosaicGrid.of(image)
    middle = (tiling.rows // 2, tiling.columns // 2)
    tiles = [t for t in tiling.imaged if max(map(abs, np.subtract(t, middle))) <= 1]
    if not tiles or len(tiles) * math.prod(tiling.tile) * image.dtype.itemsize > MEASURED_BYTES:
        return {}
    try:
        given = StitchParameters(overlap=overrides.overlap)
        places = nominal_positions(image, tiling, given, table)
        seen = {t: np.abs(image.read(tiling.region(t))).mean(0, np.float32) for t in tiles}
    except OctaneError:
        # PREFLIGHT names what is missing.
        return {}
    flat = estimate(seen, TilePlacement(tiling, {t: places[t] for t in tiles}))
    if flat is None or (shading := shading_of(flat.profile)) <= SHADING:
        return {}
    sentence = (
        f"As measured on {len(tiles)} tiles of {image.path.name}, brightness varies "
        f"by {100 * shading:.0f} % over a tile. 'estimate' is recommended: remove the slashes "
        "before it."
    )
    return {"stitch_flat_field": Setting(ESTIMATE, [sentence], False)}


def _surface(
    volumes: Sequence[Volume],
    table: Path | None,
    overrides: SubjectOverrides,
    found: Acquisition | None,
) -> dict[str, Setting]:
    """Depth of the surface, if it shows in the first, the middle or the last section."""
    indices = sorted({0, len(volumes) // 2, len(volumes) - 1})
    images = [cast("Image", volumes[index]) for index in indices]
    tile = max(math.prod(MosaicGrid.of(image).tile) * image.dtype.itemsize for image in images)
    if tile * len(SPREAD) * len(images) > MEASURED_BYTES:
        return {}
    measured: dict[str, SurfaceFigures] = {}
    rise = 0.0
    for index, image in zip(indices, images, strict=True):
        section, tiling = found.sections[index] if found else None, MosaicGrid.of(image)
        try:
            places = _places(image, tiling, section, table, overrides)
            profiles = {
                tile: columns(section.read(tile) if section else image.read(tiling.region(tile)))
                for tile in _spread_tiles(tiling)
            }
        except OctaneError:
            # PREFLIGHT names what is missing.
            return {}
        placement = TilePlacement(tiling, {tile: places[tile] for tile in profiles})
        own = measured[image.path.name] = measured_surface(profiles, placement)
        along = np.multiply(slopes(own.tilt or (0.0, 0.0)), tiling.extent[1:])
        rise = max(rise, float(np.abs(along).max()))
    depths = {name: own.depth for name, own in measured.items() if own.depth is not None}
    if not depths:
        return {}
    shown = [f"{depth:.0f} µm deep in {name}" for name, depth in depths.items()]
    unseen = [f"not found in {n} ({own.reason})" for n, own in measured.items() if own.reason]
    text = f"As measured on a few tiles, the surface is {', '.join([*shown, *unseen])}"
    text += f", and rises by up to {rise:.0f} µm over a section."
    voxel = min(image.grid.spacing[0] for image in images)
    if unseen or max(rise, max(depths.values()) - min(depths.values())) > voxel:
        text += " 'auto' measures every section and is recommended: remove the slashes before it."
        return {"section_surface": Setting(AUTO, [text], False)}
    text += " What is above is not tissue: remove the slashes to leave it out."
    return {
        "section_surface": Setting(round(float(np.median([*depths.values()])), 1), [text], False)
    }


def _spread_tiles(tiling: MosaicGrid) -> list[Tile]:
    """Imaged tiles in the middle of a section and towards its corners."""
    last = (tiling.rows - 1, tiling.columns - 1)
    wanted = [np.multiply(place, last) for place in SPREAD]
    nearest = (min(tiling.imaged, key=lambda t: math.dist(t, place)) for place in wanted)
    return list(dict.fromkeys(nearest))


def _repeats(volumes: Sequence[Volume], kind: str, found: Acquisition | None) -> float | None:
    """Distance in micrometres at which two sections in the middle show the same tissue, if any."""
    places = {number_of(volume): k for k, volume in enumerate(volumes)}
    numbers = [n for n in places if n is not None and n + 1 in places]
    if not numbers:
        return None
    number = sorted(numbers)[(len(numbers) - 1) // 2]
    pair = [places[number], places[number + 1]]
    images = [cast("Image", volumes[k]) for k in pair]
    height, width = np.min([image.grid.shape[1:] for image in images], axis=0).tolist()
    half = [min(n, WINDOW) // 2 for n in (height, width)]
    middle = slice(height // 2 - half[0], height // 2 + half[0])
    across = slice(width // 2 - half[1], width // 2 + half[1])
    # A single tile may show too little to tell.
    tiles = [(0, 0)]
    if kind == "mosaic":
        first, second = map(MosaicGrid.of, images)
        tiles = [tile for tile in _spread_tiles(first) if tile in {*second.imaged}]
    for tile in tiles:
        parts = []
        for k, image in zip(pair, images, strict=True):
            region = (slice(0, image.grid.shape[0]), middle, across)
            if kind == "mosaic":
                region = MosaicGrid.of(image).region(tile)
            if 2 * math.prod(shape_of(region)) * image.dtype.itemsize > MEASURED_BYTES:
                return None
            block = found.sections[k].read(tile) if found else image.read(region)
            parts.append(columns(block, max(1, max(block.shape[1:]) // SMALL)))
        upper, lower = parts
        if upper.shape[1:] == lower.shape[1:]:
            own = distance(upper, lower[:TOP], range(1, len(upper) - FEWEST_PLANES + 1))
            if not own.problem:
                return own.planes * images[0].grid.spacing[0]
    return None


def _thickness(volumes: Sequence[Volume], kind: str, found: Acquisition | None = None) -> Setting:
    noted = [cast("Mapping", v.attributes.get("section") or {}) for v in volumes]
    stated = {section["thickness"] for section in noted if "thickness" in section}
    if all("thickness" in section for section in noted):
        if len(stated) > 1:
            return Setting(None, ["Each section's own metadata state it; they differ."], False)
        return Setting(float(stated.pop()), ["From the sections' own metadata."])
    depths = [volume.grid.extent[0] for volume in volumes]
    numbers = ((number_of(volume), volume.grid.edge[0]) for volume in volumes)
    apart = distances({number: edge for number, edge in numbers if number is not None})
    if apart is None:
        sentence = "The data do not say;"
    elif apart.are_thickness(min(depths), max(volume.grid.spacing[0] for volume in volumes)):
        return Setting(
            apart.mean, ["The distance between sections, from their translations along z."]
        )
    else:
        why = "more than was imaged, or less than a voxel" if apart.is_steady else "uneven"
        sentence = (
            f"By their translations along z, the sections are {apart} micrometre apart, which is "
            f"{why};"
        )
    sentence += (
        f" without it, the full imaged depth is used ({max(depths):g} micrometre at most). Set "
        "the thickness that was cut from one section to the next."
    )
    try:
        repeats = _repeats(volumes, kind, found)
    except OctaneError:
        # PREFLIGHT names what is missing.
        repeats = None
    if repeats is not None and max(depths) - repeats > volumes[0].grid.spacing[0]:
        sentence += (
            f" As measured on two sections, they show the same tissue {repeats:.4g} micrometre "
            "apart: 'auto' measures all sections and is recommended. Remove the slashes before it."
        )
        return Setting(AUTO, [sentence], False)
    return Setting(round(max(depths), 6), [sentence], False)


def _channels(labels: Sequence[str], overrides: SubjectOverrides) -> dict[str, Setting]:
    """Suggest to write all channels of the data, and not to average those that look like angles."""
    if len(labels) == 1:
        return {}
    names = channel_names(labels, len(labels))
    listed_names = ", ".join(f"{number} '{name}'" for number, name in enumerate(names))
    sentence = (
        f"The data have the channels {listed_names}. As it is, the result has only the one that is "
        "measured, --channel. Remove the slashes to apply what is measured on it to all."
    )
    settings = {"channels": Setting(ALL, [sentence], False)}
    if doubtful := [name for name in names if NOT_AVERAGED.search(name)]:
        shown = " and ".join(f"'{name}'" for name in doubtful)
        kinds = " ".join(f"{name}={NEAREST}" for name in doubtful)
        question = f"By the name, {shown} may hold angles or labels. If so, remove the slashes."
        settings["channel_kind"] = Setting(kinds, [question], False)
    return settings


def _missing(volumes: Sequence[Volume]) -> Setting:
    missing = gaps(_numbers(volumes))
    if not missing:
        return Setting(0, ["The numbering is complete."], False)
    sentence = (
        f"Not among the data: section {listed(missing)}. As it is, the run stops. Remove the "
        "slashes to leave each one blank; the report lists them."
    )
    return Setting(len(missing), [sentence], False)
