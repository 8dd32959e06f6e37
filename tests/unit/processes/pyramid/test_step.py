"""PYRAMID: levels at the positions of their metadata, and a first level written only once."""

import errno
import json
import os

import numpy as np
import pytest
import SimpleITK as sitk
import yaozarrs
import zarr
from archives import pack

import octane
from octane.config.parameters import ExecutionParameters
from octane.core.arrays import as_dtype
from octane.core.errors import OctaneError
from octane.core.geometry import Grid, vector
from octane.processes.pyramid.parameters import PyramidParameters
from octane.processes.pyramid.step import build_pyramid
from octane.resample import stream
from octane.resample.levels import plan_levels
from octane.resample.resampler import resample
from octane.resample.stream import StreamPlan
from octane.store import writer
from octane.store.image import open_image
from octane.tools.materialize.step import verify

SHAPE = (34, 43, 52)


@pytest.fixture
def build(tmp_path, reading, execution):
    """Build into ``out/brain.ome.zarr``; returns the path and the metrics."""

    def run(source, *, execution=execution, **settings):
        destination = tmp_path / "out" / "brain.ome.zarr"
        parameters = PyramidParameters(**settings)
        return destination, build_pyramid(source, destination, parameters, reading, execution)

    return run


@pytest.fixture
def voxels(rng):
    return rng.gamma(2.0, 300.0, SHAPE).astype(np.float32)


@pytest.fixture
def volume(write_image, voxels):
    """A volume of 10 um voxels, as STACK writes it."""
    return write_image("v.ome.zarr", voxels, attributes={"kind": "volume", "step": "stack"})


class Levels:
    """A pyramid as another program sees it: its metadata and its arrays."""

    def __init__(self, path):
        self.attributes = json.loads((path / "zarr.json").read_text())["attributes"]
        (self.multiscale,) = self.attributes["ome"]["multiscales"]
        self.axes = self.multiscale["axes"]
        self.arrays, self.grids = [], []
        for dataset in self.multiscale["datasets"]:
            array = np.asarray(zarr.open_array(path / dataset["path"], mode="r")[:])
            scale, translation = dataset["coordinateTransformations"]
            nz, ny, nx = array.shape
            self.arrays.append(array)
            self.grids.append(
                Grid((nz, ny, nx), vector(*scale["scale"]), vector(*translation["translation"]))
            )


def test_the_levels_are_those_asked_for_and_valid(volume, build):
    path, metrics = build(volume, resolutions=(10, 25, 50, 100))
    levels = Levels(path)
    grid = open_image(volume).grid
    assert levels.grids == [g for g, _ in plan_levels(grid, (10, 25, 50, 100))]
    assert [g.spacing for g in levels.grids] == [(t, t, t) for t in (10.0, 25.0, 50.0, 100.0)]
    assert [g.shape for g in levels.grids] == [(34, 43, 52), (14, 17, 21), (7, 9, 10), (3, 4, 5)]
    assert [level["voxel_size"][0] for level in metrics.figures["levels"]] == [10, 25, 50, 100]
    assert all(level["bytes"] > 0 for level in metrics.figures["levels"])
    yaozarrs.validate_zarr_store(path)
    assert [tuple(a.values()) for a in levels.axes] == [
        (name, "space", "micrometer") for name in "zyx"
    ]
    assert levels.attributes["octane"] == {"kind": "volume", "step": "pyramid"}
    assert levels.multiscale["type"] == "gaussian"
    assert levels.multiscale["metadata"]["version"] == octane.__version__
    assert levels.attributes["ome"]["omero"]["channels"][0]["label"] == "intensity"
    assert levels.attributes["ome"]["omero"]["rdefs"]["defaultZ"] == 17
    assert metrics.previews["slice_z"].shape == (43, 52)
    assert metrics.previews["slice_x"].shape == (34, 43)
    assert metrics.previews["slice_spacing"].tolist() == [10.0] * 3


