"""The one definition of every parameter: name, type, unit, default, range and help.

One model per step. From these come the flags and ``--help`` of each command, the validation in
PREFLIGHT, and the files that :mod:`octane.config.schema` writes. Each description says when to
change the value.

In the workflow and on command lines a step's field has the step's name before its own
(``n4_strength``) unless it names another (``workflow=``). ``workflow=False`` keeps a field out of
the workflow; a command has it under its own name.

A parameter acts per subject, and may be a column of a samplesheet, where its model or the field
itself says so (``per_subject``); the others are read once for the whole run.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, ClassVar, Literal, TypeVar, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from octane.config.validation import read_scratch
from octane.core.units import bytes_of

Unit = Literal["nanometer", "micrometer", "millimeter", "centimeter", "meter"]
DType = Literal["input", "uint8", "uint16", "int16", "float32", "float64"]
Codec = Literal["zstd", "blosc-lz4", "none"]

Value = TypeVar("Value")

AUTO_TIMEOUT = 300.0
"""Seconds that ``auto`` waits for a GPU before it takes the CPU."""


def parameter(
    default: Value,
    description: str,
    *,
    unit: str | None = None,
    workflow: str | Literal[False] | None = None,
    workflow_default: str | None = None,
    per_subject: bool | None = None,
    alias: str | None = None,
    variable: str | None = None,
    **limits: float,
) -> Value:
    """Field of a model; ``limits`` are pydantic's ``ge``, ``gt``, ``le`` and ``lt``."""
    extra = {"unit": unit, "workflow": workflow, "per_subject": per_subject}
    extra |= {"workflow_default": workflow_default, "alias": alias, "variable": variable}
    stated = {name: value for name, value in extra.items() if value is not None}
    # pydantic's stubs give each limit its own type; at run time Field takes a mapping of them.
    field = Field(default, description=description, json_schema_extra=stated, **limits)  # ty: ignore
    return cast("Value", field)


def _listed(value: object) -> object:
    """Let ``"40 40 40"``, ``"40,40,40"``, a bare number and repeated flags stand for a list."""
    parts = value if isinstance(value, list | tuple) else [value]
    if not all(isinstance(part, str | int | float) for part in parts):
        return value
    return [
        word
        for part in parts
        for word in (re.split(r"[\s,]+(?!%)", part) if isinstance(part, str) else [part])
        if word != ""
    ]


