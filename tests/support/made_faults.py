"""Faults put into a phantom, and the verdict after STITCH and STACK."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import zarr
from zarr.codecs import GzipCodec

from octane.config.parameters import ExecutionParameters, InputParameters
from octane.core.filters import gaussian
from octane.layout.mosaic import MosaicGrid, Tile
from octane.processes.phantom.parameters import PhantomParameters
from octane.processes.phantom.step import Subject, make_phantom, render_tile, speckle
from octane.processes.report.check import Check, Settings
from octane.processes.report.summary import section_qualities
from octane.processes.report.verdict import check_subject
from octane.processes.stack.parameters import StackParameters
from octane.processes.stack.record import StackFigures
from octane.processes.stack.step import stack_sections
from octane.processes.stitch.parameters import StitchParameters
from octane.processes.stitch.record import StitchFigures
from octane.processes.stitch.step import stitch_section
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


def transposed(tile: np.ndarray) -> np.ndarray:
    """Exchange y and x."""
    return tile.swapaxes(1, 2) if tile.shape[1] == tile.shape[2] else tile[:, ::-1]


def noisy(tile: np.ndarray) -> np.ndarray:
    """Noise of the same mean and spread, without any tissue."""
    return np.random.default_rng(7).normal(tile.mean(), tile.std(), tile.shape).clip(0)


def blurred(tile: np.ndarray) -> np.ndarray:
    """Blur each plane by 2.5 pixels."""
    return np.array([gaussian(plane.astype(np.float64), 2.5) for plane in tile])


def clipped(tile: np.ndarray) -> np.ndarray:
    """Cut off the brightest 30 % of the voxels."""
    return np.minimum(tile, np.percentile(tile, 70))


def repeated(voxels: np.ndarray, grid: MosaicGrid, _: PhantomParameters) -> np.ndarray:
    """Put the image of the middle tile's left neighbour in its place."""
    changed = voxels.copy()
    changed[grid.region((1, 1))] = voxels[grid.region((1, 0))]
    return changed


def of_gains(gains: Mapping[Tile, float]) -> Change:
    """Multiply the grey levels of tiles."""

    def change(voxels: np.ndarray, grid: MosaicGrid, _: PhantomParameters) -> np.ndarray:
        changed = voxels.copy()
        for tile, gain in gains.items():
            changed[grid.region(tile)] = gain * voxels[grid.region(tile)]
        return changed

    return change


halved, lost = one(lambda tile: tile / 2), one(np.zeros_like)
mirrored = one(lambda tile: np.flip(tile, 2), (1, 0))


class Fault(NamedTuple):
    """A fault: the change to the second section, and the overlap given to STITCH.

    ``checks`` find it, with the ``words``, a pattern, in their sentences. ``changed`` changes all
    mosaics in order, ``given`` are options of its phantom, whose tiles are ``depth`` planes deep,
    and ``stacking`` those of STACK.
    """

    change: Change | None
    overlap: tuple[float, float] | None
    checks: list[str]
    words: str
    changed: Callable[[list[Path]], object] | None = None
    given: Mapping[str, object] = {}
    stacking: Mapping[str, object] = {}
    depth: int = 8


def exchange(mosaics: list[Path]) -> None:
    """Give the second and the third section each other's voxels."""
    one, other = (zarr.open_array(mosaic / "0") for mosaic in mosaics[1:3])
    values = one[:], other[:]
    other[:], one[:] = values


def copy(mosaics: list[Path]) -> None:
    """Save the first section as the second one as well, in another codec."""
    first, second = (mosaic / "0" for mosaic in mosaics[:2])
    source = zarr.open_array(first)
    values, chunks = np.asarray(source[:]), source.chunks
    shutil.rmtree(second)
    zarr.create_array(second, data=values, chunks=chunks, compressors=GzipCodec())


def unstate(mosaics: list[Path]) -> None:
    """Take the thickness out of the metadata."""
    for mosaic in mosaics:
        path = mosaic / "zarr.json"
        noted = json.loads(path.read_text())
        for own in noted["attributes"].values():
            if isinstance(own, dict):
                own.get("section", {}).pop("thickness", None)
        path.write_text(json.dumps(noted))


def unstate_and_leave_out(mosaics: list[Path]) -> None:
    """The same, and without the third section."""
    unstate(mosaics)
    shutil.rmtree(mosaics.pop(2))


def again(voxels: np.ndarray, grid: MosaicGrid, made: PhantomParameters) -> np.ndarray:
    """Image the first section once more: the same tissue in other speckle."""
    quiet = made.model_copy(update={"speckle_looks": 0.0})
    changed = voxels.copy()
    for tile, place in grid.positions(Subject.of(made).pitch).items():
        region = grid.region(tile)
        shape = voxels[region].shape
        seen = render_tile(quiet, 0, tile, shape, place)
        seen *= 0.99
        if made.speckle_looks:
            seen *= speckle(made.speckle_looks, shape, [made.seed, 99, *tile])
        changed[region] = seen
    return changed


