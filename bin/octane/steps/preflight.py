"""PREFLIGHT: parameters and inputs checked before any work is queued, one line per problem.

What passes becomes a plan: the kind of input, the sections, and the settings of every step.
"""

import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from octane.config.params import (
    N4Parameters,
    PyramidParameters,
    ResampleParameters,
    StackParameters,
    StitchParameters,
)
from octane.config.schema import WorkflowModel, entries, split
from octane.config.scratch import read_scratch, require_scratch
from octane.config.validation import read_object, spelled
from octane.core.arrays import output_type
from octane.core.errors import OctaneError
from octane.core.geometry import vector
from octane.core.metrics import write_json
from octane.resample.plan import plan_levels, target_of
from octane.steps.space import Places, Space, Step, check_space, predict, require_links
from octane.steps.stitch import nominal_positions
from octane.store.image import Image
from octane.store.inputs import as_given, find_inputs, kind_of
from octane.store.itk_files import FORMATS
from octane.store.mosaic_grid import MosaicGrid
from octane.store.sections import Voxels, gaps, number_of, require_alike
from octane.store.volumes import Volume, open_volume

__all__ = ["Plan", "check_places", "make_plan", "plan_of"]

logger = logging.getLogger(__name__)


SHELL_SIGNS = set("'\"`$\\/*?[]{};&|<>!\n")
"""Signs that a subject's or section's name must not have."""


@dataclass(frozen=True)
class Item:
    """One input of the first step; ``file`` is its name in the staged input."""

    id: str
    file: str


@dataclass(frozen=True)
class Plan:
    """What the workflow does for a subject.

    Attributes
    ----------
    subject
        Its name.
    kind
        ``mosaic``, ``section`` or ``volume``: where the data enters.
    items
        Mosaics, sections or one volume.
    settings
        Parameters of each step, under the step's own names.
    steps
        What each step will write.
    """

    subject: str
    kind: str
    items: list[Item]
    settings: dict[str, dict[str, object]]
    steps: list[Step]


def _stem(path: Path) -> str:
    name = path.name
    for suffix in (".ome.zarr", ".zarr", *sorted(FORMATS, key=len, reverse=True)):
        if name.endswith(suffix):
            return name.removesuffix(suffix)
    return name


def make_plan(request: Path, source: Path, output: Path, positions: Path | None = None) -> Plan:
    """Check a run and write its plan.

    Parameters
    ----------
    request
        JSON of all workflow parameters, as given.
    source
        The input, as staged; problems name the real file behind links.
    output
        Where to write the plan as JSON.
    positions
        The positions table, as staged.

    Raises
    ------
    OctaneError
        With one line per problem.
    """
    plan = plan_of(read_object(request), source, output.parent, positions)
    write_json(output, {**asdict(plan), "space": check_places([plan], output.parent)})
    return plan


def plan_of(
    given: Mapping[str, object], source: Path, work: Path, positions: Path | None = None
) -> Plan:
    """Check one subject; ``work`` is on the work directory's file system.

    The other parameters and errors as in :func:`make_plan`.
    """
    try:
        values = WorkflowModel.model_validate(given)
    except ValidationError as error:
        raise OctaneError("\n".join(spelled(error, WorkflowModel, "parameter"))) from error
    settings = split(values)
    workflow = settings["workflow"]
    problems: list[str] = []
    _check_output(workflow["outdir"], problems)
    scratch = read_scratch(workflow["scratch_dir"])
    try:
        require_scratch(scratch)
    except OctaneError as error:
        problems.append(str(error))
    unit, missing = settings["input"]["input_unit"], settings["input"]["missing_chunks"]
    volumes: list[Volume] = []
    try:
        for path in find_inputs(source):
            try:
                volumes.append(
                    open_volume(
                        as_given(source, path),
                        input_unit=str(unit) if unit else None,
                        missing="fill" if missing == "fill" else "error",
                    )
                )
            except OctaneError as error:
                problems.append(str(error))
        kind = kind_of(volumes, str(workflow["input_kind"])) if volumes else "volume"
        if kind == "volume" and len(volumes) > 1:
            raise OctaneError(
                f"{source.resolve()} holds {len(volumes)} volumes; give one with --input."
            )
    except OctaneError as error:
        raise OctaneError("\n".join([*problems, str(error)])) from error
    for volume in volumes:
        _check_volume(volume, kind, settings, positions, problems)
    if kind != "volume":
        _check_numbers(volumes, settings, problems)
        _check_alike(volumes, kind, settings, problems)
    files = find_inputs(source)
    single = len(files) == 1 and files[0] == source
    subject = str(workflow["subject"] or _stem(source.resolve()))
    items = [Item(_stem(path), "" if single else path.name) for path in files]
    # Both become names in task scripts, where the shell would read more into such a sign.
    problems += [
        f"'{name}' has a sign in it that a shell would read; rename it or give another --subject."
        for name in (subject, *(item.id for item in items))
        if set(name) & SHELL_SIGNS
    ]
    if problems:
        raise OctaneError("\n".join(map(_in_workflow, problems)))
    settings["resample"]["layout"] = "volume" if kind == "volume" else "mosaic"
    try:
        steps = predict(volumes, kind, settings, positions)
    except OctaneError as error:
        raise OctaneError(_in_workflow(str(error))) from error
    logger.info("%s: %d %s input(s), no problem found", subject, len(items), kind)
    return Plan(subject, kind, items, settings, steps)


