"""Coordinates of an image: its axes, and the transformations that lead from voxels to them.

NGFF 0.4 and 0.5 list the axes once. Since 0.6 (RFC-5) an image may have several coordinate systems;
its own, the intrinsic one, is that to which the transformations of all its datasets lead.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, BaseModel, BeforeValidator, FiniteFloat

from octane.core.errors import InputError

NAME_CHARACTERS = 24
"""Most characters of a name in an error."""


class AxisOrientation(BaseModel):
    """Orientation of an axis (RFC-4)."""

    type: str
    value: str


def _wrap_type(value: object) -> object:
    """Accept the value alone, as in drafts of RFC-4."""
    return {"type": "anatomical", "value": value} if isinstance(value, str) else value


class Axis(BaseModel):
    """One axis."""

    name: Annotated[str, AfterValidator(str.lower)]
    """In lower case; iohub writes capitals."""
    type: str | None = None
    unit: str | None = None
    orientation: Annotated[AxisOrientation | None, BeforeValidator(_wrap_type)] = None

    @property
    def anatomical(self) -> str:
        """Anatomical orientation; empty without one."""
        stated = self.orientation
        return stated.value.lower() if stated and stated.type == "anatomical" else ""


class CoordinateSystem(BaseModel):
    """A named system of axes."""

    name: str
    axes: list[Axis]


class Reference(BaseModel):
    """Reference to a coordinate system, of this image or in the group at ``path``."""

    name: str | None = None
    path: str | None = None


def _reference(value: object) -> object:
    """Accept a bare name, as drafts of 0.6 have it."""
    return {"name": value} if isinstance(value, str) else value


class Transformation(BaseModel):
    """A transformation of any type; those that octane does not apply are refused by their type."""

    type: str
    scale: list[FiniteFloat] | None = None
    translation: list[FiniteFloat] | None = None
    transformations: list["Transformation"] = []
    """Parts of a sequence, in the order in which they apply."""
    input: Annotated[Reference, BeforeValidator(_reference)] = Reference()
    output: Annotated[Reference, BeforeValidator(_reference)] = Reference()


class Dataset(BaseModel):
    """One resolution."""

    path: str
    coordinateTransformations: list[Transformation] | None = None


class Multiscale(BaseModel):
    """Part of a multiscale that octane reads; ``type`` and ``metadata`` are only copied."""

    axes: list[Axis] = []
    coordinateSystems: list[CoordinateSystem] = []
    datasets: list[Dataset] = []
    coordinateTransformations: list[Transformation] | None = None
    type: object = None
    metadata: object = None

    @property
    def outputs(self) -> list[str]:
        """Names of the coordinate systems to which the datasets lead: one, the intrinsic one."""
        steps = [
            step for dataset in self.datasets for step in dataset.coordinateTransformations or []
        ]
        return [*dict.fromkeys(step.output.name or "" for step in steps)]


def axes_of(path: Path, multiscale: Multiscale) -> list[Axis]:
    """Axes of an image: those of its intrinsic coordinate system if it has systems."""
    if not multiscale.coordinateSystems:
        return multiscale.axes
    names = multiscale.outputs
    systems = [system.axes for system in multiscale.coordinateSystems if [system.name] == names]
    if len(systems) != 1:
        listed = " and ".join(f"'{name[:NAME_CHARACTERS]}'" for name in names[:2]) or "none"
        raise InputError(
            f"{path} must place all its datasets in one of its coordinate systems, but names "
            f"{listed} as their output; correct coordinateTransformations or coordinateSystems."
        )
    return systems[0]


def relations_of(multiscale: Multiscale) -> str:
    """Sentence on other coordinate systems, to which results are not related; empty if none."""
    if not multiscale.coordinateSystems:
        return ""
    related = [
        f"'{name[:NAME_CHARACTERS]}' ({step.type[:NAME_CHARACTERS]})"
        for step in multiscale.coordinateTransformations or []
        # Those with a path lead to the image's labels, which are not read.
        if not (step.input.path or step.output.path)
        for name in (step.input.name, step.output.name)
        if name and name not in multiscale.outputs
    ]
    if not related:
        return ""
    return (
        f"The store relates its coordinates to {' and '.join(related)}; octane reads them as they "
        "are, and its results do not have that relation."
    )


def scale_and_translation(
    path: Path, multiscale: Multiscale, level: int, axes: list[str]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Scale and translation of a dataset along z, y and x, in the units of the axes.

    An InputError names what is missing or invalid, or a transformation that octane does not apply.
    """
    dataset = multiscale.datasets[level]
    given = dataset.coordinateTransformations or []
    sizes = {"scale"}
    if not multiscale.coordinateSystems:
        # These apply after the dataset's own.
        given = [*given, *(multiscale.coordinateTransformations or [])]
    elif len(given) != 1:
        raise InputError(
            f"{path} has {len(given)} transformations for dataset {dataset.path}, of which "
            "OME-Zarr 0.6 allows one; join them into a sequence."
        )
    else:
        # There the voxels are the unit, if they are not scaled.
        sizes = {"scale", "identity"}
    steps = [*_steps(given)]
    for step in steps:
        if step.type not in ("identity", "scale", "translation"):
            raise InputError(
                f"{path} places dataset {dataset.path} by the transformation "
                f"'{step.type[:NAME_CHARACTERS]}', which octane does not apply; resample it, and "
                "state a scale and a translation."
            )
    if sizes.isdisjoint(step.type for step in steps):
        raise InputError(
            f"{path} does not state a scale (voxel size) for dataset {dataset.path}; add a scale "
            "transformation with one positive number per axis."
        )
    scale, shift = np.ones(3), np.zeros(3)
    for step in steps:
        if step.type == "identity":
            continue
        values = step.scale if step.type == "scale" else step.translation
        if values is None or len(values) != len(axes):
            raise InputError(
                f"{path} has an invalid {step.type} for dataset {dataset.path}; use a scale and a "
                f"translation, each with {len(axes)} numbers ({' '.join(axes)})."
            )
        if step.type == "scale":
            scale, shift = scale * values[-3:], shift * values[-3:]
        else:
            shift = shift + values[-3:]
    return scale, shift


def _steps(transformations: list[Transformation]) -> Iterator[Transformation]:
    """Transformations in the order in which they apply, those of sequences included."""
    for step in transformations:
        if step.type == "sequence":
            yield from _steps(step.transformations)
        else:
            yield step
