"""Provenance of a subject's results as a Provenance Run Crate (RO-Crate, only its metadata).

The crate names the workflow with its parameters and steps, its run by Nextflow, and the run of each
task with settings, inputs, device, versions and times. Times are those of the records, so that the
same records make the same crate.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from octane.config.schema import entries
from octane.core.records import ORDER, Record

CRATE = "ro-crate-metadata.json"
"""Name of the file, by which readers know a folder as a crate."""

RO = "https://w3id.org/ro/crate/1.1"
WORKFLOWS = "https://w3id.org/workflowhub/workflow-ro-crate"
BIOSCHEMAS = "https://bioschemas.org/profiles"
PROFILES = ("process", "workflow", "provenance")
RUNS = "https://w3id.org/ro/wfrun"
TERMS = "https://w3id.org/ro/terms/workflow-run"
KINDS = {"bool": "Boolean", "int": "Integer", "float": "Float"}
NAMES = {(entry.step, entry.field): entry.name for entry in entries()}
"""Parameters of the workflow by their step and field."""

Entity = dict[str, object]


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _started(record: Record) -> float:
    return record.timeline.started if record.timeline else 0.0


def _referring(value: object) -> object:
    """Put the name of an entity in its place."""
    if isinstance(value, list):
        return [_referring(own) for own in value]
    return {"@id": value["@id"]} if isinstance(value, dict) else value


class _Crate:
    """A crate of RO-Crate 1.1, which the profiles of workflow runs extend."""

    def __init__(self) -> None:
        self.entities: dict[str, Entity] = {}
        self.root = self.entity("./", "Dataset")
        profiles = [{"@id": RO}, {"@id": f"{WORKFLOWS}/1.0"}]
        self.entity(CRATE, "CreativeWork", conformsTo=profiles, about=self.root)

    def entity(self, name: str, kind: str | list[str], /, **properties: object) -> Entity:
        """Return the entity of a name, which is made once; properties of None are left out."""
        known = {n: v for n, v in properties.items() if v is not None}
        name = quote(name, safe="/:#?=&%@,;()!$*'~+")
        return self.entities.setdefault(name, {"@id": name, "@type": kind, **known})

    def of(self, kind: str) -> list[Entity]:
        """Return the entities of a type."""
        return [entity for entity in self.entities.values() if entity["@type"] == kind]

    def value(self, kind: str, name: str, value: object, **properties: object) -> Entity:
        """Return the entity of a value; equal values of several tasks are one."""
        text = value if isinstance(value, str | int | float) else json.dumps(value)
        slug = quote(f"{name}-{text}", safe="")
        return self.entity(f"#{kind}-{slug}", "PropertyValue", name=name, value=text, **properties)

    def action(self, name: str, records: Sequence[Record], /, **properties: object) -> Entity:
        """Add a run with the times of its records."""
        begin = min((_started(record) for record in records), default=0.0)
        end = max((_started(record) + record.total for record in records), default=0.0)
        times = {"startTime": _time(begin), "endTime": _time(end)}
        return self.entity(f"#{name}", "CreateAction", **times, **properties)

    def inputs(self, record: Record) -> list[Entity]:
        """Return the inputs of a task, named by their original paths."""
        paths = [Path(known["path"]) for known in record.inputs.values()]
        return [self.entity(path.as_uri(), "CreativeWork", name=path.name) for path in paths]


def crate(
    subject: str,
    run: Mapping[str, str],
    records: Sequence[tuple[str, Record]],
    files: Mapping[str, str],
) -> dict[str, object]:
    """Build the crate as JSON-LD.

    Parameters
    ----------
    subject
        Name of the subject.
    run
        Facts of the whole run: ``octane``, ``Nextflow``, ``revision``, ``code``, ``repository``,
        ``script``, ``container``, ``image``; unknown ones are left out.
    records
        Records of all tasks, each with the begin of the names of its files.
    files
        Descriptions of the result files by their paths; a path of a folder ends in a slash.
    """
    made = _Crate()
    parts: list[Entity] = []
    for name, text in files.items():
        kind = "Dataset" if name.endswith("/") else "File"
        parts.append(made.entity(quote(name), kind, name=name.rstrip("/"), description=text))
    workflow, common = _workflow(made, run), dict[str, Entity]()
    if image := run.get("image"):
        kind = {"@id": f"{TERMS}#{'SIF' if image.endswith('.sif') else 'Docker'}Image"}
        named = made.entity("#container", "ContainerImage", additionalType=kind, name=image)
        common["containerImage"] = named
    tasks = [_task(made, name, record, common) for name, record in records]
    workflow["input"], workflow["step"] = made.of("FormalParameter"), made.of("HowToStep")
    workflow["hasPart"] = made.of("SoftwareApplication")
    first = next((step for step in ORDER if any(r.step == step for _, r in records)), None)
    given = [path for _, r in records if r.step == first for path in made.inputs(r)]
    given += [value for value in made.of("PropertyValue") if "exampleOfWork" in value]
    whole = made.action(
        "run",
        [record for _, record in records],
        name=f"octane on {subject}",
        instrument=workflow,
        object=given,
        result=next((made.entities[quote(n)] for n in files if n.endswith(".ome.zarr/")), None),
        description=", ".join(f"{name}: {value}" for name, value in run.items()),
        **common,
    )
    controls = []
    for (name, record), task in zip(records, tasks, strict=True):
        step = made.entities[f"#step-{record.step}"]
        control = made.entity(f"#control-{name}", "ControlAction", instrument=step, object=task)
        controls.append(control)
    engine = {"name": "Nextflow", "softwareVersion": run.get("Nextflow")}
    organized = made.entity(
        "#orchestration",
        "OrganizeAction",
        name="Nextflow's run",
        instrument=made.entity("#nextflow", "SoftwareApplication", **engine),
        object=controls,
        result=whole,
    )
    root = made.root
    root["name"] = f"{subject}: reconstruction by octane"
    root["description"] = "A serial-section volume with its records and its provenance."
    root["license"] = made.entity("#license", "CreativeWork", name="No licence was stated")
    root["datePublished"] = whole["endTime"]
    root["conformsTo"] = [
        made.entity(
            f"{RUNS}/{name}/0.5", "CreativeWork", name=f"{name.title()} Run Crate", version="0.5"
        )
        for name in PROFILES
    ]
    root["mentions"], root["hasPart"] = [whole, organized, *tasks], [*parts, workflow]
    root["mainEntity"] = workflow
    graph = [{n: _referring(v) for n, v in e.items()} for e in made.entities.values()]
    return {"@context": [f"{RO}/context", f"{TERMS}/context"], "@graph": graph}


def _workflow(made: _Crate, run: Mapping[str, str]) -> Entity:
    """Add the workflow."""
    source = "main.nf"
    if run.get("repository"):
        place = run["repository"].removesuffix(".git")
        source = f"{place}/blob/{run.get('revision') or 'HEAD'}/main.nf"
    elif run.get("script"):
        source = Path(run["script"]).as_uri()
    kinds = ["File", "SoftwareSourceCode", "ComputationalWorkflow", "HowTo"]
    version = " ".join(run[name] for name in ("octane", "revision", "code") if run.get(name))
    profile = {"@id": f"{BIOSCHEMAS}/ComputationalWorkflow/1.0-RELEASE"}
    page = {"@id": "https://www.nextflow.io/"}
    language = {"name": "Nextflow", "identifier": page, "url": page, "version": run.get("Nextflow")}
    known = {"name": "octane", "version": version, "conformsTo": profile}
    known["programmingLanguage"] = made.entity(
        f"{WORKFLOWS}#nextflow", "ComputerLanguage", **language
    )
    return made.entity(source, kinds, **known)


def _tool(made: _Crate, record: Record) -> Entity:
    """Return the tool of a step; both are made once."""
    known = {"name": f"{record.step}.py", "softwareVersion": record.versions.get("octane")}
    known["softwareRequirements"] = [
        f"{n} {v}" for n, v in record.versions.items() if n != "octane"
    ]
    tool = made.entity(f"#tool-{record.step}", "SoftwareApplication", **known)
    place = str(ORDER.index(record.step)) if record.step in ORDER else None
    known = {"name": record.step, "position": place, "workExample": tool}
    made.entity(f"#step-{record.step}", "HowToStep", **known)
    return tool


def _setting(made: _Crate, step: str, field: str, value: object) -> Entity:
    """Return a setting of a step; a parameter of the workflow is made once."""
    known = (NAMES.get((group, field)) for group in (step, "input", "execution"))
    label = next((name for name in known if name), None)
    if label is None:
        return made.value("value", f"{step}_{field}", value)
    kind = KINDS.get(type(value).__name__, "Text")
    known = {"name": label, "additionalType": kind, "valueRequired": False}
    profile = {"@id": f"{BIOSCHEMAS}/FormalParameter/1.0-RELEASE"}
    slot = made.entity(f"#parameter-{label}", "FormalParameter", **known, conformsTo=profile)
    return made.value("value", label, value, exampleOfWork=slot)


def _task(made: _Crate, name: str, record: Record, common: Mapping[str, Entity]) -> Entity:
    """Add the run of a task, with its step, its tool and its settings."""
    settings = {n: v for n, v in record.settings.items() if v is not None}
    given = [_setting(made, record.step, n, v) for n, v in settings.items()]
    facts = {**record.device, **record.host, "peak_memory_bytes": record.peak_memory_bytes}
    facts = {n: str(v) for n, v in facts.items() if v is not None}
    return made.action(
        f"action-{name}",
        [record],
        name=name,
        instrument=_tool(made, record),
        object=[*made.inputs(record), *given],
        result=made.entities.get(quote(f"metrics/{name}_metrics.json")),
        resourceUsage=[made.value("usage", n, v, propertyID=n) for n, v in facts.items()],
        description=" ".join(record.command),
        **common,
    )
