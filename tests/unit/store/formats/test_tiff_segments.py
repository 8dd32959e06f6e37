"""Strips and tiles of TIFFs: every codec, damage, and headers that promise too much."""

import lzma
import struct
from pathlib import Path

import imagecodecs
import numpy as np
import pytest
import tifffile
from flipped_bits import refusals
from refusals import refused

from octane.config.parameters import InputParameters
from octane.core.errors import InputError
from octane.pipeline.workers import require_decodable
from octane.store.formats.tiff_files import open_tiff

SHAPE = (3, 40, 50)
SIZE = (2, 0.65, 0.6)
STRIPS, TILES = {"rowsperstrip": 7}, {"tile": (16, 32)}
LAYOUTS = ({}, STRIPS, TILES)
BYTES = (None, "lzw", "packbits", "zlib", "lzma", "zstd")
ENCODERS = {
    "lzw": imagecodecs.lzw_encode,
    "packbits": imagecodecs.packbits_encode,
    "zlib": imagecodecs.zlib_encode,
    "lzma": imagecodecs.lzma_encode,
    "zstd": imagecodecs.zstd_encode,
    "jpeg": imagecodecs.jpeg8_encode,
    "jpeg2000": lambda array: imagecodecs.jpeg2k_encode(array, level=0),
    "jpegxr": lambda array: imagecodecs.jpegxr_encode(array, level=1.0),
    "lerc": imagecodecs.lerc_encode,
}
CODECS = [*ENCODERS]
QUICK = ("lzw", "jpeg2000")
FEW_CODECS = [pytest.param(c, marks=[pytest.mark.soak] * (c not in QUICK)) for c in ENCODERS]
"""All, of which most are left to soak: 64 MB take seconds to encode."""


def opened(path):
    return open_tiff(path, InputParameters.model_validate({"voxel_size": SIZE}), flat=True)


def whole(path):
    volume = opened(path)
    return volume.read(tuple(slice(0, n) for n in volume.grid.shape))


def refusal_of(path):
    with refused(path):
        whole(path)


@pytest.fixture
def smooth():
    """Voxels that codecs compress, in a type."""

    def make(dtype, shape=SHAPE):
        z, y, x = np.ogrid[tuple(slice(0, n) for n in shape)]
        wave = np.sin(y / 9) * np.cos(x / 7 + z) + (x * 7 + y * 3) % 5 / 9
        return (wave * 30 + 60).astype(dtype)

    return make


@pytest.fixture
def write(tmp_path):
    """Write a TIFF; return its path."""

    def make(array, name="a.tif", **options):
        tifffile.imwrite(tmp_path / name, array, photometric="minisblack", **options)
        return tmp_path / name

    return make


@pytest.fixture
def plane(tmp_path):
    """Write a plane whose strips or tiles are encoded already; return its path."""

    def make(segments, compression, shape=(40, 50), dtype="uint8", name="a.tif", **options):
        options.setdefault("rowsperstrip", shape[0])
        tifffile.imwrite(
            tmp_path / name, iter(segments), shape=shape, dtype=dtype, compression=compression,
            photometric="minisblack", metadata=None, **options,
        )  # fmt: skip
        return tmp_path / name

    return make


def overwritten(path, code, values):
    """Overwrite the values of a tag of the first page."""
    with tifffile.TiffFile(path, mode="r+") as file:
        page = file.pages.first
        page.tags[code].overwrite(values)
    return path


def parts_of(voxels, rowsperstrip=None, tile=None):
    """Strips or tiles of a plane; those at its edges have only what lies within it."""
    rows, columns = tile or (rowsperstrip or len(voxels), voxels.shape[1])
    return [
        np.ascontiguousarray(voxels[y : y + rows, x : x + columns])
        for y in range(0, len(voxels), rows)
        for x in range(0, voxels.shape[1], columns)
    ]


