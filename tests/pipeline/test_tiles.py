"""Tiles in files run like the mosaics that they are cut from, a section at a time."""

import os
import shutil

import numpy as np
import pytest
from runs import changed, checksums, last_words
from runs import voxels as read_all
from tile_writers import tiles_of, write_ome_tiff
from tiles_left_out import leave_out

from octane.core.orientation import code_of
from octane.layout.mosaic import MosaicGrid, read_positions
from octane.store.image import open_image
from octane.store.stated import stated_orientation

LOST = (1, 0)
"""Tile of the second section that was not imaged."""
PATTERN = "s{section}/r{row}_c{column}.ome.tif"


@pytest.fixture(scope="module")
def data(phantom, tmp_path_factory):
    """A subject's mosaics and positions, a folder of its first section's tiles, and ``later``."""
    folder = tmp_path_factory.mktemp("tiles")
    shutil.copytree(phantom / "mosaics", folder / "mosaics")
    table = shutil.copy(phantom / "positions.csv", folder)
    for number, parent in ((1, folder / "tiles"), (2, folder / "later")):
        image = open_image(folder / "mosaics" / f"section_{number:02d}.ome.zarr")
        places = read_positions(table, number, MosaicGrid.of(image))
        section = parent / f"s{number}"
        section.mkdir(parents=True)
        for (row, column), voxels in tiles_of(image).items():
            if (number, row, column) != (2, *LOST):
                name, spacing = section / f"r{row}_c{column}", image.grid.spacing
                write_ome_tiff(name, voxels, spacing, places[row, column])
    leave_out(folder / "mosaics" / "section_02.ome.zarr", [LOST])
    return folder


@pytest.fixture(scope="module")
def given(quick):
    """Arguments of all runs."""
    return (
        *quick,
        "--skip_report",
        "--skip_pyramid",
        "--section_thickness",
        "70",
        "--orientation",
        "PIR",
    )


@pytest.fixture(scope="module")
def first(succeeding, data, given):
    """A run on the tiles of one section, whose files state their places."""
    words = ("--input", "tiles", "--tile_pattern", PATTERN, "--overlap", "0.2")
    return succeeding(data, *given, *words)


