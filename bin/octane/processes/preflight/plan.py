"""Plan of a subject for the workflow: its inputs, its channels, and the flags of each command."""

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from octane.config.types import AUTO, INTERMEDIATE, NEAREST
from octane.core.records import ENDINGS, Decision
from octane.layout.mosaic import MosaicGrid, idle_overlap, read_positions
from octane.layout.sections import number_or_first
from octane.processes.mosaic.checks_before import Acquisition, Input
from octane.processes.mosaic.parameters import TileParameters
from octane.processes.n4.parameters import MASK_WORDS
from octane.processes.preflight.parameters import Settings
from octane.processes.preflight.states import PlanContent, plan_content
from octane.processes.preflight.subject import StepBytes, SubjectLayout
from octane.processes.preflight.tasks import ChannelTasks, SubjectTasks
from octane.processes.stitch.parameters import FLAT_WORDS, GAIN_WORDS, OverlapParameters
from octane.store.channels import channel_ids, channel_names
from octane.store.reading import AS_STATED, chosen_channels, place_of, stated_kinds
from octane.store.stated import CHANNEL

MODELS = {
    step: ("input", "execution", step)
    for step in ("mosaic", "resample", "stitch", "stack", "n4", "pyramid")
}
"""Models whose fields are flags of each step's command, for each channel of a subject."""


def as_script(words: Sequence[str]) -> str:
    """Words of a command as a task's bash reads them, without < > &.

    Nextflow writes the script unescaped into its report.html, where they would be HTML.
    """
    # shlex has put any word with one of them into single quotes, which are left and entered again.
    return re.sub("[<>&]", lambda sign: rf"'$'\x{ord(sign[0]):x}''", shlex.join(words))


@dataclass(frozen=True)
class Channel:
    """One channel of a subject.

    ``index`` is its number in the input, and ``choice`` the word that chooses it there, None for a
    single one; ``id`` is its part of the names of files.
    """

    index: int
    name: str
    id: str
    choice: str | None
    is_nearest: bool = False
    is_reference: bool = False
    is_written: bool = True

    def settings(self, settings: Settings) -> Settings:
        """The subject's settings for the tasks of this channel."""
        kind = (f"{self.choice or self.index}={NEAREST}",) if self.is_nearest else ()
        reading = {"channel": self.choice, "channel_kind": kind}
        return settings.model_copy(update={"input": settings.input.model_copy(update=reading)})


def idle_flags(
    source: Path,
    kind: str,
    asked: TileParameters,
    overlap: Sequence[float] | None,
    tiles: Acquisition | None,
) -> dict[str, str]:
    """Sentences on flags that describe other data than the input, by the workflow's parameter.

    Flags that choose how data are processed are none of these: a profile sets them for all data.
    ``tiles`` are those in files, if the input is a folder of them.
    """
    if tiles is not None:
        return tiles.idle_flags(asked, overlap)
    idle = dict[str, str]()
    if overlap is not None and kind != "mosaic":
        idle["overlap"] = no_tiles_sentence("overlap", source, kind)
    untouched = TileParameters()
    for name in (*TileParameters.searching, "raw_type"):
        if getattr(asked, name) != getattr(untouched, name):
            flag = TileParameters.prefix + name
            idle[flag] = no_tiles_sentence(flag, source, kind)
    return idle


def idle_flags_in_run(
    source: Path, layout: SubjectLayout, tiles: Acquisition | None, positions: Path | None
) -> dict[str, str]:
    """The same for a run whose user gives the table ``positions``, in micrometres, or none."""
    kind, settings, overlap = layout.kind, layout.settings, layout.settings.stitch.overlap
    is_placed = kind == "mosaic" and positions is not None
    idle = idle_flags(source, kind, settings.mosaic, None if is_placed else overlap, tiles)
    if kind != "mosaic" and settings.stitch.gain not in GAIN_WORDS:
        idle["stitch_gain"] = no_tiles_sentence("stitch_gain", source, kind)
    if positions is None:
        return idle
    if not is_placed:
        return {**idle, "positions": no_tiles_sentence("positions", source, kind)}
    if overlap is not None:
        grids = [(volume, MosaicGrid.of(volume)) for volume in layout.inputs]
        places = ((read_positions(positions, number_or_first(v), grid), grid) for v, grid in grids)
        if text := idle_overlap(overlap, places, str(positions)):
            idle["overlap"] = f"{text}; omit one of the two."
    return idle


