"""Figures of CHANNELS that the report reads."""

from octane.core.records import Figures


class ChannelFigures(Figures):
    """A channel of the result, as viewers show it: its colour RRGGBB, and the window's ends.

    ``kind`` is ``nearest`` for values that are never averaged.
    """

    name: str
    kind: str | None = None
    color: str
    window: tuple[float, float]


class ChannelsFigures(Figures):
    """Channels that were joined in one image."""

    channels: list[ChannelFigures]
