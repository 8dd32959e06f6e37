"""CHANNELS: volumes linked into one image, as other programs and octane itself read it."""

import json
import shutil

import numpy as np
import pytest
import yaozarrs
import zarr

from octane.config.parameters import ExecutionParameters, InputParameters
from octane.core.errors import InputError, OctaneError
from octane.core.geometry import Grid
from octane.processes.channels.record import ChannelsFigures
from octane.processes.channels.step import join_channels
from octane.processes.pyramid.parameters import PyramidParameters
from octane.processes.pyramid.step import build_pyramid
from octane.store.image import open_image
from octane.store.stated import Attributes
from octane.store.writer import Level, create_image
from octane.tools.materialize.step import verify

NAMES = ("OCT", "GFP", "axis")
SECTION = {"name": "a", "number": 3, "start": 0, "stop": 34, "top": -5.0}


@pytest.fixture
def voxels(rng):
    """Those of each channel; edges of 300 make shards."""
    return rng.gamma(2.0, 300.0, (3, 34, 43, 300)).astype(np.float32)


@pytest.fixture
def pyramids(tmp_path, write_image, voxels, reading, execution):
    """A pyramid of each channel, as the workflow has them."""

    def build(codec="zstd", spacing=(10.0, 10.0, 10.0)):
        paths = []
        for name, own in zip(NAMES, voxels, strict=True):
            kind = {"channel_kind": "nearest"} if name == "axis" else {}
            noted = {"step": "n4", "kind": "volume", "channel": name, "sections": [SECTION], **kind}
            given = {"edge": (0.0, -3.0, 700.0), "codec": codec, "attributes": noted}
            source = write_image(f"{name}_n4.ome.zarr", own, spacing, **given)
            paths.append(tmp_path / "pyramids" / f"{name}.ome.zarr")
            parameters = PyramidParameters(codec=codec, resolutions=(10, 25))
            build_pyramid(source, paths[-1], parameters, reading, execution)
        return paths

    return build


def test_volumes_that_octane_did_not_write_are_joined_by_their_pyramids(
    tmp_path, write_image, voxels, reading, execution
):
    paths = []
    for name, own in zip(NAMES[:2], voxels[:2], strict=True):
        source = write_image(f"{name}.ome.zarr", own)
        paths.append(tmp_path / "pyramids" / f"{name}.ome.zarr")
        build_pyramid(source, paths[-1], PyramidParameters(), reading, execution)
    join_channels(paths, tmp_path / "joined.ome.zarr", execution)
    made = zarr.open_array(tmp_path / "joined.ome.zarr" / "0", mode="r")
    np.testing.assert_array_equal(made, voxels[:2])


def attributes_of(path):
    return json.loads((path / "zarr.json").read_text())["attributes"]


def chunk_files(path):
    return {p.relative_to(path) for p in path.rglob("*") if p.is_file() and p.suffix != ".json"}


@pytest.mark.parametrize("codec", ["zstd", "blosc-lz4", "none"])
def test_the_channels_are_the_volumes(pyramids, voxels, tmp_path, execution, codec):
    paths, joined = pyramids(codec), tmp_path / "brain.ome.zarr"
    metrics = join_channels(paths, joined, execution)
    yaozarrs.validate_zarr_store(joined)
    assert verify(joined) == 1
    for level in "01":
        array = zarr.open_array(joined / level, mode="r")
        assert array.metadata.to_dict()["dimension_names"] == ("c", "z", "y", "x")
        assert array.chunks[0] == (array.shards or array.chunks)[0] == 1
        alone = [zarr.open_array(path / level, mode="r")[:] for path in paths]
        np.testing.assert_array_equal(array[:], alone)
        for k, path in enumerate(paths):
            for file in chunk_files(path / level):
                own = joined / level / "c" / str(k) / file.relative_to("c")
                assert own.samefile(path / level / file)
    np.testing.assert_array_equal(zarr.open_array(joined / "0", mode="r")[:], voxels)
    assert "written" not in metrics.bytes


