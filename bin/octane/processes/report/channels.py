"""Channels of a subject: whose tasks are whose, and how the page shows each."""

from collections.abc import Sequence
from typing import NamedTuple

from octane.core.errors import InputError
from octane.core.geometry import vector
from octane.core.records import Context
from octane.pictures import pictures
from octane.pictures.charts import Band
from octane.processes.channels.record import ChannelFigures, ChannelsFigures
from octane.processes.n4.record import N4Figures
from octane.processes.report.brightness import check_brightness
from octane.processes.report.check import Check
from octane.processes.report.correction import correction_of, threshold_of
from octane.processes.report.gallery import Gallery
from octane.processes.report.sections import flat_field_of, thumbnails
from octane.processes.report.summary import title_of
from octane.processes.report.tasks import CUTS, TaskRecord, figures_of, settings_of
from octane.processes.resample.record import ResampleFigures
from octane.processes.stack.record import StackFigures
from octane.processes.stitch.record import StitchFigures
from octane.store.channels import channel_ids

GREY = "FFFFFF"
"""Colour of a channel that is shown alone."""
CARD_EDGE = 320
"""Longest edge of a channel's cuts on the page, pixels."""
MOST_ADDED = 7
"""Most channels that are added in their colours: the colours of more would repeat."""
THUMBNAIL_EDGE = 320
"""Longest edge of the volume's picture on the cohort page, pixels."""


class Channels(NamedTuple):
    """Tasks of a subject by channel.

    ``reference_tasks`` are those of the ``reference`` channel, which was measured. ``others`` are
    those of the channels that lie where it does, by name. ``channels_task`` is CHANNELS, and
    ``shown`` are the channels of the result; both are None and empty for a single channel, whose
    tasks are all ``reference_tasks``.
    """

    reference: str | None
    reference_tasks: list[TaskRecord]
    others: dict[str, list[TaskRecord]]
    channels_task: TaskRecord | None
    shown: list[ChannelFigures]

    @property
    def names(self) -> list[str]:
        """Names of all channels: those of the result in its order, then the others."""
        result = [channel.name for channel in self.shown]
        reference = [self.reference] if self.reference is not None else []
        return list(dict.fromkeys([*result, *reference, *self.others]))

    def is_nearest(self, name: str) -> bool:
        """Tell whether the values of a channel are never averaged, such as angles."""
        tasks = self.reference_tasks if name == self.reference else self.others.get(name, [])
        return any(channel.name == name and channel.kind for channel in self.shown) or any(
            task.is_passed_through or task.record.settings.get("channel_kind") for task in tasks
        )


def channels_of(entries: Sequence[TaskRecord], reference: str | None) -> Channels:
    """Tell the tasks of a subject apart by channel; ``reference`` is None for a single one.

    Raises an InputError if there are several and none is the reference.
    """
    joined = next(iter(figures_of(entries, "channels", ChannelsFigures)), None)
    tasks = [entry for entry in entries if entry.record.step != "channels"]
    names = list(dict.fromkeys(task.record.channel for task in tasks if task.record.channel))
    if reference is None and len(names) > 1:
        raise InputError(
            f"The records are of several channels ({', '.join(names)}); give --channel NAME of the "
            "measured one."
        )
    reference_tasks = [
        task for task in tasks if reference is None or task.record.channel in ("", reference)
    ]
    channels = joined[1].channels if joined else []
    order = [channel.name for channel in channels]
    others = sorted(
        {name for name in names if reference not in (None, name)},
        key=lambda name: (order.index(name) if name in order else len(order), name),
    )
    by_channel = {name: [task for task in tasks if task.record.channel == name] for name in others}
    return Channels(reference, reference_tasks, by_channel, joined[0] if joined else None, channels)


