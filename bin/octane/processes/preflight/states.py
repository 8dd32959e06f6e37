"""States of what the user gave, by which a run knows what changed."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from octane.core.errors import InputError
from octane.core.fingerprint import digest, fingerprint
from octane.core.records import ORDER
from octane.processes.preflight.inputs import as_given, require_target
from octane.processes.preflight.tasks import SubjectTasks, list_tasks
from octane.store.formats.itk_files import voxel_file

SEEN = ("input", "n4_mask", "truth")
"""Parameters whose files may be stores, of which Nextflow's cache sees only the folder.

It sees the size and time of other files, and tables by their content.
"""


@dataclass(frozen=True)
class State:
    """A fingerprint of ``parts`` of the file or folder that a parameter names."""

    file: str
    parts: Sequence[str]
    state: str


def file_states(
    subject: str, files: Mapping[str, Path], inputs: Mapping[str, Sequence[str]]
) -> dict[str, State]:
    """States of a subject's data by name.

    Parameters
    ----------
    files
        Staged files by parameter.
    inputs
        Parts of the input, relative to it, by the name of the data.

    Raises an InputError that names what cannot be read.
    """
    others = {f"{subject}/{file}": (file, [""]) for file in files if file != "input"}
    given = {name: ("input", parts) for name, parts in inputs.items()}
    return {
        name: _state(file, files[file], parts) for name, (file, parts) in (given | others).items()
    }


def _state(file: str, root: Path, parts: Sequence[str]) -> State:
    paths = (root / part if part else root for part in parts)
    voxels = (voxel_file(path) for path in paths)
    known = [*parts, *(str(path.resolve()) for path in voxels if path is not None)]
    try:
        return State(file, known, fingerprint(root, known))
    except OSError as error:
        path = as_given(root, Path(error.filename))
        require_target(path)
        raise InputError(f"{path} cannot be read; check your permissions and the disk.") from error


def plan_content(
    own: SubjectTasks, files: Mapping[str, Path], inputs: Mapping[str, Sequence[str]]
) -> dict[str, object]:
    """A subject's ``tasks`` as the workflow reads them, with the states of what they read.

    ``inputs`` and ``files`` are as in :func:`file_states`. ``records`` are the names of the tasks
    that write one, ``states`` are compared at the end, and ``fingerprint`` is that of the input.
    """
    states = file_states(own.subject, files, inputs)
    seen = {name: state.state for name, state in states.items() if state.file in SEEN}
    tasks = list_tasks(replace(own, states=seen))
    return {
        "inputs": inputs,
        "tasks": [task.as_json() for task in tasks],
        "records": [task.name for task in tasks if task.step in ORDER],
        "states": [asdict(state) for state in states.values()],
        "fingerprint": digest(sorted(s.state for s in states.values() if s.file == "input")),
    }
