"""RESAMPLE killed at random points and resumed, until it ends; and then looked at file by file."""

import hashlib
import logging
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from _common import PROJECT, scratch_folder

from octane.core.geometry import Grid
from octane.store.image import Level, create_image

__all__ = ["Storm", "checksums", "command", "finished", "killed_after", "kills", "storm", "write"]

logger = logging.getLogger(__name__)

TILES = 6, 8
TILE = 16, 60, 60


@dataclass
class Storm:
    """What a storm came to.

    Attributes
    ----------
    kills
        Processes that were killed while they worked.
    kept
        Finished objects that a later run found, summed over the kills.
    damaged
        Of those, how many were then torn or changed on purpose.
    """

    kills: int = 0
    kept: int = 0
    damaged: int = 0


def write(path: Path) -> Path:
    """A mosaic of 48 small tiles."""
    shape = (TILE[0], TILES[0] * TILE[1], TILES[1] * TILE[2])
    level = Level(Grid(shape, (5.0, 5.0, 5.0)), TILE)
    voxels = np.random.default_rng(4).gamma(2.0, 100.0, shape).astype(np.float32)
    with create_image(path, [level], "float32", attributes={"kind": "mosaic"}) as (writer,):
        writer[:, :, :] = voxels
    return path


def command(source: Path, destination: Path, *more: str) -> list[str]:
    """What a user would type."""
    return [
        sys.executable, str(PROJECT / "bin" / "resample.py"), str(source), str(destination),
        "--resolution", "10", "--backend", "cpu", "--workers", "2", *more,
    ]  # fmt: skip


def checksums(store: Path) -> dict[str, str]:
    """Of every file of a store."""
    return {
        str(file.relative_to(store)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in store.rglob("*")
        if file.is_file()
    }


def finished(folder: Path) -> int:
    """Objects that the journal beside a store notes."""
    found = list(folder.glob(".resume-*.journal"))
    return max(0, len(found[0].read_text(encoding="utf-8").splitlines()) - 1) if found else 0


def killed_after(run: Sequence[str], folder: Path, count: int) -> int | None:
    """Start a run, and kill it once so many objects are noted: how many are; None if it ended."""
    with subprocess.Popen(run, stderr=subprocess.DEVNULL) as process:
        while finished(folder) < count:
            if process.poll() is not None:
                return None
            time.sleep(0.0005)
        os.kill(process.pid, signal.SIGKILL)
    return finished(folder)


def damage(folder: Path, chance: random.Random) -> int:
    """Tear one finished object and flip a bit of another, as a machine that went down may."""
    found = folder.glob(".resume-*/0/c/**/[0-9]*")
    objects = sorted(p for p in found if p.is_file() and p.stat().st_size)
    if len(objects) < 4:
        return 0
    torn, flipped = chance.sample(objects, 2)
    torn.write_bytes(torn.read_bytes()[: chance.randint(0, torn.stat().st_size - 1)])
    content = bytearray(flipped.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    flipped.write_bytes(bytes(content))
    return 2


def storm(
    source: Path, folder: Path, chance: random.Random, most: int, *more: str, pieces: int = 48
) -> Storm:
    """Resample into ``folder``, killed up to ``most`` times at random points on the way."""
    destination = folder / "out.ome.zarr"
    run = command(source, destination, "--resume", *more)
    found, done = Storm(), 0
    while found.kills < most:
        # Some before the first object, some before the last.
        aim = min(done + chance.randint(0, pieces // 5), pieces - 1)
        reached = killed_after(run, folder, aim)
        if reached is None:
            break
        done = reached
        found.kills += 1
        found.kept += done
        found.damaged += damage(folder, chance)
    if not destination.exists():
        subprocess.run(run, check=True, stderr=subprocess.DEVNULL)
    return found


def kills(quick: bool) -> dict[str, object]:
    """Storms until enough processes were killed, each against an undisturbed run."""
    wanted = 20 if quick else 200
    chance = random.Random(11)
    total, stores, same = Storm(), 0, 0
    with tempfile.TemporaryDirectory(dir=scratch_folder()) as scratch:
        folder = Path(scratch)
        source = write(folder / "section_01.ome.zarr")
        # Of the same name, which stands in the metadata.
        undisturbed = folder / "undisturbed" / "out.ome.zarr"
        subprocess.run(command(source, undisturbed), check=True, stderr=subprocess.DEVNULL)
        expected = checksums(undisturbed)
        while total.kills < wanted:
            place = folder / str(stores)
            place.mkdir()
            found = storm(source, place, chance, min(10, wanted - total.kills))
            stores += 1
            same += (
                checksums(place / "out.ome.zarr") == expected and len(list(place.iterdir())) == 1
            )
            total = Storm(
                total.kills + found.kills, total.kept + found.kept, total.damaged + found.damaged
            )
            logger.info("%d kills, %d of %d stores the same", total.kills, same, stores)
    return {
        "tiles": TILES[0] * TILES[1],
        "kills": total.kills,
        "objects_kept_at_kills": total.kept,
        "objects_damaged": total.damaged,
        "stores": stores,
        "stores_with_the_files_of_an_undisturbed_run": same,
    }
