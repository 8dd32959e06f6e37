"""States of what the user gave, by which a run knows what changed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from octane.core.errors import InputError
from octane.core.fingerprint import digest, fingerprint
from octane.processes.preflight.inputs import as_given, require_target
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

    def as_json(self) -> dict[str, object]:
        """The state as the workflow compares it at the end."""
        return asdict(self)


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


def seen_states(states: Mapping[str, State]) -> dict[str, str]:
    """Fingerprints of the data whose changes tasks must see, by name."""
    return {name: own.state for name, own in states.items() if own.file in SEEN}


def input_fingerprint(states: Iterable[State]) -> str:
    """Fingerprint of a subject's input."""
    return digest(sorted(own.state for own in states if own.file == "input"))
