"""Provenance of a subject's results as a Workflow Run Crate (RO-Crate, only its metadata).

The crate names the workflow, and its run with parameters, inputs and results; the records of the
tasks are files in it. Times are those of the records, so that the same records make the same crate.

The package rocrate, with which the tests read it, would bring an HTTP client into every
environment, and would still leave the properties of each entity to this module.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from octane.config.schema import entries
from octane.core.records import ORDER, Record

CRATE = "ro-crate-metadata.json"
"""File name by which readers recognize a folder as a crate."""

RO = "https://w3id.org/ro/crate/1.1"
WORKFLOWS = "https://w3id.org/workflowhub/workflow-ro-crate"
BIOSCHEMAS = "https://bioschemas.org/profiles"
PROFILES = ("process", "workflow")
RUNS = "https://w3id.org/ro/wfrun"
TERMS = "https://w3id.org/ro/terms/workflow-run"
KINDS = {"bool": "Boolean", "int": "Integer", "float": "Float"}
NAMES = {(entry.step, entry.field): entry.name for entry in entries()}
"""Parameters of the workflow by their step and field."""

Entity = dict[str, object]


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _referring(value: object) -> object:
    """Replace entities by references to them."""
    if isinstance(value, list):
        return [_referring(own) for own in value]
    return {"@id": value["@id"]} if isinstance(value, dict) else value


def _address(path: Path) -> str:
    """URI of a file; a relative path, whose folder is unknown, as it is."""
    return path.as_uri() if path.is_absolute() else path.as_posix()


class _Crate:
    """A crate of RO-Crate 1.1, which the profiles of workflow runs extend."""

    def __init__(self) -> None:
        self.entities: dict[str, Entity] = {}
        self.root = self.entity("./", "Dataset")
        profiles = [{"@id": RO}, {"@id": f"{WORKFLOWS}/1.0"}]
        self.entity(CRATE, "CreativeWork", conformsTo=profiles, about=self.root)

    def entity(self, name: str, kind: str | list[str], /, **properties: object) -> Entity:
        """Return the entity of a name, made at first use; properties that are None are left out."""
        known = {n: v for n, v in properties.items() if v is not None}
        name = quote(name, safe="/:#?=&%@,;()!$*'~+")
        return self.entities.setdefault(name, {"@id": name, "@type": kind, **known})

    def of(self, kind: str) -> list[Entity]:
        """Return the entities of a type."""
        return [entity for entity in self.entities.values() if entity["@type"] == kind]

    def setting(self, name: str, value: object) -> None:
        """Add a workflow parameter and a value; the same value of several tasks is added once."""
        # Several numbers, as on the command line.
        text = " ".join(map(str, value)) if isinstance(value, list) else value
        kind = KINDS.get(type(value).__name__, "Text")
        known = {"name": name, "additionalType": kind, "valueRequired": False}
        profile = {"@id": f"{BIOSCHEMAS}/FormalParameter/1.0-RELEASE"}
        slot = self.entity(f"#parameter-{name}", "FormalParameter", **known, conformsTo=profile)
        known = {"name": name, "value": text, "exampleOfWork": slot}
        self.entity(f"#value-{quote(f'{name}-{text}', safe='')}", "PropertyValue", **known)


def crate(
    subject: str, run: Mapping[str, str], records: Sequence[Record], files: Mapping[str, str]
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
        Records of all tasks.
    files
        Descriptions of the result files by their paths; a path of a folder ends in a slash.
    """
    made = _Crate()
    parts: list[Entity] = []
    for name, text in files.items():
        kind = "Dataset" if name.endswith("/") else "File"
        parts.append(made.entity(quote(name), kind, name=name.rstrip("/"), description=text))
    workflow, container = _workflow(made, run), None
    if image := run.get("image"):
        kind = {"@id": f"{TERMS}#{'SIF' if image.endswith('.sif') else 'Docker'}Image"}
        container = made.entity("#container", "ContainerImage", additionalType=kind, name=image)
    for record in records:
        staged = {name: known["path"] for name, known in record.inputs.items()}
        for field, value in record.settings.items():
            known = (NAMES.get((group, field)) for group in (record.step, "input", "execution"))
            if value is not None and (name := next(filter(None, known), None)):
                made.setting(name, staged.get(str(value), value))
    workflow["input"] = made.of("FormalParameter")
    first = next((step for step in ORDER if any(r.step == step for r in records)), None)
    # A mask or a table, which is not staged in input/, is an input of the run at any step.
    paths = {
        Path(known["path"]): None
        for r in records
        for name, known in r.inputs.items()
        if r.step == first or not name.startswith("input/")
    }
    given = [made.entity(_address(path), "CreativeWork", name=path.name) for path in paths]
    spans = [(r.timeline.started, r.timeline.started + r.total) for r in records if r.timeline]
    whole = made.entity(
        "#run",
        "CreateAction",
        startTime=_time(min((begin for begin, _ in spans), default=0.0)),
        endTime=_time(max((end for _, end in spans), default=0.0)),
        name=f"octane on {subject}",
        instrument=workflow,
        object=given + made.of("PropertyValue"),
        result=next((made.entities[quote(n)] for n in files if n.endswith(".ome.zarr/")), None),
        description=", ".join(f"{name}: {value}" for name, value in run.items()),
        containerImage=container,
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
    root["mentions"], root["hasPart"], root["mainEntity"] = [whole], [*parts, workflow], workflow
    graph = [{n: _referring(v) for n, v in e.items()} for e in made.entities.values()]
    return {"@context": [f"{RO}/context", f"{TERMS}/context"], "@graph": graph}


def _workflow(made: _Crate, run: Mapping[str, str]) -> Entity:
    """Add the workflow."""
    source = "main.nf"
    if run.get("repository"):
        place = run["repository"].removesuffix(".git")
        source = f"{place}/blob/{run.get('revision') or 'HEAD'}/main.nf"
    elif run.get("script"):
        source = _address(Path(run["script"]))
    kinds = ["File", "SoftwareSourceCode", "ComputationalWorkflow"]
    version = " ".join(run[name] for name in ("octane", "revision", "code") if run.get(name))
    profile = {"@id": f"{BIOSCHEMAS}/ComputationalWorkflow/1.0-RELEASE"}
    page = {"@id": "https://www.nextflow.io/"}
    language = {"name": "Nextflow", "identifier": page, "url": page, "version": run.get("Nextflow")}
    known = {"name": "octane", "version": version, "conformsTo": profile}
    known["programmingLanguage"] = made.entity(
        f"{WORKFLOWS}#nextflow", "ComputerLanguage", **language
    )
    return made.entity(source, kinds, **known)
