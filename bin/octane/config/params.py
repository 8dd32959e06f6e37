"""The one definition of every parameter: name, type, unit, default, range and help.

One model per step. From these come the flags and ``--help`` of each command, the validation in
PREFLIGHT, the JSON that the workflow hands to a step, ``conf/params.config``,
``nextflow_schema.json`` and ``docs/parameters.md`` (see :mod:`octane.config.schema`). Each
description says when to change the value.

In the workflow a field carries its step's prefix (``n4_strength``) unless it names another
(``workflow=``); ``workflow=None`` keeps a field out of the workflow.

A parameter acts per subject, and may be a column of a samplesheet, where its model or the field
itself says so (``per_subject``); the others are read once for the whole run.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, ClassVar, Literal, cast

import cyclopts
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.fields import FieldInfo

from octane.config.defaults import AUTO_TIMEOUT
from octane.config.scratch import read_scratch
from octane.core.units import bytes_of

Unit = Literal["nanometer", "micrometer", "millimeter", "centimeter", "meter"]
DType = Literal["input", "uint8", "uint16", "int16", "float32", "float64"]
Codec = Literal["zstd", "blosc-lz4", "none"]

_UNSET = object()


def parameter(
    description: str,
    *,
    unit: str | None = None,
    workflow: str | object | None = _UNSET,
    workflow_default: str | None = None,
    per_subject: bool | None = None,
    **limits: float,
) -> FieldInfo:
    """Describe one parameter; ``limits`` are pydantic's ``ge``, ``gt``, ``le`` and ``lt``."""
    extra: dict[str, str | bool | None] = {}
    if unit is not None:
        extra["unit"] = unit
    if workflow is not _UNSET:
        extra["workflow"] = workflow if isinstance(workflow, str) else None
    if workflow_default is not None:
        extra["workflow_default"] = workflow_default
    if per_subject is not None:
        extra["per_subject"] = per_subject
    # pydantic's stubs give each limit its own type; at run time Field takes a mapping of them.
    return Field(description=description, json_schema_extra=dict(extra), **limits)  # ty: ignore


def _listed(value: object) -> object:
    """Let ``"40 40 40"``, ``"40,40,40"`` and a bare number stand for a list, as on a shell."""
    if isinstance(value, str):
        return [part for part in re.split(r"[\s,]+", value.strip()) if part]
    if isinstance(value, int | float):
        return [value]
    return value


def _repeated(count: int) -> Callable[[object], object]:
    """Let one value stand for ``count`` equal ones."""

    def expand(value: object) -> object:
        values = _listed(value)
        if isinstance(values, list | tuple) and len(values) == 1:
            return [values[0]] * count
        return values

    return expand


PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Integers = Annotated[tuple[Annotated[int, Field(ge=0)], ...], BeforeValidator(_listed)]
Lengths = Annotated[tuple[PositiveFloat, ...], BeforeValidator(_listed)]
# Open-ended for the command line, which would otherwise insist on three numbers where one may stand
# for all; the validators fix the length.
Lengths3 = Annotated[
    tuple[PositiveFloat, ...], BeforeValidator(_repeated(3)), Field(min_length=3, max_length=3)
]
Counts3 = Annotated[
    tuple[Count, ...], BeforeValidator(_repeated(3)), Field(min_length=3, max_length=3)
]
Counts2 = Annotated[
    tuple[Count, ...], BeforeValidator(_repeated(2)), Field(min_length=2, max_length=2)
]
Fractions2 = Annotated[
    tuple[Fraction, ...], BeforeValidator(_repeated(2)), Field(min_length=2, max_length=2)
]
ControlPoints = Annotated[
    tuple[Annotated[int, Field(ge=4)], ...],
    BeforeValidator(_repeated(3)),
    Field(min_length=3, max_length=3),
]
MASK_WORDS = ("tissue", "none", "null", "")
"""Words of ``n4_mask`` that name no file."""
AUTO: Literal["auto"] = "auto"


def _sized(value: str) -> str:
    bytes_of(value)
    return value


