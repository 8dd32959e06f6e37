"""What steps will write, compared with what they wrote."""

import numpy as np
import pytest
import SimpleITK as sitk

from octane.config.params import (
    ExecutionParameters,
    InputParameters,
    N4Parameters,
    PyramidParameters,
    ResampleParameters,
    StackParameters,
    StitchParameters,
)
from octane.config.schema import WorkflowModel, split
from octane.core.errors import OctaneError
from octane.core.geometry import Grid
from octane.steps.n4 import correct_bias
from octane.steps.pyramid import build_pyramid
from octane.steps.resample import resample_image
from octane.steps.space import TASK, predict, stored
from octane.steps.stack import stack_sections
from octane.steps.stitch import stitch_section
from octane.store.image import Level, create_image
from octane.store.itk_files import FileVolume
from octane.store.volumes import open_volume


def held(*paths):
    """Bytes that a file system gives out for files and folders, what is linked left out."""
    found = [p for path in paths for p in (path, *path.rglob("*"))]
    return sum(
        4096 if p.is_dir() else -(-p.stat().st_size // 4096) * 4096 * (p.stat().st_nlink == 1)
        for p in found
    )


@pytest.fixture
def steps(tmp_path):
    """Predict a run; gives the steps by name."""

    def run(sources, kind, positions=None, **parameters):
        settings = split(WorkflowModel.model_validate({"outdir": "out", **parameters}))
        settings["resample"]["layout"] = "volume" if kind == "volume" else "mosaic"
        before = sorted(tmp_path.iterdir())
        unit = parameters.get("input_unit")
        volumes = [open_volume(path, input_unit=unit) for path in sources]
        made = predict(volumes, kind, settings, tmp_path, positions)
        assert sorted(tmp_path.iterdir()) == before
        return {step.name: step for step in made}

    return run


@pytest.mark.parametrize("dtype", ["float32", "uint16"])
def test_every_step_writes_what_was_predicted_within_a_fifth(
    write_phantom, steps, execution, reading, tmp_path, dtype
):
    folder, _ = write_phantom(
        sections=2, tiles=(3, 3), tile_shape=(16, 96, 96), voxel_size=(10.0, 5.0, 5.0),
        speckle_looks=4.0, bias=0.3, dtype=dtype,
    )  # fmt: skip
    mosaics = sorted((folder / "mosaics").iterdir())
    predicted = steps(mosaics, "mosaic", resolution=10, save_bias_field=True, n4_shrink_factor=2)
    sections = []
    for source in mosaics:
        whole = tmp_path / "resampled" / source.name
        parameters = ResampleParameters(resolution=(10.0, 10.0, 10.0))
        resample_image(source, whole, parameters, reading, execution)
        sections.append(tmp_path / "stitched" / source.name)
        stitch_section(whole, sections[-1], StitchParameters(), reading, execution)
    stack, n4, bias, pyramid = (tmp_path / f"{name}.ome.zarr" for name in "snbp")
    stack_sections(sections, stack, StackParameters(), reading, execution)
    correct_bias(
        stack, n4, N4Parameters(shrink_factor=(2, 2, 2), iterations=(50, 50)), reading, execution,
        save_bias_field=bias,
    )  # fmt: skip
    # Of the records and previews beside, the pipeline's test knows.
    written = {
        "RESAMPLE": held(tmp_path / "resampled"),
        "STITCH": held(tmp_path / "stitched"),
        "STACK": held(stack),
        "N4": held(n4, bias),
    }
    build_pyramid(n4, pyramid, PyramidParameters(), reading, execution)
    for name, size in written.items():
        step = predicted[name]
        assert step.bytes - step.tasks * TASK == pytest.approx(size, rel=0.2), name
    assert predicted["PYRAMID"].linked == pytest.approx(
        (pyramid / "0/c/0/0/0").stat().st_size, rel=0.2
    )
    assert predicted["PYRAMID"].published > predicted["PYRAMID"].linked


def test_what_is_switched_off_is_not_counted(write_phantom, steps):
    folder, _ = write_phantom()
    mosaics = sorted((folder / "mosaics").iterdir())
    off = {f"skip_{name}": True for name in ("resample", "stitch", "n4", "pyramid", "report")}
    made = steps(mosaics, "mosaic", **off)
    assert list(made) == ["STACK"]
    assert made["STACK"].published > 0


def test_a_coarser_resolution_takes_less(write_phantom, steps):
    folder, _ = write_phantom()
    mosaics = sorted((folder / "mosaics").iterdir())
    fine, coarse = (steps(mosaics, "mosaic", resolution=r) for r in (10, 20))
    for name in ("RESAMPLE", "STITCH", "STACK", "N4"):
        assert coarse[name].bytes < fine[name].bytes


def test_nothing_is_linked_between_two_codecs(write_phantom, steps):
    folder, _ = write_phantom()
    mosaics = sorted((folder / "mosaics").iterdir())
    made = steps(mosaics, "mosaic", resolution=10, pyramid_codec="none")
    assert made["PYRAMID"].linked == 0
    made = steps(mosaics, "mosaic", resolution=10, pyramid_resolutions="20 40")
    assert made["PYRAMID"].linked == 0


def test_a_volume_that_is_not_octanes_is_written_once_more(write_image, steps, rng):
    volume = write_image("a.ome.zarr", rng.random((20, 30, 40), np.float32))
    made = steps([volume], "volume", skip_n4=True)
    assert list(made) == ["PYRAMID", "REPORT"]
    assert made["PYRAMID"].linked == 0
    assert made["PYRAMID"].bytes > 20 * 30 * 40 * 3


def test_blank_slabs_take_nothing(write_image, steps, rng, tmp_path):
    paths = [
        write_image(
            f"section_{n}.ome.zarr",
            rng.random((10, 64, 64), np.float32),
            attributes={"kind": "section"},
        )
        for n in (1, 2, 5)
    ]
    made = steps(paths, "section", allow_missing_sections=2, skip_n4=True, skip_pyramid=True)
    stack = tmp_path / "stack.ome.zarr"
    parameters = StackParameters(allow_missing_sections=2)
    stack_sections(paths, stack, parameters, InputParameters(), ExecutionParameters(backend="cpu"))
    assert made["STACK"].bytes - TASK == pytest.approx(held(stack), rel=0.2)


def test_without_compression_chunks_are_stored_with_their_padding(tmp_path):
    level = Level.volume(Grid((20, 300, 130), (10.0, 10.0, 10.0)))
    path = tmp_path / "a.ome.zarr"
    with create_image(path, [level], np.uint16, codec="none") as (writer,):
        writer[slice(20), slice(300), slice(130)] = np.ones((20, 300, 130), np.uint16)
    assert stored(level, np.dtype(np.uint16), "none", 1.0) == pytest.approx(held(path), rel=0.05)


@pytest.mark.parametrize("name", ["v.nii.gz", "v.nrrd", "v.tif"])
def test_what_cannot_be_read_in_part_is_predicted_as_if_it_did_not_compress(
    steps, tmp_path, monkeypatch, caplog, name
):
    voxels = np.zeros((64, 64, 64), np.float32)
    for file in (name, "v.nii"):
        sitk.WriteImage(sitk.GetImageFromArray(voxels), tmp_path / file)
    monkeypatch.setattr(FileVolume, "load", lambda self: pytest.fail("voxels were read"))
    told = {"skip_n4": True, "pyramid_resolutions": [1000.0], "input_unit": "millimeter"}
    with caplog.at_level("INFO"):
        looked_at = steps([tmp_path / "v.nii"], "volume", **told)["PYRAMID"].bytes
        assert "not compress" not in caplog.text
        assumed = steps([tmp_path / name], "volume", **told)["PYRAMID"].bytes
    assert assumed > voxels.nbytes > looked_at
    assert f"{tmp_path / name}" in caplog.text
    assert "predicted as if it did not compress" in caplog.text


def test_a_file_that_is_no_store_is_no_mosaic(write_image, steps, tmp_path):
    sitk.WriteImage(sitk.GetImageFromArray(np.ones((4, 8, 8), np.float32)), tmp_path / "a_1.nii")
    with pytest.raises(OctaneError, match="no OME-Zarr image and so no mosaic"):
        steps([tmp_path / "a_1.nii"], "mosaic", overlap=0)


def test_a_corrupt_chunk_is_left_to_the_step_that_needs_it(write_mosaic, steps):
    source = write_mosaic(
        "section_1.ome.zarr", np.ones((4, 20, 20), np.float32), (4, 10, 10), pitch=(100.0, 100.0)
    )
    for chunk in (source / "0" / "c").rglob("*"):
        if chunk.is_file():
            # Of the same size: what is cut short is seen when the store is opened.
            chunk.write_bytes(bytes(chunk.stat().st_size))
    made = steps([source], "mosaic", resolution=20)
    assert made["RESAMPLE"].bytes > TASK
