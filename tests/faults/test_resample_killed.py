"""RESAMPLE killed at random points and resumed gives what an undisturbed run gives."""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from octane.geometry import Grid
from octane.omezarr import Level, create_image

PROJECT = Path(__file__).resolve().parents[2]
TILES = 48


@pytest.fixture(scope="module")
def mosaic(tmp_path_factory):
    """A mosaic of 6 x 8 tiles."""
    path = tmp_path_factory.mktemp("killed") / "section_01.ome.zarr"
    level = Level(Grid((16, 6 * 60, 8 * 60), (5.0, 5.0, 5.0)), (16, 60, 60))
    voxels = np.random.default_rng(4).gamma(2.0, 100.0, level.grid.shape).astype(np.float32)
    with create_image(path, [level], "float32", attributes={"kind": "mosaic"}) as (writer,):
        writer[:, :, :] = voxels
    return path


def command(source, destination, *more):
    return [
        sys.executable, str(PROJECT / "bin" / "resample.py"), str(source), str(destination),
        "--resolution", "10", "--backend", "cpu", "--workers", "2", *more,
    ]  # fmt: skip


def checksums(store):
    """Of every file of a store."""
    files = sorted(p for p in store.rglob("*") if p.is_file())
    return {str(p.relative_to(store)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


@pytest.fixture(scope="module")
def undisturbed(mosaic, tmp_path_factory):
    """What a run that nothing disturbs makes."""

    def made(*more):
        destination = tmp_path_factory.mktemp("undisturbed") / "out.ome.zarr"
        subprocess.run(command(mosaic, destination, *more), check=True, timeout=120)
        return checksums(destination)

    return made


def finished(folder):
    """Objects that the journal beside a store notes."""
    found = list(folder.glob(".resume-*.journal"))
    return len(found[0].read_text().splitlines()) - 1 if found else 0


def killed_after(command, folder, count):
    """Start a run and kill it once so many objects are noted; None if it ended before."""
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        while finished(folder) < count:
            if process.poll() is not None:
                return None
            time.sleep(0.0005)
        os.kill(process.pid, signal.SIGKILL)
    return finished(folder)


@pytest.mark.parametrize("more", [(), ("--tiles-per-shard", "2", "2")], ids=["tiles", "shards"])
@pytest.mark.timeout(300)
def test_killed_again_and_again_it_ends_with_the_same_files(mosaic, undisturbed, tmp_path, more):
    expected = undisturbed(*more)
    chance = random.Random(7)
    destination = tmp_path / "out.ome.zarr"
    run = command(mosaic, destination, "--resume", *more)
    pieces = TILES // 4 if more else TILES
    kills, done = 0, 0
    while kills < 6:
        done = killed_after(run, tmp_path, min(done + chance.randint(0, pieces // 5), pieces - 1))
        if done is None:
            break
        kills += 1
        assert not destination.exists()
        _damage(tmp_path, chance)
    if not destination.exists():
        subprocess.run(run, check=True, timeout=120)
    assert kills > 0
    assert checksums(destination) == expected
    assert [p.name for p in tmp_path.iterdir()] == [destination.name]


def _damage(folder, chance):
    """Tear one finished object, and flip a bit of another, as a machine that went down may."""
    found = folder.glob(".resume-*/0/c/**/[0-9]*")
    objects = sorted(p for p in found if p.is_file() and p.stat().st_size)
    if len(objects) < 4:
        return
    torn, flipped = chance.sample(objects, 2)
    torn.write_bytes(torn.read_bytes()[: chance.randint(0, torn.stat().st_size - 1)])
    content = bytearray(flipped.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    flipped.write_bytes(bytes(content))


def test_finished_tiles_are_not_made_again(mosaic, tmp_path):
    destination = tmp_path / "out.ome.zarr"
    run = command(mosaic, destination, "--resume", "--metrics", str(tmp_path / "m.json"))
    assert killed_after(run, tmp_path, 20) is not None
    before = {p.stat().st_ino for p in tmp_path.glob(".resume-*/0/c/*/*/[0-9]*")}
    kept = finished(tmp_path)
    subprocess.run(run, check=True, timeout=120)
    after = {p.stat().st_ino for p in destination.glob("0/c/*/*/*")}
    assert len(before & after) >= kept >= 20
    figures = json.loads((tmp_path / "m.json").read_text())["figures"]
    assert figures["pieces_kept"] >= kept


def test_a_changed_setting_begins_afresh(mosaic, undisturbed, tmp_path):
    expected = undisturbed("--dtype", "uint16")
    destination = tmp_path / "out.ome.zarr"
    assert killed_after(command(mosaic, destination, "--resume"), tmp_path, 20) is not None
    run = command(mosaic, destination, "--resume", "--dtype", "uint16")
    subprocess.run(run, check=True, timeout=120)
    assert checksums(destination) == expected
    assert [p.name for p in tmp_path.iterdir()] == [destination.name]
