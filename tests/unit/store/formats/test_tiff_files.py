"""TIFF volumes: sizes, planes, channels, parts and refused files; writing OME-TIFF."""

import errno
import logging
import os
import struct
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import tifffile
from flipped_bits import refusals
from refusals import refused

from octane.config.parameters import InputParameters
from octane.core.errors import InputError, NoSpaceError
from octane.core.geometry import Grid
from octane.store.formats import tiff_files
from octane.store.formats.tiff_files import OmeTiffWriter, create_tiff, open_tiff

SHAPE = (5, 40, 50)
REGION = (slice(1, 4), slice(3, 37), slice(5, 49))
SIZES = {"PhysicalSizeZ": 7, "PhysicalSizeY": 3, "PhysicalSizeX": 2}
CENTIMETRE = {"resolution": (5000, 2500), "resolutionunit": "CENTIMETER"}
DPI = {"resolution": (300, 300), "resolutionunit": "INCH"}
GIVEN = (2, 0.65, 0.6)
FULL = Path("/dev/full")


@pytest.fixture
def voxels(rng):
    return rng.integers(0, 60_000, SHAPE).astype(np.uint16)


@pytest.fixture
def write(tmp_path, voxels):
    """Write a TIFF with tifffile; return its path."""

    def make(array=voxels, /, name="a.tif", **options):
        tifffile.imwrite(tmp_path / name, array, photometric="minisblack", **options)
        return tmp_path / name

    return make


def ome(**metadata):
    return {"ome": True, "metadata": {"axes": "ZYX", **metadata}}


def imagej(**metadata):
    return {"imagej": True, "resolution": (2, 4), "metadata": {"axes": "ZYX", **metadata}}


def opened(path, like=None, **given):
    return open_tiff(path, InputParameters.model_validate(given), like)


def whole(volume):
    return volume.read(tuple(slice(0, n) for n in volume.grid.shape))


def refusal_of(path, *names, **given):
    with refused(path, *names):
        opened(path, **given)


@pytest.mark.parametrize(
    ("options", "given", "spacing"),
    [
        (ome(**SIZES), {}, (7, 3, 2)),
        (ome(**SIZES, PhysicalSizeZUnit="nm", PhysicalSizeYUnit="cm"), {}, (7e-3, 3e4, 2)),
        (ome(**SIZES, PhysicalSizeZUnit="mm", PhysicalSizeXUnit="in"), {}, (7000, 3, 50800)),
        (imagej(spacing=3, unit="micron"), {}, (3, 0.25, 0.5)),
        # As ImageJ does above 4 GB: one page, followed by its planes.
        ({**imagej(spacing=3, unit="um"), "truncate": True}, {}, (3, 0.25, 0.5)),
        (imagej(spacing=3, unit="\\u00B5m"), {}, (3, 0.25, 0.5)),
        (imagej(spacing=3, unit="\\u00C5"), {}, (3e-4, 2.5e-5, 5e-5)),
        (ome(**SIZES, PhysicalSizeZUnit="dm", PhysicalSizeYUnit="pm"), {}, (7e5, 3e-6, 2)),
        (ome(**SIZES, PhysicalSizeZUnit="Å", PhysicalSizeYUnit="thou"), {}, (7e-4, 76.2, 2)),
        (ome(**SIZES, PhysicalSizeZUnit="pt", PhysicalSizeYUnit="ft"), {}, (2469.44444, 914400, 2)),
        (imagej(spacing=0.3, unit="cm"), {}, (3000, 2500, 5000)),
        (imagej(spacing=1, unit="inch"), {}, (25400, 6350, 12700)),
        (imagej(spacing=1, unit="um", yunit="nm", zunit="mm"), {}, (1000, 2.5e-4, 0.5)),
        (imagej(spacing=3), {"input_unit": "millimeter"}, (3000, 250, 500)),
        (DPI, {"voxel_size": GIVEN}, GIVEN),
        (CENTIMETRE, {"voxel_size": GIVEN}, GIVEN),
        (ome(**SIZES), {"voxel_size": (7, 3, 2)}, (7, 3, 2)),
        (DPI, {"like": Grid(SHAPE, GIVEN)}, GIVEN),
        (ome(**SIZES), {"like": Grid(SHAPE, GIVEN)}, (7, 3, 2)),
    ],
)
def test_the_voxel_size_is_the_stated_one_or_else_the_given_one(
    write, voxels, options, given, spacing
):
    volume = opened(write(**options), **given)
    assert volume.grid.spacing == pytest.approx(spacing, rel=1e-6)
    assert volume.grid.shape == SHAPE
    assert volume.dtype == np.uint16
    np.testing.assert_array_equal(whole(volume), voxels)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, ("z y x: not stated, 1, 1", "--voxel_size")),
        (DPI, ("z y x: not stated, 0.00333333 in", "--voxel_size")),
        (imagej(unit="um"), ("z y x: not stated, 0.25 um, 0.5 um", "--voxel_size")),
        (imagej(spacing=3), ("z y x: 3, 0.25, 0.5", "--input_unit")),
        (imagej(spacing=3, unit="pixel"), ("z y x: 3 pixel", "--voxel_size")),
        (ome(**SIZES, PhysicalSizeZUnit="reference frame"), ("7 reference frame", "--voxel_size")),
        (ome(**SIZES, PhysicalSizeZUnit="furlong"), ("7 furlong", "--voxel_size")),
        (ome(**SIZES, PhysicalSizeZUnit="Mm"), ("(7000000000000.0, 3.0, 2.0)",)),
        (imagej(cf=0, c0=-32768.0, c1=1.0), ("ImageJ", "32768", "32-bit")),
    ],
)
def test_neither_a_voxel_size_nor_a_sign_is_guessed(write, options, names):
    refusal_of(write(**options), *names)


