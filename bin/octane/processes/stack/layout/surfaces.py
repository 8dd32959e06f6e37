"""Cut surfaces of sections in their images: as given, or as STITCH measured and recorded them."""

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from pydantic import ValidationError

from octane.config.types import AUTO
from octane.core.errors import InputError
from octane.core.geometry import Vector, slopes
from octane.layout.mosaic import Position
from octane.processes.stack.layout.displacement import NEGLIGIBLE
from octane.processes.stack.parameters import StackParameters
from octane.processes.stack.record import AS_GIVEN, MEASURED
from octane.processes.stitch.record import SurfaceFigures
from octane.store.volumes import Volume

OF_OTHERS = "of the other sections"
NONE_MEASURED = "none measured"

CERTAIN_TILT = 2.0
"""Standard deviations of a tilt below which it may be noise."""


class Surface(NamedTuple):
    """Surface of a section in its image, and its source in words.

    ``depth`` is in micrometres below the upper edge of the first plane, in the middle of the
    section (y, x). STACK removes the ``tilt`` (y, x), in degrees, which is positive where the
    surface lies deeper at larger y or x.
    """

    depth: float
    tilt: Position = (0.0, 0.0)
    source: str = AS_GIVEN

    def rise(self, extent: Vector) -> float:
        """Largest difference from ``depth`` in an area of this extent around the middle."""
        pairs = zip(slopes(self.tilt), extent[1:], strict=True)
        return sum(abs(slope) * length / 2 for slope, length in pairs)


def recorded_surface(section: Volume) -> SurfaceFigures | None:
    """Surface that STITCH recorded in a section's metadata; None if it did not look for one.

    Raises an InputError that names the section if its metadata do not describe a surface.
    """
    metadata = section.attributes.get("section")
    surface = metadata.get("surface") if isinstance(metadata, dict) else None
    if surface is None:
        return None
    try:
        return SurfaceFigures.model_validate(surface)
    except ValidationError as error:
        raise InputError(
            f"{section.path} states the surface {surface} in its metadata; write its depth in "
            "micrometres and its tilt (y, x) in degrees, or stitch it again."
        ) from error


def require_surfaces(sections: Sequence[Volume], parameters: StackParameters) -> None:
    """Raise an InputError if a tilt is to be removed but not measured, or metadata are wrong."""
    if parameters.section_surface != AUTO:
        if parameters.section_level is True:
            raise InputError(
                "--section_level removes the tilt that STITCH measured; give --section_surface "
                "auto as well."
            )
        return
    for section in sections:
        recorded_surface(section)


def cut_surfaces(
    sections: Sequence[Volume],
    extents: Sequence[Vector],
    voxel: float,
    parameters: StackParameters,
) -> list[Surface]:
    """Surface of each section; ``extents`` are theirs as imaged, ``voxel`` is the size along z.

    A section without a measured surface gets the median depth of the others, without a tilt. If
    fewer than half have one, such as none before STITCH, it begins at its first plane.
    """
    if parameters.section_surface != AUTO:
        return [Surface(parameters.section_surface)] * len(sections)
    records = [recorded_surface(section) for section in sections]
    depths = [record.depth for record in records if record is not None and record.depth is not None]
    usual = median(depths) if depths and 2 * len(depths) >= len(records) else None
    return [
        _cut_surface(record, usual, extent, voxel, parameters)
        for record, extent in zip(records, extents, strict=True)
    ]


def _cut_surface(
    record: SurfaceFigures | None,
    usual: float | None,
    extent: Vector,
    voxel: float,
    parameters: StackParameters,
) -> Surface:
    if record is not None and record.depth is not None:
        return Surface(record.depth, _removed_tilt(record, extent, voxel, parameters), MEASURED)
    if usual is not None and usual <= extent[0] - voxel:
        return Surface(usual, source=OF_OTHERS)
    return Surface(0.0, source=NONE_MEASURED)


def _removed_tilt(
    record: SurfaceFigures, extent: Vector, voxel: float, parameters: StackParameters
) -> Position:
    """Tilt that STACK removes: the measured one, if it is more than noise, else none."""
    if not parameters.section_level or record.tilt is None or record.depth is None:
        return (0.0, 0.0)
    whole = extent[0] - record.depth - Surface(0.0, record.tilt).rise(extent)
    if parameters.section_level == AUTO and whole < voxel:
        # Levelled, no plane would be whole.
        return (0.0, 0.0)
    noise = record.tilt_std or (0.0, 0.0)
    is_certain = any(abs(t) > CERTAIN_TILT * s for t, s in zip(record.tilt, noise, strict=True))
    is_large = Surface(0.0, record.tilt).rise(extent) >= NEGLIGIBLE * voxel
    return record.tilt if is_certain and is_large else (0.0, 0.0)
