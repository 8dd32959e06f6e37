"""What a file or store states of its image, whatever its format."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from octane.core.errors import InputError
from octane.core.geometry import Vector
from octane.core.orientation import UNSTATED, Orientation, spelled_orientation

CHANNEL, TIMEPOINT = "channel", "timepoint"
"""Axes along which one index may be chosen."""

PLAUSIBLE_SPACINGS = (1e-6, 1e9)
"""Plausible voxel sizes in micrometres; outside them, a unit or an exponent is wrong."""
MOST_LISTED = 16
"""Most entries that an error lists."""

Attributes = dict[str, object]
"""Octane's own attributes of an image."""


def stated_orientation(attributes: Attributes) -> Orientation:
    """Orientation of z, y and x in octane's attributes of an image."""
    return cast("Orientation", attributes.get("orientation", UNSTATED))


def orientation_in_words(attributes: Attributes) -> str:
    """Orientation in octane's attributes of an image, in words; empty without one."""
    return spelled_orientation(stated_orientation(attributes))


def unimaged_tiles(attributes: Attributes) -> frozenset[tuple[int, int]]:
    """Tiles of a mosaic, row and column, that octane's attributes declare as not imaged."""
    noted = cast("Mapping[str, list[list[int]]]", attributes.get("mosaic", {}))
    return frozenset((row, column) for row, column in noted.get("not_imaged", []))


@dataclass(frozen=True)
class Stated:
    """What a file states of its image, lengths in micrometres.

    Attributes
    ----------
    voxel_size
        Along z, y and x; None for an axis without one.
    axes, counts
        Meanings and lengths of the axes before z, y and x.
    labels
        Names of the first channels, empty for those without one.
    orientation
        That of z, y and x.
    attributes
        Octane's own; None in a file that octane did not write.
    notes
        Sentences on what is stated but not used.
    is_oblique
        True if the stated axes are not along those of the subject.
    without_size
        Sentence on a file that does not state its voxel size, with the remedy.
    """

    path: Path
    voxel_size: Sequence[float | None]
    axes: Sequence[str] = ()
    counts: Sequence[int] = ()
    labels: Sequence[str] = ()
    orientation: Orientation = UNSTATED
    attributes: Attributes | None = None
    notes: str = ""
    is_oblique: bool = False
    without_size: str = ""


def require_plausible(path: Path, spacing: Vector, field: str) -> None:
    """Raise unless the stated ``spacing`` (micrometres) may be that of voxels; names its field."""
    least, most = PLAUSIBLE_SPACINGS
    if not least <= min(spacing) <= max(spacing) <= most:
        raise InputError(
            f"{path} has voxels of {spacing} micrometres, which is not plausible; correct the "
            f"{field}, or the unit."
        )
