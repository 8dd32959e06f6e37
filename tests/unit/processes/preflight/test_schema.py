"""Files generated from the parameter models are up to date."""

import json
import re
import runpy
from pathlib import Path

import jsonschema
import pytest
from pydantic import ValidationError

from octane.config.flags import Parser
from octane.processes.preflight.parameters import entries
from octane.processes.preflight.schema import (
    GENERATED,
    WorkflowModel,
    nextflow_config,
    nextflow_schema,
    parameter_table,
)

PROJECT = Path(__file__).resolve().parents[4]
COMMANDS = sorted(
    path.stem for path in (PROJECT / "bin").glob("*.py") if "from octane." in path.read_text()
)
SCHEMA = json.loads(nextflow_schema())
PROPERTIES = {
    name: described
    for group in SCHEMA["$defs"].values()
    for name, described in group["properties"].items()
}


@pytest.mark.parametrize("name", GENERATED)
def test_a_generated_file_is_what_would_be_generated_now(project, name):
    assert (project / name).read_text(encoding="utf-8") == GENERATED[name]()


def test_the_schema_is_valid_and_holds_every_parameter_once():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    names = [entry.name for entry in entries()]
    assert len(names) == len(set(names))
    assert list(PROPERTIES) == names
    assert [ref["$ref"] for ref in SCHEMA["allOf"]] == [f"#/$defs/{n}" for n in SCHEMA["$defs"]]


def accepted_by_schema(name, value):
    return jsonschema.Draft202012Validator(SCHEMA).is_valid({name: value})


def accepted_by_model(name, value):
    try:
        WorkflowModel.model_validate({name: value})
    except ValidationError:
        return False
    return True


LISTS = {
    "resolution": [10, 2.5, "10 10 25", [10, 10, 25]],
    "overlap": [0.2, "0.2 0.1", [0.2, 0.1]],
    "n4_iterations": [50, "50 40", [50, 40]],
    "scratch_dir": [True, False, "/scratch"],
}
"""Accepted spellings of parameters of several types."""


@pytest.mark.parametrize("name", PROPERTIES)
def test_schema_and_model_agree_on_what_is_in_range(name):
    kind, choices = PROPERTIES[name]["type"], PROPERTIES[name].get("enum")
    if kind in ("integer", "number"):
        values = [-1, 0, 1, 2, 3, 1000, *([] if kind == "integer" else [-0.5, 0.5, 0.99, 1.01])]
    elif choices:
        values = [*choices, "something else"]
    elif kind == "boolean":
        values = [True, False, "perhaps"]
    else:
        values = ["tissue"] if kind == "string" else []
    for value in LISTS.get(name, []):
        assert (accepted_by_schema(name, value), accepted_by_model(name, value)) == (True, True)
    for value in values:
        if kind == "string" and not choices:
            assert accepted_by_schema(name, value)
        else:
            assert accepted_by_schema(name, value) == accepted_by_model(name, value), value


def test_the_configuration_and_the_table_state_every_parameter():
    stated = dict(re.findall(r"^    (\w+) = (.*)$", nextflow_config(), re.MULTILINE))
    words = {"null": None, "true": True, "false": False}
    values = {
        name: words[text] if text in words else text.strip("'") for name, text in stated.items()
    }
    assert WorkflowModel.model_validate(values) == WorkflowModel()
    table = re.findall(r"^\| `(\w+)` \|", parameter_table(), re.MULTILINE)
    assert list(stated) == table == [entry.name for entry in entries()]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_word_of_a_command_is_described(name):
    parser = Parser(runpy.run_path(str(PROJECT / "bin" / f"{name}.py"))["main"])
    for action in parser._actions:
        if action.dest not in ("help", "version"):
            assert re.search(r"\.(\s+\[.+\])*\s*$", str(action.help)), action.dest
