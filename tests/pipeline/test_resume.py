"""-resume re-runs what changed and what comes after it, and nothing else."""

import functools
import os
import shutil
from contextlib import contextmanager

import pytest

pytestmark = pytest.mark.slow

ALL = {"PREFLIGHT", "RESAMPLE", "STITCH", "STACK", "N4", "PYRAMID", "REPORT"}


@pytest.fixture(scope="module")
def code(copy_project):
    """A copy of the project that may be edited."""
    return copy_project("edited")


@pytest.fixture(scope="module")
def folder(phantom, tmp_path_factory):
    """Where these runs are launched, with their input."""
    folder = tmp_path_factory.mktemp("resume")
    shutil.copytree(phantom / "mosaics", folder / "mosaics")
    return folder


@pytest.fixture(scope="module")
def again(nextflow, folder, quick, code):
    """Run once, then give what runs it again with -resume and other arguments."""

    def run(*arguments):
        made = nextflow(folder, *quick, "--input", "mosaics", *arguments, code=code)
        assert made.code == 0, made.output
        return made

    assert run().processes("COMPLETED") == ALL
    return functools.partial(run, "-resume")


@contextmanager
def edited(path, change):
    """A file with other content, and its folders' times as before; all is put back at the end."""
    content, own, above = path.read_bytes(), path.stat(), path.parent.stat()
    path.write_bytes(change(content))
    os.utime(path.parent, ns=(above.st_atime_ns, above.st_mtime_ns))
    try:
        yield
    finally:
        path.write_bytes(content)
        os.utime(path, ns=(own.st_atime_ns, own.st_mtime_ns))
        os.utime(path.parent, ns=(above.st_atime_ns, above.st_mtime_ns))


def test_nothing_changed(again):
    run = again()
    assert run.tasks("CACHED") == run.tasks()
    assert run.processes() == ALL


def test_another_scratch_folder_runs_no_step_again(again, tmp_path):
    run = again("--scratch_dir", tmp_path)
    assert run.processes("COMPLETED") == {"PREFLIGHT"}
    assert run.processes("CACHED") == ALL - {"PREFLIGHT"}


def test_a_changed_n4_parameter(again):
    run = again("--n4_convergence_threshold", "0.002")
    assert run.processes("COMPLETED") == {"PREFLIGHT", "N4", "PYRAMID", "REPORT"}
    assert run.processes("CACHED") == {"RESAMPLE", "STITCH", "STACK"}


def test_a_changed_resolution(again):
    run = again("--resolution", "12")
    assert run.processes("COMPLETED") == ALL
    assert not run.tasks("CACHED")


def test_an_edited_chunk_deep_inside_one_mosaic(again, folder):
    store = folder / "mosaics" / "section_01.ome.zarr"
    chunk = store / "0" / "c" / "0" / "0" / "0"
    other = chunk.with_name("1").read_bytes()
    with edited(chunk, lambda _: other):
        run = again()
    assert run.tasks("CACHED") == [
        "RESAMPLE (mosaics:section_02)",
        "STITCH (mosaics:section_02)",
    ]
    assert run.processes("COMPLETED") == ALL


def test_edited_code_of_the_package(again, code):
    with edited(
        code / "bin" / "octane" / "core" / "geometry.py", lambda text: text + b"# edited\n"
    ):
        run = again()
    assert run.processes("COMPLETED") == ALL
    assert not run.tasks("CACHED")


def test_an_edited_chunk_of_a_volume_its_mask_and_its_truth(nextflow, phantom, quick, tmp_path):
    for name in ("tissue", "bias"):
        shutil.copytree(phantom / "truth" / f"{name}.ome.zarr", tmp_path / f"{name}.ome.zarr")
    shutil.copytree(phantom / "truth", tmp_path / "truth")
    truth = tmp_path / "truth" / "bias.ome.zarr"

    def run(*arguments):
        return nextflow(
            *(tmp_path, *quick, "-stub", "--input", "tissue.ome.zarr"),
            *("--n4_mask", "bias.ome.zarr", "--skip_resample", "--skip_report", *arguments),
            *("--truth", "truth"),
        )

    first = run()
    assert first.processes("COMPLETED") == {"PREFLIGHT", "N4", "PYRAMID"}
    with edited(tmp_path / "bias.ome.zarr" / "0" / "c" / "0" / "0" / "0", lambda b: b + b"x"):
        assert run("-resume").processes("COMPLETED") == {"N4", "PYRAMID"}
    with edited(truth / "0" / "c" / "0" / "0" / "0", lambda b: b + b"x"):
        assert run("-resume").processes("COMPLETED") == {"N4", "PYRAMID"}
    with edited(tmp_path / "tissue.ome.zarr" / "0" / "c" / "0" / "0" / "0", lambda b: b + b"x"):
        assert run("-resume").processes("COMPLETED") == {"PREFLIGHT", "N4", "PYRAMID"}
