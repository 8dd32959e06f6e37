"""A run reads the data that it was given and no other, and results of two inputs never mix."""

import json
import shutil

import numpy as np
import pytest
import SimpleITK as sitk

STUB = ("-stub", "--skip_n4", "--skip_pyramid")


@pytest.fixture(scope="module")
def studies(tmp_path_factory):
    """Two volumes whose paths differ by what a shell reads as a pattern."""
    folder = tmp_path_factory.mktemp("g")
    for number, name in enumerate(("study[1]", "study1")):
        (folder / name).mkdir()
        image = sitk.GetImageFromArray(np.full((8, 8, 8), number, np.float32))
        sitk.WriteImage(image, str(folder / name / "vol.nii"))
    return folder


LINKED = """
include { unlinkable } from './octane/subworkflows/prepare'

workflow {
    def paths = new groovy.json.JsonSlurper().parse(file('paths.json').toFile())
    def words = paths.collect { path -> unlinkable(file(path, glob: false)) }
    file('words.json').text = groovy.json.JsonOutput.toJson(words)
}
"""


def test_every_sign_that_a_shell_would_read_in_a_path_is_refused(nextflow, project, tmp_path):
    signs = {s: f"a {s}" for s in "[]*?{}$"}
    signs |= dict.fromkeys("\t\n\a", "a control character")
    fine = "/a b/c'd\"e\\f(g)!&|<>`;#~=%^,+@-_ä.zarr"
    paths = [*(f"/data/x{sign}y/brain.zarr" for sign in signs), fine]
    host = tmp_path / "host"
    host.mkdir()
    (host / "octane").symlink_to(project)
    (host / "main.nf").write_text(LINKED, encoding="utf-8")
    (tmp_path / "paths.json").write_text(json.dumps(paths), encoding="utf-8")
    run = nextflow(tmp_path, code=host, give_outdir=False)
    assert run.code == 0, run.output
    words = json.loads((tmp_path / "words.json").read_text(encoding="utf-8"))
    assert words == [
        *(
            f"{path} has {name} in its path, which Nextflow cannot hand to tasks"
            for path, name in zip(paths, signs.values(), strict=False)
        ),
        None,
    ]


@pytest.mark.parametrize(
    ("flag", "refused"),
    [
        ("--input", "vol.nii"),
        ("--n4_mask", "vol.nii"),
        ("--truth", ""),
        ("--positions", "vol.nii"),
    ],
)
def test_no_file_of_another_study_is_ever_read(nextflow, studies, flag, refused, tmp_path):
    path = studies / "study[1]" / refused
    given = {"--input": studies / "study1" / "vol.nii", flag: path}
    run = nextflow(tmp_path, *(word for pair in given.items() for word in pair))
    assert run.code == 1
    sentence = "has a [ in its path, which Nextflow cannot hand to tasks; rename it."
    assert f"{path} {sentence}" in run.output
    assert not run.trace


def test_a_link_does_not_help_as_nextflow_follows_it(nextflow, studies, tmp_path):
    (tmp_path / "study").symlink_to(studies / "study[1]")
    run = nextflow(tmp_path, *STUB, "--input", tmp_path / "study" / "vol.nii")
    assert run.code == 1
    assert f"{studies}/study[1]/vol.nii has a [ in its path" in run.output
    assert not run.trace


def test_a_section_with_such_a_name_is_refused(nextflow, phantom, tmp_path):
    (tmp_path / "mosaics").mkdir()
    for number in (1, 2):
        link = tmp_path / "mosaics" / f"section_{number}{{a,b}}.ome.zarr"
        link.symlink_to(phantom / "mosaics" / f"section_{number:02d}.ome.zarr")
    run = nextflow(tmp_path, "--input", "mosaics")
    assert run.code == 1
    assert "{a,b}.ome.zarr has a { in its path, which Nextflow cannot hand" in run.output
    assert run.processes() == {"PREFLIGHT"}


