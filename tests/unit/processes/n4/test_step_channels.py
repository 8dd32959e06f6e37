"""N4 on channels: a field for each, the reference's tissue, and values that are only copied."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tifffile
from refusals import refused

from octane.config.parameters import InputParameters, LeaseParameters
from octane.core.errors import OctaneError
from octane.core.geometry import Grid, vector
from octane.processes.n4.fit import shrink_slices
from octane.processes.n4.mask import tissue_mask
from octane.processes.n4.parameters import N4Parameters
from octane.processes.n4.record import N4Figures, PassedThroughFigures
from octane.processes.n4.step import correct_channels, prepare_channels
from octane.store import writer as store_writer
from octane.store.image import open_image
from octane.store.volumes import open_volume
from octane.store.writer import ChannelWriter, Level, create_image

N4 = Path(__file__).resolve().parents[4] / "bin" / "n4.py"
SHAPE = (20, 36, 44)
NAMES = ("OCT", "GFP", "axis")
Z, Y, X = np.meshgrid(*[np.linspace(-1, 1, n) for n in SHAPE], indexing="ij")
QUICK = {"shrink_factor": 2, "iterations": (6, 6)}
ON_GRID = {"spacing": (0.01,) * 3, "origin": (0.005,) * 3, "direction": np.eye(3).ravel()}
WHOLE = tuple(slice(0, n) for n in SHAPE)


@pytest.fixture(scope="module")
def channels():
    """Tissue, another contrast that is 0 in a part of it, and angles beyond 0 and 90 degrees."""
    rng = np.random.default_rng(41)
    inside = (X / 0.8) ** 2 + (Y / 0.8) ** 2 + (Z / 1.4) ** 2 < 1
    tissue = np.where(inside, 500.0, 20.0) * np.exp(0.4 * X) * (1 + rng.normal(0, 0.03, SHAPE))
    other = np.where(inside, 90.0, 30.0) * np.exp(-0.5 * Y) * (1 + rng.normal(0, 0.05, SHAPE))
    other[:, :12, 20:24] = 0
    angles = np.where(X > 0, 179.0, 1.0) + rng.uniform(-3, 3, SHAPE)
    return [own.astype(np.float32) for own in (tissue, other, angles)]


@pytest.fixture
def store(tmp_path, channels, monkeypatch):
    """An image (c, z, y, x) of several shards, as octane writes it."""
    monkeypatch.setattr(store_writer, "CHUNK", 8)
    monkeypatch.setattr(store_writer, "SHARD", 16)
    grid = Grid(SHAPE, vector(10, 10, 10))
    path = tmp_path / "several.ome.zarr"
    with create_image(path, [Level.volume(grid)], "f4", channels=NAMES) as (writer,):
        for index, voxels in enumerate(channels):
            ChannelWriter(writer, index)[WHOLE] = voxels
    return path


@pytest.fixture
def correct(tmp_path, execution):
    """Correct channels into ``out/<name>``, with a record of each; returns the result's path."""

    def run(source, name, channels=None, *, read=None, files=(), execution=execution, **settings):
        out = tmp_path / "out"
        out.mkdir(exist_ok=True)
        parameters = N4Parameters.model_validate({**QUICK, **settings})
        reading = InputParameters.model_validate(read or {})
        given = (source, out / name, parameters, reading, execution, channels)
        runs = prepare_channels(*given, **dict(files))
        records = out / f"{name}_metrics.json", out / f"{name}_preview.npz"
        correct_channels(runs, LeaseParameters(), *records)
        return out / name

    return run


def voxels_of(path, channel=None):
    volume = open_volume(path, InputParameters(channel=channel))
    return volume.read(tuple(slice(0, n) for n in volume.grid.shape))


def record_of(path, channel=None):
    name = "_".join(filter(None, [path.name, channel]))
    return json.loads((path.parent / f"{name}_metrics.json").read_text())


def assert_same(found, expected):
    assert found.dtype == expected.dtype
    assert found.tobytes() == expected.tobytes()


