"""Files that ITK reads: headers, parts and loading."""

import gzip
import os
import re
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise, product

import nibabel as nib
import numpy as np
import pytest
import SimpleITK as sitk
from flipped_bits import refusals
from refusals import refused

from octane.config.parameters import InputParameters
from octane.core.errors import OctaneError
from octane.core.geometry import Grid, vector
from octane.store.formats import itk_files
from octane.store.formats.itk_files import NIFTI_PIXDIM, FileVolume, open_file

SHAPE = (9, 20, 33)
REGION = (slice(2, 7), slice(3, 20), slice(5, 30))

NAMES = ["a.nii", "a.nii.gz", "a.mha", "packed.mha", "a.nrrd", "packed.nrrd"]
NIFTI_SCALE = 112
"""Offset of slope and intercept in a NIfTI header."""


@pytest.fixture
def voxels(rng):
    return rng.random(SHAPE, np.float32)


@pytest.fixture(params=[1000, 10_000, itk_files.PIECE_BYTES])
def pieces(request, monkeypatch):
    """Read in one piece, in several, and plane by plane."""
    monkeypatch.setattr(itk_files, "PIECE_BYTES", request.param)


def no_reading(*_):
    pytest.fail("voxels were read")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *product(NAMES, ["uint8", "int16", "float32"]),
        *product(["a.nii", "a.nii.gz", "a.nrrd", "packed.nrrd"], ["complex64"]),
    ],
)
def test_a_header_describes_the_image(write_file, voxels, name, dtype, monkeypatch):
    path = write_file(name, (100 * voxels).astype(dtype))
    image = sitk.ReadImage(path)
    monkeypatch.setattr(sitk, "ReadImage", no_reading)
    volume = open_file(path)
    assert volume.dtype == dtype == sitk.GetArrayFromImage(image).dtype
    assert volume.grid.shape == SHAPE
    for told in ("GetSpacing", "GetOrigin", "GetDirection", "GetPixelIDValue"):
        assert getattr(volume.frame, told)() == getattr(image, told)()


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("name", NAMES)
def test_threads_that_want_parts_read_the_file_once(write_file, voxels, name, monkeypatch):
    volume = open_file(write_file(name, voxels))
    read_all, begun = FileVolume._read_all, []
    monkeypatch.setattr(FileVolume, "_read_all", lambda self: begun.append(self) or read_all(self))
    with ThreadPoolExecutor(6) as pool:
        parts = list(pool.map(volume.read, [REGION] * 6))
    assert begun == [volume]
    out = np.empty(voxels[REGION].shape, voxels.dtype)
    assert volume.read(REGION, out) is out
    for part in (*parts, out):
        np.testing.assert_array_equal(part, voxels[REGION])
    # Reading returns a copy.
    parts[0][...] = 0
    np.testing.assert_array_equal(volume.read(REGION), voxels[REGION])


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("shape", [(1, 20, 33), (1, 1, 33), (2, 1, 5)])
@pytest.mark.parametrize("name", ["a.nii", "a.nii.gz", "a.mha"])
def test_flat_volumes_are_read(write_file, rng, name, shape):
    voxels = rng.random(shape, np.float32)
    volume = open_file(write_file(name, voxels))
    np.testing.assert_array_equal(volume.read(tuple(slice(0, n) for n in shape)), voxels)


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("name", ["a.nii", "a.nii.gz"])
@pytest.mark.parametrize("dtype", ["int16", "float32"])
@pytest.mark.parametrize("scale", [(2.5, 0), (1, -1.25)])
def test_scaled_voxels_are_scaled_in_every_part(write_file, rng, tmp_path, name, dtype, scale):
    stored = rng.integers(0, 1000, SHAPE).astype(dtype)
    content = bytearray(write_file("plain.nii", stored).read_bytes())
    struct.pack_into("<ff", content, NIFTI_SCALE, *scale)
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    whole = sitk.GetArrayFromImage(sitk.ReadImage(path))
    volume = open_file(path)
    assert volume.dtype == whole.dtype == np.float32
    np.testing.assert_array_equal(volume.read(REGION), whole[REGION])


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8"])
@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_non_finite_voxels_are_as_itk_reads_them(write_file, voxels, dtype, value):
    voxels = voxels.astype(dtype)
    voxels[3, 4, 5] = value
    path = write_file("a.nii", voxels)
    expected = sitk.GetArrayFromImage(sitk.ReadImage(path))
    np.testing.assert_array_equal(open_file(path).voxels, expected)


