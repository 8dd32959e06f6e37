"""RESAMPLE: each tile separately, or an entire volume; grid, metadata and refusals."""

import itertools

import numpy as np
import pytest
from numcodecs import GZip
from refusals import refused
from zarr.codecs import GzipCodec

from octane.config.parameters import ExecutionParameters, InputParameters
from octane.core.arrays import as_dtype
from octane.core.geometry import Grid
from octane.gpu.run import Share
from octane.layout.mosaic import MosaicGrid
from octane.processes.resample import step as step_resample
from octane.processes.resample.parameters import ResampleParameters
from octane.processes.resample.step import resample_image
from octane.processes.stack.parameters import StackParameters
from octane.processes.stack.step import stack_sections
from octane.processes.stitch.parameters import StitchParameters
from octane.processes.stitch.step import stitch_section
from octane.resample.operator import resampled
from octane.resample.resampler import resample
from octane.store.image import open_image
from octane.store.reader import DirectReader


@pytest.fixture
def run(tmp_path, reading, execution):
    """Resample into ``out.ome.zarr``; returns the image and the metrics."""

    def resample_into(source, resolution, *, reading=reading, execution=execution, **settings):
        parameters = ResampleParameters(resolution=resolution, **settings)
        destination = tmp_path / "out.ome.zarr"
        metrics = resample_image(source, destination, parameters, reading, execution)
        return open_image(destination), metrics

    return resample_into


AGAIN = ExecutionParameters(backend="cpu", workers=3, overwrite=True)


@pytest.fixture
def ones(write_mosaic):
    """Two by two tiles of 20 x 20 voxels of 10 um, of 1."""
    return write_mosaic("a.zarr", np.ones((4, 40, 40), np.float32), (4, 20, 20))


def noise(rng, shape, dtype="float32"):
    values = rng.gamma(2.0, 15.0, shape)
    if dtype == "complex64":
        values = values * np.exp(2j * np.pi * rng.random(shape))
    return values.astype(dtype)


