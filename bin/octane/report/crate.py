"""Provenance of a subject's results as a Provenance Run Crate (RO-Crate, only its metadata).

The crate names the workflow with its parameters and steps, its run by Nextflow, and the run of each
task with settings, inputs, device, versions and times. Times are those of the records, so that the
same records make the same crate.
"""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from rocrate.model import ContextEntity, Entity, SoftwareApplication
from rocrate.rocrate import ROCrate

from octane.config.schema import entries
from octane.core.records import ORDER, Record

CRATE = "ro-crate-metadata.json"
"""Name of the file, by which readers know a folder as a crate."""

PROFILES = ("process", "workflow", "provenance")
TERMS = "https://w3id.org/ro/terms/workflow-run"
NAMES = {(entry.step, entry.field): entry.name for entry in entries()}
"""Parameters of the workflow by their step and field."""


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _started(record: Record) -> float:
    return record.timeline.started if record.timeline else 0.0


def _parameter(step: str, name: str) -> str:
    """Find the name of a step's setting among the parameters of the workflow."""
    known = (NAMES.get((group, name)) for group in (step, "input", "execution"))
    return next((found for found in known if found), f"{step}_{name}")


class _Crate(ROCrate):
    """A crate of RO-Crate 1.1, which the profiles of workflow runs extend."""

    def __init__(self) -> None:
        super().__init__(version="1.1")
        self.metadata.extra_contexts.append(f"{TERMS}/context")

    def entity(self, name: str, kind: str, /, **properties: object) -> Entity:
        """Return the entity of a name, which is made once; properties of None are left out."""
        known = {n: v for n, v in properties.items() if v is not None}
        name = quote(name, safe="/:#?=&%@,;()!$*'~+")
        return self.get(name) or self.add(ContextEntity(self, name, {"@type": kind, **known}))

    def value(self, kind: str, name: str, value: object, **properties: object) -> Entity:
        """Return the entity of a value; equal values of several tasks are one."""
        text = value if isinstance(value, str | int | float) else json.dumps(value)
        slug = re.sub(r"[^\w.-]+", "_", f"{name}-{text}")
        return self.entity(f"#{kind}-{slug}", "PropertyValue", name=name, value=text, **properties)

    def inputs(self, record: Record) -> list[Entity]:
        """Return the inputs of a task, named by their original paths."""
        paths = [Path(known["path"]) for known in record.inputs.values()]
        return [self.entity(path.as_uri(), "CreativeWork", name=path.name) for path in paths]

    def image(self, name: str | None) -> Entity | None:
        """Return the image of the container; None for a run without one."""
        if not name:
            return None
        kind = {"@id": f"{TERMS}#{'SIF' if name.endswith('.sif') else 'Docker'}Image"}
        return self.entity("#container", "ContainerImage", additionalType=kind, name=name)


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
    root = made.root_dataset
    ended = max((_started(r) + r.total for _, r in records), default=0.0)
    root["name"] = f"{subject}: reconstruction by octane"
    root["description"] = "A serial-section volume with its records and its provenance."
    root["license"] = made.entity("#license", "CreativeWork", name="No licence was stated")
    root["datePublished"] = _time(ended)
    root["conformsTo"] = [
        made.entity(f"https://w3id.org/ro/wfrun/{name}/0.5", "CreativeWork", version="0.5",
                    name=f"{name.capitalize()} Run Crate")
        for name in PROFILES
    ]  # fmt: skip
    for name, text in files.items():
        add = made.add_dataset if name.endswith("/") else made.add_file
        add(dest_path=name, properties={"name": name.rstrip("/"), "description": text})
    workflow = _workflow(made, run)
    image = made.image(run.get("image"))
    actions = [_task(made, workflow, name, record, image) for name, record in records]
    first = next((step for step in ORDER if any(r.step == step for _, r in records)), None)
    volume = next((made.get(quote(name)) for name in files if name.endswith(".ome.zarr/")), None)
    whole = made.entity(
        "#run",
        "CreateAction",
        name=f"octane on {subject}",
        instrument=workflow,
        startTime=_time(min((_started(r) for _, r in records), default=0.0)),
        endTime=_time(ended),
        object=[
            *(given for _, r in records if r.step == first for given in made.inputs(r)),
            *(v for v in made.get_by_type("PropertyValue") if "exampleOfWork" in v),
        ],
        result=volume,
        containerImage=image,
        description=", ".join(f"{name}: {value}" for name, value in run.items()),
    )
    engine = SoftwareApplication(made, "#nextflow", {"name": "Nextflow"})
    if "Nextflow" in run:
        engine["softwareVersion"] = run["Nextflow"]
    controls = [
        made.entity(
            f"#control-{name}", "ControlAction", instrument=made.get(f"#step-{r.step}"),
            object=action,
        )
        for (name, r), action in zip(records, actions, strict=True)
    ]  # fmt: skip
    organized = made.entity(
        "#orchestration", "OrganizeAction", name="Nextflow's run", instrument=made.add(engine),
        object=controls, result=whole,
    )  # fmt: skip
    root["mentions"] = [whole, organized, *actions]
    return made.metadata.generate()


