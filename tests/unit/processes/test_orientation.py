"""Orientation through the steps: given once, kept to the end, and refused where it differs."""

import json
import shutil

import nibabel as nib
import numpy as np
import pytest
import SimpleITK as sitk
from plans import content
from refusals import refused
from tile_writers import write_itk, write_png, write_store, write_tiff

from octane.config.parameters import InputParameters, LeaseParameters
from octane.core.errors import InputError
from octane.core.orientation import read_orientation
from octane.processes.channels.step import join_channels
from octane.processes.mosaic.parameters import TileParameters
from octane.processes.mosaic.step import write_mosaics
from octane.processes.n4.parameters import N4Parameters
from octane.processes.n4.step import correct_channels, prepare_channels
from octane.processes.preflight.step import plan_of
from octane.processes.pyramid.parameters import PyramidParameters
from octane.processes.pyramid.step import build_pyramid
from octane.processes.resample.parameters import ResampleParameters
from octane.processes.resample.step import resample_image
from octane.processes.stack.parameters import StackParameters
from octane.processes.stack.step import stack_sections
from octane.processes.stitch.parameters import OverlapParameters, StitchParameters
from octane.processes.stitch.step import stitch_section
from octane.store.image import open_image
from octane.tools.new_subject.parameters import SubjectOverrides
from octane.tools.new_subject.step import write_subject

PIR, SPL = read_orientation(["PIR"]), read_orientation(["SPL"])
GIVEN = InputParameters(orientation=["p", "i", "r"])
VOXELS = np.random.default_rng(7).gamma(4, 100, (12, 24, 30)).astype(np.float32)


def axes_of(path):
    """Orientation that a store's axes z, y and x state."""
    content = json.loads((path / "zarr.json").read_text(encoding="utf-8"))["attributes"]
    assert "orientation" not in content["octane"]
    axes = content["ome"]["multiscales"][0]["axes"][-3:]
    return tuple(axis.get("orientation", {}).get("value", "") for axis in axes)


def test_one_flag_at_the_first_step_reaches_the_last(write_phantom, tmp_path, reading, execution):
    folder, _ = write_phantom(sections=2, channels=2)
    pyramids = []
    for channel in ("0", "1"):
        first = GIVEN.model_copy(update={"channel": channel})
        sections = []
        for mosaic in sorted((folder / "mosaics").iterdir()):
            own = tmp_path / channel / mosaic.name
            steps = own.with_name("r.ome.zarr"), own
            resampled = ResampleParameters(resolution=(20,) * 3, layout="mosaic")
            metrics = resample_image(mosaic, steps[0], resampled, first, execution)
            assert metrics.orientation == PIR
            stitch_section(*steps, StitchParameters(), reading, execution)
            assert [axes_of(step) for step in steps] == [PIR, PIR]
            shutil.rmtree(steps[0])
            sections.append(own)
        names = ("stack", "n4", "bias", "pyramid")
        stack, n4, bias, pyramid = (tmp_path / channel / f"{n}.ome.zarr" for n in names)
        stack_sections(sections, stack, StackParameters(), reading, execution)
        quick = N4Parameters(shrink_factor=(2,) * 3, iterations=[2], mask="none")
        runs = prepare_channels(stack, n4, quick, reading, execution, None, bias)
        correct_channels(runs, LeaseParameters(), tmp_path / "n4.json")
        record = json.loads((tmp_path / "n4.json").read_text(encoding="utf-8"))
        assert record["orientation"] == list(PIR)
        build_pyramid(n4, pyramid, PyramidParameters(resolutions=(20, 40)), reading, execution)
        assert [axes_of(step) for step in (stack, n4, bias, pyramid)] == [PIR] * 4
        pyramids.append(pyramid)
    join_channels(pyramids, tmp_path / "brain.ome.zarr", execution)
    assert axes_of(tmp_path / "brain.ome.zarr") == PIR
    # N4 of all channels in one image, and as files that others read.
    both = tmp_path / "brain.ome.zarr"
    runs = prepare_channels(both, tmp_path / "o.ome.zarr", quick, reading, execution, "all")
    correct_channels(runs, LeaseParameters())
    assert axes_of(tmp_path / "o.ome.zarr") == PIR
    one = reading.model_copy(update={"channel": "0"})
    runs = prepare_channels(both, tmp_path / "o.nii.gz", quick, one, execution, None)
    correct_channels(runs, LeaseParameters())
    assert nib.aff2axcodes(nib.Nifti1Image.from_filename(tmp_path / "o.nii.gz").affine) == (
        "R",
        "I",
        "P",
    )


