"""Bad input: one sentence that names the file or flag and what to do, exit code 1, nothing left."""

import errno
import json
import os
import re
import runpy
import signal
import sys
import time
from math import inf, nan
from pathlib import Path

import numpy as np
import pytest
import zarr

from octane.core.errors import OctaneError
from octane.steps.preflight import make_plans

PROJECT = Path(__file__).resolve().parents[2]

SHAPE = (8, 32, 48)
TILE = (8, 16, 16)


def values():
    """Something that N4 can work on."""
    return np.random.default_rng(3).gamma(9.0, 10.0, SHAPE).astype(np.float32)


def store(
    path,
    voxels=None,
    *,
    chunks=TILE,
    axes="zyx",
    unit="micrometer",
    scale=(5.0, 5.0, 5.0),
    version=2,
):
    """Write an OME-Zarr image, 0.4 in zarr v2 or 0.5 in v3, as other programs do."""
    voxels = values() if voxels is None else voxels
    group = zarr.open_group(path, mode="w", zarr_format=version)
    array = group.create_array("0", shape=voxels.shape, chunks=chunks, dtype=voxels.dtype)
    array[:] = voxels
    stated = {} if unit is None else {"unit": unit}
    scaling = [] if scale is None else [{"type": "scale", "scale": list(scale)}]
    multiscale = {
        "version": "0.4",
        "axes": [{"name": name, "type": "space", **stated} for name in axes],
        "datasets": [{"path": "0", "coordinateTransformations": scaling}],
    }
    ngff = {"multiscales": [multiscale]}
    group.attrs.update(ngff if version == 2 else {"ome": ngff})
    return path


# Each makes its input in the current folder and gives the arguments.


def no_store():
    Path("in.zarr").mkdir()
    Path("in.zarr/readme.txt").write_text("no image", encoding="utf-8")
    return ["in.zarr", "out.zarr", "--resolution", "10"]


def nothing():
    return ["in.zarr", "out.zarr", "--resolution", "10"]


def plain(*arguments, **how):
    def make():
        store("in.zarr", **how)
        return ["in.zarr", "out.zarr", *arguments]

    return make


def broken(content, *arguments):
    def make():
        file = store(Path("in.zarr")) / "0" / "0.1.2"
        file.unlink() if content is None else file.write_bytes(content)
        return ["in.zarr", "out.zarr", *arguments]

    return make


def piped():
    arguments = broken(None, *TARGET)()
    os.mkfifo("in.zarr/0/0.1.2")
    return arguments


def masked(mask, **how):
    def make():
        store("in.zarr")
        store("mask.zarr", mask.astype(np.uint8), **how)
        return ["in.zarr", "out.zarr", "--mask", "mask.zarr"]

    return make


def unwritable():
    store("in.zarr")
    # Not a folder without rights: root may write to those.
    Path("file").write_text("in the way", encoding="utf-8")
    return ["in.zarr", "file/out.zarr"]


def existing():
    store("in.zarr")
    store("out.zarr")
    return ["in.zarr", "out.zarr"]


def linked(*arguments):
    def make():
        store("in.zarr")
        Path("link.zarr").symlink_to("in.zarr")
        Path("table.csv").touch()
        os.link("table.csv", "hard.csv")
        return ["in.zarr", *arguments, "--overwrite"]

    return make


NOT_FINITE = np.where(np.arange(np.prod(SHAPE)).reshape(SHAPE) == 4805, np.nan, values())
CUT_IN_Z = {"chunks": (4, 16, 16)}
CHANNELS = {"axes": "czyx", "chunks": (1, *TILE), "scale": (1, 5, 5, 5)}
TWO = np.ones((2, *SHAPE))
EMPTY = np.zeros(SHAPE)
TARGET = ("--resolution", "10")
TABLES = ("--positions", "table.csv", "--preview", "hard.csv")