def test_a_given_voxel_size_does_not_overrule_the_file(write):
    refusal_of(
        write(**ome(**SIZES)), "7 x 3 x 2", "--voxel_size is 2 x 0.65 x 0.6", voxel_size=GIVEN
    )
    path = write(**imagej(unit="um"))
    assert opened(path, voxel_size=(2, 0.25, 0.5)).grid.spacing == (2, 0.25, 0.5)
    # Given in the order x y z.
    refusal_of(
        path,
        "0.5 x 0.25 x 0.5",
        "--voxel_size is 0.5 x 0.25 x 2",
        voxel_size=(0.5, 0.25, 2),
    )


@pytest.mark.parametrize("decoded", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bigtiff": True, "byteorder": ">"},
        {"metadata": None, "rowsperstrip": 16},
        {"tile": (16, 16)},
        {"compression": "zlib"},
        {"compression": "zlib", "rowsperstrip": 7, "predictor": True, "byteorder": ">"},
        {"compression": "zlib", "tile": (16, 32), "bigtiff": True},
        {"compression": "lzma"},
    ],
)
def test_threads_read_parts_of_any_layout(write, voxels, tmp_path, options, decoded):
    volume = opened(write(**options), voxel_size=GIVEN)
    if decoded:
        volume.load(tmp_path / "folder")
    with ThreadPoolExecutor(6) as pool:
        parts = list(pool.map(volume.read, [REGION] * 6))
    out = np.empty(voxels[REGION].shape, voxels.dtype)
    assert volume.read(REGION, out) is out
    for part in (*parts, out):
        np.testing.assert_array_equal(part, voxels[REGION])
    # The decoded file is unnamed.
    assert not list(tmp_path.glob("folder/*"))


@pytest.mark.parametrize("options", [{}, {"compression": "zlib"}, {"metadata": None}])
def test_planes_written_one_by_one_and_axes_of_length_1_are_a_stack(
    write, tmp_path, voxels, options
):
    with tifffile.TiffWriter(tmp_path / "b.tif") as file:
        for plane in voxels:
            file.write(plane, **options)
    for path in (tmp_path / "b.tif", write(voxels[None, :, None], **options)):
        np.testing.assert_array_equal(whole(opened(path, voxel_size=GIVEN)), voxels)


@pytest.mark.parametrize(
    ("options", "there", "channel"),
    [
        (ome(**SIZES, Channel={"Name": ["DAPI", "GFP"]}), "0 'DAPI', 1 'GFP'", "GFP"),
        (imagej(spacing=3, unit="um"), "0, 1", "1"),
    ],
)
def test_a_channel_and_a_time_point_are_chosen(write, rng, options, there, channel):
    five = rng.integers(0, 99, (3, 5, 2, 20, 30)).astype(np.uint8)
    path = write(five, **{**options, "metadata": {**options["metadata"], "axes": "TZCYX"}})
    volume = opened(path, channel=channel, timepoint=2)
    np.testing.assert_array_equal(whole(volume), five[2, :, 1])
    refusal_of(path, there, "--channel", timepoint=1)
    refusal_of(path, "'2'", there, "--channel", channel="2", timepoint=1)
    refusal_of(path, "0, 1, 2", "--timepoint", channel="0")


