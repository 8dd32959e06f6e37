"""Figures of PYRAMID that the report reads."""

from pydantic import Field

from octane.core.records import Figures, Shape, Sizes


class ResolutionFigures(Figures):
    """One level of a pyramid."""

    voxel_size: Sizes
    shape: Shape
    size: int = Field(alias="bytes")


class PyramidFigures(Figures):
    """A pyramid."""

    levels: list[ResolutionFigures]
