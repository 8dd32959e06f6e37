"""PHANTOM: mosaics whose overlaps agree, positions, and the truth on the stacked volume's grid."""

import csv
import json

import numpy as np
import pytest

from octane.config.params import ExecutionParameters, PhantomParameters
from octane.core.errors import OctaneError
from octane.steps.phantom import make_phantom
from octane.steps.phantom_model import SCALE, Subject, bias_field, tissue
from octane.store.image import open_image
from octane.store.mosaic_grid import MosaicGrid


def first_section(folder):
    return open_image(folder / "mosaics" / "section_01.ome.zarr")


def test_a_subject_is_mosaics_positions_and_truth(write_phantom):
    folder, _ = write_phantom(sections=2, tiles=(2, 3))
    assert sorted(p.name for p in folder.iterdir()) == ["mosaics", "positions.csv", "truth"]
    assert sorted(p.name for p in (folder / "mosaics").iterdir()) == [
        "section_01.ome.zarr",
        "section_02.ome.zarr",
    ]
    with (folder / "positions.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 2 * 6
    assert {(r["section"], r["row"], r["column"]) for r in rows} == {
        (str(s), str(r), str(c)) for s in (1, 2) for r in range(2) for c in range(3)
    }


def test_tiles_agree_where_they_overlap(write_phantom):
    folder, _ = write_phantom(tiles=(2, 2), bias=0.5, attenuation=1.0, edge_fraction=0.0)
    voxels = first_section(folder).array[:]
    # 48 voxels a tile, a quarter in common.
    np.testing.assert_allclose(voxels[:, :48, 36:48], voxels[:, :48, 48:60], rtol=1e-5)
    np.testing.assert_allclose(voxels[:, 36:48, :48], voxels[:, 48:60, :48], rtol=1e-5)


def test_a_section_says_what_stitching_and_stacking_need(write_phantom):
    folder, parameters = write_phantom(sections=2, tiles=(2, 2))
    image = open_image(folder / "mosaics" / "section_02.ome.zarr")
    tiling = MosaicGrid.of(image)
    assert tiling.tile == (8, 48, 48)
    assert tiling.shape == (8, 48 + 36, 48 + 36)
    assert tiling.pitch == Subject.of(parameters).pitch == (180.0, 180.0)
    assert image.attributes["section"] == {"number": 2, "thickness": 60.0}
    assert image.grid.spacing == (10.0, 5.0, 5.0)
    assert image.missing_chunks() == []


@pytest.mark.parametrize("tiles", [(1, 1), (1, 3)])
def test_a_single_cut_row_is_its_own_chunk(write_phantom, tiles):
    folder, _ = write_phantom(tiles=tiles)
    tiling = MosaicGrid.of(first_section(folder))
    assert (tiling.rows, tiling.columns) == tiles
    assert tiling.tile[1] == 36


def test_shards_change_nothing_but_the_files(write_phantom, voxels_of):
    plain, _ = write_phantom("plain", tiles=(3, 3), speckle_looks=4)
    sharded, _ = write_phantom("sharded", tiles=(3, 3), speckle_looks=4, sharded=True)
    names = "mosaics/section_01.ome.zarr"
    np.testing.assert_array_equal(voxels_of(plain / names), voxels_of(sharded / names))
    assert first_section(sharded).array.shards == (8, 96, 96)
    assert first_section(sharded).missing_chunks() == []


def test_the_same_seed_makes_the_same_subject(write_phantom, voxels_of):
    given = {"speckle_looks": 2, "position_error": 5.0}
    stores = [
        write_phantom(name, seed=seed, **given)[0] for name, seed in [("a", 3), ("b", 3), ("c", 4)]
    ]
    first, again, other = (voxels_of(s / "mosaics/section_01.ome.zarr") for s in stores)
    np.testing.assert_array_equal(first, again)
    assert (first != other).mean() > 0.9
    assert (stores[0] / "positions.csv").read_text() == (stores[1] / "positions.csv").read_text()


def test_the_number_of_workers_changes_nothing(tmp_path, voxels_of):
    parameters = PhantomParameters(sections=1, tiles=(2, 3), tile_shape=(4, 32, 32), seed=9)
    for workers in (1, 3):
        execution = ExecutionParameters(backend="cpu", workers=workers)
        make_phantom(tmp_path / str(workers), parameters, execution)
    one, three = (voxels_of(tmp_path / n / "mosaics/section_01.ome.zarr") for n in ("1", "3"))
    np.testing.assert_array_equal(one, three)


def test_integers_hold_the_rounded_grey_levels(write_phantom, voxels_of):
    exact, _ = write_phantom("exact")
    whole, _ = write_phantom("whole", dtype="uint16")
    names = "mosaics/section_01.ome.zarr"
    result = voxels_of(whole / names)
    assert result.dtype == "uint16"
    np.testing.assert_array_equal(result, np.rint(voxels_of(exact / names)))


def test_the_positions_hold_the_errors_of_the_stage(write_phantom):
    folder, parameters = write_phantom(tiles=(2, 2), position_error=20.0)
    with (folder / "positions.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    pitch = Subject.of(parameters).pitch
    errors = np.array(
        [
            (float(r["y"]) - int(r["row"]) * pitch[0], float(r["x"]) - int(r["column"]) * pitch[1])
            for r in rows
        ]
    )
    assert (errors[0] == 0).all()
    assert 0 < np.abs(errors[1:]).max() <= 20


def test_the_truth_is_tissue_and_bias_on_the_volumes_grid(write_phantom):
    folder, parameters = write_phantom(sections=2, bias=0.4, truth_resolution=15.0)
    subject = Subject.of(parameters)
    images = {name: open_image(folder / f"truth/{name}.ome.zarr") for name in ("tissue", "bias")}
    grid = images["tissue"].grid
    assert grid.spacing == (15.0, 15.0, 15.0)
    assert grid.shape[0] == 8
    z, y, x = ((np.arange(n) + 0.5) * 15.0 for n in grid.shape)
    expected = {
        "tissue": tissue(subject, z, y, x) * SCALE,
        "bias": bias_field(subject, 0.4, z, y, x),
    }
    for name, image in images.items():
        np.testing.assert_allclose(np.asarray(image.array[:]), expected[name], rtol=1e-5)
    noted = json.loads((folder / "truth/truth.json").read_text())
    assert PhantomParameters(**noted) == parameters


def test_existing_output_is_kept_unless_overwritten(write_phantom):
    folder, _ = write_phantom()
    with pytest.raises(OctaneError, match="--overwrite") as caught:
        write_phantom()
    assert str(folder) in str(caught.value)


def test_a_failure_leaves_nothing(tmp_path):
    parameters = PhantomParameters(sections=1, tile_shape=(64, 128, 128))
    with pytest.raises(OctaneError, match="--memory"):
        make_phantom(tmp_path / "p", parameters, ExecutionParameters(backend="cpu", memory="1MB"))
    assert list(tmp_path.iterdir()) == []
