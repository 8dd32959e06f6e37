"""Exported volumes, as other programs read them: voxels, sizes, places, orientation, channels."""

import errno
import json
import os
from io import BytesIO
from itertools import permutations, product
from zipfile import ZIP_STORED, ZipFile

import ngff_zarr
import nibabel as nib
import numpy as np
import pytest
import SimpleITK as sitk
import tifffile
import yaozarrs
import zarr
from ngff_zarr.multiscales import NgffMultiscales
from pydantic import ValidationError
from refusals import refused
from zarr.storage import ZipStore

from octane.config.parameters import ExecutionParameters, InputParameters
from octane.core.errors import InputError, NoSpaceError
from octane.core.geometry import Grid, vector
from octane.layout.sections import read_sections
from octane.pipeline.workers import PROCESS_BYTES
from octane.store.channels import kinds_of
from octane.store.image import Image, open_image, open_levels
from octane.store.ngff import ShownChannel, Window, read_metadata
from octane.store.volumes import open_volume
from octane.store.writer import Level, create_image
from octane.tools.export import source as source_module
from octane.tools.export.parameters import ExportParameters
from octane.tools.export.source import Part
from octane.tools.export.step import RAW, export_volume

SHAPE = (13, 18, 22)
SPACING, ORIGIN = (10.0, 5.0, 4.0), (105.0, -20.0, 5.5)
ORIENTATION = ["superior-to-inferior", "anterior-to-posterior", "right-to-left"]
SECTIONS = [
    {"name": "a", "number": 1, "start": 0, "stop": 6},
    {"name": "b", "number": 2, "start": 6, "stop": 13},
]