@pytest.mark.parametrize(
    ("dtype", "made"),
    [
        *((own, "input") for own in ("float32", "float64", "complex64")),
        ("float32", "uint8"),
        *(pytest.param(t, "input", marks=pytest.mark.soak) for t in ("uint8", "int16", "int32")),
    ],
)
def test_each_tile_is_resampled_alone(rng, write_mosaic, run, dtype, made):
    spacing, tile = (3.5, 4.0, 4.0), (12, 25, 30)
    voxels = noise(rng, (12, 70, 80), dtype)
    image, metrics = run(write_mosaic("a.zarr", voxels, tile, spacing), 10.0, dtype=made)
    assert metrics.bytes["read"] == voxels.nbytes
    made = dtype if made == "input" else made
    for y, x in itertools.product(range(0, 70, 25), range(0, 80, 30)):
        own = voxels[:, y : y + 25, x : x + 30]
        _, operators = resampled(Grid(own.shape, spacing), (10.0, 10.0, 10.0))
        expected = as_dtype(resample(own, operators), made)
        corner = (0, 10 * (y // 25), 12 * (x // 30))
        here = tuple(slice(a, a + n) for a, n in zip(corner, expected.shape, strict=True))
        np.testing.assert_array_equal(image.array.opened[here], expected)
    assert (image.dtype, image.grid.shape) == (made, (4, 28, 32))


@pytest.mark.parametrize("layout", ["mosaic", "volume"])
@pytest.mark.parametrize("dtype", ["float32", "uint64"])
@pytest.mark.parametrize("stored", ["octane's", "through zarr"])
def test_values_that_must_not_be_averaged_are_taken_from_the_nearest_voxel(
    rng, write_mosaic, write_foreign, run, dtype, layout, stored
):
    spacing, tile = (3.5, 4.0, 4.0), (12, 25, 30)
    voxels = rng.integers(0, 2**64, (12, 70, 80), np.uint64)
    if dtype == "float32":
        voxels = noise(rng, voxels.shape)
        voxels[:, ::7, ::5] = np.nan
        voxels[:, ::7, 1::5] = -0.0
    if stored == "octane's":
        source = write_mosaic("a.zarr", voxels, tile, spacing)
    else:
        size = [{"type": "scale", "scale": spacing}]
        source = write_foreign("a.zarr", voxels, transforms=size, chunks=tile, compressors=GZip())
    reading = InputParameters(channel_kind=("0=nearest",))
    image, metrics = run(source, 10.0, layout=layout, reading=reading)
    parts = list(itertools.product(range(0, 70, 25), range(0, 80, 30)))
    for y, x in parts if layout == "mosaic" else [(0, 0)]:
        own = voxels[:, y : y + 25, x : x + 30] if layout == "mosaic" else voxels
        _, operators = resampled(Grid(own.shape, spacing), (10.0, 10.0, 10.0), averaged=False)
        expected = own[np.ix_(*(operator.start for operator in operators))]
        corner = (0, 10 * (y // 25), 12 * (x // 30))
        here = tuple(slice(a, a + n) for a, n in zip(corner, expected.shape, strict=True))
        assert np.asarray(image.array.opened[here]).tobytes() == expected.tobytes()
    assert image.attributes["channel_kind"] == "nearest"
    assert metrics.record()["device"] == {"backend": "cpu"}
    # The next step reads a store that says so itself.
    again, _ = run(image.path, 25.0, layout=layout, execution=AGAIN)
    assert again.attributes["channel_kind"] == "nearest"
    values, bits = np.asarray(again.array.opened[:]), f"u{voxels.itemsize}"
    assert np.isin(values.view(bits), voxels.view(bits)).all()


@pytest.mark.parametrize("target", [(10.0,) * 3, (11.7,) * 3, (25.0, 10.0, 7.3)])
def test_the_spacing_is_the_target_and_tiles_keep_their_size_and_pitch(write_mosaic, run, target):
    voxels, section = np.ones((12, 70, 80), np.float32), {"number": 4, "thickness": 30.0}
    source = write_mosaic(
        "a.zarr", voxels, (12, 25, 30), (3.5, 4.0, 4.0), pitch=(80.0, 90.0), section=section
    )
    image, metrics = run(source, target)
    assert image.grid.spacing == target == tuple(metrics.figures["voxel_size"])
    before, after = MosaicGrid.of(open_image(source)), MosaicGrid.of(image)
    for name in ("edge", "tile_extent", "extent", "pitch", "tiles"):
        assert getattr(after, name) == getattr(before, name), name
    assert (image.attributes["kind"], image.attributes["section"]) == ("mosaic", section)


def test_the_first_voxel_lies_where_the_metadata_says(write_mosaic, run):
    # A ramp whose values are positions: this must hold after resampling.
    position = (np.arange(61) + 0.5) * 4.0
    voxels = np.broadcast_to(position, (3, 4, 61)).astype(np.float32).copy()
    image, _ = run(write_mosaic("a.zarr", voxels, (3, 4, 61), (10.0, 4.0, 4.0)), (10.0, 10.0, 10.0))
    x = image.grid.origin[2] + np.arange(image.grid.shape[2]) * 10.0
    np.testing.assert_allclose(image.array.opened[0, 0, 3:-3], x[3:-3], rtol=1e-6)


@pytest.mark.parametrize("stored", ["shards", "only zarr reads it", "a channel", "only zarr, it"])
def test_a_mosaic_stored_otherwise_gives_the_same(
    rng, write_mosaic, write_image, write_foreign, run, reading, stored
):
    voxels, chunks = noise(rng, (6, 35, 60)), (6, 10, 20)
    expected = run(write_mosaic("a.zarr", voxels, chunks), 20.0)[0].array.opened[:]
    if stored == "shards":
        other = write_image("b.zarr", voxels, chunks=chunks, shards=(6, 20, 40))
    elif stored != "only zarr reads it":
        both = np.stack([voxels * 0, voxels])[None]
        codec = {"compressors": GzipCodec()} if stored == "only zarr, it" else {}
        given = {"version": "0.5", "axes": "tczyx", "chunks": (1, 2, *chunks), **codec}
        other = write_foreign("b.zarr", both, **given)
        reading = InputParameters(channel="1")
    else:
        other = write_foreign("b.zarr", voxels, chunks=chunks, compressors=GZip())
        assert open_image(other).reader is None
    result = run(other, 20.0, reading=reading, execution=AGAIN)[0]
    np.testing.assert_array_equal(result.array.opened[:], expected)
    assert result.missing_chunks() == []


def test_a_volume_is_continuous_across_its_chunks(rng, write_image, run):
    voxels = noise(rng, (30, 41, 52))
    noted = [dict(name=n, number=1, start=a, stop=b) for n, a, b in (("a", 0, 12), ("b", 12, 30))]
    noted[1]["missing"] = True
    given = {"chunks": (10, 20, 20), "attributes": {"sections": noted}}
    source = write_image("a.zarr", voxels, (3.5, 4.0, 4.0), **given)
    image, metrics = run(source, 10.0, layout="volume")
    grid, operators = resampled(open_image(source).grid, (10.0, 10.0, 10.0))
    np.testing.assert_array_equal(image.array.opened[:], resample(voxels, operators))
    assert image.grid == grid
    assert image.attributes["kind"] == "volume"
    np.testing.assert_array_equal(metrics.previews["slice_y"], image.array.opened[:, 8])
    # The middle plane is of the missing section.
    np.testing.assert_array_equal(metrics.previews["slice_z"], image.array.opened[3])
    assert metrics.previews["slice_spacing"].tolist() == [10.0] * 3
    assert [(s["start"], s["stop"]) for s in image.attributes["sections"]] == [(0, 4), (4, 11)]


@pytest.mark.parametrize("layout", ["mosaic", "volume"])
def test_a_finer_target_is_made_where_allowed(ones, run, layout):
    image, _ = run(ones, (10.0, 10.0, 5.0), layout=layout, allow_upsampling=True)
    assert image.grid.shape == (4, 40, 80)


def test_a_missing_tile_is_filled_and_a_missing_unit_taken_where_given(write_foreign, run):
    voxels = np.ones((4, 40, 40), np.float32)
    source = write_foreign("a.zarr", voxels, unit=None, chunks=(4, 20, 20))
    (source / "0/0.1.0").unlink()
    reading = InputParameters(missing_chunks="fill", input_unit="micrometer")
    image, _ = run(source, 20.0, reading=reading)
    assert np.all(image.array.opened[:, 10:, :10] == 0)
    np.testing.assert_allclose(image.array.opened[:, :10], 1, rtol=1e-6)


def test_a_unit_that_is_overruled_is_kept_in_the_record_of_each_step(
    write_foreign, run, execution, tmp_path
):
    voxels = np.ones((4, 40, 40), np.float32)
    source = write_foreign("section_1.zarr", voxels, unit="millimeter", chunks=(4, 20, 20))
    reading = InputParameters(input_unit="micrometer")
    given = (reading, execution)
    image, resampled = run(source, 20.0, reading=reading)
    assert image.grid.spacing == (20, 20, 20)
    stitched = stitch_section(source, tmp_path / "a.zarr", StitchParameters(overlap=(0, 0)), *given)
    stacked = stack_sections([source], tmp_path / "b.zarr", StackParameters(), *given)
    words = "The store states lengths in millimeter; they are read in micrometer, as "
    words += "--input_unit says."
    for made in (resampled, stitched, stacked):
        assert made.figures["remarks"] == [words]
        assert words in made.warnings


def test_a_plain_volume_is_no_mosaic(write_file, run, files_read_once):
    source = write_file("a.mha", np.ones((4, 8, 8), np.float32))
    with refused("--layout"):
        run(source, 80.0)
    assert files_read_once == []
    image, _ = run(source, 80.0, layout="volume")
    assert image.grid.shape == (2, 3, 3)
    assert files_read_once == ["a.mha"]


def test_a_scale_stands_for_a_resolution_and_what_exists_is_not_overwritten_unasked(
    rng, write_mosaic, run
):
    source = write_mosaic("a.zarr", noise(rng, (8, 40, 60)), (8, 20, 20), (5.0, 4.0, 3.0))
    expected, _ = run(source, (10.0, 8.0, 12.0))
    voxels = expected.array.opened[:]
    with refused("--overwrite"):
        run(source, None, scale=0.5)
    image, _ = run(source, None, scale=(0.5, 0.5, 0.25), execution=AGAIN)
    assert image.grid == expected.grid
    np.testing.assert_array_equal(image.array.opened[:], voxels)


def test_tiles_are_fetched_once_before_they_are_read(write_mosaic, run, monkeypatch):
    source = write_mosaic("a.zarr", np.ones((2, 20, 40), np.float32), (2, 10, 10))
    fetched, seen, read = [], [], DirectReader.stream
    monkeypatch.setattr(DirectReader, "fetch", lambda _, place: fetched.append(place[1:]))
    monkeypatch.setattr(
        DirectReader, "stream", lambda self, place: seen.append(len(fetched)) or read(self, place)
    )
    run(source, 20.0, execution=ExecutionParameters(backend="cpu", workers=1))
    assert fetched == list(itertools.product(range(2), range(4)))
    assert seen[0] == 2


MOSAIC = (
    *("2 x 2 tiles of 4 x 20 x 20", "10 x 10 x 10 um", "a few planes at a time"),
    *("tiles of 2 x 10 x 10 voxels", "2 worker(s)", "MB of memory"),
)


@pytest.mark.parametrize(
    ("layout", "stored", "words"),
    [
        ("mosaic", {"compressors": None}, MOSAIC),
        ("volume", {}, ["in 1 blocks, 2 x 20 x 20 float32"]),
        ("mosaic", {"compressors": GZip()}, ["read through zarr, because"]),
    ],
)
def test_a_dry_run_tells_the_plan_and_makes_nothing(
    write_foreign, reading, tmp_path, capsys, layout, stored, words
):
    source = write_foreign("a.zarr", np.ones((4, 40, 40), np.float32), chunks=(4, 20, 20), **stored)
    before = sorted(tmp_path.rglob("*"))
    parameters = ResampleParameters(resolution=(20.0, 20.0, 20.0), layout=layout)
    execution = ExecutionParameters(backend="cpu", workers=2)
    out = tmp_path / "out.ome.zarr"
    resample_image(source, out, parameters, reading, execution, dry_run=True)
    assert sorted(tmp_path.rglob("*")) == before
    told = capsys.readouterr().out
    assert all(part in told for part in words), told


@pytest.mark.parametrize(
    ("backend", "codec", "workers", "asked"),
    [
        ("auto", "zstd", 1, "cpu"),
        ("auto", "none", 1, "auto"),
        ("auto", "none", 16, "cpu"),
        ("gpu", "zstd", 1, "gpu"),
    ],
)
def test_auto_takes_a_gpu_only_where_it_is_the_faster_device(
    write_image, run, monkeypatch, backend, codec, workers, asked
):
    found = []

    def on_device(work, device_bytes, *, batch, backend, **_):
        found.append(backend)
        return work(Share(np, batch))

    monkeypatch.setattr(step_resample, "on_device", on_device)
    voxels = np.ones((4, 8, 8), np.float32)
    source = write_image("a.zarr", voxels, (5.0,) * 3, chunks=(4, 8, 8), codec=codec)
    run(source, 10.0, execution=ExecutionParameters(backend=backend, workers=workers))
    assert found == [asked]
