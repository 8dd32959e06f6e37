"""The one definition of every parameter: name, type, unit, default, range and help.

One model per step. The flags and ``--help`` of each command, the validation in PREFLIGHT and the
files written by :mod:`octane.config.schema` derive from them. Each description says when to change
the value.

In the workflow and on command lines, a field's name is prefixed with its step's name
(``n4_strength``) unless ``workflow=`` names it otherwise. ``workflow=False`` keeps a field out of
the workflow; commands use its bare name.

A parameter can be set per subject, in a column of a samplesheet, if its model or the field itself
says so (``per_subject``); the others apply to the entire run.
"""

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, ClassVar, Literal, TypeVar, cast

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from octane.config.validation import as_flips, read_scratch, section_flips, section_ranges
from octane.core.orientation import Orientation, read_orientation
from octane.core.units import bytes_of, plain_number, without_comma

Unit = Literal["nanometer", "micrometer", "millimeter", "centimeter", "meter"]
DType = Literal["input", "uint8", "uint16", "int16", "float32", "float64"]
Codec = Literal["zstd", "blosc-lz4", "none"]
OmeZarrVersion = Literal["0.5", "0.4"]
OME_ZARR: OmeZarrVersion = "0.5"
"""Version of OME-Zarr that every step writes."""
# fmt: off
Modality = Literal[
    "BF", "CARS", "CONF", "DF", "DIC", "FLUO", "MPE", "NLO", "OCT", "PC", "PLI", "SEM", "SPIM",
    "SR", "TEM", "XPCT", "uCT", "2PE",
]
"""Suffixes of BIDS for microscopy."""
# fmt: on
TileOrder = Literal[
    "rows-snake-top-left",
    "rows-snake-top-right",
    "rows-snake-bottom-left",
    "rows-snake-bottom-right",
    "rows-raster-top-left",
    "rows-raster-top-right",
    "rows-raster-bottom-left",
    "rows-raster-bottom-right",
    "columns-snake-top-left",
    "columns-snake-top-right",
    "columns-snake-bottom-left",
    "columns-snake-bottom-right",
    "columns-raster-top-left",
    "columns-raster-top-right",
    "columns-raster-bottom-left",
    "columns-raster-bottom-right",
]

Value = TypeVar("Value")

AUTO_TIMEOUT = 300.0
"""Seconds that ``auto`` waits for a GPU before it falls back to the CPU."""


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
    """Define a model's field; ``limits`` are pydantic's ``ge``, ``gt``, ``le`` and ``lt``."""
    extra = {"unit": unit, "workflow": workflow, "per_subject": per_subject}
    extra |= {"workflow_default": workflow_default, "alias": alias, "variable": variable}
    stated = {name: value for name, value in extra.items() if value is not None}
    # pydantic's stubs type each limit separately; at run time Field accepts a mapping.
    field = Field(default, description=description, json_schema_extra=stated, **limits)  # ty: ignore
    return cast("Value", field)


def _listed(value: object) -> object:
    """Split ``"40 40 40"``, ``"40,40,40"``, a bare number or repeated flags into a list."""
    parts = value if isinstance(value, list | tuple) else [value]
    if not all(isinstance(part, str | int | float) for part in parts):
        return value
    return [
        word
        for part in parts
        for word in (re.split(r"[\s,]+(?!%)", part) if isinstance(part, str) else [part])
        if word != ""
    ]


def _assigned(value: object) -> object:
    """Split ``"x=Stage X [mm] y=Stage Y [mm]"``, or repeated flags, into a list."""
    parts = value if isinstance(value, list | tuple) else [value]
    if not all(isinstance(part, str) for part in parts):
        return value
    return [
        word
        for part in parts
        for word in re.split(r"(?<![\s,])[\s,]+(?=\w+=)", str(part).strip())
        if word
    ]


def _pointed(value: object) -> object:
    """Refuse a fraction with a comma, which would be two numbers, of which the second is none."""
    mended = without_comma(str(_only(value)))
    if 0 < float(mended or 0) < 1:
        raise ValueError(f"it has a comma; write {mended}")
    return value