@pytest.mark.parametrize(
    ("options", "axes", "labels", "names"),
    [
        (ome(**SIZES, Channel={"Name": ["oct", "slow axis"]}), "CZYX", ["oct", "slow axis"], None),
        # Channels that share a name have their numbers in it.
        (
            ome(**SIZES, Channel={"Name": ["raw", "raw"]}),
            "ZCYX",
            ["raw", "raw"],
            ["raw 0", "raw 1"],
        ),
        (ome(**SIZES), "CZYX", ["", ""], ["0", "1"]),
        # ImageJ does not name channels.
        (imagej(spacing=3, unit="um", mode="composite"), "ZCYX", ["", ""], ["0", "1"]),
    ],
)
def test_a_channel_has_its_name_and_its_kind(write, rng, options, axes, labels, names):
    two = rng.integers(0, 99, (2, 5, 20, 30)).astype(np.uint8)
    stored = two if axes == "CZYX" else two.swapaxes(0, 1)
    path = write(stored, **{**options, "metadata": {**options["metadata"], "axes": axes}})
    names = names or labels
    for number, name in enumerate(names):
        volume = opened(path, channel=str(number), channel_kind=f"{names[1]}=nearest")
        np.testing.assert_array_equal(whole(volume), two[number])
        assert [*volume.channels] == labels
        kind = {"channel_kind": "nearest"} if number else {}
        assert volume.attributes == {"channel": name, **kind}
    refusal_of(path, "'b'", "--channel_kind", channel="0", channel_kind="b=nearest")


def test_the_finest_level_of_a_pyramid_is_read(tmp_path, voxels):
    path = tmp_path / "a.ome.tif"
    with tifffile.TiffWriter(path, ome=True) as file:
        file.write(voxels, subifds=1, tile=(16, 16), metadata={"axes": "ZYX", **SIZES})
        file.write(voxels[:, ::2, ::2], subfiletype=1, tile=(16, 16))
    np.testing.assert_array_equal(whole(opened(path)), voxels)


def test_a_thumbnail_is_ignored_and_a_second_stack_is_refused(tmp_path, voxels):
    path = tmp_path / "a.tif"
    for more, extra in ((voxels[0, :9, :9], True), (voxels[:, :9, :9], False)):
        with tifffile.TiffWriter(path) as file:
            file.write(voxels)
            file.write(more)
        if extra:
            np.testing.assert_array_equal(whole(opened(path, voxel_size=GIVEN)), voxels)
        else:
            refusal_of(path, "(5 x 40 x 50, 5 x 9 x 9)", voxel_size=GIVEN)


@pytest.mark.parametrize(
    ("shape", "axes"),
    [((40, 50), "YX"), ((5, 40, 50, 3), "QYXS"), ((4, 5, 40, 50), "QQYX")],
)
def test_anything_but_a_stack_of_planes_is_refused(tmp_path, shape, axes):
    tifffile.imwrite(tmp_path / "a.tif", np.zeros(shape, np.uint8))
    stated = f"({' x '.join(map(str, shape))}, {axes})"
    refusal_of(tmp_path / "a.tif", stated, voxel_size=GIVEN)


@pytest.mark.parametrize(
    ("data", "names"),
    [
        (
            'PlaneCount="5"><UUID FileName="b.tif">urn:uuid:1</UUID></TiffData>',
            ("(5 x 40 x 50)", "bfconvert"),
        ),
        ('PlaneCount="3"/>', ("2 of 5",)),
    ],
)
def test_one_of_several_files_is_refused(write, data, names):
    path = write(**ome(**SIZES))
    xml = str(tifffile.tiffcomment(path))
    assert 'PlaneCount="5"/>' in xml
    tifffile.tiffcomment(path, xml.replace('PlaneCount="5"/>', data).encode())
    refusal_of(path, *names)


