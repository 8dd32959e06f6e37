"""NGFF metadata (0.4 and 0.5) of an image, and octane's own: axes, datasets, voxel size, offset.

Whatever is wrong with it is one sentence that names the store and the field.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, cast

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, FiniteFloat, ValidationError

from octane.config.params import InputParameters
from octane.core.errors import InputError, unreadable
from octane.core.files import read_regular
from octane.core.geometry import LENGTHS, MICROMETERS, Vector, spelled, vector

CHANNEL, TIMEPOINT = "channel", "timepoint"
"""Axes along which one place may be chosen."""
MEANINGS = {"channel": CHANNEL, "c": CHANNEL, "time": TIMEPOINT, "t": TIMEPOINT}
"""Meaning of an axis by its type, or else by its name."""

SPACINGS = (1e-6, 1e9)
"""Voxel sizes that are taken, micrometres: beyond them a unit or an exponent is wrong."""

LISTED, SHOWN = 16, 24
"""Places that an error lists, and characters of a name in it."""

Attributes = dict[str, object]
"""Octane's own attributes of an image."""

AS_STATED = InputParameters()
"""Parameters that leave all to what a file states."""

Positive = Annotated[FiniteFloat, Field(gt=0)]
Extent = Annotated[list[Positive], Field(min_length=3, max_length=3)]
Number = Annotated[int, Field(ge=0)]


class Axis(BaseModel):
    """One axis."""

    name: Annotated[str, AfterValidator(str.lower)]
    """In capitals too, as iohub writes them."""
    type: str | None = None
    unit: str | None = None


class Transformation(BaseModel):
    """A scale, a translation, an identity, or one of others, which are refused."""

    type: str
    scale: list[FiniteFloat] | None = None
    translation: list[FiniteFloat] | None = None


class Dataset(BaseModel):
    """One resolution."""

    path: str
    coordinateTransformations: list[Transformation] | None = None


class Multiscale(BaseModel):
    """Part of a multiscale that octane reads; its transformations apply after a dataset's own."""

    axes: list[Axis] = []
    datasets: list[Dataset] = []
    coordinateTransformations: list[Transformation] | None = None


def _first(entries: object) -> object:
    return entries[:1] if isinstance(entries, list) else entries


def _labels(omero: object) -> list[str]:
    """Names of channels, empty where there is none to show: nothing in ``omero`` is an error."""
    channels = omero.get("channels") if isinstance(omero, dict) else None
    listed = channels if isinstance(channels, list) else []
    names = [channel.get("label") if isinstance(channel, dict) else None for channel in listed]
    return [name if isinstance(name, str) and name.isprintable() else "" for name in names]


class Multiscales(BaseModel):
    """NGFF's part of the attributes; the first image is read, and the names of its channels."""

    multiscales: Annotated[list[Multiscale], BeforeValidator(_first)] = []
    omero: Annotated[list[str], BeforeValidator(_labels)] = []


class Facts(BaseModel, strict=True):
    """Facts on a mosaic or a section, lengths in micrometres."""

    number: Number | None = None
    thickness: Positive = 1.0
    edge: Annotated[list[FiniteFloat], Field(min_length=3, max_length=3)] = []
    extent: Extent = []
    tile_extent: Extent = []
    pitch: Annotated[list[Positive], Field(min_length=2, max_length=2)] = []


class StackedSection(BaseModel, strict=True):
    """A section of a volume."""

    name: str
    number: Number
    start: Number
    stop: Number
    missing: bool = False


class Noted(BaseModel, strict=True):
    """Part of octane's own attributes that is read; converters write it as well."""

    kind: Literal["mosaic", "section", "volume"] = "volume"
    mosaic: Facts = Facts()
    section: Facts = Facts()
    sections: list[StackedSection] = []


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
    """Arrays of an image, finest first, and voxel size and first centre of the finest.

    Lengths are in micrometres; ``axes`` are those before z, y and x by their meaning, ``labels``
    names of channels; ``overruled`` is a sentence on stated units where another one is taken;
    ``octane`` is None in stores of others.
    """

    datasets: list[str]
    axes: list[str]
    labels: list[str]
    overruled: str
    spacing: Vector
    origin: Vector
    octane: dict[str, object] | None


