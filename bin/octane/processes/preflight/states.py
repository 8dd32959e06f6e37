"""What the workflow reads of a plan: tasks, their data, and the states of what the user gave."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from octane.core.errors import InputError
from octane.core.files import writing
from octane.core.fingerprint import digest, fingerprint
from octane.core.records import ORDER, Decision
from octane.processes.preflight.inputs import require_target
from octane.processes.preflight.tasks import PlannedTask, SubjectTasks, list_tasks
from octane.store.formats.itk_files import voxel_file

STORE_PARAMETERS = ("input", "n4_mask", "truth")
"""Parameters whose files may be stores, of which Nextflow's cache sees only the folder.

It sees the size and time of other files, and tables by their content.
"""


@dataclass(frozen=True)
class State:
    """A fingerprint of ``parts`` of the ``path`` that a parameter, ``file``, names."""

    file: str
    path: str
    parts: Sequence[str]
    state: str


@dataclass(frozen=True)
class PlanContent:
    """A subject's plan for the workflow.

    Attributes
    ----------
    subject
        Its name.
    tasks
        All of its tasks.
    data
        Files that tasks read and none makes, by name. A header is before the file of its voxels.
    states
        States of these, which the end of the run compares.
    tables
        The text of files that are to be written for tasks, by name.
    results
        Names of the volumes and tables that the results cannot lack.
    decisions
        What PREFLIGHT decided because nobody stated it.
    """

    subject: str
    tasks: Sequence[PlannedTask]
    data: Mapping[str, Sequence[Path]]
    states: Sequence[State]
    tables: Mapping[str, str] = field(default_factory=dict)
    results: Sequence[str] = ()
    decisions: Sequence[Decision] = ()

    @property
    def fingerprint(self) -> str:
        """That of the input."""
        return digest(sorted(state.state for state in self.states if state.file == "input"))

    def as_json(self, work: Path) -> dict[str, object]:
        """The plan as JSON; ``records`` are the names of the tasks that write one.

        Writes the tables into the folder ``work``. The same content keeps its name and time, which
        Nextflow's cache compares.
        """
        data = {name: [str(path) for path in paths] for name, paths in self.data.items()}
        for name, text in self.tables.items():
            data[name] = [str(_write_table(work / "tables", text))]
        return {
            "id": self.subject,
            "data": data,
            "tasks": [task.as_json() for task in self.tasks],
            "records": [task.name for task in self.tasks if task.step in ORDER],
            "results": self.results,
            "states": [asdict(state) for state in self.states],
            "decisions": [decision.model_dump() for decision in self.decisions],
        }


def _write_table(folder: Path, text: str) -> Path:
    table = folder / f"{digest([text])}.csv"
    if not table.exists():
        with writing(table, overwrite=True) as partial:
            partial.write_bytes(text.encode())
    return table


def plan_content(
    subject_tasks: SubjectTasks, files: Mapping[str, Path], inputs: Mapping[str, Sequence[str]]
) -> PlanContent:
    """The plan of a subject's ``tasks``, without tables and results.

    Parameters
    ----------
    files
        What the user gave, by parameter.
    inputs
        Parts of the input, relative to it, by the name of the data.

    Raises an InputError that names what cannot be read.
    """
    subject, source = subject_tasks.subject, files["input"]
    others = {f"{subject}/{file}": (file, [""]) for file in files if file != "input"}
    input_parts = {name: ("input", parts) for name, parts in inputs.items()}
    data, states = dict[str, list[Path]](), dict[str, State]()
    for name, (file, parts) in (input_parts | others).items():
        root = files[file]
        paths = [root / part for part in parts]
        voxels = [*filter(None, map(voxel_file, paths))]
        states[name] = _read_state(file, root, [*parts, *(str(path.resolve()) for path in voxels)])
        staged = paths if name.startswith(f"{subject}/tiles/") else [*paths, *voxels]
        data[name] = [*dict.fromkeys(staged)]
    data[f"{subject}/input"] = [source, *filter(None, [voxel_file(source)])]
    fingerprints = {
        name: state.state for name, state in states.items() if state.file in STORE_PARAMETERS
    }
    tasks = list_tasks(replace(subject_tasks, states=fingerprints))
    return PlanContent(subject, tasks, data, [*states.values()])


def _read_state(file: str, root: Path, parts: Sequence[str]) -> State:
    try:
        return State(file, str(root), parts, fingerprint(root, parts))
    except OSError as error:
        path = Path(error.filename)
        require_target(path)
        raise InputError(f"{path} cannot be read; check your permissions and the disk.") from error
