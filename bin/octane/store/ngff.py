"""NGFF metadata (0.4 to 0.6) of an image, and octane's own: axes, datasets, voxel size, offset.

Every error is one sentence that names the store and the field.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, cast

import numpy as np
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    FiniteFloat,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from octane.config.parameters import InputParameters
from octane.core.errors import InputError, unreadable
from octane.core.geometry import LENGTHS, MICROMETERS, Vector, vector
from octane.core.orientation import (
    UNSTATED,
    VALUES,
    Orientation,
    are_distinct,
    spelled_orientation,
)
from octane.store.coordinates import (
    NAME_CHARACTERS,
    Axis,
    Multiscale,
    axes_of,
    relations_of,
    scale_and_translation,
)
from octane.store.formats.archive import is_archive, read_object
from octane.store.stated import CHANNEL, TIMEPOINT, require_plausible

AXIS_MEANINGS = {"channel": CHANNEL, "c": CHANNEL, "time": TIMEPOINT, "t": TIMEPOINT}
"""Meaning of an axis by its type, or else by its name."""

VERSIONS = ("0.4", "0.5", "0.6")
"""Versions of OME-Zarr that octane reads."""
Positive = Annotated[FiniteFloat, Field(gt=0)]
Extent = Annotated[list[Positive], Field(min_length=3, max_length=3)]
Number = Annotated[int, Field(ge=0)]


def _first(entries: object) -> object:
    return entries[:1] if isinstance(entries, list) else entries


def _or_nothing(value: object, validate: ValidatorFunctionWrapHandler) -> object:
    """Ignore invalid content of ``omero``."""
    try:
        return validate(value)
    except ValidationError:
        return None


def _printable(label: str) -> str:
    return label if label.isprintable() else ""


class Window(BaseModel, strict=True):
    """Display window of a channel: the values shown as black and white, and their limits."""

    start: FiniteFloat
    min: FiniteFloat
    end: FiniteFloat
    max: FiniteFloat


class ShownChannel(BaseModel):
    """How viewers show a channel; None where that is missing or invalid."""

    label: Annotated[
        Annotated[str, AfterValidator(_printable)] | None, WrapValidator(_or_nothing)
    ] = None
    window: Annotated[Window | None, WrapValidator(_or_nothing)] = None
    color: Annotated[
        Annotated[str, Field(pattern="^[0-9A-Fa-f]{6}$")] | None, WrapValidator(_or_nothing)
    ] = None


class Omero(BaseModel):
    """The transitional metadata ``omero``."""

    channels: list[Annotated[ShownChannel | None, WrapValidator(_or_nothing)]] = []


class Multiscales(BaseModel):
    """NGFF's part of the attributes: the first image, and how its channels are shown."""

    version: object = None
    multiscales: Annotated[list[Multiscale], BeforeValidator(_first)] = []
    omero: Annotated[Omero | None, WrapValidator(_or_nothing)] = None

    @property
    def shown(self) -> list[ShownChannel]:
        """How the channels are shown."""
        return [channel or ShownChannel() for channel in self.omero.channels] if self.omero else []


class Facts(BaseModel, strict=True):
    """Facts about a mosaic or a section, lengths in micrometres; tiles are row and column."""

    number: Number | None = None
    thickness: Positive = 1.0
    edge: Annotated[list[FiniteFloat], Field(min_length=3, max_length=3)] = []
    extent: Extent = []
    tile_extent: Extent = []
    pitch: Annotated[list[Positive], Field(min_length=2, max_length=2)] = []
    not_imaged: list[Annotated[list[Number], Field(min_length=2, max_length=2)]] = []


class StackedSection(BaseModel, strict=True):
    """A section of a volume."""

    name: str
    number: Number
    start: Number
    stop: Number
    missing: bool = False


class NotedChannel(BaseModel, strict=True):
    """A channel of an image with several."""

    name: str
    kind: Literal["nearest"] | None = None


