"""Sections that the user flips, because they lay the other way round on their slides."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from octane.config.validation import as_ranges
from octane.core.errors import InputError
from octane.core.geometry import Region
from octane.layout.sections import list_numbers, number_or_first
from octane.processes.stack.layout.surfaces import recorded_surface
from octane.processes.stack.parameters import StackParameters
from octane.store.image import Image
from octane.store.stated import Attributes


@dataclass(frozen=True)
class FlippedImage(Image):
    """A section whose voxels are read flipped along ``axes`` (y, x) about their middle.

    Its grid is that of the section, so that voxels are copied and not interpolated.
    """

    axes: str = ""

    def read(self, region: Region, out: npt.NDArray | None = None) -> npt.NDArray:
        """Read the flipped voxels of ``region``, as :meth:`Image.read` does."""
        sizes = zip(self.grid.shape, region, "zyx", strict=True)
        stored = tuple(
            slice(n - r.stop, n - r.start) if axis in self.axes else r for n, r, axis in sizes
        )
        voxels = super().read(stored, out)
        voxels[...] = np.flip(voxels, tuple("zyx".index(axis) for axis in self.axes))
        return voxels


def flip_axes(section: Image | None) -> str:
    """Axes along which a section is flipped; empty if it is as imaged."""
    return section.axes if isinstance(section, FlippedImage) else ""


def flip_images(sections: Sequence[Image], flips: Mapping[int, str]) -> list[Image]:
    """The sections, of which those in ``flips`` are flipped along these axes."""
    return [
        FlippedImage(
            *(section.path, section.array, section.grid, section.missing),
            *(_attributes(section, axes), section.place, section.overruled),
            *(section.channels, axes),
        )
        if (axes := flips.get(number_or_first(section)))
        else section
        for section in sections
    ]


def _attributes(section: Image, axes: str) -> Attributes:
    """Attributes of a section whose tilt and boxes of tiles are those of the flipped voxels."""
    metadata = section.attributes.get("section")
    if not isinstance(metadata, dict):
        return section.attributes
    signs = [-1 if axis in axes else 1 for axis in "yx"]
    twice = [2 * e + n for e, n in zip(section.grid.edge[1:], section.grid.extent[1:], strict=True)]

    def mirror(box: Sequence[float]) -> list[float]:
        """Corners of the box's mirror image: first y and x, last y and x."""
        spans = zip(box[:2], box[2:], signs, twice, strict=True)
        ends = [(a, b) if sign > 0 else (both - b, both - a) for a, b, sign, both in spans]
        return [*(end[0] for end in ends), *(end[1] for end in ends)]

    changes: Attributes = {
        key: [*map(mirror, cast("Sequence[Sequence[float]]", metadata[key]))]
        for key in ("imaged", "not_compared")
        if key in metadata
    }
    if "edge" in metadata and "extent" in metadata:
        edge, extent = (cast("Sequence[float]", metadata[key]) for key in ("edge", "extent"))
        ends = [a + n for a, n in zip(edge[1:], extent[1:], strict=True)]
        changes["edge"] = [edge[0], *mirror([*edge[1:], *ends])[:2]]
    surface = recorded_surface(section)
    if surface is not None and surface.tilt is not None:
        tilt = [sign * angle for sign, angle in zip(signs, surface.tilt, strict=True)]
        changes["surface"] = {**metadata["surface"], "tilt": tilt}
    return {**section.attributes, "section": {**metadata, **changes}}


def require_flippable(numbers: Sequence[int], parameters: StackParameters) -> None:
    """Raise an InputError if a section that is to be flipped is not among the ``numbers``.

    Sections that the user left out are passed over.
    """
    if absent := sorted({*parameters.flips} - {*numbers, *parameters.excluded}):
        raise InputError(
            f"--flip_sections '{parameters.flip_sections}' names section {list_numbers(absent)}, "
            f"which the input lacks: it has {as_ranges(numbers)}; correct the numbers."
        )