def read_metadata(path: Path, reading: InputParameters | None) -> Metadata:
    """Read the metadata of an image; the unit of ``reading`` is that of all axes.

    Without ``reading``, axes that state no unit are in micrometres. An OctaneError says why the
    last axes are not z, y, x with scale and unit, and what to do.
    """
    if not path.exists():
        raise InputError(f"{path} does not exist; check the path.")
    content = read_json(path / "zarr.json") or read_json(path / ".zgroup")
    if content is None or content.get("node_type") == "array":
        raise InputError(
            f"{path} is not an OME-Zarr image (no zarr group in it); give the image's own folder, "
            "copy it again where it came in part, or convert another format to OME-Zarr."
        )
    content = {"attributes": read_json(path / ".zattrs") or {}, **content}
    try:
        attributes = GroupMetadata.model_validate(content).attributes
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where = ".".join(map(str, problem["loc"])).removeprefix("attributes.")
        raise InputError(
            f"{path} has OME-Zarr metadata that cannot be read ({where}: {problem['msg']}); "
            "correct it, or write the image again as OME-Zarr 0.4 or 0.5."
        ) from error
    described = attributes.ome or attributes
    if not described.multiscales:
        raise InputError(
            f"{path} has no OME-Zarr metadata (multiscales); write it as OME-Zarr, or where images "
            "lie in it, as in what bioformats2raw writes or in a plate, give one, like "
            f"{path / '0'} or {path / 'A/1/0'}, or links to them."
        )
    multiscale = described.multiscales[0]
    if not multiscale.axes:
        raise InputError(
            f"{path} lists no axes, as OME-Zarr 0.4 and 0.5 do; write it as one of these."
        )
    names = [axis.name for axis in multiscale.axes]
    axes = [MEANINGS.get(a.type or "", MEANINGS.get(a.name, a.name)) for a in multiscale.axes[:-3]]
    if names[-3:] != ["z", "y", "x"] or len(set(axes)) < len(axes) or len(axes) > 2:
        raise InputError(
            f"{path} has the axes {' '.join(names)[:100]}; octane takes 3-D images of "
            "the axes z y x, with t and c before them at most: extract one."
        )
    if not multiscale.datasets:
        raise InputError(f"{path} lists no datasets in its multiscales; write it as OME-Zarr.")
    first = multiscale.datasets[0]
    given = [
        *(first.coordinateTransformations or []),
        *(multiscale.coordinateTransformations or []),
    ]
    scale, shift = _composed(path, first.path, names, given)
    bare = [axis.name for axis in multiscale.axes[-3:] if not axis.unit]
    if 0 < len(bare) < 3:
        raise InputError(
            f"{path} states a unit for some axes and none for {' and '.join(bare)}, whose scale "
            "may be no size (bioformats2raw writes 1): correct scale and unit in its metadata."
        )
    stated = [axis.unit for axis in multiscale.axes[-3:]]
    unit = None if reading is None else reading.input_unit
    assumed = "micrometer" if reading is None else None
    units = [_micrometers(path, unit or of_axis or assumed) for of_axis in stated]
    other = [u for u, size in zip(stated, units, strict=True) if u and LENGTHS.get(u) != size]
    spacing, origin = vector(*np.multiply(scale, units)), vector(*np.multiply(shift, units))
    least, most = SPACINGS
    if not least <= min(spacing) <= max(spacing) <= most:
        raise InputError(
            f"{path} has voxels of {spacing} micrometres, which no image has; correct the scale of "
            f"dataset {first.path}, or the unit."
        )
    own = cast("dict[str, dict[str, object]]", content["attributes"]).get("octane")
    datasets = [dataset.path for dataset in multiscale.datasets]
    overruled = ""
    if other:
        overruled = (
            f"The store states lengths in {' and '.join(dict.fromkeys(other))}; they are read in "
            f"{unit}, as input_unit says."
        )
    return Metadata(datasets, axes, described.omero, overruled, spacing, origin, own)


