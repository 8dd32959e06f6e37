"""--keep_intermediates false: outputs that were read are emptied, and made again if needed."""

import os
import time
from contextlib import suppress
from pathlib import Path

import pytest
from runs import checksums, voxels, whole

MADE = {"mosaics_stack.ome.zarr", "section_01.ome.zarr", "section_02.ome.zarr"}
"""What the steps before N4 write for the mosaics of a phantom."""
EMPTYING = ("--keep_intermediates", "false")


@pytest.fixture(scope="module")
def given(quick, phantom):
    """Arguments of all runs."""
    return (*quick, "--skip_report", "--input", phantom / "mosaics")


def emptied(folder):
    """Stores in a work directory without their voxels."""
    found = [path.parents[1] for path in folder.glob("work/??/*/*.ome.zarr/0/emptied.json")]
    for store in found:
        assert [path.name for path in (store / "0").iterdir()] == ["emptied.json"]
    return sorted(store.name for store in found)


def stored(folder):
    """Bytes of the chunks in a folder, of hard links once."""
    sizes = {}
    for root, _, names in os.walk(folder):
        for name in names if "/0/c/" in f"{root}/" else []:
            with suppress(FileNotFoundError):
                found = Path(root, name).lstat()
                sizes[found.st_ino] = found.st_size
    return sum(sizes.values())


def test_what_was_read_is_emptied_and_its_tasks_stay_cached(succeeding, given, tmp_path):
    run = succeeding(tmp_path, *given, *EMPTYING)
    # RESAMPLE and STITCH give their sections the same names.
    assert emptied(tmp_path) == sorted([*MADE, "section_01.ome.zarr", "section_02.ome.zarr"])
    assert {store.name for store in whole(tmp_path / "work")} - MADE == {
        "mosaics_n4.ome.zarr",
        "mosaics.ome.zarr",
    }
    left = next(tmp_path.glob("work/??/*/mosaics_stack.ome.zarr/0/emptied.json"))
    # As if it had been killed while it emptied this one.
    left.with_name("c").mkdir()
    left.with_name("c").joinpath("0").touch()
    again = succeeding(tmp_path, *given, *EMPTYING, "-resume")
    assert again.tasks() == run.tasks()
    assert again.processes("COMPLETED") == {"PREFLIGHT"}
    assert len(emptied(tmp_path)) == 5


@pytest.mark.soak
def test_results_are_the_same_in_less_space(start_nextflow, make_phantom, quick, tmp_path):
    mosaics = make_phantom(sections=6, tiles=4) / "mosaics"
    sums, most, predicted = {}, {}, {}
    for keeping in ("true", "false"):
        folder = tmp_path / keeping
        run = start_nextflow(
            *(folder, *quick, "--skip_report", "--input", mosaics, "--resolution", "5"),
            *("--keep_intermediates", keeping),
        )
        most[keeping] = 0
        while run.process.poll() is None:
            most[keeping] = max(most[keeping], stored(folder / "work"))
            time.sleep(0.05)
        ended = run.wait()
        assert ended.code == 0, ended.output
        sums[keeping] = checksums(ended.outdir)
        (line,) = (line for line in ended.output.splitlines() if "will write" in line)
        predicted[keeping] = float(line.split(" to ")[1].split(" MB")[0]) * 1e6
    assert sums["true"] == sums["false"]
    assert most["false"] < 0.7 * most["true"]
    assert predicted["false"] < 0.7 * predicted["true"]
    assert all(size <= predicted[keeping] for keeping, size in most.items()), (most, predicted)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("more", "count"),
    [
        (("--scratch_dir", "true", "--publish_dir_mode", "copy"), 5),
        (("--skip_n4",), 4),
        (("--resolution", "none", "--skip_pyramid"), 3),
    ],
)
def test_other_ways_of_running(succeeding, given, tmp_path, more, count):
    sums = checksums(succeeding(tmp_path / "kept", *given, *more).outdir)
    run = succeeding(tmp_path / "emptied", *given, *more, *EMPTYING)
    assert checksums(run.outdir) == sums
    assert len(emptied(run.folder)) == count


@pytest.mark.soak
def test_a_volume_stays_where_it_was_given(succeeding, quick, phantom, tmp_path):
    source = phantom / "truth" / "tissue.ome.zarr"
    given = (*quick, "--skip_report", "--input", source, *EMPTYING)
    before = voxels(source)
    succeeding(tmp_path / "given", *given, "--resolution", "none")
    assert emptied(tmp_path / "given") == []
    succeeding(tmp_path / "resampled", *given, "--resolution", "20")
    assert len(emptied(tmp_path / "resampled")) == 1
    # An output of another run is an input like any other.
    (made,) = (tmp_path / "given").glob("work/??/*/tissue_n4.ome.zarr")
    succeeding(tmp_path / "given", *quick, "--skip_report", "--input", made, *EMPTYING)
    assert (voxels(source) == before).all()
    assert voxels(made).any()


@pytest.mark.soak
def test_what_an_earlier_run_published_stays(succeeding, quick, phantom, tmp_path):
    source = phantom / "truth" / "tissue.ome.zarr"
    given = (*quick, "--skip_report", "--input", source, "--resolution", "20", *EMPTYING)
    first = succeeding(tmp_path, *given, "--skip_n4", "--skip_pyramid")
    (link,) = first.outdir.glob("tissue/*.ome.zarr")
    made = link.resolve()
    before = voxels(made)
    run = succeeding(tmp_path, *given, "-resume", "--skip_pyramid")
    assert run.processes("CACHED") == {"RESAMPLE"}
    assert (voxels(made) == before).all()
    assert emptied(tmp_path) == []