def test_big_endian_voxels_are_read(write_file, voxels, tmp_path):
    header, marker, rest = write_file("a.mha", voxels).read_bytes().partition(b"= LOCAL\n")
    swapped = header.replace(b"ByteOrderMSB = False", b"ByteOrderMSB = True")
    turned = np.frombuffer(rest, "<u4").byteswap().tobytes()
    (tmp_path / "b.mha").write_bytes(swapped + marker + turned)
    volume = open_file(tmp_path / "b.mha")
    assert volume.dtype == np.dtype("f4")
    np.testing.assert_array_equal(volume.read(REGION), voxels[REGION])


def test_a_negative_spacing_turns_the_axis_as_itk_does(write_file, voxels):
    path = write_file("a.mha", voxels)
    before, content = sitk.ReadImage(path), path.read_bytes()
    path.write_bytes(content.replace(b"ElementSpacing = 0.025", b"ElementSpacing = -0.025"))
    image, volume = sitk.ReadImage(path), open_file(path)
    assert volume.frame.GetSpacing() == image.GetSpacing() == (0.025, 0.03, 0.04)
    assert volume.frame.GetDirection() == image.GetDirection() != before.GetDirection()
    assert volume.grid.spacing == pytest.approx((40.0, 30.0, 25.0))


@pytest.mark.parametrize("unit", ["microns", "µm", "pixel"])
def test_sizes_of_a_nrrd_in_another_unit_are_refused(write_file, voxels, unit):
    path = write_file("a.nrrd", voxels)
    stated = f'space units: "{unit}" "{unit}" "{unit}"\nencoding'.encode()
    path.write_bytes(path.read_bytes().replace(b"encoding", stated, 1))
    with refused(unit):
        open_file(path)


@pytest.mark.parametrize("dtype", ["u1", "f4"])
def test_a_truncated_nifti_is_refused_before_voxels_are_read(write_file, voxels, dtype):
    path = write_file("a.nii", (100 * voxels).astype(dtype))
    whole = path.stat().st_size
    os.truncate(path, whole - 1)
    with refused("a.nii", whole - 1, whole):
        open_file(path)


@pytest.mark.parametrize("name", ["a.mha", "a.nii.gz", "packed.mha", "packed.nrrd"])
def test_a_truncated_file_is_refused(write_file, voxels, name):
    path = write_file(name, voxels)
    os.truncate(path, path.stat().st_size * 9 // 10)
    with refused(path.name) as caught:
        open_file(path).load()
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("a.mha", "", ""),
        ("a.nrrd", "", ""),
        ("a.nrrd", "encoding: raw", "encoding: txt"),
        ("a.nrrd", "encoding: raw", "encoding: hex"),
        ("a.mha", "BinaryData = True", "BinaryData = False"),
    ],
)
def test_a_size_that_the_file_cannot_hold_is_refused_before_voxels_are_read(
    write_file, voxels, name, old, new, monkeypatch
):
    path = write_file(name, voxels)
    content = path.read_bytes()
    assert old.encode() in content
    content = content.replace(old.encode(), new.encode(), 1)
    content = content.replace(b"33 20 9", b"30000 30000 2000", 1)
    path.write_bytes(content)
    monkeypatch.setattr(sitk, "ReadImage", no_reading)
    with refused(name):
        open_file(path)


@pytest.mark.parametrize(
    ("name", "told", "words"),
    [
        *(
            ("ElementSpacing", told, "pacing")
            for told in ("0 1 1", "1 -0.0 1", "1 1 1e-400", "nan 1 1", "1 inf 1", "1 1 a")
        ),
        ("TransformMatrix", "0 0 0 0 0 0 0 0 0", "irection"),
    ],
)
def test_a_header_without_meaning_is_refused(write_file, voxels, name, told, words):
    path = write_file("a.mha", voxels)
    content = re.sub(rf"{name} = [^\n]*".encode(), f"{name} = {told}".encode(), path.read_bytes())
    path.write_bytes(content)
    with refused(words):
        open_file(path)


