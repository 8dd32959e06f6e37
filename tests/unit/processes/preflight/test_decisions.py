"""What PREFLIGHT decides by the data: the overlap of tiles that nobody states."""

import json

import numpy as np
import pytest
import zarr
from foreign_images import foreign_image
from plans import content
from tile_writers import tiles_of, write_ome_tiff

from octane.compare.overlap import MIDDLE_TILES
from octane.core.errors import OctaneError
from octane.layout.mosaic import MosaicGrid
from octane.processes.preflight.decisions import FIRST_SECTIONS, SectionSource, decide_overlap
from octane.processes.preflight.step import plan_of
from octane.store.image import open_image

SPACING = (10.0, 5.0, 5.0)
OVERLAP = (0.25, 0.3)


@pytest.fixture
def plan(tmp_path):
    def run(source, **given):
        own = {"outdir": str(tmp_path / "results"), "subject": "brain", "section_thickness": 60}
        return plan_of(own | given, source, {})

    return run


@pytest.fixture
def mosaics(write_phantom):
    """Mosaics of four sections of 3 x 3 tiles, which do not state how they overlap."""
    folder, _ = write_phantom(
        **{"sections": 4, "tiles": (3, 3), "tile_shape": (8, 100, 120), "overlap": OVERLAP},
        speckle_looks=4.0,
        edge_fraction=0.0,
    )
    for path in (folder / "mosaics").glob("*/zarr.json"):
        stored = json.loads(path.read_text(encoding="utf-8"))
        stored["attributes"]["octane"]["mosaic"].pop("pitch", None)
        path.write_text(json.dumps(stored), encoding="utf-8")
    return folder / "mosaics"


@pytest.fixture
def files(mosaics, tmp_path):
    """The same tiles in files."""
    folder = tmp_path / "files"
    folder.mkdir()
    for number, path in enumerate(sorted(mosaics.iterdir()), start=1):
        for (row, column), voxels in tiles_of(open_image(path)).items():
            write_ome_tiff(folder / f"section_{number}_r{row}_c{column}", voxels, SPACING)
    return folder


def overlap_in(made):
    """Overlaps in the flags of STITCH, and the decision."""
    (own,) = content(made)["channels"]
    words = own["flags"]["stitch"].split()
    (decision,) = made.decisions
    assert decision.flag == f"--overlap {','.join(words[words.index('--overlap') + 1 :][:2])}"
    return [float(word) for word in words[words.index("--overlap") + 1 :][:2]]


def test_tiles_in_files_are_placed_by_their_measured_overlap(plan, files):
    made = plan(files)
    found = overlap_in(made)
    assert np.abs(np.multiply(np.subtract(found, OVERLAP), (100, 120))).max() < 0.5
    stated = plan(files, overlap=",".join(map(str, found)))
    assert content(stated) == content(made)
    assert not stated.decisions


def test_mosaics_are_placed_by_their_measured_overlap(plan, mosaics):
    found = overlap_in(plan(mosaics))
    assert np.abs(np.multiply(np.subtract(found, OVERLAP), (100, 120))).max() < 0.5


def test_tiles_that_show_no_overlap_are_refused(plan, files, rng):
    for path in files.iterdir():
        path.unlink()
    for row, column in np.ndindex(3, 3):
        noise = rng.integers(1, 999, (8, 100, 120), np.uint16)
        write_ome_tiff(files / f"section_1_r{row}_c{column}", noise, SPACING)
    with pytest.raises(OctaneError) as caught:
        plan(files)
    (line,) = str(caught.value).splitlines()
    assert str(files) in line
    assert "--overlap" in line


def test_mosaics_with_rows_that_run_the_other_way_need_positions(plan, mosaics):
    for path in mosaics.iterdir():
        array = zarr.open_array(path / "0")
        rows = np.split(array[:], 3, axis=1)
        array[:] = np.concatenate(rows[::-1], axis=1)
    with pytest.raises(OctaneError) as caught:
        plan(mosaics)
    assert "--positions" in str(caught.value)
    assert "--overlap" not in str(caught.value)


@pytest.mark.parametrize("shape", [(8, 100, 120), (8, 25, 30), (1, 50, 60)])
def test_stores_of_single_tiles_ask_for_a_pattern(plan, tmp_path, rng, shape):
    (tmp_path / "tiles").mkdir()
    for row, column in np.ndindex(3, 3):
        voxels = rng.integers(1, 999, (8, 100, 120), np.uint16)
        path = tmp_path / "tiles" / f"section_1_r{row}_c{column}.ome.zarr"
        foreign_image(path, voxels, chunks=shape)
    with pytest.raises(OctaneError) as caught:
        plan(tmp_path / "tiles")
    assert "--tile_pattern" in str(caught.value)