def check_places(plans: Sequence[Plan], work: Path) -> Space:
    """Compare what all subjects of a run will write with what is free.

    Parameters
    ----------
    plans
        Of the subjects; where they write is the same for all.
    work
        A folder on the work directory's file system.

    Returns
    -------
    Space
        As :func:`octane.steps.space.check_space` gives it.

    Raises
    ------
    OctaneError
        When it cannot fit, or results cannot be linked as asked.
    """
    workflow = plans[0].settings["workflow"]
    places = Places(
        work.resolve(),
        Path(str(workflow["outdir"])),
        read_scratch(workflow["scratch_dir"]),
        copied=workflow["publish_dir_mode"] == "copy",
        recorded=workflow["trace_report"] is True,
    )
    name = plans[0].subject if len(plans) == 1 else f"{len(plans)} subjects"
    steps = [step for plan in plans for step in plan.steps]
    try:
        if workflow["publish_dir_mode"] == "link":
            require_links(places)
        return check_space(steps, places, name, stop=workflow["check_space"] is True)
    except OctaneError as error:
        raise OctaneError(_in_workflow(str(error))) from error


def _in_workflow(problem: str) -> str:
    """A command's flags in a sentence written as the workflow's parameters."""
    names: dict[str, list[str]] = {}
    for entry in entries():
        names.setdefault(entry.field.replace("_", "-"), []).append(entry.name)

    def parameter(match: re.Match[str]) -> str:
        known = names.get(match[1], [])
        return f"--{known[0]}" if len(known) == 1 else match[0]

    return re.sub(r"--([a-z][a-z0-9-]+)", parameter, problem)


def _check_output(outdir: object, problems: list[str]) -> None:
    folder = Path(str(outdir))
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        problems.append(f"{folder} cannot be written; choose another --outdir.")


def _check_volume(
    volume: Volume,
    kind: str,
    settings: dict[str, dict[str, object]],
    positions: Path | None,
    problems: list[str],
) -> None:
    """Everything that metadata alone can tell about one input."""
    workflow = settings["workflow"]
    try:
        resample = ResampleParameters.model_validate(settings["resample"])
        grid = volume.grid
        if kind == "section" and resample.resolution is not None and not workflow["skip_resample"]:
            # A stored spacing that went through millimetres may be off in its last digits.
            if not np.allclose(resample.resolution, grid.spacing, rtol=1e-6):
                raise OctaneError(
                    f"{volume.path} is a section, which is not resampled, and its voxels are not "
                    "of the --resolution; give --skip_resample, or the mosaics."
                )
        elif resample.resolution is not None and not workflow["skip_resample"]:
            grid = type(grid)(grid.shape, target_of(volume, resample), grid.origin)
        if kind == "mosaic" and isinstance(volume, Image):
            tiling = MosaicGrid.of(volume)
            if not workflow["skip_stitch"]:
                stitch = StitchParameters.model_validate(settings["stitch"])
                nominal_positions(volume, tiling, stitch, positions)
        if isinstance(volume, Image) and volume.missing == "error":
            lost = volume.missing_chunks()
            if lost:
                more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
                raise OctaneError(
                    f"{volume.path}: chunk {lost[0]}{more} missing; restore it, or give "
                    "--missing_chunks fill if empty chunks were left out on purpose."
                )
        if not workflow["skip_n4"] and volume.dtype.kind not in "fiu":
            raise OctaneError(
                f"{volume.path} holds {volume.dtype} voxels and N4 needs real intensities; "
                "give --skip_n4."
            )
        if not workflow["skip_pyramid"]:
            plan_levels(grid, PyramidParameters.model_validate(settings["pyramid"]).resolutions)
        N4Parameters.model_validate(settings["n4"])
    except OctaneError as error:
        problems.append(str(error))


def _check_numbers(
    volumes: list[Volume], settings: dict[str, dict[str, object]], problems: list[str]
) -> None:
    """Sections must be numbered, differ, and leave no gap that was not allowed."""
    numbers: dict[int, Path] = {}
    for volume in volumes:
        number = number_of(volume)
        if number is None:
            if len(volumes) > 1:
                problems.append(
                    f"{volume.path} has no number in its name; name sections section_01.ome.zarr."
                )
        elif number in numbers:
            problems.append(
                f"{volume.path} and {numbers[number]} are both section {number}; rename one."
            )
        else:
            numbers[number] = volume.path
    missing = gaps(list(numbers))
    allowed = StackParameters.model_validate(settings["stack"]).allow_missing_sections
    if len(missing) > allowed:
        shown = ", ".join(map(str, missing))
        problems.append(
            f"{volumes[0].path.parent} lacks section {shown} of {min(numbers)} to {max(numbers)}; "
            f"add what is missing, or give --allow_missing_sections {len(missing)}."
        )


def _check_alike(
    volumes: list[Volume], kind: str, settings: dict[str, dict[str, object]], problems: list[str]
) -> None:
    """Sections must have one voxel size and one type by the time that STACK gets them."""
    p = ResampleParameters.model_validate(settings["resample"])
    target = None
    if kind == "mosaic" and p.resolution is not None and not settings["workflow"]["skip_resample"]:
        target = vector(*p.resolution)
    try:
        require_alike(
            [
                Voxels(v.path, v.grid.spacing, v.dtype)
                if target is None
                else Voxels(v.path, target, output_type(p.dtype, v.dtype))
                for v in volumes
            ]
        )
    except OctaneError as error:
        problems.append(str(error))
