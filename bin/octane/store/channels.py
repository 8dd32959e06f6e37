"""Channel and time point of an image that is read: the only one, or the one that was chosen."""

from collections.abc import Sequence
from pathlib import Path

from octane.config.params import Choice
from octane.core.errors import OctaneError

CHANNEL, TIMEPOINT = "channel", "timepoint"
"""Names of the two axes along which one place may be chosen."""

LISTED = 16
"""Channels that an error lists."""
SHOWN = 24
"""Characters of a channel's name in it."""


def place_of(
    path: Path,
    axes: Sequence[str],
    sizes: Sequence[int],
    labels: Sequence[str],
    choice: Choice | None,
) -> tuple[int, ...]:
    """Place of a 3-D image along the other axes of an array.

    Parameters
    ----------
    axes, sizes
        Axes other than z, y and x, and their lengths. Those that are not :data:`CHANNEL` or
        :data:`TIMEPOINT` must have length one.
    labels
        Names of the first channels; empty for one without.
    choice
        Wishes of a person; None where there is no way to choose, as for a mask.

    Raises
    ------
    OctaneError
        When there are several and none is chosen, or the one that is chosen does not exist; lists
        what there is.
    """
    found = dict(zip(axes, sizes, strict=True))
    count, times = found.get(CHANNEL, 1), found.get(TIMEPOINT, 1)
    places = {
        CHANNEL: _channel(path, count, labels[:count], choice),
        TIMEPOINT: _timepoint(path, times, choice),
    }
    for axis, size in found.items():
        if axis not in places and size > 1:
            raise OctaneError(
                f"{path} has {size} places along the axis {axis}; octane takes 3-D images: "
                "extract one."
            )
    return tuple(places.get(axis, 0) for axis in axes)


def _channel(path: Path, count: int, labels: Sequence[str], choice: Choice | None) -> int:
    asked = choice.channel if choice else None
    matching = [place for place, label in enumerate(labels) if label == asked]
    if asked is None and count == 1:
        return 0
    # No array has so many channels that the number has ten digits.
    if asked is not None and asked.isdecimal() and len(asked) < 10 and int(asked) < count:
        return int(asked)
    if asked and len(matching) == 1:
        return matching[0]
    names = [f" '{label[:SHOWN]}'" if label else "" for label in labels[:LISTED]]
    names += [""] * (min(count, LISTED) - len(names))
    listed = ", ".join(f"{place}{name}" for place, name in enumerate(names))
    listed += f" and {count - LISTED} more" if count > LISTED else ""
    has = f"{count} channels: {listed}"
    if asked is not None:
        has = f"{'several channels' if matching else 'no channel'} '{asked}', but {listed}"
    raise OctaneError(f"{path} has {has}; {_remedy(choice, '--channel')}.")


def _timepoint(path: Path, count: int, choice: Choice | None) -> int:
    asked = choice.timepoint if choice else None
    if asked is None and count == 1:
        return 0
    if asked is not None and asked < count:
        return asked
    has = f"{count} time points" if asked is None else f"no time point {asked}, but {count}"
    raise OctaneError(f"{path} has {has}, from 0 to {count - 1}; {_remedy(choice, '--timepoint')}.")


def _remedy(choice: Choice | None, flag: str) -> str:
    return "write the one that is meant alone" if choice is None else f"give one with {flag}"