def replaced(path, old, new):
    """Replace text in the description of a TIFF's first page."""
    text = str(tifffile.tiffcomment(path))
    assert old in text
    tifffile.tiffcomment(path, text.replace(old, new).encode())
    return path


PROMISED = 1_000_000_000
MODULO = (
    '<StructuredAnnotations><XMLAnnotation ID="Annotation:0" Namespace="dimension/modulo"><Value>'
    f'<Modulo><ModuloAlongT Type="phase" Start="0" End="{PROMISED}" Step="1"/></Modulo></Value>'
    "</XMLAnnotation></StructuredAnnotations></OME>"
)


@pytest.mark.parametrize(
    ("options", "old", "new"),
    [
        (ome(**SIZES), 'SizeZ="5"', f'SizeZ="{PROMISED}"'),
        ({**ome(**SIZES), "compression": "zlib"}, 'SizeC="1"', f'SizeC="{PROMISED}"'),
        (ome(**SIZES), 'SizeT="1"', f'SizeT="{PROMISED}"'),
        (ome(**SIZES), 'SizeX="', f'SizeX="{PROMISED}'),
        (ome(**SIZES), 'SizeY="', f'SizeY="{PROMISED}'),
        (ome(**SIZES), 'PlaneCount="5"', f'PlaneCount="{PROMISED}"'),
        (ome(**SIZES), 'PlaneCount="5"', f'NumPlanes="{PROMISED}"'),
        (ome(**SIZES), "</OME>", MODULO),
        ({**imagej(), "compression": "zlib"}, "slices=5", f"slices={PROMISED}"),
        ({**imagej(), "compression": "zlib"}, "slices=5", f"slices=5\nframes={PROMISED}\n"),
        ({**imagej(), "compression": "zlib"}, "slices=5", f"slices=5\nchannels={PROMISED}\n"),
        ({"metadata": {"axes": "ZYX"}}, '"shape": [5', f'"shape": [{PROMISED}'),
    ],
)
def test_planes_that_the_file_cannot_hold_are_refused_before_they_are_listed(
    write, options, old, new, monkeypatch
):
    path = replaced(write(**options), old, new)
    # Far less than a list of the planes takes.
    monkeypatch.setattr(np, "arange", lambda *_: pytest.fail("planes are listed"))
    monkeypatch.setattr(tifffile.TiffFile, "_series_ome", lambda *_: pytest.fail("listed"))
    refusal_of(path, "5 pages", path.stat().st_size, voxel_size=GIVEN)


def test_an_acquisition_that_was_stopped_may_promise_many_planes(write, voxels):
    path = replaced(write(**ome(**SIZES)), 'SizeT="1"', 'SizeT="1000"')
    np.testing.assert_array_equal(whole(opened(path, timepoint=0)), voxels)
    refusal_of(path, "5 of 5", timepoint=999)


def test_a_large_strip_is_not_decoded_before_memory_is_planned(write, voxels, monkeypatch):
    path = write(compression="zlib")
    with tifffile.TiffFile(path) as file:
        longest = max(page.databytecounts[0] for page in file.pages)
    # The plane, and its strip as in the file, as inflated and as unpacked.
    needed = longest + 3 * voxels[0].nbytes
    monkeypatch.setattr(tiff_files, "PROBED_BYTES", needed - 1)
    monkeypatch.setattr(tiff_files, "decode_segment", lambda *_: pytest.fail("decoded"))
    assert opened(path, voxel_size=GIVEN).decoding == needed