def _per_axis(axes: str) -> Callable[[object], object]:
    """Take a number for each of the axes in this order, one for all, or each under its name."""
    order, example = " ".join(axes), ",".join(f"{axis}=4" for axis in axes)
    count = {2: "two", 3: "three"}[len(axes)]

    def arrange(value: object) -> object:
        values = _listed(value)
        if not isinstance(values, list):
            return values
        named = dict(str(word).lower().partition("=")[::2] for word in values)
        if sorted(named) == sorted(axes) and len(values) == len(axes):
            return [named[axis] for axis in axes]
        if len(values) not in (1, len(axes)) or any("=" in str(word) for word in values):
            raise ValueError(f"give one number, {count} in the order {order}, or {example}")
        return values * (len(axes) // len(values))

    return arrange


PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
# Nextflow reads a number as one.
Text = Annotated[str, Field(coerce_numbers_to_str=True)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Integers = Annotated[tuple[Annotated[int, Field(ge=0)], ...], BeforeValidator(_listed)]
Lengths = Annotated[tuple[PositiveFloat, ...], BeforeValidator(_listed)]
# Open-ended for the command line, which would otherwise insist on three numbers where one may stand
# for all; the validators fix the length. ITK's options have ITK's order.
Lengths3 = Annotated[tuple[PositiveFloat, ...], BeforeValidator(_per_axis("zyx"))]
Counts3 = Annotated[tuple[Count, ...], BeforeValidator(_per_axis("zyx"))]
Counts2 = Annotated[tuple[Count, ...], BeforeValidator(_per_axis("yx"))]
Fractions2 = Annotated[tuple[Fraction, ...], BeforeValidator(_per_axis("yx"))]
ItkLengths = Annotated[tuple[PositiveFloat, ...], BeforeValidator(_per_axis("xyz"))]
ItkCounts = Annotated[tuple[Count, ...], BeforeValidator(_per_axis("xyz"))]
ControlPoints = Annotated[
    tuple[Annotated[int, Field(ge=4)], ...], BeforeValidator(_per_axis("xyz"))
]
MASK_WORDS = ("tissue", "none", "null", "")
"""Words of ``n4_mask`` that name no file; after the first, those for none."""
FLAT_FIELD_WORDS = ("estimate", "none", "null", "")
"""Words of ``stitch_flat_field`` that name no file; after the first, those for none."""
AUTO: Literal["auto"] = "auto"
ESTIMATE: Literal["estimate"] = "estimate"


def _sized(value: str) -> str:
    bytes_of(value)
    return value


def _only(value: object) -> object:
    """Give the one member of a list of one."""
    return value[0] if isinstance(value, list | tuple) and len(value) == 1 else value


def _or_none(value: object) -> object:
    """Let 'none' on a command line stand for no value."""
    return None if str(_only(value)).strip().lower() in ("", "none") else value


def _word_or_file(
    words: tuple[str, ...], none: Literal["none"] | None
) -> Callable[[object], str | None]:
    """Take the first of the words, in any case, or the name of a file; the others mean none."""

    def read(value: object) -> str | None:
        text = str(_only(value)).strip()
        word = text.lower()
        return text if word not in words else word if word == words[0] else none

    return read


_mask, _flat_field = _word_or_file(MASK_WORDS, None), _word_or_file(FLAT_FIELD_WORDS, "none")


def _auto(value: object) -> object:
    """Let 'auto' stand for a value that follows from the data."""
    return None if str(_only(value)).strip().lower() == AUTO else value


def _memory(value: object) -> object:
    # As resourceLimits in conf/base.config, which Nextflow reads before this is checked.
    if not re.fullmatch(r"(?=.*[1-9])[0-9]+([.][0-9]+)? *[KMGT]B?", str(value).strip()):
        raise ValueError("give a size such as '32 GB'")
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

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, defer_build=True)
    title: ClassVar[str] = ""
    prefix: ClassVar[str] = ""
    """Stands before the fields' names in the workflow."""
    per_subject: ClassVar[bool] = True
    per_task: ClassVar[tuple[str, ...]] = ()
    """Fields that the workflow sets for each task: they stand in the record's command."""
    in_workflow: ClassVar[tuple[str, ...] | None] = None
    """Fields that are parameters of the workflow; None: all that do not say otherwise."""

    @classmethod
    def workflow_name(cls, field: str) -> str | None:
        """Name of the workflow's parameter; None: the field is not one."""
        if field not in (cls.in_workflow or cls.model_fields):
            return None
        stated = cast("dict[str, str | None]", cls.model_fields[field].json_schema_extra)
        return stated.get("workflow", cls.prefix + field) or None

    @classmethod
    def flag(cls, field: str) -> str:
        """Flag of a command: the workflow's name, or the field's own where that has none."""
        return f"--{cls.workflow_name(field) or field}"

    def flags(self) -> list[str]:
        """Words of a command line that give these values; none for a default."""
        defaults = type(self)().model_dump(mode="json")
        words: list[str] = []
        for name, value in self.model_dump(mode="json").items():
            if name not in self.per_task and value != defaults[name]:
                values = value if isinstance(value, list) else [value]
                words += [self.flag(name), *(self._word(name, v) for v in values)]
        return words

    def _word(self, name: str, value: object) -> str:
        if value is None:
            extra = cast("dict[str, object]", type(self).model_fields[name].json_schema_extra or {})
            return AUTO if extra.get("workflow_default") == AUTO else "none"
        if isinstance(value, bool):
            return str(value).lower()
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
    input_unit: Unit | None = parameter(
        None,
        "Unit of the voxel size of OME-Zarr or TIFF input that states none; never guessed. Of "
        "OME-Zarr it overrules a stated one, which a warning names.",
    )
    voxel_size: Lengths3 | None = parameter(
        None,
        "Voxel size of TIFF input that does not state it along all axes: one number, or three in "
        "the order z y x.",
        unit="micrometer",
    )
    missing_chunks: Literal["error", "fill"] = parameter(
        "error",
        "What a chunk that is not in the store means: an error, or the array's fill value. Choose "
        "fill for stores whose writer leaves empty chunks out.",
    )
    channel: Text | None = parameter(
        None,
        "Channel of input that has several: its number from 0, or else its name in the metadata.",
    )
    timepoint: int | None = parameter(
        None, "Time point of input that has several: its number from 0.", ge=0
    )


class SubjectOverrides(InputParameters):
    """Parameters of a new subject that a person states; None: left to the data."""

    outdir: Path | None = parameter(
        None, "Folder for the results; unset: results in the current folder, or next to the data."
    )
    resolution: Lengths3 | None = parameter(None, "Target voxel size in micrometres.")
    overlap: Fractions2 | None = parameter(
        None, "Overlap of neighbouring tiles as a fraction of a tile."
    )
    section_thickness: PositiveFloat | None = parameter(
        None, "Distance from one section's surface to the next one's in micrometres."
    )
    input_kind: Literal["auto", "mosaic", "section", "volume"] = parameter(
        "auto", "Kind of the data, where their metadata do not say it."
    )


class ExecutionParameters(StepParameters):
    """Device, memory and threads of a step."""

    title: ClassVar[str] = "Device and resources"
    per_task: ClassVar[tuple[str, ...]] = ("memory", "workers", "overwrite")
    backend: Literal["auto", "gpu", "cpu"] = parameter(
        "auto", "Device: auto takes a GPU where there is one, gpu insists on it, cpu needs none."
    )
    memory: Size = parameter(
        "4GB",
        "Host memory that a step may plan with; the number of blocks in flight follows. The "
        "workflow passes each task's own.",
        workflow=False,
    )
    workers: int | None = parameter(
        None,
        "Threads that each read, compute and write their own block; unset: one per core. The "
        "workflow passes each task's cpus.",
        workflow=False,
        alias="--threads",
        ge=1,
    )
    overwrite: bool = parameter(False, "Replace output that exists already.", workflow=False)


class LeaseParameters(StepParameters):
    """Waiting for a share of a GPU, and holding it.

    The workflow hands these to its tasks by the environment: they change no result, and are not to
    be part of a task's hash.
    """

    title: ClassVar[str] = "Sharing GPUs"
    per_subject: ClassVar[bool] = False
    gpu_slots: int = parameter(
        1, "Tasks that may share one GPU.", variable="OCTANE_GPU_SLOTS", ge=1, le=9999
    )
    auto_timeout: float = parameter(
        AUTO_TIMEOUT,
        "How long backend auto waits for a GPU before it takes the CPU.",
        unit="second",
        variable="OCTANE_AUTO_TIMEOUT",
        ge=0,
    )
    gpu_timeout: Annotated[
        Annotated[float, Field(ge=0)] | None,
        BeforeValidator(_or_none),
    ] = parameter(
        None,
        "How long backend gpu waits before it is an error; unset: without limit.",
        unit="second",
        variable="OCTANE_GPU_TIMEOUT",
    )
    gpu_lock_dir: Path | None = parameter(
        None,
        "Folder of the node that all who share its GPUs keep their leases in. Unset: "
        "$OCTANE_GPU_LOCK_DIR, else /var/tmp/octane-gpu-leases.",
        variable="OCTANE_GPU_LOCK_DIR",
    )

    def timeout(self, backend: str) -> float | None:
        """Seconds to wait with a backend; None: without limit."""
        return self.auto_timeout if backend == "auto" else self.gpu_timeout


class ResampleParameters(StepParameters):
    """RESAMPLE: every tile (or a volume) to the target resolution."""

    title: ClassVar[str] = "Resampling"
    prefix: ClassVar[str] = "resample_"
    resolution: Lengths3 | None = parameter(
        None,
        "Target voxel size: one number, or three in the order z y x. Unset: the data keep their "
        "own and RESAMPLE is skipped.",
        unit="micrometer",
        workflow="resolution",
    )
    scale: Lengths3 | None = parameter(
        None,
        "Scale factor, output voxels per input voxel, instead of a resolution: one number, or "
        "three in the order z y x; 0.5 halves the number of voxels along an axis.",
        workflow=False,
    )
    layout: Literal["mosaic", "volume"] = parameter(
        "mosaic",
        "mosaic: each tile is an acquisition of its own and is resampled alone; volume: one "
        "continuous image. The workflow knows which from the input.",
        workflow=False,
    )
    allow_upsampling: bool = parameter(
        False,
        "Allow a target finer than the source; it adds voxels but no information.",
        workflow="allow_upsampling",
    )
    dtype: DType = parameter("input", "Type of the output; integers are rounded and clipped.")
    codec: Codec = parameter(
        "blosc-lz4",
        "Compression of the resampled mosaics, which are read once more and dropped: of the "
        "codecs the one that writes and reads fastest for its size. none where disk is plenty.",
    )


class StitchParameters(StepParameters):
    """STITCH: tiles of one section placed and blended."""

    title: ClassVar[str] = "Stitching"
    prefix: ClassVar[str] = "stitch_"
    overlap: Fractions2 | None = parameter(
        None,
        "Overlap of neighbouring tiles as a fraction of a tile: one number, or two in the order y "
        "x. Unset: read from the mosaic's metadata. 0: tiles abut.",
        workflow="overlap",
    )
    refine: bool = parameter(
        False,
        "Refine the tile positions by cross-correlation of the overlaps. Use it when the stage's "
        "positions are off by more than half a voxel.",
    )
    max_shift: PositiveFloat = parameter(
        50.0, "Largest correction that refinement may make to a tile.", unit="micrometer"
    )
    check_overlap: Literal["error", "warning"] = parameter(
        "error",
        "Where most tiles correlate with their neighbours at another overlap, and not as they are "
        "placed. error: stop and name it; warning: go on. A doubtful case is a warning.",
    )
    flat_field: Annotated[str, BeforeValidator(_flat_field)] = parameter(
        "none",
        "Even out tiles that are darker to their edges. estimate: from where tiles overlap, for "
        "each section; FILE: a TIFF or .npy of the light over a whole tile (octane's own, or "
        "BaSiC's); none: as they are. The report says how large the shading is.",
    )
    dark_offset: Annotated[float, Field(ge=0, allow_inf_nan=False)] = parameter(
        0.0,
        "Grey level of a pixel without light, which is taken away before the flat field acts. Use "
        "it for cameras, whose level is often 100.",
    )
    codec: Codec = parameter(
        "blosc-lz4", "Compression of the stitched sections, which are read once more and dropped."
    )


class StackParameters(StepParameters):
    """STACK: sections on top of each other."""

    title: ClassVar[str] = "Stacking"
    prefix: ClassVar[str] = "stack_"
    align: Literal["none", "translation", "rigid"] = parameter(
        "none",
        "Move sections so that they fit their neighbours. none: each lies where it was imaged, and "
        "the report says how far it lies from where it fits; translation: shifts; rigid: rotations "
        "as well. It interpolates once more where a section is moved, and not where it fits.",
    )
    section_thickness: PositiveFloat | None = parameter(
        None,
        "Distance from one section's surface to the next one's. Unset: read from the section's "
        "metadata, else from where the sections lie along z, else the full imaged depth.",
        unit="micrometer",
        workflow="section_thickness",
    )
    section_surface: float = parameter(
        0.0,
        "Depth of a section's surface in its image: what lies above, such as water, is left out.",
        unit="micrometer",
        workflow="section_surface",
        ge=0,
    )
    allow_missing_sections: int = parameter(
        0,
        "How many gaps in the numbering of the sections to accept; each becomes a blank slab and "
        "is listed in the report.",
        workflow="allow_missing_sections",
        ge=0,
    )
    codec: Codec = parameter(
        "zstd",
        "Compression of the volume. The workflow takes blosc-lz4 where N4 reads it and it is then "
        "dropped.",
        workflow=False,
    )


class N4Parameters(StepParameters):
    """N4: bias field fitted on the shrunk volume and applied chunk by chunk."""

    title: ClassVar[str] = "N4 bias field correction"
    prefix: ClassVar[str] = "n4_"
    mask: Annotated[str | None, BeforeValidator(_mask)] = parameter(
        None,
        "Where the field is fitted: a file of 0 and 1 on the volume's grid, 'tissue' for a mask "
        "made from the data (Otsu per section), unset or 'none' for every voxel.",
        workflow_default="tissue",
    )
    weights: Annotated[str | None, BeforeValidator(_or_none)] = parameter(
        None,
        "Weight image on the volume's grid (ITK's confidence image): how much each voxel counts "
        "in the fit; 0 leaves it out.",
        workflow=False,
    )
    mode: Literal["global", "per_section", "two_pass"] = parameter(
        "global",
        "global: one field over the volume; per_section: one for each section, whose brightness "
        "stays; two_pass: per section, then one field over the result.",
    )
    section_starts: Annotated[Integers | None, BeforeValidator(_or_none)] = parameter(
        None,
        "First plane of every section, for a volume whose metadata has none: '0 30 60'. Planes "
        "before the first belong to no section.",
    )
    histogram_matching: Literal["none", "section", "plane"] = parameter(
        "none",
        "Before the fit, bring the histogram of each section's (or plane's) tissue to that of "
        "all: for sections that differ in brightness or contrast.",
    )
    z_profile_gain: bool = parameter(
        False,
        "Before the fit, bring the planes of a section to one mean intensity: for attenuation "
        "with depth.",
    )
    shrink_factor: Annotated[ItkCounts | None, BeforeValidator(_auto)] = parameter(
        (4, 4, 4),
        "Every n-th voxel enters the fit: one number, or three in ITK's order x y z; auto: up to "
        "4 while the mesh keeps enough voxels, more where --memory asks for it. Lower it for small "
        "volumes or fine fields.",
        workflow_default=AUTO,
    )
    iterations: Annotated[Integers | None, BeforeValidator(_auto)] = parameter(
        (50, 50, 50, 50),
        "Most iterations at each fitting level; the length is the number of levels. auto: 50 at "
        "up to four levels, fewer along axes that are too short for so fine a mesh.",
        workflow_default=AUTO,
    )
    convergence_threshold: float = parameter(
        0.001, "A level ends when the field changes by less than this.", ge=0
    )
    bias_field_fwhm: PositiveFloat = parameter(
        0.15, "Full width at half maximum of the field's histogram, in log intensity."
    )
    wiener_filter_noise: PositiveFloat = parameter(
        0.01, "Noise term of the Wiener filter that sharpens the histogram."
    )
    number_of_histogram_bins: int = parameter(200, "Bins of the log intensity histogram.", ge=2)
    control_points: ControlPoints = parameter(
        (4, 4, 4),
        "Control points of the first level, one number or three in ITK's order x y z; each level "
        "doubles the mesh. More points follow a finer field.",
    )
    spline_distance_mm: Annotated[ItkLengths | None, BeforeValidator(_or_none)] = parameter(
        None,
        "Largest distance of the first level's knots: one number, or three in ITK's order x y z. "
        "Takes the place of the control points.",
        unit="millimeter",
    )
    strength: float = parameter(
        1.0, "Blend against the input: 0 leaves it untouched, 1 corrects fully.", ge=0, le=1
    )
    nonfinite: Literal["error", "mask"] = parameter(
        "error", "NaN and Inf in the volume: an error, or left out of the fit."
    )
    dtype: DType = parameter(
        "input", "Type of the corrected volume; integers are rounded and clipped."
    )
    codec: Codec = parameter("zstd", "Compression of the corrected volume.")


class PyramidParameters(StepParameters):
    """PYRAMID: the volume at several resolutions."""

    title: ClassVar[str] = "Pyramid"
    prefix: ClassVar[str] = "pyramid_"
    resolutions: Lengths | None = parameter(
        None,
        "Isotropic voxel sizes of the levels, finest first. Unset: the volume's own, then each of "
        "10, 25, 50 and 100 that is coarser.",
        unit="micrometer",
    )
    codec: Codec = parameter("zstd", "Compression of the pyramid.")


class PhantomParameters(StepParameters):
    """PHANTOM: a synthetic serial-section OCT subject with its truth."""

    title: ClassVar[str] = "Phantom"
    prefix: ClassVar[str] = "phantom_"
    per_subject: ClassVar[bool] = False
    in_workflow: ClassVar[tuple[str, ...] | None] = ("seed",)
    sections: int = parameter(4, "Number of sections.", ge=1)
    seed: int = parameter(1, "Seed; the same seed makes the same subject.", ge=0)
    tiles: Counts2 = parameter((3, 3), "Tiles of a section, in the order y x.")
    tile_shape: Counts3 = parameter((48, 128, 128), "Voxels of a full tile, in the order z y x.")
    edge_fraction: Fraction = parameter(
        0.25,
        "Part of a tile that is cut from the last row and column; 0: all tiles are full. Must "
        "leave more than the overlap.",
    )
    voxel_size: Lengths3 = parameter(
        (3.5, 4.0, 4.0), "Voxel size, in the order z y x.", unit="micrometer"
    )
    overlap: Fractions2 = parameter(
        (0.2, 0.2), "Overlap of neighbouring tiles as a fraction of a tile, in the order y x."
    )
    section_thickness: PositiveFloat = parameter(
        150.0, "Thickness that is cut; what is imaged below it is seen again.", unit="micrometer"
    )
    speckle_looks: float = parameter(
        16.0, "Independent looks averaged into the speckle; 0: none.", ge=0
    )
    attenuation: float = parameter(
        1.0, "Attenuation with depth in a section.", unit="1/millimeter", ge=0
    )
    shading: Fraction = parameter(0.1, "Loss of intensity at the corner of a tile.")
    bias: float = parameter(0.5, "Half range of the log bias field over the subject.", ge=0)
    section_steps: float = parameter(
        0.0, "Half range of the log brightness that differs between sections.", ge=0
    )
    position_error: float = parameter(
        0.0,
        "Largest stage error of a tile in y and x; the true positions go into positions.csv.",
        unit="micrometer",
        ge=0,
    )
    shift: float = parameter(
        0.0,
        "Largest displacement of a section in y and x; each one's stands in the truth.",
        unit="micrometer",
        ge=0,
    )
    rotation: float = parameter(
        0.0, "Largest rotation of a section about the middle.", unit="degree", ge=0
    )
    dtype: Literal["uint16", "float32"] = parameter("float32", "Type of the mosaics.")
    truth_resolution: PositiveFloat = parameter(
        10.0,
        "Voxel size of the truth; N4 compares with it where the run has the same --resolution.",
        unit="micrometer",
    )


class WorkflowParameters(StepParameters):
    """Parameters of the workflow as a whole."""

    title: ClassVar[str] = "Workflow"
    per_subject: ClassVar[bool] = False
    input: Path | None = parameter(
        None,
        "A folder of mosaic grids (one OME-Zarr per section), one mosaic, or one volume.",
        per_subject=True,
    )
    samplesheet: Path | None = parameter(
        None,
        "CSV table of a cohort, in place of --input: one row for each subject, with the columns "
        "subject, input, and parameters that differ.",
    )
    outdir: Path = parameter(Path("results"), "Folder for the results; made where it is not there.")
    subject: str | None = parameter(
        None,
        "Name of the subject; unset: the name of the input. In a params file a name of digits is "
        "put in quotes.",
        per_subject=True,
    )
    input_kind: Literal["auto", "mosaic", "section", "volume"] = parameter(
        "auto",
        "What the input is. auto: from octane's own metadata; else a folder of stores holds "
        "mosaics, and a single store is a mosaic when its chunks span the full Z.",
        per_subject=True,
    )
    positions: Path | None = parameter(
        None,
        "CSV of tile positions: columns section, row, column, y, x (micrometer, of the tile's "
        "first edge). Replaces the overlap.",
        per_subject=True,
    )
    truth: Path | None = parameter(
        None, "A phantom's truth folder; adds figures against it to the report.", per_subject=True
    )
    phantom: Switch = parameter(False, "Make a phantom and run on it, in place of --input.")
    skip_resample: Switch = parameter(False, "Skip RESAMPLE; the data go on unchanged.")
    skip_stitch: Switch = parameter(False, "Skip STITCH; the sections are whole already.")
    skip_n4: Switch = parameter(False, "Skip N4; the volume goes on unchanged.")
    skip_pyramid: Switch = parameter(False, "Leave the volume at one resolution.")
    skip_report: Switch = parameter(False, "Write no report.")
    keep_going: Switch = parameter(
        False,
        "A task that fails, after its retries, ends its subject alone: the run goes on with the "
        "others, and ends with exit code 1. Without it the whole run stops.",
    )
    save_bias_field: Switch = parameter(
        False, "Publish the multiplicative bias field at full resolution as well."
    )
    overwrite_subject: Switch = parameter(
        False,
        "Replace the results of another input under the same subject's name: the subject's folder "
        "in outdir is emptied first. Without it such a run is refused.",
    )
    publish_dir_mode: Literal["symlink", "copy"] = parameter(
        "symlink", "How results appear in outdir: as links into the work directory, or as copies."
    )
    scratch_dir: Annotated[bool | str, BeforeValidator(read_scratch)] = parameter(
        False,
        "Where tasks run: false in the work directory, true in the node's TMPDIR, or a path, "
        "which may have variables such as '$SLURM_TMPDIR'. It must be there, or end in / for "
        "tasks to make it. Use one when the work directory is on a slow network file system.",
    )
    check_space: Switch = parameter(
        True,
        "Stop before any work if the results will not fit on the disk. false: only warn, for a "
        "resumed run that has written most of them already.",
    )
    gpu_count: int = parameter(
        0,
        "GPUs of the node; with gpu_slots it limits the tasks that use one at a time. 0: no "
        "limit, for machines without. On Slurm it limits nothing: Slurm gives GPUs out.",
        ge=0,
        le=9999,
    )
    max_cpus: int | None = parameter(
        None, "Maximum CPUs per task; unset: the machine's.", ge=1, le=9999
    )
    max_memory: Annotated[str, BeforeValidator(_memory)] | None = parameter(
        None, "Maximum memory per task, such as '32 GB'."
    )
    container: str | None = parameter(
        None,
        "Image of -profile docker and apptainer; unset: octane:VERSION, and octane-VERSION.sif in "
        "the project's folder.",
    )
    slurm_queue: str | None = parameter(
        None, "Partition for the jobs of -profile slurm; unset: the cluster's own."
    )
    slurm_gpu_queue: str | None = parameter(
        None, "Partition for jobs that ask for a GPU; unset: slurm_queue."
    )
    slurm_gpu_type: str | None = parameter(
        None, "Type of GPU to ask Slurm for, such as a100, where a cluster has several."
    )
    slurm_account: str | None = parameter(
        None, "Account that the jobs of -profile slurm are charged to."
    )
    slurm_options: str | None = parameter(
        None,
        "Further options of sbatch for every job of -profile slurm, such as '--qos=normal'; GPU "
        "jobs get their --gres as well.",
    )
    trace_report: Switch = parameter(
        True, "Write Nextflow's trace, timeline, report and DAG to pipeline_info."
    )
    help: Switch = parameter(False, "Print the parameters and stop.")


class Settings(BaseModel):
    """Parameters of all steps."""

    model_config = ConfigDict(frozen=True, defer_build=True)
    workflow: WorkflowParameters
    input: InputParameters
    execution: ExecutionParameters
    lease: LeaseParameters
    resample: ResampleParameters
    stitch: StitchParameters
    stack: StackParameters
    n4: N4Parameters
    pyramid: PyramidParameters
    phantom: PhantomParameters


STEPS = cast(
    "dict[str, type[StepParameters]]",
    {name: info.annotation for name, info in Settings.model_fields.items()},
)
