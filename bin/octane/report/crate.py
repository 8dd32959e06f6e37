"""Where a subject's results come from, as a Provenance Run Crate (RO-Crate, metadata alone).

The profiles' own terms say it all: a workflow with its parameters and steps, the run of the
workflow by Nextflow, and the run of each step with its settings, what it read and made, and what it
ran on. Times are those that the tasks noted, so that the same records make the same crate, and a
resumed run has nothing to do.

Plain JSON-LD, built here: the library ``rocrate`` would put an HTTP client and eight more packages
into every run's environment, to write one dictionary, and dates it by the clock.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from octane.config.schema import entries
from octane.report.records import ORDER, Record

__all__ = ["CRATE", "crate"]

CRATE = "ro-crate-metadata.json"
"""The file's name, by which a folder is known as a crate."""

PROFILES = {
    "https://w3id.org/ro/wfrun/process/0.5": "Process Run Crate",
    "https://w3id.org/ro/wfrun/workflow/0.5": "Workflow Run Crate",
    "https://w3id.org/ro/wfrun/provenance/0.5": "Provenance Run Crate",
    "https://w3id.org/workflowhub/workflow-ro-crate/1.0": "Workflow RO-Crate",
}
CONTEXT = [
    "https://w3id.org/ro/crate/1.1/context",
    "https://w3id.org/ro/terms/workflow-run/context",
]
PARAMETER = "https://bioschemas.org/profiles/FormalParameter/1.0-RELEASE"
WORKFLOW = "https://bioschemas.org/profiles/ComputationalWorkflow/1.0-RELEASE"
FORMATS = {"json": "application/json", "html": "text/html", "gz": "application/gzip"}
TERMS = "https://w3id.org/ro/terms/workflow-run#"
IMAGE = (
    r"(?:docker://)?(?:(?P<registry>[^/]*[.:][^/]*|localhost)/)?"
    r"(?P<name>.*?)(?::(?P<tag>[\w.-]+))?(?:@sha256:(?P<sha256>[0-9a-f]+))?"
)
"""Of Docker's: a registry has a dot or a port, which tells it from a name's first part."""
BYTE = "https://qudt.org/vocab/unit/BYTE"

NAMES = {(entry.step, entry.field): entry.name for entry in entries()}
"""The workflow's parameters by their step and field."""

Entity = dict[str, object]


def _to(*names: str) -> Entity | list[Entity]:
    """References to entities: one, or a list."""
    found: list[Entity] = [{"@id": _uri(name)} for name in names]
    return found[0] if len(found) == 1 else found


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _kind(value: object) -> str:
    """The type of a parameter's value, in the words of Bioschemas."""
    match value:
        case bool():
            return "Boolean"
        case int():
            return "Integer"
        case float():
            return "Float"
        case _:
            return "Text"


def _text(value: object) -> str | int | float | bool:
    return value if isinstance(value, str | int | float | bool) else json.dumps(value)


def _uri(name: str) -> str:
    """A name of a file, with blanks and the like as URIs have them."""
    return quote(name, safe="/:#?=&%@,;()!$*'~+")


def _slug(text: str) -> str:
    """The text as a part of an entity's name."""
    return re.sub(r"[^\w.-]+", "_", text)


@dataclass
class _Graph:
    """Entities by their name, each of them once."""

    entities: dict[str, Entity] = field(default_factory=dict)

    def add(self, name: str, kind: str | list[str], /, **properties: object) -> str:
        entity = {n: v for n, v in properties.items() if v is not None and v != []}
        self.entities.setdefault(name, {"@id": _uri(name), "@type": kind, **entity})
        return name