@pytest.fixture(scope="module")
def cohort(succeeding, data, given, first):
    """The same with the second section, next to the mosaics."""
    (data / "later" / "s2").rename(data / "tiles" / "s2")
    rows = ["subject,input,tile_pattern,overlap,positions", f"tiles,tiles,{PATTERN},0.2,"]
    rows.append("mosaics,mosaics,,,positions.csv")
    (data / "cohort.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return succeeding(data, *given, "--samplesheet", "cohort.csv", "-resume")


def test_a_section_runs_through_mosaic(first):
    assert first.processes("COMPLETED") == {
        "PREFLIGHT",
        "MOSAIC",
        "RESAMPLE",
        "STITCH",
        "STACK",
        "N4",
    }
    assert "places from OME-XML" in first.output
    record = first.outdir / "tiles" / "metrics" / "section_01_mosaic_metrics.json"
    assert '"files": 4' in record.read_text(encoding="utf-8")
    # Given to MOSAIC, which alone reads the tiles.
    assert "Orientation: z anterior to posterior, y superior to inferior, x left to" in first.output
    (volume,) = (first.outdir / "tiles").glob("*.ome.zarr")
    assert code_of(stated_orientation(open_image(volume).attributes)) == "PIR"


@pytest.mark.soak
def test_a_section_that_was_added_runs_alone(cohort):
    own = [task for task in cohort.tasks("COMPLETED") if "(tiles" in task]
    steps = ("MOSAIC", "RESAMPLE", "STITCH")
    assert own == sorted(
        [*(f"{s} (tiles:section_02)" for s in steps), "N4 (tiles)", "STACK (tiles)"]
    )
    assert "MOSAIC (mosaics:section_01)" not in cohort.tasks()


@pytest.mark.soak
def test_the_volume_is_that_of_the_mosaics(cohort):
    one, other = (
        {name.replace(subject, ""): value for name, value in sums.items()}
        for subject in ("tiles", "mosaics")
        if (sums := checksums(cohort.outdir, subject))
    )
    assert one == other
    words = "Section 2 has no file for row 1, column 0: declared as not imaged."
    assert words in cohort.output


@pytest.mark.soak
def test_mosaics_of_tiles_are_emptied(succeeding, data, given, cohort):
    words = ("--input", data / "tiles", "--tile_pattern", PATTERN, "--keep_intermediates", "false")
    # In a folder of its own, because -resume continues the last run of its folder.
    run = succeeding(data / "emptied", *given, *words)
    assert checksums(run.outdir) == checksums(cohort.outdir, "tiles")
    # Two sections of MOSAIC, RESAMPLE and STITCH, and the stack.
    assert len(list(run.folder.glob("work/??/*/*.ome.zarr/0/emptied.json"))) == 7


@pytest.mark.soak
def test_an_edited_tile_runs_its_section_again(succeeding, data, given, cohort):
    tile = data / "tiles" / "s1" / "r0_c1.ome.tif"
    words = ("--samplesheet", "cohort.csv", "-resume", "--skip_n4")
    with changed(tile, tile.read_bytes()):
        os.utime(tile)
        run = succeeding(data, *given, *words)
    ran = [task for task in run.tasks("COMPLETED") if "section" in task]
    assert ran == [f"{step} (tiles:section_01)" for step in ("MOSAIC", "RESAMPLE", "STITCH")]


@pytest.mark.soak
def test_a_truncated_file_is_refused_before_any_task(nextflow, data, given, cohort):
    tile = data / "tiles" / "s1" / "r1_c1.ome.tif"
    with changed(tile, tile.read_bytes()[:-1000]):
        run = nextflow(data, *given, "--samplesheet", "cohort.csv", "-resume")
    assert run.code == 1
    assert run.processes() == {"PREFLIGHT"}
    (line,) = last_words(run.output).splitlines()
    assert line.startswith(f"tiles ({data / 'cohort.csv'}, line 2): {tile} cannot be read as an")


@pytest.mark.soak
def test_a_channel_in_files_of_its_own_runs_alone(succeeding, data, given):
    image = open_image(data / "mosaics" / "section_01.ome.zarr")
    folder = data / "colours"
    folder.mkdir()

    def write(channel, scale):
        for (row, column), voxels in tiles_of(image).items():
            name = folder / f"r{row}_c{column}_{channel}"
            write_ome_tiff(name, voxels * scale, image.grid.spacing)

    write("GFP", 1)
    write("red", 2)
    words = (
        *("--input", "colours", "--subject", "two", "--overlap", "0.2", "--n4_mask", "none"),
        *("--tile_pattern", "r{row}_c{column}_{channel}.ome.tif"),
        *("--channel", "GFP", "--channels", "all"),
    )
    succeeding(data, *given, *words)
    # In the order of the names it is the first, so the numbers of the others change.
    write("DAPI", 3)
    run = succeeding(data, *given, *words, "-resume")
    each = ("MOSAIC", "RESAMPLE", "STITCH_OTHERS")
    own = [*(f"{step} (two:section_01_DAPI)" for step in each), "STACK_OTHERS (two:DAPI)"]
    own.append("N4 (two:DAPI)")
    assert run.tasks("COMPLETED") == sorted(["PREFLIGHT (run)", *own, "CHANNELS (two)"])
    assert run.processes("CACHED") == {*each, "STITCH", "STACK", "STACK_OTHERS", "N4"}
    first, second, third = read_all(run.outdir / "two" / "two.ome.zarr").astype(float)
    np.testing.assert_allclose(first, 3 * second, rtol=1e-3)
    np.testing.assert_allclose(third, 2 * second, rtol=1e-3)
