"""Metadata that are taken without zarr are those that it takes, and those written are its own."""

import copy
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import zarr
from yaozarrs import v05
from zarr.codecs import BloscCodec, Crc32cCodec, ZstdCodec
from zarr.core.metadata import ArrayV2Metadata, ArrayV3Metadata

from octane.core.geometry import Grid
from octane.store.array import TYPES, open_array
from octane.store.writer import Level, create_image

SHAPE, CHUNKS, SHARDS = (20, 30, 25), (5, 6, 10), (10, 12, 20)
CODECS = {
    "zstd": [ZstdCodec(checksum=True)],
    "blosc-lz4": [BloscCodec(cname="lz4"), Crc32cCodec()],
    "none": [Crc32cCodec()],
}
HOSTILE = [
    *(None, True, False, 0, 1, 2, 3, 5, -1, 23, 2**70, 0.0, 1.0, 0.5, 1e300, float("nan")),
    *("", "0", "NaN", "-Infinity", "0x7fc00000", "/", ".", "big", "start", "v2", "default"),
    *("lz4", "shuffle", "float16", "uint8", "<f8", ">f4", "|u1", "complex64", "C", "F"),
    *([], {}, [0], [1], [1, 2], [5, 6, 10], [5.0, 6, 10], [True, 6, 10], [0, 6, 10], "zyx"),
    *(["z", "y", None], [20, 30, 25], [10, 12, 20], [4, 6, 10], ["z", "y", 1], {"a": 1}),
    *({"name": "bytes"}, {"name": "crc32c"}, [{"name": "bytes"}], {"id": "zlib", "level": 1}),
    *({"id": "zstd", "level": 3}, {"name": "zstd", "configuration": {"level": 3}}),
]
"""Values that are put in the place of every other."""


class LeftToZarrError(Exception):
    """The array would be opened through zarr."""


@pytest.fixture
def taken(monkeypatch):
    """An array of metadata as octane takes it, None where it is left to zarr."""

    def leave(*_, **__):
        raise LeftToZarrError

    monkeypatch.setattr(zarr, "open_array", leave)

    def take(metadata):
        version = 2 if "chunks" in metadata else 3
        names = {3: "zarr.json", 2: ".zarray"}
        try:
            found = {name: metadata if v == version else None for v, name in names.items()}
            return open_array(Path("store"), "0", found)
        except LeftToZarrError:
            return None

    return take


def documents():
    """Metadata of arrays of many kinds as zarr writes them."""
    for dtype in ("f4", "u1", "i2", "c8", "b1"):
        for codecs, shards in itertools.product(CODECS.values(), (None, SHARDS)):
            made = zarr.create_array(
                {}, shape=SHAPE, chunks=CHUNKS, dtype=dtype, shards=shards, compressors=codecs,
                dimension_names="zyx",
            )  # fmt: skip
            yield made.metadata.to_dict()
        for codec in ("auto", None, {"id": "blosc", "cname": "lz4", "shuffle": -1}):
            made = zarr.create_array(
                {}, shape=SHAPE, chunks=CHUNKS, dtype=dtype, zarr_format=2, compressors=codec
            )
            yield made.metadata.to_dict()


def places(document, before=()):
    """Place of every value of JSON."""
    children = document if isinstance(document, dict) else range(len(document))
    for name in children:
        yield (*before, name)
        if isinstance(document[name], dict | list):
            yield from places(document[name], (*before, name))


def changed(document):
    """The document with each of its values replaced, taken out, or given a neighbour."""
    for *parents, name in places(document):
        for value in [*HOSTILE, "OUT", "more", "typesize"]:
            other = copy.deepcopy(document)
            inner = other
            for parent in parents:
                inner = inner[parent]
            if value == "OUT":
                del inner[name]
            elif value not in ("more", "typesize"):
                inner[name] = value
            elif isinstance(inner, dict):
                inner[value] = 0
            else:
                inner.append(inner[name])
            yield other