def _or_none(value: object) -> object:
    """Let 'none' on a command line stand for no value."""
    return None if isinstance(value, str) and value.strip().lower() in ("", "none") else value


def _auto(value: object) -> object:
    """Let 'auto' stand for a value that follows from the data."""
    words = list(value) if isinstance(value, list | tuple) else [value]
    return None if words == [AUTO] else value


def _not_moved(value: object) -> object:
    if value == "move":
        raise ValueError(
            "a moved result is gone from the work directory, so that -resume runs everything "
            "again; use symlink, rellink, link or copy"
        )
    return value


def _switched(value: object) -> object:
    # As `switched` in lib/functions.nf: the command line's values are text to Nextflow 26.04.
    text = str(value).strip().lower()
    if text not in ("true", "false"):
        raise ValueError("write true or false")
    return text == "true"


Size = Annotated[str, BeforeValidator(_sized)]
Switch = Annotated[bool, BeforeValidator(_switched)]


class StepParameters(BaseModel):
    """Base of every step's parameters: unknown names are errors, values cannot change."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)
    prefix: ClassVar[str] = ""
    title: ClassVar[str] = ""
    per_subject: ClassVar[bool] = True
    per_task: ClassVar[tuple[str, ...]] = ()
    """Fields that the workflow sets for each task: they stand in the record's command."""
    in_workflow: ClassVar[tuple[str, ...] | None] = None
    """Fields that are parameters of the workflow; None: all that do not say otherwise."""

    def flags(self) -> list[str]:
        """Words of a command line that give these values; none for a default."""
        defaults = type(self)().model_dump(mode="json")
        words: list[str] = []
        for name, value in self.model_dump(mode="json").items():
            flag = name.replace("_", "-")
            if name in self.per_task or value == defaults[name]:
                continue
            if isinstance(value, bool):
                words.append(f"--{flag}" if value else f"--no-{flag}")
            else:
                values = value if isinstance(value, list) else [value]
                words += [f"--{flag}", *(self._word(name, v) for v in values)]
        return words

    def _word(self, name: str, value: object) -> str:
        if value is None:
            extra = cast("dict[str, object]", type(self).model_fields[name].json_schema_extra or {})
            return AUTO if extra.get("workflow_default") == AUTO else "none"
        return str(value).removesuffix(".0") if isinstance(value, float) else str(value)

    def recorded(self, *others: "StepParameters") -> dict[str, object]:
        """Values of these and other parameters under their fields' names, for a step's record."""
        return {
            name: value
            for model in (self, *others)
            for name, value in model.model_dump(mode="json").items()
            if name not in model.per_task
        }


class InputParameters(StepParameters):
    """Reading of input files."""

    title: ClassVar[str] = "Reading input"
    input_unit: Annotated[
        Unit | None,
        parameter("Unit of the axes for OME-Zarr input whose metadata states none; never guessed."),
    ] = None
    missing_chunks: Annotated[
        Literal["error", "fill"],
        parameter(
            "What a chunk that is not in the store means: an error, or the array's fill value. "
            "Choose fill for stores whose writer leaves empty chunks out."
        ),
    ] = "error"


class ExecutionParameters(StepParameters):
    """Device, memory and threads of a step."""

    title: ClassVar[str] = "Device and resources"
    per_task: ClassVar[tuple[str, ...]] = ("memory", "workers", "overwrite")
    backend: Annotated[
        Literal["auto", "gpu", "cpu"],
        parameter(
            "Device: auto takes a GPU where there is one, gpu insists on it, cpu needs none."
        ),
    ] = "auto"
    memory: Annotated[
        Size,
        parameter(
            "Host memory that a step may plan with; the number of blocks in flight follows. "
            "The workflow passes each task's own.",
            workflow=None,
        ),
    ] = "4GB"
    workers: Annotated[
        int | None,
        parameter(
            "Threads that each read, compute and write their own block; unset: one per core. "
            "The workflow passes each task's cpus.",
            workflow=None,
            ge=1,
        ),
        cyclopts.Parameter(alias="--threads"),
    ] = None
    prefetch: Annotated[
        int | None,
        parameter(
            "Blocks that the system is asked to load while those before them are worked on; they "
            "take room in its file cache and none of the memory. Unset: as many as workers. "
            "Raise it for storage that is slow to answer, 0 for none. RESAMPLE of mosaics alone "
            "looks ahead.",
            ge=0,
        ),
    ] = None
    pinned: Annotated[
        bool,
        parameter(
            "Page-locked host memory for copies to and from a GPU, which are faster with it. "
            "Switch it off where other work on the host needs the memory."
        ),
        cyclopts.Parameter(negative="--no-pinned"),
    ] = True
    overwrite: Annotated[bool, parameter("Replace output that exists already.", workflow=None)] = (
        False
    )


