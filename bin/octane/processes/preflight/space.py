"""Bounds of the bytes that a run writes, compared with the free space.

At most, voxels are stored uncompressed; at least, in :data:`LEAST_STORED` of that. With
``keep_intermediates`` off, the most is that of any moment, and the least what remains. Work and
output folders on one file system are added up. A scratch folder is not checked: a task that fills
it is retried without it. A quota that the file system does not report is not seen.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from shutil import disk_usage

from octane.core.errors import OctaneError
from octane.core.units import format_bytes
from octane.processes.preflight.parameters import WorkflowParameters
from octane.processes.preflight.subject import StepBytes

LEAST_STORED = 0.4
"""Minimum size of a compressed image, relative to its voxels' bytes."""

REMEDIES = {
    "work": "give Nextflow a -work-dir with more space",
    "output": "give an --outdir with more space, or --publish_dir_mode symlink",
}


def _device(folder: Path) -> int:
    return folder.stat().st_dev


def _bounds(steps: Sequence[StepBytes], *, is_linked: bool) -> tuple[float, int]:
    """Least and most bytes of one channel's steps, in order."""
    kept = sum(s.voxels + (0 if is_linked else s.linked) for s in steps if not s.is_emptied)
    emptied = [s.voxels for s in steps if s.is_emptied]
    # A step's input is emptied when its output is complete.
    return LEAST_STORED * kept, max(map(sum, pairwise([*emptied, kept])), default=kept)


def check_space(
    channels: Sequence[Sequence[StepBytes]],
    subject: str,
    work: Path,
    workflow: WorkflowParameters,
    *,
    is_resumed: bool = False,
) -> list[str]:
    """Compare the bytes that a run will write with the free space.

    ``channels`` are the steps of each channel of one or more subjects. Returns a sentence on the
    bytes to write, and warnings. Raises an OctaneError with a line for each file system if not even
    the lower bound fits. A resumed run may have written much of it, so that is a warning then.
    """
    outdir = workflow.outdir
    output = next(path for path in (outdir, *outdir.absolute().parents) if path.exists())
    # A link does not survive the copy out of a scratch folder.
    is_linked = workflow.scratch_dir is False
    bounds = [_bounds(steps, is_linked=is_linked) for steps in channels]
    needs, folders = {"work": _total(bounds)}, {"work": work}
    if workflow.publish_dir_mode == "copy":
        published = sum(step.published for steps in channels for step in steps)
        needs["output"], folders["output"] = (LEAST_STORED * published, published), output
    remedies = dict(REMEDIES)
    if workflow.keep_intermediates:
        remedies["work"] += ", or --keep_intermediates false"
    problems: list[str] = []
    warnings: list[str] = []
    for device in dict.fromkeys(map(_device, folders.values())):
        names = [name for name, folder in folders.items() if _device(folder) == device]
        least, most = _total(needs[name] for name in names)
        folder, free = folders[names[0]], disk_usage(folders[names[0]]).free
        spelled = " and ".join(f"{name} ({_range(*needs[name])})" for name in names)
        line = (
            f"fit: {spelled} take {_range(least, most)} on the file system of {folder}, which has "
            f"{format_bytes(free)} free. Free some; "
            f"or {'; or '.join(remedies[name] for name in names)}"
        )
        if least > free:
            problems.append(
                f"{subject} does not {line}; or, if an earlier run already wrote much of it, give "
                "-resume."
            )
        elif most > free:
            warnings.append(f"{subject} may not {line}.")
    if problems and not is_resumed:
        raise OctaneError("\n".join(problems))
    parts = [f"{_range(*need)} in the {name} folder" for name, need in needs.items()]
    written = f"{subject} will write {', '.join(parts)}."
    return [written, *(f"Warning: {line}" for line in warnings + problems)]


def _total(bounds: Iterable[tuple[float, float]]) -> tuple[float, float]:
    both = list(bounds)
    return sum(least for least, _ in both), sum(most for _, most in both)


def _range(least: float, most: float) -> str:
    return f"{format_bytes(least)} to {format_bytes(most)}"
