"""CPU seconds and memory of the commands of STITCH and STACK, on phantoms made for it."""

import sys
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import numpy as np
from _common import PROJECT, cores, scratch_folder
from _processes import Run, run
from uneven_sections import UnevenParameters, make_phantom

from octane.compare.columns import Columns, columns
from octane.config.parameters import ExecutionParameters
from octane.layout.mosaic import MosaicGrid, Tile
from octane.layout.placement import TilePlacement
from octane.processes.stitch.layout import nominal_positions
from octane.processes.stitch.parameters import StitchParameters
from octane.store.image import open_image

Cost = dict[str, float]
"""``cpu_seconds``, the median over runs, and ``peak_bytes``, the most of them."""


@contextmanager
def _phantom(tiles: int, given: Mapping[str, object]) -> Generator[tuple[Path, list[Path]]]:
    """Make a phantom with tiles of 64 x 256 x 256; yields a folder and the mosaics."""
    made = {"tiles": tiles, "tile_shape": (64, 256, 256), **given}
    with tempfile.TemporaryDirectory(dir=scratch_folder()) as scratch:
        folder = Path(scratch)
        p, execution = UnevenParameters.model_validate(made), ExecutionParameters(workers=cores())
        make_phantom(folder / "made", p, execution)
        yield folder, sorted((folder / "made" / "mosaics").iterdir())


def _step(name: str, *words: str | Path) -> Run:
    more = ["--overwrite", "--workers", str(cores())]
    return run([sys.executable, PROJECT / "bin" / name, *words, *more])


def stack_costs(
    tiles: int, phantom: Mapping[str, object], ways: Mapping[str, Sequence[str]], runs: int
) -> tuple[tuple[int, ...], dict[str, Cost]]:
    """Measure STITCH of all sections, and STACK in each way, alternately.

    ``ways`` are flags of STACK by name, ``phantom`` further options of the phantom. Returns the
    shape of the volume, and the costs of ``stitch`` and of the ways.
    """
    found: dict[str, list[tuple[float, int]]] = {name: [] for name in ("stitch", *ways)}
    with _phantom(tiles, phantom) as (folder, mosaics):
        sections, volume = [folder / own.name for own in mosaics], folder / "stack.ome.zarr"
        for _ in range(runs):
            each = [_step("stitch.py", *pair) for pair in zip(mosaics, sections, strict=True)]
            spent = sum(own.cpu_seconds for own in each), max(own.peak_bytes for own in each)
            found["stitch"].append(spent)
            for way, flags in ways.items():
                done = _step("stack.py", volume, *sections, *flags)
                found[way].append((done.cpu_seconds, done.peak_bytes))
        shape = open_image(volume).grid.shape
    return shape, {
        name: {
            "cpu_seconds": round(median(seconds for seconds, _ in own), 2),
            "peak_bytes": max(peak for _, peak in own),
        }
        for name, own in found.items()
    }


def section_cost(
    tiles: int,
    runs: int,
    name: str,
    work: Callable[[dict[Tile, Columns], TilePlacement], object],
) -> dict[str, object]:
    """CPU seconds of STITCH and STACK of a section, and of two parts of STITCH within.

    These are the columns of its tiles, and ``work`` on them, which is called ``name``.
    """
    found: dict[str, list[float]] = {"stitch": [], "stack": [], "columns": [], name: []}
    with _phantom(tiles, {"sections": 1}) as (folder, (mosaic,)):
        image = open_image(mosaic)
        grid = MosaicGrid.of(image)
        placement = TilePlacement(grid, nominal_positions(image, grid, StitchParameters(), None))
        blocks = {tile: image.read(grid.region(tile)) for tile in grid.imaged_tiles}
        section = folder / mosaic.name
        for _ in range(runs):
            found["stitch"].append(_step("stitch.py", mosaic, section).cpu_seconds)
            stacked = _step("stack.py", folder / "stack.ome.zarr", section)
            found["stack"].append(stacked.cpu_seconds)
            times = [time.process_time()]
            profiles = {tile: columns(block) for tile, block in blocks.items()}
            times.append(time.process_time())
            work(profiles, placement)
            times.append(time.process_time())
            for part, seconds in zip(("columns", name), np.diff(times), strict=True):
                found[part].append(float(seconds))
    own = {part: median(seconds) for part, seconds in found.items()}
    return {"shape": placement.grid.shape, **own}