class LeaseParameters(StepParameters):
    """Waiting for a share of a GPU, and holding it.

    The workflow hands these to its tasks by the environment: they change no result, and are not to
    be part of a task's hash.
    """

    title: ClassVar[str] = "Sharing GPUs"
    per_subject: ClassVar[bool] = False
    gpu_slots: Annotated[
        int,
        parameter("Tasks that may share one GPU.", ge=1),
        cyclopts.Parameter(env_var="OCTANE_GPU_SLOTS"),
    ] = 1
    auto_timeout: Annotated[
        float,
        parameter(
            "How long backend auto waits for a GPU before it takes the CPU.", unit="second", ge=0
        ),
        cyclopts.Parameter(env_var="OCTANE_AUTO_TIMEOUT"),
    ] = AUTO_TIMEOUT
    gpu_timeout: Annotated[
        Annotated[float, Field(ge=0)] | None,
        BeforeValidator(_or_none),
        parameter(
            "How long backend gpu waits before it is an error; unset: without limit.",
            unit="second",
        ),
        cyclopts.Parameter(env_var="OCTANE_GPU_TIMEOUT"),
    ] = None
    gpu_lock_dir: Annotated[
        Path | None,
        parameter(
            "Folder of the node that all who share its GPUs keep their leases in. Unset: "
            "$OCTANE_GPU_LOCK_DIR, else /var/tmp/octane-gpu-leases."
        ),
        cyclopts.Parameter(env_var="OCTANE_GPU_LOCK_DIR"),
    ] = None

    def timeout(self, backend: str) -> float | None:
        """Seconds to wait with a backend; None: without limit."""
        return self.auto_timeout if backend == "auto" else self.gpu_timeout


class ResampleParameters(StepParameters):
    """RESAMPLE: every tile (or a volume) to the target resolution."""

    prefix: ClassVar[str] = "resample_"
    title: ClassVar[str] = "Resampling"
    resolution: Annotated[
        Lengths3 | None,
        parameter(
            "Target voxel size: one number, or three in the order z y x. "
            "Unset: the data keep their own and RESAMPLE is passed through.",
            unit="micrometer",
            workflow="resolution",
        ),
    ] = None
    scale: Annotated[
        Lengths3 | None,
        parameter(
            "Voxels of the result for one of the source, in place of a resolution: one number, or "
            "three in the order z y x; 0.5 halves the voxels along an axis.",
            workflow=None,
        ),
    ] = None
    layout: Annotated[
        Literal["mosaic", "volume"],
        parameter(
            "mosaic: each tile is an acquisition of its own and is resampled alone; "
            "volume: one continuous image. The workflow knows which from the input.",
            workflow=None,
        ),
    ] = "mosaic"
    allow_upsampling: Annotated[
        bool,
        parameter(
            "Allow a target finer than the source; it adds voxels but no information.",
            workflow="allow_upsampling",
        ),
    ] = False
    dtype: Annotated[DType, parameter("Type of the output; integers are rounded and clipped.")] = (
        "input"
    )
    codec: Annotated[
        Codec,
        parameter(
            "Compression of the resampled mosaics, which are read once more and dropped: of the "
            "codecs the one that writes and reads fastest for its size. none where disk is plenty."
        ),
    ] = "blosc-lz4"
    tiles_per_shard: Annotated[
        Counts2,
        parameter(
            "Tiles that share one file of the resampled mosaic, in the order y x. Raise it where "
            "the file system suffers from many files; a worker then owns that many tiles."
        ),
    ] = (1, 1)