def _per_axis(axes: str) -> Callable[[object], object]:
    """Accept one number per axis in this order, one for all axes, or each by name (``z=4``)."""
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
# Nextflow hands over digits as a number.
Text = Annotated[str, Field(coerce_numbers_to_str=True)]
Texts = tuple[Text, ...]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Integers = Annotated[tuple[Annotated[int, Field(ge=0)], ...], BeforeValidator(_listed)]
Lengths = Annotated[tuple[PositiveFloat, ...], BeforeValidator(_listed)]
# Of any length, because the command line accepts one number for all axes; the validators expand it.
# ITK's options use ITK's order.
Lengths3 = Annotated[tuple[PositiveFloat, ...], BeforeValidator(_per_axis("zyx"))]
Counts3 = Annotated[tuple[Count, ...], BeforeValidator(_per_axis("zyx"))]
Counts2 = Annotated[tuple[Count, ...], BeforeValidator(_per_axis("yx"))]
Fractions2 = Annotated[
    tuple[Fraction, ...], BeforeValidator(_per_axis("yx")), BeforeValidator(_pointed)
]
ItkLengths = Annotated[tuple[PositiveFloat, ...], BeforeValidator(_per_axis("xyz"))]
ItkCounts = Annotated[tuple[Count, ...], BeforeValidator(_per_axis("xyz"))]
ControlPoints = Annotated[
    tuple[Annotated[int, Field(ge=4)], ...], BeforeValidator(_per_axis("xyz"))
]
MASK_WORDS = ("tissue", "none", "null", "")
"""Values of ``n4_mask`` that are not files; all but the first mean none."""
FLAT_FIELD_WORDS = ("estimate", "none", "null", "")
"""Values of ``stitch_flat_field`` that are not files; all but the first mean none."""
AUTO: Literal["auto"] = "auto"
NEAREST: Literal["nearest"] = "nearest"
ESTIMATE: Literal["estimate"] = "estimate"


def _sized(value: str) -> str:
    bytes_of(value)
    return value


def _only(value: object) -> object:
    """Unwrap a list of one member."""
    return value[0] if isinstance(value, list | tuple) and len(value) == 1 else value


def _or_none(value: object) -> object:
    """Read 'none' and empty text as None."""
    return None if str(_only(value)).strip().lower() in ("", "none") else value


def _word_or_file(
    words: tuple[str, ...], none: Literal["none"] | None
) -> Callable[[object], str | None]:
    """Accept a file's name or the first word, in any case; the other words become ``none``."""

    def read(value: object) -> str | None:
        text = str(_only(value)).strip()
        word = text.lower()
        return text if word not in words else word if word == words[0] else none

    return read


_mask, _flat_field = _word_or_file(MASK_WORDS, None), _word_or_file(FLAT_FIELD_WORDS, "none")


def _auto(value: object) -> object:
    """Read 'auto' as None: the step derives the value from the data."""
    return None if str(_only(value)).strip().lower() == AUTO else value


def _memory(value: object) -> object:
    # The pattern of resourceLimits in conf/base.config, which Nextflow reads before this check.
    if not re.fullmatch(r"(?=.*[1-9])[0-9]+([.][0-9]+)? *[KMGT]B?", str(value).strip()):
        raise ValueError("give a size such as '32 GB'")
    return value


def _switched(value: object) -> object:
    # Like `switched` in lib/functions.nf: Nextflow 26.04 passes command-line values as text.
    text = str(value).strip().lower()
    if text not in ("true", "false"):
        raise ValueError("write true or false")
    return text == "true"


def _ranged(text: str) -> str:
    section_ranges(text)
    return text


def _flips(text: str) -> str:
    # However they are written, tasks of the same flips stay cached.
    return as_flips(section_flips(text))


def _measurable(value: object) -> object:
    """Accept a number from 0 on, or 'auto' in any case."""
    text = str(_only(value)).strip().lower()
    if text == AUTO:
        return AUTO
    try:
        number = plain_number(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise ValueError("give a number from 0 on, or auto")
    return number


def _joined(value: object) -> object:
    """Join a list of names with commas."""
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else value


def _oriented(value: object) -> object:
    """Read a code such as ``PIR``, or a value of OME-Zarr for each of z, y and x."""
    words = _listed(value)
    return read_orientation([str(word) for word in words]) if isinstance(words, list) else value


def _kinds(value: object) -> object:
    """Split ``"axis=nearest slow axis=nearest"``, or repeated flags, into a list."""
    parts = value if isinstance(value, list | tuple) else [value]
    found: list[str] = []
    for part in parts:
        *words, rest = re.split(rf"(={NEAREST})", str(part), flags=re.IGNORECASE)
        names = [name.strip().strip(" ,") for name in words[::2]]
        if rest.strip(" ,\t\r\n") or any(not name or "=" in name for name in names):
            raise ValueError("give NAME=nearest, with a channel's name or number")
        found += map("".join, zip(names, words[1::2], strict=True))
    return found


def _spans(words: tuple[str, ...]) -> tuple[str, ...]:
    """Check parts of axes such as ``z=100:400``; either end may be missing."""
    number = r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:e[+-]?[0-9]+)?"
    found = [re.fullmatch(rf"([zyx])=({number})?:({number})?", w, re.IGNORECASE) for w in words]
    ends = [(m[1].lower(), m[2], m[3]) for m in found if m]
    if (
        len({axis for axis, _, _ in ends}) < len(words)
        or not all(a or b for _, a, b in ends)
        or any(a and b and float(a) >= float(b) for _, a, b in ends)
    ):
        raise ValueError(
            "give from:to in micrometres for each axis once, such as 'z=100:400 y=:2000'"
        )
    return words


