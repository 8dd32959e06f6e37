"""Channels of one volume, corrected one after the other: one image of their results, and names."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy.typing as npt

from octane.config.params import Codec
from octane.core.errors import InputError
from octane.core.metrics import save_record
from octane.store.channels import channel_ids, channel_names, joined_attributes, name_of
from octane.store.volumes import Volume, Writer, is_ome_zarr
from octane.store.writer import ChannelWriter, Level, create_image


def names_of(volumes: Sequence[Volume]) -> list[str]:
    """Names of channels in results."""
    return channel_names([name_of(volume.attributes) for volume in volumes], len(volumes))


def require_joinable(results: Sequence[Path | None], truth: Path | None) -> None:
    """Raise an InputError unless several channels can have these results, and this truth."""
    for path in results:
        if path is not None and not is_ome_zarr(path):
            raise InputError(
                f"{path} holds one channel, but --channels names several; end it in .ome.zarr, or "
                "name one."
            )
    if truth is not None:
        raise InputError(f"{truth} is the truth of one channel; name one with --channels.")


@contextmanager
def joined(
    path: Path,
    volumes: Sequence[Volume],
    dtype: npt.DTypeLike,
    step: str,
    *,
    codec: Codec,
    overwrite: bool,
) -> Generator[Sequence[Writer]]:
    """Create an image of the channels (c, z, y, x), (z, y, x) for one; name it at the end.

    Parameters
    ----------
    volumes
        The channels, on one grid. Their attributes are joined.
    step
        What made it, for the attributes.
    dtype, codec, overwrite
        As for :func:`octane.store.writer.create_image`.

    Yields
    ------
    sequence of Writer
        One for each channel.
    """
    several, own = len(volumes) > 1, [volume.attributes for volume in volumes]
    attributes = joined_attributes(own) if several else own[0]
    with create_image(
        path,
        [Level.volume(volumes[0].grid)],
        dtype,
        codec=codec,
        attributes={**attributes, "kind": "volume", "step": step},
        channels=names_of(volumes) if several else (),
        overwrite=overwrite,
        to_disk=True,
    ) as (writer,):
        yield [ChannelWriter(writer, k) for k in range(len(volumes))] if several else [writer]


class Made(NamedTuple):
    """The record of a channel, and its previews."""

    record: Mapping[str, object]
    previews: Mapping[str, npt.NDArray]


def save_each(
    names: Sequence[str], made: Sequence[Made], metrics: Path | None, preview: Path | None
) -> None:
    """Save the record and the previews of each channel, in files that are named by it."""
    for name, own in zip(channel_ids(names), made, strict=True):
        save_record(*own, _with(name, metrics, "_metrics"), _with(name, preview, "_preview"))


def _with(name: str, path: Path | None, ending: str) -> Path | None:
    """Insert the name of a channel before the ending of a file's name, or before its suffix."""
    if path is None:
        return None
    stem, last = path.stem.removesuffix(ending), ending * path.stem.endswith(ending)
    return path.with_name(f"{stem}_{name}{last}{path.suffix}")