class StitchParameters(StepParameters):
    """STITCH: tiles of one section placed and blended."""

    prefix: ClassVar[str] = "stitch_"
    title: ClassVar[str] = "Stitching"
    overlap: Annotated[
        Fractions2 | None,
        parameter(
            "Overlap of neighbouring tiles as a fraction of a tile: one number, or two in the "
            "order y x. Unset: read from the mosaic's metadata. 0: tiles abut.",
            workflow="overlap",
        ),
    ] = None
    refine: Annotated[
        bool,
        parameter(
            "Refine the tile positions by cross-correlation of the overlaps. "
            "Use it when the stage's positions are off by more than half a voxel."
        ),
    ] = False
    max_shift: Annotated[
        PositiveFloat,
        parameter("Largest correction that refinement may make to a tile.", unit="micrometer"),
    ] = 50.0
    blend: Annotated[
        Literal["linear", "none"],
        parameter(
            "linear: weights taper across the overlap; none: each voxel comes from the tile whose "
            "centre is nearest, so that every mismatch shows."
        ),
    ] = "linear"
    subpixel: Annotated[
        bool,
        parameter(
            "Place tiles at their exact positions by linear interpolation. Off: at the nearest "
            "voxel, which keeps speckle as it is and is up to half a voxel wrong."
        ),
        cyclopts.Parameter(negative="--no-subpixel"),
    ] = True
    codec: Annotated[
        Codec,
        parameter("Compression of the stitched sections, which are read once more and dropped."),
    ] = "blosc-lz4"


class StackParameters(StepParameters):
    """STACK: sections on top of each other."""

    prefix: ClassVar[str] = "stack_"
    title: ClassVar[str] = "Stacking"
    section_thickness: Annotated[
        PositiveFloat | None,
        parameter(
            "Distance from one section's surface to the next one's. Unset: read from the "
            "section's metadata, else the full imaged depth.",
            unit="micrometer",
            workflow="section_thickness",
        ),
    ] = None
    allow_missing_sections: Annotated[
        int,
        parameter(
            "How many gaps in the numbering of the sections to accept; each becomes a blank slab "
            "and is listed in the report.",
            workflow="allow_missing_sections",
            ge=0,
        ),
    ] = 0


