"""PREFLIGHT: parameters and inputs of all subjects, checked before any work is queued.

The result is a plan: the kind of input, the sections, and the settings of every step.
"""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from octane.config.sheets import GAIN_COLUMNS, POSITION_COLUMNS
from octane.config.types import AUTO
from octane.config.validation import (
    as_ranges,
    require_scratch,
    unfit_name,
)
from octane.core.arrays import output_type
from octane.core.errors import InputError, collecting
from octane.core.geometry import Grid, samples, vector
from octane.core.metrics import write_json
from octane.core.records import Decision
from octane.layout.levels import steps_of
from octane.layout.mosaic import MosaicGrid, require_sections, split_sections
from octane.layout.sections import (
    number_of,
    number_or_first,
    require_alike,
    require_one_orientation,
    section_number,
    sections_by_number,
)
from octane.processes.mosaic.checks_before import (
    Acquisition,
    Input,
    is_against,
    item_of,
    write_positions,
)
from octane.processes.n4.layout import sections_of
from octane.processes.preflight.claim import Claim, claim_folder
from octane.processes.preflight.decisions import (
    decide_overlap,
    sections_of_mosaics,
    with_thickness,
    without_decisions,
)
from octane.processes.preflight.opening import Inputs, open_inputs, run_in_threads
from octane.processes.preflight.parameters import Settings, WorkflowParameters
from octane.processes.preflight.plan import (
    Channel,
    SubjectPlan,
    choose_channels,
    chooses_channels,
    idle_flags_in_run,
    masks_tissue,
    warn_reference,
)
from octane.processes.preflight.request import Run, check_launch, stable_command
from octane.processes.preflight.samplesheet import read_subjects
from octane.processes.preflight.schema import settings_of
from octane.processes.preflight.space import check_space
from octane.processes.preflight.states import PlanContent
from octane.processes.preflight.stub import stub_plan
from octane.processes.preflight.subject import (
    ABUTTING,
    SubjectLayout,
    lay_out_mosaic,
    lay_out_subject,
    needs_resample,
)
from octane.processes.resample.layout import target_voxel_size
from octane.processes.stack.layout.stack import table_displacements, table_thicknesses
from octane.processes.stack.layout.surfaces import require_surfaces
from octane.processes.stack.record import BY_DEPTH
from octane.processes.stitch.checks_before import (
    applicable_parameters,
    given_flat_field,
    given_gains,
    require_compensable,
)
from octane.store.channels import is_nearest
from octane.store.companions import open_companions
from octane.store.image import Image
from octane.store.stated import Attributes, stated_orientation
from octane.store.volumes import ArrayVolume, Volume, bare_name, open_volume

MOST_EXAMPLES = 10
"""Maximum number of shown problems that differ only in names and numbers."""
TILE_TABLES = {"positions": POSITION_COLUMNS, "stitch_gain": GAIN_COLUMNS}
"""Columns of the tables of tiles, by parameter."""


def answer_request(request: Path, output: Path) -> None:
    """Check a run before any work, and write its plans, or the names of its subjects.

    Parameters
    ----------
    request
        JSON that :class:`octane.processes.preflight.request.Run` reads.
    output
        Where to write, as JSON, ``notes`` for the user and the ``plans``. Of a run without subjects
        it is ``subjects``: those of its samplesheet, or the phantom that is to be made.

    Raises an OctaneError with a line for each problem.
    """
    run = Run.read(request)
    if not (run.asked and run.asked[0].get("input")):
        check_launch(run)
    write_json(output, make_plans(run) if run.asked else name_subjects(run))


def name_subjects(run: Run) -> dict[str, object]:
    """Name the ``subjects`` of a samplesheet, or the phantom, whose parameters are checked."""
    if run.is_cohort:
        return {"subjects": read_subjects(run), "notes": []}
    name = run.text_of("subject") or "phantom"
    settings = settings_of({**run.parameters, "subject": name, "input": None})
    require_scratch(settings.workflow.scratch_dir)
    if problem := unfit_name(name):
        raise InputError(problem)
    return {"subjects": [{"id": name}], "notes": []}


