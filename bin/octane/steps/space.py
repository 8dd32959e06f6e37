"""Bounds of what a run writes, compared with the free space.

At most the voxels are stored without compression; at least with :data:`LEAST` of that. Work
and output folders on one file system are added up. A scratch folder is not looked at: a task that
fills it is tried again without. A quota that the file system does not count is not seen.
"""

from collections.abc import Sequence
from pathlib import Path
from shutil import disk_usage

from octane.config.params import WorkflowParameters
from octane.core.errors import OctaneError
from octane.core.units import format_bytes
from octane.layout.subject import StepBytes

LEAST = 0.4
"""Part of its voxels' bytes that an image takes at least once it is compressed."""

REMEDIES = {
    "work": "give Nextflow a -work-dir with more space",
    "output": "give an --outdir with more space, or --publish_dir_mode symlink",
}


def _device(folder: Path) -> int:
    return folder.stat().st_dev


def check_space(
    steps: Sequence[StepBytes], subject: str, work: Path, workflow: WorkflowParameters
) -> list[str]:
    """Compare the bounds of what steps of one or more subjects will write with what is free.

    Gives a sentence on what they will write, and warnings. It is an error, with a line for each
    file system, when not even the least fits and ``check_space`` is on.
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
        if LEAST * most > free:
            problems.append(
                f"{subject} does not {line}; or, where much of it is there from an earlier run "
                "that is resumed, give --check_space false."
            )
        elif most > free:
            warnings.append(f"{subject} may not {line}.")
    if problems and workflow.check_space:
        raise OctaneError("\n".join(problems))
    parts = [f"{_range(need)} in the {name} folder" for name, need in needs.items()]
    written = f"{subject} will write {', '.join(parts)}."
    return [written, *(f"Warning: {line}" for line in warnings + problems)]


def _range(most: int) -> str:
    return f"{format_bytes(LEAST * most)} to {format_bytes(most)}"