def _code(value: str | None) -> str | None:
    """Check the code of an orientation."""
    if value is not None:
        if len(value) != 3:
            raise ValueError("give the letters of where z, y and x run to, such as SAR")
        read_orientation([value])
    return value


Size = Annotated[str, BeforeValidator(_sized)]
SectionNumbers = Annotated[
    Annotated[Text, AfterValidator(_ranged)] | None, BeforeValidator(_or_none)
]
SectionFlips = Annotated[Annotated[Text, AfterValidator(_flips)] | None, BeforeValidator(_or_none)]
Switch = Annotated[bool, BeforeValidator(_switched)]
Measurable = Annotated[float | Literal["auto"], BeforeValidator(_measurable)]
"""A number, or ``auto`` where the data show it."""


class StepParameters(BaseModel):
    """Base of every step's parameters: unknown names are errors, values cannot change."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, defer_build=True)
    title: ClassVar[str] = ""
    prefix: ClassVar[str] = ""
    """Prefix of the fields' names in the workflow."""
    per_subject: ClassVar[bool] = True
    per_task: ClassVar[tuple[str, ...]] = ()
    """Fields that the workflow sets per task: recorded in the command, not in the settings."""
    in_workflow: ClassVar[tuple[str, ...] | None] = None
    """Fields that are workflow parameters; None: all without ``workflow=False``."""

    @classmethod
    def workflow_name(cls, field: str) -> str | None:
        """Name of a field's workflow parameter; None if it is not one."""
        if field not in (cls.in_workflow or cls.model_fields):
            return None
        stated = cast("dict[str, str | None]", cls.model_fields[field].json_schema_extra)
        return stated.get("workflow", cls.prefix + field) or None

    @classmethod
    def flag(cls, field: str) -> str:
        """Command-line flag: the workflow parameter's name, else the field's own."""
        return f"--{cls.workflow_name(field) or field}"

    def flags(self) -> list[str]:
        """Command-line words for these values; defaults are left out."""
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
        """Values of these and ``others`` by field name, for a step's record."""
        return {
            name: value
            for model in (self, *others)
            for name, value in model.model_dump(mode="json").items()
            if name not in model.per_task
        }


class InputParameters(StepParameters):
    """How input files are read."""

    title: ClassVar[str] = "Reading input"
    input_unit: Unit | None = parameter(
        None,
        "Unit of the voxel size of OME-Zarr or TIFF input that does not state it; never guessed. "
        "It overrides a unit stated in OME-Zarr, with a warning.",
    )
    voxel_size: Lengths3 | None = parameter(
        None,
        "Voxel size of input, such as TIFF, that does not state it along all axes: one number, or "
        "three in the order z y x.",
        unit="micrometer",
    )
    missing_chunks: Literal["error", "fill"] = parameter(
        "error",
        "Read a chunk that is missing from the store as an error, or as the array's fill value. "
        "Use fill for stores whose writer omits empty chunks.",
    )
    orientation: Annotated[Orientation, BeforeValidator(_oriented)] | None = parameter(
        None,
        "Where z, y and x run to, by one letter of R L, A P and S I each: PIR if z runs to "
        "posterior, y to inferior and x to the right. Or three values of OME-Zarr, such as "
        "'anterior-to-posterior superior-to-inferior left-to-right'. Never guessed; it overrides "
        "an orientation that the input states, with a warning.",
    )
    channel: Text | None = parameter(
        None,
        "Channel of multi-channel input to measure: its number from 0, or its name in the "
        "metadata. Without --channels it is also the only one that is read and written.",
    )
    channel_kind: Annotated[Texts, BeforeValidator(_kinds)] = parameter(
        (),
        "Channels whose values must not be averaged, such as angles and labels: 'axis=nearest'. "
        "Every step takes the nearest voxel, sections and tiles are not blended, and N4 leaves "
        "the values as they are.",
    )
    timepoint: int | None = parameter(None, "Time point of a time series: its number from 0.", ge=0)

    @property
    def kinds(self) -> dict[str, str]:
        """Kind by the name or number of a channel."""
        pairs = (word.rpartition("=") for word in self.channel_kind)
        return {name.strip(): kind.lower() for name, _, kind in pairs}


class SubjectOverrides(InputParameters):
    """Parameters of a new subject that the user sets; None: taken from the data."""

    outdir: Path | None = parameter(
        None, "Folder for the results; unset: ./results, or next to data that contain this folder."
    )
    resolution: Lengths3 | None = parameter(None, "Target voxel size in micrometres.")
    overlap: Fractions2 | None = parameter(
        None, "Overlap of neighbouring tiles as a fraction of a tile."
    )
    section_thickness: PositiveFloat | None = parameter(
        None, "Distance between the surfaces of consecutive sections in micrometres."
    )
    input_kind: Literal["auto", "mosaic", "section", "volume"] = parameter(
        "auto", "Kind of the data, if their metadata do not state it."
    )