def write_of_set(write, here, shape, lost=0, *, stated=None, counted=True):
    """Write a file of a set of OME-TIFFs with an image (c, z, y, x), which has channels ``here``.

    The other channels, and the last ``lost`` planes of these, are in another file. ``stated`` is
    another number of channels; without ``counted``, a channel's planes are all of its file.
    """
    stack = np.arange(np.prod(shape), dtype=np.uint16).reshape(shape)
    count, depth, ny, nx = shape
    pages, data = [], ""
    for c, z in np.ndindex(count, depth):
        own = c in here and z < depth - lost
        number = f'FirstZ="{z}" IFD="{len(pages)}" PlaneCount="1"' if counted else 'FirstZ="0"'
        if counted or z == 0:
            data += f'<TiffData FirstC="{c}" {number}><UUID FileName="{"a" if own else "b"}.tif">'
            data += f"urn:uuid:{'own' if own else 'other'}</UUID></TiffData>"
        pages += [stack[c, z]] * own
    names = "".join(
        f'<Channel ID="Channel:0:{c}" Name="stain {c}"/>' for c in range(stated or count)
    )
    xml = (
        '<?xml version="1.0" encoding="UTF-8"?><OME UUID="urn:uuid:own" '
        'xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06"><Image ID="Image:0"><Pixels '
        f'ID="Pixels:0" DimensionOrder="XYZCT" Type="uint16" SizeX="{nx}" SizeY="{ny}" '
        f'SizeZ="{depth}" SizeC="{stated or count}" SizeT="1" PhysicalSizeX="2" PhysicalSizeY="3" '
        f'PhysicalSizeZ="7">{names}{data}</Pixels></Image></OME>'
    )
    path = write(np.stack(pages), metadata=None, description=xml.encode())
    return path, stack


@pytest.mark.parametrize("number", [0, 2])
def test_a_file_of_a_set_that_holds_one_channel_is_that_channel(write, number):
    path, stack = write_of_set(write, [number], (3, 5, 20, 30))
    volume = opened(path)
    np.testing.assert_array_equal(whole(volume), stack[number])
    assert volume.grid.spacing == (7, 3, 2)
    assert volume.attributes == {"channel": f"stain {number}"}
    assert [*volume.channels] == [f"stain {number}"]


@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize("depth", [1, 5])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_file_of_a_set_that_states_its_own_size_is_read_by_itself(write, number, depth, counted):
    # Leica's MatrixScreener numbers the channels of the set, but states one for each file.
    shape = (3, depth, 20, 30)
    path, stack = write_of_set(write, [number], shape, stated=1, counted=counted)
    volume = open_tiff(path, flat=True)
    np.testing.assert_array_equal(whole(volume), stack[number])
    assert volume.grid.spacing == (7, 3, 2)
    assert volume.attributes == {"channel": "stain 0"}


@pytest.mark.parametrize(("here", "lost", "stated"), [([1], 1, 1), ([1, 2], 0, 1), ([1, 2], 0, 2)])
def test_a_file_of_other_planes_than_it_states_is_refused(write, here, lost, stated):
    path, _ = write_of_set(write, here, (3, 5, 20, 30), lost, stated=stated)
    refusal_of(path, "bfconvert")


@pytest.mark.parametrize(("here", "lost"), [([0, 2], 0), ([1], 1)])
def test_other_parts_of_a_set_are_refused(write, here, lost):
    path, _ = write_of_set(write, here, (3, 5, 20, 30), lost)
    refusal_of(path, "bfconvert")


def with_header(path, header, summary, behind=b""):
    """Move the first page's description to the end, and put Micro-Manager's header in its place."""
    content = bytearray(path.read_bytes())
    (start,) = struct.unpack_from("<I", content, 4)
    assert start <= 16
    moved, end = content[start : start + 200], len(content)
    struct.pack_into("<9I", content, 4, end, *header(end + 200), 2355492, len(summary))
    content[40 : 40 + len(summary)] = summary
    path.write_bytes(content + moved + behind)


MICRO_MANAGER = {"extratags": [(51123, 2, 0, "{ }  ", True)]}


def test_a_stack_of_micro_manager_is_read(write, voxels):
    path = write(**ome(**SIZES), **MICRO_MANAGER)
    places = [number for z in range(5) for number in (0, z, 0, 0, 0)]
    summary = b'{"MicroManagerVersion": "2", "Frames": 1, "Slices": 5}'
    index = struct.pack("<27I", 3453623, 5, *places)
    with_header(path, lambda end: (54773648, end, 0, 0, 0, 0), summary, index)
    with tifffile.TiffFile(path) as file:
        assert file.is_mmstack
    volume = opened(path)
    assert volume.grid.spacing == (7, 3, 2)
    np.testing.assert_array_equal(whole(volume), voxels)