@pytest.mark.parametrize("dtype", ["float32", "uint16"])
def test_a_level_is_made_from_the_one_before(write_image, voxels, build, monkeypatch, dtype):
    monkeypatch.setattr(writer, "CHUNK", 8)
    monkeypatch.setattr(writer, "SHARD", 16)
    expected = voxels.astype(dtype)
    source = write_image("v.ome.zarr", expected)
    levels = Levels(build(source, resolutions=(10, 25, 60))[0])
    planned = plan_levels(open_image(source).grid, (10, 25, 60))
    for array, (_, operators) in zip(levels.arrays[1:], planned[1:], strict=True):
        expected = as_dtype(resample(expected, operators), dtype)
        assert array.dtype == dtype
        np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize("dtype", ["float32", "uint64"])
@pytest.mark.parametrize("resolutions", [(10, 25, 60), (20, 50)])
def test_levels_of_values_that_must_not_be_averaged_are_the_nearest_voxels(
    write_image, rng, build, monkeypatch, dtype, resolutions
):
    monkeypatch.setattr(writer, "CHUNK", 8)
    monkeypatch.setattr(writer, "SHARD", 16)
    voxels = rng.integers(0, 2**64, SHAPE, np.uint64)
    if dtype == "float32":
        # Any bits: NaN, infinities and -0.0 among them.
        voxels = voxels.astype(np.uint32).view(np.float32)
    noted = {"kind": "volume", "step": "stack", "channel": "axis", "channel_kind": "nearest"}
    source = write_image("v.ome.zarr", voxels, attributes=noted)
    levels = Levels(build(source, resolutions=resolutions)[0])
    planned = plan_levels(open_image(source).grid, resolutions, averaged=False)
    assert levels.grids == [grid for grid, _ in planned]
    for array, (grid, operators) in zip(levels.arrays, planned, strict=True):
        expected = voxels[np.ix_(*(operator.start for operator in operators))]
        assert array.tobytes() == expected.tobytes()
        # However coarse the level: at most half a voxel of the volume off, on any axis.
        for axis, operator in enumerate(operators):
            fine = open_image(source).grid.spacing[axis]
            places = (np.arange(grid.shape[axis]) + 0.5) * grid.spacing[axis] / fine
            inside = places <= SHAPE[axis]
            assert (np.abs(operator.start + 0.5 - places)[inside] <= 0.5 + 1e-9).all()
    assert levels.multiscale["type"] == "nearest"
    assert "nearest" in levels.multiscale["metadata"]["description"]
    assert levels.attributes["octane"]["channel_kind"] == "nearest"


@pytest.mark.parametrize("codec", ["zstd", "none"])
def test_a_first_level_that_equals_its_input_is_copied(
    write_image, voxels, build, monkeypatch, codec
):
    voxels[0, 0, :3] = -0.0, np.nan, np.inf
    source, sources = write_image("v.ome.zarr", voxels, codec=codec), []

    def planned(before, *more):
        sources.append(before.path)
        return StreamPlan(before, *more)

    monkeypatch.setattr("octane.processes.pyramid.step.StreamPlan", planned)
    built, _ = build(source, resolutions=(10, 25, 60))
    assert Levels(built).arrays[0][:].tobytes() == voxels.tobytes()
    # The second level is made from the input if that needs no decoding.
    second = source if codec == "none" else built
    assert sources == [source, second, built]
    monkeypatch.setattr(stream, "make_resampler", None)
    over = ExecutionParameters(backend="cpu", overwrite=True)
    alone, _ = build(source, resolutions=(10,), execution=over)
    assert Levels(alone).arrays[0][:].tobytes() == voxels.tobytes()