def grids(shape=SHAPE, spacing=SPACING, origin=ORIGIN, levels=2):
    """Levels of half the resolution, which begin at the same edge."""
    found = []
    for f in (2**k for k in range(levels)):
        place = [o + s * (f - 1) / 2 for o, s in zip(origin, spacing, strict=True)]
        nz, ny, nx = (-(-n // f) for n in shape)
        found.append(Grid((nz, ny, nx), vector(*(s * f for s in spacing)), vector(*place)))
    return found


@pytest.fixture
def volume(tmp_path, rng):
    """Write a pyramid as octane does; gives its path and the voxels of its levels."""

    def write(channels=(), *, dtype="uint16", orientation=ORIENTATION, **geometry):
        path = tmp_path / "in" / "brain.ome.zarr"
        own = {"kind": "volume", "step": "pyramid"}
        if "shape" not in geometry:
            own["sections"] = SECTIONS
        if orientation:
            own["orientation"] = orientation
        if channels:
            own["channels"] = [{"name": name} for name in channels[:-1]]
            own["channels"].append({"name": channels[-1], "kind": "nearest"})
        # Several chunks in each direction, but few files.
        levels = [
            Level.volume(grid) if max(grid.shape) > 99 else Level(grid, (8, 8, 8))
            for grid in grids(**geometry)
        ]
        windows = [Window(min=0, start=k + 1, end=50 + k, max=99) for k in range(len(channels))]
        shown = [ShownChannel(window=window) for window in windows]
        written = []
        with create_image(
            path, levels, dtype, attributes=own, channels=channels, shown=shown
        ) as writers:
            for level, writer in zip(levels, writers, strict=True):
                shape = (len(channels),) * bool(channels) + level.grid.shape
                values = rng.integers(0, 100, shape)
                kind = np.dtype(dtype).kind
                written.append((values % 2 if kind == "b" else values).astype(dtype))
                writer[tuple(slice(0, n) for n in shape)] = written[-1]
        return path, written

    return write


@pytest.fixture
def export(tmp_path, execution):
    """Export into a file of this name, with parameters of an export or of the input."""

    def run(path, name, *, execution=execution, **given):
        parameters = {k: v for k, v in given.items() if k in ExportParameters.model_fields}
        reading = {k: v for k, v in given.items() if k in InputParameters.model_fields}
        assert len(given) == len(parameters) + len(reading)
        destination = tmp_path / "out" / name
        export_volume(
            path, destination, ExportParameters(**parameters), InputParameters(**reading), execution
        )
        return destination

    return run


def read_itk(path):
    image = sitk.ReadImage(str(path))
    return image, sitk.GetArrayFromImage(image)


def pixels_of(path):
    """The OME-XML of an OME-TIFF's image."""
    with tifffile.TiffFile(path) as file:
        return tifffile.xml2dict(file.ome_metadata or "")["OME"]["Image"]["Pixels"]


def read_nifti(path):
    image = nib.load(path)
    assert isinstance(image, nib.Nifti1Image)
    return image


def read_ngff(path):
    """Levels as ngff-zarr reads them."""
    image = ngff_zarr.from_ngff_zarr(path)
    assert isinstance(image, NgffMultiscales)
    return image.images


def orientation_in(level):
    """Orientation of z, y and x that ngff-zarr found."""
    assert level.axes_orientations is not None
    return [level.axes_orientations[axis].value.value for axis in "zyx"]


def subject_place(orientation, place):
    """Millimetres to the left, posterior and superior of a place z, y, x in micrometres."""
    ends = {"left": (0, 1), "right": (0, -1), "posterior": (1, 1), "anterior": (1, -1)}
    ends |= {"superior": (2, 1), "inferior": (2, -1)}
    found = [0.0, 0.0, 0.0]
    for value, length in zip(orientation, place, strict=True):
        axis, sign = ends[value.rpartition("-")[2]]
        found[axis] = sign * length / 1000
    return found


# One channel, for ITK, nibabel and atlases


@pytest.mark.parametrize("suffix", RAW)
def test_voxels_and_their_places_are_those_of_the_store(volume, export, suffix):
    path, (voxels, _) = volume()
    image, found = read_itk(export(path, f"brain{suffix}"))
    np.testing.assert_array_equal(found, voxels)
    assert found.dtype == voxels.dtype
    np.testing.assert_allclose(image.GetSpacing(), [0.004, 0.005, 0.01])
    for index in ((0, 0, 0), (12, 3, 7)):
        place = [o + i * s for o, i, s in zip(ORIGIN, index, SPACING, strict=True)]
        point = image.TransformIndexToPhysicalPoint(index[::-1])
        np.testing.assert_allclose(point, subject_place(ORIENTATION, place), atol=1e-6)


def test_nibabel_reads_axes_units_and_both_transforms(volume, export):
    path, (voxels, _) = volume()
    for name in ("a.nii", "a.nii.gz"):
        image = read_nifti(export(path, name))
        np.testing.assert_array_equal(np.asarray(image.dataobj).transpose(2, 1, 0), voxels)
        assert image.header.get_xyzt_units()[0] == "mm"
        # x runs to the left, y to posterior, z to inferior.
        assert nib.aff2axcodes(image.affine) == ("L", "P", "I")
        np.testing.assert_allclose(image.get_qform(), image.get_sform(), atol=1e-6)
        assert image.header["qform_code"] == image.header["sform_code"] == 1


CODES = ["".join(c) for ends in permutations(["LR", "AP", "SI"]) for c in product(*ends)]


def test_all_48_orientations_are_nibabels(volume, export):
    path, _ = volume(shape=(3, 4, 5), levels=1)
    given = read_nifti(export(path, "given.nii"))
    have = nib.io_orientation(given.affine)
    assert len({*CODES}) == 48
    for number, code in enumerate(CODES):
        # nibabel's codes are in the order x y z.
        want = nib.orientations.axcodes2ornt(tuple(reversed(code)))
        expected = given.as_reoriented(nib.orientations.ornt_transform(have, want))
        # The other formats get the same geometry.
        for suffix in (".nii", ".nrrd", ".mha")[: 1 if number % 7 else 3]:
            image, voxels = read_itk(export(path, f"{code}{suffix}", reorient=code))
            np.testing.assert_array_equal(voxels.T, np.asarray(expected.dataobj))
            matrix = np.reshape(image.GetDirection(), (3, 3)) @ np.diag(image.GetSpacing())
            lps = np.diag([-1, -1, 1]) @ expected.affine[:3]
            np.testing.assert_allclose(matrix, lps[:, :3], atol=1e-7)
            np.testing.assert_allclose(image.GetOrigin(), lps[:, 3], atol=1e-5)
        found = nib.aff2axcodes(read_nifti(path.parents[1] / "out" / f"{code}.nii").affine)
        assert "".join(reversed(found)) == code


def test_ras_is_nibabels_canonical(volume, export):
    path, _ = volume()
    canonical = nib.as_closest_canonical(read_nifti(export(path, "a.nii")))
    found = read_nifti(export(path, "b.nii", reorient="SAR"))
    np.testing.assert_array_equal(found.dataobj, canonical.dataobj)
    np.testing.assert_allclose(found.affine, canonical.affine, atol=1e-6)


TYPES = (
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)


@pytest.mark.parametrize("dtype", TYPES)
def test_every_type_keeps_its_values_or_is_refused(volume, export, dtype):
    path, (voxels, *_) = volume(dtype=dtype, levels=1)
    widened = {"bool": "uint8", "float16": "float32"}.get(dtype, dtype)
    for name in ("a.nii", "a.nrrd", "a.mha", "a.ome.tif"):
        if "complex" in dtype and not name.endswith((".nii", ".tif")):
            with refused(name, dtype, ".nii", error=InputError):
                export(path, name)
        elif "int64" in dtype and name.endswith(".tif"):
            with refused(name, dtype, error=InputError):
                export(path, name)
        else:
            made = export(path, name)
            if name.endswith(".tif"):
                found = tifffile.imread(made)
            elif "complex" in dtype:
                found = np.asarray(read_nifti(made).dataobj).T
            else:
                found = read_itk(made)[1]
            np.testing.assert_array_equal(found, voxels)
            assert found.dtype == widened
    for version in ("0.4", "0.5"):
        made = open_image(export(path, f"{version}.ome.zarr", ome_zarr_version=version))
        np.testing.assert_array_equal(made.read(np.s_[0:13, 0:18, 0:22]), voxels)
        assert made.dtype == dtype


def test_an_axis_too_long_for_nifti_1_makes_nifti_2(volume, export):
    path, (voxels,) = volume(shape=(2, 2, 33000), levels=1, dtype="uint8")
    image = read_nifti(export(path, "long.nii"))
    assert isinstance(image, nib.Nifti2Image)
    np.testing.assert_array_equal(np.asarray(image.dataobj).T, voxels)


@pytest.mark.parametrize("name", ["a.nii.gz", "a.ome.tif"])
def test_thin_slabs_give_the_same_file(volume, export, monkeypatch, name):
    path, _ = volume(shape=(13, 60, 70), orientation=None)
    plane = 60 * 70 * 2
    assert export(path, f"deep/{name}").read_bytes()
    read, regions = Part.read, []
    monkeypatch.setattr(Part, "read", lambda self, r: regions.append(r) or read(self, r))
    # Three planes, and two for the writer, next to one block.
    monkeypatch.setattr("octane.tools.export.source.bytes_of", lambda _: PROCESS_BYTES + 20 * plane)
    monkeypatch.setattr(source_module, "SLAB_SHARE", 6)
    thin = export(path, f"thin/{name}")
    assert {r[0].stop - r[0].start for r in regions} == {3, 1}
    assert thin.read_bytes() == (thin.parents[1] / "deep" / name).read_bytes()


@pytest.mark.parametrize("code", [None, "SPR", "PLS", "LIA"])
def test_a_region_decodes_each_chunk_once(volume, export, monkeypatch, code):
    path, (voxels, _) = volume()
    read, chunks = Image.read, []

    def counted(image, region, *rest):
        spans = (range(r.start // 8, -(-r.stop // 8)) for r in region)
        chunks.extend(product(*spans))
        return read(image, region, *rest)

    monkeypatch.setattr(Image, "read", counted)
    # Blocks of one chunk.
    monkeypatch.setattr(source_module, "SHARD", 10)
    region = ["z=135:220", "y=5:", "x=17.5:80"]
    found = read_itk(export(path, "a.nii", region=region, reorient=code))[1]
    np.testing.assert_array_equal(np.sort(found, None), np.sort(voxels[3:12, 5:, 3:19], None))
    assert sorted(chunks) == [*product(range(2), range(3), range(3))]


def test_a_plane_that_exceeds_the_memory_is_refused(volume, export):
    path, _ = volume()
    little = ExecutionParameters(memory="1MB", workers=1)
    with refused("--memory", "1 MB"):
        export(path, "a.nii", execution=little)
    assert not [*(path.parents[1] / "out").iterdir()]


def test_one_channel_must_be_chosen_and_is_written(volume, export):
    path, (voxels, _) = volume(("DAPI", "axis"))
    with refused(path, "0 'DAPI', 1 'axis'", "--channel", error=InputError):
        export(path, "a.nrrd")
    np.testing.assert_array_equal(read_itk(export(path, "a.nrrd", channel="axis"))[1], voxels[1])


def test_some_of_several_channels_are_written(volume, export):
    path, (voxels, _) = volume(("DAPI", "GFP", "axis"))
    made = export(path, "a.ome.zarr", channels="axis,DAPI")
    metadata = read_metadata(made, None)
    assert metadata.labels == ["DAPI", "axis"]
    assert [window and window.start for window in metadata.windows] == [1, 3]
    assert kinds_of(metadata.octane or {}) == ["", "nearest"]
    np.testing.assert_array_equal(np.asarray(read_ngff(made)[0].data), voxels[[0, 2]])
    np.testing.assert_array_equal(
        tifffile.imread(export(path, "a.tif", channels="1 2")), voxels[1:]
    )
    for name, more in (("b.nii", {}), ("b.ozx", {"channel": "GFP"})):
        with refused(name, "--channels", "--channel;", error=InputError):
            export(path, name, channels="GFP", **more)
    with refused(path, "'CFP'", "--channels", error=InputError):
        export(path, "b.ozx", channels="CFP")


def test_an_unstated_orientation_is_told_and_itks_unless_it_is_given(volume, export, caplog):
    caplog.set_level("INFO")
    path, _ = volume(orientation=None)
    image, _ = read_itk(export(path, "a.mha"))
    assert image.GetDirection() == (1, 0, 0, 0, 1, 0, 0, 0, 1)
    np.testing.assert_allclose(image.GetOrigin(), np.divide(ORIGIN[::-1], 1000))
    assert (
        "does not state an orientation along R L, A P and S I, so a.mha has ITK's default"
        in caplog.text
    )
    with refused(path, "R L, A P and S I", "--reorient", error=InputError):
        export(path, "b.mha", reorient="SAR")
    for name, more in (("c.nii", {}), ("d.nii", {"reorient": "SAR"})):
        image = read_nifti(export(path, name, orientation="PIR", **more))
        assert nib.aff2axcodes(image.affine) == (("R", "A", "S") if more else ("R", "I", "P"))
    packed = read_ngff(export(path, "e.ozx", orientation="PIR"))[0]
    stated = ["anterior-to-posterior", "superior-to-inferior", "left-to-right"]
    assert orientation_in(packed) == stated


# All levels and channels, for viewers


def test_ome_zarr_0_4_is_valid_and_complete(volume, export):
    path, written = volume(("DAPI", "axis"))
    made = export(path, "old.ome.zarr", ome_zarr_version="0.4")
    yaozarrs.validate_zarr_store(made)
    group = zarr.open_group(made, mode="r")
    assert group.metadata.zarr_format == 2
    assert json.loads((made / "0" / ".zarray").read_text())["dimension_separator"] == "/"
    assert not [*made.rglob("zarr.json")]
    for level, voxels, grid in zip(read_ngff(made), written, grids(), strict=True):
        np.testing.assert_array_equal(np.asarray(level.data), voxels)
        assert [level.scale[axis] for axis in "zyx"] == list(grid.spacing)
        assert [level.translation[axis] for axis in "zyx"] == list(grid.origin)
        assert orientation_in(level) == ORIENTATION
        assert level.axes_units == {"c": None, **dict.fromkeys("zyx", "micrometer")}
    own, ours = read_metadata(path, None), read_metadata(made, None)
    assert ours._replace(datasets=own.datasets, version=own.version) == own
    assert kinds_of(ours.octane or {}) == ["", "nearest"]


SHOWN = {"label": "GFP", "color": "12AB00", "window": dict(min=0.0, start=1.0, end=2.0, max=3.0)}


@pytest.fixture
def theirs(write_foreign, rng):
    """Write two channels as another program does, which states how they are shown."""

    def write(*channels):
        voxels = rng.integers(0, 9, (2, 3, 6, 7)).astype(np.uint8)
        path = write_foreign("their.zarr", voxels, axes="czyx")
        file = next(p for p in (path / ".zattrs", path / "zarr.json") if p.exists())
        content = json.loads(file.read_text())
        attributes = content.get("attributes", content)
        ome = attributes.get("ome", attributes)
        ome["omero"] = {"channels": channels}
        ome["multiscales"][0] |= {"type": "theirs"}
        file.write_text(json.dumps(content))
        return path, voxels

    return write


def test_the_names_colors_and_windows_of_others_are_kept(theirs, export):
    path, _ = theirs(SHOWN, {**SHOWN, "label": "nuclei", "color": "0000FF"})
    for made in (
        export(path, "a.ome.zarr", ome_zarr_version="0.4"),
        export(path, "b.ome.zarr"),
        export(path, "c.ome.tif"),
    ):
        if made.suffix == ".zarr":
            metadata = read_metadata(made, None)
            assert metadata.labels == ["GFP", "nuclei"]
            assert metadata.colors == ["12AB00", "0000FF"]
            assert [w and w.end for w in metadata.windows] == [2, 2]
        else:
            pixels = pixels_of(made)
            assert [c["Name"] for c in pixels["Channel"]] == ["GFP", "nuclei"]
            colors = [c["Color"] % 2**32 for c in pixels["Channel"]]
            assert colors == [0x12AB00FF, 0x0000FFFF]


def test_what_one_channel_lacks_is_found_and_the_other_keeps_its_own(theirs, export):
    path, voxels = theirs(SHOWN, {"label": "nuclei"})
    metadata = read_metadata(export(path, "a.ome.zarr"), None)
    assert metadata.colors == ["12AB00", "FF00FF"]
    assert metadata.windows[0] == Window.model_validate(SHOWN["window"])
    found = metadata.windows[1]
    assert found is not None
    assert (found.min, found.max) == (voxels[1].min(), voxels[1].max())


def test_an_archive_holds_the_store_and_its_metadata_first(volume, export):
    path, written = volume(("DAPI", "axis"))
    made = export(path, "brain.ozx")
    with ZipFile(made) as archive:
        names = archive.namelist()
        assert names[:3] == ["zarr.json", "0/zarr.json", "1/zarr.json"]
        assert not [name for name in names[3:] if name.endswith("zarr.json")]
        assert {entry.compress_type for entry in archive.infolist()} == {ZIP_STORED}
        files = {str(f.relative_to(path)): f.read_bytes() for f in path.rglob("*") if f.is_file()}
        assert {name: archive.read(name) for name in names} == files
        assert json.loads(archive.comment) == {
            "ome": {"version": "0.5", "zipFile": {"centralDirectory": {"jsonFirst": True}}}
        }
    for level, voxels in zip(read_ngff(made), written, strict=True):
        np.testing.assert_array_equal(np.asarray(level.data), voxels)
    with ZipStore(made, mode="r") as store:
        array = zarr.open_array(store, path="0", mode="r")
        np.testing.assert_array_equal(np.asarray(array[:]), written[0])
    assert [level.grid for level in open_levels(made) if level.place == (0,)] == grids()
    again, found = read_itk(export(made, "b.mha", channel="DAPI"))
    np.testing.assert_array_equal(found, written[0][0])
    assert again.GetDirection() == (1, 0, 0, 0, 1, 0, 0, 0, -1)
    # A part is written anew.
    part, *_ = read_ngff(export(path, "part.ozx", channel="axis", region=["z=:150"]))
    np.testing.assert_array_equal(np.asarray(part.data), written[0][1, :5])
    assert made.read_bytes() == export(path, "again.ozx").read_bytes()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["file", "folder", "device", "FIFO", "loops"])
def test_what_is_no_file_of_the_store_is_not_packed(volume, export, odd_entry, tmp_path, kind):
    path, _ = volume()
    entry = odd_entry(path, kind)
    with pytest.raises(InputError, match=f"^{entry}.*;"):
        export(path, "brain.ozx")
    assert not [*tmp_path.glob("out/*")]


def test_links_to_and_within_a_store_are_followed(volume, export, tmp_path):
    path, _ = volume()
    whole = export(path, "whole.ozx").read_bytes()
    # As published: links to the subject's folder and to the store in it, and equal chunks shared.
    (tmp_path / "published").symlink_to(path.parent)
    (tmp_path / "brain").symlink_to(tmp_path / "published" / path.name)
    assert export(tmp_path / "published" / path.name, "a.ozx").read_bytes() == whole
    (path / "0/c/0/0/0").rename(path / "kept")
    (path / "0/c/0/0/0").symlink_to("../../../../kept")
    (path / "0/c/1").rename(path / "row")
    (path / "0/c/1").symlink_to("../../row")
    with ZipFile(export(tmp_path / "brain", "b.ozx")) as made, ZipFile(BytesIO(whole)) as before:
        for name in before.namelist():
            assert made.read(name) == before.read(name)


def test_an_output_in_the_store_itself_is_refused(volume, execution):
    path, _ = volume()
    for name in ("a.ozx", "0/a.nii", "more/a.ome.zarr"):
        with refused(path / name, f" {path} ", error=InputError):
            export_volume(path, path / name, ExportParameters(), InputParameters(), execution)
    assert not [*path.rglob("a.*")]


def test_a_damaged_store_is_not_packed(volume, export):
    path, _ = volume()
    (path / "0" / "c" / "0" / "1" / "0").unlink()
    for name in ("a.ozx", "a.nii", "a.ome.zarr"):
        with refused(path, "0/c/0/1/0", error=InputError):
            export(path, name)
    assert not [*(path.parents[1] / "out").iterdir()]


def test_ome_tiff_has_planes_sizes_places_and_channels(volume, export):
    path, (voxels, _) = volume(("DAPI", "axis"), shape=(3, 20, 1100))
    made = export(path, "a.ome.tif")
    with tifffile.TiffFile(made) as file:
        (series,) = file.series
        assert (series.kind, series.axes, series.shape) == ("ome", "CZYX", (2, 3, 20, 1100))
        np.testing.assert_array_equal(series.asarray(), voxels)
        assert file.pages.first.tile == (256, 256)
        # Means of 2 x 2 pixels, and the first of them for a channel such as angles.
        assert [level.shape[2:] for level in series.levels] == [(20, 1100), (10, 550), (5, 275)]
        half = series.levels[1].asarray()
        means = voxels[0].reshape(3, 10, 2, 550, 2).mean((2, 4))
        np.testing.assert_array_equal(half[0], np.rint(means))
        np.testing.assert_array_equal(half[1], voxels[1, :, ::2, ::2])
    pixels = pixels_of(made)
    sizes = [pixels[f"PhysicalSize{axis}"] for axis in "ZYX"]
    assert (sizes, pixels["PhysicalSizeXUnit"]) == (list(SPACING), "µm")
    places = [[plane[f"Position{axis}"] for axis in "ZYX"] for plane in pixels["Plane"]]
    assert places == [[105 + 10 * k, -20, 5.5] for k in range(3)] * 2
    again = open_volume(made, InputParameters(channel="axis"))
    assert again.channels == ["DAPI", "axis"]
    assert again.grid.spacing == SPACING
    np.testing.assert_array_equal(again.read(np.s_[0:3, 0:20, 0:1100]), voxels[1])


def test_a_large_ome_tiff_has_64_bit_offsets(volume, export, monkeypatch):
    path, (voxels, _) = volume()
    for limit, big in ((7000, True), (14000, False)):
        monkeypatch.setattr("octane.tools.export.tiff.CLASSIC_BYTES", limit)
        with tifffile.TiffFile(export(path, f"{limit}.ome.tif")) as file:
            assert file.is_bigtiff is big
            np.testing.assert_array_equal(file.series[0].asarray(), voxels)


def test_what_parameters_replace_is_told(volume, export, caplog):
    path, _ = volume()
    export(path, "a.nii", orientation="LIP", input_unit="millimeter")
    assert "is replaced by z right to left" in caplog.text
    assert "states lengths in micrometer; they are read in millimeter" in caplog.text


@pytest.mark.parametrize("name", ["a.nii", "b.ome.tif", "c.ome.zarr", "d.ozx"])
def test_the_orientation_is_told_in_words(volume, export, caplog, name):
    caplog.set_level("INFO")
    path, _ = volume(orientation=None)
    export(path, name, orientation="RAS")
    words = "z left to right, y posterior to anterior, x inferior to superior"
    assert f"{path.name}: orientation {words}" in caplog.messages
    caplog.clear()
    export(path, f"turned_{name}", orientation="RAS", reorient="PIR")
    turned = "z anterior to posterior, y superior to inferior, x left to right"
    assert f"{path.name}: orientation {words}" in caplog.messages
    assert f"turned_{name}: orientation {turned}" in caplog.messages


def test_what_ome_tiff_lacks_is_told(volume, export, caplog):
    path, _ = volume()
    export(path, "a.ome.tif")
    assert "does not state the orientation (z superior to inferior," in caplog.text


# A level, a region


def test_a_level_is_chosen_by_its_voxel_size(volume, export):
    path, (_, coarse) = volume()
    image, voxels = read_itk(export(path, "a.nii", resolution=[20, 10, 8]))
    np.testing.assert_array_equal(voxels, coarse)
    np.testing.assert_allclose(image.GetSpacing(), [0.008, 0.01, 0.02])
    made = export(path, "a.ome.zarr", resolution=[20, 10, 8])
    assert [level.grid for level in open_levels(made)] == grids()[1:]
    assert [s.stop for s in read_sections(open_image(made).attributes, 7)] == [3, 7]
    with refused(path, "--resolution 25 x 25 x 25", "10 x 5 x 4, 20 x", error=InputError):
        export(path, "b.nii", resolution=25)


def test_a_region_is_cut_from_each_level(volume, export):
    path, written = volume()
    region = ["z=115:186", "y=0:40", "x=:45.5"]
    made = export(path, "a.ome.zarr", region=region, ome_zarr_version="0.4")
    for image, voxels, grid in zip(open_levels(made), written, grids(), strict=True):
        axes = [
            o + np.arange(n) * s
            for o, n, s in zip(grid.origin, grid.shape, grid.spacing, strict=True)
        ]
        inside = [
            np.flatnonzero((a >= low) & (a < high))
            for a, (low, high) in zip(axes, [(115, 186), (0, 40), (-1e9, 45.5)], strict=True)
        ]
        np.testing.assert_allclose(
            image.grid.origin, [a[i[0]] for a, i in zip(axes, inside, strict=True)]
        )
        whole = image.read(tuple(slice(0, n) for n in image.grid.shape))
        np.testing.assert_array_equal(whole, voxels[np.ix_(*inside)])
    assert open_image(made).attributes["sections"] == [
        {**SECTIONS[0], "start": 0, "stop": 5},
        {**SECTIONS[1], "start": 5, "stop": 8},
    ]
    image, voxels = read_itk(export(path, "a.nii", region=region))
    np.testing.assert_array_equal(voxels, written[0][1:9, 4:12, 0:10])
    np.testing.assert_allclose(
        image.GetOrigin(), subject_place(ORIENTATION, (115, 0, 5.5)), atol=1e-6
    )


def test_regions_that_touch_share_no_voxel(volume, export):
    path, (voxels, _) = volume()
    parts = [
        read_itk(export(path, f"{k}.nrrd", region=[r]))[1]
        for k, r in enumerate(("z=:125", "z=125:165.5", "z=165.5:"))
    ]
    np.testing.assert_array_equal(np.concatenate(parts), voxels)


def test_what_is_written_is_told(volume, export, caplog):
    caplog.set_level("INFO")
    path, _ = volume(("DAPI", "axis"))
    region = ["z=115:145", "x=:21"]
    # With the second level, of 1 x 9 x 2 voxels.
    for name, size in (("a.ome.tif", "864"), ("a.ozx", "936")):
        made = export(path, name, region=region)
        told = (
            f"{made}: 3 x 18 x 4 voxels of 10 x 5 x 4 um (z y x), centres from z=115:135 y=-20:65 "
            f"x=5.5:17.5 um, 2 channels, 0.{size} kB before compression"
        )
        assert told in caplog.messages


def test_a_region_without_voxels_and_a_malformed_one_are_refused(volume, export):
    path, _ = volume()
    extent = "z=105:225 y=-20:65 x=5.5:89.5"
    with refused(path, "--region z=300:", extent, error=InputError):
        export(path, "a.nii", region=["z=300:"])
    for words in (["z=2"], ["z=:"], ["t=1:2"], ["z=3:2"], ["z=1:2", "z=3:4"], ["z=a:b"]):
        with pytest.raises(ValidationError, match="'z=100:400 y=:2000'"):
            ExportParameters(region=words)
    assert ExportParameters(region="z=-1.5:2 y=3:").region == ("z=-1.5:2", "y=3:")


def test_turned_stores_say_so(volume, export):
    path, (voxels, _) = volume()
    for name in ("a.ome.zarr", "a.ozx"):
        image = read_ngff(export(path, name, reorient="RIP"))[0]
        np.testing.assert_array_equal(np.asarray(image.data), voxels.transpose(2, 0, 1)[::-1])
        assert orientation_in(image) == [
            "left-to-right",
            "superior-to-inferior",
            "anterior-to-posterior",
        ]
        # Along a flipped axis the coordinates are negative.
        assert image.translation == {"z": -(5.5 + 21 * 4), "y": 105, "x": -20}
    assert "sections" not in open_image(path.parents[1] / "out" / "a.ome.zarr").attributes


@pytest.mark.parametrize("cases", [8, pytest.param(300, marks=pytest.mark.soak)])
def test_every_voxel_of_a_turned_part_is_at_its_place_in_the_subject(volume, export, rng, cases):
    path, _ = volume()
    whole, voxels = read_itk(export(path, "whole.nii"))
    for case in range(cases):
        region = []
        for axis, o, n, s in zip("zyx", ORIGIN, SHAPE, SPACING, strict=True):
            # At least one voxel, and perhaps beyond the end.
            low = rng.uniform(o - s, o + (n - 1) * s)
            region.append(f"{axis}={low:.3f}:{low + s + rng.exponential(n * s / 3):.3f}")
        code = CODES[rng.integers(len(CODES))]
        part, found = read_itk(export(path, f"{case}.nii", region=region, reorient=code))
        for index in rng.integers(0, part.GetSize(), (9, 3)).tolist():
            point = part.TransformIndexToPhysicalPoint(index)
            x, y, z = whole.TransformPhysicalPointToIndex(point)
            assert found[tuple(index[::-1])] == voxels[z, y, x], (region, code, index)


# Other input, and what goes wrong


def test_a_mosaic_becomes_a_volume(write_mosaic, export, rng):
    voxels = rng.integers(0, 99, (4, 12, 20)).astype(np.uint8)
    path = write_mosaic("section_01.ome.zarr", voxels, (4, 6, 10))
    image = open_image(export(path, "a.ome.zarr"))
    assert image.attributes["kind"] == "volume"
    assert "mosaic" not in image.attributes
    np.testing.assert_array_equal(image.read(np.s_[0:4, 0:12, 0:20]), voxels)


def test_files_are_exported_too(write_file, export, rng):
    voxels = rng.integers(0, 999, (5, 6, 7)).astype(np.int16)
    path = write_file("a.nii.gz", voxels)
    given, same = read_itk(path)[0], read_itk(export(path, "a.nrrd"))[0]
    np.testing.assert_allclose(same.GetDirection(), given.GetDirection(), atol=1e-6)
    np.testing.assert_allclose(same.GetOrigin(), given.GetOrigin(), atol=1e-6)
    made = export(path, "b.ome.tif")
    np.testing.assert_array_equal(tifffile.imread(made), voxels)
    assert open_volume(made).grid.spacing == pytest.approx((40, 30, 25))
    image, found = read_itk(export(made, "c.mha"))
    np.testing.assert_array_equal(found, voxels)
    np.testing.assert_allclose(image.GetSpacing(), (0.025, 0.03, 0.04))


@pytest.mark.parametrize("suffix", [".nii", ".mha", ".nrrd"])
def test_oblique_files_keep_the_places_of_their_voxels(write_file, export, rng, caplog, suffix):
    voxels = rng.integers(0, 999, (5, 6, 7)).astype(np.int16)
    path = write_file("a.mha", voxels, direction=(0.8, -0.6, 0, 0, 0, -1, 0.6, 0.8, 0))
    given, _ = read_itk(path)
    part, found = read_itk(export(path, f"a{suffix}"))
    np.testing.assert_array_equal(found, voxels)
    for index in ((0, 0, 0), (3, 4, 2)):
        np.testing.assert_allclose(
            part.TransformIndexToPhysicalPoint(index),
            given.TransformIndexToPhysicalPoint(index),
            atol=1e-5,
        )
    z, y, x = open_volume(path).grid.origin
    region = [f"z={z + 40}:{z + 170}", f"y={y + 60}:", f"x={x + 50}:{x + 130}"]
    part, found = read_itk(export(path, f"b{suffix}", region=region))
    np.testing.assert_array_equal(found, voxels[1:5, 2:, 2:6])
    np.testing.assert_allclose(
        part.TransformIndexToPhysicalPoint((1, 0, 2)),
        given.TransformIndexToPhysicalPoint((3, 2, 3)),
        atol=1e-5,
    )
    assert not caplog.messages
    with refused(path, "R L, A P and S I", "--reorient", error=InputError):
        export(path, f"c{suffix}", reorient="SAR")
    export(path, "c.ozx")
    assert "a.mha has axes oblique" in caplog.text


NAMES = ("a.nii", "a.nii.gz", "a.nrrd", "a.mha", "a.ome.tif", "a.ozx", "a.ome.zarr")


@pytest.mark.parametrize("name", NAMES)
def test_an_interrupt_and_an_existing_file_leave_what_was_there(volume, export, monkeypatch, name):
    path, _ = volume()
    made = export(path, name)
    with refused(made, "--overwrite"):
        export(path, name)
    replacing = ExecutionParameters(overwrite=True, workers=1)

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        for module in ("source", "ome_zarr"):
            patch.setattr(f"octane.tools.export.{module}.run_tiles", interrupt)
        with pytest.raises(KeyboardInterrupt):
            export(path, name, execution=replacing, region=["z=:150"])
    assert [*made.parent.iterdir()] == [made]
    export(path, name, execution=replacing)


@pytest.mark.parametrize("name", NAMES)
def test_a_full_disk_is_told_and_leaves_nothing(volume, small_disk, reading, execution, name):
    path, _ = volume(shape=(40, 160, 160), levels=1)
    place = small_disk("full", "size=256k")
    with refused(place / name, os.strerror(errno.ENOSPC), error=NoSpaceError):
        export_volume(path, place / name, ExportParameters(), reading, execution)
    assert not [*place.iterdir()]


def test_an_unknown_suffix_and_version_are_refused(volume, export):
    path, _ = volume()
    # Names in capitals, too: a store would not be read back by them.
    for name in ("a.h5", "a.OZX", "a.ome.ZARR", "a.NII"):
        with refused(name, ".nii, .nii.gz", error=InputError):
            export(path, name)
    with refused("a.ozx", "OME-Zarr 0.4", "--ome_zarr_version", error=InputError):
        export(path, "a.ozx", ome_zarr_version="0.4")


@pytest.mark.parametrize(
    ("region", "planes"),
    [("z=1e400:", 0), ("z=:1e400", 13), ("z=-1e400:", 13), ("z=:-1e400", 0), ("z=1e308:", 0)],
)
def test_a_region_may_end_beyond_any_place(volume, export, region, planes):
    path, _ = volume()
    if planes:
        assert read_itk(export(path, "a.nii", region=[region]))[0].GetSize()[2] == planes
    else:
        with refused(path, f"--region {region}", error=InputError):
            export(path, "a.nii", region=[region])