def encoded(codec, array):
    """A strip or tile of 8-bit voxels."""
    if codec.startswith(("jpeg", "lerc")):
        return ENCODERS[codec](array)
    return ENCODERS[codec](array.tobytes())


@pytest.mark.parametrize("byteorder", ["<", pytest.param(">", marks=pytest.mark.soak)])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("compression", "predictor"),
    [
        (compression, predictor)
        for compression in BYTES
        for predictor in (None, "horizontal", "floatingpoint")
        # tifffile does not write it.
        if compression or not predictor
    ],
)
def test_voxels_of_every_type_are_those_written(
    write, smooth, compression, predictor, layout, byteorder
):
    integers, others = ["u1", "i1", "u2", "i2", "u4", "i4", "u8"], ["f4", "f8", "c8"]
    types = {None: integers + others, "horizontal": integers, "floatingpoint": ["f2", "f4", "f8"]}
    for dtype in types[predictor]:
        voxels = smooth(dtype)
        path = write(
            voxels, compression=compression, predictor=predictor, byteorder=byteorder, **layout
        )
        read = whole(path)
        assert read.dtype == np.dtype(dtype)
        np.testing.assert_array_equal(read, voxels, err_msg=dtype)


@pytest.mark.parametrize("byteorder", ["<", pytest.param(">", marks=pytest.mark.soak)])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("compression", "dtype"),
    [
        ("jpeg2000", "u1"),
        ("jpeg2000", "u2"),
        ("jpeg2000", "i2"),
        ("jpegxr", "u1"),
        ("jpegxr", "u2"),
        ("lerc", "u1"),
        ("lerc", "i2"),
        ("lerc", "f4"),
    ],
)
def test_lossless_images_are_those_written(plane, smooth, compression, dtype, layout, byteorder):
    # tifffile would encode big-endian voxels with their bytes exchanged.
    voxels = smooth(dtype, (1, 48, 64))[0]
    parts = [ENCODERS[compression](part) for part in parts_of(voxels, **layout)]
    path = plane(parts, compression, voxels.shape, voxels.dtype, byteorder=byteorder, **layout)
    np.testing.assert_array_equal(whole(path)[0], voxels)


@pytest.mark.parametrize("byteorder", ["<", pytest.param(">", marks=pytest.mark.soak)])
@pytest.mark.parametrize("layout", [{}, {"rowsperstrip": 16}, TILES])
@pytest.mark.parametrize("level", [80, 100])
def test_jpegs_are_those_that_tifffile_reads(write, smooth, layout, byteorder, level):
    options = {"compression": "jpeg", "compressionargs": {"level": level}}
    path = write(smooth("u1"), byteorder=byteorder, **options, **layout)
    read = whole(path)
    np.testing.assert_array_equal(read, tifffile.imread(path))
    np.testing.assert_allclose(read, smooth("u1"), atol=16)


@pytest.mark.parametrize("layout", [STRIPS, TILES])
@pytest.mark.parametrize("codec", CODECS)
def test_segments_may_state_only_what_lies_within_the_plane(plane, smooth, codec, layout):
    """As some writers do with JPEG in tiles at the edge; others fill the last strip."""
    voxels = smooth("u1")[0]
    source = voxels
    if layout == STRIPS or not codec.startswith(("jpeg", "lerc")):
        source = np.zeros((48, 64) if layout == TILES else (42, 50), "u1")
        source[:40, :50] = voxels
    parts = [encoded(codec, part) for part in parts_of(source, **layout)]
    path = plane(parts, codec, **layout)
    np.testing.assert_allclose(whole(path)[0], voxels, atol=12 if codec == "jpeg" else 0)


