"""Orientations of files and stores: read, replaced, written and given back."""

import json
import re
from itertools import permutations, product

import ngff_zarr
import nibabel as nib
import numpy as np
import pytest
import SimpleITK as sitk
import tifffile
from nibabel.eulerangles import euler2mat

from octane.config.parameters import InputParameters
from octane.core.geometry import Grid
from octane.core.metrics import Metrics
from octane.core.orientation import UNSTATED, read_orientation
from octane.store.formats.itk_files import FileVolume, itk_geometry, open_file
from octane.store.image import open_image, open_levels
from octane.store.stated import stated_orientation
from octane.store.volumes import bring_in, create_volume, is_oblique, open_volume, override_warnings

CODES = ["".join(ends) for axes in permutations(("LR", "PA", "SI")) for ends in product(*axes)]
"""Ends of x, y and z, as nibabel names them."""
ENDS = {"L": "right-to-left", "P": "anterior-to-posterior", "S": "inferior-to-superior"} | {
    "R": "left-to-right", "A": "posterior-to-anterior", "I": "superior-to-inferior"
}  # fmt: skip
VOXELS = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
CORNER = (3, 2, 1)
"""Index (x, y, z) of the voxel of the largest value."""
RAS_TO_LPS = np.diag([-1.0, -1.0, 1.0])


def affine_of(code, zooms=(0.01, 0.02, 0.03), origin=(1.5, -2.0, 7.25)):
    """Affine of nibabel: millimetres to the right, anterior and superior."""
    affine = np.diag([*zooms, 1.0])
    turn = np.zeros((3, 3))
    for column, end in enumerate(code):
        pair = next(pair for pair in ("LR", "PA", "IS") if end in pair)
        turn[("LR", "PA", "IS").index(pair), column] = 2 * pair.index(end) - 1
    affine[:3, :3] = turn @ affine[:3, :3]
    affine[:3, 3] = origin
    return affine


def write_nifti(path, affine, codes=(1, 1)):
    image = nib.Nifti1Image(VOXELS.T, affine, dtype=np.int16)
    image.header.set_xyzt_units("mm")
    for place, state in zip((image.set_qform, image.set_sform), codes, strict=True):
        place(affine, state)
    nib.save(image, path)
    return path


def copied(volume, destination):
    with create_volume(destination, volume, volume.dtype) as (writer, _):
        region = tuple(slice(0, n) for n in volume.grid.shape)
        writer[region] = volume.read(region)
    return destination


def world(path):
    """Position of the corner in ITK's space, micrometres, and the value there."""
    image = sitk.ReadImage(path)
    return 1000 * np.array(image.TransformIndexToPhysicalPoint(CORNER)), image[CORNER]


@pytest.mark.parametrize("code", CODES)
def test_directions_become_orientations_and_come_back(code, tmp_path):
    source = write_nifti(tmp_path / "a.nii", affine_of(code))
    assert nib.aff2axcodes(nib.Nifti1Image.from_filename(source).affine) == tuple(code)
    volume = open_volume(source)
    store = copied(volume, tmp_path / "b.ome.zarr")
    content = json.loads((store / "zarr.json").read_text())["attributes"]
    axes = content["ome"]["multiscales"][0]["axes"]
    assert [axis["orientation"] for axis in axes] == [
        {"type": "anatomical", "value": ENDS[end]} for end in reversed(code)
    ]
    assert "orientation" not in content["octane"]
    read = ngff_zarr.from_ngff_zarr(str(store)).images[0].axes_orientations
    assert read is not None
    assert {axis: own.value.value for axis, own in read.items()} == {
        axis: ENDS[end] for axis, end in zip("xyz", code, strict=True)
    }
    image = open_image(store)
    # Along the image's own axes, every voxel is after the origin.
    physical = itk_geometry(image.grid, stated_orientation(image.attributes))
    own = np.add(image.grid.origin, np.multiply(CORNER[::-1], image.grid.spacing))
    at = np.reshape(physical.directions, (3, 3)) @ own[::-1]
    place, value = world(source)
    assert value == VOXELS.max()
    np.testing.assert_allclose(at, place, atol=1e-3)
    for suffix in (".nii.gz", ".mha", ".nrrd"):
        back = copied(image, tmp_path / f"c{suffix}")
        np.testing.assert_allclose(world(back)[0], place, atol=1e-3)
        assert world(back)[1] == value
        assert stated_orientation(open_volume(back).attributes) == image.attributes["orientation"]
        assert open_volume(back).grid.origin == pytest.approx(image.grid.origin, abs=1e-3)
    back = nib.Nifti1Image.from_filename(tmp_path / "c.nii.gz")
    assert nib.aff2axcodes(back.affine) == tuple(code)
    np.testing.assert_allclose(back.affine, nib.Nifti1Image.from_filename(source).affine, atol=1e-6)
    np.testing.assert_array_equal(np.asarray(back.dataobj), VOXELS.T)


