"""Config of a new subject: its input as PREFLIGHT finds it, and what is still to be decided.

Nothing is guessed. Settings that the data do not determine stay comments. PREFLIGHT's own
sentences at the head of the config say which of them the run needs.
"""

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import join, split

from octane.config.types import NEAREST
from octane.config.validation import unfit_name, unlinkable
from octane.core.errors import InputError
from octane.core.files import require_free, writing
from octane.core.geometry import spelled
from octane.core.records import Decision
from octane.layout.mosaic import position_rows
from octane.processes.mosaic.parameters import TileParameters
from octane.processes.preflight.opening import Inputs, open_inputs
from octane.processes.preflight.parameters import Settings
from octane.processes.preflight.plan import idle_flags
from octane.processes.preflight.reference import NOT_AVERAGED
from octane.processes.preflight.schema import as_plain, settings_of
from octane.processes.preflight.step import plan_inputs
from octane.processes.preflight.subject import ABUTTING, SubjectLayout, lay_out_subject
from octane.processes.stack.layout.stack import describe_thickness
from octane.processes.stack.record import BY_DEPTH
from octane.store.channels import ALL, channel_names
from octane.tools.new_subject.parameters import SubjectOverrides
from octane.tools.new_subject.subject import Setting, config_text

logger = logging.getLogger(__name__)

PROJECT = Path(__file__).resolve().parents[4]
VOXEL_SIZES = (10, 25, 50, 100)
"""Voxel sizes to suggest: the first that is not finer than the data."""
LAST_COMMENT = "What is a comment has the default that it shows. The command line wins."


def write_subject(
    data: Path,
    name: str | None = None,
    overrides: SubjectOverrides | None = None,
    tiles: TileParameters | None = None,
    *,
    config: Path | None = None,
    project: Path = PROJECT,
    overwrite: bool = False,
) -> tuple[Path, str]:
    """Write the config of a subject, and return its path and the command that runs it.

    The config is ``conf/subjects/NAME.config`` in the project unless ``config`` names another file.
    If the data or the name cannot be used, or the config exists, nothing is written.
    """
    # Links are kept as given: a folder of links may point to other data later.
    source = Path(os.path.abspath(data))  # noqa: PTH100
    name = name or source.name.split(".")[0]
    written = config or project / "conf" / "subjects" / f"{name}.config"
    if problem := unfit_name(name) or unlinkable(source):
        raise InputError(problem)
    require_free(written, overwrite=overwrite)
    about, settings = describe_subject(
        name, source, overrides or SubjectOverrides(), tiles or TileParameters()
    )
    call = join(["nextflow", "run", str(project / "main.nf"), "-c", str(written.absolute())])
    remedy = "give --config FILE to write the config elsewhere"
    with writing(written, overwrite=overwrite, remedy=remedy) as partial:
        head = [f"Subject {name}. Run with: {call}", *about, LAST_COMMENT]
        partial.write_text(config_text(head, settings), encoding="utf-8")
    for line in about:
        logger.info("%s", line)
    for parameter, setting in settings.items():
        if setting.origin and not setting.stated:
            logger.info("%s: %s", parameter, " ".join(setting.origin))
    return written, call


def describe_subject(
    name: str, source: Path, overrides: SubjectOverrides, tiles: TileParameters
) -> tuple[list[str], dict[str, Setting]]:
    """Sentences on a subject's data, and the settings that they or the user determine.

    Raises an OctaneError with a line for each reason why the data cannot be used.
    """
    settings = _stated_settings(name, source, overrides, tiles)
    problems: list[str] = []
    tables = {} if tiles.table is None else {"tile_table": tiles.table}
    inputs = open_inputs(source, _as_run(settings), tables, problems)
    problems += idle_flags(source, inputs.kind, tiles, overrides.overlap, inputs.tiles).values()
    if problems:
        raise InputError("\n".join(problems))
    other_files: dict[str, Path] = {}
    if inputs.tiles is not None:
        sentences = [] if tiles.pattern is not None else ["Found in the names of the files."]
        settings["tile_pattern"] = Setting(inputs.tiles.pattern.text, sentences)
    elif (
        inputs.kind == "mosaic" and overrides.overlap is None and (table := _find_positions(source))
    ):
        other_files["positions"] = table
        settings["positions"] = Setting(str(table), ["Found next to the data."])
    if overrides.resolution is None:
        settings["resolution"] = _resolution(inputs)
    layout, decisions, undecided = _plan_layout(inputs, _as_run(settings), other_files)
    for decision in decisions:
        words = split(decision.flag)
        for flag, value in zip(words[::2], words[1::2], strict=True):
            settings[flag.removeprefix("--")] = Setting(value, [f"Measured: {decision.evidence}."])
    if any(slab.thickness_from == BY_DEPTH for slab in layout.slabs):
        sentence = "Set the thickness that was cut from one section to the next."
        thickness = describe_thickness(layout.slabs)
        settings["section_thickness"] = Setting(None, [thickness, sentence], False)
    about = [layout.about(), *layout.warnings()]
    if inputs.tiles is not None:
        about += [inputs.tiles.about(), *inputs.tiles.remarks]
    about += [f"To decide before the run: {line}" for line in undecided]
    return about, _channels(inputs.channels) | settings