class ExecutionParameters(StepParameters):
    """Device, memory and threads of a step."""

    title: ClassVar[str] = "Device and resources"
    per_task: ClassVar[tuple[str, ...]] = ("memory", "workers", "overwrite")
    backend: Literal["auto", "gpu", "cpu"] = parameter(
        "auto",
        "Device: auto uses a GPU if one is available and expected to be faster, gpu requires one, "
        "cpu uses none.",
    )
    memory: Size = parameter(
        "4GB",
        "Host memory budget of a step, which limits the blocks in flight. The workflow passes each "
        "task's memory.",
        workflow=False,
    )
    workers: int | None = parameter(
        None,
        "Threads, each of which reads, computes and writes its own block; unset: one per core. The "
        "workflow passes each task's cpus.",
        workflow=False,
        alias="--threads",
        ge=1,
    )
    overwrite: bool = parameter(False, "Replace existing output.", workflow=False)


class LeaseParameters(StepParameters):
    """Sharing a GPU between tasks, and waiting for it.

    The workflow passes these to its tasks through the environment: they do not change results, and
    must not enter a task's hash.
    """

    title: ClassVar[str] = "Sharing GPUs"
    per_subject: ClassVar[bool] = False
    gpu_slots: int = parameter(
        1, "Tasks that may share one GPU.", variable="OCTANE_GPU_SLOTS", ge=1, le=9999
    )
    auto_timeout: float = parameter(
        AUTO_TIMEOUT,
        "How long backend auto waits for a GPU before it falls back to the CPU.",
        unit="second",
        variable="OCTANE_AUTO_TIMEOUT",
        ge=0,
    )
    gpu_timeout: Annotated[
        Annotated[float, Field(ge=0)] | None,
        BeforeValidator(_or_none),
    ] = parameter(
        None,
        "How long backend gpu waits for a GPU before it fails; unset: no limit.",
        unit="second",
        variable="OCTANE_GPU_TIMEOUT",
    )
    gpu_lock_dir: Path | None = parameter(
        None,
        "Folder on the node for the leases of everyone who shares its GPUs. Unset: "
        "$OCTANE_GPU_LOCK_DIR, else /var/tmp/octane-gpu-leases.",
        variable="OCTANE_GPU_LOCK_DIR",
    )

    def timeout(self, backend: str) -> float | None:
        """Seconds that a backend waits for a GPU; None: no limit."""
        return self.auto_timeout if backend == "auto" else self.gpu_timeout


class ResampleParameters(StepParameters):
    """RESAMPLE: tiles (or a volume) resampled to the target resolution."""

    title: ClassVar[str] = "Resampling"
    prefix: ClassVar[str] = "resample_"
    resolution: Lengths3 | None = parameter(
        None,
        "Target voxel size: one number, or three in the order z y x. Unset: RESAMPLE is skipped "
        "and the data keep their voxel size.",
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
        "mosaic: each tile is a separate acquisition and is resampled separately; volume: one "
        "continuous image. The workflow derives it from the input.",
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
        "Compression of the resampled mosaics, which are temporary and read once. The default "
        "writes and reads fastest for its size; use none if disk space is plentiful.",
    )


class OverlapParameters(StepParameters):
    """Overlap of the tiles of a mosaic."""

    title: ClassVar[str] = "Overlap of tiles"
    overlap: Fractions2 | None = parameter(
        None,
        "Overlap of neighbouring tiles as a fraction of a tile: one number, or two in the order y "
        "x. Unset: read from the mosaic's metadata. 0: tiles abut.",
        workflow="overlap",
    )
    check_overlap: Literal["error", "warning"] = parameter(
        "error",
        "If most tiles correlate with their neighbours at another overlap than they are placed at, "
        "or only if rows or columns run the other way: error stops and names what fits, warning "
        "goes on. A doubtful case only warns.",
        workflow="stitch_check_overlap",
    )


class StitchParameters(OverlapParameters):
    """STITCH: tiles of one section placed and blended."""

    title: ClassVar[str] = "Stitching"
    prefix: ClassVar[str] = "stitch_"
    refine: bool = parameter(
        False,
        "Refine the tile positions by cross-correlation of the overlaps. Use it when the stage's "
        "positions are off by more than half a voxel.",
    )
    max_shift: PositiveFloat = parameter(
        50.0, "Largest correction that refinement may make to a tile.", unit="micrometer"
    )
    flat_field: Annotated[str, BeforeValidator(_flat_field)] = parameter(
        "none",
        "Flat-field correction of tiles that darken towards their edges. estimate: from the "
        "overlaps of each section's tiles; FILE: a TIFF or .npy of the illumination of a full tile "
        "(octane's own, or BaSiC's); none: no correction. The report measures the shading.",
    )
    dark_offset: Annotated[float, Field(ge=0, allow_inf_nan=False)] = parameter(
        0.0,
        "Grey level of an unlit pixel, subtracted before --stitch_flat_field and "
        "--stitch_attenuation are applied. Set it for cameras, where it is often 100.",
    )
    attenuation: Literal["none", "compensate", "coefficient"] = parameter(
        "none",
        "Attenuation of light with depth, from each column's own intensities by a depth-resolved "
        "model. compensate: undo it; coefficient: write the attenuation coefficient, in 1/mm, "
        "instead of intensities. It needs intensities, floating-point and not logarithms.",
    )
    codec: Codec = parameter(
        "blosc-lz4", "Compression of the stitched sections, which are temporary and read once."
    )