def write_tiles(folder, write, spacing=(10.0, 10.0, 10.0)):
    folder.mkdir()
    for column in (0, 1):
        write(folder / f"s1_r0_c{column}", VOXELS.astype(np.uint16)[:1], spacing)
    return folder


def mosaics(folder, destination, execution, **reading):
    given = InputParameters.model_validate(reading)
    placing = OverlapParameters(overlap=(0.1, 0.1))
    return write_mosaics(folder, destination, TileParameters(), given, placing, execution)


@pytest.mark.parametrize("kind", ["png", "tif", "mha", "ome.zarr"])
def test_tiles_in_files_take_the_given_orientation(tmp_path, execution, kind):
    write = {"png": write_png, "tif": write_tiff, "mha": write_itk(".mha"), "ome.zarr": write_store}
    folder = write_tiles(tmp_path / "tiles", write[kind])
    size = {} if kind in ("mha", "ome.zarr") else {"voxel_size": 10}
    tiles = TileParameters(pattern="s{section}_r{row}_c{column}*")
    given = InputParameters.model_validate({"orientation": "PIR", **size})
    placing = OverlapParameters(overlap=(0.1, 0.1))
    metrics = write_mosaics(folder, tmp_path / "made", tiles, given, placing, execution)
    assert axes_of(tmp_path / "made" / "section_01.ome.zarr") == PIR
    # SimpleITK's own writer states directions, once for all tiles here.
    assert [text[:22] for text in metrics.warnings] == ["The stated orientation"] * (kind == "mha")


def test_tiles_keep_the_orientation_and_places_of_their_files(tmp_path, execution):
    folder = tmp_path / "tiles"
    folder.mkdir()
    affine = np.diag([0.01, 0.01, 0.01, 1])
    for column in (0, 1):
        affine[0, 3] = column * 0.27
        tile = nib.Nifti1Image(VOXELS.T, affine)
        tile.header.set_xyzt_units("mm")
        nib.save(tile, folder / f"s1_r0_c{column}.nii")
    assert not mosaics(folder, tmp_path / "made", execution).warnings
    assert axes_of(tmp_path / "made" / "section_01.ome.zarr") == read_orientation(["SAR"])
    # Along the tiles' own axes, which run against ITK's.
    table = (tmp_path / "made" / "positions.csv").read_text(encoding="utf-8").split()
    places = {int(row.split(",")[2]): float(row.split(",")[4]) for row in table[1:]}
    assert places[1] - places[0] == pytest.approx(270, abs=1e-3)


def test_oblique_tiles_are_noted_once(tmp_path, execution):
    folder = write_tiles(tmp_path / "tiles", write_itk(".mha"))
    for path in folder.iterdir():
        image = sitk.ReadImage(path)
        image.SetDirection((0.8, -0.6, 0, 0.6, 0.8, 0, 0, 0, 1))
        sitk.WriteImage(image, path)
    (text,) = mosaics(folder, tmp_path / "made", execution).warnings
    assert text.startswith("s1_r0_c0.mha has axes oblique")
    assert axes_of(tmp_path / "made" / "section_01.ome.zarr") == ("", "", "")


def test_tiles_of_different_orientations_are_refused(tmp_path, execution):
    folder = write_tiles(tmp_path / "tiles", write_itk(".mha"))
    image = sitk.ReadImage(folder / "s1_r0_c1.mha")
    image.SetDirection((1, 0, 0, 0, -1, 0, 0, 0, -1))
    sitk.WriteImage(image, folder / "s1_r0_c1.mha")
    words = "has the orientation z .*, but most tiles, such as s1_r0_c., have the orientation z "
    with pytest.raises(InputError, match=words.replace("c.,", r"c.\.mha,")):
        mosaics(folder, tmp_path / "made", execution)
    mosaics(folder, tmp_path / "made", execution, orientation="PIR")


