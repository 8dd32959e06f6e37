"""Faults put into a phantom, and the verdict after STITCH and STACK."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import zarr

from octane.config.params import (
    ExecutionParameters,
    InputParameters,
    PhantomParameters,
    StackParameters,
    StitchParameters,
)
from octane.core.records import StackFigures, StitchFigures
from octane.layout.mosaic import MosaicGrid, Tile
from octane.report.check import Check
from octane.report.summary import qualities
from octane.report.verdict import checks
from octane.steps.phantom import Subject, make_phantom, render_tile
from octane.steps.stack import stack_sections
from octane.steps.stitch import stitch_section
from octane.store.image import open_image

PHANTOM = {
    "sections": 3,
    "tiles": (3, 3),
    "tile_shape": (8, 60, 60),
    "voxel_size": (10.0, 10.0, 10.0),
    "overlap": (0.2, 0.25),
    "section_thickness": 60.0,
    "speckle_looks": 16,
    "shading": 0.1,
    "bias": 0.5,
    "attenuation": 0.2,
    "edge_fraction": 0.0,
}
SHIFT = 1 / 12
"""Displacement of a tile along y and x, as a fraction of its edge."""

Change = Callable[[np.ndarray, MosaicGrid, PhantomParameters], np.ndarray]
"""Function that changes the voxels of a mosaic."""


def exchanged(voxels: np.ndarray, grid: MosaicGrid, _: PhantomParameters) -> np.ndarray:
    """Swap the first two tiles of the second row."""
    one, other = grid.region((1, 0)), grid.region((1, 1))
    changed = voxels.copy()
    changed[one], changed[other] = voxels[other], voxels[one]
    return changed


def moved(voxels: np.ndarray, grid: MosaicGrid, made: PhantomParameters) -> np.ndarray:
    """Displace the middle tile."""
    y, x = Subject.of(made).pitch
    changed = voxels.copy()
    place = grid.region((1, 1))
    shape = tuple(r.stop - r.start for r in place)
    by = [SHIFT * n * size for n, size in zip(shape[1:], made.voxel_size[1:], strict=True)]
    changed[place] = render_tile(made, 1, (1, 1), shape, (y + by[0], x - by[1]))
    return changed


def submerged(voxels: np.ndarray, grid: MosaicGrid, made: PhantomParameters) -> np.ndarray:
    """Cover the section with 30 micrometres of water."""
    deeper, changed = made.model_copy(update={"surface": 30.0}), voxels.copy()
    for tile, place in grid.positions(Subject.of(made).pitch).items():
        region = grid.region(tile)
        changed[region] = render_tile(deeper, 1, tile, voxels[region].shape, place)
    return changed


def one(of: Callable[[np.ndarray], np.ndarray], tile: Tile = (1, 1)) -> Change:
    """Change a single tile."""

    def change(voxels: np.ndarray, grid: MosaicGrid, _: PhantomParameters) -> np.ndarray:
        changed = voxels.copy()
        changed[grid.region(tile)] = of(voxels[grid.region(tile)])
        return changed

    return change


def dimmed(light: float) -> Change:
    """Dim a section to a fraction of its light."""
    return lambda voxels, *_: light * voxels


def flipped(*axes: int) -> Change:
    """Flip a section along axes."""
    return lambda voxels, *_: np.flip(voxels, axes)


def brightened(level: int) -> Change:
    """Add a camera's dark level."""
    return lambda voxels, *_: voxels + level


halved, lost = one(lambda tile: tile / 2), one(np.zeros_like)
mirrored = one(lambda tile: np.flip(tile, 2), (1, 0))
OVERLAPS = ["Overlap along y", "Overlap along x"]
FITTING = r"give --overlap 0\.(2|199|20\d),0\.2(5|4[89]\d?|5\d), or"
FAULTS: dict[str, tuple[Change | None, tuple[float, float] | None, list[str], str]] = {
    "overlap wrong along y": (None, (0.25, 0.25), OVERLAPS[:1], FITTING),
    "overlap wrong along x": (None, (0.2, 0.2), OVERLAPS[1:], FITTING),
    "overlap wrong along both": (None, (0.25, 0.2), OVERLAPS, FITTING),
    "one tile shifted": (
        moved,
        None,
        ["Tiles out of place"],
        r"Section 2, row 1, column 1 fits \+",
    ),
    "two tiles swapped": (exchanged, None, ["Tiles out of place"], "row 1, column 0 fits at row 1"),
    "one tile mirrored": (mirrored, None, ["Tiles out of place"], "row 1, column 0 fits none of"),
    "one dark tile": (halved, None, ["Tile brightness"], "Section 2, row 1, column 1 is 0.5"),
    "one tile not imaged": (lost, None, ["Tile brightness"], "1 tile of Section 2 was not"),
    "dark section": (dimmed(0.3), None, ["Section brightness"], "--n4_histogram_matching sec"),
    "bands": (dimmed(0.9), None, ["Section boundaries"], "Sections 2, 3: bands, brightness jumps"),
    "surface under water": (
        submerged,
        None,
        ["Section surface"],
        r"Section 2: the surface lies [23]\d(\.\d)? µm deep, but 0 µm is cropped",
    ),
    "section not imaged": (dimmed(0), None, ["Section brightness"], "Section 2 is blank"),
    "flipped in y": (
        flipped(1),
        None,
        ["Section orientation"],
        "Section 2 fits if flipped along y;",
    ),
    "flipped in x": (
        flipped(2),
        None,
        ["Section orientation"],
        "Section 2 fits if flipped along x;",
    ),
    "rotated": (
        flipped(1, 2),
        None,
        ["Section orientation"],
        "Section 2 fits if flipped along yx;",
    ),
}
"""By fault: the change to the second section, the overlap given to STITCH, the checks that find it,
and a pattern in their sentences."""


def spoil(mosaic: Path, change: Change, made: PhantomParameters) -> None:
    """Change the voxels of a phantom's mosaic in place; a tile of zeros lacks its chunk.

    A section of zeros keeps its chunks, as its microscope wrote them.
    """
    image = open_image(mosaic)
    changed = change(np.asarray(image.array.opened[:]), MosaicGrid.of(image), made)
    with zarr.config.set({"array.write_empty_chunks": not changed.any()}):
        zarr.open_array(mosaic / "0")[:] = changed


def judged(
    folder: Path,
    given: Mapping[str, object],
    execution: ExecutionParameters,
    change: Change | None = None,
    stitching: Mapping[str, object] | None = None,
) -> list[Check]:
    """Make a phantom, change its second section, reconstruct it and return the checks."""
    made = PhantomParameters.model_validate({**PHANTOM, **given})
    make_phantom(folder / "phantom", made, execution)
    # A lost tile lacks its chunk.
    stitched, sections, reading = {}, [], InputParameters(missing_chunks="fill")
    for source in sorted((folder / "phantom" / "mosaics").iterdir()):
        if change is not None and source.name.startswith("section_02"):
            spoil(source, change, made)
        sections.append(folder / "out" / source.name)
        own = StitchParameters.model_validate(stitching or {})
        metrics = stitch_section(source, sections[-1], own, reading, execution)
        stitched[source.name] = StitchFigures.model_validate(metrics.figures)
    volume = folder / "out" / "stack.ome.zarr"
    metrics = stack_sections(sections, volume, StackParameters(), reading, execution)
    stack = StackFigures.model_validate(metrics.figures)
    found = checks(qualities(stitched, stack, None), stitched, stack, None)
    # The other checks must tolerate shading; tests of STITCH cover its detection.
    return [check for check in found if check.name != "Shading of tiles"]