def no_tiles_sentence(flag: str, source: Path, kind: str) -> str:
    """Say that a flag describes tiles, which an input of this kind does not hold."""
    states = {"mosaic": "holds mosaics, not files of tiles", "section": "holds stitched sections"}
    if source.is_dir():
        what = states.get(kind, "is one volume")
    else:
        what = f"is one file and is read as a {kind}"
    remedy = "" if kind == "mosaic" else " or of the mosaics"
    return (
        f"--{flag} describes tiles, but {source} {what}; omit it, or give the folder of the tiles"
        f"{remedy}."
    )


def chooses_channels(settings: Settings) -> bool:
    """Tell whether --channels chooses the channels of the result."""
    return bool((settings.workflow.channels or "").strip())


def masks_tissue(settings: Settings) -> bool:
    """Tell whether N4 of every channel fits the tissue that the reference channel shows."""
    return settings.n4.mask == MASK_WORDS[0] and not settings.workflow.skip_n4


def warn_reference(channels: Sequence[Channel], kind: str, settings: Settings) -> list[str]:
    """Warning about a reference channel whose values are not brightness."""
    names = [channel.name for channel in channels if channel.is_reference and channel.is_nearest]
    uses = {
        "sections are aligned": kind != "volume" and settings.stack.align not in ("none", AUTO),
        "tissue is found": len(channels) > 1 and masks_tissue(settings),
    }
    text = " and ".join(text for text, is_on in uses.items() if is_on)
    return [
        f"The values of '{name}' are never averaged (--channel_kind), but {text} by them; "
        "choose another --channel, which shows tissue."
        for name in names
        if text
    ]


def choose_channels(path: Path, labels: Sequence[str], settings: Settings) -> list[Channel]:
    """The channels of an input that has these ``labels``: the reference, and those to be written.

    Raises an InputError that lists the channels if a flag names another one, or if --channel does
    not say which of several is measured.
    """
    asked, count = settings.input.channel, len(labels)
    reading = AS_STATED.model_copy(update={"channel": asked})
    (reference,) = place_of(path, [CHANNEL], [count], labels, reading)
    written = {reference}
    if chooses_channels(settings):
        written = {*chosen_channels(path, labels, count, str(settings.workflow.channels))}
    names = channel_names(labels, count)
    kinds = stated_kinds(path, labels, count, settings.input.kinds)
    ids = channel_ids(names)
    channels = []
    for index in sorted(written | {reference}):
        choice = asked if index == reference else channel_word(index, labels)
        if choice is not None and choice.startswith("-"):
            # The command would take it for a flag.
            choice = str(index)
        is_nearest = kinds.get(index) == NEAREST
        channels.append(
            Channel(
                *(index, names[index], ids[index], choice, is_nearest),
                is_reference=index == reference,
                is_written=index in written,
            )
        )
    return channels


def channel_word(index: int, labels: Sequence[str]) -> str:
    """Word that chooses a channel: its name, which stays when others are added, or its number."""
    label = labels[index]
    # A name of digits could be taken for a number.
    is_plain = label and labels.count(label) == 1 and not label.isdecimal()
    return label if is_plain else str(index)