@pytest.mark.parametrize("bits", [4, 10, 12, 14])
@pytest.mark.parametrize("compression", [None, "lzw"])
def test_packed_bits_are_unpacked(plane, rng, bits, compression):
    voxels = rng.integers(0, 2**bits, (40, 51)).astype("u1" if bits == 4 else "u2")
    packed = imagecodecs.packints_encode(voxels, bits, runlen=51)
    # Without compression, tifffile writes as many bytes as the array has.
    filled = bytes(packed).ljust(voxels.nbytes, b"\0")
    segment = filled if compression is None else imagecodecs.lzw_encode(packed)
    path = plane([segment], compression, voxels.shape, voxels.dtype)
    overwritten(path, 258, bits)
    np.testing.assert_array_equal(whole(path)[0], voxels)


def test_reversed_bits_are_read(plane, smooth):
    voxels = smooth("u1")[0]
    data = imagecodecs.bitorder_decode(imagecodecs.lzw_encode(voxels.tobytes()))
    # tifffile does not write this tag itself.
    path = plane([data], "lzw", extratags=[(65266, 3, 1, 2, True)])
    path.write_bytes(path.read_bytes().replace(struct.pack("<H", 65266), struct.pack("<H", 266)))
    np.testing.assert_array_equal(whole(path)[0], voxels)


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_floats_may_be_stored_as_differences_of_their_bits(plane, smooth, bits):
    """As libtiff does."""
    voxels = smooth(f"f{bits // 8}")[0]
    stored = imagecodecs.delta_encode(voxels.view(f"u{bits // 8}"), axis=-1)
    content = imagecodecs.lzw_encode(stored.tobytes())
    path = plane([content], "lzw", dtype=f"i{bits // 8}", predictor="horizontal")
    overwritten(path, 339, 3)
    np.testing.assert_array_equal(whole(path)[0], voxels)


