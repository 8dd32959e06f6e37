"""PREFLIGHT: parameters and inputs checked before any work is queued, one line per problem.

What passes becomes a plan: the kind of input, the sections, and the settings of every step.
"""

import logging
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from platform import node
from typing import cast

import numpy as np
from pydantic import ValidationError

from octane.config.params import (
    MASK_WORDS,
    ExecutionParameters,
    InputParameters,
    N4Parameters,
    PyramidParameters,
    ReportParameters,
    ResampleParameters,
    StackParameters,
    StepParameters,
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
from octane.steps.space import Space, Step, check_space, predict, require_links
from octane.steps.stitch import nominal_positions
from octane.store.chunks import METADATA, is_store
from octane.store.image import Image
from octane.store.itk_files import FORMATS
from octane.store.mosaic_grid import MosaicGrid
from octane.store.sections import gaps, number_of, require_alike
from octane.store.volumes import Volume, as_given, find_inputs, kind_of, open_volume

logger = logging.getLogger(__name__)


COMMON: dict[str, type[StepParameters]] = {
    "input": InputParameters,
    "execution": ExecutionParameters,
}
MODELS: dict[str, dict[str, type[StepParameters]]] = {
    "resample": {**COMMON, "resample": ResampleParameters},
    "stitch": {**COMMON, "stitch": StitchParameters},
    "stack": {**COMMON, "stack": StackParameters},
    "n4": {**COMMON, "n4": N4Parameters},
    "pyramid": {**COMMON, "pyramid": PyramidParameters},
    "report": {"execution": ExecutionParameters, "report": ReportParameters},
}
"""Parameters that each step's command takes in the workflow."""

SHELL_SIGNS = set("'\"`$\\/*?[]{};&|<>!\n")
"""Signs that a subject's or section's name must not have."""


@dataclass(frozen=True)
class Item:
    """One input of the first step; ``file`` is its name in the staged input."""

    id: str
    file: str


@dataclass(frozen=True)
class Plan:
    """Work of the workflow for a subject.

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

    def as_json(self) -> dict[str, object]:
        """The plan as the workflow takes it; ``flags`` are words of each step's command."""
        items = [asdict(item) for item in self.items]
        flags = {step: shlex.join(_flags(step, self.settings)) for step in MODELS}
        steps = [asdict(step) for step in self.steps]
        return {
            "subject": self.subject,
            "kind": self.kind,
            "items": items,
            "flags": flags,
            "steps": steps,
        }


def _stem(path: Path) -> str:
    name = path.name
    for suffix in (".ome.zarr", ".zarr", *sorted(FORMATS, key=len, reverse=True)):
        if name.endswith(suffix):
            return name.removesuffix(suffix)
    return name


def _flags(step: str, settings: dict[str, dict[str, object]]) -> list[str]:
    words: list[str] = []
    for name, model in MODELS[step].items():
        values = dict(settings[name])
        # Only these two have the label gpu_slot, without which a task is given no GPU.
        if name == "execution" and step not in ("resample", "n4"):
            values["backend"] = "cpu"
        # A mask file is staged by the workflow, which gives its place.
        if name == "n4" and str(values["mask"]).lower() not in MASK_WORDS:
            del values["mask"]
        words += model.model_validate(values).flags()
    return words


def make_plans(request: Path, sources: Path, output: Path, tables: Path) -> list[Plan]:
    """Check all subjects of a run before any work on one of them, and write their plans.

    Parameters
    ----------
    request
        JSON: ``parameters`` of the run, folders that it writes into (``written``), and
        ``subjects``, each with its name (``subject``), its own
        parameters (``given``), where these were read (``row``), the number of its positions table
        (``table``) or null, and size and time of the files that the launch saw (``marks``).
    sources, tables
        Folders of the staged inputs and positions tables, each in a folder of its number from 1.
    output
        Where to write the ``plans`` as JSON, in the order of the subjects, and the ``space`` that
        they take together.

    Raises
    ------
    OctaneError
        With one line per problem of any subject; a problem of all subjects is given once.
    """
    asked = read_object(request)
    run = cast("dict[str, object]", asked["parameters"])
    subjects = cast("list[dict[str, object]]", asked["subjects"])
    plans: list[Plan] = []
    problems: dict[str, list[str]] = {}
    for number, subject in enumerate(subjects, start=1):
        given = {**cast("dict[str, object]", subject["given"] or {}), "subject": subject["subject"]}
        table = _staged(tables, subject["table"]) if subject["table"] else None
        source = _staged(sources, number)
        try:
            _require_same(cast("dict[str, list[int] | None]", subject["marks"]), source, table)
            _require_outside(source, cast("list[str]", asked.get("written", [])))
            plans.append(plan_of({**run, **given}, source, table))
        except OctaneError as error:
            row = f" ({subject['row']})" if subject["row"] else ""
            for line in dict.fromkeys(str(error).splitlines()):
                problems.setdefault(line, []).append(f"{subject['subject']}{row}")
    if problems:
        raise OctaneError("\n".join(_by_subject(problems, len(subjects))))
    space = check_places(plans, output.parent)
    write_json(output, {"plans": [plan.as_json() for plan in plans], "space": space})
    return plans


def _staged(folder: Path, number: object) -> Path:
    (found,) = (folder / str(number)).iterdir()
    return found


def _require_same(marks: dict[str, list[int] | None], source: Path, table: Path | None) -> None:
    """Raise unless a task sees the files that the launch saw, by their size and time in seconds.

    A node may have other data behind a path than the machine that the run was started on.
    """
    for name, mark in marks.items():
        if mark is None:
            continue
        path = next(p for p in (source, table, source / name) if p is not None and p.name == name)
        # As `metadataOf` in lib/functions.nf takes it.
        file = next((f for f in (path / part for part in METADATA) if f.exists()), path)
        state = file.stat() if file.exists() else None
        if state is None or [state.st_size, int(state.st_mtime)] != mark:
            raise OctaneError(
                f"{path.resolve()} is not what the run was started with: {node()} has other files "
                "behind its path; give a path that is the same on all machines."
            )


def _require_outside(source: Path, written: Sequence[str]) -> None:
    """Raise where the run writes into a store that it reads: results would be taken for parts."""
    for store in filter(is_store, find_inputs(source)):
        for folder in map(Path, written):
            if folder.resolve().is_relative_to(store.resolve()):
                raise OctaneError(
                    f"{folder} lies inside {store.resolve()}, which the run reads; choose another "
                    "--outdir and -work-dir, and start the run elsewhere."
                )


def _by_subject(problems: Mapping[str, Sequence[str]], count: int) -> list[str]:
    """Each problem after its subject's name; once, where all subjects have it."""
    return [
        line if name is None else f"{name}: {line}"
        for line, names in problems.items()
        for name in ([None] if len(names) == count else names)
    ]


def plan_of(given: Mapping[str, object], source: Path, positions: Path | None = None) -> Plan:
    """Plan of one subject, when nothing is wrong with its parameters and its data.

    Parameters
    ----------
    given
        All workflow parameters, as given.
    source
        The input, as staged; problems name the real file behind links.
    positions
        The positions table, as staged.

    Raises
    ------
    OctaneError
        With one line per problem.
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
    work, outdir = work.resolve(), Path(str(workflow["outdir"]))
    name = plans[0].subject if len(plans) == 1 else f"{len(plans)} subjects"
    steps = [step for plan in plans for step in plan.steps]
    try:
        if workflow["publish_dir_mode"] == "link":
            require_links(work, outdir)
        return check_space(
            *(steps, name, work, outdir, read_scratch(workflow["scratch_dir"])),
            copied=workflow["publish_dir_mode"] == "copy",
            stop=workflow["check_space"] is True,
        )
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
                (v.path, v.grid.spacing, v.dtype)
                if target is None
                else (v.path, target, output_type(p.dtype, v.dtype))
                for v in volumes
            ]
        )
    except OctaneError as error:
        problems.append(str(error))
