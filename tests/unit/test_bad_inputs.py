"""Bad input: one sentence that names the file or flag and what to do, exit code 1, nothing left."""

import errno
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from foreign_images import foreign_image
from tifffile import imwrite

PROJECT = Path(__file__).resolve().parents[2]

SHAPE = (8, 32, 48)
TILE = (8, 16, 16)


def values():
    """Something that N4 can work on."""
    return np.random.default_rng(3).gamma(9.0, 10.0, SHAPE).astype(np.float32)


def store(path, voxels=None, *, chunks=TILE, scale=(5.0, 5.0, 5.0), **how):
    """Write an OME-Zarr image as other programs do."""
    voxels = values() if voxels is None else voxels
    transforms = [{"type": "scale", "scale": list(scale)}]
    return foreign_image(path, voxels, transforms=transforms, chunks=chunks, **how)


# Each makes its input in the current folder and gives the arguments.


def called(*arguments):
    return lambda: list(arguments)


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


def masked(mask, name="mask", **how):
    def make():
        store("in.zarr")
        whole = name == "mask" and not (mask % 1).any()
        store(f"{name}.zarr", mask.astype(np.uint8 if whole else np.float32), **how)
        flag = "--n4_mask" if name == "mask" else "--weights"
        return ["in.zarr", "out.zarr", flag, f"{name}.zarr"]

    return make


def unwritable():
    store("in.zarr")
    # Not a folder without rights: root may write to those.
    Path("file").write_text("in the way", encoding="utf-8")
    return ["in.zarr", "file/out.zarr"]


def existing(*arguments):
    def make():
        store("in.zarr")
        store("out.zarr")
        return ["in.zarr", *arguments]

    return make


def linked(*arguments):
    def make():
        store("in.zarr")
        Path("link.zarr").symlink_to("in.zarr")
        Path("table.csv").touch()
        os.link("table.csv", "hard.csv")
        return ["in.zarr", *arguments, "--overwrite"]

    return make


CUT_IN_Z = {"chunks": (4, 16, 16)}
CHANNELS = {"axes": "czyx", "chunks": (1, *TILE), "scale": (1, 5, 5, 5)}
TWO = np.ones((2, *SHAPE))
EMPTY = np.zeros(SHAPE)
CONSTANT = np.repeat([3.0, 5.0], 4)[:, None, None] + EMPTY
LEVELS, SPLINE = "--pyramid_resolutions", "--n4_spline_distance_mm"
FLOAT = ("--resample_dtype", "float32")
SECTIONS = ("--n4_mode", "per_section", "--n4_section_starts", "0", "4")
TARGET = ("--resolution", "10")
FLAT = ("--save_flat_field", "out.zarr/.zattrs")
TABLES = ("--positions", "table.csv", "--preview", "hard.csv")

