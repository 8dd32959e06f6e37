"""NGFF metadata (0.4 and 0.5) of a 3-D image: its finest dataset, voxel size and offset."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ValidationError

from octane.core.errors import OctaneError
from octane.core.geometry import MICROMETERS, Vector, vector

SYNONYMS = {
    "nm": "nanometer",
    "um": "micrometer",
    "µm": "micrometer",
    "μm": "micrometer",  # the Greek letter; above it is the micro sign
    "micron": "micrometer",
    "microns": "micrometer",
    "mm": "millimeter",
    "cm": "centimeter",
    "m": "meter",
}
"""Spellings that other writers use; each means exactly one of NGFF's units."""


class AxisMetadata(BaseModel):
    """One axis; up to NGFF 0.3 it was its name alone."""

    name: str
    unit: str | None = None


def _named(axis: object) -> object:
    """An axis that is its name alone, as an axis without a unit."""
    return {"name": axis} if isinstance(axis, str) else axis


class TransformationMetadata(BaseModel):
    """A scale, a translation, or one of others that are not read."""

    type: str
    scale: list[float] | None = None
    translation: list[float] | None = None


class DatasetMetadata(BaseModel):
    """One resolution."""

    path: str
    coordinateTransformations: list[TransformationMetadata] | None = None


class MultiscaleMetadata(BaseModel):
    """Part of a multiscale that octane reads."""

    axes: list[Annotated[AxisMetadata, BeforeValidator(_named)]] = []
    datasets: list[DatasetMetadata] = []
    coordinateTransformations: list[TransformationMetadata] | None = None


class ImageMetadata(BaseModel):
    """The group's attributes, in 0.5 those under ``ome``."""

    multiscales: list[MultiscaleMetadata] = []


@dataclass(frozen=True)
class Dataset:
    """The finest dataset of an image.

    Attributes
    ----------
    path
        Of its array in the group.
    spacing, origin
        Voxel size and centre of the first voxel (z, y, x) in micrometres.
    """

    path: str
    spacing: Vector
    origin: Vector


def finest_dataset(path: Path, attributes: Mapping[str, object], input_unit: str | None) -> Dataset:
    """Read the metadata of an image's finest dataset.

    Parameters
    ----------
    path
        The store, for messages.
    attributes
        Of the store's group.
    input_unit
        Unit for axes that state none.

    Raises
    ------
    OctaneError
        When it is no image of axes z, y, x with scale and unit; says what to do.
    """
    multiscale = _multiscale(path, attributes)
    dataset = multiscale.datasets[0]
    own = dataset.coordinateTransformations or []
    # A transformation of the whole multiscale applies after the dataset's own.
    common = multiscale.coordinateTransformations or []
    scale = _vector(path, dataset.path, own, "scale")
    if scale is None or min(scale) <= 0:
        raise OctaneError(
            f"{path} states no valid scale (voxel size) for dataset {dataset.path}; "
            "add a scale transformation of three positive numbers."
        )
    shift = _vector(path, dataset.path, own, "translation") or (0.0, 0.0, 0.0)
    outer = _vector(path, dataset.path, common, "scale") or (1.0, 1.0, 1.0)
    offset = _vector(path, dataset.path, common, "translation") or (0.0, 0.0, 0.0)
    units = [_micrometers(path, axis.unit, input_unit) for axis in multiscale.axes]
    return Dataset(
        dataset.path,
        vector(*(s * o * u for s, o, u in zip(scale, outer, units, strict=True))),
        vector(*((t * o + a) * u for t, o, a, u in zip(shift, outer, offset, units, strict=True))),
    )


def dataset_paths(path: Path, attributes: Mapping[str, object]) -> list[str]:
    """Paths of an image's datasets in its group, finest first; errors as :func:`finest_dataset`."""
    return [dataset.path for dataset in _multiscale(path, attributes).datasets]


def _multiscale(path: Path, attributes: Mapping[str, object]) -> MultiscaleMetadata:
    """The first multiscale, once it is known to have axes z, y, x and datasets."""
    try:
        image = ImageMetadata.model_validate(attributes.get("ome", attributes))
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where = ".".join(map(str, problem["loc"]))
        raise OctaneError(
            f"{path} has OME-Zarr metadata that cannot be read ({where}: {problem['msg']}); "
            "correct it, or write the image again."
        ) from error
    if not image.multiscales:
        raise OctaneError(f"{path} has no OME-Zarr metadata (multiscales); write it as OME-Zarr.")
    multiscale = image.multiscales[0]
    names = [axis.name for axis in multiscale.axes]
    if names != ["z", "y", "x"]:
        raise OctaneError(
            f"{path} has the axes {' '.join(names) or '(none)'}; "
            "octane takes 3-D images with the axes z y x: extract one channel and time point."
        )
    if not multiscale.datasets:
        raise OctaneError(f"{path} lists no datasets in its multiscales; write it as OME-Zarr.")
    return multiscale


def _vector(
    path: Path, dataset: str, transformations: list[TransformationMetadata], kind: str
) -> Vector | None:
    """The first transformation of a kind, or None."""
    for transformation in transformations:
        values = transformation.scale if kind == "scale" else transformation.translation
        if transformation.type == kind:
            if values is None or len(values) != 3:
                raise OctaneError(
                    f"{path} has no valid {kind} for dataset {dataset}; it takes three numbers "
                    "(z y x): correct it."
                )
            return vector(*values)
    return None


def _micrometers(path: Path, stated: str | None, input_unit: str | None) -> float:
    """Micrometres in the unit of an axis."""
    unit = SYNONYMS.get(stated, stated) if stated else input_unit
    if unit is None:
        raise OctaneError(
            f"{path} states no unit for its axes; give --input-unit, for example "
            "--input-unit micrometer."
        )
    if unit not in MICROMETERS:
        raise OctaneError(
            f"{path} has the unit '{unit}'; octane takes {', '.join(MICROMETERS)}: correct it."
        )
    return MICROMETERS[unit]
