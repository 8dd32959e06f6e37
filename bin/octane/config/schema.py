"""Files generated from the parameter models.

The workflow's parameters are the fields of all models in one flat namespace.
"""

import json
from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import cast

from pydantic import create_model
from pydantic.fields import FieldInfo

from octane.config.params import STEPS, Settings, StepParameters

SCHEMA = "https://json-schema.org/draft/2020-12/schema"
SEQUENCES = (list, tuple, set)
LIST_TYPES = ["string", "number", "array"]
"""JSON types of a list: written out, a single value, or a JSON array."""
LIST_SYNTAX = (
    "Write several numbers as `10 8 8` or `10,8,8`, in the stated order, or by name: "
    "`z=10,y=8,x=8`."
)
COMPARISONS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
"""Limits of JSON schema, as the parameter table shows them."""


@dataclass(frozen=True)
class Entry:
    """One parameter of the workflow, with its step and its field.

    With ``per_subject`` it may be a samplesheet column.
    """

    name: str
    step: str
    field: str
    info: FieldInfo
    default: object
    unit: str | None
    per_subject: bool


def entries() -> Iterator[Entry]:
    """Iterate over the parameters of the workflow, in order."""
    for step, model in STEPS.items():
        for field, info in model.model_fields.items():
            stated = cast("Mapping[str, str | None]", info.json_schema_extra)
            if name := model.workflow_name(field):
                default = stated.get("workflow_default", info.default)
                per_subject = bool(stated.get("per_subject", model.per_subject))
                yield Entry(name, step, field, info, default, stated.get("unit"), per_subject)


def by_step() -> Iterator[tuple[str, type[StepParameters], list[Entry]]]:
    """Iterate over the steps with their models and parameters, in order."""
    for step, own in groupby(entries(), key=lambda entry: entry.step):
        yield step, STEPS[step], [*own]


def _model() -> type[StepParameters]:
    fields = {}
    for entry in entries():
        # The workflow's default may differ from the command's.
        info = copy(entry.info)
        info.default = entry.default
        fields[entry.name] = (info.annotation, info)
    return create_model("WorkflowModel", __base__=StepParameters, **cast("dict", fields))


WorkflowModel = _model()
"""All parameters of the workflow, flat; unknown names are errors."""


def settings_of(values: StepParameters) -> Settings:
    """Convert a validated :data:`WorkflowModel` into the settings of each step."""
    flat = values.model_dump(mode="json")
    steps: dict[str, dict[str, object]] = {step: {} for step in STEPS}
    for entry in entries():
        steps[entry.step][entry.field] = flat[entry.name]
    return Settings.model_validate(steps)


def plain(default: object) -> object:
    """Convert a value for a file: lists and paths become strings, as on a command line."""
    if isinstance(default, Path):
        return str(default)
    if isinstance(default, SEQUENCES):
        values = list(cast("list[object]", default))
        equal = len(values) == 3 and len(set(values)) == 1
        return " ".join(
            f"{v:g}" if isinstance(v, float) else str(v) for v in (values[:1] if equal else values)
        )
    return default


def as_groovy(value: object) -> str:
    """Write a value for a Nextflow config.

    Non-ASCII characters are escaped, because Nextflow reads the file in the machine's encoding.
    """
    # Groovy shares JSON's literals, numbers and escapes.
    if value is None or isinstance(value, int | float):
        return json.dumps(value)
    escaped = json.dumps(str(value))[1:-1].replace("'", "\\'")
    return f"'{escaped}'"


def nextflow_config() -> str:
    """Write ``conf/params.config``: the defaults of all workflow parameters."""
    lines = [
        "// Generated from bin/octane/config/params.py by `make generate`; edit that, not this.",
        "",
        "params {",
    ]
    for _, model, own in by_step():
        lines += [f"    // {model.title}"]
        lines += [*(f"    {e.name} = {as_groovy(plain(e.default))}" for e in own), ""]
    lines.pop()
    return "\n".join([*lines, "}", ""])


@cache
def _properties() -> dict[str, dict]:
    return WorkflowModel.model_json_schema()["properties"]


