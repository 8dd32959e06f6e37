"""Parameters of the workflow: its own, and those of all processes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Annotated, ClassVar, Literal, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict
from pydantic.fields import FieldInfo

from octane.config.parameters import (
    ExecutionParameters,
    InputParameters,
    LeaseParameters,
    StepParameters,
    parameter,
)
from octane.config.types import Codec, SectionNumbers, Switch, Text, or_none
from octane.config.validation import read_scratch
from octane.processes.mosaic.parameters import TileParameters
from octane.processes.n4.parameters import N4Parameters
from octane.processes.pyramid.parameters import PyramidParameters
from octane.processes.resample.parameters import ResampleParameters
from octane.processes.stack.parameters import StackParameters
from octane.processes.stitch.parameters import StitchParameters


def _join_names(value: object) -> object:
    """Join a list of names with commas."""
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else value


def _read_help(value: object) -> object:
    """Read a switch, or 'all'."""
    text = str(value).strip().lower()
    if text not in ("true", "false", "all"):
        raise ValueError("write true, false or all")
    return text if text == "all" else text == "true"


class WorkflowParameters(StepParameters):
    """Input, output, steps and resources of a run."""

    title: ClassVar[str] = "Workflow"
    needed: ClassVar[str] = "What to run, on what, and where the results go: for every run."
    per_subject: ClassVar[bool] = False
    input: Path | None = parameter(
        None,
        "A folder of tiles in files, of mosaic grids or of sections (one OME-Zarr each), one "
        "mosaic, or one volume.",
        per_subject=True,
        shown=True,
    )
    samplesheet: Path | None = parameter(
        None,
        "CSV table of a cohort, instead of --input: one row per subject, with the columns subject, "
        "input and any parameters that differ.",
        shown=True,
    )
    outdir: Path = parameter(
        Path("results"), "Folder for the results; created if missing.", shown=True
    )
    subject: str | None = parameter(
        None,
        "Name of the subject; unset: the name of the input. In a params file, quote a name of "
        "digits.",
        per_subject=True,
        shown=True,
    )
    input_kind: Literal["auto", "mosaic", "section", "volume"] = parameter(
        "auto",
        "Kind of the input. auto: as octane's own metadata state. Without them, a folder of "
        "stores holds mosaics, and a single store is a mosaic if its chunks span the full Z. "
        "Tiles in files count as mosaics.",
        per_subject=True,
    )
    channels: Annotated[Text | None, BeforeValidator(_join_names)] = parameter(
        None,
        "Channels in the results: all, or numbers or names, such as '0 2' or 'GFP, slow axis'. "
        "Tiles and sections of each lie where those of --channel do. Unset: only --channel, or if "
        "that is unset, all whose names suggest neither angles nor labels.",
        per_subject=True,
        shown=True,
    )
    as_stated: bool = parameter(
        False,
        "Decide nothing by the data: places of tiles and sections, and thicknesses, are as stated. "
        "Without it, the report lists what was decided, with the flags that state it.",
        per_subject=True,
        shown=True,
    )
    positions: Path | None = parameter(
        None,
        "CSV of tile positions: columns section, row, column, y, x and optionally z (of the tile's "
        "first edge, in micrometres). Replaces the overlap.",
        per_subject=True,
    )
    displacements: Path | None = parameter(
        None,
        "CSV of section displacements for STACK to undo, such as SUBJECT_displacements.csv of an "
        "earlier run. Columns: section, y, x (micrometres) and rotation (degrees). Sections "
        "without a row, or with empty cells, are measured. A column thickness (micrometres) "
        "replaces --section_thickness where it has a value.",
        per_subject=True,
    )
    exclude_sections: SectionNumbers = parameter(
        None,
        "Numbers of sections to leave out, such as '7 12-14'. Those between others become blank "
        "slabs; --allow_missing_sections need not count them.",
        per_subject=True,
    )
    only_sections: SectionNumbers = parameter(
        None,
        "Numbers of the sections to use, such as '3-5', to try parameters on a few; all others are "
        "left out.",
        per_subject=True,
    )
    phantom: Switch = parameter(False, "Make a phantom and run on it, instead of --input.")
    codec: Codec = parameter("zstd", "Compression of the results.", per_subject=True)
    until: Annotated[Literal["stitch"] | None, BeforeValidator(or_none)] = parameter(
        None,
        "End the run after this step: stitch, to see sections before all are there. A later run "
        "with -resume goes on from it.",
    )
    skip_n4: Switch = parameter(False, "Skip N4; the volume goes on unchanged.", shown=True)
    skip_pyramid: Switch = parameter(False, "Skip PYRAMID; the volume keeps a single resolution.")
    skip_report: Switch = parameter(False, "Skip the reports.")
    keep_going: Switch = parameter(
        False,
        "If a task still fails after its retries, drop only its subject: the run goes on with the "
        "others, and ends with exit code 1. Without it the entire run stops.",
        shown=True,
    )
    save_bias_field: Switch = parameter(
        False, "Also publish the multiplicative bias field at full resolution."
    )
    overwrite_subject: Switch = parameter(
        False,
        "Replace the results of another input under the same subject name: the subject's folder "
        "in outdir is emptied first. Without it such a run is refused.",
    )
    publish_dir_mode: Literal["symlink", "copy"] = parameter(
        "symlink",
        "How results appear in outdir: as links into the work directory, or as copies.",
        shown=True,
    )
    keep_intermediates: Switch = parameter(
        True,
        "Keep mosaics, sections and stacks in the work directory. With false, each is emptied once "
        "all steps that read it have ended.",
    )
    scratch_dir: Annotated[bool | str, BeforeValidator(read_scratch)] = parameter(
        False,
        "Where tasks run. false: the work directory; true: the node's TMPDIR; or a path. The path "
        "must exist, or end in / for tasks to create it; variables such as '$SLURM_TMPDIR' are "
        "allowed. Use a scratch folder if the work directory is on a slow network file system.",
        shown=True,
    )
    gpu_count: int = parameter(
        0,
        "GPUs of this machine; at most gpu_count x gpu_slots tasks use them at a time. 0: no "
        "limit, for machines without GPUs. Ignored on Slurm, which allocates GPUs itself.",
        ge=0,
        le=9999,
        shown=True,
    )
    slurm_queue: str | None = parameter(
        None, "Partition for the jobs of -profile slurm; unset: the cluster's default."
    )
    slurm_options: str | None = parameter(
        None,
        "Further options of sbatch for every job of -profile slurm, such as '--account=lab "
        "--qos=normal'; GPU jobs also get --gres.",
    )
    help: Annotated[bool | str, BeforeValidator(_read_help)] = parameter(
        False, "Print these parameters and stop; all: every parameter.", shown=True
    )


class Settings(BaseModel):
    """Parameters of all steps."""

    model_config = ConfigDict(frozen=True, defer_build=True)
    workflow: WorkflowParameters
    input: InputParameters
    execution: ExecutionParameters
    lease: LeaseParameters
    mosaic: TileParameters
    resample: ResampleParameters
    stitch: StitchParameters
    stack: StackParameters
    n4: N4Parameters
    pyramid: PyramidParameters


STEPS = cast(
    "dict[str, type[StepParameters]]",
    {name: info.annotation for name, info in Settings.model_fields.items()},
)


@dataclass(frozen=True)
class Entry:
    """One parameter of the workflow, with its step and its field.

    With ``per_subject`` it may be a samplesheet column. ``--help`` has it if it is ``shown``.
    """

    name: str
    step: str
    field: str
    info: FieldInfo
    default: object
    unit: str | None
    per_subject: bool
    shown: bool


def entries() -> Iterator[Entry]:
    """Iterate over the parameters of the workflow, in order."""
    for step, model in STEPS.items():
        for field, info in model.model_fields.items():
            stated = cast("Mapping[str, str | None]", info.json_schema_extra)
            if name := model.workflow_name(field):
                default = stated.get("workflow_default", info.default)
                per_subject = bool(stated.get("per_subject", model.per_subject))
                unit, shown = stated.get("unit"), bool(stated.get("shown"))
                yield Entry(name, step, field, info, default, unit, per_subject, shown)


def by_step() -> Iterator[tuple[str, type[StepParameters], list[Entry]]]:
    """Iterate over the steps with their models and parameters, in order."""
    for step, group in groupby(entries(), key=lambda entry: entry.step):
        yield step, STEPS[step], [*group]