class Noted(BaseModel, strict=True):
    """The part of octane's own attributes that is read; converters may write it too."""

    kind: Literal["mosaic", "section", "volume"] = "volume"
    mosaic: Facts = Facts()
    section: Facts = Facts()
    sections: list[StackedSection] = []
    channel_kind: Literal["nearest"] | None = None
    channels: list[NotedChannel] = []


class GroupAttributes(Multiscales):
    """A group's attributes; NGFF's are under ``ome`` from 0.5 on."""

    ome: Multiscales | None = None
    octane: Noted | None = None


class GroupMetadata(BaseModel):
    """The group of an image."""

    zarr_format: Literal[2, 3]
    node_type: Literal["group"] = "group"
    attributes: GroupAttributes


class Metadata(NamedTuple):
    """Metadata of an image, lengths in micrometres.

    ``datasets`` are paths of arrays, finest first; ``axes`` are the meanings of those before z, y
    and x; ``labels`` are channel names, empty where one is missing, and ``windows`` and ``colors``
    (RRGGBB) how they are displayed; ``notes`` tell in sentences which unit is replaced and what is
    stated but not used; ``spacing`` and ``origin`` (centre of the first voxel) are those of one
    level; ``orientation`` is that of z, y and x; ``version`` is OME-Zarr's from 0.5 on; ``coarser``
    says how the coarser levels were made (``type`` and ``metadata`` of the multiscale); ``octane``
    are octane's own attributes, None in a store without them.
    """

    datasets: list[str]
    axes: list[str]
    labels: list[str]
    windows: list[Window | None]
    colors: list[str | None]
    notes: str
    spacing: Vector
    origin: Vector
    orientation: Orientation
    version: object
    coarser: dict[str, object]
    octane: dict[str, object] | None


