"""Part ``real``: gains, a flat field and biases that were put into real images.

Tiles go through the whole of STITCH. Those of a microscope have light of their own, so that what
they show without anything put in counts as true. Tiles that are cut from one stack of nuclei have
none: neighbours are alternate planes of it, which do not share their noise.
"""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import tifffile
from _common import scratch_folder
from _light_gains import drifting, without_trend
from _light_images import Voxels, microscope, nuclei
from _light_real_levels import real_levels
from _processes import run
from _stitch_flat_field import BASIC, SEEDS, grid_of, left, light

from octane.config.parameters import ExecutionParameters, InputParameters
from octane.core.geometry import vector
from octane.layout.mosaic import Tile
from octane.layout.placement import TilePlacement
from octane.processes.stitch.gains import judge_flat_field, measure_gains
from octane.processes.stitch.parameters import ESTIMATE, StitchParameters
from octane.processes.stitch.record import StitchFigures, by_tile
from octane.processes.stitch.step import stitch_section
from octane.store.stated import Attributes
from octane.store.writer import Level, create_image

TILE, PITCH, SIDE = 76, 60, 4
"""Edge of a tile of nuclei and distance to the next, pixels; tiles along either axis."""
APART = 454
"""Distance between the microscope's tiles, pixels; its stage is off by up to 3."""
FEEDS = "5"
"""Rounds of OpenCV's compensator, which leave smaller errors than one, its default, or 20."""
TONES = 255
"""Brightest value of the images that OpenCV gets, which have 8 bits."""

Planted = Mapping[Tile, float]

OPENCV = """
import sys, cv2, numpy as np
tiles, corners = np.load(sys.argv[1]), np.load(sys.argv[2])
images = [cv2.UMat(np.repeat(tile[..., None], 3, axis=2)) for tile in tiles]
masks = [cv2.UMat(np.full(tile.shape, 255, np.uint8)) for tile in tiles]
compensator = cv2.detail.GainCompensator(int(sys.argv[4]))
compensator.feed([tuple(map(int, corner)) for corner in corners], images, masks)
np.save(sys.argv[3], 1 / np.ravel(compensator.getMatGains()))
"""

VERSIONS = """
import json
from importlib.metadata import version
print(json.dumps({name: version(name) for name in ("BaSiCPy", "opencv-python-headless")}))
"""


class Tiles(NamedTuple):
    """Tiles (z, y, x) at a ``pitch`` in pixels; ``is_placed`` if that is exact.

    ``is_even`` if they have no light of their own.
    """

    name: str
    tiles: dict[Tile, Voxels]
    pitch: float
    is_placed: bool
    is_even: bool

    def lit(self, gains: Planted, field: npt.NDArray[np.float32] | float = 1.0) -> "Tiles":
        """The tiles in other light."""
        seen = {t: own * field * np.float32(gains.get(t, 1)) for t, own in self.tiles.items()}
        return self._replace(tiles=seen)

    @property
    def means(self) -> dict[Tile, npt.NDArray[np.float32]]:
        """Their means over depth."""
        return {tile: own.mean(axis=0) for tile, own in self.tiles.items()}


class Stitched(NamedTuple):
    """What STITCH finds of a section's tiles: its record, the flat field, and the tiles' places."""

    figures: StitchFigures
    profile: npt.NDArray[np.float32] | None
    placement: TilePlacement

    @property
    def gains(self) -> dict[Tile, float]:
        """Gains that tiles were divided by."""
        return by_tile(self.figures.gains)


def sections() -> list[Tiles]:
    """Tiles of the images that are there."""
    found = []
    if tiles := microscope():
        found.append(Tiles("microscope", tiles, APART, is_placed=False, is_even=False))
    if (stack := nuclei()) is not None:
        cut = {
            (row, column): stack[
                (row + column) % 2 :: 2,
                PITCH * row : PITCH * row + TILE,
                PITCH * column : PITCH * column + TILE,
            ]
            for row, column in np.ndindex(SIDE, SIDE)
        }
        found.append(Tiles("nuclei", cut, PITCH, is_placed=True, is_even=True))
    return found


