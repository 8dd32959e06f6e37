"""A run may start at any step whose input exists, and end where the steps are switched off."""

import json
import shutil

import numpy as np
import pytest
import SimpleITK as sitk
import zarr

pytestmark = pytest.mark.slow


def volume_of(path):
    """The finest level of a store."""
    return zarr.open_array(path, path="0", mode="r")


def test_mosaics_by_a_relative_path_with_blanks_and_positions(nextflow, phantom, quick, tmp_path):
    (tmp_path / "the data").mkdir()
    for store in (phantom / "mosaics").iterdir():
        name = store.name.replace("_", " ")
        (tmp_path / "the data" / name).symlink_to(store)
    (tmp_path / "all positions.csv").symlink_to(phantom / "positions.csv")
    run = nextflow(
        *(tmp_path, *quick, "--input", "the data", "--positions", "all positions.csv"),
        # A name that Nextflow reads as a number.
        *("--subject", "01", "--outdir", "results/right here"),
        outdir=tmp_path / "results" / "right here",
        give_outdir=False,
    )
    assert run.code == 0, run.output
    steps = {"PREFLIGHT", "RESAMPLE", "STITCH", "STACK", "N4", "PYRAMID", "REPORT"}
    assert run.processes() == steps
    assert volume_of(run.outdir / "01" / "01.ome.zarr").shape[0] == 14
    assert not (run.outdir / "01" / "01_bias.ome.zarr").exists()
    report = json.loads((run.outdir / "01" / "01_report.json").read_text(encoding="utf-8"))
    commands = [r["command"] for r in report["records"] if r["step"] == "stitch"]
    assert all("--positions" in command for command in commands)
    # Without a GPU of their own, all steps but two are not to look for one.
    backends = {}
    for task in run.tasks():
        name = task.split(" ", maxsplit=1)[0]
        if name != "PREFLIGHT":
            script = run.task_file(task, ".command.sh").read_text(encoding="utf-8")
            backends.setdefault("cpu" if "--backend cpu" in script else "auto", set()).add(name)
    assert backends == {
        "auto": {"RESAMPLE", "N4"},
        "cpu": {"STITCH", "STACK", "PYRAMID", "REPORT"},
    }


def test_a_folder_of_mosaics_may_be_the_place_of_everything(nextflow, phantom, quick, tmp_path):
    # Results, work directory and Nextflow's logs come into the folder of the input while it is
    # read.
    folder = tmp_path / "data (1)"
    shutil.copytree(phantom / "mosaics", folder)
    given = (*quick, "--input", ".", "--subject", "brain", "--skip_pyramid")
    run = nextflow(folder, *given)
    assert run.code == 0, run.output
    assert run.outdir.parent == folder
    assert (run.outdir / "brain" / "brain_n4.ome.zarr" / "zarr.json").is_file()
    again = nextflow(folder, *given, "-resume")
    assert again.code == 0, again.output
    # PREFLIGHT takes the folder itself, whose time has changed.
    assert again.processes("COMPLETED") == {"PREFLIGHT"}


def test_one_mosaic_up_to_the_stacked_volume(nextflow, phantom, quick, tmp_path):
    run = nextflow(
        *(tmp_path, *quick, "--input", phantom / "mosaics" / "section_01.ome.zarr"),
        *("--skip_n4", "--skip_pyramid", "--skip_report"),
    )
    assert run.code == 0, run.output
    assert run.processes() == {"PREFLIGHT", "RESAMPLE", "STITCH", "STACK"}
    (result,) = (run.outdir / "section_01").glob("*.zarr")
    assert result.name == "section_01_stack.ome.zarr"
    assert volume_of(result).shape[0] == 7


def test_a_volume_that_is_only_resampled(nextflow, phantom, quick, tmp_path):
    run = nextflow(
        *(tmp_path, *quick, "--input", phantom / "truth" / "tissue.ome.zarr", "--resolution", "20"),
        *("--skip_n4", "--skip_pyramid"),
    )
    assert run.code == 0, run.output
    # Whose report has no picture to show.
    assert run.processes() == {"PREFLIGHT", "RESAMPLE", "REPORT"}
    (result,) = (run.outdir / "tissue").glob("*.zarr")
    before = volume_of(phantom / "truth" / "tissue.ome.zarr").shape
    assert volume_of(result).shape == tuple(round(n / 2) for n in before)


def test_an_ome_zarr_volume_without_a_mask(nextflow, phantom, quick, tmp_path):
    run = nextflow(
        *(tmp_path, *quick, "--input", phantom / "truth" / "tissue.ome.zarr"),
        *("--skip_resample", "--n4_mask", "none", "--skip_pyramid"),
    )
    assert run.code == 0, run.output
    assert run.processes() == {"PREFLIGHT", "N4", "REPORT"}
    before = volume_of(phantom / "truth" / "tissue.ome.zarr")
    after = volume_of(run.outdir / "tissue" / "tissue_n4.ome.zarr")
    assert after.shape == before.shape
    assert not np.array_equal(after[:], before[:])


def test_a_nifti_volume_with_a_mask_of_its_own(nextflow, quick, tmp_path):
    values = np.random.default_rng(1).gamma(9.0, 10.0, (16, 20, 24)).astype(np.float32)
    inside = np.zeros(values.shape, np.uint8)
    inside[2:14, 2:18, 2:22] = 1
    for name, array in (("brain", values), ("its mask", inside)):
        image = sitk.GetImageFromArray(array)
        image.SetSpacing((0.01, 0.01, 0.01))
        sitk.WriteImage(image, str(tmp_path / f"{name}.nii.gz"))
    run = nextflow(
        *(tmp_path, *quick, "--input", "brain.nii.gz", "--n4_mask", "its mask.nii.gz"),
        *("--skip_resample", "--publish_dir_mode", "copy", "--pyramid_resolutions", "10 25"),
    )
    assert run.code == 0, run.output
    assert run.processes() == {"PREFLIGHT", "N4", "PYRAMID", "REPORT"}
    store = run.outdir / "brain" / "brain.ome.zarr"
    assert not store.is_symlink()
    assert "links" not in run.output
    assert sorted(zarr.open_group(store, mode="r").array_keys()) == ["0", "1"]
    report = json.loads((run.outdir / "brain" / "brain_report.json").read_text(encoding="utf-8"))
    (n4,) = (r for r in report["records"] if r["step"] == "n4")
    assert n4["figures"]["mask_fraction"] == pytest.approx(12 * 16 * 20 / values.size, rel=0.2)


def test_sections_that_are_whole_already(nextflow, command, phantom, quick, tmp_path):
    (tmp_path / "sections").mkdir()
    for name in ("section_01.ome.zarr", "section_02.ome.zarr"):
        made = command("stitch", phantom / "mosaics" / name, tmp_path / "sections" / name)
        assert made.returncode == 0, made.stderr
    run = nextflow(
        *(tmp_path, *quick, "--input", tmp_path / "sections", "--skip_resample"),
        *("--skip_n4", "--pyramid_resolutions", "10"),
    )
    assert run.code == 0, run.output
    assert run.processes() == {"PREFLIGHT", "STACK", "PYRAMID", "REPORT"}
    assert volume_of(run.outdir / "sections" / "sections.ome.zarr").shape[0] == 14
