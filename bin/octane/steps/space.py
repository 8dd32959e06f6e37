"""Bounds of the bytes that a run writes, compared with the free space.

At most, voxels are stored uncompressed; at least, in :data:`LEAST_STORED` of that. Work and output
folders on one file system are added up. A scratch folder is not checked: a task that fills it is
retried without it. A quota that the file system does not report is not seen.
"""

from collections.abc import Sequence
from pathlib import Path
from shutil import disk_usage

from octane.config.params import WorkflowParameters
from octane.core.errors import OctaneError
from octane.core.units import format_bytes
from octane.layout.subject import StepBytes

LEAST_STORED = 0.4
"""Minimum size of a compressed image, relative to its voxels' bytes."""

REMEDIES = {
    "work": "give Nextflow a -work-dir with more space",
    "output": "give an --outdir with more space, or --publish_dir_mode symlink",
}


def _device(folder: Path) -> int:
    return folder.stat().st_dev


def check_space(
    steps: Sequence[StepBytes], subject: str, work: Path, workflow: WorkflowParameters
) -> list[str]:
    """Compare the bytes that steps of one or more subjects will write with the free space.

    Returns a sentence on the bytes to write, and warnings. Raises an OctaneError with a line for
    each file system if not even the lower bound fits and ``check_space`` is on.
    """
    outdir = workflow.outdir
    output = next(path for path in (outdir, *outdir.absolute().parents) if path.exists())
    # A link does not survive the copy out of a scratch folder.
    is_linked = workflow.scratch_dir is False
    voxels = sum(step.voxels + (0 if is_linked else step.linked) for step in steps)
    needs, folders = {"work": voxels}, {"work": work}
    if workflow.publish_dir_mode == "copy":
        needs["output"], folders["output"] = sum(step.published for step in steps), output
    problems: list[str] = []
    warnings: list[str] = []
    for device in dict.fromkeys(map(_device, folders.values())):
        names = [name for name, folder in folders.items() if _device(folder) == device]
        most = sum(needs[name] for name in names)
        folder, free = folders[names[0]], disk_usage(folders[names[0]]).free
        spelled = " and ".join(f"{name} ({_range(needs[name])})" for name in names)
        line = (
            f"fit: {spelled} take {_range(most)} on the file system of {folder}, which has "
            f"{format_bytes(free)} free. Free some; "
            f"or {'; or '.join(REMEDIES[name] for name in names)}"
        )
        if LEAST_STORED * most > free:
            problems.append(
                f"{subject} does not {line}; or, if an earlier run that is resumed already wrote "
                "much of it, give --check_space false."
            )
        elif most > free:
            warnings.append(f"{subject} may not {line}.")
    if problems and workflow.check_space:
        raise OctaneError("\n".join(problems))
    parts = [f"{_range(need)} in the {name} folder" for name, need in needs.items()]
    written = f"{subject} will write {', '.join(parts)}."
    return [written, *(f"Warning: {line}" for line in warnings + problems)]


def _range(most: int) -> str:
    return f"{format_bytes(LEAST_STORED * most)} to {format_bytes(most)}"