CASES = [
    ("n4", plain(unit=None), "in.zarr does not state a unit", "--input_unit micrometer"),
    ("pyramid", plain("--timepoint", "1"), "in.zarr has 1 timepoint, but not '1'", "--timepoint"),
    ("resample", plain(*TARGET, **CUT_IN_Z), "in.zarr has chunks of 4 of 8 planes", "rechunk it"),
    ("resample", broken(b"?", *TARGET), "in.zarr: chunk 0/0.1.2 cannot be decoded", "restore it"),
    (
        "resample",
        broken(None, *TARGET),
        "in.zarr: chunk 0/0.1.2 is missing; restore it, or give --missing_chunks fill",
        "tile row 1, column 2",
    ),
    ("stitch", broken(None, "--overlap", "0"), "in.zarr: chunk 0/0.1.2 is missing", "restore it"),
    ("pyramid", plain(LEVELS, "25", "10"), LEVELS, "do not ascend"),
    ("resample", plain(), "", "--resolution"),
    ("resample", plain(*TARGET, "--scale", "0.5"), "--resolution", "or as --scale"),
    ("resample", plain("--scale", "2"), "in.zarr has voxels of 5 x 5 x 5", "--allow_upsampling"),
    ("resample", plain(*TARGET, *FLOAT, voxels=EMPTY + 0j), "complex voxels", ""),
    ("pyramid", broken(None), "in.zarr: chunk 0/0.1.2 is missing", "restore it"),
    ("stitch", plain(), "in.zarr does not state how its tiles overlap", "give --overlap"),
    ("n4", plain(voxels=np.full(SHAPE, 7.0)), "in.zarr has the same value, 7", "check the input"),
    (
        "n4",
        plain("--n4_mask", "tissue", voxels=EMPTY + 7),
        "in.zarr contains no tissue",
        "a mask of",
    ),
    ("n4", plain(voxels=np.zeros(SHAPE, "c8")), "in.zarr holds complex64 voxels", "needs real"),
    ("n4", masked(TWO, **CHANNELS), "mask.zarr has 2 channels: 0, 1", "write only one of them"),
    ("n4", masked(EMPTY[None], **CHANNELS), "mask mask.zarr is empty on", "give another"),
    ("n4", masked(EMPTY + 255), "mask.zarr contains the value 255", "threshold it (mask > 0)"),
    ("n4", masked(EMPTY + 1 - 6e-8), "contains the value 0.99999994", "threshold it (mask > 0)"),
    ("n4", masked(EMPTY[:, :16]), "mask.zarr is on a different grid", "SimpleITK.Resample"),
    ("resample", plain("--resolution", "2"), "in.zarr has voxels of 5 x 5 x 5", "--resolution"),
    ("pyramid", plain(LEVELS, "2"), f"{LEVELS} asks for 2", "remove"),
    ("n4", plain(SPLINE, "50"), f"in.zarr: {SPLINE} is", "at most"),
    ("n4", masked(EMPTY - 1, "weights"), "weights.zarr", "below 0"),
    ("n4", masked(EMPTY + np.nan, "weights"), "weights.zarr", "below 0 or NaN"),
    (
        "n4",
        plain("--n4_section_starts", "0", "8"),
        "--n4_section_starts is 0 8",
        "ascending planes",
    ),
    ("n4", plain(*SECTIONS, voxels=CONSTANT), "Every section is empty or", "--n4_mode global"),
    ("n4", plain("--n4_mode", "per_section"), "--n4_mode per_section needs", "--n4_section_starts"),
    ("resample", plain("--resolution", "90"), "tiles of 80 x 80 µm (y x), which", "finer"),
    ("n4", linked("link.zarr"), "given as destination and would replace in.zarr", "another name"),
    ("n4", linked("in.zarr/0/a.zarr"), "in.zarr/0/a.zarr is given as destination", "another name"),
    ("n4", linked("."), ". is given as destination and would replace in.zarr", "another name"),
    ("n4", linked("a.zarr", "--n4_mask", "a.zarr"), "replace a.zarr, the mask", "another name"),
    ("n4", linked("a.zarr", "--metrics", "in.zarr/a.json"), "given as metrics", "another name"),
    ("n4", linked("a.zarr", "--save_bias_field", "a.zarr"), "the save_bias_field", "another name"),
    ("stitch", linked("a.zarr", *TABLES), "replace table.csv, the positions", "another name"),
    ("stack", linked("in.zarr"), "would replace in.zarr, the sources", "another name"),
    (
        "resample",
        plain(*TARGET, "--metrics", "no/m.json"),
        "its folder does not exist",
        "create it",
    ),
    ("n4", plain("--n4_mask", "none.nii"), "none.nii does not exist", "check the path"),
    ("n4", linked("n4.png"), "n4.png has an unsupported format", "use .ome.zarr, .nii"),
    ("stitch", linked("a.nii"), "a.nii is not an OME-Zarr name", "end it in .ome.zarr"),
    (
        "n4",
        plain("--save_bias_field", "b.doc"),
        "b.doc has an unsupported format",
        "use .ome.zarr, .nii",
    ),
    ("n4", unwritable, "file cannot be written", "choose another place"),
    ("n4", existing("out.zarr"), "out.zarr exists already", "--overwrite"),
    ("n4", existing("a.nii", "--save_bias_field", "out.zarr"), "exists already", "--overwrite"),
    ("pyramid", existing("out.zarr"), "out.zarr exists already", "--overwrite"),
    ("stitch", existing("a.zarr", *FLAT), "out.zarr/.zattrs exists already", "--overwrite"),
    ("n4", plain("--backend", "gpu"), "--backend", "cpu"),
    ("resample", plain(*TARGET, "--memory", "10kB"), "One block at a time needs", "give --memory"),
    ("resample", called("a", "b.zarr", "--resolution", "zero"), "--resolution is 'zero'", ""),
    ("resample", called("a", "b.zarr", *TARGET, "10"), "is '10 10': give one", "or z=4,y=4,x=4."),
    ("resample", called("a", "b.zarr", "c"), "'c'", ""),
    ("resample", called("a"), "DESTINATION", ""),
    ("resample", called(), "SOURCE", ""),
    ("n4", called("a", "b", "--memory", "4"), "'4' is not a size with a unit", "like 4GB."),
    ("stitch", called("a", "b.zarr", "--overlap", "1.5"), "--overlap is '1.5'", ""),
    ("stack", called("out.zarr", "none_1.zarr"), "none_1.zarr does not exist", "check the path"),
    ("preflight", called("out.json"), "--request", ""),
    (
        "stack",
        called("a.zarr", "b", "--save_displacements", "."),
        ". is a folder",
        "give a file name.",
    ),
    # A table that is read may exist.
    ("stack", called("a.zarr", "b", "--displacements", __file__), "b does not exist", "check"),
    ("phantom", called("out", "--metrics", "."), ". is a folder", "give a file name."),
    ("n4", called("a", "b", "--preview", "."), ". is a folder", "give a file name."),
    ("mosaic", called("a"), "MOSAICS is missing", "give the folder to write, or --dry_run."),
]