def make_plans(run: Run) -> dict[str, object]:
    """Plan all subjects of a run, and claim their folders if none of them has a problem.

    Returns ``plans`` for the workflow, and ``notes``: the size of each subject's data, the space
    that all need together, and warnings. Raises an OctaneError with a line for each problem of any
    subject. A problem of all subjects is given once, unless it is in the cells of their rows.
    """
    subjects = run.subjects()
    plans, contents, claims = list[SubjectPlan](), list[PlanContent](), list[Claim]()
    problems: dict[str, list[str]] = {}
    cells: set[str] = set()
    is_chosen_alone = run.parameters.get("channels") in (None, "")
    for subject in subjects:
        files, lines = dict(subject.files), [*subject.problems]
        with collecting(lines):
            given = {**run.parameters, **subject.parameters, "subject": subject.name, "input": None}
            if "input" not in files:
                require_scratch(settings_of(given).workflow.scratch_dir)
            elif run.is_stub:
                contents.append(stub_plan(subject.name, settings_of(given), files))
            else:
                others = {name: path for name, path in files.items() if name != "input"}
                plan = plan_of(given, files["input"], others)
                contents.append(plan.content(files, is_chosen_alone=is_chosen_alone))
                plans.append(plan)
                lines += [
                    plan.idle_flags[flag] for flag in subject.parameters if flag in plan.idle_flags
                ]
        if run.is_published and not lines:
            with collecting(lines):
                claims.append(claim_folder(run, subject, contents[-1]))
        row = f" ({subject.row})" if subject.row else ""
        for line in dict.fromkeys(lines):
            problems.setdefault(line, []).append(f"{subject.name}{row}: ")
            if line.partition(" ")[0].removeprefix("--") in subject.parameters:
                cells.add(line)
    if len(plans) == len(subjects):
        # What the run gives to all may serve some of them only.
        for flag in plans[0].idle_flags:
            if all(flag in plan.idle_flags for plan in plans):
                for plan in plans:
                    problems.setdefault(plan.idle_flags[flag], [f"{plan.subject}: "])
    if problems:
        lines_of_all = [
            f"{name}{line}"
            for line, names in problems.items()
            for name in (names if line in cells or len(names) < len(subjects) else [""])
        ]
        raise InputError("\n".join(_shorten(lines_of_all)))
    notes = _notes(run, plans) if plans else []
    for claim in claims:
        if claim.earlier:
            notes.append(
                f"Warning: {claim.folder} is emptied: it has the results of another input, "
                f"{claim.earlier}."
            )
        claim.take()
    command = stable_command(run.command)
    return {
        "plans": [{**content.as_json(run.work), "command": command} for content in contents]
    } | {"notes": notes}


def _notes(run: Run, plans: Sequence[SubjectPlan]) -> list[str]:
    """The size of each subject's data, the space that all need together, and warnings."""
    warnings = [
        f"Warning: {plan.subject}: {text}"
        for plan in plans
        for text in [*plan.remarks, *plan.layout.warnings()]
    ]
    name = plans[0].subject if len(plans) == 1 else f"{len(plans)} subjects"
    channels = [steps for plan in plans for steps in plan.bytes()]
    workflow = plans[0].layout.settings.workflow
    about = [f"{plan.subject}: {plan.about()}" for plan in plans]
    about += [
        f"{plan.subject}: {decision.sentence}" for plan in plans for decision in plan.decisions
    ]
    space = check_space(channels, name, run.work, workflow, is_resumed=run.is_resumed)
    return [*about, *space, *warnings]


def _require_no_mosaic(volume: Volume) -> None:
    """Raise if a volume's chunks are not tiles although --overlap or --positions is given."""
    if not isinstance(volume, Image) or "kind" in volume.attributes:
        return
    if volume.chunks[1:] != volume.grid.shape[1:]:
        MosaicGrid.of(volume)


def _shorten(lines: Sequence[str]) -> list[str]:
    """Shorten lines: of those that differ only in names and numbers, the first and their count."""
    plain = [re.sub(r"'.*?'|\d+", "", line) for line in lines]
    kinds = [" ".join(word for word in line.split() if "/" not in word) for line in plain]
    counts, so_far, kept = Counter(kinds), Counter[str](), list[str]()
    for line, kind in zip(lines, kinds, strict=True):
        so_far[kind] += 1
        if so_far[kind] <= MOST_EXAMPLES:
            kept.append(line)
        if so_far[kind] == MOST_EXAMPLES < counts[kind]:
            kept.append(f"({counts[kind] - MOST_EXAMPLES} more like the last one)")
    return kept


