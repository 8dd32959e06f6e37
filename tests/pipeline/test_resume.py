"""-resume repeats what changed and what depends on it, and nothing else. Most tasks are stubs."""

import shutil

import numpy as np
import pytest
import SimpleITK as sitk
from runs import changed

from octane.store.volumes import open_volume

AFTER_N4 = {"N4", "PYRAMID", "REPORT"}
ALL = {"PREFLIGHT", "STITCH", "STACK", *AFTER_N4}


@pytest.fixture(scope="module")
def folder(phantom, tmp_path_factory):
    """Launch folder of these runs, with their input."""
    folder = tmp_path_factory.mktemp("resume")
    shutil.copytree(phantom, folder, dirs_exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def code(copy_project):
    """A copy of the code that tests may edit."""
    return copy_project("edited")


@pytest.fixture(scope="module")
def again(succeeding, folder, code):
    """Run once; return a function that resumes this run with more arguments."""
    given = (
        *("-stub", "--input", "mosaics", "--n4_mask", "truth/bias.ome.zarr"),
        *("--positions", "positions.csv"),
    )
    assert succeeding(folder, *given, code=code).processes("COMPLETED") == ALL
    return lambda *arguments: succeeding(folder, *given, "-resume", *arguments, code=code)


@pytest.mark.parametrize(
    ("edited", "arguments", "ran"),
    [
        # Settings passed to tasks through their environment run none of them again.
        pytest.param(
            "bin/octane/processes/report/templates/report.html.j2",
            ("--scratch_dir", "/tmp", "--gpu_slots", "3"),
            {"PREFLIGHT", "REPORT"},
            id="template",
        ),
        pytest.param("bin/octane/core/arrays.py", (), ALL, id="core", marks=pytest.mark.soak),
        pytest.param(
            "bin/octane/processes/n4/fit.py",
            (),
            {"PREFLIGHT", *AFTER_N4},
            id="n4",
            marks=pytest.mark.soak,
        ),
        pytest.param(
            "truth/bias.ome.zarr/0/c/0/0/0",
            (),
            {"PREFLIGHT", *AFTER_N4},
            id="mask",
            marks=pytest.mark.soak,
        ),
    ],
)
def test_a_change_and_everything_after_it_runs_again(again, folder, code, edited, arguments, ran):
    path = (code if edited.startswith("bin") else folder) / edited
    with changed(path, path.read_bytes() + b"\n"):
        assert again(*arguments).processes("COMPLETED") == ran


def test_an_edited_chunk_deep_inside_one_mosaic(again, folder):
    chunk = folder / "mosaics" / "section_01.ome.zarr" / "0" / "c" / "0" / "0" / "0"
    # Left behind by file browsers.
    for name in (".DS_Store", "._zarr.json", "Thumbs.db"):
        (folder / "mosaics" / "section_02.ome.zarr" / "0" / name).touch()
    with changed(chunk, chunk.with_name("1").read_bytes()):
        run = again()
    assert run.tasks("CACHED") == ["STITCH (mosaics:section_02)"]
    assert run.processes("COMPLETED") == ALL


@pytest.mark.soak
def test_a_section_that_was_added_runs_alone(succeeding, phantom, tmp_path):
    folder = shutil.copytree(phantom, tmp_path / "subject")
    table, store = folder / "positions.csv", folder / "mosaics" / "section_02.ome.zarr"
    header, *rows = table.read_text(encoding="utf-8").splitlines(keepends=True)
    kept = shutil.move(store, tmp_path / "kept")
    first = [row for row in rows if row.startswith("1,")]
    table.write_text("".join([header, *first]), encoding="utf-8")
    given = (
        *(folder, "-profile", "test", "--phantom", "false", "--input", "mosaics"),
        *("--positions", "positions.csv", "--skip_n4", "--skip_pyramid", "--skip_report"),
    )
    succeeding(*given)
    shutil.move(kept, store)
    table.write_text("".join([header, *rows]), encoding="utf-8")
    again = succeeding(*given, "-resume")
    assert again.tasks("COMPLETED") == [
        "PREFLIGHT (run)",
        "RESAMPLE (mosaics:section_02)",
        "STACK (mosaics)",
        "STITCH (mosaics:section_02)",
    ]


@pytest.mark.soak
def test_voxels_in_a_file_next_to_their_header(succeeding, nextflow, tmp_path):
    voxels = np.random.default_rng(1).gamma(9.0, 10.0, (16, 24, 24)).astype(np.float32)
    for name, content in (("brain.mhd", voxels), ("mask.nhdr", np.ones_like(voxels, np.uint8))):
        sitk.WriteImage(sitk.GetImageFromArray(content), tmp_path / name)
    (tmp_path / "linked.mhd").symlink_to("brain.mhd")
    given = (
        *("--input", "linked.mhd", "--n4_mask", "mask.nhdr", "--subject", "brain", "-resume"),
        *("--n4_shrink_factor", "1", "--n4_iterations", "2", "--skip_pyramid", "--skip_report"),
    )
    first = succeeding(tmp_path, *given)
    for name, ones in (("brain.raw", voxels[::-1]), ("mask.raw", np.tri(16 * 24, 24))):
        raw = tmp_path / name
        raw.write_bytes(ones.astype(np.float32 if name == "brain.raw" else np.uint8).tobytes())
        run = succeeding(tmp_path, *given)
        assert run.processes("COMPLETED") == {"PREFLIGHT", "N4"}
    assert succeeding(tmp_path, *given).processes("CACHED") == {"N4"}
    assert first.outdir == run.outdir
    made = open_volume(run.outdir / "brain" / "brain_n4.ome.zarr").read(np.s_[:, :, :])
    field = made / voxels[::-1]
    assert np.ptp(field) > 0
    assert np.median(field) == pytest.approx(1, abs=0.3)
    raw.unlink()
    run = nextflow(tmp_path, *given)
    assert run.code == 1
    assert (
        f"{tmp_path}/mask.raw, with the voxels of mask.nhdr, is missing; restore it." in run.output
    )