def test_the_metadata_are_those_of_the_volumes(pyramids, tmp_path, execution):
    paths, joined = pyramids(), tmp_path / "brain.ome.zarr"
    metrics = join_channels(paths, joined, execution)
    found, own = attributes_of(joined), [attributes_of(path) for path in paths]
    (multiscale,), (first,) = found["ome"]["multiscales"], own[0]["ome"]["multiscales"]
    assert [axis["name"] for axis in multiscale["axes"]] == ["c", "z", "y", "x"]
    for here, there in zip(multiscale["datasets"], first["datasets"], strict=True):
        for ours, theirs in zip(
            here["coordinateTransformations"], there["coordinateTransformations"], strict=True
        ):
            kind = ours["type"]
            assert ours == {"type": kind, kind: [float(kind == "scale"), *theirs[kind]]}
    made = [attributes["ome"]["multiscales"][0] for attributes in own]
    assert [m["type"] for m in made] == ["gaussian", "gaussian", "nearest"]
    assert multiscale["type"] == "mixed"
    assert multiscale["metadata"]["channels"] == [
        {"type": m["type"], "metadata": m["metadata"]} for m in made
    ]
    shown = found["ome"]["omero"]["channels"]
    assert found["ome"]["omero"]["rdefs"]["model"] == "color"
    assert [c["label"] for c in shown] == [*NAMES]
    assert len({c["color"] for c in shown}) == 3
    windows = [attributes["ome"]["omero"]["channels"][0]["window"] for attributes in own]
    assert [c["window"] for c in shown] == windows
    assert found["octane"] == {
        "step": "channels",
        "kind": "volume",
        "sections": [SECTION],
        "channels": [{"name": "OCT"}, {"name": "GFP"}, {"name": "axis", "kind": "nearest"}],
    }
    figures = ChannelsFigures.model_validate(metrics.figures)
    assert [(c.name, c.kind) for c in figures.channels] == [
        ("OCT", None), ("GFP", None), ("axis", "nearest"),
    ]  # fmt: skip
    assert [c.color for c in figures.channels] == [c["color"] for c in shown]
    assert [c.window for c in figures.channels] == [(w["start"], w["end"]) for w in windows]


def test_octane_reads_each_channel_as_the_volume_that_it_was(pyramids, tmp_path, execution):
    paths, joined = pyramids(), tmp_path / "brain.ome.zarr"
    join_channels(paths, joined, execution)
    for k, (name, path) in enumerate(zip(NAMES, paths, strict=True)):
        alone = open_image(path)
        for asked in (name, str(k)):
            image = open_image(joined, InputParameters(channel=asked))
            assert image.grid == alone.grid
            assert image.attributes == {**alone.attributes, "step": "channels"}
            whole = tuple(slice(0, n) for n in image.grid.shape)
            np.testing.assert_array_equal(image.read(whole), alone.read(whole))
    with pytest.raises(InputError, match="3 channels: 0 'OCT', 1 'GFP', 2 'axis'; give one"):
        open_image(joined)
    stated = InputParameters(channel="GFP", channel_kind=("GFP=nearest",))
    assert open_image(joined, stated).attributes["channel_kind"] == "nearest"


def test_the_preview_of_each_channel_is_that_of_its_pyramid(
    pyramids, write_image, voxels, tmp_path, reading, execution
):
    paths = pyramids()
    metrics = join_channels(paths, tmp_path / "brain.ome.zarr", execution)
    assert metrics.previews.keys() == {
        "slice_spacing", *(f"slice_{axis}_{k}" for axis in "zyx" for k in range(3)),
    }  # fmt: skip
    for k, path in enumerate(paths):
        source = tmp_path / f"{NAMES[k]}_n4.ome.zarr"
        given = (PyramidParameters(resolutions=(10, 25)), reading, AGAIN)
        own = build_pyramid(source, path, *given).previews
        for axis in "zyx":
            np.testing.assert_array_equal(
                metrics.previews[f"slice_{axis}_{k}"], own[f"slice_{axis}"]
            )
        assert metrics.previews["slice_spacing"].tolist() == own["slice_spacing"].tolist()


AGAIN = ExecutionParameters(backend="cpu", workers=2, overwrite=True)


def test_one_volume_stays_three_dimensional(pyramids, tmp_path, execution):
    path, alone = pyramids()[2], tmp_path / "brain.ome.zarr"
    metrics = join_channels([path], alone, execution)
    assert chunk_files(alone) == chunk_files(path)
    own = attributes_of(path)
    own["ome"]["multiscales"][0]["name"] = "brain"
    assert attributes_of(alone) == own
    assert metrics.channel == "axis"
    assert verify(alone) == 1


def test_volumes_without_names_are_numbered(write_image, tmp_path, execution):
    sources = [
        write_image(f"{k}.ome.zarr", np.full((4, 4, 4), k, "u1"), attributes={"kind": "volume"})
        for k in range(9)
    ]
    join_channels(sources, tmp_path / "out.ome.zarr", execution)
    shown = attributes_of(tmp_path / "out.ome.zarr")["ome"]["omero"]["channels"]
    assert [c["label"] for c in shown] == [*map(str, range(9))]
    assert len({c["color"] for c in shown}) == 7


def changed(path, change):
    """Change the metadata of an image."""
    content = json.loads((path / "zarr.json").read_text())
    change(content["attributes"])
    (path / "zarr.json").write_text(json.dumps(content))