class StackParameters(StepParameters):
    """STACK: sections stacked into one volume."""

    title: ClassVar[str] = "Stacking"
    prefix: ClassVar[str] = "stack_"
    align: Literal["none", "translation", "rigid"] = parameter(
        "none",
        "Align sections to their neighbours. none: keep the imaged positions and report the "
        "displacements; translation: shift sections; rigid: rotate them as well. Only sections "
        "that are moved are interpolated once more.",
    )
    section_thickness: Measurable | None = parameter(
        None,
        "Distance between the surfaces of consecutive sections. Unset: read from the section's "
        "metadata, else from the sections' positions along z, else the full imaged depth. auto: "
        "measured where the next section shows a section's deep planes as well, else as if unset.",
        unit="micrometer",
        workflow="section_thickness",
    )
    section_surface: Measurable = parameter(
        0.0,
        "Depth of a section's surface in its image; what is above, such as water, is cropped. "
        "auto: as STITCH measures it in each section; one without a clear surface takes the median "
        "of the others.",
        unit="micrometer",
        workflow="section_surface",
    )
    section_level: bool = parameter(
        False,
        "Level each section: remove the tilt of its surface that STITCH measured. Needs "
        "--section_surface auto.",
        workflow="section_level",
    )
    blend: Annotated[float, Field(ge=0, allow_inf_nan=False)] = parameter(
        0.0,
        "Depth below a section's surface over which it is blended with the section above, where "
        "both show the tissue; 0: not blended.",
        unit="micrometer",
    )
    allow_missing_sections: int = parameter(
        0,
        "How many missing section numbers to accept; each becomes a blank slab and is listed in "
        "the report.",
        workflow="allow_missing_sections",
        ge=0,
    )
    excluded_sections: SectionNumbers = parameter(
        None,
        "Numbers of sections that are left out, such as '7 12-14'. Those between others become "
        "blank slabs without --allow_missing_sections. The workflow derives them from "
        "--exclude_sections and --only_sections.",
        workflow=False,
    )
    flip_sections: SectionFlips = parameter(
        None,
        "Sections that lay the other way round on their slides, with the axes along which STACK "
        "flips them, such as '3: x, 7-9: yx'; yx turns by 180 degrees. The report proposes it.",
        workflow="flip_sections",
    )
    codec: Codec = parameter(
        "zstd",
        "Compression of the volume. The workflow uses blosc-lz4 if only N4 reads the volume.",
        workflow=False,
    )

    @property
    def excluded(self) -> list[int]:
        """Numbers of the sections that the user left out, in order."""
        ranges = section_ranges(self.excluded_sections) if self.excluded_sections else []
        return sorted({number for numbers in ranges for number in numbers})

    @property
    def flips(self) -> dict[int, str]:
        """Axes (y, x) along which sections are flipped, by number."""
        return section_flips(self.flip_sections) if self.flip_sections else {}


