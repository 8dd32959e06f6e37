"""What the user says of a file, applied to what it states: one rule for all formats."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from octane.config.parameters import InputParameters
from octane.core.errors import InputError
from octane.core.geometry import Grid, Vector, spelled, vector
from octane.core.orientation import overruled_orientation, spelled_orientation
from octane.store.channels import ALL, channel_names, kinds_of
from octane.store.coordinates import NAME_CHARACTERS
from octane.store.stated import (
    CHANNEL,
    MOST_LISTED,
    TIMEPOINT,
    Attributes,
    Stated,
    require_plausible,
)

AS_STATED = InputParameters()
"""Parameters that override nothing that a file states."""


class Interpretation(NamedTuple):
    """An image as it is read, lengths in micrometres.

    ``place`` are its indices along the axes before z, y and x; ``attributes`` are octane's own;
    ``channels`` the names of all channels, empty for those without one; ``overruled`` says in
    sentences what is stated but replaced or not used.
    """

    place: tuple[int, ...]
    voxel_size: Vector
    attributes: Attributes
    channels: list[str]
    overruled: str


def interpretation(
    stated: Stated, reading: InputParameters | None, like: Grid | None = None
) -> Interpretation:
    """Apply ``reading`` to what a file states.

    With None, as for a mask, only one channel and time point is allowed. A voxel size that is
    neither stated nor given is that of ``like``. An InputError says what must be chosen or given,
    or what contradicts the file.
    """
    path, labels = stated.path, stated.labels
    place = place_of(path, stated.axes, stated.counts, labels, reading)
    voxel_size = _voxel_size(stated, reading, like)
    index, count = {
        axis: (position, n)
        for axis, position, n in zip(stated.axes, place, stated.counts, strict=True)
    }.get(CHANNEL, (0, 1))
    attributes, overruled = apply_orientation(stated, reading)
    if kind := "".join(kinds_of(attributes)[index : index + 1]):
        attributes["channel_kind"] = kind
    attributes.pop("channels", None)
    names = labels
    if stated.attributes is not None and count == 1:
        # Octane's own label of a channel without a name is one for viewers.
        names = [str(attributes.get("channel", ""))]
    attributes |= attributes_of(path, names, count, index, reading)
    channels = [*names, *[""] * count][:count]
    return Interpretation(place, voxel_size, attributes, channels, overruled)


def apply_orientation(stated: Stated, reading: InputParameters | None) -> tuple[Attributes, str]:
    """Octane's attributes with the orientation that is given, or else stated, and the notes.

    A sentence is added to the notes if the given one replaces another.
    """
    given = None if reading is None else reading.orientation
    replaced = overruled_orientation(stated.orientation, given)
    if given is not None and stated.is_oblique:
        replaced = (
            f"The stated oblique directions are replaced by {spelled_orientation(given)}, as "
            "--orientation says."
        )
    attributes = dict(stated.attributes or {})
    if any(orientation := given or stated.orientation):
        attributes["orientation"] = orientation
    return attributes, " ".join(filter(None, (stated.notes, replaced)))


def _voxel_size(stated: Stated, reading: InputParameters | None, like: Grid | None) -> Vector:
    """Voxel size as the file states it, or else as given, or else that of ``like``."""
    path, given = stated.path, None if reading is None else reading.voxel_size
    known = [n for n in stated.voxel_size if n is not None]
    if given is not None:
        axes = zip(stated.voxel_size, given, strict=True)
        spacing = [g if n is None else n for n, g in axes]
        if not np.allclose(spacing, given, rtol=1e-3):
            raise InputError(
                f"{path} states voxels of {spelled(spacing)} um (z y x), but --voxel_size is "
                f"{spelled(given)}; give the stated size, or correct the metadata."
            )
    if len(known) == 3:
        require_plausible(path, vector(*known), "voxel size")
        return vector(*known)
    if given is not None:
        return vector(*given)
    if like is not None:
        return like.spacing
    raise InputError(stated.without_size)


def place_of(
    path: Path,
    axes: Sequence[str],
    sizes: Sequence[int],
    labels: Sequence[str],
    reading: InputParameters | None,
    flag: str = "",
) -> tuple[int, ...]:
    """Indices of the chosen 3-D image along the other ``axes`` of its array, of these ``sizes``.

    ``labels`` are the names of the first channels, empty for those without one; ``reading`` is None
    if the user cannot choose, as for a mask; ``flag`` names the parameter if it is not the axis's
    own. An OctaneError lists the choices if there are several and none is made, or if the one made
    does not exist.
    """
    choices = {CHANNEL: reading.channel, TIMEPOINT: reading.timepoint} if reading else {}
    places: dict[str, int] = {}
    open_axes: dict[str, str] = {}
    for axis, count in {CHANNEL: 1, TIMEPOINT: 1, **dict(zip(axes, sizes, strict=True))}.items():
        names, asked = labels[:count] if axis == CHANNEL else [], choices.get(axis)
        number = "0" if asked is None and count == 1 else str(asked)
        matches = [place for place, name in enumerate(names) if name == asked]
        # Sizes of arrays have fewer than ten digits.
        if number.isdecimal() and len(number) < 10 and int(number) < count:
            matches = [int(number)]
        if len(matches) != 1:
            has = f"{count} {axis}{'s' * (count != 1)}"
            if asked is not None:
                has += f", {'several of them' if matches else 'but not'} '{asked}'"
            shown = enumerate([*names, *[""] * MOST_LISTED][: min(count, MOST_LISTED)])
            listed = ", ".join(
                f"{n} '{name[:NAME_CHARACTERS]}'" if name else str(n) for n, name in shown
            )
            more = f" and {count - MOST_LISTED} more" if count > MOST_LISTED else ""
            open_axes[axis] = f"{has}: {listed}{more}"
        else:
            places[axis] = matches[0]
    if open_axes:
        of_each = " of each" if len(open_axes) > 1 else ""
        flags = " and ".join(f"--{flag or axis}" for axis in open_axes)
        choice = f"give one{of_each} with {flags}"
        remedy = choice if open_axes.keys() <= choices.keys() else "write only one of them"
        raise InputError(f"{path} has {', and '.join(open_axes.values())}; {remedy}.")
    return tuple(places[axis] for axis in axes)


def chosen_channels(path: Path, labels: Sequence[str], count: int, asked: str) -> list[int]:
    """Numbers of the channels that ``--channels`` names: ``all``, one name, or a list.

    Commas separate its names, or blanks if it has none. Raises an InputError that lists the
    channels for a word that is neither a number nor a name.
    """
    if asked.strip().lower() == ALL and ALL not in (label.lower() for label in labels):
        return list(range(count))
    # A name may contain blanks, and even commas.
    parts = asked.split("," if "," in asked else None)
    words = [asked] if asked in labels else [part.strip() for part in parts if part.strip()]
    readings = [AS_STATED.model_copy(update={"channel": word}) for word in words]
    given = ([CHANNEL], [count], labels)
    numbers = {place_of(path, *given, reading, flag="channels")[0] for reading in readings}
    return sorted(numbers)


def attributes_of(
    path: Path, labels: Sequence[str], count: int, index: int, reading: InputParameters | None
) -> Attributes:
    """Octane's attributes of one of ``count`` channels: its name, and its kind if that is stated.

    Raises an InputError for a ``--channel_kind`` of a channel that does not exist.
    """
    name = channel_names(labels, count)[index]
    kinds = {} if reading is None else reading.kinds
    kind = stated_kinds(path, labels, count, kinds).get(index)
    return {
        **({"channel": name} if name else {}),
        **({"channel_kind": kind} if kind else {}),
    }


def stated_kinds(
    path: Path, labels: Sequence[str], count: int, kinds: Mapping[str, str]
) -> dict[int, str]:
    """Kinds by the number of a channel; a key that could be a number is one, else a name.

    Raises an InputError for a channel that does not exist.
    """
    names, kind_by_number = channel_names(labels, count), {}
    for key, kind in kinds.items():
        if key in map(str, range(count)):
            indices = [int(key)]
        else:
            indices = [k for k in range(count) if key in (names[k], *labels[k : k + 1])]
        if not indices:
            shown = ", ".join(f"'{name}'" for name in names if name) or "one without a name: 0"
            raise InputError(
                f"{path} lacks the channel '{key}' of --channel_kind; its channels are {shown}."
            )
        kind_by_number |= dict.fromkeys(indices, kind)
    return kind_by_number
