"""Nothing that is made from the parameter models has drifted from them."""

import inspect
import json
import re
import runpy
from pathlib import Path

import jsonschema
import pytest
from pydantic import BaseModel, ValidationError

from octane.config.flags import Parser
from octane.config.params import STEPS
from octane.config.schema import (
    GENERATED,
    WorkflowModel,
    entries,
    nextflow_config,
    nextflow_schema,
    parameter_table,
)

PROJECT = Path(__file__).resolve().parents[3]
COMMANDS = sorted(
    path.stem for path in (PROJECT / "bin").glob("*.py") if "octane.config.cli" in path.read_text()
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
    for value in values:
        if name == "max_memory" or (kind == "string" and not choices):
            assert accepted_by_schema(name, value)
        else:
            assert accepted_by_schema(name, value) == accepted_by_model(name, value), value


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("resolution", [10, 2.5, "10 10 25", [10, 10, 25]]),
        ("overlap", [0.2, "0.2 0.1", [0.2, 0.1]]),
        ("n4_iterations", [50, "50 40", [50, 40]]),
        ("scratch_dir", [True, False, "/scratch"]),
    ],
)
def test_every_way_to_write_a_list_is_accepted(name, values):
    for value in values:
        assert accepted_by_schema(name, value), value
        assert accepted_by_model(name, value), value


def test_the_configuration_and_the_table_state_every_parameter():
    stated = dict(re.findall(r"^    (\w+) = (.*)$", nextflow_config(), re.MULTILINE))
    words = {"null": None, "true": True, "false": False}
    values = {
        name: words[text] if text in words else text.strip("'") for name, text in stated.items()
    }
    assert WorkflowModel.model_validate(values) == WorkflowModel()
    table = re.findall(r"^\| `(\w+)` \|", parameter_table(), re.MULTILINE)
    assert list(stated) == table == [entry.name for entry in entries()]


class Command:
    """A command of ``bin/``: its own flags, the models whose fields are flags, and its help."""

    def __init__(self, name):
        script = runpy.run_path(str(PROJECT / "bin" / f"{name}.py"))
        self.own, self.models = set(), set()
        for parameter in inspect.signature(script["main"]).parameters.values():
            if isinstance(parameter.annotation, type) and issubclass(
                parameter.annotation, BaseModel
            ):
                self.models.add(parameter.annotation)
            elif parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                self.own.add("--" + parameter.name.replace("_", "-"))
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("COLUMNS", "1000")
            # A long flag has a line of its own.
            self.help = re.sub(r"\n {24}", "  ", Parser(script["main"]).format_help())

    @property
    def listed(self):
        """Flags at the start of a line of the help; descriptions begin further right."""
        return set(re.findall(r"^  (?:-h, )?(--[a-z0-9-]+)", self.help, re.MULTILINE))


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_lists_and_describes_the_flags_of_the_models_and_its_own(name):
    command = Command(name)
    fields = [
        "--" + field.replace("_", "-") for model in command.models for field in model.model_fields
    ]
    assert len(fields) == len(set(fields))
    assert not set(fields) & command.own
    assert command.listed - {"--help", "--version"} == set(fields) | command.own
    assert STEPS.get(name) in {None, *command.models}
    for model in command.models:
        for field, info in model.model_fields.items():
            assert info.description in command.help, field
    for flag in command.own:
        (line,) = [line for line in command.help.splitlines() if line.startswith(f"  {flag} ")]
        assert line.endswith((".", "[required]")), line