class N4Parameters(StepParameters):
    """N4: bias field fitted on the shrunk volume and applied chunk by chunk."""

    prefix: ClassVar[str] = "n4_"
    title: ClassVar[str] = "N4 bias field correction"
    mask: Annotated[
        str | None,
        BeforeValidator(_or_none),
        parameter(
            "Where the field is fitted: a file of 0 and 1 on the volume's grid, 'tissue' for a "
            "mask made from the data (Otsu per section), unset or 'none' for every voxel.",
            workflow_default="tissue",
        ),
    ] = None
    weights: Annotated[
        str | None,
        BeforeValidator(_or_none),
        parameter(
            "Weight image on the volume's grid (ITK's confidence image): how much each voxel "
            "counts in the fit; 0 leaves it out.",
            workflow=None,
        ),
    ] = None
    mode: Annotated[
        Literal["global", "per_section", "two_pass"],
        parameter(
            "global: one field over the volume; per_section: one for each section, which follows "
            "what jumps between sections; two_pass: per section, then one field over the result."
        ),
    ] = "global"
    section_starts: Annotated[
        Integers | None,
        BeforeValidator(_or_none),
        parameter(
            "First plane of every section, for a volume whose metadata has none: '0 30 60'. "
            "Planes before the first belong to no section."
        ),
    ] = None
    histogram_matching: Annotated[
        Literal["none", "section", "plane"],
        parameter(
            "Before the fit, bring the histogram of each section's (or plane's) tissue to that of "
            "all: for sections that differ in brightness or contrast."
        ),
    ] = "none"
    z_profile_gain: Annotated[
        bool,
        parameter(
            "Before the fit, bring the planes of a section to one mean intensity: for attenuation "
            "with depth."
        ),
    ] = False
    shrink_factor: Annotated[
        Counts3 | None,
        BeforeValidator(_auto),
        parameter(
            "Every n-th voxel enters the fit: one number, or three in the order x y z; auto: up "
            "to 4 while the mesh keeps enough voxels, more where --memory asks for it. "
            "Lower it for small volumes or fine fields.",
            workflow_default=AUTO,
        ),
    ] = (4, 4, 4)
    iterations: Annotated[
        Integers | None,
        BeforeValidator(_auto),
        parameter(
            "Most iterations at each fitting level; the length is the number of levels. auto: 50 "
            "at up to four levels, fewer along axes that are too short for so fine a mesh.",
            workflow_default=AUTO,
        ),
    ] = (50, 50, 50, 50)
    convergence_threshold: Annotated[
        float,
        parameter("A level ends when the field changes by less than this.", ge=0),
    ] = 0.001
    bias_field_fwhm: Annotated[
        PositiveFloat,
        parameter("Full width at half maximum of the field's histogram, in log intensity."),
    ] = 0.15
    wiener_filter_noise: Annotated[
        PositiveFloat, parameter("Noise term of the Wiener filter that sharpens the histogram.")
    ] = 0.01
    number_of_histogram_bins: Annotated[
        int, parameter("Bins of the log intensity histogram.", ge=2)
    ] = 200
    control_points: Annotated[
        ControlPoints,
        parameter(
            "Control points of the first level in the order x y z; each level doubles the mesh. "
            "More points follow a finer field."
        ),
    ] = (4, 4, 4)
    spline_distance_mm: Annotated[
        Lengths3 | None,
        BeforeValidator(_or_none),
        parameter(
            "Largest distance of the first level's knots: one number, or three in the order x y z. "
            "Takes the place of the control points.",
            unit="millimeter",
        ),
    ] = None
    stopping: Annotated[
        Literal["itk", "exact"],
        parameter(
            "itk: ITK's stopping measure with its float32 running mean, hence its number of "
            "iterations; exact: the true coefficient of variation."
        ),
    ] = "itk"
    strength: Annotated[
        float,
        parameter("Blend against the input: 0 leaves it untouched, 1 corrects fully.", ge=0, le=1),
    ] = 1.0
    outside: Annotated[
        Literal["keep", "zero"],
        parameter("Voxels outside the mask: corrected as all others, or set to 0."),
    ] = "keep"
    nonfinite: Annotated[
        Literal["error", "mask"],
        parameter("NaN and Inf in the volume: an error, or left out of the fit."),
    ] = "error"
    dtype: Annotated[
        DType, parameter("Type of the corrected volume; integers are rounded and clipped.")
    ] = "input"
    codec: Annotated[Codec, parameter("Compression of the corrected volume.")] = "zstd"


class PyramidParameters(StepParameters):
    """PYRAMID: the volume at several resolutions."""

    prefix: ClassVar[str] = "pyramid_"
    title: ClassVar[str] = "Pyramid"
    resolutions: Annotated[
        Lengths | None,
        parameter(
            "Isotropic voxel sizes of the levels, finest first. Unset: the volume's own, then "
            "each of 10, 25, 50 and 100 that is coarser.",
            unit="micrometer",
        ),
    ] = None
    codec: Annotated[Codec, parameter("Compression of the pyramid.")] = "zstd"


class ReportParameters(StepParameters):
    """REPORT: one HTML file per subject."""

    prefix: ClassVar[str] = "report_"
    title: ClassVar[str] = "Report"
    heading: Annotated[
        str | None, parameter("Heading of the report; unset: the subject's name.")
    ] = None