def named(case):
    """A test's name: the command and what it finds."""
    return f"{case[0]}-{re.sub(r'[^a-z0-9]+', '-', case[2].lower()).strip('-')}"


def tree():
    """Every file and folder below the current one."""
    return sorted(str(path) for path in Path().rglob("*"))


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


@pytest.mark.parametrize(
    ("name", "more", "memory", "says"),
    [
        ("n4", [], "300MB", "Decoding a plane of in/a.tif needs"),
        ("resample", [*TARGET], "300MB", "Decoding a plane of in/a.tif needs"),
        ("pyramid", [], "300MB", "Decoding a plane of in/a.tif needs"),
        ("export", [], "300MB", "Decoding a plane of in/a.tif needs"),
        # It also holds the tile.
        ("mosaic", [], "330MB", "One block at a time needs"),
    ],
)
def test_a_strip_that_exceeds_the_memory(call, monkeypatch, tmp_path, name, more, memory, says):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    Path("in").mkdir()
    plane = np.zeros((1, 4000, 4000), np.uint8)
    size = {"PhysicalSizeZ": 5, "PhysicalSizeY": 5, "PhysicalSizeX": 5}
    imwrite("in/a.tif", plane, ome=True, compression="zlib", rowsperstrip=4000, metadata=size)
    source = "in" if name == "mosaic" else "in/a.tif"
    before = tree()
    code, sentence = call(name, source, "out.ome.zarr", *more, "--memory", memory)
    assert (code, says in sentence, "give --memory" in sentence) == (1, True, True)
    assert tree() == before


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


@pytest.mark.parametrize(
    "suffix",
    [".nii", ".mha", *(pytest.param(s, marks=pytest.mark.soak) for s in (".nii.gz", ".nrrd"))],
)
def test_no_space_for_a_file(command, small_disk, tmp_path, suffix):
    # ITK prints a line of its own, and raises nothing where a NIfTI does not fit.
    full = small_disk("full", "size=64k")
    source = store(tmp_path / "in.zarr", np.random.default_rng(1).random((8, 64, 64), np.float32))
    done = command("n4", source, full / f"out{suffix}", "--n4_shrink_factor", "2")
    sentence = done.stderr.splitlines()[-1]
    # ITK itself does not say why it could not write the last two.
    assert done.returncode in (1, errno.ENOSPC)
    assert sentence.startswith("error: ")
    assert str(full) in sentence
    assert "free" in sentence
    assert list(full.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "says"),
    [("\x1b[31ma.nii", r"\x1b[31ma.nii does not"), ("a\udcff.nii", r"a\udcff.nii does not")],
)
def test_a_name_cannot_change_the_terminal(call, monkeypatch, tmp_path, name, says):
    monkeypatch.chdir(tmp_path)
    assert says in call("n4", name, "out.zarr")[1]


def test_a_name_too_long_for_a_result_is_said_to_be(call, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    store("in.zarr")
    code, sentence = call("export", "in.zarr", f"{'a' * 236}.nii", "--input_unit", "micrometer")
    assert (code, "a.nii has a name too long" in sentence) == (1, True)


@pytest.mark.parametrize("name", ["out.nii", "out.ome.zarr"])
def test_a_limit_of_file_sizes_is_named(tmp_path, name):
    source = store(tmp_path / "in.zarr", np.random.default_rng(1).random((8, 64, 64), np.float32))
    limit = f"ulimit -f 8; exec {sys.executable} {PROJECT}/bin/export.py {source} {tmp_path / name}"
    done = subprocess.run(["bash", "-c", limit], capture_output=True, text=True, check=False)
    sentence = done.stderr.splitlines()[-1]
    assert (done.returncode, "raise ulimit -f" in sentence) == (1, True)
    assert str(tmp_path / name) in sentence
    # A block is named by its bounds, not as Python writes it.
    assert "slice(" not in sentence
    assert not (tmp_path / name).exists()