@pytest.mark.parametrize("lost", [1, 5, 40, 0.5])
@pytest.mark.parametrize("layout", [{}, TILES])
@pytest.mark.parametrize("codec", CODECS)
def test_a_segment_that_was_cut_short_is_refused(plane, smooth, codec, layout, lost):
    voxels = smooth("u1", (1, *layout.get("tile", (40, 50))))[0]
    content = encoded(codec, voxels)
    # LZW's last code says only that it ends.
    lost = max(lost, 3) if codec == "lzw" else lost
    kept = len(content) - (lost if lost >= 1 else len(content) // 2)
    parts = [content] * (5 if layout else 0) + [content[:kept]]
    refusal_of(plane(parts, codec, **layout))


@pytest.mark.parametrize("shape", [(41, 50), (40, 51), (39, 50), (400, 500), (1, 1), (50, 40)])
@pytest.mark.parametrize("codec", CODECS)
def test_a_segment_of_other_voxels_than_its_page_states_is_refused(plane, codec, shape):
    content = encoded(codec, np.full(shape, 7, "u1"))
    if shape == (50, 40) and not codec.startswith(("jpeg", "lerc")):
        # Bytes do not tell their shape.
        np.testing.assert_array_equal(whole(plane([content], codec)), 7)
    else:
        refusal_of(plane([content], codec))


@pytest.mark.parametrize("codec", ["jpeg2000", "jpegxr", "lerc", "jpeg"])
def test_an_image_of_another_type_or_of_colours_is_refused(plane, codec):
    for array in (np.ones((40, 50), "u2"), np.ones((40, 50, 3), "u1")):
        if codec != "jpeg" or array.ndim == 3:
            refusal_of(plane([encoded(codec, array)], codec))


BOMB = (8000, 8000)


def stating(codec, height, width):
    """An image of 40 x 50 voxels whose header states another size."""
    content = bytearray(encoded(codec, np.ones((40, 50), "u1")))
    if codec == "jpeg":
        struct.pack_into(">HH", content, content.index(b"\xff\xc0") + 5, height, width)
    elif codec == "jpeg2000":
        start = content.index(b"\xff\x4f\xff\x51") + 8
        struct.pack_into(">II", content, start, width, height)
        struct.pack_into(">II", content, start + 16, width, height)
    elif codec == "jpegxr":
        start = content.index(b"WMPHOTO\0") + 12
        struct.pack_into(">HH", content, start, width - 1, height - 1)
    return bytes(content)


def bomb(codec):
    """A few bytes that decode to 64 MB."""
    zeros = bytes(BOMB[0] * BOMB[1])
    if codec == "packbits":
        # 128 zeros at a time; the encoder is slow.
        return b"\x81\x00" * (len(zeros) // 128)
    if codec in ("jpeg", "jpeg2000", "jpegxr"):
        return stating(codec, *BOMB)
    if codec == "lerc":
        return imagecodecs.lerc_encode(np.zeros(BOMB, "u1"))
    return ENCODERS[codec](zeros)


@pytest.mark.parametrize("codec", FEW_CODECS)
def test_a_bomb_is_refused_in_little_memory(plane, run_python, codec):
    path = plane([bomb(codec)], codec)
    done = run_python(
        "from pathlib import Path\n"
        "from octane.config.parameters import InputParameters\n"
        "from octane.core.errors import InputError\n"
        "from octane.core.metrics import peak_memory\n"
        "from octane.store.formats.tiff_files import open_tiff\n"
        "import tifffile, imagecodecs\n"
        "imagecodecs.lzw_decode(imagecodecs.lzw_encode(bytes(9)))\n"
        "before = peak_memory()\n"
        "try:\n"
        f"    open_tiff(Path({str(path)!r}), InputParameters(voxel_size=(1, 1, 1)), flat=True)\n"
        "except InputError as error:\n"
        "    print(peak_memory() - before, error)\n"
    )
    taken, message = done.split(maxsplit=1)
    assert int(taken) < 30e6
    assert str(path) in message


@pytest.mark.parametrize("codec", FEW_CODECS)
def test_a_strip_that_its_page_states_counts_in_the_plan_of_memory(plane, codec):
    path = plane([bomb(codec)], codec, BOMB)
    volume = opened(path)
    assert volume.decoding > 2 * BOMB[0] * BOMB[1]
    with refused("a.tif"):
        require_decodable(volume.decoding, volume)


def test_a_long_strip_of_few_voxels_counts_in_the_plan_of_memory(plane):
    path = plane([bytes(70_000_000)], "jpeg")
    assert opened(path).decoding > 70_000_000


def test_jpeg_2000_of_many_tiles_of_its_own_is_refused(plane):
    content = bytearray(encoded("jpeg2000", np.ones((255, 255), "u1")))
    struct.pack_into(">II", content, content.index(b"\xff\x4f\xff\x51") + 24, 1, 1)
    refusal_of(plane([bytes(content)], "jpeg2000", (255, 255)))


def test_lzma_that_asks_for_much_memory_is_refused(plane):
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 2**30}]
    content = lzma.compress(bytes(2000), lzma.FORMAT_XZ, filters=filters)
    refusal_of(plane([content], "lzma"))


OFFSETS, COUNTS = 273, 279


@pytest.mark.parametrize(
    ("code", "values"),
    [
        (COUNTS, (2**16 - 1,) * 6),
        (COUNTS, (0,) * 6),
        (OFFSETS, (0,) * 6),
        (OFFSETS, (2**32 - 8,) * 6),
        # One behind the other, but each overlaps the next.
        (OFFSETS, tuple(range(300, 312, 2))),
    ],
)
@pytest.mark.parametrize("compression", [None, "lzw", "jpeg"])
def test_strips_in_impossible_places_are_refused(write, rng, compression, code, values):
    voxels = rng.integers(0, 255, (40, 50)).astype("u1")
    # Tiles that are not compressed are read as others are.
    layout = {"rowsperstrip": 8} if compression else TILES
    path = write(voxels, compression=compression, **layout)
    code = code if compression else {OFFSETS: 324, COUNTS: 325}[code]
    with tifffile.TiffFile(path) as file:
        count = len(file.pages.first.dataoffsets)
    refusal_of(overwritten(path, code, values[:count]))