@pytest.mark.parametrize(
    ("codes", "stated"), [((1, 1), True), ((0, 2), True), ((1, 0), True), ((0, 0), False)]
)
def test_a_nifti_states_its_directions_by_its_codes(tmp_path, codes, stated):
    path = write_nifti(tmp_path / "a.nii.gz", affine_of("RAS"), codes)
    expected = read_orientation(["SAR"]) if stated else UNSTATED
    assert stated_orientation(open_volume(path).attributes) == expected


@pytest.mark.parametrize(
    ("suffix", "change", "code"),
    [
        (".mha", (b"TransformMatrix = 1 0 0 0 1 0 0 0 1\n", b""), None),
        (".mha", (b"TransformMatrix = 1", b"TransformMatrix = -1"), "SPR"),
        (".mha", (b"TransformMatrix", b"Rotation"), "SPL"),
        (".mhd", None, "SPL"),
        (".nrrd", (b"left-posterior-superior", b"LPS"), "SPL"),
        (".nrrd", (b"left-posterior-superior", b"right-anterior-superior"), "SAR"),
        (".nrrd", (b"left-posterior-superior", b"LAS"), "SAL"),
        (".nrrd", (b"left-posterior-superior", b"scanner-xyz"), None),
        (".nrrd", (b"space: left-posterior-superior", b"space dimension: 3"), None),
        (".nhdr", None, "SPL"),
    ],
)
def test_only_a_header_with_directions_states_an_orientation(tmp_path, suffix, change, code):
    path = tmp_path / f"a{suffix}"
    sitk.WriteImage(sitk.GetImageFromArray(VOXELS), path)
    if change is not None:
        content = path.read_bytes()
        assert content.count(change[0]) == 1
        path.write_bytes(content.replace(*change))
    expected = UNSTATED if code is None else read_orientation([code])
    assert stated_orientation(open_file(path).attributes) == expected


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz"])
def test_a_nifti_that_states_two_places_is_named(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    image = nib.Nifti1Image(VOXELS, affine_of("PIR"))
    for qform, is_named in (("PIR", False), ("RAS", True)):
        image.set_qform(affine_of(qform), 1)
        image.set_sform(affine_of("PIR"), 2)
        nib.save(image, path)
        (*said,) = override_warnings([open_volume(path)])
        assert ["qform" in text for text in said] == [True] * is_named


def test_oblique_directions_are_kept_by_files_alone(tmp_path):
    affine = affine_of("RAS")
    affine[:3, :3] = euler2mat(z=np.radians(10)) @ affine[:3, :3]
    source = write_nifti(tmp_path / "a.nii", affine)
    volume = open_volume(source)
    assert isinstance(volume, FileVolume)
    assert is_oblique(volume)
    assert "orientation" not in volume.attributes
    # The origin along the file's own axes still leads to the place.
    directions = np.reshape(volume.frame.GetDirection(), (3, 3))
    at = directions @ np.array(volume.grid.origin[::-1])
    np.testing.assert_allclose(at, 1000 * RAS_TO_LPS @ affine[:3, 3], atol=1e-2)
    same = nib.Nifti1Image.from_filename(copied(volume, tmp_path / "b.nii"))
    np.testing.assert_allclose(same.affine, affine, atol=1e-6)
    assert "orientation" not in open_image(copied(volume, tmp_path / "b.ome.zarr")).attributes


def test_directions_of_an_unknown_space_are_kept_and_told(tmp_path, caplog):
    caplog.set_level("INFO")
    source, image = tmp_path / "a.nrrd", sitk.GetImageFromArray(VOXELS)
    image.SetDirection((-1, 0, 0, 0, -1, 0, 0, 0, 1))
    sitk.WriteImage(image, source)
    content = source.read_bytes()
    source.write_bytes(content.replace(b"left-posterior-superior", b"scanner-xyz"))
    assert "orientation" not in open_volume(source).attributes
    made = sitk.ReadImage(copied(open_volume(source), tmp_path / "b.nii"))
    assert made.GetDirection() == sitk.ReadImage(source).GetDirection()
    told = "ITK's default: z inferior to superior, y posterior to anterior, x left to right."
    assert told in caplog.text


MICRONS = {"axes": "ZYX", "spacing": 10, "unit": "um"}
GIVEN = InputParameters.model_validate({"orientation": "PIR"})


@pytest.mark.parametrize("suffix", [".nii", ".mha", ".nrrd", ".ome.zarr", ".tif"])
def test_a_given_orientation_overrules_a_stated_one(tmp_path, write_image, suffix):
    own = read_orientation(["SPL"])
    name = f"a{suffix}"
    if suffix == ".ome.zarr":
        path = write_image(name, VOXELS, attributes={"orientation": own})
    elif suffix == ".tif":
        path, own = tmp_path / name, UNSTATED
        tifffile.imwrite(path, VOXELS, imagej=True, resolution=(0.1, 0.1), metadata=MICRONS)
    else:
        path = tmp_path / name
        sitk.WriteImage(sitk.GetImageFromArray(VOXELS), path)
    assert stated_orientation(open_volume(path).attributes) == own
    volume = open_volume(path, GIVEN)
    assert stated_orientation(volume.attributes) == GIVEN.orientation
    said = override_warnings([volume])
    assert len(said) == (suffix != ".tif")
    assert all(text.startswith("The stated orientation (z inferior to superior") for text in said)
    # The same one is nothing to warn of.
    assert not override_warnings(
        [open_volume(path, InputParameters.model_validate({"orientation": "SPL"}))]
    )
    back = nib.Nifti1Image.from_filename(copied(volume, tmp_path / "b.nii"))
    assert nib.aff2axcodes(back.affine) == ("R", "I", "P")


def test_a_given_orientation_overrules_oblique_directions(tmp_path):
    path = tmp_path / "a.mha"
    image = sitk.GetImageFromArray(VOXELS)
    image.SetDirection((0.8, -0.6, 0, 0.6, 0.8, 0, 0, 0, 1))
    sitk.WriteImage(image, path)
    volume = open_volume(path, GIVEN)
    (text,) = override_warnings([volume])
    assert text.startswith("The stated oblique directions are replaced by z anterior to posterior")
    assert isinstance(volume, FileVolume)
    assert not is_oblique(volume)


def test_part_of_an_orientation_is_kept_and_may_be_completed(tmp_path, write_image):
    part = ("", "", "left-to-right")
    path = write_image("a.ome.zarr", VOXELS, attributes={"orientation": part})
    (image,) = open_levels(copied(open_image(path), tmp_path / "b.ome.zarr"))
    assert stated_orientation(image.attributes) == part
    assert open_image(path, GIVEN).overruled == ""
    assert open_image(path, InputParameters.model_validate({"orientation": "PIL"})).overruled
    # A file of ITK states all directions or none.
    back = nib.Nifti1Image.from_filename(copied(open_image(path), tmp_path / "b.nii"))
    assert nib.aff2axcodes(back.affine) == ("L", "P", "S")


@pytest.mark.parametrize(
    ("stated", "why"),
    [
        (("", "up-to-down", ""), r"\(OME-Zarr \(RFC-4\) does not have 'up-to-down'\)"),
        (
            ("left-to-right", "", "right-to-left"),
            "two axes run along the same one of the subject: z ",
        ),
        (
            ("rostral-to-caudal", "inferior-to-superior", "anterior-to-posterior"),
            "two axes run along the same one of the subject: z rostral to caudal, y ",
        ),
    ],
)
def test_an_orientation_that_cannot_be_is_not_used_and_named(write_image, stated, why):
    path = write_image("a.ome.zarr", VOXELS, attributes={"orientation": stated})
    image = open_image(path)
    assert stated_orientation(image.attributes) == UNSTATED
    assert re.match(f"The orientation that the store states is not used .*{why}", image.overruled)
    image = open_image(path, GIVEN)
    assert stated_orientation(image.attributes) == GIVEN.orientation


def test_an_orientation_without_its_type_is_read(write_image):
    path = write_image("a.ome.zarr", VOXELS, attributes={"orientation": GIVEN.orientation})
    group = path / "zarr.json"
    stated = json.loads(group.read_text())
    for axis in stated["attributes"]["ome"]["multiscales"][0]["axes"]:
        axis["orientation"] = axis["orientation"]["value"]
    group.write_text(json.dumps(stated))
    assert stated_orientation(open_image(path).attributes) == GIVEN.orientation


def test_an_orientation_is_logged_in_words_and_default_directions_too(
    tmp_path, write_image, caplog
):
    caplog.set_level("INFO", "octane")
    bare = open_image(write_image("a.ome.zarr", VOXELS))
    known = open_image(write_image("b.ome.zarr", VOXELS), GIVEN)
    for volume in (bare, known):
        bring_in(volume, Metrics("n4"), tmp_path / "c.nii")
    assert caplog.messages == [
        "b.ome.zarr: orientation z anterior to posterior, y superior to inferior, x left to right"
    ]
    caplog.clear()
    copied(known, tmp_path / "c.nii")
    copied(bare, tmp_path / "c.ome.tif")
    assert not caplog.messages
    copied(bare, tmp_path / "d.nii")
    assert caplog.messages == [
        "a.ome.zarr does not state an orientation along R L, A P and S I, so d.nii has ITK's "
        "default: z inferior to superior, y anterior to posterior, x right to left. --orientation "
        "states another."
    ]


@pytest.mark.parametrize("code", ["SPL", "PIR", "LAS"])
def test_the_origin_of_a_grid_is_turned_with_its_directions(code):
    grid = Grid((2, 3, 4), (30.0, 20.0, 10.0), (7000.0, -2000.0, 0.0))
    found = itk_geometry(grid, read_orientation([code]))
    assert found.spacing == (0.01, 0.02, 0.03)
    expected = {"SPL": (0, -2, 7), "PIR": (0, 7, 2), "LAS": (7, 2, 0)}[code]
    assert found.origin == expected
    assert "-0.0" not in str(found)