def with_field(path, field, told):
    """Put another line in the place of a header's field."""
    content = path.read_bytes()
    assert len(re.findall(field + rb"[^\n]*\n", content)) == 1
    path.write_bytes(re.sub(field + rb"[^\n]*\n", told and told + b"\n", content))
    return path


def write_pixdim(path, order, axis, size):
    """Set a size in the header of a NIfTI, and turn the header's bytes if ``order`` is >."""
    packed = path.name.endswith(".gz")
    content = bytearray(gzip.decompress(path.read_bytes()) if packed else path.read_bytes())
    struct.pack_into("<f", content, NIFTI_PIXDIM + 4 * axis, size)
    if order == ">":
        header = nib.Nifti1Header(bytes(content[:348]), check=False).as_byteswapped(">")
        content[:348] = header.binaryblock
        voxels = np.frombuffer(bytes(content[352:]), header.get_data_dtype().newbyteorder("<"))
        content[352:] = voxels.byteswap().tobytes()
    path.write_bytes(gzip.compress(content) if packed else content)
    return path


SIZES = (40.0, 30.0, 25.0)
"""Sizes along z, y and x of what write_file writes, micrometres."""


def require_unstated(path, voxels, unstated, others=SIZES):
    """Without a given size the file is refused; with one, all else is as in the file."""
    listed = ", ".join(
        "not stated" if axis in unstated else f"{s / 1000:g} mm" for axis, s in enumerate(others)
    )
    with refused(path.name, f"(z y x: {listed})", "--voxel_size"):
        open_file(path)
    given = vector(*(7.0 if axis in unstated else s for axis, s in enumerate(others)))
    volume = open_file(path, InputParameters(voxel_size=given))
    assert volume.grid.spacing == pytest.approx(given)
    assert volume.frame.GetSpacing() == pytest.approx([s / 1000 for s in reversed(given)])
    assert volume.grid.shape == SHAPE
    np.testing.assert_array_equal(volume.read(REGION), voxels[REGION])
    # A mask is on the grid of its volume.
    assert open_file(path, None, Grid(SHAPE, given)).grid.spacing == given
    if len(unstated) < 3:
        with refused(path, "--voxel_size"):
            open_file(path, InputParameters(voxel_size=(7.0, 7.0, 7.0)))