def _json_type(entry: Entry) -> dict[str, object]:
    """Type, choices and limits from pydantic, without null; a list may be a string or a number."""
    own = _properties()[entry.name]
    members = [member for member in own.get("anyOf", [own]) if member["type"] != "null"]
    # A list is written '40 40 40'; a single value arrives as a number.
    kinds = [
        kind
        for member in members
        for kind in (LIST_TYPES if member["type"] == "array" else [member["type"]])
    ]
    if len(kinds) > 1:
        return {"type": kinds}
    return {
        key: members[0][key]
        for key in ("enum", "format", "type", *COMPARISONS)
        if key in members[0]
    }


def nextflow_schema() -> str:
    """Write ``nextflow_schema.json`` in nf-core's form (JSON schema, draft 2020-12)."""
    definitions: dict[str, dict[str, object]] = {}
    for step, model, own in by_step():
        properties = {}
        for entry in own:
            default, unit = plain(entry.default), f" [{entry.unit}]" if entry.unit else ""
            properties[entry.name] = {
                **_json_type(entry),
                "description": f"{entry.info.description}{unit}",
                **({} if default is None else {"default": default}),
            }
        definitions[f"{step}_options"] = {
            "title": model.title,
            "type": "object",
            "description": (model.__doc__ or "").splitlines()[0],
            "properties": properties,
        }
    schema = {
        "$schema": SCHEMA,
        "title": "octane pipeline parameters",
        "description": "Resampling, stitching and bias field correction of tiled 3-D microscopy.",
        "type": "object",
        "$defs": definitions,
        "allOf": [{"$ref": f"#/$defs/{name}"} for name in definitions],
    }
    return json.dumps(schema, indent=4) + "\n"


def parameter_table() -> str:
    """Write ``docs/parameters.md``: all parameters, by step."""
    lines = [
        "# Parameters",
        "",
        "Generated from `bin/octane/config/params.py` by `make generate`. A parameter has the same",
        "name in a params file (`n4_strength`), on Nextflow's command line and as a flag of the",
        "step's own command in `bin/` (`--n4_strength`). Those with a + may be columns of a",
        "samplesheet; the others apply to the entire run.",
        "",
        LIST_SYNTAX,
    ]
    for _, model, own in by_step():
        lines += ["", f"## {model.title}", "", (model.__doc__ or "").splitlines()[0], ""]
        lines += [
            "| parameter | default | unit | values | column | meaning |",
            "|---|---|---|---|---|---|",
        ]
        for entry in own:
            default = plain(entry.default)
            kind = _json_type(entry)
            values = kind.get("enum") or kind["type"]
            shown = ", ".join(map(str, values)) if isinstance(values, list) else str(values)
            limits = [f"{sign} {kind[name]}" for name, sign in COMPARISONS.items() if name in kind]
            cells = (
                f"`{entry.name}`",
                "" if default is None else f"`{as_groovy(default)}`",
                entry.unit or "",
                shown + (f" ({', '.join(limits)})" if limits else ""),
                "+" if entry.per_subject else "",
                entry.info.description or "",
            )
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def help_text() -> str:
    """Write ``lib/help.txt``, which ``nextflow run main.nf --help`` prints."""
    call = "nextflow run main.nf --input TILES_OR_MOSAICS_OR_VOLUME [--outdir DIR] [parameters]"
    lines = [call, LIST_SYNTAX.replace("`", "'")]
    for _, model, own in by_step():
        lines += ["", model.title]
        for entry in own:
            choices, default = _json_type(entry).get("enum"), plain(entry.default)
            notes = [f"[{entry.unit}]"] if entry.unit else []
            notes += [f"[{'|'.join(choices)}]"] if isinstance(choices, list) else []
            notes += [] if default is None else [f"[default: {as_groovy(default).strip(chr(39))}]"]
            lines.append(" ".join([f"  --{entry.name:<28} {entry.info.description}", *notes]))
    return "\n".join(lines) + "\n"


GENERATED = {
    "lib/help.txt": help_text,
    "conf/params.config": nextflow_config,
    "nextflow_schema.json": nextflow_schema,
    "docs/parameters.md": parameter_table,
}
"""Generated files of the project, with the function that makes the text of each."""
