"""What Nextflow hands over of a launch, and what is refused of it."""

import json
from pathlib import Path

import pytest
from plans import launched
from refusals import refused

from octane.core.errors import InputError
from octane.processes.preflight.request import (
    Run,
    check_launch,
    file_at,
    stable_command,
    stray_words,
)

SESSION = "abcdef01-2345-6789-abcd-ef0123456789"
COMMANDS = {
    # Words without a parameter, and the command line without what changes no result.
    "main.nf -profile test --input a b": (["b"], "main.nf -profile test --input a b"),
    r"main.nf --subject it\'s\ b c -resume": (["c"], r"main.nf --subject it\'s\ b c"),
    "-resume main.nf --input 'a -bg b' '--positions=x y' -stub": (
        [],
        "main.nf --input 'a -bg b' '--positions=x y' -stub",
    ),
    f"main.nf --skip_n4 -resume {SESSION} -c 'my own.config' -ansi-log false": (
        [],
        "main.nf --skip_n4 -c 'my own.config'",
    ),
    "main.nf --outdir=x -with-report r.html -name two -bg -with-trace": ([], "main.nf --outdir=x"),
    # The script may come last.
    "--gpu_slots 2 main.nf --input a b": (["b"], "--gpu_slots 2 main.nf --input a b"),
}
"""Parts of command lines, and what is read from them."""


@pytest.mark.parametrize(("command", "expected"), COMMANDS.items())
def test_words_of_a_command_line(command, expected):
    further, shown = expected
    assert stray_words(f"nextflow -q run {command}") == further
    assert stable_command(f"nextflow -q run {command}") == f"nextflow run {shown}"


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({}, ("--input",)),
        ({"input": "a", "samplesheet": "b"}, ("--samplesheet",)),
        ({"phantom": "true", "samplesheet": "b"}, ("--samplesheet",)),
        ({"phantom": "false"}, ("--input",)),
    ],
)
def test_a_run_names_one_input_or_one_cohort(tmp_path, parameters, words):
    with refused(*words):
        check_launch(launched(tmp_path, {}, parameters=parameters))


@pytest.mark.parametrize("given", [{"input": "a"}, {"samplesheet": "b"}, {"phantom": True}])
def test_one_input_one_cohort_or_a_phantom_may_be_given(tmp_path, given):
    check_launch(launched(tmp_path, {}, parameters=given))


def test_a_word_without_a_parameter_is_refused(tmp_path):
    command = "nextflow run main.nf --input a b"
    with pytest.raises(InputError, match="'b' does not belong to a parameter"):
        check_launch(launched(tmp_path, {}, parameters={"input": "a"}, command=command))


def test_names_of_digits_keep_their_zeros(tmp_path):
    (tmp_path / "007").mkdir()
    command = "nextflow run main.nf --subject 1 --input 007 --subject=01"
    run = launched(tmp_path, {}, parameters={"subject": 1, "input": 7}, command=command)
    (subject,) = run.subjects()
    assert (subject.name, subject.files) == ("01", {"input": tmp_path / "007"})
    run = launched(tmp_path, {}, parameters={"subject": 1, "input": "007"})
    with refused("--subject"):
        run.subjects()


def test_a_subject_without_a_name_has_that_of_its_input(tmp_path):
    (tmp_path / "brain.ome.zarr").mkdir()
    (subject,) = launched(tmp_path, {}, parameters={"input": "brain.ome.zarr"}).subjects()
    assert (subject.name, subject.problems) == ("brain", [])


def test_the_files_of_a_subject_are_its_own_or_the_runs(tmp_path):
    for name in ("data", "mask.nii", "other.nii", "truth"):
        (tmp_path / name).touch()
    own = {"n4_mask": str(tmp_path / "other.nii")}
    asked = [
        {"id": "a", "input": f"{tmp_path}/data", "given": own, "truth": f"{tmp_path}/truth"},
        {"id": "b", "input": f"{tmp_path}/data", "given": {"n4_mask": "Tissue"}},
        {"id": "c", "input": f"{tmp_path}/data"},
    ]
    parameters = {"n4_mask": "mask.nii", "stitch_flat_field": "estimate", "positions": "none"}
    parameters |= {"stitch_gain": "Estimate"}
    found = [own.files for own in launched(tmp_path, *asked, parameters=parameters).subjects()]
    data = {"input": tmp_path / "data"}
    assert found == [
        {**data, "n4_mask": tmp_path / "other.nii", "truth": tmp_path / "truth"},
        data,
        {**data, "n4_mask": tmp_path / "mask.nii"},
    ]
    parameters |= {"skip_n4": "true"}
    found = [own.files for own in launched(tmp_path, *asked, parameters=parameters).subjects()]
    assert not any("n4_mask" in files for files in found)


SIGNS = {s: f"a {s}" for s in "[]*?{}$"} | {
    "\t": "a tab",
    "\n": "a line break",
    "\a": "a control character",
}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        *((f"x{sign}y", f"has {named} in its path") for sign, named in SIGNS.items()),
        *((f"x{sign}y", f"has a {sign} in its name") for sign in "<>&"),
    ],
)
def test_a_file_that_tasks_cannot_get_is_named(tmp_path, name, words):
    (tmp_path / name).touch()
    (tmp_path / "data").touch()
    parameters = {"input": "data", "n4_mask": name}
    (subject,) = launched(tmp_path, {}, parameters=parameters).subjects()
    assert set(subject.files) == {"input"}
    (problem,) = subject.problems
    assert problem.startswith(f"{tmp_path / name} {words}".replace("\n", r"\n"))


def test_a_colon_is_refused_where_a_container_mounts_the_path(tmp_path):
    (tmp_path / "10:30").mkdir()
    given = {"parameters": {"input": "10:30"}}
    (subject,) = launched(tmp_path, {}, **given).subjects()
    assert not subject.problems
    (subject,) = launched(tmp_path, {}, is_contained=True, **given).subjects()
    assert f"{tmp_path}/10:30 has a : in its path" in subject.problems[0]


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("a/b", "/launch/a/b"),
        ("/a b", "/a b"),
        ("file:///a%20b", "/a b"),
        ("FILE:/a", "/a"),
        ("c:/a", "/launch/c:/a"),
    ],
)
def test_paths_are_relative_to_the_launch(text, path):
    assert file_at(Path("/launch"), "input", text) == Path(path)


@pytest.mark.parametrize("text", ["s3://bucket/brain.zarr", "HTTPS://host/x", "gs://a"])
def test_an_address_is_refused(text):
    with refused("--input", text):
        file_at(Path("/launch"), "input", text)


def test_nextflows_own_options_with_two_dashes_are_refused(tmp_path, write_json):
    content = {
        "parameters": {"resume": True, "outdir": "out"},
        **{"asked": [], "command": "", "folder": str(tmp_path), "work": str(tmp_path)},
        **dict.fromkeys(("is_contained", "is_resumed", "is_stub", "is_published"), False),
    }
    with refused("--resume"):
        Run.read(write_json("request.json", content))
    del content["parameters"]["resume"]
    run = Run.read(write_json("request.json", json.loads(json.dumps(content))))
    assert run.parameters["outdir"] == f"{tmp_path}/out"