@pytest.mark.parametrize("placed", [False, True])
def test_rows_that_run_the_other_way_are_turned(plan, mosaics, tmp_path, placed):
    pitch = [n * 5 * (1 - o) for n, o in zip((100, 120), OVERLAP, strict=True)]
    folders = [tmp_path / name for name in ("right", "turned")]
    for path in sorted(mosaics.iterdir()):
        for (row, column), voxels in tiles_of(open_image(path)).items():
            for folder, own in zip(folders, (row, 2 - row), strict=True):
                folder.mkdir(exist_ok=True)
                place = (own * pitch[0], column * pitch[1]) if placed else None
                name = folder / f"{path.name.split('.')[0]}_r{own}_c{column}"
                write_ome_tiff(name, voxels, SPACING, place)
    right, turned = (plan(folder) for folder in folders)
    flips = [own.flag for own in turned.decisions if "--tile_flip" in own.flag]
    assert flips == ["--tile_flip y"]
    assert not [own for own in right.decisions if "--tile_flip" in own.flag]
    stated = plan(folders[1], tile_flip="y")
    assert content(stated) == content(turned)
    (own,) = content(turned)["channels"]
    assert "--tile_flip y" in own["flags"]["mosaic"]
    if not placed:
        (one,), (other,) = (content(made)["channels"] for made in (right, turned))
        assert one["flags"]["stitch"] == other["flags"]["stitch"]


def test_a_lone_tile_needs_no_overlap(plan, tmp_path, rng):
    (tmp_path / "tiles").mkdir()
    for number in (1, 2):
        voxels = rng.integers(1, 999, (8, 100, 120), np.uint16)
        write_ome_tiff(tmp_path / "tiles" / f"section_{number}_r0_c0", voxels, SPACING)
    assert not plan(tmp_path / "tiles").decisions


def test_sections_that_are_added_change_no_decision(files):
    read = []

    def source(number):
        def look(tile):
            read.append(number)
            return sections[number % 4][tile]

        return SectionSource(grid, 1, look)

    images = [open_image(path) for path in sorted((files.parent / "phantom/mosaics").iterdir())]
    grid = MosaicGrid.of(images[0])
    sections = [tiles_of(image) for image in images]
    found = [decide_overlap("x", [source(n) for n in range(count)]) for count in (4, 40)]
    assert found[0] == found[1]
    assert {*read} <= {*range(FIRST_SECTIONS)}
    assert len(read) <= 2 * FIRST_SECTIONS * MIDDLE_TILES


@pytest.mark.parametrize(
    ("given", "refined"),
    [
        ({}, True),
        ({"as_stated": True}, False),
        ({"as_stated": True, "stitch_refine": "true"}, True),
        ({"stitch_refine": "false"}, False),
    ],
)
def test_tiles_are_refined_unless_something_else_is_stated(plan, mosaics, given, refined):
    (own,) = content(plan(mosaics, overlap="0.25 0.3", **given))["channels"]
    assert ("--stitch_refine" in own["flags"]["stitch"]) == refined


def test_tiles_that_a_table_places_are_not_refined(plan, mosaics, tmp_path):
    rows = [f"{n},{r},{c},{375 * r},{420 * c}" for n in range(1, 5) for r, c in np.ndindex(3, 3)]
    table = tmp_path / "places.csv"
    table.write_text("\n".join(["section,row,column,y,x", *rows]), encoding="utf-8")
    given = {"outdir": "results", "subject": "brain", "section_thickness": 60}
    (own,) = content(plan_of(given, mosaics, {"positions": table}))["channels"]
    assert "--stitch_refine" not in own["flags"]["stitch"]


@pytest.mark.parametrize(
    ("given", "measured"),
    [
        ({"section_thickness": None}, True),
        ({}, False),
        ({"section_thickness": None, "as_stated": True}, False),
        ({"section_thickness": None, "stitch_attenuation": "compensate"}, False),
    ],
)
def test_a_thickness_that_nobody_states_is_measured(plan, mosaics, given, measured):
    for path in mosaics.glob("*/zarr.json"):
        stored = json.loads(path.read_text(encoding="utf-8"))
        stored["attributes"]["octane"]["section"].pop("thickness", None)
        path.write_text(json.dumps(stored), encoding="utf-8")
    (own,) = content(plan(mosaics, overlap="0.25 0.3", **given))["channels"]
    assert ("--section_thickness auto" in own["flags"]["stack"]) == measured
