"""The command killed at random points leaves links or whole copies, and the next call ends it."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

COMMAND = Path(__file__).resolve().parents[2] / "bin" / "materialize.py"
KILLS = 6


def published(folder):
    """Results of some stores as links into a work directory."""
    task = folder / "work" / "ab" / "0123456789abcdef0123456789abcd"
    (folder / "out").mkdir()
    for name in ("a.ome.zarr", "b.ome.zarr"):
        store = task / name
        (store / "0" / "c").mkdir(parents=True)
        (store / "zarr.json").write_text("{}")
        for number in range(300):
            (store / "0" / "c" / str(number)).write_bytes(random.Random(number).randbytes(20_000))
        (folder / "out" / name).symlink_to(store)
    return folder / "out"


def contents(folder):
    return {
        Path(root, name).relative_to(folder).as_posix(): Path(root, name).read_bytes()
        for root, _, names in os.walk(folder, followlinks=True)
        for name in names
    }


@pytest.mark.fault
def test_killed_again_and_again_nothing_is_lost_or_half_made(observed, tmp_path):
    outdir = published(tmp_path)
    expected, chance, kills = contents(outdir), random.Random(5), 0
    while kills < KILLS:
        with subprocess.Popen([sys.executable, COMMAND, outdir], stderr=subprocess.DEVNULL) as call:
            while call.poll() is None and not list(outdir.glob(".partial-*")):
                time.sleep(0.001)
            time.sleep(chance.uniform(0, 0.1))
            ended = call.poll() is not None
            call.send_signal(signal.SIGKILL)
        if ended:
            break
        kills += 1
        for path in outdir.glob("[ab].ome.zarr"):
            assert contents(path) == {
                key.removeprefix(f"{path.name}/"): value
                for key, value in expected.items()
                if key.startswith(path.name)
            }
    assert kills
    done = subprocess.run([sys.executable, COMMAND, outdir], check=False, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in outdir.iterdir()} == {"a.ome.zarr", "b.ome.zarr"}
    assert not any(path.is_symlink() for path in outdir.iterdir())
    assert contents(outdir) == expected
    observed(f"killed {kills} times")