def read_metadata(path: Path, reading: InputParameters | None, level: int = 0) -> Metadata:
    """Read the metadata of an image, at one of its levels; 0 is the finest.

    A unit in ``reading`` replaces the stated ones. With None, axes without a unit are in
    micrometres. An OctaneError says why the image does not end in the axes z, y, x with a scale and
    a unit, and how to correct it.
    """
    if not path.exists():
        raise InputError(f"{path} does not exist; check the path.")
    content = read_json(path, "zarr.json") or read_json(path, ".zgroup")
    if content is None or content.get("node_type") == "array":
        where, remedy = "", "give the image's own folder, copy it again if the copy is incomplete"
        if is_archive(path):
            where, remedy = " at the root of the archive", "zip the files in the image's folder"
        raise InputError(
            f"{path} is not an OME-Zarr image (not a zarr group{where}); {remedy}, or convert "
            "another format to OME-Zarr."
        )
    content = {"attributes": read_json(path, ".zattrs") or {}, **content}
    try:
        attributes = GroupMetadata.model_validate(content).attributes
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where = ".".join(map(str, problem["loc"])).removeprefix("attributes.")
        raise InputError(
            f"{path} has OME-Zarr metadata that cannot be read ({where}: {problem['msg']}); "
            "correct it, or write the image again as OME-Zarr 0.4, 0.5 or 0.6."
        ) from error
    described = attributes.ome or attributes
    if not described.multiscales:
        packed = "extract it and " if is_archive(path) else ""
        raise InputError(
            f"{path} lacks OME-Zarr metadata (multiscales); write it as OME-Zarr. If it is a "
            f"plate or a collection of images, {packed}give one of them, such as {path / '0'} or "
            f"{path / 'A/1/0'}, or links to them."
        )
    multiscale = described.multiscales[0]
    if not multiscale.datasets:
        raise InputError(f"{path} lists no datasets in its multiscales; write it as OME-Zarr.")
    stated = axes_of(path, multiscale)
    if not stated:
        raise InputError(
            f"{path} does not list its axes, as OME-Zarr 0.4 to 0.6 do; write it as one of these."
        )
    names = [axis.name for axis in stated]
    axes = [AXIS_MEANINGS.get(a.type or "", AXIS_MEANINGS.get(a.name, a.name)) for a in stated[:-3]]
    if names[-3:] != ["z", "y", "x"] or len(set(axes)) < len(axes) or len(axes) > 2:
        raise InputError(
            f"{path} has the axes {' '.join(names)[:100]}; octane reads 3-D images with the axes "
            "z y x, and at most t and c before them: extract one."
        )
    scale, shift = scale_and_translation(path, multiscale, level, names)
    bare = [axis.name for axis in stated[-3:] if not axis.unit]
    if 0 < len(bare) < 3:
        raise InputError(
            f"{path} states units, but not for {' and '.join(bare)}, whose scale may be a "
            "placeholder, as bioformats2raw writes it; correct its scale and unit."
        )
    unit = None if reading is None else reading.input_unit
    assumed = "micrometer" if reading is None else None
    units = [_micrometers(path, unit or axis.unit or assumed) for axis in stated[-3:]]
    other = [
        axis.unit
        for axis, size in zip(stated[-3:], units, strict=True)
        if axis.unit and LENGTHS.get(axis.unit) != size
    ]
    spacing, origin = vector(*np.multiply(scale, units)), vector(*np.multiply(shift, units))
    require_plausible(path, spacing, f"scale of dataset {multiscale.datasets[level].path}")
    orientation, unused = _orientation_of(stated[-3:])
    octane_attributes = cast("dict[str, dict[str, object]]", content["attributes"]).get("octane")
    datasets = [dataset.path for dataset in multiscale.datasets]
    labels = [channel.label or "" for channel in described.shown]
    windows = [channel.window for channel in described.shown]
    colors = [channel.color for channel in described.shown]
    coarser = multiscale.model_dump(include={"type", "metadata"}, exclude_unset=True)
    notes = [relations_of(multiscale), unused]
    version = str(described.version or VERSIONS[0])
    if not version.startswith(VERSIONS):
        notes.append(
            f"The store states OME-Zarr {version[:NAME_CHARACTERS]}, newer than "
            f"{VERSIONS[-1]}; check what was read of it."
        )
    if other:
        notes.append(
            f"The store states lengths in {' and '.join(dict.fromkeys(other))}; they are read in "
            f"{unit}, as --input_unit says."
        )
    return Metadata(
        datasets, axes, labels, windows, colors, " ".join(filter(None, notes)),
        spacing, origin, orientation, described.version, coarser, octane_attributes,
    )  # fmt: skip


def read_json(store: Path, name: str) -> dict[str, object] | None:
    """Read the JSON object in a metadata file of a store; None if the file is missing."""
    try:
        content = json.loads(read_object(store, name))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise unreadable(error) from error
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise InputError(
            f"{store / name} is not a JSON object; restore it, or write the image again."
        )
    return content


def _orientation_of(axes: Sequence[Axis]) -> tuple[Orientation, str]:
    """Orientation of z, y and x, and a sentence about what is stated of it but not used."""
    z, y, x = (axis.anatomical for axis in axes)
    unknown = next((value for value in (z, y, x) if value and value not in VALUES), None)
    if unknown is not None:
        why = f"OME-Zarr (RFC-4) does not have '{unknown[:NAME_CHARACTERS]}'"
    elif not are_distinct((z, y, x)):
        why = f"two axes run along the same one of the subject: {spelled_orientation((z, y, x))}"
    else:
        return (z, y, x), ""
    return UNSTATED, f"The orientation that the store states is not used ({why})."


def _micrometers(path: Path, unit: str | None) -> float:
    """Length of an axis's unit in micrometres."""
    if unit is None:
        raise InputError(
            f"{path} does not state a unit for its axes; give --input_unit, for example "
            "--input_unit micrometer."
        )
    if unit not in LENGTHS:
        raise InputError(
            f"{path} has the unit '{unit}'; change it to one of {', '.join(MICROMETERS)}."
        )
    return LENGTHS[unit]
