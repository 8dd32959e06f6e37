"""Phantom tiles with beads at known places, arranged and written as laboratories do it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import zarr
from _unstated_tissue import Cut, beads_of, lit, seen_tissue
from foreign_images import foreign_image
from scipy import ndimage
from tile_writers import write_ome_tiff, write_set, write_store
from tissue import MARGIN, texture

from octane.compare.orientation import Orientation
from octane.layout.mosaic import Position, Tile

Plane = npt.NDArray[np.float64]
Voxels = npt.NDArray[np.generic]
Writer = Callable[..., object]
Pattern = Callable[[tuple[int, int]], Plane]

TISSUE = 400.0
"""Usual grey level of tissue; agarose is ``AGAROSE`` times as bright."""
AGAROSE = 0.08
MOST = 2.0
"""Brightest tissue, relative to usual tissue."""
BEAD, WIDTH = 24.0, 1.3
"""Brightness of a bead relative to tissue, and its standard deviation, pixels."""
BEADS, APART = 14, 22
"""Number of beads in a section, and their least distance, pixels."""
TABLE, CUTS = "positions.csv", "displacements.csv"
"""Names of a table of places, and of one of displacements and thickness, beside the folder of the
tiles."""
ROOM = 16
"""Pixels around the tiles of a section, so that the stage may be off."""


@dataclass(frozen=True)
class Laboratory:
    """How a laboratory images and writes its tiles.

    Attributes
    ----------
    name, write
        What it is, and the writer of a tile or, with ``whole``, of all tiles of a section.
    turn, order
        How rows and columns in names and places run against the images; tiles are numbered in
        this order, in place of rows and columns.
    places
        The files state where the stage was. With ``stage``, it was off by as many voxels.
    gone, fewer
        Tiles that were not imaged in any section, and in all but the first.
    dark, pattern
        Sections without tissue, and what multiplies every tile.
    noisy
        Number of the channel of two that is noise wherever tiles overlap, -1 for one channel.
    cut
        Sections are cut out of one block, instead of independent scenes.
    remedies
        What a user would give once octane asks for it, by flag. With ``table``, that includes a
        table of places.
    """

    name: str
    write: Writer = write_ome_tiff
    rows: int = 3
    columns: int = 3
    overlap: Position = (0.2, 0.2)
    tile: tuple[int, int, int] = (6, 96, 112)
    spacing: tuple[float, float, float] = (10.0, 5.0, 5.0)
    sections: int = 2
    dtype: str = "uint16"
    looks: float = 4.0
    turn: Orientation = field(default_factory=Orientation)
    order: str = ""
    places: bool = False
    stage: int = 0
    gone: frozenset[Tile] = frozenset()
    fewer: frozenset[Tile] = frozenset()
    dark: frozenset[int] = frozenset()
    pattern: Pattern | None = None
    tissue: Pattern | None = None
    noisy: int = -1
    whole: bool = False
    table: bool = False
    cut: Cut | None = None
    remedies: Mapping[str, str] = field(default_factory=dict)

    @property
    def flip(self) -> str:
        """Value of --tile_flip that undoes ``turn``."""
        flip = self.turn.flip
        if self.turn.transpose:
            flip = flip.translate(str.maketrans("yx", "xy"))
        return "-".join(["transpose"] * self.turn.transpose + [flip] * bool(flip))

    @property
    def pitch(self) -> Position:
        """Distance of neighbours in voxels (y, x)."""
        y, x = (round(n * (1 - o)) for n, o in zip(self.tile[1:], self.overlap, strict=True))
        return float(y), float(x)

    @property
    def exact(self) -> str:
        """Value of --overlap."""
        pairs = zip(self.pitch, self.tile[1:], strict=True)
        return ",".join(f"{1 - p / n:.6f}" for p, n in pairs)

    @property
    def stated(self) -> dict[str, str]:
        """Everything that a user can state, but for tables."""
        given = {"overlap": self.exact, "section_thickness": f"{self.tile[0] * self.spacing[0]:g}"}
        if self.cut is not None:
            del given["section_thickness"]
        if self.places or self.table:
            del given["overlap"]
        if self.flip and not self.table:
            given["tile_flip"] = self.flip
        return {**given, **self.remedies}

    def tables(self, folder: Path) -> dict[str, Path]:
        """Tables that a user can state, by parameter; they are in ``folder``."""
        found = {"positions": folder / TABLE} if self.table else {}
        return found | ({"displacements": folder / CUTS} if self.cut is not None else {})

    @property
    def numbers(self) -> list[int]:
        """Numbers of the sections that were imaged."""
        return [*range(1, self.sections + 1)] if self.cut is None else self.cut.numbers


Truth = list[list[tuple[float, ...]]]
"""Places of the beads of each section (y, x), or of the block that was cut (z, y, x); voxels."""


def write_subject(lab: Laboratory, folder: Path, seed: int) -> Truth:
    """Write a subject into ``folder`` and return where its beads are."""
    rng = np.random.default_rng(seed)
    shape = [
        int((count - 1) * pitch) + edge + 2 * ROOM
        for count, pitch, edge in zip((lab.rows, lab.columns), lab.pitch, lab.tile[1:], strict=True)
    ]
    size = (shape[0], shape[1])
    beads: Truth = []
    folder.mkdir(parents=True)
    if lab.cut is not None:
        (folder.parent / CUTS).write_text(lab.cut.table())
        beads = [beads_of(lab.cut, size, lab.spacing, 2 * ROOM, seed)]
    if lab.table:
        (folder.parent / TABLE).write_text("section,row,column,y,x\n")
    for number in lab.numbers:
        absent = lab.gone | (lab.fewer if number > 1 else frozenset())
        first = {
            tile: [int(k * p) + ROOM for k, p in zip(tile, lab.pitch, strict=True)]
            for tile in np.ndindex(lab.rows, lab.columns)
            if tile not in absent
        }
        if lab.cut is not None:
            given = (lab.cut, number, (lab.tile[0], *size), lab.spacing)
            scene = TISSUE * seen_tissue(*given)
            bright = BEAD * TISSUE * lit(*given, beads[0], WIDTH)
        else:
            scene = _scene(lab, size, seed + number, is_dark=number in lab.dark)
            bright, own = _beads(lab, size, [*first.values()], rng)
            if number in lab.dark:
                own, bright = [], 0 * bright
            beads.append(own)
        tiles: dict[Tile, Voxels] = {}
        for tile, place in first.items():
            off = rng.integers(-lab.stage, lab.stage + 1, 2)
            y, x = (
                slice(a + b, a + b + n) for a, b, n in zip(place, off, lab.tile[1:], strict=True)
            )
            seen = scene[:, y, x] * rng.gamma(lab.looks, 1 / lab.looks, lab.tile)
            seen += bright[:, y, x]
            if lab.pattern is not None:
                seen *= lab.pattern(lab.tile[1:])
            if lab.noisy >= 0:
                seen = _channels(lab, seen, tile, rng)
            tiles[tile] = _stored(seen, lab.dtype)
        _write(lab, folder, number, tiles)
    return beads


def _scene(lab: Laboratory, size: tuple[int, int], seed: int, *, is_dark: bool) -> Plane:
    """Tissue of a section (z, y, x), in an ellipse of agarose."""
    if is_dark:
        return np.full((lab.tile[0], *size), TISSUE * AGAROSE)
    if lab.tissue is None:
        first, last = (texture((size[0], size[1]), 1000 * seed + k) for k in range(2))
        first, last = (image[MARGIN:-MARGIN, MARGIN:-MARGIN] for image in (first, last))
    else:
        first = last = lab.tissue(size)
    v, u = ((at + 0.5) / n - 0.5 for at, n in zip(np.indices(size), size, strict=True))
    there = ndimage.gaussian_filter((np.hypot(v, u) < 0.52).astype(float), 3)
    deep = np.linspace(0, 1, lab.tile[0])[:, None, None]
    planes = (1 - 0.3 * deep) * first + 0.3 * deep * last
    return TISSUE * (AGAROSE + (1 - AGAROSE) * there * np.minimum(planes, MOST))


def _beads(
    lab: Laboratory, size: tuple[int, int], first: list[list[int]], rng: np.random.Generator
) -> tuple[Plane, list[tuple[float, ...]]]:
    """An image (z, y, x) of beads that some tile shows well, and their places."""
    found: list[tuple[float, ...]] = []
    y, x = np.indices(size)
    whole = np.zeros((lab.tile[0], *size))
    image = whole[lab.tile[0] // 2]
    for _ in range(2000):
        at = rng.uniform(0, size)
        shown = [
            all(8 < a - f < n - 8 for a, f, n in zip(at, own, lab.tile[1:], strict=True))
            for own in first
        ]
        near = [np.hypot(at[0] - b, at[1] - c) < APART for b, c in found]
        if not any(shown) or any(near):
            continue
        found.append((float(at[0]), float(at[1])))
        image += np.exp(-((y - at[0]) ** 2 + (x - at[1]) ** 2) / (2 * WIDTH**2))
        if len(found) == BEADS:
            break
    return BEAD * TISSUE * whole, found


def _channels(lab: Laboratory, seen: Plane, tile: Tile, rng: np.random.Generator) -> Plane:
    """Two channels (c, z, y, x), of which one is noise in the overlaps."""
    other = seen.copy()
    edges = [n - int(p) for n, p in zip(lab.tile[1:], lab.pitch, strict=True)]
    inner = tuple(
        slice(edge if k else 0, n - edge if k < last - 1 else n)
        for edge, k, n, last in zip(edges, tile, lab.tile[1:], (lab.rows, lab.columns), strict=True)
    )
    noise = rng.uniform(0, 3 * TISSUE, seen.shape)
    noise[:, *inner] = other[:, *inner]
    both = [seen, noise] if lab.noisy else [noise, seen]
    return np.stack(both)


def _stored(seen: Plane, dtype: str) -> Voxels:
    if dtype == "uint8":
        return np.clip(seen / (BEAD * TISSUE) * 200, 0, 255).astype(np.uint8)
    if np.dtype(dtype).kind == "f":
        return (seen / TISSUE).astype(dtype)
    return np.clip(seen, 0, np.iinfo(dtype).max).astype(dtype)


def _write(lab: Laboratory, folder: Path, number: int, tiles: Mapping[Tile, Voxels]) -> None:
    """Write the tiles of a section under the names and places that the laboratory gives them."""
    y, x = (p * s for p, s in zip(lab.pitch, lab.spacing[1:], strict=True))
    placed = {tile: lab.turn.of((tile[0] * y, tile[1] * x)) for tile in tiles}
    turned = {tile: lab.turn.of(tile) for tile in np.ndindex(lab.rows, lab.columns)}
    least = [min(own[axis] for own in turned.values()) for axis in (0, 1)]
    named = {tile: (turned[tile][0] - least[0], turned[tile][1] - least[1]) for tile in tiles}
    if lab.whole:
        own = {named[tile]: voxels for tile, voxels in tiles.items()}
        lab.write(folder, number, lab, own, {named[tile]: placed[tile] for tile in tiles})
        if lab.table:
            rows = [(number, *named[tile], tile[0] * y, tile[1] * x) for tile in tiles]
            with (folder.parent / TABLE).open("a") as stream:
                stream.writelines(f"{','.join(map(str, row))}\n" for row in rows)
        return
    for tile, voxels in tiles.items():
        row, column = named[tile]
        name = f"section_{number}_r{row}_c{column}"
        if lab.order:
            name = f"section_{number}_tile_{_count(lab, tile):03d}"
        more: dict[str, object] = {"position": placed[tile]} if lab.places else {}
        if lab.noisy >= 0:
            more["channels"] = ("first", "second")
        lab.write(folder / name, voxels, lab.spacing, **more)


def _count(lab: Laboratory, tile: Tile) -> int:
    """Number of a tile, from 1, if rows are imaged one after another; a snake turns back."""
    row, column = tile
    if "snake" in lab.order and row % 2:
        column = lab.columns - 1 - column
    return row * lab.columns + column + 1


def write_grid(
    folder: Path,
    number: int,
    lab: Laboratory,
    tiles: Mapping[Tile, Voxels],
    _: Mapping[Tile, Position],
    *,
    pitch: bool = False,
) -> None:
    """Write a section as a mosaic grid, with its pitch or without."""
    nz, ny, nx = lab.tile
    whole = np.zeros((nz, ny * lab.rows, nx * lab.columns), lab.dtype)
    for (row, column), voxels in tiles.items():
        whole[:, row * ny : (row + 1) * ny, column * nx : (column + 1) * nx] = voxels
    path = folder / f"section_{number:02d}.ome.zarr"
    transforms = [{"type": "scale", "scale": list(lab.spacing)}]
    foreign_image(path, whole, transforms=transforms, chunks=lab.tile, version="0.5")
    if pitch:
        own = [p * s for p, s in zip(lab.pitch, lab.spacing[1:], strict=True)]
        zarr.open_group(path).attrs["octane"] = {"kind": "mosaic", "mosaic": {"pitch": own}}


WRITE_PITCH = partial(write_grid, pitch=True)
"""Write a section as a mosaic grid that states its pitch."""


def write_one_set(
    folder: Path,
    number: int,
    lab: Laboratory,
    tiles: Mapping[Tile, Voxels],
    placed: Mapping[Tile, Position],
) -> None:
    """Write a section as a set of OME-TIFFs."""
    pattern = f"section_{number}" + "_r{row}_c{column}"
    write_set(folder, dict(tiles), lab.spacing, dict(placed), pattern=pattern)


def write_placed_store(path: Path, voxels: Voxels, spacing: tuple[float, float, float], **more):
    """Write an OME-Zarr store; its chunks are those of tests."""
    return write_store(path, voxels, spacing, more.get("position"))