@dataclass(frozen=True)
class SubjectPlan:
    """The workflow's work on a subject.

    Each item of a channel is a mosaic, a section or one volume. It has its ``id``, its ``file`` in
    the input, or its ``tiles`` and their ``tile_list``, and its rows of the user's ``tables``.
    ``tiles_sentence`` says how tiles were found, and ``remarks`` are warnings about them. MOSAIC
    tells from the tiles whether rows and columns are right if it ``compares_tiles``.
    ``idle_flags`` are sentences on flags that cannot act on the input, by parameter.
    ``file_parameters`` are those whose files the user gave, or the input states. ``decisions`` are
    what nobody stated.
    """

    subject: str
    channels: Sequence[tuple[Channel, list[Input]]]
    layout: SubjectLayout
    tiles_sentence: str = ""
    remarks: Sequence[str] = ()
    compares_tiles: bool = True
    idle_flags: Mapping[str, str] = field(default_factory=dict)
    file_parameters: Collection[str] = ()
    decisions: Sequence[Decision] = ()

    @property
    def joins_channels(self) -> bool:
        """True if CHANNELS makes the result, as it does wherever --channels is given."""
        return chooses_channels(self.layout.settings) and not self.layout.settings.workflow.until

    @property
    def has_others(self) -> bool:
        """True if there are other channels than the reference."""
        return not all(channel.is_reference for channel, _ in self.channels)

    def about(self) -> str:
        """The inputs in a few sentences."""
        text = f"{self.layout.about()}{self.tiles_sentence}"
        if not self.has_others:
            return text
        channels = [channel for channel, _ in self.channels]
        notes = {
            channel.name: [
                *["measured"] * channel.is_reference,
                *["not written"] * (not channel.is_written),
                *[NEAREST] * channel.is_nearest,
            ]
            for channel in channels
        }
        words = [
            f"'{name}' ({', '.join(remarks)})" if remarks else f"'{name}'"
            for name, remarks in notes.items()
        ]
        return f"{text} Channels: {', '.join(words)}."

    def bytes(self) -> list[list[StepBytes]]:
        """Bytes that each step of the run writes, by channel."""
        steps = self.layout.bytes()
        if not self.joins_channels:
            return [steps]
        before = [step for step in steps if step.name not in ("N4", "PYRAMID")]
        written = [channel for channel, _ in self.channels if channel.is_written]
        by_channel = [steps] * len(written)
        if len(written) < len(self.channels):
            by_channel.append([replace(step, published=0) for step in before])
        last = sum(step.voxels + step.linked for step in steps[-1:]) * len(written)
        return [*by_channel, [StepBytes("CHANNELS", 0, last)]]

    def content(self, files: Mapping[str, Path], *, is_chosen_alone: bool = False) -> PlanContent:
        """The plan as the workflow reads it, of ``files`` by parameter.

        With ``is_chosen_alone``, --channels is given for this subject, but not for all.
        """
        inputs, tables = dict[str, list[str]](), dict[str, str]()
        for channel, items in self.channels:
            for item in items:
                section = f"{self.subject}/{{}}/{item['id']}"
                of_channel = section if channel.is_reference else f"{section}_{channel.id}"
                if "tiles" in item:
                    inputs[of_channel.format("tiles")] = item["tiles"]
                    tables[of_channel.format("tile_list")] = item["tile_list"]
                else:
                    inputs[section.format("input")] = [item["file"]]
                for name, text in item.get("tables", {}).items():
                    tables[section.format(name)] = text
        content = plan_content(self.tasks(is_chosen_alone=is_chosen_alone), files, inputs)
        return replace(content, tables=tables, results=self.results(), decisions=self.decisions)

    def tasks(self, *, is_chosen_alone: bool = False) -> SubjectTasks:
        """What the subject's tasks follow from."""
        settings = self.layout.settings
        steps = [step.name.lower() for step in self.layout.bytes()]
        channels = [
            ChannelTasks(
                "" if channel.is_reference else channel.id,
                channel.is_written,
                {step: as_script(self._flags(step, channel)) for step in steps},
            )
            for channel, _ in self.channels
        ]
        execution = settings.execution.model_copy(update={"backend": "cpu"}).flags()
        leads = [c for c, _ in self.channels if c.is_reference and self.joins_channels]
        channel_words = [w for c in leads if self.has_others for w in ("--channel", c.name)]
        return SubjectTasks(
            *(self.subject, self.layout.kind, [item["id"] for item in self.channels[0][1]]),
            *(channels, steps, self.file_parameters),
            {"channels": as_script(execution), "report": as_script([*execution, *channel_words])},
            joins_channels=self.joins_channels,
            lead_id="".join(channel.id for channel in leads) if is_chosen_alone else "",
            shares_tissue=masks_tissue(settings),
            empties_images=not settings.workflow.keep_intermediates,
        )

    def results(self) -> list[str]:
        """Names of the volumes and tables that the results cannot lack."""
        workflow, last = (
            self.layout.settings.workflow,
            "channels" if self.joins_channels else self._last,
        )
        names: list[str] = []
        if last in ENDINGS:
            names.append(f"{self.subject}{ENDINGS[last]}.ome.zarr")
        elif last and not workflow.until:
            # A resampled volume keeps its name.
            names += [f"{item['id']}.ome.zarr" for item in self.channels[0][1]]
        if workflow.save_bias_field and not (workflow.skip_n4 or workflow.until):
            written = [channel for channel, _ in self.channels if channel.is_written]
            names += [
                self._bias_field_name(channel) for channel in written if not channel.is_nearest
            ]
        if self.layout.slabs and not workflow.until:
            names.append(f"{self.subject}_displacements.csv")
        if self.layout.placements and not workflow.skip_report:
            names.append(f"{self.subject}_positions.csv")
            leads = [channel for channel, _ in self.channels if channel.is_reference]
            if self.layout.settings.stitch.gain != "none" and not leads[0].is_nearest:
                names.append(f"{self.subject}_gains.csv")
        return names

    def _bias_field_name(self, channel: Channel) -> str:
        ids = [] if channel.is_reference else [channel.id]
        return "_".join([self.subject, *ids, "bias.ome.zarr"])

    @cached_property
    def _first(self) -> str:
        """The only step that reads the input; empty if all are skipped."""
        return "".join(step.name.lower() for step in self.layout.bytes()[:1])

    @cached_property
    def _last(self) -> str:
        """The last step of each channel; empty if all are skipped."""
        return "".join(step.name.lower() for step in self.layout.bytes()[-1:])

    def _flags(self, step: str, channel: Channel) -> list[str]:
        settings = channel.settings(self.layout.settings)
        changes: dict[str, dict[str, object]] = {}
        # Its output has one channel and one time point.
        if step != self._first:
            given = ("channel", "timepoint", "voxel_size", "input_unit", "orientation")
            changes["input"] = {**dict.fromkeys(given), "channel_kind": ()}
        # Only these two have the label gpu_slot, which a task needs to get a GPU.
        if step not in ("resample", "n4"):
            changes["execution"] = {"backend": "cpu"}
        # The tile list says which file is which tile, but not how many rows and columns a section
        # has, nor what to change if rows and columns run the other way.
        needed = {"rows", "columns", "order", "flip"}
        searching = {*TileParameters.searching} - needed
        changes["mosaic"] = {name: getattr(TileParameters(), name) for name in searching}
        # The workflow stages files, and adds their flags.
        if str(settings.n4.mask).lower() not in MASK_WORDS:
            changes["n4"] = {"mask": None}
        light = {"flat_field": FLAT_WORDS, "gain": GAIN_WORDS}
        given = [n for n, words in light.items() if getattr(settings.stitch, n) not in words]
        changes["stitch"] = dict.fromkeys(given, "none")
        # Places rule; a cohort may have an overlap for its other subjects.
        if any("positions" in item.get("tables", {}) for item in self.channels[0][1]):
            changes["stitch"]["overlap"] = None
        # With --skip_n4, PYRAMID links the stacked volume's chunks, which need the final codec.
        if not settings.workflow.skip_n4:
            changes["stack"] = {"codec": INTERMEDIATE}
        models = [
            getattr(settings, name).model_copy(update=changes.get(name)) for name in MODELS[step]
        ]
        words = [word for model in models for word in model.flags()]
        if step == "mosaic" and channel.is_reference and self.compares_tiles:
            allowed = OverlapParameters(check_overlap=settings.stitch.check_overlap)
            words += ["--compare", *allowed.flags()]
        if step != "n4":
            return words
        if settings.workflow.save_bias_field and not channel.is_nearest:
            words += ["--save_bias_field", self._bias_field_name(channel)]
        # The volume that all channels of the input are in.
        if step == self._first and masks_tissue(self.layout.settings) and not channel.is_reference:
            choices = [c.choice or str(c.index) for c, _ in self.channels if c.is_reference]
            words += [word for choice in choices for word in ("--reference_channel", choice)]
        return words