def plan_of(
    given: Mapping[str, object], source: Path, other_files: Mapping[str, Path]
) -> SubjectPlan:
    """Plan one subject from its workflow parameters, its input and its other files.

    Raises an OctaneError with a line for each problem.
    """
    settings = settings_of(given)
    problems: list[str] = []
    with collecting(problems):
        require_scratch(settings.workflow.scratch_dir)
    inputs: Inputs | None = None
    with collecting(problems):
        inputs = open_inputs(source, settings, other_files, problems)
    problems += filter(None, [unfit_name(str(settings.workflow.subject))])
    if inputs is None or not inputs.volumes:
        raise InputError("\n".join(problems))
    return plan_inputs(inputs, settings, other_files, problems)


def plan_inputs(
    inputs: Inputs,
    settings: Settings,
    other_files: Mapping[str, Path],
    problems: Sequence[str] = (),
) -> SubjectPlan:
    """Plan one subject whose inputs are opened, unless that or the rest has ``problems``.

    Raises an OctaneError with a line for each.
    """
    with TemporaryDirectory() as scratch:
        positions = Path(scratch) / "positions.csv"
        return _plan(inputs, settings, dict(other_files), [*problems], positions)


def _plan(
    inputs: Inputs,
    settings: Settings,
    other_files: dict[str, Path],
    problems: list[str],
    positions: Path,
) -> SubjectPlan:
    """Plan one subject; ``stated`` is where to write places that the files of tiles state."""
    source, kind, volumes, tiles = inputs.source, inputs.kind, inputs.volumes, inputs.tiles
    chosen_settings = inputs.settings
    settings = settings.model_copy(
        update={"mosaic": chosen_settings.mosaic, "input": chosen_settings.input}
    )
    if chooses_channels(chosen_settings):
        chosen = {"channels": chosen_settings.workflow.channels}
        workflow = settings.workflow.model_copy(update=chosen)
        settings = settings.model_copy(update={"workflow": workflow})
    channels: list[Channel] = []
    if tiles is not None:
        channels = choose_channels(tiles.folder, tiles.channels, settings)
        if "positions" in other_files:
            tiles = replace(tiles, source=str(other_files["positions"]))
        elif tiles.source:
            (reference,) = (tiles.of_channel(c.index) for c in channels if c.is_reference)
            write_positions(positions, reference.sections)
            other_files["positions"] = positions
    table = None if other_files.get("positions") == positions else other_files.get("positions")
    is_placed = kind != "mosaic" or table is not None
    is_compared = "truth" in other_files
    settings = without_decisions(settings, is_placed=is_placed, is_compared=is_compared)
    workflow, decisions = settings.workflow, [*inputs.decisions]
    if workflow.until and kind != "mosaic":
        what = "is one volume" if kind == "volume" else "holds stitched sections"
        problems.append(f"--until stitch has nothing to stitch: {source} {what}; omit it.")
    with collecting(problems):
        has_places = "positions" in other_files or settings.stitch.overlap is not None
        if kind == "volume" and has_places and workflow.input_kind == "auto":
            _require_no_mosaic(volumes[0])
        settings = _derive_settings(settings, kind, inputs.left_out, tiles)
        if kind != "volume":
            with collecting(problems):
                require_surfaces([] if kind == "mosaic" else volumes, settings.stack)
        if kind == "mosaic" and not (has_places or problems):
            settings, measured = _measure_overlap(settings, inputs, problems)
            decisions += measured
        _check_volumes(volumes, kind, settings, other_files, inputs.unopened, problems)
        if tiles is None:
            with collecting(problems):
                channels = _open_channels(volumes, kind, settings, problems)
    by_channel: list[tuple[Channel, list[Input]]] = []
    if tiles is None:
        items: list[Input] = [
            {"id": bare_name(path), "file": "" if path == source else path.name}
            for path in inputs.files
        ]
        by_channel = [(channel, items) for channel in channels]
    else:
        with collecting(problems):
            by_channel = [
                (channel, [item_of(section, acquisition) for section in acquisition.sections])
                for channel in channels
                for acquisition in [tiles.of_channel(channel.index)]
            ]
        problems = [line.replace(str(positions), tiles.source) for line in problems]
    if problems:
        raise InputError("\n".join(problems))
    layout = lay_out_subject(
        volumes, kind, settings, other_files.get("positions"), from_tiles=tiles is not None
    )
    layout = with_thickness(layout, other_files)
    if chooses_channels(settings) and not layout.bytes():
        raise InputError(
            f"{source}: --channels joins the volumes that steps write, and all of them are "
            "skipped; omit --skip_pyramid or --skip_n4."
        )
    if "displacements" in other_files:
        # STACK reads them again; here wrong rows are refused before any work.
        table_displacements(
            other_files["displacements"], layout.slabs, layout.volume, settings.stack
        )
        table_thicknesses(other_files["displacements"], layout.slabs)
    if not workflow.skip_n4:
        _check_companions(other_files, layout)
    if kind == "mosaic":
        for _, items in by_channel:
            _give_rows(items, volumes, other_files)
    subject = str(workflow.subject)
    remarks = warn_reference(channels, kind, settings)
    idle = idle_flags_in_run(source, layout, tiles, table)
    if tiles is None:
        about, compares_tiles = "", True
    else:
        about = f" {tiles.about()}"
        compares_tiles = table is None or not is_against(table, tiles.sections)
        remarks = [*tiles.remarks, *remarks]
    return SubjectPlan(
        *(subject, by_channel, layout, about, remarks, compares_tiles, idle),
        *([*other_files], decisions),
    )