VOLUME = {"kind": "volume", "step": "n4"}


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (
            {"spacing": (10.0, 10.0, 5.0)},
            "has 4 x 6 x 8 voxels of 10 x 10 x 5 um .*, but .*a.ome.zarr has 4 x 6 x 8 voxels of",
        ),
        (
            {"edge": (0.0, 0.0, 50.0)},
            "has .* from 0 x 0 x 50 um, but .* from 0 x 0 x 0 um; join",
        ),
        ({"shape": (4, 6, 7)}, "has 4 x 6 x 7 voxels"),
        ({"dtype": "f8"}, r"has voxels of float64, but .* of float32; .*--n4_dtype"),
        ({"codec": "none"}, r"has chunks of none, but .* of zstd; .*--codec"),
        ({"chunks": (4, 3, 8)}, "is not a volume .* as octane writes it"),
        ({"attributes": {"kind": "mosaic"}}, "is not a volume .* as octane writes it"),
        ({"attributes": {}}, "is not a volume .* as octane writes it"),
    ],
    ids=["spacing", "place", "shape", "dtype", "codec", "chunks", "mosaic", "no volume"],
)
def test_volumes_that_differ_are_refused(write_image, tmp_path, execution, other, words):
    def write(name, shape=(4, 6, 8), dtype="f4", **given):
        return write_image(name, np.ones(shape, dtype), **{"attributes": VOLUME, **given})

    paths = [write("a.ome.zarr"), write("b.ome.zarr", **other)]
    with pytest.raises(InputError, match=rf"b\.ome\.zarr {words}") as caught:
        join_channels(paths, tmp_path / "out" / "c.ome.zarr", execution)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_images_of_others_and_joined_ones_are_refused(
    pyramids, write_foreign, voxels, tmp_path, execution
):
    paths, out = pyramids(), tmp_path / "out" / "c.ome.zarr"
    joined, bare = tmp_path / "joined.ome.zarr", tmp_path / "bare.ome.zarr"
    join_channels(paths, joined, execution)
    shutil.copytree(paths[0], bare)
    changed(bare, lambda attributes: attributes["ome"].pop("omero"))
    fewer = tmp_path / "fewer.ome.zarr"
    shutil.copytree(paths[0], fewer)
    changed(fewer, lambda attributes: attributes["ome"]["multiscales"][0]["datasets"].pop())
    foreign = write_foreign("f.ome.zarr", voxels[0], version="0.5", chunks=(34, 43, 128))
    for path, words in (
        (joined, "is not a volume"),
        (bare, "is not a volume"),
        (foreign, "is not a volume"),
        (fewer, "has 34 x 43 x 300 voxels of 10 x 10 x 10 um .*, but"),
    ):
        with pytest.raises(InputError, match=rf"{path.name} {words}"):
            join_channels([paths[1], path], out, execution)
    assert not out.parent.exists()


def test_a_damaged_chunk_of_any_channel_is_found(pyramids, tmp_path, execution):
    joined = tmp_path / "brain.ome.zarr"
    join_channels(pyramids(), joined, execution)
    file = joined / "0/c/1/0/0/1"
    content = file.read_bytes()
    # The files of the pyramid are the same ones.
    file.unlink()
    file.write_bytes(content[:200] + bytes(100) + content[300:])
    with pytest.raises(OctaneError, match=r"chunk 0/c/1/0/0/1 .*cannot be decoded"):
        verify(joined)


def test_a_lost_chunk_is_named_and_nothing_is_left(pyramids, tmp_path, execution):
    paths, out = pyramids(), tmp_path / "out" / "c.ome.zarr"
    (paths[1] / "0/c/0/0/1").unlink()
    with pytest.raises(InputError, match=r"GFP.ome.zarr: chunk 0/c/0/0/1 is missing"):
        join_channels(paths, out, execution)
    assert not out.exists()


def test_the_kind_of_a_channel_in_the_metadata_is_validated(tmp_path):
    level = Level.volume(Grid((2, 2, 2), (1.0, 1.0, 1.0)))
    noted: Attributes = {"channels": [{"name": "a", "kind": "angles"}, {"name": "b"}]}
    path = tmp_path / "a.ome.zarr"
    with create_image(path, [level], "u1", attributes=noted, channels=["a", "b"]) as (writer,):
        for place in ((0, 0, 0, 0), (1, 0, 0, 0)):
            with writer.shard(place) as shard:
                shard[0, 0, 0, 0] = np.ones((1, 2, 2, 2), "u1")
    with pytest.raises(InputError, match=r"octane.channels.0.kind: Input should be 'nearest'"):
        open_image(path, InputParameters(channel="a"))
