"""Models of parameters: their base, and those that several commands share.

A model is the one definition of its parameters: name, type, unit, default, range and help. The
flags and ``--help`` of each command, the validation in PREFLIGHT and the files that ``make
generate`` writes derive from it. Each description says when to change the value.

In the workflow and on command lines, a field's name is prefixed with its step's name
(``n4_strength``) unless ``workflow=`` names it otherwise. ``workflow=False`` keeps a field out of
the workflow; commands use its bare name.

A parameter can be set per subject, in a column of a samplesheet, if its model or the field itself
says so (``per_subject``); the others apply to the entire run.
"""

import re
from typing import Annotated, ClassVar, Literal, TypeVar, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from octane.config.types import AUTO, NEAREST, Lengths3, Size, Text, Texts, Unit, as_list, or_none
from octane.core.orientation import Orientation, read_orientation

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
    shown: bool | None = None,
    **limits: float,
) -> Value:
    """Define a model's field; ``limits`` are pydantic's ``ge``, ``gt``, ``le`` and ``lt``.

    The workflow's ``--help`` has those that are ``shown``, and ``--help all`` the others too.
    """
    extra = {"unit": unit, "workflow": workflow, "per_subject": per_subject}
    extra |= {"workflow_default": workflow_default, "alias": alias, "variable": variable}
    extra |= {"shown": shown}
    stated = {name: value for name, value in extra.items() if value is not None}
    # pydantic's stubs type each limit separately; at run time Field accepts a mapping.
    field = Field(default, description=description, json_schema_extra=stated, **limits)  # ty: ignore
    return cast("Value", field)


def _oriented(value: object) -> object:
    """Read a code such as ``PIR``, or a value of OME-Zarr for each of z, y and x."""
    words = as_list(value)
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


class StepParameters(BaseModel):
    """Base of every step's parameters: unknown names are errors, values cannot change."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, defer_build=True)
    title: ClassVar[str] = ""
    needed: ClassVar[str] = ""
    """Who needs these parameters, in a sentence."""
    prefix: ClassVar[str] = ""
    """Prefix of the fields' names in the workflow."""
    per_subject: ClassVar[bool] = True
    per_task: ClassVar[tuple[str, ...]] = ()
    """Fields that the workflow sets per task: recorded in the command, not in the settings."""

    @classmethod
    def workflow_name(cls, field: str) -> str | None:
        """Name of a field's workflow parameter; None if it is not one."""
        if field not in cls.model_fields:
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
    needed: ClassVar[str] = (
        "If the input does not state its voxel size, unit or orientation, or has several channels."
    )
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
        shown=True,
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
        "metadata. Without --channels it is also the only one that is read and written. Unset: the "
        "workflow takes the first that shows structure as clearly as any.",
        shown=True,
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


class ExecutionParameters(StepParameters):
    """Device, memory and threads of a step."""

    title: ClassVar[str] = "Device and resources"
    needed: ClassVar[str] = "If GPUs are to be used or left alone."
    per_task: ClassVar[tuple[str, ...]] = ("memory", "workers", "overwrite")
    backend: Literal["auto", "gpu", "cpu"] = parameter(
        "auto",
        "Device: auto uses a GPU if one is available and expected to be faster, gpu requires one, "
        "cpu uses none.",
        shown=True,
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
    needed: ClassVar[str] = "If several tasks or users share a GPU."
    per_subject: ClassVar[bool] = False
    gpu_slots: int = parameter(
        1, "Tasks that may share one GPU.", variable="OCTANE_GPU_SLOTS", ge=1, le=9999
    )
    gpu_timeout: Annotated[
        Annotated[float, Field(ge=0)] | None,
        BeforeValidator(or_none),
    ] = parameter(
        None,
        "How long a task waits for a GPU; then backend auto takes the CPU, and backend gpu fails. "
        "Unset: 300 with auto, no limit with gpu.",
        unit="second",
        variable="OCTANE_GPU_TIMEOUT",
    )

    def timeout(self, backend: str) -> float | None:
        """Seconds that a backend waits for a GPU; None: no limit."""
        return AUTO_TIMEOUT if self.gpu_timeout is None and backend == "auto" else self.gpu_timeout