def _workflow(made: _Crate, run: Mapping[str, str]) -> Entity:
    """Add the workflow; tasks add their steps, tools and parameters to it."""
    source = "main.nf"
    if run.get("repository"):
        place = run["repository"].removesuffix(".git")
        source = f"{place}/blob/{run.get('revision') or 'HEAD'}/main.nf"
    elif run.get("script"):
        source = Path(run["script"]).as_uri()
    workflow = made.add_workflow(
        source, main=True, lang="nextflow", lang_version=run.get("Nextflow"),
        properties={"@type": ["File", "SoftwareSourceCode", "ComputationalWorkflow", "HowTo"]},
    )  # fmt: skip
    workflow["name"] = "octane"
    workflow["version"] = " ".join(run[n] for n in ("octane", "revision", "code") if run.get(n))
    workflow["conformsTo"] = {
        "@id": "https://bioschemas.org/profiles/ComputationalWorkflow/1.0-RELEASE"
    }
    return workflow


def _task(
    made: _Crate, workflow: Entity, name: str, record: Record, image: Entity | None
) -> Entity:
    """Add the run of a task, with its step, its tool and its settings."""
    step = f"#step-{record.step}"
    if step not in made:
        tool = made.entity(
            f"#tool-{record.step}", "SoftwareApplication", name=f"{record.step}.py",
            softwareVersion=record.versions.get("octane"),
            softwareRequirements=[
                made.entity(f"#{n}-{v}", "SoftwareApplication", name=n, softwareVersion=v)
                for n, v in record.versions.items() if n != "octane"
            ],
        )  # fmt: skip
        place = str(ORDER.index(record.step)) if record.step in ORDER else None
        how = made.entity(step, "HowToStep", name=record.step, position=place, workExample=tool)
        workflow.append_to("step", how)
        workflow.append_to("hasPart", tool)
    values = []
    for field, value in record.settings.items():
        if value is not None:
            label, own = _parameter(record.step, field), None
            if label in NAMES.values():
                slot = f"#parameter-{label}"
                own = made.get(slot)
                if own is None:
                    kinds = {"bool": "Boolean", "int": "Integer", "float": "Float"}
                    kind = kinds.get(type(value).__name__, "Text")
                    own = made.add_formal_parameter(label, kind, slot)
                    workflow.append_to("input", own)
            values.append(made.value("value", label, value, exampleOfWork=own))
    facts = {**record.device, **record.host, "peak_memory_bytes": record.peak_memory_bytes}
    return made.entity(
        f"#action-{name}",
        "CreateAction",
        name=name,
        instrument=made.get(f"#tool-{record.step}"),
        startTime=_time(_started(record)),
        endTime=_time(_started(record) + record.total),
        object=[*made.inputs(record), *values],
        result=made.get(f"metrics/{name}_metrics.json"),
        resourceUsage=[
            made.value("usage", n, str(v), propertyID=n) for n, v in facts.items() if v is not None
        ],
        containerImage=image,
        description=" ".join(record.command),
    )