def stitched(section: Tiles, folder: Path, **settings: str) -> Stitched:
    """Write the mosaic of tiles and stitch it."""
    rows, columns = (1 + max(tile[axis] for tile in section.tiles) for axis in (0, 1))
    shape = next(iter(section.tiles.values())).shape
    pitch = (section.pitch, section.pitch)
    tiling = grid_of((shape[0], shape[1], shape[2]), (rows, columns), vector(1, 1, 1), pitch)
    voxels = np.block([[section.tiles[r, c] for c in range(columns)] for r in range(rows)])
    mosaic = {
        "edge": [0.0, 0.0, 0.0],
        "tile_extent": [*tiling.tile_extent],
        "extent": [*tiling.extent],
        "pitch": [*pitch],
    }
    attributes: Attributes = {"kind": "mosaic", "mosaic": mosaic}
    source, flat = folder / "section_01.ome.zarr", folder / "flat.tif"
    flat.unlink(missing_ok=True)
    level = Level(tiling.grid, tiling.tile, None)
    with create_image(source, [level], "float32", attributes=attributes, overwrite=True) as (
        writer,
    ):
        writer[tuple(slice(n) for n in voxels.shape)] = voxels
    metrics = stitch_section(
        source,
        folder / "stitched.ome.zarr",
        StitchParameters.model_validate({"refine": not section.is_placed, **settings}),
        InputParameters(),
        ExecutionParameters(backend="cpu", memory="2GB", overwrite=True),
        save_flat_field=flat,
    )
    figures = StitchFigures.model_validate(metrics.figures)
    profile = tifffile.imread(flat) if flat.exists() else None
    return Stitched(figures, profile, TilePlacement(tiling, by_tile(figures.positions)))


def opencv(section: Tiles, corners: npt.NDArray, folder: Path, python: Path) -> Planted:
    """Gains by OpenCV's compensator of exposure."""
    stack = np.stack([*section.means.values()])
    np.save(folder / "tiles.npy", np.rint(stack * (TONES / stack.max())).astype(np.uint8))
    np.save(folder / "corners.npy", np.rint(corners).astype(int))
    names = [folder / f"{name}.npy" for name in ("tiles", "corners", "gains")]
    run([python, "-c", OPENCV, *names, FEEDS])
    return dict(zip(section.tiles, np.load(names[-1]).tolist(), strict=True))


def basicpy(section: Tiles, folder: Path, python: Path) -> npt.NDArray[np.float32]:
    """BaSiCPy's flat field."""
    source, made = folder / "tiles.npy", folder / "flat.npy"
    np.save(source, np.stack([*section.means.values()]))
    run([python, "-c", BASIC, source, made])
    return np.load(made)


def errors_of(found: Planted, true: Planted) -> tuple[float, float]:
    """Root mean square of the logarithms of ratios without their mean, and without a trend."""
    logs = {tile: float(np.log(found.get(tile, 1) / own)) for tile, own in true.items()}
    return float(np.std([*logs.values()])), float(np.std(without_trend(logs)))