def test_planes_of_micro_manager_in_another_file_are_not_taken_from_this_one(write, voxels):
    index = b""
    for z, name in enumerate(("a.tif", "b.tif")):
        path = write(voxels[z], name, metadata=None, **MICRO_MANAGER)
        with_header(path, lambda _: (483729, 3, 0, 0, 0, 0), b"{}")
        axes, data = b'{"z": %d}' % z, struct.pack("<IiiiiIii", 300, 50, 40, 1, 0, 0, 0, 0)
        for part in (axes, name.encode()):
            index += struct.pack("<I", len(part)) + part
        index += data
    (path.parent / "NDTiff.index").write_bytes(index)
    refusal_of(path, "(2 x 40 x 50)", "bfconvert", voxel_size=GIVEN)


LAYOUTS = [
    ome(**SIZES),
    imagej(spacing=3, unit="um"),
    {"metadata": None},
    {"compression": "zlib"},
    {"metadata": None, "compression": "zlib", "rowsperstrip": 16},
]


@pytest.mark.parametrize("options", LAYOUTS)
@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
def test_a_truncated_file_is_refused_before_voxels_are_read(write, options, part):
    path = write(**options)
    os.truncate(path, int(path.stat().st_size * part))
    refusal_of(path, like=Grid(SHAPE, GIVEN))


def test_a_fault_is_seen_while_other_files_are_opened_and_closed(write, voxels):
    paths = [write(voxels, f"{name}.tif") for name in "ab"]
    with ExitStack() as first:
        first.enter_context(tiff_files._open_file(paths[0]))
        with tiff_files._open_file(paths[1]):
            pass
        # As tifffile does for a fault that it survives.
        with refused("lost", error=ValueError):
            logging.getLogger("tifffile").error("lost")


def test_voxels_that_are_damaged_name_the_file(write, voxels):
    path = write(compression="zlib")
    content = bytearray(path.read_bytes())
    content[9000:9500] = bytes(500)
    path.write_bytes(content)
    volume = opened(path, voxel_size=GIVEN)
    with refused(path, error=InputError):
        whole(volume)
    path = write()
    volume = opened(path, voxel_size=GIVEN)
    os.truncate(path, 3000)
    with refused(path, error=InputError):
        whole(volume)


@pytest.mark.parametrize("options", [{}, {"predictor": True}, {"rowsperstrip": 16}])
@pytest.mark.parametrize("compression", ["zlib", "lzma"])
def test_a_flipped_bit_of_compressed_planes_never_becomes_a_value(
    write, voxels, compression, options
):
    path = write(compression=compression, **options)
    with tifffile.TiffFile(path) as file:
        start = file.pages[0].dataoffsets[0]
        last = file.pages[-1]
        end = last.dataoffsets[-1] + last.databytecounts[-1]
    messages = refusals(path, lambda: whole(opened(path, voxel_size=GIVEN)), voxels, start, end)
    assert len(messages) > 28
    assert all(f"{path} cannot be read as an image (" in message for message in messages)


@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32", "float64", "complex64"])
@pytest.mark.parametrize("most", [100, 4_000_000_000])
def test_an_ome_tiff_is_written_in_blocks(tmp_path, rng, monkeypatch, dtype, most):
    monkeypatch.setattr(tiff_files, "CLASSIC_BYTES", most)
    voxels = (rng.random((3, 11, 20)) * 200).astype(dtype)
    path, grid = tmp_path / "b.tif", Grid((3, 11, 20), (7.5, 2.25, 2.0))
    with create_tiff(path, path, grid, np.dtype(dtype)) as planes:
        for rows in (slice(4, 11), slice(0, 4)):
            for columns in (slice(6, 20), slice(0, 6)):
                region = (slice(0, 3), rows, columns)
                planes[region] = voxels[region]
    first = path.read_bytes()
    np.testing.assert_array_equal(tifffile.imread(path), voxels)
    with tifffile.TiffFile(path) as file:
        assert file.is_bigtiff is (most == 100)
        (pixels,) = ElementTree.fromstring(file.ome_metadata or "").iterfind(".//{*}Pixels")
    assert [pixels.get(f"PhysicalSize{a}") for a in "XYZ"] == ["2.0", "2.25", "7.5"]
    assert {pixels.get(f"PhysicalSize{a}Unit") for a in "XYZ"} == {"µm"}
    again = opened(path)
    assert again.grid == grid
    np.testing.assert_array_equal(whole(again), voxels)
    with create_tiff(path, path, grid, np.dtype(dtype)) as planes:
        planes[slice(0, 3), slice(0, 11), slice(0, 20)] = voxels
    assert path.read_bytes() == first