def read_json(file: Path) -> dict[str, object] | None:
    """Object of a metadata file; None where there is no file."""
    try:
        content = json.loads(read_regular(file))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise unreadable(error) from error
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise InputError(f"{file} is no JSON object; restore it, or write the image again.")
    return content


def _composed(
    path: Path, dataset: str, axes: list[str], transformations: list[Transformation]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Scale and translation along z, y and x of one transformation after the other."""
    scale, shift = np.ones(3), np.zeros(3)
    if "scale" not in [t.type for t in transformations]:
        raise InputError(
            f"{path} states no valid scale (voxel size) for dataset {dataset}; add a scale "
            "transformation of one positive number for each axis."
        )
    for t in transformations:
        if t.type == "identity":
            continue
        values = {"scale": t.scale, "translation": t.translation}.get(t.type)
        if values is None or len(values) != len(axes):
            raise InputError(
                f"{path} has no valid {t.type} for dataset {dataset}; octane takes scale and "
                f"translation of {len(axes)} numbers ({' '.join(axes)}): correct it."
            )
        if t.type == "scale":
            scale, shift = scale * values[-3:], shift * values[-3:]
        else:
            shift = shift + values[-3:]
    return scale, shift


def _micrometers(path: Path, unit: str | None) -> float:
    """Micrometres in the unit of an axis."""
    if unit is None:
        raise InputError(
            f"{path} states no unit for its axes; give --input_unit, for example "
            "--input_unit micrometer."
        )
    if unit not in LENGTHS:
        raise InputError(
            f"{path} has the unit '{unit}'; octane takes {', '.join(MICROMETERS)}: correct it."
        )
    return LENGTHS[unit]


def require_stated(path: Path, spacing: Sequence[float], reading: InputParameters | None) -> None:
    """Raise where another voxel size is given than a file states, in micrometres."""
    given = None if reading is None else reading.voxel_size
    if given is not None and not np.allclose(spacing, given, rtol=1e-3):
        raise InputError(
            f"{path} states voxels of {spelled(spacing)} um (z y x) and --voxel_size says "
            f"{spelled(given)}; give what it states, or correct its metadata."
        )


def place_of(
    path: Path,
    axes: Sequence[str],
    sizes: Sequence[int],
    labels: Sequence[str],
    reading: InputParameters | None,
) -> tuple[int, ...]:
    """Place of a 3-D image along the other axes of its array, which have these sizes.

    ``labels`` are names of the first channels, empty where one has none; ``reading`` is None where
    there is no way to choose, as for a mask. An OctaneError lists what there is, where that is
    several and none is chosen, or not the one that is chosen.
    """
    wishes = {CHANNEL: reading.channel, TIMEPOINT: reading.timepoint} if reading else {}
    places: dict[str, int] = {}
    open_axes: dict[str, str] = {}
    for axis, count in {CHANNEL: 1, TIMEPOINT: 1, **dict(zip(axes, sizes, strict=True))}.items():
        names, asked = labels[:count] if axis == CHANNEL else [], wishes.get(axis)
        number = "0" if asked is None and count == 1 else str(asked)
        found = [place for place, name in enumerate(names) if name == asked]
        # No array has so many places that the number of one has ten digits.
        if number.isdecimal() and len(number) < 10 and int(number) < count:
            found = [int(number)]
        if len(found) != 1:
            has = f"{count} {axis}s" if asked is None else f"no single {axis} '{asked}' but {count}"
            shown = enumerate([*names, *[""] * LISTED][: min(count, LISTED)])
            listed = ", ".join(f"{n} '{name[:SHOWN]}'" if name else str(n) for n, name in shown)
            more = f" and {count - LISTED} more" if count > LISTED else ""
            open_axes[axis] = f"{has}: {listed}{more}"
        else:
            places[axis] = found[0]
    if open_axes:
        of_each = " of each" if len(open_axes) > 1 else ""
        flags = " and ".join(f"--{axis}" for axis in open_axes)
        choice = f"give one{of_each} with {flags}"
        remedy = choice if open_axes.keys() <= wishes.keys() else "write one of them alone"
        raise InputError(f"{path} has {', and '.join(open_axes.values())}; {remedy}.")
    return tuple(places[axis] for axis in axes)