CASES = [
    ("resample", nothing, "in.zarr does not exist", "check the path"),
    ("resample", no_store, "in.zarr is not an OME-Zarr image", "give the folder that holds"),
    ("resample", plain(*TARGET, scale=None), "in.zarr states no valid scale", "add a scale"),
    ("n4", plain(unit=None), "in.zarr states no unit", "--input-unit micrometer"),
    ("n4", plain(unit="furlong"), "in.zarr has the unit 'furlong'", "correct it"),
    (
        "stitch",
        plain(axes="cyx", voxels=values(), scale=(1, 5, 5)),
        "in.zarr has the axes c y x",
        "extract one",
    ),
    (
        "n4",
        plain("--channel", "x", voxels=TWO, **CHANNELS),
        "in.zarr has no single channel 'x' but 2: 0, 1",
        "give one",
    ),
    ("pyramid", plain("--timepoint", "1"), "in.zarr has no single timepoint '1'", "--timepoint"),
    ("resample", plain(*TARGET, **CUT_IN_Z), "in.zarr has chunks of 4 of 8 planes", "rechunk it"),
    (
        "resample",
        broken(b"these are no voxels", *TARGET),
        "in.zarr: chunk 0/0.1.2 cannot be decoded",
        "restore it",
    ),
    (
        "resample",
        broken(None, *TARGET),
        "in.zarr: chunk 0/0.1.2 is missing",
        "--missing-chunks fill",
    ),
    ("resample", piped, "in.zarr: chunk 0/0.1.2 cannot be decoded (it is no file)", "restore it"),
    ("stitch", broken(None, "--overlap", "0"), "in.zarr: chunk 0/0.1.2 is missing", "restore it"),
    ("pyramid", broken(None), "in.zarr: chunk 0/0.1.2 is missing", "restore it"),
    ("stitch", plain(), "in.zarr does not say how its tiles overlap", "give --overlap"),
    (
        "n4",
        plain(voxels=NOT_FINITE),
        "in.zarr holds NaN or Inf (first at z y x 3 4 5)",
        "--nonfinite mask",
    ),
    ("n4", plain(voxels=np.full(SHAPE, 7.0)), "in.zarr holds the one value 7", "check the input"),
    ("n4", plain(voxels=np.zeros(SHAPE, "c8")), "in.zarr holds complex64 voxels", "needs real"),
    ("n4", masked(TWO, **CHANNELS), "mask.zarr has 2 channels: 0, 1", "write one of them alone"),
    ("n4", masked(EMPTY[None], **CHANNELS), "mask mask.zarr has no voxel", "give another"),
    ("n4", masked(EMPTY), "mask mask.zarr has no voxel", "give another"),
    ("n4", masked(EMPTY + 255), "mask.zarr holds the value 255", "a mask is 0 and 1"),
    ("n4", masked(EMPTY[:, :16]), "mask.zarr lies on another grid", "SimpleITK.Resample"),
    ("resample", plain("--resolution", "2"), "in.zarr has voxels of 5 x 5 x 5", "--resolution"),
    ("pyramid", plain("--resolutions", "2"), "--resolutions asks for 2", "leave out"),
    ("n4", plain("--spline-distance-mm", "50"), "in.zarr: --spline-distance-mm asks", "at most"),
    ("n4", plain("--section-starts", "5", "2"), "--section-starts is 5 2", "rising planes"),
    ("n4", plain("--mode", "per_section"), "--mode per_section needs", "give --section-starts"),
    ("resample", plain("--resolution", "90"), "leaves one voxel of the 80 of a tile", "finer"),
    ("n4", linked("link.zarr"), "given as destination and would replace in.zarr", "another name"),
    ("n4", linked("in.zarr/0/a.zarr"), "in.zarr/0/a.zarr is given as destination", "another name"),
    ("n4", linked("."), ". is given as destination and would replace in.zarr", "another name"),
    ("n4", linked("a.zarr", "--mask", "a.zarr"), "would replace a.zarr, the mask", "another name"),
    ("n4", linked("a.zarr", "--metrics", "in.zarr/a.json"), "given as metrics", "another name"),
    ("n4", linked("a.zarr", "--save-bias-field", "a.zarr"), "the save-bias-field", "another name"),
    ("stitch", linked("a.zarr", *TABLES), "replace table.csv, the positions", "another name"),
    ("stack", linked("in.zarr"), "would replace in.zarr, the sources", "another name"),
    ("resample", plain(*TARGET, "--metrics", "no/m.json"), "the folder is not there", "make it"),
    ("n4", plain("--mask", "none.nii"), "none.nii does not exist", "check the path"),
    ("n4", plain("--weights", "none.nii"), "none.nii does not exist", "check the path"),
    ("stitch", linked("a.nii"), "a.nii is no name of an OME-Zarr image", "end it in .ome.zarr"),
    ("n4", plain("--save-bias-field", "b.doc"), "b.doc has no format", "use .ome.zarr, .nii"),
    ("n4", plain("--outside", "zero"), "--outside zero needs a mask", "--mask tissue"),
    ("n4", unwritable, "file cannot be written", "choose another place"),
    ("n4", existing, "out.zarr exists already", "--overwrite"),
    ("n4", plain("--backend", "gpu"), "--backend", "cpu"),
    ("resample", plain(*TARGET, "--memory", "10kB"), "One block at a time needs", "give --memory"),
]