def test_a_full_disk_is_named_while_planes_are_decoded(write, tmp_path, monkeypatch):
    volume = opened(write(compression="zlib"), voxel_size=GIVEN)
    monkeypatch.setattr(tiff_files, "TemporaryFile", lambda **_: FULL.open("r+b"))
    with refused("a.tif", tmp_path, os.strerror(errno.ENOSPC), error=NoSpaceError):
        volume.load(tmp_path)


def test_a_full_disk_is_an_error_of_the_block_that_is_written():
    writer = OmeTiffWriter(FULL, 0, SHAPE, np.dtype("u2"))
    with refused(os.strerror(errno.ENOSPC), error=OSError):
        writer[REGION] = np.ones([r.stop - r.start for r in REGION], "u2")


@pytest.mark.parametrize("compression", [pytest.param(None, marks=pytest.mark.soak), "zlib"])
def test_a_stack_may_be_larger_than_the_memory_for_reading_it(tmp_path, run_python, compression):
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from octane.core.geometry import blocks\n"
        "from octane.core.metrics import Metrics, peak_memory\n"
        "from octane.store.volumes import bring_in, create_volume, open_volume\n"
        "source, made = map(Path, sys.argv[1:])\n"
        "before = peak_memory()\n"
        "volume = open_volume(source)\n"
        "bring_in(volume, Metrics('test'), made.parent)\n"
        "with create_volume(made, volume, volume.dtype) as (writer, size):\n"
        "    for region in blocks(volume.grid.shape, size):\n"
        "        writer[region] = volume.read(region)\n"
        "print(peak_memory() - before)\n"
    )
    plane = np.arange(500_000, dtype=np.uint16).reshape(500, 1000)
    path, made = tmp_path / "a.tif", tmp_path / "b.ome.tif"
    tifffile.imwrite(
        path, (plane for _ in range(150)), shape=(150, *plane.shape), dtype=plane.dtype,
        compression=compression, ome=True, metadata={"axes": "ZYX", **SIZES},
    )  # fmt: skip
    assert int(run_python(code, path, made)) < 90e6 < 150 * plane.nbytes
    np.testing.assert_array_equal(tifffile.imread(made, key=149), plane)
    for file in (path, made):
        file.unlink()


@pytest.mark.parametrize("tag", [256, 257])
@pytest.mark.parametrize("how", [{}, {"metadata": None}, {"tile": (16, 16)}, {"imagej": True}])
def test_planes_without_pixels_are_refused(tmp_path, tag, how):
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, np.ones((3, 20, 20), "u1"), photometric="minisblack", **how)
    with tifffile.TiffFile(path, mode="r+") as file:
        for page in file.pages:
            assert isinstance(page, tifffile.TiffPage)
            page.tags[tag].overwrite(0)
    with refused(path, error=InputError):
        open_tiff(path)


def test_a_height_that_is_no_whole_number_is_refused(tmp_path):
    path = tmp_path / "a.tif"
    voxels, axes = np.ones((3, 20, 24), "u2"), {"axes": "ZYX"}
    tifffile.imwrite(path, voxels, imagej=True, byteorder="<", metadata=axes)
    with tifffile.TiffFile(path, mode="r+") as file:
        assert isinstance(file.pages[0], tifffile.TiffPage)
        file.filehandle.seek(file.pages[0].tags[257].offset + 2)
        file.filehandle.write(tifffile.DATATYPE.FLOAT.to_bytes(2, "little"))
    with refused(path, error=InputError):
        open_tiff(path, InputParameters(voxel_size=GIVEN))


def test_a_limit_of_file_sizes_is_not_taken_for_a_damaged_file(write, tmp_path, run_python):
    path = write(np.zeros((5, 400, 500), np.uint16), compression="zlib")
    done = run_python(
        "import resource\n"
        "from pathlib import Path\n"
        "from octane.config.parameters import InputParameters\n"
        "from octane.store.formats.tiff_files import open_tiff\n"
        f"volume = open_tiff(Path({str(path)!r}), InputParameters(voxel_size=(1, 1, 1)))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try:\n"
        f"    volume.load(Path({str(tmp_path)!r}))\n"
        "except Exception as error:\n"
        "    print(error)\n"
    )
    assert "a.tif cannot be decoded into a file in" in done
    assert "raise ulimit -f" in done