def test_each_channel_gets_the_field_that_it_has_alone_in_the_tissue_of_the_reference(
    store, correct, channels, tmp_path, write_image
):
    keep = shrink_slices(SHAPE, (2, 2, 2))
    tissue = tissue_mask(channels[0][keep], [(0, SHAPE[0] // 2)])
    mask = np.zeros(SHAPE, np.uint8)
    # Only the voxels of the shrunk grid count.
    mask[keep] = tissue
    mask = str(write_image("mask.ome.zarr", mask))
    field = tmp_path / "out" / "bias.ome.zarr"
    joined = correct(
        store, "n4.ome.zarr", "all", read={"channel": "OCT", "channel_kind": "axis=nearest"},
        mask="tissue", files={"save_bias_field": field},
    )  # fmt: skip
    # Only of the channels that were fitted.
    assert open_image(field, InputParameters(channel="0")).channels == ["OCT", "GFP"]
    assert open_image(joined, InputParameters(channel="0")).channels == [*NAMES]
    for name, voxels in zip(NAMES[:2], channels, strict=False):
        alone = write_image(f"{name}.ome.zarr", voxels)
        own = tmp_path / "out" / f"{name}_bias.ome.zarr"
        expected = correct(alone, f"{name}_n4.ome.zarr", mask=mask, files={"save_bias_field": own})
        assert_same(voxels_of(joined, name), voxels_of(expected))
        assert_same(voxels_of(field, name), voxels_of(own))
        figures = record_of(joined, name)["figures"]
        assert N4Figures.model_validate(figures).mask_fraction == tissue.mean()
        assert figures["field_max"] == record_of(expected)["figures"]["field_max"]
        assert record_of(joined, name)["channel"] == name
    # The masks of the channels themselves differ, or the comparison would show nothing.
    itself = correct(tmp_path / "GFP.ome.zarr", "own.ome.zarr", mask="tissue")
    assert voxels_of(itself).tobytes() != voxels_of(joined, "GFP").tobytes()


def test_the_reference_is_a_volume_of_its_own_or_a_channel(
    store, correct, channels, write_image, write_file
):
    other = write_image("gfp.ome.zarr", channels[1])
    like = {"reference": write_image("oct.ome.zarr", channels[0])}
    expected = voxels_of(correct(other, "zarr.ome.zarr", mask="tissue", files=like))
    like = {"reference": write_file("oct.nii", channels[0], **ON_GRID)}
    assert_same(voxels_of(correct(other, "nii.ome.zarr", mask="tissue", files=like)), expected)
    like = {"reference": store, "reference_channel": "OCT"}
    read = {"channel": "GFP", "channel_kind": "axis=nearest"}
    found = correct(store, "c.ome.zarr", read=read, mask="tissue", files=like)
    assert_same(voxels_of(found), expected)
    # Its own mask, if the reference is the volume itself.
    alone = voxels_of(correct(other, "own.ome.zarr", mask="tissue"))
    like = {"reference": other}
    assert_same(voxels_of(correct(other, "self.ome.zarr", mask="tissue", files=like)), alone)


def test_memory_of_the_reference_is_planned(write_image, write_file, channels, reading, execution):
    source, out = write_image("v.ome.zarr", channels[1]), Path("unused.ome.zarr")
    p = N4Parameters.model_validate({**QUICK, "mask": "tissue"})

    def predicted(reference):
        given = (source, out, p, reading, execution, None)
        return prepare_channels(*given, reference=reference)[0].plan.predicted_bytes

    # Blocks need more than the fit of such a volume, whose mask therefore costs nothing.
    file = write_file("oct.nii", channels[0], **ON_GRID)
    assert predicted(file) - predicted(None) == channels[0].nbytes
    assert predicted(write_image("oct.ome.zarr", channels[0])) == predicted(None)


@pytest.mark.parametrize(
    ("dtype", "asked", "name", "warns"),
    [
        ("f4", "input", "n4.ome.zarr", False),
        ("f8", "input", "n4.tif", False),
        ("u2", "input", "n4.nii", False),
        ("i8", "input", "n4.ome.zarr", False),
        ("f4", "uint8", "n4.ome.zarr", True),
        ("u1", "float32", "n4.mha", False),
    ],
)
def test_values_that_must_not_be_averaged_are_copied(
    tmp_path, correct, channels, caplog, write_image, dtype, asked, name, warns
):
    values = channels[2].astype(dtype)
    if dtype == "i8":
        # More digits than float64 has.
        values += 2**60 + 1
    source = write_image("axis.ome.zarr", values)
    caplog.set_level("INFO")
    read = {"channel_kind": "0=nearest"}
    field = tmp_path / "out" / "bias.ome.zarr"
    found = correct(
        source, name, read=read, dtype=asked, mask="tissue",
        # What a fit would refuse is not looked at.
        mode="per_section", files={"save_bias_field": field},
    )  # fmt: skip
    expected = np.clip(np.rint(values), 0, 255) if asked == "uint8" else values
    assert_same(voxels_of(found), expected.astype(dtype if asked == "input" else asked))
    assert not field.exists()
    record = record_of(found)
    figures = PassedThroughFigures.model_validate(record["figures"])
    assert (figures.shape, figures.voxel_size) == (SHAPE, (10, 10, 10))
    assert record["figures"]["passed_through"] is True
    assert not {"levels", "boundaries"} & record["figures"].keys()
    assert any("rounded or clipped to uint8" in text for text in record["warnings"]) == warns
    with np.load(found.parent / f"{found.name}_preview.npz") as preview:
        assert set(preview) == {"slice_z", "slice_y", "slice_x", "slice_spacing"}
        np.testing.assert_array_equal(preview["slice_z"], voxels_of(found)[SHAPE[0] // 2])
    assert any("copied without a bias field" in text for text in caplog.messages)


def test_angles_among_channels_are_copied_to_the_bit(store, correct, channels):
    read = {"channel": "0", "channel_kind": ["axis=nearest"]}
    found = correct(store, "n4.ome.zarr", "GFP axis", read=read, mask="tissue")
    assert_same(voxels_of(found, "axis"), channels[2])
    noted = json.loads((found / "zarr.json").read_text())["attributes"]
    listed = [{"name": "GFP"}, {"name": "axis", "kind": "nearest"}]
    assert noted["octane"]["channels"] == listed
    assert [own["label"] for own in noted["ome"]["omero"]["channels"]] == ["GFP", "axis"]
    assert noted["octane"]["step"] == "n4"
    assert not {"channel", "channel_kind"} & noted["octane"].keys()


def test_one_channel_is_a_volume_without_an_axis_more(store, correct):
    one = correct(store, "one.ome.zarr", "GFP", read={"channel": "GFP"})
    plain = correct(store, "plain.ome.zarr", read={"channel": "GFP"})
    ours, theirs = ((path / "zarr.json").read_text() for path in (one, plain))
    assert ours.replace('"one"', '"plain"') == theirs
    assert_same(voxels_of(one), voxels_of(plain))
    assert (one.parent / "one.ome.zarr_metrics.json").exists()


def test_channels_of_a_tiff(tmp_path, correct, channels, write_image):
    source = tmp_path / "several.ome.tif"
    sizes = {f"PhysicalSize{axis}": 10 for axis in "XYZ"}
    tifffile.imwrite(
        source, np.stack(channels[:2]), ome=True, compression="zlib", photometric="minisblack",
        metadata={"axes": "CZYX", "Channel": {"Name": [*NAMES[:2]]}, **sizes},
    )  # fmt: skip
    found = correct(source, "n4.ome.zarr", "all", read={"channel": "OCT"}, mask="tissue")
    like = {"reference": write_image("oct.ome.zarr", channels[0])}
    alone = write_image("gfp.ome.zarr", channels[1])
    expected = correct(alone, "gfp.ome.zarr", mask="tissue", files=like)
    assert_same(voxels_of(found, "GFP"), voxels_of(expected))


TISSUE = {"mask": "tissue"}


@pytest.mark.parametrize(
    ("asked", "read", "files", "settings", "words"),
    [
        ("all", {}, {}, TISSUE, "3 channels: 0 'OCT', 1 'GFP', 2 'axis'; give one with --channel"),
        ("OCT DAPI", {}, {}, {}, "but not 'DAPI'"),
        ("all", {"channel": "DAPI"}, {}, {}, "but not 'DAPI'"),
        ("all", {"channel_kind": "DAPI=nearest"}, {}, {}, "lacks the channel 'DAPI'"),
        ("all", {}, {"name": "n4.nii"}, {}, "n4.nii holds one channel, but --channels names seve"),
        ("all", {}, {"save_bias_field": "b.mha"}, {}, "b.mha holds one channel"),
        ("all", {}, {"truth": "truth"}, {}, "truth of one channel; name one with --channels"),
        (None, {"channel": "0"}, {"reference": "self"}, {}, "only for --n4_mask tissue"),
        (None, {"channel": "0"}, {"reference": "self"}, TISSUE, "3 channels"),
        (None, {"channel": "0"}, {"reference_channel": "0"}, TISSUE, "needs --reference"),
        (None, {"channel": "0"}, {"reference": "short"}, TISSUE, "short.ome.zarr is on a differen"),
    ],
)  # fmt: skip
def test_what_cannot_be_corrected_is_refused_before_any_work(
    store, correct, write_image, tmp_path, asked, read, files, settings, words
):
    files = {**files}
    name = files.pop("name", "n4.ome.zarr")
    places = {"self": store}
    if files.get("reference") == "short":
        places["short"] = write_image("short.ome.zarr", np.ones((4, 5, 6), np.float32))
    for key in files.keys() - {"reference_channel"}:
        files[key] = places.get(files[key], tmp_path / "out" / files[key])
    with pytest.raises(OctaneError, match=words):
        correct(store, name, asked, read=read, files=files, **settings)
    assert not list(tmp_path.glob("out/*"))


def test_a_failure_names_the_channel_and_leaves_nothing(store, correct, tmp_path):
    for chunk in (store / "0" / "c" / "1").rglob("*"):
        if chunk.is_file():
            chunk.unlink()
            break
    with refused(store.name, "0/c/1") as caught:
        correct(store, "n4.ome.zarr", "all")
    assert "channel GFP" in caught.value.__notes__
    assert not list(tmp_path.glob("out/*"))


def test_the_command_shows_each_plan_once_and_needs_the_memory_of_one(tmp_path):
    """In processes of their own, whose peaks are compared."""
    rng, grid = np.random.default_rng(4), Grid((128, 256, 256), vector(10, 10, 10))
    whole = tuple(slice(0, n) for n in grid.shape)
    voxels = rng.uniform(50, 100, grid.shape).astype(np.float32)
    names = ["a", "b", "c", "d"]
    with create_image(tmp_path / "v.ome.zarr", [Level.volume(grid)], "f4", channels=names) as made:
        for index in range(4):
            ChannelWriter(made[0], index)[whole] = voxels
    given = ["--n4_mask", "tissue", "--channel", "a", "--n4_iterations", "2", "--workers", "2"]

    def run(chosen, *more):
        record = tmp_path / "n4_metrics.json"
        words = ["v.ome.zarr", f"{chosen}.ome.zarr", "--channels", chosen, "--metrics", str(record)]
        command = [sys.executable, str(N4), *words, *given, "--backend", "cpu", *more]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    shown = run("all", "--dry_run")
    assert shown.count("shrunk by") == 1
    run("b")
    run("all")
    one = json.loads((tmp_path / "n4_metrics.json").read_text())
    several = [json.loads((tmp_path / f"n4_{name}_metrics.json").read_text()) for name in names]
    peaks = [record["peak_memory_bytes"] for record in several]
    # A channel has 33 MB; of each, samples of its chunks (1 MB) are kept for the display window.
    assert peaks[-1] < one["peak_memory_bytes"] + 25e6
    for record in several:
        assert record["figures"]["predicted_memory_bytes"] >= record["peak_memory_bytes"]