@pytest.mark.parametrize("n", [403, 405, 407])
def test_the_levels_lie_where_their_metadata_says(write_image, build, n):
    # A ramp whose values are positions: this must hold at every level.
    ramp = np.broadcast_to(700 + 10.0 * np.arange(n) + 5, (8, 6, n)).astype(np.float32)
    levels = Levels(build(write_image("v.ome.zarr", ramp, edge=(0, 0, 700)))[0])
    assert len(levels.arrays) == 4
    for array, grid in zip(levels.arrays, levels.grids, strict=True):
        x = grid.origin[2] + np.arange(array.shape[2]) * grid.spacing[2]
        np.testing.assert_allclose(array[0, 0, 3:-3], x[3:-3], rtol=1e-6)


@pytest.mark.parametrize("spacing", [(10.0, 10.0, 10.0), (3.5, 4.0, 4.0), (9.0, 2.9, 10.0)])
@pytest.mark.parametrize("resolutions", [None, (10, 25, 50, 100), (24, 31)])
@pytest.mark.parametrize("shape", [(1, 7, 300), (4, 43, 52), (35, 101, 257)])
def test_no_level_overhangs_the_volume(spacing, resolutions, shape):
    volume = Grid(shape, spacing, (1000.0, -3.0, 0.0))
    (first, _), *others = plan_levels(volume, resolutions)
    assert first.shape == shape or resolutions
    for level, operators in others:
        assert level.edge == pytest.approx(first.edge)
        assert [operator.size for operator in operators] == list(level.shape)
        for grid in (first, level):
            axes = (volume.edge, volume.extent, grid.edge, grid.extent, grid.spacing)
            for edge, extent, own, length, step in zip(*axes, strict=True):
                assert abs(own - edge) <= step / 4 + 1e-9
                assert abs(own + length - edge - extent) <= step / 2 + 1e-9
        assert all(a <= b for a, b in zip(first.spacing, level.spacing, strict=True))
        if resolutions is None:
            moved = np.subtract(level.origin, volume.origin)
            assert moved == pytest.approx(np.subtract(level.spacing, volume.spacing) / 2)


@pytest.mark.parametrize(
    ("values", "window"),
    [
        (np.arange(1000.0), (0, 5, 994, 999)),
        # More chunks than are read: the first, the last, and those between.
        (np.arange(1e5), (0, 134, 99864, 99999)),
        (np.where(np.arange(1000) < 997, 7, 5e4), (7, 7, 5e4, 5e4)),
        (np.full(1000, -3), (-3, -3, 7, 7)),
        (np.array([np.nan, np.inf, 1e-6]), (1e-6, 1e-6, 1, 1)),
        (np.array([np.nan]), (0, 0, 1, 1)),
        (np.array([3 + 4j, 0]), (0, 0.025, 4.975, 5)),
    ],
)
def test_the_display_window_is_robust(write_image, values, window):
    dtype = "c8" if values.dtype.kind == "c" else "f4"
    voxels = values.astype(dtype).reshape(1, 1, -1)
    path = write_image("v.ome.zarr", voxels, chunks=(1, 1, min(1000, values.size)))
    (channel,) = Levels(path).attributes["ome"]["omero"]["channels"]
    found = [channel["window"][name] for name in ("min", "start", "end", "max")]
    assert found == pytest.approx(window, rel=1e-2)


def chunk_files(path):
    return sorted(
        p.relative_to(path) for p in (path / "0").rglob("*") if p.is_file() and p.suffix != ".json"
    )


def is_linked(source, destination):
    assert chunk_files(source) == chunk_files(destination)
    shared = {(source / f).samefile(destination / f) for f in chunk_files(source)}
    assert len(shared) == 1
    return shared.pop()