class N4Parameters(StepParameters):
    """N4: bias field fitted on the shrunk volume and applied chunk by chunk."""

    title: ClassVar[str] = "N4 bias field correction"
    prefix: ClassVar[str] = "n4_"
    mask: Annotated[str | None, BeforeValidator(_mask)] = parameter(
        None,
        "Voxels that the field is fitted to: a file of 0 and 1 on the volume's grid, 'tissue' for "
        "a mask computed from the data (Otsu per section), unset or 'none' for every voxel.",
        workflow_default="tissue",
    )
    use_all_voxels: bool = parameter(
        False,
        "Fit every finite voxel of the mask, as ITK does: also values <= 0, without their "
        "logarithm, and outliers, which may leave the field flat.",
    )
    weights: Annotated[str | None, BeforeValidator(_or_none)] = parameter(
        None,
        "Weight image on the volume's grid (ITK's confidence image): how much each voxel counts "
        "in the fit; 0 leaves it out.",
        workflow=False,
    )
    mode: Literal["global", "per_section", "two_pass"] = parameter(
        "global",
        "global: one field over the volume; per_section: one field per section, which keeps the "
        "section's brightness; two_pass: per section, then one field over the result.",
    )
    section_starts: Annotated[Integers | None, BeforeValidator(_or_none)] = parameter(
        None,
        "First plane of every section, such as '0 30 60', for a volume without section metadata. "
        "Planes before the first belong to no section.",
    )
    histogram_matching: Literal["none", "section", "plane"] = parameter(
        "none",
        "Before the fit, match the tissue histogram of each section (or plane) to that of the "
        "volume: for sections that differ in brightness or contrast.",
    )
    z_profile_gain: bool = parameter(
        False,
        "Before the fit, scale the planes of a section to one mean intensity: for attenuation "
        "with depth.",
    )
    shrink_factor: Annotated[ItkCounts | None, BeforeValidator(_auto)] = parameter(
        (4, 4, 4),
        "Fit to every n-th voxel: one number, or three in ITK's order x y z; auto: up to 4 while "
        "the mesh keeps enough voxels, more if --memory requires it. Lower it for small volumes "
        "or fine fields.",
        workflow_default=AUTO,
    )
    iterations: Annotated[Integers | None, BeforeValidator(_auto)] = parameter(
        (50, 50, 50, 50),
        "Maximum iterations at each fitting level, one number per level. auto: 50 at each of up to "
        "four levels, with fewer levels along axes too short for the finest mesh.",
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
        "Maximum knot spacing of the first level: one number, or three in ITK's order x y z. "
        "Replaces the control points.",
        unit="millimeter",
    )
    strength: float = parameter(
        1.0, "Degree of correction: 0 leaves the input unchanged, 1 corrects fully.", ge=0, le=1
    )
    nonfinite: Literal["error", "mask"] = parameter(
        "error", "NaN and Inf in the volume: stop with an error, or mask them out of the fit."
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


class ExportParameters(StepParameters):
    """Part and format of a volume for other programs."""

    title: ClassVar[str] = "Export"
    resolution: Lengths3 | None = parameter(
        None,
        "Voxel size of the finest level to write: one number, or three in the order z y x. "
        "Unset: the finest.",
        unit="micrometer",
        workflow=False,
    )
    region: Annotated[Texts, BeforeValidator(_assigned), AfterValidator(_spans)] = parameter(
        (),
        "Part to write, in micrometres along the axes of the store, such as 'z=100:400 y=:2000': "
        "the voxels whose centres lie in it. An axis left out is whole.",
        workflow=False,
    )
    reorient: Annotated[str | None, AfterValidator(_code)] = parameter(
        None,
        "Permute and flip the axes so that z, y and x run to these: 'SAR' is superior, anterior, "
        "right, which nibabel calls RAS. The voxels keep their places in the subject.",
        workflow=False,
    )
    channels: Text | None = parameter(
        None,
        "Channels to write, in place of --channel: all, or numbers or names, such as '0 2'. Unset, "
        "as is --channel: all, if the format holds several.",
        workflow=False,
    )
    ome_zarr_version: OmeZarrVersion = parameter(
        OME_ZARR, "Version of OME-Zarr; 0.4 for programs without zarr 3.", workflow=False
    )


class BidsParameters(StepParameters):
    """Names of a volume in a BIDS derivative."""

    title: ClassVar[str] = "BIDS"
    bids_subject: str | None = parameter(
        None,
        "Label of the subject, letters and digits. Unset: the name of the store.",
        workflow=False,
    )
    bids_sample: str = parameter("01", "Label of the sample, letters and digits.", workflow=False)
    bids_suffix: Modality = parameter("OCT", "Modality.", workflow=False)


class TileParameters(StepParameters):
    """MOSAIC: the microscope's tiles in files, written as mosaic grids."""

    title: ClassVar[str] = "Tiles in files"
    prefix: ClassVar[str] = "tile_"
    searching: ClassVar[tuple[str, ...]] = (
        *("pattern", "rows", "columns", "order", "table", "table_columns", "flip", "transpose"),
    )
    """Fields by which tiles are found; PREFLIGHT's tile list replaces them."""
    pattern: Annotated[str | None, BeforeValidator(_or_none)] = parameter(
        None,
        "Names of the tiles' files, such as '{section}/tile_x{column}_y{row}.tif', with {section}, "
        "{row}, {column} or {tile}, {plane} and {channel}, and * for anything else. Unset: found "
        "if the names are unambiguous.",
    )
    rows: int | None = parameter(
        None, "Rows of tiles in a section. Unset: from the names or places.", ge=1
    )
    columns: int | None = parameter(
        None, "Columns of tiles in a section. Unset: from the names or places.", ge=1
    )
    order: TileOrder | None = parameter(
        None,
        "Order in which numbered tiles ({tile}) were imaged: along rows or columns, in the same "
        "direction (raster) or in alternating ones (snake), from a corner.",
    )
    table: Path | None = parameter(
        None,
        "File with the tiles' places: Fiji's TileConfiguration.txt, XML of BigStitcher or "
        "TeraStitcher, or a CSV table. Unset: such a file among the tiles, the tiles' own "
        "metadata, or else a grid with --overlap.",
    )
    table_columns: Annotated[Texts, BeforeValidator(_assigned)] = parameter(
        (),
        "Columns of a CSV table by its own names, such as 'x=stage_x_um y=stage_y_um file=name'.",
    )
    flip: Literal["", "y", "x", "yx"] = parameter(
        "",
        "Axes along which rows, columns and places run against the images; voxels are not changed. "
        "mosaic.py --dry_run proposes it.",
    )
    transpose: bool = parameter(
        False, "Exchange rows and columns, and y and x of the places, before they are flipped."
    )
    raw_shape: Annotated[Counts3 | None, BeforeValidator(_or_none)] = parameter(
        None, "Voxels of a tile in a file without a header, in the order z y x."
    )
    raw_type: Annotated[str | None, BeforeValidator(_or_none)] = parameter(
        None, "Type of the voxels of a file without a header, such as uint16, or >u2 (big-endian)."
    )
    codec: Codec = parameter("blosc-lz4", "Compression of the mosaic grids.")


class PhantomParameters(StepParameters):
    """PHANTOM: a synthetic serial-section OCT subject with its ground truth."""

    title: ClassVar[str] = "Phantom"
    prefix: ClassVar[str] = "phantom_"
    per_subject: ClassVar[bool] = False
    in_workflow: ClassVar[tuple[str, ...] | None] = ("seed",)
    sections: int = parameter(4, "Number of sections.", ge=1)
    seed: int = parameter(1, "Seed; the same seed makes the same subject.", ge=0)
    channels: int = parameter(
        1,
        "Channels of the mosaics, contrasts of one tissue: reflectance, retardance, attenuation, "
        "birefringence; the last of three or more is axis, angles of 0 to 180 degrees.",
        ge=1,
        le=5,
    )
    tiles: Counts2 = parameter((3, 3), "Tiles per section, in the order y x.")
    tile_shape: Counts3 = parameter((48, 128, 128), "Voxels of a full tile, in the order z y x.")
    edge_fraction: Fraction = parameter(
        0.25,
        "Fraction of a tile cropped from the last row and column; 0: all tiles are full. The rest "
        "must exceed the overlap.",
    )
    voxel_size: Lengths3 = parameter(
        (3.5, 4.0, 4.0), "Voxel size, in the order z y x.", unit="micrometer"
    )
    overlap: Fractions2 = parameter(
        (0.2, 0.2), "Overlap of neighbouring tiles as a fraction of a tile, in the order y x."
    )
    section_thickness: PositiveFloat = parameter(
        150.0,
        "Thickness of each cut, as the metadata state it; tissue imaged below it appears again in "
        "the next section.",
        unit="micrometer",
    )
    speckle_looks: float = parameter(
        16.0, "Independent looks averaged in the speckle; 0: no speckle.", ge=0
    )
    attenuation: float = parameter(
        1.0, "Attenuation with depth in a section.", unit="1/millimeter", ge=0
    )
    shading: Fraction = parameter(0.1, "Fraction of the intensity lost at the corners of a tile.")
    bias: float = parameter(0.5, "Half range of the log bias field over the subject.", ge=0)
    section_steps: float = parameter(
        0.0, "Half range of the log brightness differences between sections.", ge=0
    )
    position_error: float = parameter(
        0.0,
        "Maximum stage error of a tile in y and x; positions.csv has the true positions.",
        unit="micrometer",
        ge=0,
    )
    shift: float = parameter(
        0.0,
        "Maximum displacement of a section in y and x; the truth records each one.",
        unit="micrometer",
        ge=0,
    )
    rotation: float = parameter(
        0.0, "Maximum rotation of a section about its centre.", unit="degree", ge=0
    )
    surface: float = parameter(
        0.0,
        "Depth of the sections' surface below their first plane; water lies above it.",
        unit="micrometer",
        ge=0,
    )
    surface_jitter: float = parameter(
        0.0, "Maximum difference of a section's surface from that depth.", unit="micrometer", ge=0
    )
    tilt: float = parameter(
        0.0, "Maximum tilt of a section's surface along y and x.", unit="degree", ge=0, lt=45
    )
    thickness_jitter: float = parameter(
        0.0,
        "Maximum difference of a section's thickness from the stated one.",
        unit="micrometer",
        ge=0,
    )
    scattering: float = parameter(
        0.0,
        "Attenuation coefficient of tissue of reflectivity 1, through which light passes twice; "
        "that of other tissue is proportional to its reflectivity.",
        unit="1/millimeter",
        ge=0,
    )
    rolled_planes: int = parameter(
        0, "Planes by which the middle tile of the middle section is rolled along z."
    )
    dtype: Literal["uint16", "float32"] = parameter("float32", "Type of the mosaics.")
    truth_resolution: PositiveFloat = parameter(
        10.0,
        "Voxel size of the truth; N4 compares with it if the run has the same --resolution.",
        unit="micrometer",
    )


class WorkflowParameters(StepParameters):
    """Input, output, steps and resources of a run."""

    title: ClassVar[str] = "Workflow"
    per_subject: ClassVar[bool] = False
    input: Path | None = parameter(
        None,
        "A folder of tiles in files, of mosaic grids or of sections (one OME-Zarr each), one "
        "mosaic, or one volume.",
        per_subject=True,
    )
    samplesheet: Path | None = parameter(
        None,
        "CSV table of a cohort, instead of --input: one row per subject, with the columns subject, "
        "input and any parameters that differ.",
    )
    outdir: Path = parameter(Path("results"), "Folder for the results; created if missing.")
    subject: str | None = parameter(
        None,
        "Name of the subject; unset: the name of the input. In a params file, quote a name of "
        "digits.",
        per_subject=True,
    )
    input_kind: Literal["auto", "mosaic", "section", "volume"] = parameter(
        "auto",
        "Kind of the input. auto: from octane's own metadata; without them a folder of stores "
        "holds mosaics, and a single store is a mosaic if its chunks span the full Z. Tiles in "
        "files count as mosaics.",
        per_subject=True,
    )
    channels: Annotated[Text | None, BeforeValidator(_joined)] = parameter(
        None,
        "Channels in the results: all, or numbers or names, such as '0 2' or 'GFP, slow axis'. "
        "Tiles and sections of each lie where those of --channel do. Unset: only --channel.",
        per_subject=True,
    )
    positions: Path | None = parameter(
        None,
        "CSV of tile positions: columns section, row, column, y, x (of the tile's first edge, in "
        "micrometres). Replaces the overlap.",
        per_subject=True,
    )
    displacements: Path | None = parameter(
        None,
        "CSV of section displacements that STACK undoes instead of measured ones: columns section, "
        "y, x (micrometres) and rotation (degrees), such as SUBJECT_displacements.csv of an "
        "earlier run. Sections that are not in it, or whose cells are empty, are measured. A "
        "column thickness (micrometres) replaces --section_thickness where it has a value.",
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
    truth: Path | None = parameter(
        None, "A phantom's truth folder; the report compares with it.", per_subject=True
    )
    phantom: Switch = parameter(False, "Make a phantom and run on it, instead of --input.")
    skip_resample: Switch = parameter(False, "Skip RESAMPLE; the data go on unchanged.")
    skip_stitch: Switch = parameter(False, "Skip STITCH; the sections are already stitched.")
    skip_n4: Switch = parameter(False, "Skip N4; the volume goes on unchanged.")
    skip_pyramid: Switch = parameter(False, "Skip PYRAMID; the volume keeps a single resolution.")
    skip_report: Switch = parameter(False, "Skip the reports.")
    keep_going: Switch = parameter(
        False,
        "If a task still fails after its retries, drop only its subject: the run goes on with the "
        "others, and ends with exit code 1. Without it the entire run stops.",
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
        "symlink", "How results appear in outdir: as links into the work directory, or as copies."
    )
    keep_intermediates: Switch = parameter(
        True,
        "Keep what the steps before N4 write in the work directory. false: empty each mosaic, "
        "section and stack once all steps that read it have ended.",
    )
    scratch_dir: Annotated[bool | str, BeforeValidator(read_scratch)] = parameter(
        False,
        "Where tasks run. false: the work directory; true: the node's TMPDIR; or a path, which may "
        "contain variables such as '$SLURM_TMPDIR' and must exist, or end in / for tasks to create "
        "it. Use a scratch folder if the work directory is on a slow network file system.",
    )
    check_space: Switch = parameter(
        True,
        "Stop before any work if the results will not fit on the disk. false: only warn, for a "
        "resumed run that has written most of them already.",
    )
    gpu_count: int = parameter(
        0,
        "GPUs of this machine; at most gpu_count x gpu_slots tasks use them at a time. 0: no "
        "limit, for machines without GPUs. Ignored on Slurm, which allocates GPUs itself.",
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
        None, "Partition for the jobs of -profile slurm; unset: the cluster's default."
    )
    slurm_gpu_queue: str | None = parameter(
        None, "Partition for jobs that ask for a GPU; unset: slurm_queue."
    )
    slurm_gpu_type: str | None = parameter(
        None, "Type of GPU to ask Slurm for, such as a100, if the cluster has several."
    )
    slurm_account: str | None = parameter(
        None, "Account that the jobs of -profile slurm are charged to."
    )
    slurm_options: str | None = parameter(
        None,
        "Further options of sbatch for every job of -profile slurm, such as '--qos=normal'; GPU "
        "jobs also get --gres.",
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
    mosaic: TileParameters
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