def _measure_overlap(
    settings: Settings, inputs: Inputs, problems: list[str]
) -> tuple[Settings, list[Decision]]:
    """Measure how the tiles of mosaics, or those in files, overlap if they do not state it.

    What hinders is added to ``problems``; then tiles abut, for further checks.
    """
    images = [volume for volume in inputs.volumes if isinstance(volume, Image)]
    stitch, decisions = ABUTTING, list[Decision]()
    with collecting(problems):
        if inputs.tiles is None and any(MosaicGrid.of(image).pitch for image in images):
            return settings, []
        if settings.workflow.as_stated:
            raise InputError(
                f"The tiles in {inputs.source} do not state how they overlap; give --overlap ("
                "fraction of a tile, 0 if they abut) or --positions, or omit --as_stated."
            )
        sections = sections_of_mosaics(images) if inputs.tiles is None else inputs.sections
        overlap, decision = decide_overlap(str(inputs.source), sections)
        stitch = settings.stitch.model_copy(update={"overlap": overlap})
        decisions += filter(None, [decision])
    return settings.model_copy(update={"stitch": stitch}), decisions


def _give_rows(
    items: Sequence[Input], volumes: Sequence[Volume], other_files: Mapping[str, Path]
) -> None:
    """Give each item its section's rows of the user's tables, on which alone its tasks depend."""
    names = [name for name in TILE_TABLES if name in other_files]
    tables = {name: split_sections(other_files[name], TILE_TABLES[name]) for name in names}
    for item, volume in zip(items, volumes, strict=True):
        number = number_or_first(volume)
        item["tables"] = {name: tables[name][number] for name in names}


def _open_channels(
    volumes: Sequence[Volume], kind: str, settings: Settings, problems: list[str]
) -> list[Channel]:
    """The channels of a subject, of which others than the reference are opened and checked.

    Raises an InputError if its inputs do not all have the same ones.
    """
    first = volumes[0]
    for volume in volumes:
        if [*volume.channels] != [*first.channels]:
            lists = [", ".join(v.channels) or "one without a name" for v in (volume, first)]
            raise InputError(
                f"{volume.path} has the channels {lists[0]}, but {first.path} has {lists[1]}; give "
                "all inputs of a subject the same channels in one order."
            )
    channels = []
    for channel in choose_channels(first.path, first.channels, settings):
        volumes_of_channel = (
            [first] if channel.is_reference else _open_channel(volumes, channel, settings, problems)
        )
        # A store of octane states the kinds of its channels.
        is_stated = channel.is_nearest or any(
            is_nearest(volume.attributes) for volume in volumes_of_channel
        )
        channels.append(replace(channel, is_nearest=is_stated))
    # Nothing of a volume is measured but the tissue.
    needed = kind != "volume" or masks_tissue(settings)
    return [channel for channel in channels if channel.is_written or needed]


def _open_channel(
    volumes: Sequence[Volume], channel: Channel, settings: Settings, problems: list[str]
) -> list[Volume]:
    """Open another channel of the inputs, and check that they hold its voxels."""
    reading = channel.settings(settings).input

    def open_volume_of(path: Path) -> Volume:
        volume = open_volume(path, reading)
        _require_chunks(volume)
        return volume

    paths = {volume.path: volume.path for volume in volumes}
    return run_in_threads(f"checking channel {channel.choice}", paths, open_volume_of, problems)


