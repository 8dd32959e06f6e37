"""Survey of an input from its metadata; data that do not belong together are refused."""

import numpy as np
import pytest
import SimpleITK as sitk

from octane.core.errors import OctaneError
from octane.steps.survey import cut_of, layout_of, overlap_of, survey, thickness_of

VOXELS = np.ones((4, 20, 30), np.float32)
TILE = (4, 10, 10)


def test_mosaics(write_mosaic, tmp_path):
    for number in (1, 2, 5):
        write_mosaic(
            f"data/section_{number:02d}.ome.zarr",
            VOXELS,
            TILE,
            (3.5, 4.0, 4.0),
            pitch=(32.0, 36.0),
            section={"number": number, "thickness": 40.0},
        )
    found = survey(tmp_path / "data")
    assert (found.kind, found.missing, found.positions) == ("mosaic", [3, 4], None)
    assert [volume.grid.spacing for volume in found.volumes] == [(3.5, 4.0, 4.0)] * 3
    assert found.decoded == 3 * VOXELS.nbytes
    first = found.volumes[0]
    assert (cut_of(first, "mosaic"), thickness_of(first)) == ("2 x 3", 40.0)
    assert overlap_of(first) == pytest.approx((0.2, 0.1))
    assert layout_of(first) == "chunks of 4 x 10 x 10, zstd"
    files = [p for p in (tmp_path / "data").rglob("*") if p.is_file()]
    assert found.on_disk == sum(p.stat().st_size for p in files)


def test_a_store_of_others(write_foreign, tmp_path):
    path = write_foreign("raw_7.zarr", VOXELS.astype(np.uint16), chunks=TILE)
    found = survey(path)
    (one,) = found.volumes
    assert (found.kind, overlap_of(one), thickness_of(one)) == ("mosaic", None, None)
    assert layout_of(one).startswith("chunks of 4 x 10 x 10, ")


@pytest.mark.parametrize("place", ["data", "."])
def test_a_table_of_positions_beside_the_data(write_mosaic, tmp_path, place):
    write_mosaic("data/section_01.ome.zarr", VOXELS, TILE)
    table = tmp_path / place / "positions.csv"
    table.write_text("\ufeffsection,row,column,y,x\n", encoding="utf-8")
    assert survey(tmp_path / "data").positions == table
    table.write_text("name,age\n", encoding="utf-8")
    assert survey(tmp_path / "data").positions is None


def test_a_file(tmp_path):
    image = sitk.GetImageFromArray(VOXELS)
    image.SetSpacing((0.01, 0.01, 0.02))
    sitk.WriteImage(image, str(tmp_path / "brain.nii"))
    found = survey(tmp_path / "brain.nii")
    (one,) = found.volumes
    assert (found.kind, layout_of(one), cut_of(one, "volume")) == (
        "volume", "read whole", "4 x 20 x 30",
    )  # fmt: skip
    assert one.grid.spacing == pytest.approx((20.0, 10.0, 10.0))
    assert found.on_disk == (tmp_path / "brain.nii").stat().st_size


def test_voxels_of_several_sizes_are_refused(write_mosaic, tmp_path):
    for number, size in ((1, 4.0), (2, 4.0), (3, 5.0)):
        write_mosaic(f"data/section_{number}.ome.zarr", VOXELS, TILE, (size, 4.0, 4.0))
    with pytest.raises(OctaneError) as caught:
        survey(tmp_path / "data")
    assert str(caught.value) == (
        f"{tmp_path}/data/section_3.ome.zarr has voxels of 5 x 4 x 4 micrometre and most of its "
        "neighbours of 4 x 4 x 4; correct its metadata, or separate them."
    )


def test_every_store_that_cannot_be_used_is_named(write_foreign, tmp_path):
    for number in (1, 2):
        write_foreign(f"data/section_{number}.zarr", VOXELS, chunks=TILE, unit=None)
    with pytest.raises(OctaneError) as caught:
        survey(tmp_path / "data")
    lines = str(caught.value).splitlines()
    assert ["section_1.zarr states no unit" in lines[0], "section_2.zarr" in lines[1]] == [True] * 2
    first = survey(tmp_path / "data", input_unit="millimeter").volumes[0]
    assert first.grid.spacing == (1e4, 1e4, 1e4)


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(OctaneError, match="holds no OME-Zarr store"):
        survey(tmp_path)
