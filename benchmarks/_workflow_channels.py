"""CPU seconds and peak memory of each step on subjects with one, two and four channels."""

import logging
import statistics
import sys
import tempfile
from pathlib import Path

from _common import PROJECT, cores, scratch_folder
from _processes import Run, run
from _workflow_steps import MEMORY

from octane.processes.phantom.parameters import PhantomParameters
from octane.processes.phantom.step import AXIS, mosaic_channels

COUNTS = (1, 2, 4)
"""Channels of the subjects; the last of four holds angles."""
RUNS = 3
"""Runs of a command, of which the median counts."""
SECTIONS = 3
OVERLAP = ("--overlap", "0.2", "0.2")

Costs = dict[str, dict[str, float]]
"""CPU seconds and peak bytes of each step of a channel."""


class Commands:
    """Runs the commands of one channel, and adds up their costs."""

    def __init__(self, runs: int) -> None:
        self.costs: Costs = {}
        self._runs = runs

    def __call__(self, step: str, *words: str | Path, workers: bool = True) -> None:
        """Run a command of ``bin/`` as the workflow does."""
        given = ["--workers", str(cores()), "--memory", MEMORY[step]] if workers else []
        command = [sys.executable, PROJECT / "bin" / f"{step}.py", *words, *given, "--overwrite"]
        made: list[Run] = [run(command) for _ in range(self._runs)]
        own = self.costs.setdefault(step, {"cpu_seconds": 0.0, "peak_bytes": 0})
        own["cpu_seconds"] += statistics.median(done.cpu_seconds for done in made)
        own["peak_bytes"] = max(own["peak_bytes"], *(done.peak_bytes for done in made))


def channel_costs(
    folder: Path, name: str | None, reference: Path | None, mosaics: list[Path], runs: int
) -> tuple[Costs, Path]:
    """Run all steps of a channel in ``folder``; return their costs and the last volume.

    ``name`` is None for the only channel of a subject, and ``reference`` the folder of the channel
    that was measured, None for that channel itself.
    """
    folder.mkdir()
    channel = ["--channel", name] if name else []
    kind = ["--channel_kind", f"{name}=nearest"] if name == AXIS else []
    command, sections = Commands(runs), []
    for mosaic in mosaics:
        stem = mosaic.name.removesuffix(".ome.zarr")
        resampled, section = folder / f"{stem}_resampled.ome.zarr", folder / mosaic.name
        command("resample", mosaic, resampled, *channel, *kind, "--resolution", "10")
        record = f"{stem}_stitch_metrics.json"
        # Only the reference is measured.
        like = ["--reference", reference / record] if reference else []
        command(
            *("stitch", resampled, section, *OVERLAP, "--stitch_refine", "--metrics"),
            *(folder / record, "--stitch_flat_field", "estimate", *like),
        )
        sections.append(section)
    stacked, record = folder / "stack.ome.zarr", "stack_metrics.json"
    like = ["--reference", reference / record] if reference else []
    aligned = ("--stack_align", "rigid", "--metrics", folder / record)
    command("stack", stacked, *sections, *aligned, *like)
    corrected, volume = folder / "n4.ome.zarr", folder / "volume.ome.zarr"
    like = ["--reference", reference / stacked.name] if reference else []
    command("n4", stacked, corrected, "--n4_mask", "tissue", "--backend", "cpu", *like)
    command("pyramid", corrected, volume)
    return command.costs, volume


def subject_costs(folder: Path, count: int, quick: bool) -> dict[str, object]:
    """Make a subject of ``count`` channels, and run the steps of each."""
    names = mosaic_channels(PhantomParameters(channels=count))
    sizes = ("2", "2", "--tile_shape", "24", "96", "96") if quick else ("3", "3")
    sizes = (*sizes, *(() if quick else ("--tile_shape", "42", "256", "256")))
    made = run(
        [
            *(sys.executable, PROJECT / "bin" / "phantom.py", folder / "phantom"),
            *("--channels", str(count), "--sections", str(SECTIONS), "--tiles", *sizes),
            *("--section_thickness", "70" if quick else "140"),
            *("--position_error", "8", "--shift", "20", "--rotation", "1"),
        ]
    )
    logging.info("phantom of %d channels: %.0f s", count, made.seconds)
    mosaics = sorted((folder / "phantom" / "mosaics").glob("*.ome.zarr"))
    runs, reference = 1 if quick else RUNS, folder / names[0]
    costs, volumes = {}, []
    for name in names:
        like = None if name == names[0] else reference
        own = channel_costs(folder / name, name if count > 1 else None, like, mosaics, runs)
        costs[name] = own[0]
        volumes.append(own[1])
        logging.info("%s of %d channels: %s", name, count, own[0])
    joining = Commands(runs)
    if count > 1:
        joining("channels", folder / "subject.ome.zarr", *volumes, workers=False)
    return {"channels": costs, "joining": joining.costs}


def channels(quick: bool) -> dict[str, object]:
    """Measure subjects with different numbers of channels."""
    subjects = {}
    for count in COUNTS:
        with tempfile.TemporaryDirectory(dir=scratch_folder()) as folder:
            subjects[str(count)] = subject_costs(Path(folder), count, quick)
    return {"sections": SECTIONS, "subjects": subjects}