def test_sections_of_different_orientations_are_refused(
    write_image, write_mosaic, tmp_path, reading, execution
):
    paths = [tmp_path / f"section_{n}.ome.zarr" for n in (1, 2)]
    for path, own in zip(paths, ({}, {"orientation": SPL}), strict=True):
        number = {"section": {"number": int(path.name[8]), "thickness": 50.0}}
        write_image(path.name, VOXELS, attributes={"kind": "section", **number, **own})
    where = paths, tmp_path / "stack.ome.zarr", StackParameters(align="none")
    words = r"section_2.* states the orientation z inferior .*, but .*section_1.* none; correct one"
    with pytest.raises(InputError, match=words):
        stack_sections(*where, reading, execution)
    metrics = stack_sections(*where, GIVEN, execution)
    assert axes_of(where[1]) == PIR
    assert [text[:22] for text in metrics.warnings] == ["The stated orientation"]
    # PREFLIGHT says so before any work.
    for number, own in ((1, PIR), (2, SPL)):
        name = f"mosaics/section_{number}.ome.zarr"
        write_mosaic(name, VOXELS, (12, 12, 15), pitch=(100.0, 100.0), orientation=own)
    given = {"outdir": str(tmp_path), "subject": "brain", "section_thickness": 50}
    words = r"section_2.* states the orientation z inferior .*, but .*section_1.* z anterior"
    with pytest.raises(InputError, match=words):
        plan_of(given, tmp_path / "mosaics", {})
    plan = plan_of({**given, "orientation": "RIP"}, tmp_path / "mosaics", {}).layout
    assert len([text for text in plan.warnings() if text.endswith("as --orientation says.")]) == 2


def test_only_the_first_step_gets_the_flag(write_image, tmp_path):
    path = write_image("brain.ome.zarr", VOXELS, attributes={"kind": "volume"})
    given = {"outdir": str(tmp_path), "subject": "brain", "orientation": "p i r"}
    made = plan_of(given, path, {})
    flags = json.loads(json.dumps(content(made)))["channels"][0]["flags"]
    assert f"--orientation {' '.join(PIR)}" in flags["n4"]
    assert "--orientation" not in flags["pyramid"]
    assert made.layout.about().endswith(
        " Orientation: z anterior to posterior, y superior to inferior, x left to right."
    )


def test_channels_of_different_orientations_are_refused(write_image, tmp_path, execution):
    noted = {"kind": "volume", "step": "n4"}
    paths = [
        write_image(f"{n}.ome.zarr", VOXELS, attributes={**noted, "channel": n, **own})
        for n, own in (("a", {"orientation": PIR}), ("b", {}))
    ]
    words = r"b\.ome\.zarr states the orientation none, but .*a\.ome\.zarr z anterior to posterior"
    with pytest.raises(InputError, match=words):
        join_channels(paths, tmp_path / "brain.ome.zarr", execution)


@pytest.mark.parametrize("source", ["zarr", "nii"])
@pytest.mark.parametrize(
    ("code", "is_refused"), [("PIR", False), (None, False), ("AIR", True), ("IPR", True)]
)
def test_a_mask_of_another_orientation_is_refused(
    write_image, tmp_path, reading, execution, source, code, is_refused
):
    noted = {} if code is None else {"orientation": read_orientation([code])}
    path = write_image("v.ome.zarr", VOXELS, attributes={"kind": "volume", "orientation": PIR})
    mask = write_image("m.ome.zarr", np.ones(VOXELS.shape, np.uint8), attributes=noted)
    if source == "nii":
        parameters = N4Parameters(shrink_factor=(2,) * 3, iterations=[2], mask="none")
        runs = prepare_channels(path, tmp_path / "v.nii", parameters, reading, execution, None)
        correct_channels(runs, LeaseParameters())
        path = tmp_path / "v.nii"
    asked = N4Parameters(mask=str(mask))
    where = path, tmp_path / "n4.ome.zarr", asked, reading, execution, None
    if not is_refused:
        assert prepare_channels(*where)[0].companions
        return
    with refused(mask, path, error=InputError):
        prepare_channels(*where)
    # Already in PREFLIGHT.
    given = {"outdir": str(tmp_path), "subject": "brain", "n4_mask": "m.ome.zarr"}
    with refused(mask, path, error=InputError):
        plan_of(given, path, {"n4_mask": mask})
    with refused(mask, path, error=InputError):
        plan_of({**given, "resolution": 10}, path, {"n4_mask": mask})


@pytest.mark.parametrize(
    ("own", "given", "line", "comment"),
    [
        (SPL, None, "// orientation = null", "z inferior to superior, y anterior to posterior, x"),
        (SPL, "PIR", f"orientation = '{' '.join(PIR)}'", "The stated orientation (z inferior to"),
    ],
)
def test_a_new_subject_lists_the_orientation(write_image, tmp_path, own, given, line, comment):
    path = write_image("brain.ome.zarr", VOXELS, attributes={"kind": "volume", "orientation": own})
    overrides = SubjectOverrides.model_validate({"orientation": given} if given else {})
    config, _ = write_subject(path, "brain", overrides, config=tmp_path / "brain.config")
    text = config.read_text(encoding="utf-8")
    assert f"\n    {line}\n" in text
    assert comment in " ".join(part.strip(" /") for part in text.splitlines())
    assert open_image(path).attributes["orientation"] == own
