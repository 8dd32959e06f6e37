"""Volumes in any format: lengths in micrometres, axes z, y, x."""

import errno
import os
import resource
from pathlib import Path

import numpy as np
import pytest
import SimpleITK as sitk
from refusals import refused

from octane.config.parameters import InputParameters
from octane.core.geometry import blocks
from octane.store.formats.itk_files import FileVolume
from octane.store.image import open_image
from octane.store.volumes import create_volume, open_volume, require_holds

SUFFIXES = [".nii", ".nii.gz", ".mha", ".nrrd"]


@pytest.fixture
def voxels(rng):
    return rng.random((7, 20, 33), np.float32)


def whole(shape):
    return tuple(slice(0, n) for n in shape)


def test_a_voxel_size_that_is_not_the_files_own_is_refused(write_file, write_image, voxels):
    path = write_file("a.nii", voxels)
    reading = InputParameters(voxel_size=(40.0, 30.0, 25.0))
    assert open_volume(path, reading).grid.spacing == pytest.approx((40.0, 30.0, 25.0))
    with refused(path, "40 x 30 x 25", "25 x 30 x 40"):
        open_volume(path, InputParameters(voxel_size=(25.0, 30.0, 40.0)))
    with refused("a.ome.zarr", "10 x 10 x 10", "40 x 30 x 25"):
        open_image(write_image("a.ome.zarr", voxels), reading)


FLAT = sitk.GetImageFromArray(np.zeros((4, 5), np.float32))
COLOURS = sitk.GetImageFromArray(np.zeros((3, 4, 5, 3), np.float32), isVector=True)


@pytest.mark.parametrize(
    ("name", "content", "names"),
    [
        ("a.nii", None, ()),
        ("a", None, ()),
        ("a.png", b"", (".ome.zarr", ".nii")),
        ("a.nii", b"not an image", ("ImageIO",)),
        ("a.tif", b"not an image", ("TIFF",)),
        ("a.mha", FLAT, ("2 dimensions", "1 components")),
        ("a.mha", COLOURS, ("3 dimensions", "3 components")),
    ],
)
def test_anything_but_a_volume_is_refused(tmp_path, name, content, names):
    path = tmp_path / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        sitk.WriteImage(content, path)
    with refused(path, *names):
        open_volume(path)


@pytest.fixture(params=[".ome.zarr", ".nii.gz"])
def like(request, write_image, write_file, voxels):
    """A volume from an OME-Zarr store or a file."""
    if request.param == ".nii.gz":
        return open_volume(write_file("a.nii.gz", voxels))
    geometry = {"spacing": (3.5, 2.0, 1.0), "edge": (10.0, 20.0, 30.0)}
    return open_volume(write_image("a.ome.zarr", voxels, **geometry, attributes={"k": 1}))


@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", ["a.nii", "a.tif"])
def test_an_unreadable_file_is_not_taken_for_a_bad_image(tmp_path, denied, name):
    path = tmp_path / name
    os.mkfifo(path)
    with refused("FIFO"):
        open_volume(path)
    path.unlink()
    path.touch()
    with denied(os, "open", name), refused(path, os.strerror(errno.EACCES)):
        open_volume(path)


@pytest.mark.parametrize("suffix", [*SUFFIXES, ".ome.tif", ".ome.zarr"])
def test_a_written_volume_is_on_the_grid_of_its_model(like, voxels, tmp_path, suffix):
    destination = tmp_path / f"b{suffix}"
    with create_volume(destination, like, "uint16", attributes={"step": "n4"}) as (writer, size):
        for region in blocks(like.grid.shape, size):
            writer[region] = np.rint(voxels[region] * 1000).astype(np.uint16)
        assert not destination.exists()
    written = open_volume(destination)
    assert written.dtype == np.uint16
    assert written.grid.shape == like.grid.shape
    assert written.grid.spacing == pytest.approx(like.grid.spacing, rel=1e-6)
    if suffix != ".ome.tif":  # which does not store the origin
        assert written.grid.origin == pytest.approx(like.grid.origin, rel=1e-6)
    np.testing.assert_array_equal(written.read(whole(voxels.shape)), np.rint(voxels * 1000))
    if isinstance(like, FileVolume) and isinstance(written, FileVolume):
        assert written.frame.GetDirection() == like.frame.GetDirection()
    if suffix == ".ome.zarr":
        assert written.attributes == {**like.attributes, "kind": "volume", "step": "n4"}


@pytest.mark.parametrize(("depth", "planes"), [(1, 16), (40, 40)])
def test_blocks_of_a_file_are_planes_that_are_decoded_at_once(write_image, tmp_path, depth, planes):
    voxels = np.zeros((100, 8, 8), np.float32)
    like = open_volume(write_image("a.ome.zarr", voxels, chunks=(depth, 8, 8)))
    with create_volume(tmp_path / "b.mha", like, "f4") as (_, size):
        assert size == (planes, 8, 8)


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz"])
def test_a_truncated_file_is_refused_after_writing(
    write_image, voxels, tmp_path, monkeypatch, suffix
):
    like = open_volume(write_image("a.ome.zarr", voxels))
    written = sitk.WriteImage

    def cut(image, name):
        # As ITK leaves a NIfTI on a full disk: it prints a message but does not raise.
        written(image, name)
        with open(name, "r+b") as stream:  # noqa: PTH123
            stream.truncate(Path(name).stat().st_size // 2)

    monkeypatch.setattr(sitk, "WriteImage", cut)
    destination = tmp_path / f"b{suffix}"
    with (
        refused(destination),
        create_volume(destination, like, "f4") as (writer, _size),
    ):
        writer[whole(voxels.shape)] = voxels
    assert not list(tmp_path.glob("*b.nii*"))


@pytest.mark.parametrize("suffix", [*SUFFIXES, ".tif"])
def test_a_limit_of_file_sizes_is_named_by_its_number(write_image, voxels, tmp_path, suffix):
    like = open_volume(write_image("a.ome.zarr", voxels))
    destination = tmp_path / f"b{suffix}"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))
    try:
        with (
            pytest.raises(OSError, match=suffix) as caught,
            create_volume(destination, like, "f4") as (writer, _size),
        ):
            writer[whole(voxels.shape)] = voxels
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.errno == errno.EFBIG
    assert caught.value.filename == str(destination)
    assert not list(tmp_path.glob(f"*b{suffix}"))


@pytest.mark.parametrize(
    ("suffix", "dtype", "names"),
    [
        (".nii", "f2", ("float16", "--n4_dtype")),
        (".tif", "i8", ("int64", "--n4_dtype")),
        (".png", "f4", (".ome.zarr", ".nii")),
    ],
)
def test_an_unsupported_output_is_refused_before_the_work(tmp_path, suffix, dtype, names):
    with refused(f"b{suffix}", *names):
        require_holds(tmp_path / f"b{suffix}", dtype)
    require_holds(tmp_path / f"b{suffix}.zarr", dtype)
    assert list(tmp_path.iterdir()) == []


def test_a_store_in_one_file_is_refused_as_an_output(tmp_path):
    with refused("b.ozx", ".ome.zarr"):
        require_holds(tmp_path / "b.ozx", np.uint16)