def _derive_settings(
    settings: Settings, kind: str, left_out: Sequence[int], tiles: Acquisition | None
) -> Settings:
    """Settings with what follows from the inputs."""
    layout = {"layout": "volume" if kind == "volume" else "mosaic"}
    grid = {} if tiles is None else {"rows": tiles.grid.rows, "columns": tiles.grid.columns}
    changes = {
        "mosaic": settings.mosaic.model_copy(update=grid),
        "resample": settings.resample.model_copy(update=layout),
        "stack": settings.stack.model_copy(
            update={"excluded_sections": as_ranges(left_out) or None}
        ),
    }
    return settings.model_copy(update=changes)


def _check_volumes(
    volumes: list[Volume],
    kind: str,
    settings: Settings,
    other_files: Mapping[str, Path],
    unopened: Collection[int | None],
    problems: list[str],
) -> None:
    """Check everything that metadata can tell about the inputs of a subject.

    ``unopened`` are the numbers of those that are left out or cannot be opened.
    """
    run_in_threads(
        "checking",
        {volume.path: volume for volume in volumes},
        lambda volume: _check_volume(volume, kind, settings, other_files),
        problems,
    )
    if kind == "volume":
        if "displacements" in other_files:
            problems.append(
                f"--displacements moves sections, and {volumes[0].path} is one volume; omit it."
            )
        if settings.stack.flips:
            problems.append(
                f"--flip_sections flips sections, and {volumes[0].path} is one volume; omit it."
            )
        return
    workflow = settings.workflow
    if "truth" in other_files and not workflow.skip_n4:
        moving = {
            "stack_align": settings.stack.align != "none",
            "section_surface": settings.stack.section_surface != 0,
            "section_thickness": settings.stack.section_thickness == AUTO,
            "displacements": "displacements" in other_files,
            "flip_sections": bool(settings.stack.flips),
        }
        problems += [
            f"--phantom compares with sections where they were imaged, and --{name} moves them; "
            "omit one of the two."
            for name, is_on in moving.items()
            if is_on
        ]
    is_compensated = settings.stitch.attenuation != "none"
    if kind == "mosaic" and is_compensated and settings.stack.section_thickness == AUTO:
        problems.append(
            "--section_thickness auto compares the light of deep planes, which "
            "--stitch_attenuation changes; omit one, or give the --displacements of a run without "
            "it."
        )
    coefficients = settings.stitch.attenuation == "coefficient"
    if kind == "mosaic" and coefficients and not workflow.skip_n4:
        problems.append(
            "--stitch_attenuation coefficient makes a volume in 1/mm, whose values N4 would "
            "change; give --skip_n4 as well."
        )
    with collecting(problems):
        sections_by_number(volumes, settings.stack.allow_missing_sections, unopened)
    with collecting(problems):
        _require_same_numbers(volumes, workflow)
        known = {*map(number_or_first, volumes), *unopened}
        for name, columns in TILE_TABLES.items() if kind == "mosaic" else ():
            if name in other_files:
                require_sections(other_files[name], known, columns)
    voxels = [(v.path, v.grid.spacing, v.dtype) for v in volumes]
    # As STACK gets them.
    if kind == "mosaic" and settings.resample.resolution is not None:
        target, dtype = vector(*settings.resample.resolution), settings.resample.dtype
        voxels = [(v.path, target, output_type(dtype, v.dtype)) for v in volumes]
    with collecting(problems):
        require_alike(voxels)
    with collecting(problems):
        require_one_orientation(volumes)


def _require_same_numbers(volumes: Sequence[Volume], workflow: WorkflowParameters) -> None:
    """Raise if sections were chosen by names whose numbers differ from those in the metadata."""
    if workflow.only_sections is None and workflow.exclude_sections is None:
        return
    for volume in volumes:
        by_name, by_metadata = section_number(volume.path.name), number_of(volume)
        if by_name != by_metadata:
            raise InputError(
                f"{volume.path} is section {by_name} by its name, by which sections are chosen, "
                f"but {by_metadata} by its metadata; rename it."
            )


