"""RESAMPLE killed at random points and resumed gives what an undisturbed run gives."""

import json
import random
import subprocess

import pytest
from _resample_kills import checksums, command, finished, killed_after, storm, write


@pytest.fixture(scope="module")
def mosaic(tmp_path_factory):
    """A mosaic of 48 tiles."""
    return write(tmp_path_factory.mktemp("killed") / "section_01.ome.zarr")


@pytest.fixture(scope="module")
def undisturbed(mosaic, tmp_path_factory):
    """Checksums of what a run that nothing disturbs makes."""

    def made(*more):
        destination = tmp_path_factory.mktemp("undisturbed") / "out.ome.zarr"
        subprocess.run(command(mosaic, destination, *more), check=True, timeout=120)
        return checksums(destination)

    return made


@pytest.mark.parametrize(
    ("more", "pieces"),
    [((), 48), (("--tiles-per-shard", "2", "2"), 12)],
    ids=["tiles", "shards"],
)
@pytest.mark.timeout(300)
@pytest.mark.fault
def test_killed_and_damaged_again_and_again_it_ends_with_the_same_files(
    mosaic, undisturbed, told, tmp_path, more, pieces
):
    expected = undisturbed(*more)
    found = storm(mosaic, tmp_path, random.Random(7), 6, *more, pieces=pieces)
    assert found.kills > 0
    assert found.kept > 0
    assert found.damaged > 0
    assert checksums(tmp_path / "out.ome.zarr") == expected
    assert [p.name for p in tmp_path.iterdir()] == ["out.ome.zarr"]
    told(
        "within a step",
        f"RESAMPLE is killed at random points, and what it has finished is damaged, in {pieces} "
        "pieces",
        "goes on from the finished pieces that are as they were written",
        "recovery with `--resume`; the same files",
        f"{found.kills} kills, {found.kept} finished pieces found again, {found.damaged} damaged "
        "ones made anew",
    )


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
