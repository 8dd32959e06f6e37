"""Channels of one volume, corrected one after the other: one image of their results, and names."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy.typing as npt

from octane.config.types import Codec
from octane.core.errors import InputError
from octane.core.metrics import save_record
from octane.store.channels import channel_ids, joined_attributes, names_of
from octane.store.volumes import Volume, Writer, is_ome_zarr
from octane.store.writer import Level, channel_writers, create_image


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
    own = [volume.attributes for volume in volumes]
    with create_image(
        path,
        [Level.volume(volumes[0].grid)],
        dtype,
        codec=codec,
        attributes={**joined_attributes(own), "kind": "volume", "step": step},
        channels=names_of(own) if len(own) > 1 else (),
        overwrite=overwrite,
        to_disk=True,
    ) as (writer,):
        yield channel_writers(writer, len(own))


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