def _check_volume(
    volume: Volume, kind: str, settings: Settings, other_files: Mapping[str, Path]
) -> None:
    workflow, resample = settings.workflow, settings.resample
    spacing = volume.grid.spacing
    if needs_resample(kind, settings):
        spacing = target_voxel_size(volume, resample)
    # A stored spacing that went through millimetres may be off in its last digits.
    elif resample.resolution is not None and not np.allclose(
        resample.resolution, spacing, rtol=1e-6
    ):
        raise InputError(
            f"{volume.path} is a section, which is not resampled, and its voxels differ from "
            "--resolution; omit it, or give the mosaics."
        )
    if kind == "mosaic":
        tiling, placement = lay_out_mosaic(volume, settings, other_files.get("positions"))
        stitch = applicable_parameters(settings.stitch, volume, is_placed=False)
        if stitch.attenuation != "none":
            dtype = resample.dtype if needs_resample(kind, settings) else "input"
            stitch_dtype = output_type(dtype, volume.dtype)
            require_compensable(str(volume.path), stitch_dtype, tiling.shape[0])
        files = {name: other_files.get(f"stitch_{name}") for name in ("flat_field", "gain")}
        given = {name: str(path) for name, path in files.items() if path is not None}
        stitch = stitch.model_copy(update=given)
        # A flat field is compared with tiles in pixels of the source.
        given_flat_field(volume, MosaicGrid.of(volume), placement, stitch)
        given_gains(volume, tiling, stitch)
    _require_chunks(volume)
    if not workflow.skip_n4 and volume.dtype.kind not in "fiu":
        raise InputError(
            f"{volume.path} holds {volume.dtype} voxels and N4 needs real intensities; give "
            "their modulus, or --skip_n4."
        )
    # Other kinds are stacked first, and STACK records where their sections begin.
    if kind == "volume" and not workflow.skip_n4:
        planes = samples(volume.grid.extent[0], spacing[0])
        sections_of(volume, settings.n4, planes)
    if not workflow.skip_pyramid:
        steps_of(spacing, settings.pyramid.resolutions)


def _require_chunks(volume: Volume) -> None:
    """Raise if chunks are missing; even where they may be, this finds those that are not files."""
    if not isinstance(volume, Image) or not (missing := volume.missing_chunks()):
        return
    volume.require_any_chunk()
    if volume.missing == "error":
        least = "at least " if len(missing) == 1000 else ""
        more = f" and {least}{len(missing) - 1} more" if len(missing) > 1 else ""
        raise InputError(
            f"{volume.path}: chunk {missing[0]}{more} missing; restore it, or give "
            "--missing_chunks fill if empty chunks were left out on purpose."
        )


def _check_companions(other_files: Mapping[str, Path], layout: SubjectLayout) -> None:
    """Mask and truth must lie on the grid of the volume that N4 gets."""
    volume, settings, kind = layout.inputs[0], layout.settings, layout.kind
    name = f"{volume.path} after RESAMPLE" if settings.resample.resolution is not None else None
    if kind != "volume":
        name = "the volume that STACK makes (with --skip_n4 a run ends with it)"
    if name is not None:
        grid, mask = layout.volume, other_files.get("n4_mask")
        if kind != "volume" and mask is not None:
            grid = _grid_of_mask(
                grid, layout, "displacements" in other_files, open_volume(mask, None, grid)
            )
        voxels = np.broadcast_to(np.zeros(1, volume.dtype), grid.shape)
        attributes: Attributes = {"orientation": stated_orientation(volume.attributes)}
        volume = ArrayVolume(Path(name), voxels, grid, attributes)
    open_companions(volume, other_files.get("n4_mask"), truth=other_files.get("truth"))


def _grid_of_mask(grid: Grid, layout: SubjectLayout, is_moved: bool, mask: Volume) -> Grid:
    """The volume's grid, with the mask's extent where only STITCH and STACK measure it."""
    if not np.allclose(mask.grid.spacing, grid.spacing):
        return grid
    stack, refine, mask_grid = layout.settings.stack, layout.settings.stitch.refine, mask.grid
    is_cut = stack.section_surface == AUTO
    is_cut_deep = is_cut and any(slab.thickness_from == BY_DEPTH for slab in layout.slabs)
    is_wide = is_moved or stack.align != "none" or (layout.kind == "mosaic" and bool(refine))
    planes = mask_grid.shape[0] if is_cut_deep or stack.section_thickness == AUTO else grid.shape[0]
    top = mask_grid.origin[0] if is_cut else grid.origin[0]
    across = mask_grid if is_wide else grid
    return Grid((planes, *across.shape[1:]), grid.spacing, vector(top, *across.origin[1:]))