def of_gains(
    section: Tiles, seeds: tuple[int, ...], folder: Path, python: Path | None, flat: str
) -> dict[str, object]:
    """Figures of gains that were put in, the worst of the seeds, and of sound tiles."""
    settings = {"gain": ESTIMATE, "flat_field": flat}
    sound = stitched(section, folder, **settings)
    own = measure_gains(section.means, sound.placement, with_flat_field=flat == ESTIMATE)
    if own is None:
        raise RuntimeError("nothing to compare")
    base = dict.fromkeys(section.tiles, 1.0) if section.is_even else own.gains
    places = sound.placement.places.values()
    corners = np.array([[x.shift, y.shift] for y, x in places])
    peer_base = opencv(section, corners, folder, python) if python and not section.is_even else {}
    rows: list[dict[str, float]] = []
    for seed in seeds:
        gains = drifting(section.tiles, seed)
        seen = section.lit(gains)
        done = stitched(seen, folder, **settings)
        judged = done.figures.gains_held_out
        if judged is None:
            raise RuntimeError("nothing to compare")
        true = {tile: gain * base[tile] for tile, gain in gains.items()}
        error, trendless = errors_of(done.gains, true)
        rows.append(
            {
                "error": error,
                "without_trend": trendless,
                "before": max(judged.before),
                "after": max(judged.after),
                "helped": float(judged.lowers_seams),
            }
        )
        if python:
            found = opencv(seen, corners, folder, python)
            true = {tile: gain * peer_base.get(tile, 1.0) for tile, gain in gains.items()}
            rows[-1]["opencv_error"], rows[-1]["opencv_without_trend"] = errors_of(found, true)
    figures = {
        name: (sum if name == "helped" else max)(row[name] for row in rows) for name in rows[0]
    }
    judged = sound.figures.gains_held_out
    return {
        **{"image": section.name, "flat_field": flat, "seeds": len(seeds), **figures},
        "sound_helped": judged is not None and judged.lowers_seams,
        "sound_change": max(abs(gain - 1) for gain in sound.gains.values()),
        "sound_measured": max(abs(gain - 1) for gain in own.gains.values()),
    }


def of_flat_field(section: Tiles, folder: Path, python: Path | None) -> list[dict[str, object]]:
    """Figures of a flat field: the tiles' own light, and one that was put in on top of it.

    Seams are those of blocks that an estimate was not fitted to; BaSiCPy does not use overlaps.
    Where tiles have light of their own, errors are relative to what a method finds of it.
    """
    shape = next(iter(section.tiles.values())).shape[1:]
    field = light((1, *shape), (1.0, 1.0, 1.0))
    base: dict[str, npt.NDArray[np.float32]] = {}
    rows: list[dict[str, object]] = []
    for true in (np.ones_like(field), field):
        seen = section.lit({}, true)
        done = stitched(seen, folder, flat_field=ESTIMATE)
        judged = done.figures.flat_held_out
        if judged is None or done.profile is None:
            raise RuntimeError("nothing to compare")
        fields = {"octane": done.profile}
        seams = {"none": max(judged.before), "octane": max(judged.after)}
        if python:
            fields["BaSiCPy"] = flat = basicpy(seen, folder, python)
            evened = {tile: own / flat for tile, own in seen.means.items()}
            again = judge_flat_field(evened, done.placement)
            if again is not None:
                seams["BaSiCPy"] = max(again.before)
        errors = {}
        if section.is_even or base:
            errors = {name: left(own / base.get(name, 1), true) for name, own in fields.items()}
        else:
            base = fields
        figures = {"image": section.name, "put_in": left(np.ones_like(true), true)[0]}
        rows.append({**figures, "seams": seams, "helped": judged.lowers_seams, "left": errors})
    return rows


def real(quick: bool, python: Path | None) -> dict[str, object]:
    """Measure gains, flat fields and N4's levels on the images that are there.

    ``python`` has BaSiCPy and OpenCV.
    """
    seeds = SEEDS[:1] if quick else SEEDS
    gains: list[dict[str, object]] = []
    fields: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory(dir=scratch_folder()) as scratch:
        for section in sections():
            for flat in ("none", ESTIMATE):
                peer = python if flat == "none" else None
                gains.append(of_gains(section, seeds, Path(scratch), peer, flat))
            fields += of_flat_field(section, Path(scratch), python)
    peers = json.loads(run([python, "-c", VERSIONS]).output) if python else {}
    return {"peers": peers, "gains": gains, "fields": fields, "levels": real_levels(quick=quick)}