@pytest.mark.parametrize("compression", [None, "lzw"])
def test_planes_that_share_voxels_are_refused(write, smooth, compression):
    path = write(smooth("u2"), compression=compression, metadata=None)
    with tifffile.TiffFile(path) as file:
        first, second = (page.dataoffsets[0] for page in file.pages[:2])
        assert first != second
    path.write_bytes(path.read_bytes().replace(struct.pack("<I", second), struct.pack("<I", first)))
    refusal_of(path)


def test_planes_that_are_stored_in_several_ways_are_refused(tmp_path, smooth):
    path, voxels = tmp_path / "a.tif", smooth("u2")
    xml = (
        '<?xml version="1.0" encoding="UTF-8"?><OME '
        'xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06"><Image ID="Image:0"><Pixels '
        'ID="Pixels:0" DimensionOrder="XYZCT" Type="uint16" SizeX="50" SizeY="40" SizeZ="2" '
        'SizeC="1" SizeT="1"><TiffData IFD="0" PlaneCount="2"/></Pixels></Image></OME>'
    )
    with tifffile.TiffWriter(path) as file:
        for k, compression in enumerate((None, "lzw")):
            description = None if k else xml.encode()
            file.write(voxels[k], compression=compression, metadata=None, description=description)
    refusal_of(path)


@pytest.mark.parametrize("codec", ["zlib", "lzma", "lerc"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_flipped_bit_never_becomes_a_value_where_there_is_a_checksum(
    write, smooth, codec, layout
):
    voxels = smooth("u2")
    path = write(voxels, compression=codec, **layout)
    with tifffile.TiffFile(path) as file:
        first, last = file.pages[0], file.pages[-1]
        start, end = first.dataoffsets[0], last.dataoffsets[-1] + last.databytecounts[-1]
    messages = refusals(path, lambda: whole(path), voxels, start, end)
    assert len(messages) > 25


@pytest.mark.parametrize("codec", ["lzw", "packbits", "zstd", "jpeg", "jpeg2000"])
def test_a_flipped_bit_elsewhere_is_refused_or_of_the_size_stated(write, smooth, codec):
    voxels = smooth("u1")
    path = write(voxels, compression=codec)
    content, refusals, kept = path.read_bytes(), 0, 0
    with tifffile.TiffFile(path) as file:
        start, count = file.pages.first.dataoffsets[0], file.pages.first.databytecounts[0]
    for place in np.linspace(start, start + count - 1, 40).astype(int).tolist():
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        try:
            read = whole(path)
        except InputError as error:
            refusals += str(path) in str(error)
        else:
            assert read.shape == SHAPE
            kept += 1
    assert refusals + kept == 40
    assert refusals


@pytest.mark.parametrize("compression", ["webp", "png", "jpegxl"])
def test_an_unknown_codec_is_named_before_the_work(plane, compression):
    with refused("a.tif", "LZW", error=InputError):
        opened(plane([b"x" * 99], compression))


def test_an_unknown_predictor_is_named_before_the_work(plane):
    path = plane([imagecodecs.lzw_encode(bytes(2000))], "lzw", predictor="horizontal")
    overwritten(path, 317, 34892)
    with refused("a.tif", "LZW", error=InputError):
        opened(path)


def test_voxels_that_lerc_leaves_out_are_not_invented(plane):
    masks = np.ones((40, 50), bool)
    masks[3, 4] = False
    content = imagecodecs.lerc_encode(np.ones((40, 50), "f4"), masks=masks)
    refusal_of(plane([content], "lerc", dtype="float32"))


def test_what_make_setup_installs_decodes_lzw():
    root = Path(__file__).parents[4]
    lines = (root / "requirements/run.txt").read_text().splitlines()
    names = [line.partition("==")[0] for line in lines]
    assert "imagecodecs" in names