def results_folder(data: Path, given: Path | None = None) -> Path:
    """Folder of the results: as given, else in the current folder or next to data around it."""
    folder = Path(os.path.abspath(given or "results"))  # noqa: PTH100
    source = data.resolve()
    if given is None and folder.resolve().is_relative_to(source):
        return source.parent / ("octane" if source.name == folder.name else folder.name)
    return folder


def _stated_settings(
    name: str, source: Path, overrides: SubjectOverrides, tiles: TileParameters
) -> dict[str, Setting]:
    """Settings that do not depend on the data."""
    outdir = results_folder(source, overrides.outdir)
    stated = overrides.model_dump(exclude={"outdir"}, exclude_defaults=True)
    stated |= {tiles.prefix + k: v for k, v in tiles.model_dump(exclude_defaults=True).items()}
    if tiles.table is not None:
        # A config may be used in any folder.
        stated["tile_table"] = os.path.abspath(tiles.table)  # noqa: PTH100
    return {
        "subject": Setting(name),
        "input": Setting(str(source)),
        "outdir": Setting(str(outdir), [f"The results are in {outdir / name}."]),
        **{parameter: Setting(value) for parameter, value in stated.items()},
    }


def _as_run(settings: Mapping[str, Setting]) -> Settings:
    """Settings of each step in a run with this config."""
    stated = {name: as_plain(setting.value) for name, setting in settings.items() if setting.stated}
    return settings_of(stated)


def _plan_layout(
    inputs: Inputs, settings: Settings, other_files: Mapping[str, Path]
) -> tuple[SubjectLayout, Sequence[Decision], list[str]]:
    """Layout of a subject, what its data decided, and what PREFLIGHT says is missing for a run.

    If anything is, tiles are laid out side by side, and missing sections as blanks.
    """
    try:
        plan = plan_inputs(inputs, settings, other_files)
        return plan.layout, plan.decisions, []
    except InputError as error:
        undecided = str(error).splitlines()
    changes = {
        "stitch": ABUTTING,
        "stack": settings.stack.model_copy(update={"allow_missing_sections": sys.maxsize}),
    }
    side_by_side = settings.model_copy(update=changes)
    is_planned = inputs.tiles is not None
    layout = lay_out_subject(inputs.volumes, inputs.kind, side_by_side, from_tiles=is_planned)
    return layout, inputs.decisions, undecided


def _find_positions(source: Path) -> Path | None:
    """Find a table of positions in the folder of the data, or next to it."""
    for table in (source / "positions.csv", source.parent / "positions.csv"):
        if table.is_file():
            position_rows(table)
            return table
    return None


def _resolution(inputs: Inputs) -> Setting:
    """Suggest a voxel size, which only mosaics need."""
    sizes = [volume.grid.spacing for volume in inputs.volumes]
    voxels = " or ".join(dict.fromkeys(spelled(size) for size in sizes))
    have = f"The voxels are {voxels} micrometre."
    suggested = next((level for level in VOXEL_SIZES if level >= max(map(max, sizes))), None)
    if inputs.kind != "mosaic" or suggested is None:
        return Setting(suggested, [f"{have} They stay as they are unless you set this."], False)
    reason = "the first of the pyramid's sizes that is not finer"
    return Setting(suggested, [f"{have} Suggested: {suggested}, {reason}."])


def _channels(labels: Sequence[str]) -> dict[str, Setting]:
    """Suggest to write all channels of the data, and not to average those that look like angles."""
    if len(labels) == 1:
        return {}
    names = channel_names(labels, len(labels))
    listed_names = ", ".join(f"{number} '{name}'" for number, name in enumerate(names))
    sentence = (
        f"The data have the channels {listed_names}. The result has only the measured one, "
        "--channel. Remove the slashes to write all, with what is measured on it applied to each."
    )
    settings = {"channels": Setting(ALL, [sentence], False)}
    if doubtful := [name for name in names if NOT_AVERAGED.search(name)]:
        quoted = " and ".join(f"'{name}'" for name in doubtful)
        kinds = " ".join(f"{name}={NEAREST}" for name in doubtful)
        question = f"By the name, {quoted} may hold angles or labels. If so, remove the slashes."
        settings["channel_kind"] = Setting(kinds, [question], False)
    return settings