class PhantomParameters(StepParameters):
    """PHANTOM: a synthetic serial-section OCT subject with its truth."""

    prefix: ClassVar[str] = "phantom_"
    title: ClassVar[str] = "Phantom"
    per_subject: ClassVar[bool] = False
    in_workflow: ClassVar[tuple[str, ...] | None] = ("seed",)
    sections: Annotated[int, parameter("Number of sections.", ge=1)] = 4
    seed: Annotated[int, parameter("Seed; the same seed makes the same subject.", ge=0)] = 1
    tiles: Annotated[Counts2, parameter("Tiles of a section, rows then columns.")] = (3, 3)
    tile_shape: Annotated[Counts3, parameter("Voxels of a full tile, z y x.")] = (48, 128, 128)
    edge_fraction: Annotated[
        Fraction,
        parameter(
            "Part of a tile that is cut from the last row and column; 0: all tiles are full. "
            "Must leave more than the overlap."
        ),
    ] = 0.25
    voxel_size: Annotated[Lengths3, parameter("Voxel size, z y x.", unit="micrometer")] = (
        3.5,
        4.0,
        4.0,
    )
    overlap: Annotated[
        Fractions2, parameter("Overlap of neighbouring tiles as a fraction of a tile, y x.")
    ] = (0.2, 0.2)
    section_thickness: Annotated[
        PositiveFloat,
        parameter(
            "Thickness that is cut; what is imaged below it is seen again.", unit="micrometer"
        ),
    ] = 150.0
    speckle_looks: Annotated[
        float,
        parameter("Independent looks averaged into the speckle; 0: none.", ge=0),
    ] = 16.0
    attenuation: Annotated[
        float, parameter("Attenuation with depth in a section.", unit="1/millimeter", ge=0)
    ] = 1.0
    shading: Annotated[Fraction, parameter("Loss of intensity at the corner of a tile.")] = 0.1
    bias: Annotated[
        float, parameter("Half range of the log bias field over the subject.", ge=0)
    ] = 0.5
    section_steps: Annotated[
        float,
        parameter("Half range of the log brightness that differs between sections.", ge=0),
    ] = 0.0
    position_error: Annotated[
        float,
        parameter(
            "Largest stage error of a tile in y and x; the true positions go into positions.csv.",
            unit="micrometer",
            ge=0,
        ),
    ] = 0.0
    sharded: Annotated[bool, parameter("Write 2 x 2 tiles to a shard.")] = False
    dtype: Annotated[Literal["uint16", "float32"], parameter("Type of the mosaics.")] = "float32"
    truth_resolution: Annotated[
        PositiveFloat,
        parameter(
            "Voxel size of the truth; N4 compares with it where the run has the same --resolution.",
            unit="micrometer",
        ),
    ] = 10.0