DOCUMENTS = [json.loads(json.dumps(document)) for document in documents()]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_what_zarr_writes_is_taken_without_it(taken, document):
    array = taken(document)
    assert array is not None
    assert not array.why_zarr


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "document", [DOCUMENTS[i] for i in (0, 3, 5, 6, 8, 10, 17, 28, 33, 37, 44)]
)
def test_nothing_is_taken_that_zarr_takes_otherwise(taken, document):
    count = 0
    for other in changed(document):
        array = taken(other)
        if array is None:
            continue
        count += 1
        theirs = (ArrayV2Metadata if "chunks" in other else ArrayV3Metadata).from_dict(
            copy.deepcopy(other)
        )
        native = theirs.dtype.to_native_dtype()
        assert (array.shape, array.chunks, array.shards) == (
            theirs.shape,
            theirs.chunks,
            theirs.shards,
        )
        assert array.dtype == native
        fill = 0 if theirs.fill_value is None else theirs.fill_value
        assert array.fill.tobytes() == native.type(fill).tobytes()
        assert array.key((3, 4, 5)) == f"0/{theirs.encode_chunk_key((3, 4, 5))}"
        # The same again as zarr writes it, in which nothing is left out.
        again = taken(json.loads(json.dumps(theirs.to_dict())))
        assert again.compressor == array.compressor
        assert again.checked == array.checked
        assert again.layout == array.layout
    assert count > 5


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("shards", [None, SHARDS])
def test_metadata_of_arrays_are_those_that_zarr_writes(tmp_path, codec, shards):
    grid = Grid(SHAPE, (10.0, 10.0, 10.0), (0.0, 0.0, 0.0))
    for dtype in TYPES:
        path = tmp_path / f"{dtype.name}.ome.zarr"
        with create_image(path, [Level(grid, CHUNKS, shards)], dtype, codec=codec) as (writer,):
            writer[tuple(slice(0, n) for n in SHAPE)] = np.ones(SHAPE, dtype)
        theirs = tmp_path / f"{dtype.name}.zarr"
        zarr.create_array(
            theirs, shape=SHAPE, dtype=dtype, chunks=CHUNKS, shards=shards,
            compressors=CODECS[codec], dimension_names="zyx",
        )  # fmt: skip
        assert (path / "0/zarr.json").read_bytes() == (theirs / "zarr.json").read_bytes()


@pytest.mark.parametrize("levels", [1, 2])
@pytest.mark.parametrize("kind", ["mosaic", "volume"])
def test_metadata_of_images_are_those_of_the_specification(tmp_path, levels, kind):
    shape = (4, 6, 8)
    sizes = [Level(Grid(shape, (10.0, 2.5, 3.0), (0.0, -1.5, 7.0)), shape)] * levels
    path = tmp_path / "brain.a.ome.zarr"
    noted = {"kind": kind, "channel": "488 µm", "missing": None}
    with create_image(path, sizes, "u2", attributes=noted) as writers:
        for writer in writers:
            writer[tuple(slice(0, n) for n in shape)] = np.arange(192, dtype="u2").reshape(shape)
    content = (path / "zarr.json").read_text()
    group = zarr.open_group(path, mode="r")
    attributes = dict(group.attrs)
    model = v05.Image.model_validate(attributes["ome"])
    ome = model.model_dump(mode="json", exclude_none=True)
    assert json.dumps(ome) == json.dumps(attributes["ome"])
    assert attributes["octane"] == noted
    assert json.dumps(group.metadata.to_dict(), indent=2) == content


def test_the_codecs_are_loaded_alone_and_zarr_finds_all(run_python, tmp_path):
    compressed = {"compressor": {"id": "gzip", "level": 1}, "filters": None, "fill_value": 0}
    array = {"zarr_format": 2, "shape": [2], "chunks": [2], "dtype": "|u1", "order": "C"}
    (tmp_path / ".zarray").write_text(json.dumps(array | compressed), encoding="utf-8")
    found = run_python(
        "import json, sys, octane.store.reader, octane.store.writer\n"
        "from pathlib import Path\n"
        "from octane.store.array import open_array\n"
        "print('numcodecs.registry' in sys.modules)\n"
        "folder = Path(sys.argv[1])\n"
        "files = {'zarr.json': None, '.zarray': json.loads((folder / '.zarray').read_text())}\n"
        "print(open_array(folder.parent, folder.name, files).metadata['compressor']['id'])\n",
        tmp_path,
    )
    assert found == "False\ngzip"


def test_commands_on_octanes_own_stores_do_not_load_zarr(run_python, project, tmp_path):
    commands = [
        "phantom subject --sections 2 --tiles 2 2 --tile_shape 16 64 64",
        *(
            f"resample subject/mosaics/section_0{n}.ome.zarr m{n}.ome.zarr --resolution 10"
            for n in (1, 2)
        ),
        *(f"stitch m{n}.ome.zarr section_0{n}.ome.zarr" for n in (1, 2)),
        "stack stack.ome.zarr section_01.ome.zarr section_02.ome.zarr",
        "n4 stack.ome.zarr n4.ome.zarr --n4_shrink_factor 2 --n4_iterations 2",
        "pyramid n4.ome.zarr pyramid.ome.zarr --pyramid_resolutions 10 20",
    ]
    code = f"""
import runpy, sys
for command in {commands!r}:
    name, *arguments = command.split()
    sys.argv = [name, *arguments]
    try:
        runpy.run_path(f"{project}/bin/{{name}}.py", run_name="__main__")
    except SystemExit as error:
        assert not error.code, command
    print(command, [m for m in sys.modules if m in ("zarr", "yaozarrs", "asyncio", "fsspec")])
"""
    found = run_python(code, cwd=tmp_path).splitlines()
    assert found == [f"{command} []" for command in commands]
    assert (tmp_path / "pyramid.ome.zarr/1/zarr.json").exists()