def channel_pictures(channels: Channels, numbers: pictures.Numbers, gallery: Gallery) -> Context:
    """Cuts of the joined volume: each channel's in grey, and their sum in their colours.

    ``thumbnail`` is that of the sum, or of a channel if there is none.
    """
    assert channels.channels_task is not None
    arrays = channels.channels_task.previews
    spacing = vector(*arrays["slice_spacing"])
    scales = [pictures.Scale(*_window(channel)) for channel in channels.shown]
    cards: list[Context] = []
    for k, (channel, scale) in enumerate(zip(channels.shown, scales, strict=True)):
        cuts = {f"cut_{axis}": arrays[f"slice_{axis}_{k}"] for axis in CUTS}
        kinds = {"cut": (channel.name or "volume", scale)}
        rows = gallery.cuts(f"channel_{k}", spacing, kinds, cuts, numbers, longest=CARD_EDGE)
        cards.append({"channel": channel, "rows": rows, "scale": scale})
    with_brightness = [k for k, channel in enumerate(channels.shown) if channel.kind is None]
    averaged = with_brightness[:MOST_ADDED]
    several = len(averaged) > 1
    colors = {k: channels.shown[k].color if several else GREY for k in averaged}
    layers = {
        axis: [(arrays[f"slice_{axis}_{k}"], scales[k], colors[k]) for k in averaged]
        for axis in CUTS
    }
    first = averaged[0] if averaged else 0
    image = scales[first].image(arrays[f"slice_z_{first}"])
    if several:
        image = pictures.composite(layers["z"])
    small = pictures.frame_image(image, spacing[1:], bar=False, longest=THUMBNAIL_EDGE)
    return {
        "cards": cards,
        "composite": gallery.composite("volume", spacing, layers, numbers) if averaged else [],
        "added": [channels.shown[k] for k in averaged],
        "more": len(with_brightness) - len(averaged),
        "left_out": [channel.name for channel in channels.shown if channel.kind is not None],
        "thumbnail": pictures.uri(small),
    }


def _window(channel: ChannelFigures) -> tuple[float, float]:
    """Ends of a channel's window; a constant picture still needs a range."""
    low, high = channel.window
    return low, high if high > low else low + 1.0


def check_others(channels: Channels) -> dict[str, list[Check]]:
    """Checks of brightness of each channel but the reference, by name.

    Values that are never averaged, such as angles, are not brightness.
    """
    checks = {}
    for name, tasks in channels.others.items():
        stack = next((figures for _, figures in figures_of(tasks, "stack", StackFigures)), None)
        fit = fit_of(tasks)
        sections = {
            title_of(task.name, figures.section): figures
            for task, figures in figures_of(tasks, "stitch", StitchFigures)
        }
        n4, threshold = (fit[1], threshold_of(fit[0])) if fit else (None, None)
        if not channels.is_nearest(name):
            checks_here = check_brightness(name, sections, stack, n4, threshold, settings_of(tasks))
            checks |= {name: checks_here} if checks_here else {}
    return checks


def fit_of(tasks: Sequence[TaskRecord]) -> tuple[TaskRecord, N4Figures] | None:
    """N4 of a channel; None if it did not run, or passed the channel through."""
    fitted = [task for task in tasks if not task.is_passed_through]
    return next(iter(figures_of(fitted, "n4", N4Figures)), None)


def fits_of(channels: Channels, bands: list[Band], gallery: Gallery) -> list[Context]:
    """N4 of each channel: its figures, and the pictures of those other than the reference."""
    rows: list[Context] = []
    for name in channels.names or [""]:
        is_reference = name not in channels.others
        tasks = channels.reference_tasks if is_reference else channels.others[name]
        steps = [task for task in tasks if task.record.step == "n4"]
        fit = fit_of(tasks)
        pictures_and_charts = None
        if fit and not is_reference:
            pictures_and_charts = correction_of(*fit, bands, gallery, f"{fit[0].name}_")
        row: Context = {
            "name": name,
            "figures": fit[1] if fit else None,
            "shown": pictures_and_charts,
        }
        rows += [row for _ in steps]
    return rows


def sections_of_others(
    channels: Channels, tiles: StackFigures | ResampleFigures | None, gallery: Gallery, most: int
) -> list[Context]:
    """Pictures of the sections of each channel but the reference, and their flat field.

    Up to ``most`` pictures are large on the page.
    """
    stitched = {
        name: figures_of(tasks, "stitch", StitchFigures) for name, tasks in channels.others.items()
    }
    are_large = sum(map(len, stitched.values())) <= most
    ids = dict(zip(channels.names, channel_ids(channels.names), strict=True))
    rows: list[Context] = []
    for name, tasks in stitched.items():
        if tasks:
            grey = pictures.grey_scale(task.previews["thumbnail"] for task, _ in tasks)
            drawn = thumbnails(tasks, tiles, grey, gallery, are_large=are_large)
            flat = flat_field_of(tasks, gallery, f"{ids[name]}_")
            rows.append({"name": name, "pictures": drawn, "grey": grey, "flat": flat})
    return rows