PLACES = ["Tiles out of place"]
OVERLAPS = ["Overlap along y", "Overlap along x"]
DEEP = {"tile_shape": (24, 60, 60), "section_thickness": 185.0}
FITTING = r"give --overlap 0\.(2|199|20\d),0\.2(5|4[89]\d?|5\d), or"
FAULTS: dict[str, Fault] = {
    "overlap wrong along y": Fault(None, (0.25, 0.25), OVERLAPS[:1], FITTING),
    "overlap wrong along x": Fault(None, (0.2, 0.2), OVERLAPS[1:], FITTING),
    "overlap wrong along both": Fault(None, (0.25, 0.2), OVERLAPS, FITTING),
    "one tile shifted": Fault(
        moved,
        None,
        ["Tiles out of place"],
        r"Section 2, row 1, column 1 fits \+",
    ),
    "two tiles swapped": Fault(
        exchanged, None, ["Tiles out of place"], "row 1, column 0 fits at row 1"
    ),
    "one tile mirrored": Fault(
        mirrored, None, ["Tiles out of place"], "row 1, column 0 fits none of"
    ),
    "one dark tile": Fault(halved, None, ["Tile brightness"], "Section 2, row 1, column 1 is 0.5"),
    "one tile not imaged": Fault(lost, None, ["Tile brightness"], "1 tile of Section 2 was not"),
    "neighbour's image again": Fault(repeated, None, PLACES, "column 1 holds the image of row 1"),
    "one tile of noise": Fault(one(noisy), None, PLACES, "row 1, column 1 fits none of"),
    "one tile transposed": Fault(one(transposed), None, PLACES, "row 1, column 1 fits none of"),
    "one tile out of focus": Fault(
        one(blurred), None, ["Tiles out of focus"], "row 1, column 1 has 0"
    ),
    "one tile clipped": Fault(one(clipped), None, ["Saturated tiles"], "row 1, column 1 has 3"),
    "gain of 0.7": Fault(of_gains({(1, 1): 0.7}), None, ["Tile brightness"], "column 1 is 0.[67]"),
    "gain of 0.8": Fault(of_gains({(1, 1): 0.8}), None, ["Tile brightness"], "column 1 is 0.[78]"),
    "gain of 1.15": Fault(
        of_gains({(1, 1): 1.15}), None, ["Tile brightness"], "column 1 is 1.[12]"
    ),
    "gains of three tiles": Fault(
        of_gains({(1, 1): 0.8, (0, 2): 1.15, (2, 0): 0.7}),
        None,
        ["Tile brightness"],
        r"row \d, column \d is .*, Section 2, .*, Section 2, ",
    ),
    "dark section": Fault(dimmed(0.3), None, ["Section brightness"], "--n4_histogram_matching sec"),
    "bands": Fault(
        dimmed(0.9), None, ["Section boundaries"], "Sections 2, 3: bands, brightness jumps"
    ),
    "surface under water": Fault(
        submerged,
        None,
        ["Section surface"],
        r"Section 2: the surface lies [23]\d(\.\d)? µm deep, but 0 µm is cropped",
    ),
    "section not imaged": Fault(dimmed(0), None, ["Section brightness"], "Section 2 is blank"),
    "flipped in y": Fault(
        flipped(1),
        None,
        ["Section orientation"],
        "Section 2 fits if flipped along y;",
    ),
    "flipped in x": Fault(
        flipped(2),
        None,
        ["Section orientation"],
        "Section 2 fits if flipped along x;",
    ),
    "rotated": Fault(
        flipped(1, 2),
        None,
        ["Section orientation"],
        "Section 2 fits if flipped along yx;",
    ),
    "sections exchanged": Fault(
        None,
        None,
        ["Section order"],
        "Sections 2, 3 fit in each other's place",
        exchange,
        {"sections": 5},
    ),
    "turned by 180 degrees among five": Fault(
        flipped(1, 2),
        None,
        ["Section orientation"],
        "Section 2 fits if flipped along yx;",
        given={"sections": 5},
    ),
    "imaged twice": Fault(
        again,
        None,
        ["Section order"],
        "Section 2 shows the tissue of Section 1 again",
        given={"sections": 5},
    ),
    "copied, with one tile": Fault(
        None,
        None,
        ["Missing sections"],
        "Section 2 holds the same image as Section 1",
        copy,
        {"tiles": (1, 1)},
    ),
    "deeper than thick": Fault(
        None,
        None,
        ["Section thickness"],
        "tissue is repeated at each boundary",
        unstate,
        DEEP,
        depth=24,
    ),
    "thickness measured, one left out": Fault(
        None,
        None,
        ["Section thickness"],
        r"Section 2 \(.*\), Section 3 \(.*\): not measured, so it is the median",
        unstate_and_leave_out,
        {**DEEP, "sections": 5},
        {"section_thickness": "auto", "excluded_sections": "3"},
        depth=24,
    ),
}


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
    fault: Fault | None = None,
) -> list[Check]:
    """Make a phantom, change its second section, reconstruct it and return the checks.

    With a ``fault``, the phantom and all of its mosaics are changed as that says.
    """
    own_options = {} if fault is None else fault.given
    made = PhantomParameters.model_validate({**PHANTOM, **given, **own_options})
    make_phantom(folder / "phantom", made, execution)
    # A lost tile lacks its chunk.
    stitched, sections, reading = {}, [], InputParameters(missing_chunks="fill")
    own = StitchParameters.model_validate(stitching or {})
    mosaics = sorted((folder / "phantom" / "mosaics").iterdir())
    if fault is not None and fault.changed is not None:
        fault.changed(mosaics)
    for source in mosaics:
        if change is not None and source.name.startswith("section_02"):
            spoil(source, change, made)
        sections.append(folder / "out" / source.name)
        metrics = stitch_section(source, sections[-1], own, reading, execution)
        stitched[source.name] = StitchFigures.model_validate(metrics.figures)
    volume = folder / "out" / "stack.ome.zarr"
    stacking = StackParameters.model_validate({} if fault is None else fault.stacking)
    metrics = stack_sections(sections, volume, stacking, reading, execution)
    stack = StackFigures.model_validate(metrics.figures)
    found = check_subject(
        section_qualities(stitched, stack, None),
        stitched,
        stack,
        None,
        settings=Settings(own.recorded(), {}, {}),
    )
    # The other checks must tolerate shading; tests of STITCH cover its detection.
    return [check for check in found if check.name != "Shading of tiles"]