class WorkflowParameters(StepParameters):
    """Parameters of the workflow as a whole."""

    title: ClassVar[str] = "Workflow"
    per_subject: ClassVar[bool] = False
    input: Annotated[
        Path | None,
        parameter(
            "A folder of mosaic grids (one OME-Zarr per section), one mosaic, or one volume.",
            per_subject=True,
        ),
    ] = None
    samplesheet: Annotated[
        Path | None,
        parameter(
            "CSV or YAML table of a cohort, in place of --input: one row for each subject, with "
            "the columns subject, input, and parameters that differ."
        ),
    ] = None
    outdir: Annotated[Path, parameter("Folder for the results; made where it is not there.")] = (
        Path("results")
    )
    subject: Annotated[
        str | None,
        parameter(
            "Name of the subject; unset: the name of the input. In a params file a name of digits "
            "is put in quotes.",
            per_subject=True,
        ),
    ] = None
    input_kind: Annotated[
        Literal["auto", "mosaic", "section", "volume"],
        parameter(
            "What the input is. auto: from octane's own metadata; else a folder of stores holds "
            "mosaics, and a single store is a mosaic when its chunks span the full Z.",
            per_subject=True,
        ),
    ] = "auto"
    positions: Annotated[
        Path | None,
        parameter(
            "CSV of tile positions: columns section, row, column, y, x (micrometer, of the tile's "
            "first edge). Replaces the overlap.",
            per_subject=True,
        ),
    ] = None
    truth: Annotated[
        Path | None,
        parameter(
            "A phantom's truth folder; adds figures against it to the report.", per_subject=True
        ),
    ] = None
    phantom: Annotated[Switch, parameter("Make a phantom and run on it, in place of --input.")] = (
        False
    )
    skip_resample: Annotated[Switch, parameter("Pass through RESAMPLE.")] = False
    skip_stitch: Annotated[
        Switch, parameter("Pass through STITCH: sections are already whole.")
    ] = False
    skip_n4: Annotated[Switch, parameter("Pass through N4.")] = False
    skip_pyramid: Annotated[Switch, parameter("Leave the volume at one resolution.")] = False
    skip_report: Annotated[Switch, parameter("Write no report.")] = False
    save_bias_field: Annotated[
        Switch, parameter("Publish the multiplicative bias field at full resolution as well.")
    ] = False
    overwrite_subject: Annotated[
        Switch,
        parameter(
            "Replace the results of another input under the same subject's name: the subject's "
            "folder in outdir is emptied first. Without it such a run is refused."
        ),
    ] = False
    publish_dir_mode: Annotated[
        Literal["symlink", "rellink", "link", "copy"],
        BeforeValidator(_not_moved),
        parameter(
            "How results appear in outdir. 'move' is refused: a moved result cannot be resumed."
        ),
    ] = "symlink"
    scratch_dir: Annotated[
        bool | str,
        BeforeValidator(read_scratch),
        parameter(
            "Where tasks run: false in the work directory, true in the node's TMPDIR, or a path, "
            "which may have variables such as '$SLURM_TMPDIR'. It must be there, or end in / for "
            "tasks to make it. Use one when the work directory is on a slow network file system."
        ),
    ] = False
    check_space: Annotated[
        Switch,
        parameter(
            "Stop where what is to be written cannot fit. Off: it is said and the run goes on; for "
            "a run that is resumed and has written most of it already."
        ),
    ] = True
    gpu_count: Annotated[
        int,
        parameter(
            "GPUs of the node; with gpu_slots it limits the tasks that use one at a time. "
            "0: no limit, for machines without. On Slurm it limits nothing: Slurm gives GPUs out.",
            ge=0,
        ),
    ] = 0
    max_cpus: Annotated[
        int | None, parameter("Most CPUs a task may ask for; unset: the machine's.", ge=1)
    ] = None
    max_memory: Annotated[
        str | None, parameter("Most memory a task may ask for, such as '32 GB'.")
    ] = None
    container: Annotated[
        str | None,
        parameter(
            "Image of -profile docker and apptainer; unset: octane:VERSION, and octane-VERSION.sif "
            "in the project's folder."
        ),
    ] = None
    slurm_queue: Annotated[
        str | None, parameter("Partition for the jobs of -profile slurm; unset: the cluster's own.")
    ] = None
    slurm_gpu_queue: Annotated[
        str | None, parameter("Partition for jobs that ask for a GPU; unset: slurm_queue.")
    ] = None
    slurm_gpu_type: Annotated[
        str | None,
        parameter("Type of GPU to ask Slurm for, such as a100, where a cluster has several."),
    ] = None
    slurm_account: Annotated[
        str | None, parameter("Account that the jobs of -profile slurm are charged to.")
    ] = None
    slurm_options: Annotated[
        str | None,
        parameter(
            "Further options of sbatch for every job of -profile slurm, such as '--qos=normal'; "
            "GPU jobs get their --gres as well."
        ),
    ] = None
    trace_report: Annotated[
        Switch, parameter("Write Nextflow's trace, timeline, report and DAG to pipeline_info.")
    ] = True
    help: Annotated[Switch, parameter("Print the parameters and stop.")] = False


STEPS: dict[str, type[StepParameters]] = {
    "workflow": WorkflowParameters,
    "input": InputParameters,
    "execution": ExecutionParameters,
    "lease": LeaseParameters,
    "resample": ResampleParameters,
    "stitch": StitchParameters,
    "stack": StackParameters,
    "n4": N4Parameters,
    "pyramid": PyramidParameters,
    "report": ReportParameters,
    "phantom": PhantomParameters,
}