def test_a_work_directory_with_such_a_name_is_refused(nextflow, phantom, tmp_path):
    work = tmp_path / "work[1]"
    run = nextflow(tmp_path, *STUB, "--input", phantom / "mosaics", "-work-dir", work)
    assert run.code == 1
    assert f"{work} has a [ in its path" in run.output
    assert not run.trace


@pytest.fixture
def brains(phantom, tmp_path):
    """Two subjects whose folders have one name, as every subject's of a microscope may."""
    for name in ("first", "second"):
        shutil.copytree(phantom / "mosaics", tmp_path / name / "mosaics")
    # Another brain: the same sections with other voxels in them, as their files' times tell.
    for path in (tmp_path / "second").rglob("zarr.json"):
        path.touch()
    return tmp_path


def test_a_second_subject_under_the_name_of_the_first_is_refused(nextflow, brains, tmp_path):
    first = nextflow(tmp_path, *STUB, "--input", "first/mosaics")
    assert first.code == 0, first.output
    stack = first.outdir / "mosaics" / "mosaics_stack.ome.zarr"
    made = stack.resolve()

    second = nextflow(tmp_path, *STUB, "--input", "second/mosaics")
    assert second.code == 1
    assert (
        f"{first.outdir}/mosaics has the results of another input, {brains}/first/mosaics; give "
        "this one a name of its own with --subject, or another --outdir, or replace them with "
        "--overwrite_subject." in second.output
    )
    assert second.processes() == {"PREFLIGHT"}
    assert stack.resolve() == made

    named = nextflow(tmp_path, *STUB, "--input", "second/mosaics", "--subject", "second")
    assert named.code == 0, named.output
    assert stack.resolve() == made

    # Other steps than before, so that results of the first would be left.
    steps = ("-stub", "--skip_n4", "--skip_report", "--overwrite_subject", "true")
    again = nextflow(tmp_path, *steps, "--input", "second/mosaics")
    assert again.code == 0, again.output
    assert f"{first.outdir}/mosaics is emptied: it had the results of another" in again.output
    folder = again.outdir / "mosaics"
    names = {path.name for path in folder.iterdir()}
    assert names == {"input.json", "metrics", "mosaics.ome.zarr"}
    assert json.loads((folder / "input.json").read_text())["input"] == f"{brains}/second/mosaics"
    # What the links led to is the cache of the first run.
    assert made.is_dir()


def test_a_subject_that_was_moved_or_corrected_is_the_same(nextflow, brains, tmp_path):
    assert nextflow(tmp_path, *STUB, "--input", "first/mosaics").code == 0
    (brains / "first").rename(brains / "moved")
    moved = nextflow(tmp_path, *STUB, "--input", "moved/mosaics")
    assert moved.code == 0, moved.output
    (brains / "moved" / "mosaics" / "section_01.ome.zarr" / "zarr.json").touch()
    corrected = nextflow(tmp_path, *STUB, "--input", "moved/mosaics")
    assert corrected.code == 0, corrected.output


@pytest.mark.parametrize("recorded", ["true", "false"])
def test_results_of_an_earlier_run_are_not_listed(nextflow, phantom, recorded, tmp_path):
    given = ("-stub", "--input", phantom / "mosaics", "--trace_report", recorded)
    first = nextflow(tmp_path, *given)
    assert first.code == 0, first.output
    listed = first.output.split("Results:\n")[1]
    assert "/mosaics.ome.zarr\n" in listed
    assert "/mosaics_report.html\n" in listed
    second = nextflow(tmp_path, *given, "--skip_pyramid", "--skip_report")
    listed = second.output.split("Results:\n")[1].split("They are links")[0].split()
    assert listed == [f"{second.outdir}/mosaics/mosaics_n4.ome.zarr"]
    assert (second.outdir / "mosaics" / "mosaics.ome.zarr").exists()
