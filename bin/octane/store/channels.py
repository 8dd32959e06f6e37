"""Channel and time point of an image that is read: the only one, or the one that was chosen."""

from collections.abc import Sequence
from pathlib import Path

from octane.config.params import InputParameters
from octane.core.errors import OctaneError

CHANNEL, TIMEPOINT = "channel", "timepoint"
"""Axes along which one place may be chosen."""

LISTED, SHOWN = 16, 24
"""Places that an error lists, and characters of a name in it."""


def place_of(
    path: Path,
    axes: Sequence[str],
    sizes: Sequence[int],
    labels: Sequence[str],
    reading: InputParameters | None,
) -> tuple[int, ...]:
    """Place of a 3-D image along the other axes of its array, which have these sizes.

    ``labels`` are names of the first channels, empty where one has none; ``reading`` is None where
    there is no way to choose, as for a mask.

    Raises
    ------
    OctaneError
        When there are several and none is chosen, or not the one that is chosen; lists them.
    """
    wishes = {CHANNEL: reading.channel, TIMEPOINT: reading.timepoint} if reading else {}
    places = {}
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
            remedy = f"give one with --{axis}" if axis in wishes else "write one of them alone"
            raise OctaneError(f"{path} has {has}: {listed}{more}; {remedy}.")
        places[axis] = found[0]
    return tuple(places[axis] for axis in axes)