def named(case):
    """A test's name: the command and what it finds."""
    return f"{case[0]}-{re.sub(r'[^a-z0-9]+', '-', case[2].lower()).strip('-')}"


def tree():
    """Every file and folder below the current one."""
    return sorted(str(path) for path in Path().rglob("*"))


@pytest.fixture
def call(monkeypatch, capsys):
    """Run a command in this process; gives its exit code and its one sentence."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def run(name, *arguments):
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            runpy.run_path(str(PROJECT / "bin" / f"{name}.py"), run_name="__main__")
        written = capsys.readouterr()
        assert written.out == ""
        (sentence,) = written.err.splitlines()
        assert sentence.startswith("error: ")
        return caught.value.code, sentence

    yield run
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("name", "make", "says", "remedy"), CASES, ids=[named(case) for case in CASES]
)
def test_bad_input(call, monkeypatch, tmp_path, name, make, says, remedy):
    monkeypatch.chdir(tmp_path)
    # No GPU for anyone here, so that what needs none is the same everywhere.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    arguments = make()
    before = tree()
    code, sentence = call(name, *arguments)
    assert code == 1
    assert says in sentence
    assert remedy in sentence
    assert tree() == before


SHAPES = [[-8, 32, 48], [8, 32], [1, 8, 32, 48], [0, 32, 48], [8.5, 32, 48], "x"]
HUGE = [[10**6] * 3, [10**30] * 3]
CHUNKS = [[0, 16, 16], [-8, 16, 16], [16, 16], [8, 16, "x"], [10**9] * 3, None]
SCALES = [[nan, 1, 1], [inf, 1, 1], [0, 1, 1], [-1, 1, 1], [1e200, 1, 1], [1, 1], ["a", 1, 1], 5]
PATHS = ["../in.zarr/0", "/etc", "a\0b", "..", "a\nb", "x" * 10_000, 5, None]
SHARDS = {"name": "sharding_indexed"}
CODECS = [
    *(None, [], "x", [None], [{"name": "foo"}], [{"name": "zstd"}], [{"name": "bytes"}] * 2),
    *([{**SHARDS, "configuration": {"chunk_shape": c}}] for c in ([0, 8, 8], [3, 8, 8], [4, 4], 5)),
    [{"name": "bytes", "configuration": {"endian": "x"}}],
]
HOSTILE = {
    "0/.zarray": {
        "shape": SHAPES + HUGE,
        "chunks": CHUNKS,
        "dtype": ["foo", "|V8", None, 5, [["a", "<f4"]]],
        "compressor": [{"id": "foo"}, {}, "x", 5],
        "filters": [[{"id": "foo"}], 5],
        "fill_value": ["x", [1]],
        "order": ["X", None],
        "zarr_format": [99, None, "2", 3],
        "dimension_separator": ["x"],
    },
    ".zattrs": {
        "multiscales.0.datasets.0.path": PATHS,
        "multiscales.0.datasets.0.coordinateTransformations.0.scale": SCALES,
        "multiscales.0.axes.0.unit": ["a\nb", 5],
        "multiscales.0.axes": [["c", "z", "y"], ["z", "y", "x"] * 99, ["c"] * 2 + ["zyx"], 5],
        "multiscales.0.datasets": [None, [], 5],
        "multiscales": [None, [], 5],
    },
    "0/zarr.json": {
        "shape": SHAPES + HUGE,
        "chunk_grid.configuration.chunk_shape": CHUNKS,
        "chunk_grid": [None, {"name": "foo", "configuration": {"chunk_shape": [8, 16, 16]}}],
        "data_type": ["foo", None, 5, {"name": "numpy.datetime64"}],
        "codecs": CODECS,
        "fill_value": ["x", None, [1]],
        "zarr_format": [99, None, "3", 2],
        "node_type": ["group", None],
        "chunk_key_encoding": [None, {"name": "foo"}],
        "storage_transformers": [5],
        "foo": [1],
    },
    "zarr.json": {
        "attributes.ome.multiscales.0.datasets.0.path": PATHS,
        "attributes.ome.multiscales.0.axes.0.name": ["q", "a\nb", None],
        "attributes.ome": [5],
        "attributes.octane.kind": ["x", None],
        "attributes.octane.mosaic.pitch": [[1], [nan, 1], [0, 1], None],
        "attributes.octane.mosaic.edge": [[1, 2], ["x", 1, 1]],
        "attributes.octane.section.number": ["x", 10**30, -1],
        "attributes.octane.sections": [
            5,
            [{}],
            [{"name": "a", "number": 1, "start": 5, "stop": "x"}],
        ],
        "attributes": [None, 5],
        "zarr_format": [99, None],
    },
}
"""Values that metadata are given, by file and field."""


@pytest.mark.parametrize(
    ("file", "place", "value"),
    [
        pytest.param(file, place, value, id=f"{file}-{place}-{str(value)[:40]!a}")
        for file, places in HOSTILE.items()
        for place, values in places.items()
        for value in values
    ],
)
def test_hostile_metadata(call, monkeypatch, tmp_path, file, place, value):
    monkeypatch.chdir(tmp_path)
    source = store(Path("input/1/in.zarr"), version=3 if "zarr.json" in file else 2)
    content = inner = json.loads((source / file).read_text())
    *parents, name = (int(word) if word.isdigit() else word for word in place.split("."))
    for parent in parents:
        inner = inner.setdefault(parent, {}) if isinstance(inner, dict) else inner[parent]
    inner[name] = value
    (source / file).write_text(json.dumps(content))
    parameters = {"outdir": "out", "overlap": 0, "resolution": 10, "missing_chunks": "fill"}
    request = {"parameters": parameters, "subjects": [{"id": "a"}]}
    Path("request.json").write_text(json.dumps(request))
    with pytest.raises(OctaneError, match=r"in\.zarr"):
        make_plans(Path("request.json"), Path("input"), Path("plans.json"), Path("none"), Path())
    for command, *arguments in (
        ("resample", source, "out.zarr", "--resolution", "10"),
        ("n4", source, "out.zarr"),
    ):
        start = time.perf_counter()
        code, sentence = call(command, *arguments)
        assert time.perf_counter() - start < 1
        assert code == 1
        assert "in.zarr" in sentence
        assert {"chunk_shape": "chunk", "name": "axes"}.get(name, str(name)) in sentence
        assert len(sentence) < 1000


@pytest.mark.parametrize("name", ["resample", "stitch", "n4", "pyramid"])
def test_no_space(call, small_disk, tmp_path, name):
    full = small_disk("full", "size=64k")
    source = store(tmp_path / "in.zarr", np.random.default_rng(1).random((8, 64, 64), np.float32))
    more = {"resample": ["--resolution", "5"], "stitch": ["--overlap", "0"]}.get(name, [])
    code, sentence = call(name, source, full / "out.zarr", *more)
    assert code == errno.ENOSPC
    assert "No space left on device" in sentence
    assert str(full) in sentence
    assert "free some" in sentence
    assert list(full.iterdir()) == []


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz", ".mha", ".nrrd"])
def test_no_space_for_a_file(command, small_disk, tmp_path, suffix):
    # ITK prints a line of its own, and raises nothing where a NIfTI does not fit.
    full = small_disk("full", "size=64k")
    source = store(tmp_path / "in.zarr", np.random.default_rng(1).random((8, 64, 64), np.float32))
    done = command("n4", source, full / f"out{suffix}", "--shrink-factor", "2")
    sentence = done.stderr.splitlines()[-1]
    # ITK itself does not say why it could not write the last two.
    assert done.returncode in (1, errno.ENOSPC)
    assert sentence.startswith("error: ")
    assert str(full) in sentence
    assert "free" in sentence
    assert list(full.iterdir()) == []
