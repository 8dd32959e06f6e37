"""CHANNELS: volumes of one subject as the channels of one OME-Zarr image."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from octane.config.parameters import ExecutionParameters
from octane.config.types import NEAREST, Codec
from octane.core.arrays import require_cpu
from octane.core.errors import InputError
from octane.core.files import bring_to_disk
from octane.core.geometry import spelled
from octane.core.metrics import Metrics
from octane.layout.sections import read_sections, require_one_orientation
from octane.pipeline.cuts import note_cuts
from octane.processes.channels.record import ChannelsFigures
from octane.store.channels import is_nearest, joined_attributes, names_of
from octane.store.image import Image, open_levels
from octane.store.ngff import ShownChannel, Window, read_metadata
from octane.store.stated import Attributes, stated_orientation
from octane.store.writer import Level, codec_of, colors, create_image, link_chunks


@dataclass(frozen=True)
class Source:
    """A volume to be one of the channels: its levels, finest first, their codec and window."""

    path: Path
    levels: Sequence[Image]
    codec: Codec
    window: Window

    @property
    def attributes(self) -> Attributes:
        """Octane's attributes of the volume."""
        return self.levels[0].attributes


def join_channels(
    sources: Sequence[Path], destination: Path, execution: ExecutionParameters
) -> Metrics:
    """Write volumes (z, y, x) as one image (c, z, y, x), in their order; a single one stays 3-D.

    The files of chunks are hard-linked; across file systems they are copied.

    Raises an OctaneError that names a volume that octane did not write, or that differs from the
    first in its levels, grids, type or codec; nothing is left half-written.
    """
    require_cpu(execution.backend, "CHANNELS")
    opened = [_open_source(path) for path in sources]
    for source in opened[1:]:
        _require_alike(opened[0], source)
    first, several = opened[0], len(opened) > 1
    metadata = [source.attributes for source in opened]
    names = names_of(metadata)
    oriented = stated_orientation(metadata[0])
    metrics = Metrics("channels", channel="" if several else names[0], orientation=oriented)
    levels = [Level.volume(image.grid) for image in first.levels]
    with create_image(
        destination,
        levels,
        first.levels[0].dtype,
        codec=first.codec,
        attributes=joined_attributes(metadata) | ({"step": "channels"} if several else {}),
        channels=names if several else (),
        shown=[ShownChannel(window=source.window) for source in opened],
        overwrite=execution.overwrite,
    ) as writers:
        with metrics.timed("link"):
            for k, source in enumerate(opened):
                for image, writer in zip(source.levels, writers, strict=True):
                    link_chunks(image, writer.array, (k,) * several, metrics)
        for k, source in enumerate(opened):
            sections = read_sections(source.attributes, levels[0].grid.shape[0])
            note_cuts(source.levels, sections, metrics, f"_{k}")
    with metrics.timed("to disk"):
        bring_to_disk(destination)
    shown = zip(names, metadata, colors(len(metadata)), opened, strict=True)
    channels = [
        {
            "name": name,
            "kind": NEAREST if is_nearest(attributes) else None,
            "color": color,
            "window": (source.window.start, source.window.end),
        }
        for name, attributes, color, source in shown
    ]
    metrics.add_figures(ChannelsFigures.model_validate({"channels": channels}))
    return metrics


def _open_source(path: Path) -> Source:
    """Open a volume that octane wrote, whose files can be linked as they are."""
    metadata, levels = read_metadata(path, None), open_levels(path)
    codecs = {codec_of(image.array) for image in levels}
    window = next(iter(metadata.windows), None)
    octane_metadata = metadata.octane or {}
    if (
        octane_metadata.get("kind") != "volume"
        or len(codecs) > 1
        or None in codecs
        or window is None
    ):
        raise InputError(
            f"{path} is not a volume (z, y, x) as octane writes it, whose chunks can be linked; "
            "write it with bin/pyramid.py."
        )
    return Source(path, levels, cast("Codec", codecs.pop()), window)


def _require_alike(first: Source, other: Source) -> None:
    """Raise unless two volumes can be channels of one image."""
    if [image.grid for image in other.levels] != [image.grid for image in first.levels]:
        described = [
            " and ".join(
                f"{spelled(grid.shape)} voxels of {spelled(grid.spacing)} um "
                f"from {spelled(grid.edge)} um"
                for grid in (image.grid for image in source.levels)
            )
            for source in (other, first)
        ]
        raise InputError(
            f"{other.path} has {described[0]}, but {first.path} has {described[1]}; join "
            "volumes of one subject on the same grid, with the same levels."
        )
    require_one_orientation([first.levels[0], other.levels[0]])
    for word, flag, a, b in (
        ("voxels", "n4_dtype", other.levels[0].dtype, first.levels[0].dtype),
        ("chunks", "codec", other.codec, first.codec),
    ):
        if a != b:
            raise InputError(
                f"{other.path} has {word} of {a}, but {first.path} has {word} of {b}; write both "
                f"alike (--{flag})."
            )