def crate(
    subject: str,
    run: Mapping[str, str],
    records: Sequence[tuple[str, Record]],
    files: Mapping[str, str],
) -> Entity:
    """Build the crate.

    Parameters
    ----------
    subject
        Name of the subject.
    run
        What is known of the run as a whole: ``octane``, ``Nextflow``, ``revision``, ``code``,
        ``repository``, ``script``, ``container``, ``image``; what is not known is left out.
    records
        Of all tasks, each with the name that its files begin with.
    files
        What each file of the results is, by its name below the crate's folder; a folder's ends in a
        slash.

    Returns
    -------
    dict
        JSON-LD: ``@context`` and ``@graph``.
    """
    graph = _Graph()
    ended = [_ended(record) for _, record in records]
    for name, title in PROFILES.items():
        version = name.rsplit("/", 1)[-1]
        graph.add(name, "CreativeWork", name=title, version=version)
    for name, what in files.items():
        kind = "Dataset" if name.endswith("/") else "File"
        form = FORMATS.get(name.rsplit(".", 1)[-1])
        graph.add(name, kind, name=name.rstrip("/"), description=what, encodingFormat=form)
    workflow = _workflow(graph, run, records)
    image = _image(graph, run)
    actions = _actions(graph, records, image)
    final = next((name for name in files if name.endswith(".ome.zarr/")), None)
    whole = graph.add(
        "#run",
        "CreateAction",
        name=f"octane on {subject}",
        instrument=_to(workflow),
        startTime=_first(records),
        endTime=_time(max(ended)) if ended else None,
        object=_to(*_inputs(graph, records), *_values(graph, _run_settings(records))),
        result=_to(final) if final else None,
        containerImage=_to(image) if image else None,
        description=", ".join(f"{name}: {value}" for name, value in run.items()),
    )
    engine = graph.add(
        "#nextflow",
        "SoftwareApplication",
        name="Nextflow",
        softwareVersion=run.get("Nextflow"),
        url="https://www.nextflow.io/",
    )
    controls = [
        graph.add(
            f"#control-{name}",
            "ControlAction",
            name=f"{name} by Nextflow",
            instrument=_to(f"#step-{record.step}"),
            object=_to(action),
        )
        for (name, record), action in zip(records, actions, strict=True)
    ]
    graph.add(
        "#orchestration",
        "OrganizeAction",
        name="Nextflow's run",
        instrument=_to(engine),
        object=[_to(control) for control in controls],
        result=_to(whole),
    )
    graph.add("#license", "CreativeWork", name="No licence was stated for these results")
    root = {
        "@id": "./",
        "@type": "Dataset",
        "name": f"{subject}: reconstruction by octane",
        "description": "A serial-section volume with its records, and how it was made.",
        "datePublished": _time(max(ended)) if ended else "1970-01-01",
        "license": _to("#license"),
        "conformsTo": [_to(name) for name in PROFILES],
        "hasPart": [_to(name) for name in (*files, workflow)],
        "mainEntity": _to(workflow),
        "mentions": [_to(name) for name in (whole, "#orchestration", *actions)],
    }
    descriptor = {
        "@id": CRATE,
        "@type": "CreativeWork",
        "about": _to("./"),
        "conformsTo": [
            _to("https://w3id.org/ro/crate/1.1"),
            _to("https://w3id.org/workflowhub/workflow-ro-crate/1.0"),
        ],
    }
    return {"@context": CONTEXT, "@graph": [descriptor, root, *graph.entities.values()]}


def _ended(record: Record) -> float:
    start = record.timeline.started if record.timeline else 0.0
    return start + record.seconds.get("total", 0.0)


def _first(records: Iterable[tuple[str, Record]]) -> str | None:
    starts = [r.timeline.started for _, r in records if r.timeline is not None]
    return _time(min(starts)) if starts else None


def _workflow(graph: _Graph, run: Mapping[str, str], records: Sequence[tuple[str, Record]]) -> str:
    """The workflow with its parameters, steps and tools."""
    language = graph.add(
        "https://w3id.org/workflowhub/workflow-ro-crate#nextflow",
        "ComputerLanguage",
        name="Nextflow",
        identifier={"@id": "https://www.nextflow.io/"},
        url={"@id": "https://www.nextflow.io/"},
        version=run.get("Nextflow"),
    )
    steps = [step for step in ORDER if any(record.step == step for _, record in records)]
    steps += sorted({record.step for _, record in records} - set(steps))
    tools = []
    for place, step in enumerate(steps):
        versions = next(record.versions for _, record in records if record.step == step)
        libraries = [
            graph.add(f"#{n}-{v}", "SoftwareApplication", name=n, softwareVersion=v)
            for n, v in versions.items()
            if n != "octane"
        ]
        tool = graph.add(
            f"#tool-{step}",
            "SoftwareApplication",
            name=f"{step}.py",
            softwareVersion=versions.get("octane"),
            softwareRequirements=[_to(name) for name in libraries],
        )
        tools.append(tool)
        graph.add(
            f"#step-{step}", "HowToStep", name=step, position=str(place), workExample=_to(tool)
        )
    name = "main.nf"
    if run.get("repository"):
        name = (
            f"{run['repository'].removesuffix('.git')}/blob/{run.get('revision') or 'HEAD'}/main.nf"
        )
    elif run.get("script"):
        name = f"file://{run['script']}"
    return graph.add(
        name,
        ["File", "SoftwareSourceCode", "ComputationalWorkflow", "HowTo"],
        name="octane",
        version=" ".join(filter(None, map(run.get, ("octane", "revision", "code")))) or None,
        conformsTo=_to(WORKFLOW),
        programmingLanguage=_to(language),
        encodingFormat="text/plain",
        input=[_to(parameter) for parameter in _parameters(graph, records)],
        step=[_to(f"#step-{step}") for step in steps],
        hasPart=[_to(tool) for tool in tools],
    )


