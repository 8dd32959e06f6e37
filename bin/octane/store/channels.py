"""Channels of an image: their names, which of them are meant, and how their values combine."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import cast

from octane.config.types import NEAREST
from octane.store.stated import Attributes

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


def channel_ids(names: Sequence[str]) -> list[str]:
    """Parts of file names for channels: their names in plain letters and digits, else numbers."""
    plain = [re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-") for name in names]
    times = Counter(name.lower() for name in plain)
    return [
        name if name and times[name.lower()] == 1 else f"c{index}"
        for index, name in enumerate(plain)
    ]


def names_of(sources: Sequence[Attributes]) -> list[str]:
    """Names of channels in results, each with the attributes of an image of its own."""
    return channel_names([name_of(attributes) for attributes in sources], len(sources))


def joined_attributes(sources: Sequence[Attributes]) -> Attributes:
    """Attributes of an image of channels that have these attributes; a single one keeps its own."""
    if len(sources) == 1:
        return sources[0]
    channels = [
        {"name": name, **({"kind": NEAREST} if is_nearest(attributes) else {})}
        for name, attributes in zip(names_of(sources), sources, strict=True)
    ]
    rest = {k: v for k, v in sources[0].items() if k not in ("channel", "channel_kind")}
    return {**rest, "channels": channels}


def kinds_of(attributes: Attributes) -> list[str]:
    """Kinds of an image's several channels, empty for values that may be averaged."""
    channels = cast("list[Mapping[str, str]]", attributes.get("channels", []))
    return [channel.get("kind", "") for channel in channels]


def name_of(attributes: Attributes) -> str:
    """Name of the channel of an image; empty without one."""
    return str(attributes.get("channel", ""))


def is_nearest(attributes: Attributes) -> bool:
    """Tell whether the values of an image, such as angles, must never be averaged."""
    return attributes.get("channel_kind") == NEAREST