@pytest.mark.parametrize("step", ["stack", "n4"])
@pytest.mark.parametrize("resolutions", [None, (10, 25)])
def test_a_first_level_of_octanes_own_is_linked(write_image, voxels, build, step, resolutions):
    section = {"name": "a", "number": 3, "start": 0, "stop": 34, "top": -5.0, "shift": [1.0, -2.5]}
    source = write_image("v.ome.zarr", voxels, attributes={"step": step, "sections": [section]})
    path, metrics = build(source, resolutions=resolutions)
    assert open_image(path).attributes["sections"] == [section]
    assert is_linked(source, path)
    assert metrics.bytes["linked"] > 0
    assert verify(path) == 1
    source.rename(source.with_name("gone"))
    np.testing.assert_array_equal(open_image(path).array.opened[:], voxels)
    assert open_image(path).missing_chunks() == []


@pytest.mark.parametrize(
    ("changed", "settings"),
    [
        # Another program that wrote it may write into it again.
        ({"attributes": {}}, {}),
        ({"chunks": (34, 20, 20)}, {}),
        ({"codec": "blosc-lz4"}, {}),
        ({}, {"codec": "none"}),
        ({}, {"resolutions": (20, 40)}),
        ({"spacing": (5.0, 10.0, 10.0)}, {"resolutions": (10, 20)}),
    ],
    ids=["data of others", "chunks", "codec of the source", "codec", "resolution", "spacing"],
)
def test_what_differs_is_written_anew(write_image, voxels, build, changed, settings):
    source = write_image("v.ome.zarr", voxels, **{"attributes": {"step": "n4"}, **changed})
    path, metrics = build(source, **settings)
    assert "linked" not in metrics.bytes
    if chunk_files(source) == chunk_files(path):
        assert not is_linked(source, path)
    assert open_image(path).missing_chunks() == []
    assert open_image(source).missing_chunks() == []


def test_what_is_packed_is_written_anew(write_image, voxels, build):
    packed = pack(write_image("v.ome.zarr", voxels, attributes={"step": "n4"}))
    assert verify(packed) == 1
    path, metrics = build(packed)
    assert "linked" not in metrics.bytes
    np.testing.assert_array_equal(open_image(path).array.opened[:], voxels)


@pytest.fixture
def no_links(monkeypatch):
    """A file system that answers a hard link with an error; zarr's own are left alone."""

    def answer(code):
        def link(*_):
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(os, "link", link)

    return answer


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EPERM, errno.ENOTSUP])
def test_across_file_systems_it_is_copied(volume, voxels, build, no_links, code):
    no_links(code)
    path, metrics = build(volume)
    assert "linked" not in metrics.bytes
    assert not is_linked(volume, path)
    np.testing.assert_array_equal(open_image(path).array.opened[:], voxels)


def test_a_full_disk_is_no_reason_to_copy(volume, build, no_links, tmp_path):
    no_links(errno.ENOSPC)
    with pytest.raises((OSError, OctaneError)):
        build(volume)
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz"])
def test_a_file_of_another_format_becomes_a_pyramid(
    voxels, build, tmp_path, suffix, files_read_once
):
    image = sitk.GetImageFromArray(voxels)
    image.SetSpacing((0.01, 0.01, 0.01))
    image.SetDirection((0.8, -0.6, 0, 0.6, 0.8, 0, 0, 0, 1))
    sitk.WriteImage(image, tmp_path / f"v{suffix}")
    path, metrics = build(tmp_path / f"v{suffix}", resolutions=(10, 25))
    levels = Levels(path)
    assert metrics.warnings[0].startswith(f"v{suffix} has axes oblique")
    assert files_read_once == [f"v{suffix}"]
    # NIfTI's float32 spacing is not exactly 10 um, but the voxels must be kept.
    np.testing.assert_array_equal(levels.arrays[0], voxels)
    assert levels.grids[0].spacing == (10.0, 10.0, 10.0)
    assert levels.arrays[1].shape == (14, 17, 21)


def test_the_pyramid_is_on_the_disk_at_the_end(volume, build, monkeypatch):
    brought = []
    monkeypatch.setattr("octane.processes.pyramid.step.bring_to_disk", brought.append)
    path, _ = build(volume)
    assert brought == [path]