def _run_settings(records: Sequence[tuple[str, Record]]) -> dict[str, object]:
    """Settings that are the workflow's parameters, by its names, where all tasks agree."""
    found: dict[str, list[object]] = {}
    for _, record in records:
        for name, value in record.settings.items():
            values = found.setdefault(_parameter(record.step, name), [])
            if value not in values:
                values.append(value)
    own = set(NAMES.values())
    return {n: of[0] for n, of in found.items() if n in own and len(of) == 1 and of[0] is not None}


def _parameter(step: str, name: str) -> str:
    """A step's setting by the workflow's name for it."""
    known = (NAMES.get((group, name)) for group in (step, "input", "execution"))
    return next((found for found in known if found), f"{step}_{name}")


def _parameters(graph: _Graph, records: Sequence[tuple[str, Record]]) -> list[str]:
    return [
        graph.add(
            f"#parameter-{name}",
            "FormalParameter",
            additionalType=_kind(value),
            name=name,
            conformsTo=_to(PARAMETER),
        )
        for name, value in _run_settings(records).items()
    ]


def _values(graph: _Graph, settings: Mapping[str, object]) -> list[str]:
    """The settings' values; equal ones of several tasks are one."""
    found = []
    for name, value in settings.items():
        text = _text(value)
        known = f"#parameter-{name}" in graph.entities
        found.append(
            graph.add(
                f"#value-{_slug(f'{name}-{text}')}",
                "PropertyValue",
                name=name,
                value=text,
                exampleOfWork=_to(f"#parameter-{name}") if known else None,
            )
        )
    return found


def _inputs(graph: _Graph, records: Sequence[tuple[str, Record]]) -> list[str]:
    """What the run read: the first step's input of each task."""
    first = next((s for s in ORDER if any(r.step == s for _, r in records)), None)
    return [
        found for _, record in records if record.step == first for found in _read(graph, record)
    ]


def _read(graph: _Graph, record: Record) -> list[str]:
    """Inputs of a task, by where they lie."""
    found = []
    for known in record.inputs.values():
        place = Path(known["path"])
        found.append(graph.add(place.as_uri(), "CreativeWork", name=place.name))
    return found


def _image(graph: _Graph, run: Mapping[str, str]) -> str | None:
    """The container's image, in which all tasks ran; None where they ran without."""
    image = run.get("image")
    if not image:
        return None
    if image.endswith(".sif"):
        kind = TERMS + "SIFImage"
        return graph.add("#container", "ContainerImage", additionalType=_to(kind), name=image)
    found = re.fullmatch(IMAGE, image)
    assert found is not None, "every text is an image's name"
    return graph.add(
        "#container",
        "ContainerImage",
        additionalType=_to(TERMS + "DockerImage"),
        registry=found["registry"],
        name=found["name"],
        tag=found["tag"],
        sha256=found["sha256"],
    )


def _actions(graph: _Graph, records: Sequence[tuple[str, Record]], image: str | None) -> list[str]:
    """The run of each task."""
    found = []
    for name, record in records:
        own = {_parameter(record.step, n): v for n, v in record.settings.items() if v is not None}
        made = graph.add(f"metrics/{name}_metrics.json", "File", name=f"record of {name}")
        facts = {**record.device, **record.host, "peak_memory_bytes": record.peak_memory_bytes}
        usage = [
            graph.add(
                f"#usage-{_slug(f'{n}-{v}')}",
                "PropertyValue",
                name=n,
                propertyID=n,
                value=str(v),
                unitCode=BYTE if n.endswith("_bytes") else None,
            )
            for n, v in facts.items()
            if v is not None
        ]
        found.append(
            graph.add(
                f"#action-{name}",
                "CreateAction",
                name=name,
                instrument=_to(f"#tool-{record.step}"),
                startTime=_time(record.timeline.started) if record.timeline else None,
                endTime=_time(_ended(record)) if record.timeline else None,
                object=[_to(n) for n in (*_read(graph, record), *_values(graph, own))],
                result=_to(made),
                resourceUsage=[_to(n) for n in usage],
                containerImage=_to(image) if image else None,
                description=" ".join(record.command),
            )
        )
    return found