@pytest.mark.parametrize("size", [0.0, -0.0, np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize(("name", "order"), [("a.nii", "<"), ("a.nii", ">"), ("a.nii.gz", "<")])
def test_a_size_of_a_nifti_that_is_0_or_not_finite_counts_as_not_stated(
    write_file, voxels, name, order, axis, size
):
    path = write_pixdim(write_file(name, voxels), order, axis, size)
    require_unstated(path, voxels, {2 - axis})


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize(("name", "order"), [("a.nii", "<"), ("a.nii", ">"), ("a.nii.gz", "<")])
def test_a_negative_size_of_a_nifti_turns_the_axis_as_itk_does_with_a_note(
    write_file, voxels, name, order, axis
):
    path = write_file(name, voxels)
    before = open_file(path)
    assert before.overruled == ""
    write_pixdim(path, order, axis, -SIZES[2 - axis] / 1000)
    image, volume = sitk.ReadImage(path), open_file(path)
    assert volume.grid.spacing == pytest.approx(SIZES)
    assert volume.frame.GetSpacing() == image.GetSpacing()
    assert volume.frame.GetDirection() == image.GetDirection()
    axes = [np.reshape(own.GetDirection(), (3, 3))[:, axis] for own in (image, before.frame)]
    np.testing.assert_array_equal(axes[0], -axes[1])
    assert f"along {'xyz'[axis]}." in volume.overruled
    np.testing.assert_array_equal(volume.read(REGION), voxels[REGION])


@pytest.mark.parametrize("order", ["<", ">"])
def test_the_unused_sizes_of_a_nifti_do_not_matter(write_file, voxels, order):
    path = write_pixdim(write_file("a.nii", voxels), order, 4, np.nan)
    assert open_file(path).grid.spacing == pytest.approx(SIZES)


@pytest.mark.parametrize("name", ["a.mha", "packed.mha", "a.mhd"])
def test_a_metaimage_without_sizes_does_not_state_them(write_file, voxels, name):
    path = with_field(write_file(name, voxels), b"ElementSpacing", b"")
    require_unstated(path, voxels, {0, 1, 2})


def test_the_size_of_an_element_is_its_spacing(write_file, voxels):
    path = with_field(write_file("a.mha", voxels), b"ElementSpacing", b"ElementSize = 0.1 0.2 0.3")
    assert open_file(path).grid.spacing == pytest.approx((300, 200, 100))


@pytest.mark.parametrize(
    ("told", "unstated"),
    [
        (b"spacings: nan nan nan", {0, 1, 2}),
        (b"spacings: 0.025 NaN 0.04", {1}),
        (b"", {0, 1, 2}),
        (b"thicknesses: 0.1 0.1 0.1", {0, 1, 2}),
        (b"axis mins: 0 0 0\naxis maxs: 1 1 1", {0, 1, 2}),
        (b"space dimension: 3\nspace directions: none (0, 0.03, 0) (0,0,0.04)", {2}),
    ],
)
@pytest.mark.parametrize("name", ["a.nrrd", "packed.nrrd", "a.nhdr"])
def test_a_size_of_a_nrrd_that_is_nan_or_missing_counts_as_not_stated(
    write_file, voxels, name, told, unstated
):
    path = with_field(write_file(name, voxels), b"space directions", told)
    for field in (b"space:", b"space origin"):
        with_field(path, field, b"")
    require_unstated(path, voxels, unstated)


@pytest.mark.parametrize("axis", ["(0,0,0)", "(nan,0,0)", "(inf,0,0)"])
def test_a_nrrd_whose_axis_has_no_direction_is_refused(write_file, voxels, axis):
    told = f"space directions: {axis} (0,0.03,0) (0,0,0.04)".encode()
    path = with_field(write_file("a.nrrd", voxels), b"space directions", told)
    for size in (None, SIZES):
        with refused("a.nrrd"):
            open_file(path, InputParameters(voxel_size=size))


@pytest.mark.parametrize(("unit", "is_read"), [("mm", True), ("?", True), ("um", False)])
def test_sizes_of_a_metaimage_in_another_unit_are_refused(write_file, voxels, unit, is_read):
    path = with_field(write_file("a.mha", voxels), b"ObjectType", b"ObjectType = Image\nCOMMENT")
    path = with_field(path, b"COMMENT", f"DistanceUnits = {unit}".encode())
    if is_read:
        assert open_file(path).grid.spacing == pytest.approx(SIZES)
    else:
        with refused(path, "um"):
            open_file(path)


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_a_size_that_is_not_plausible_is_refused(write_file, voxels, size):
    path = write_pixdim(write_file("a.nii", voxels), "<", 2, size)
    with refused(path):
        open_file(path)


@pytest.mark.parametrize(
    ("name", "holder", "begins"),
    [
        ("packed.mha", "packed.mha", b"= LOCAL\n"),
        ("packed.mhd", "packed.zraw", b""),
        ("packed.nrrd", "packed.nrrd", b"\n\n"),
        ("packed.nhdr", "packed.raw.gz", b""),
        ("a.nii.gz", "a.nii.gz", b""),
    ],
)
def test_a_flipped_bit_of_compressed_voxels_never_becomes_a_value(
    write_file, rng, name, holder, begins
):
    voxels = rng.normal(500, 30, SHAPE).astype(np.int16)
    path = write_file(name, voxels)
    file = path.with_name(holder)
    start = file.read_bytes().index(begins) + len(begins)
    whole = tuple(slice(0, n) for n in SHAPE)
    messages = refusals(file, lambda: open_file(path).read(whole), voxels, start)
    assert len(messages) > 28
    assert all(f"{file} cannot be read as an image (" in message for message in messages)


@pytest.mark.parametrize("members", [2, 5])
def test_a_flipped_bit_in_any_member_of_a_gzip_never_becomes_a_value(write_file, rng, members):
    voxels = rng.normal(500, 30, SHAPE).astype(np.int16)
    path = write_file("packed.nhdr", voxels)
    file, raw = path.with_name("packed.raw.gz"), voxels.tobytes()
    cuts = np.linspace(0, len(raw), members + 1).astype(int).tolist()
    file.write_bytes(b"".join(gzip.compress(raw[a:b]) for a, b in pairwise(cuts)))
    whole = tuple(slice(0, n) for n in SHAPE)
    last = len(gzip.compress(raw[cuts[-2] :]))
    start = file.stat().st_size - last
    assert len(refusals(file, lambda: open_file(path).read(whole), voxels, start)) > 20


@pytest.mark.parametrize("spelling", [b" CompressedData = True", b"CompressedData\t=\tTrue"])
def test_a_compressed_metaimage_is_known_by_any_spelling(write_file, rng, spelling):
    voxels = rng.integers(0, 255, SHAPE, np.uint8)
    path = write_file("packed.mha", voxels)
    path.write_bytes(path.read_bytes().replace(b"CompressedData = True", spelling, 1))
    whole = tuple(slice(0, n) for n in SHAPE)
    start = path.read_bytes().index(b"LOCAL") + 6
    assert len(refusals(path, lambda: open_file(path).read(whole), voxels, start)) > 28


def test_compressed_voxels_are_read_wherever_they_begin_and_whatever_follows(write_file, voxels):
    raw = voxels.tobytes()
    meta, nrrd = write_file("packed.mhd", voxels), write_file("packed.nhdr", voxels)
    packed, zipped = (meta.with_suffix(".zraw"), nrrd.with_name("packed.raw.gz"))
    plain = re.sub(rb"CompressedDataSize.*\n", b"", meta.read_bytes())
    listed = nrrd.read_bytes()
    members = gzip.compress(raw[:7000]) + gzip.compress(raw[7000:])
    for header, file, field, content in (
        (meta, packed, b"", packed.read_bytes() + b"tail"),
        (meta, packed, b"HeaderSize = 7\n", b"skipped" + packed.read_bytes()),
        (meta, packed, None, gzip.compress(raw)),
        (nrrd, zipped, b"", members + b"tail"),
        (nrrd, zipped, b"line skip: 2\n", b"two\nlines\n" + gzip.compress(raw)),
        (nrrd, zipped, b"byte skip: 7\n", gzip.compress(b"skipped" + raw)),
    ):
        stated = plain if field is None else listed if header is nrrd else meta.read_bytes()
        file.write_bytes(content)
        header.write_bytes(
            re.sub(rb"ElementDataFile|data file", (field or b"") + rb"\g<0>", stated)
        )
        volume = open_file(header)
        np.testing.assert_array_equal(volume.voxels, voxels)
        header.write_bytes(stated)
    packed.write_bytes(zlib.compress(raw[:-4]))
    with refused("packed.zraw"):
        open_file(meta).load()


HEADERS = ["a.mhd", "packed.mhd", "a.nhdr", "packed.nhdr"]


def voxels_of(header):
    (found,) = {*header.parent.iterdir()} - {header}
    return found


@pytest.mark.parametrize("name", HEADERS)
def test_voxels_next_to_a_header_are_read_wherever_it_is_linked(write_file, voxels, tmp_path, name):
    path = write_file(name, voxels)
    (tmp_path / "staged").mkdir()
    link = tmp_path / "staged" / f"b{path.suffix}"
    link.symlink_to(path)
    for header in (path, link):
        volume = open_file(header)
        assert volume.path == header
        np.testing.assert_array_equal(volume.read(REGION), voxels[REGION])
    # As unu writes names.
    field = rb"(ElementDataFile = |data file: )"
    path.write_bytes(re.sub(field, rb"\1./", path.read_bytes()))
    np.testing.assert_array_equal(open_file(path).read(REGION), voxels[REGION])


ELSEWHERE = ["LIST", "LIST 3", "a%02d.raw 0 8 1", "../a.raw", "/etc/hostname", "b/a.raw", "", "a*"]


@pytest.mark.parametrize("where", ELSEWHERE)
@pytest.mark.parametrize("name", ["a.mhd", "a.mha", "a.nhdr", "a.nrrd"])
def test_voxels_in_anything_but_a_file_next_to_the_header_are_refused(
    write_file, voxels, tmp_path, name, where
):
    (tmp_path / "in").mkdir()
    path = write_file("in/a.mhd" if ".m" in name else "in/a.nhdr", voxels)
    voxels_of(path).rename(tmp_path / "a.raw")
    field, header = rb"(ElementDataFile =|data file:).*", path.read_bytes()
    path = path.with_name(name)
    # The pattern is for nine planes, but there are fewer files.
    path.write_bytes(re.sub(field, rb"\1 " + where.encode(), header) + b"../a.raw\n" * 3)
    with refused(name):
        open_file(path)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        # ITK accepts each of these as the field, and would read any file.
        ("a.nhdr", b"\ndata file:", b"\rdata file:"),
        ("a.mhd", b"ElementDataFile =", b"ElementDataFile\0="),
        ("a.mhd", b"ElementDataFile", b"ElementDataFiles"),
    ],
)
def test_a_header_that_hides_its_field_is_refused(write_file, voxels, name, old, new):
    path = write_file(name, voxels)
    header = path.read_bytes()
    assert old in header
    path.write_bytes(header.replace(old, new))
    with refused(path):
        open_file(path)


