"""Tables of the report by step: settings, time and performance, versions and machines."""

from collections.abc import Mapping, Sequence

from octane.config.types import AUTO
from octane.core.records import ORDER, Context, Record
from octane.core.timing import summed
from octane.processes.preflight.parameters import STEPS


def step_tables(records: Sequence[Record], *, workflow: bool) -> Context:
    """Sum up the tasks of each step for the page; ``workflow`` selects the workflow's defaults."""
    order = dict.fromkeys((*ORDER, *sorted(record.step for record in records)))
    steps = {step: of_step for step in order if (of_step := [r for r in records if r.step == step])}
    versions: dict[str, dict[str, None]] = {}
    machines: dict[str, dict[str, None]] = {}
    for step, of_step in steps.items():
        for record in of_step:
            for name, version in record.versions.items():
                versions.setdefault(name, {})[version] = None
            machines.setdefault(describe_machine(record), {})[step] = None
    return {
        "steps": steps,
        "expected": ORDER,
        "settings": {
            step: _settings(of_step, step, workflow=workflow) for step, of_step in steps.items()
        },
        "performance": {step: performance(of_step) for step, of_step in steps.items()},
        "versions": versions,
        "machines": machines,
    }


def performance(records: Sequence[Record]) -> Context:
    """Sum up the seconds, bytes, memory and slowest stage of a step's tasks."""
    peaks = [r.peak_memory_bytes for r in records if r.peak_memory_bytes is not None]
    walls = summed(record.wall_seconds for record in records)
    return {
        "tasks": len(records),
        "seconds": sum(record.total for record in records),
        "bytes": sum(record.moved for record in records),
        "peak": max(peaks, default=None),
        "slowest": max(walls, key=lambda stage: walls[stage]) if any(walls.values()) else None,
        "waited": sum(record.waited for record in records),
    }


def _format_value(value: object) -> str:
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return " ".join(map(_format_value, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _settings(records: Sequence[Record], step: str, *, workflow: bool) -> list[Context]:
    """List a step's settings with their defaults; those that differ come first."""
    models = [STEPS[step], STEPS["input"], STEPS["execution"]] if step in STEPS else []
    fields = {name: info for model in models for name, info in model.model_fields.items()}
    defaults = {n: v for model in models for n, v in model().recorded().items()}
    rows: list[Context] = []
    for name in dict.fromkeys(name for record in records for name in record.settings):
        # Records of one step, such as those of several sections, may differ.
        json_extra = fields[name].json_schema_extra if name in fields else None
        extra = json_extra if isinstance(json_extra, Mapping) else {}
        workflow_default = extra.get("workflow_default")
        # A value that follows from the data is recorded as None.
        unset = AUTO if workflow_default == AUTO else None
        recorded = [record.settings.get(name) for record in records]
        values = [_format_value(unset if value is None else value) for value in recorded]
        values = list(dict.fromkeys(values))
        default = _format_value(defaults[name]) if name in defaults else None
        if workflow and workflow_default is not None:
            default = _format_value(workflow_default)
        rows.append(
            {
                "name": name,
                "value": "; ".join(values),
                "default": default,
                "unit": str(extra.get("unit") or "") * bool({*values} - {"unset", AUTO}),
                # The workflow itself sets fields that are not its parameters; it takes the
                # excluded sections from the user's.
                "changed": default is not None
                and values != [default]
                and not (
                    workflow and extra.get("workflow") is False and name != "excluded_sections"
                ),
                # Tables are not fields; PREFLIGHT may have made one from the user's files.
                "table": bool(fields) and name not in fields and values != ["unset"],
            }
        )
    return sorted(rows, key=lambda row: not (row["changed"] or row["table"]))


def describe_machine(record: Record) -> str:
    """Describe the device and the machine of a task in one line."""
    parts = []
    for name, value in {**record.device, **record.host}.items():
        if name.endswith("_bytes") and isinstance(value, int | float):
            parts.append(f"{name.removesuffix('_bytes')} {value / 1e9:.3g} GB")
        elif value is not None:
            parts.append(f"{name} {_format_value(value)}")
    return ", ".join(parts)
