"""Channels of an image: their names, which of them are meant, and how their values combine."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from octane.config.parameters import InputParameters
from octane.config.types import NEAREST
from octane.core.errors import InputError
from octane.store.ngff import AS_STATED, CHANNEL, Attributes, place_of

ALL = "all"
"""Value of ``--channels`` for every channel of the input."""


def channel_names(labels: Sequence[str], count: int) -> list[str]:
    """Names of ``count`` channels in results, from their ``labels`` in the input.

    Channels without a label are named by their number, as are those that share one. A single
    channel may be without a name.
    """
    given = [*labels, *[""] * count][:count]
    if count == 1:
        return given
    times = Counter(given)
    return [
        f"{name} {index}".strip() if times[name] > 1 or not name else name
        for index, name in enumerate(given)
    ]


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
    found = {place_of(path, *given, reading, flag="channels")[0] for reading in readings}
    return sorted(found)


def channel_ids(names: Sequence[str]) -> list[str]:
    """Parts of file names for channels: their names in plain letters and digits, else numbers."""
    plain = [re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-") for name in names]
    times = Counter(name.lower() for name in plain)
    return [
        name if name and times[name.lower()] == 1 else f"c{index}"
        for index, name in enumerate(plain)
    ]


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
    names, found = channel_names(labels, count), {}
    for key, kind in kinds.items():
        if key in map(str, range(count)):
            indices = [int(key)]
        else:
            indices = [k for k in range(count) if key in (names[k], *labels[k : k + 1])]
        if not indices:
            shown = ", ".join(f"'{own}'" for own in names if own) or "one without a name: 0"
            raise InputError(
                f"{path} lacks the channel '{key}' of --channel_kind; its channels are {shown}."
            )
        found |= dict.fromkeys(indices, kind)
    return found


def names_of(sources: Sequence[Attributes]) -> list[str]:
    """Names of channels in results, each with the attributes of an image of its own."""
    return channel_names([name_of(own) for own in sources], len(sources))


def joined_attributes(sources: Sequence[Attributes]) -> Attributes:
    """Attributes of an image of channels that have these attributes; a single one keeps its own."""
    if len(sources) == 1:
        return sources[0]
    channels = [
        {"name": name, **({"kind": NEAREST} if is_nearest(own) else {})}
        for name, own in zip(names_of(sources), sources, strict=True)
    ]
    rest = {k: v for k, v in sources[0].items() if k not in ("channel", "channel_kind")}
    return {**rest, "channels": channels}


def kinds_of(attributes: Attributes) -> list[str]:
    """Kinds of an image's several channels, empty for values that may be averaged."""
    channels = cast("list[Mapping[str, str]]", attributes.get("channels", []))
    return [own.get("kind", "") for own in channels]


def name_of(attributes: Attributes) -> str:
    """Name of the channel of an image; empty without one."""
    return str(attributes.get("channel", ""))


def is_nearest(attributes: Attributes) -> bool:
    """Tell whether the values of an image, such as angles, must never be averaged."""
    return attributes.get("channel_kind") == NEAREST