@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", HEADERS)
def test_a_file_of_voxels_is_looked_at_when_its_header_is_opened(write_file, voxels, name):
    path = write_file(name, voxels)
    raw = voxels_of(path)
    if "packed" not in name:
        for content in (raw.read_bytes()[:-1], raw.read_bytes() + b"1"):
            raw.write_bytes(content)
            with refused(raw.name, len(content), name, voxels.nbytes):
                open_file(path)
    raw.unlink()
    with refused(raw.name, name):
        open_file(path)
    os.mkfifo(raw)
    with refused(raw.name, "FIFO"):
        open_file(path)


@pytest.mark.parametrize(
    ("name", "field"),
    [("a.mhd", b"HeaderSize = 7\nElementDataFile"), ("a.nhdr", b"byte skip: 7\ndata file")],
)
def test_bytes_before_the_voxels_are_skipped(write_file, voxels, name, field):
    path = write_file(name, voxels)
    raw = voxels_of(path)
    raw.write_bytes(b"skipped" + raw.read_bytes())
    path.write_bytes(re.sub(rb"ElementDataFile|data file", field, path.read_bytes()))
    np.testing.assert_array_equal(open_file(path).read(REGION), voxels[REGION])


@pytest.mark.parametrize("name", ["a.mha", "a.nrrd"])
def test_a_header_without_an_end_is_refused(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(b"NRRD0004\n" + b"# comment\n" * 200_000 + b"data file: /etc/hostname\n")
    with refused(name):
        open_file(path)


LONG = 300_000


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("name", "before", "extra"),
    [
        ("a.mha", b"ElementDataFile", b"\n" * LONG),
        ("a.mha", b"ElementDataFile", b"Comment = " + b" " * LONG + b"\n"),
        ("a.nrrd", b"encoding", b"space: RAS\n" * (LONG // 11)),
        ("a.nrrd", b"encoding", b"spacings: " + b"(" * LONG + b"\n"),
        ("a.nrrd", b"encoding", b"space directions: " + b" (1," * (LONG // 4) + b"\n"),
    ],
)
def test_a_long_header_takes_no_long_time(write_file, voxels, name, before, extra):
    path = write_file(name, voxels)
    content = path.read_bytes()
    assert before in content
    path.write_bytes(content.replace(before, extra + before, 1))
    with suppress(OctaneError):
        open_file(path)
