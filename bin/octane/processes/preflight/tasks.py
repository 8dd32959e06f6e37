"""Tasks of a subject: the data that each reads, by name, and its flags.

The workflow starts a task once all the data that it reads are there. Of the subject ``01``,
``01/section_01_stitch`` is the image that STITCH makes of ``section_01``,
``01/section_01_stitch_metrics.json`` its record, and ``01/section_01_stitch/record`` the record
and its preview. What the user gave is named by its parameter, such as ``01/n4_mask``, and if each
section has its own, by that too: ``01/input/section_01``.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from octane.core.fingerprint import digest
from octane.core.records import ORDER

BEFORE_N4 = ("mosaic", "resample", "stitch", "stack")
"""Steps whose images are emptied once they have been read, if the user wants it."""


@dataclass(frozen=True)
class PlannedTask:
    """A task: its step, its ``meta`` in the workflow, and the names of the data that it reads.

    ``reads`` has a list, which may be empty, for each input of the process, by its name in main.nf.
    """

    step: str
    meta: Mapping[str, str | bool]
    reads: Mapping[str, Sequence[str]]
    flags: str = ""

    @property
    def name(self) -> str:
        """Name of its files, such as section_01_stitch or n4."""
        parts = [self.meta.get("section"), self.meta.get("channel"), self.step]
        return "_".join(str(part) for part in parts if part)

    def as_json(self) -> dict[str, object]:
        """The task as the workflow reads it."""
        parts = {"step": self.step, "name": self.name, "meta": self.meta}
        return {**parts, "reads": self.reads, "flags": self.flags}


@dataclass(frozen=True)
class ChannelTasks:
    """A channel; ``id`` is its part of the names of files, empty for the reference.

    ``flags`` are those of its tasks, by step. Without ``is_written`` it is only measured.
    """

    id: str
    is_written: bool = True
    flags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SubjectTasks:
    """What the tasks of a subject follow from.

    Attributes
    ----------
    subject, kind
        Its name, and the kind of its inputs as the user gave them.
    items
        Names of its sections, or of its volume.
    channels
        The reference channel, and others, which lie where it does.
    steps
        Steps for each channel that the run does not skip.
    file_parameters
        Parameters whose files the user gave.
    flags
        Flags of the tasks for all channels, by step.
    joins_channels
        CHANNELS joins the volumes of the channels that are written.
    lead_id
        The reference channel's part of names, if CHANNELS runs for this subject but not for all.
    shares_tissue
        N4 of the other channels fits the tissue that the reference channel shows.
    empties_images
        Images of the steps before N4 are emptied once they have been read.
    states
        Fingerprints of what the user gave, by name; ``seen`` of a task is that of what it reads.
    """

    subject: str
    kind: str
    items: Sequence[str]
    channels: Sequence[ChannelTasks]
    steps: Collection[str]
    file_parameters: Collection[str] = ()
    flags: Mapping[str, str] = field(default_factory=dict)
    joins_channels: bool = False
    lead_id: str = ""
    shares_tissue: bool = False
    empties_images: bool = False
    states: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_cut(self) -> bool:
        """True if the run ends with sections (--until), which make no volume."""
        return self.kind != "volume" and "stack" not in self.steps


def list_tasks(subject: SubjectTasks) -> list[PlannedTask]:
    """All tasks of a subject, in the order of the work.

    Three are none of Nextflow's. ``empty`` removes the voxels of an image that has been read, and
    ``result`` publishes. ``report``, the end of a subject, gets all records, the subject's input
    and its results.
    """
    return [*_Tasks(subject).list_all()]


class _Tasks:
    """Lists the tasks of a subject; the methods of a step return the name of its image."""

    def __init__(self, subject: SubjectTasks) -> None:
        self._subject, self._tasks = subject, list[PlannedTask]()
        used = [step for step in ORDER if step in subject.steps]
        self._last = used[-1] if used else ""

    def list_all(self) -> Iterator[PlannedTask]:
        subject, channels = self._subject, self._subject.channels
        if subject.is_cut:
            for channel in channels:
                for item in subject.items:
                    self._section(channel, item)
            yield from self._end_tasks([])
            return
        volumes = {channel.id: self._volume(channel) for channel in channels}
        written = [channel for channel in channels if channel.is_written]
        results = [self._result(channel, volumes) for channel in written]
        if subject.joins_channels:
            results = [self._add("channels", subject.flags["channels"], {"volumes": results})]
        yield from self._end_tasks(results)

    def _end_tasks(self, results: Sequence[str]) -> Iterator[PlannedTask]:
        """All tasks, the last of which have these results."""
        subject = self._subject
        yield from self._tasks
        if subject.empties_images:
            yield from self._empty_tasks()
        records = [self._data_name(f"{task.name}/record") for task in self._tasks]
        reads = {"records": records, "input": [self._data_name("input")], "results": results}
        yield PlannedTask("result", {"id": subject.subject}, {"results": results})
        yield PlannedTask("report", {"id": subject.subject}, reads, subject.flags["report"])

    def _volume(self, channel: ChannelTasks) -> str:
        """Name of the volume that N4 gets."""
        sections = [self._section(channel, item) for item in self._subject.items]
        if "stack" not in self._subject.steps:
            (volume,) = sections
            return volume
        table, record = self._file("displacements"), list[str]()
        if channel.id:
            table, record = [], [self._data_name("stack_metrics.json")]
        reads = {"sections": sections, "displacements": table, "reference": record}
        return self._add_of(channel, "stack", reads)

    def _section(self, channel: ChannelTasks, item: str) -> str:
        steps, image = self._subject.steps, self._data_name(f"input/{item}")
        if "mosaic" in steps:
            file_name = "_".join(filter(None, (item, channel.id)))
            inputs = {
                name: [self._data_name(f"{name}/{file_name}")] for name in ("tiles", "tile_list")
            }
            image = self._add_of(channel, "mosaic", inputs, section=item)
        if "resample" in steps:
            kind = self._subject.kind
            image = self._add_of(channel, "resample", {"image": [image]}, section=item, kind=kind)
        if "stitch" in steps:
            table, record = self._file("positions", f"/{item}"), list[str]()
            if channel.id:
                table, record = [], [self._data_name(f"{item}_stitch_metrics.json")]
            flat_field = self._file("stitch_flat_field")
            reads = {"mosaic": [image], "positions": table, "flat_field": flat_field}
            reads |= {"reference": record, "gains": self._file("stitch_gain", f"/{item}")}
            image = self._add_of(channel, "stitch", reads, section=item)
        return image

    def _result(self, channel: ChannelTasks, volumes: Mapping[str, str]) -> str:
        """Name of the last volume of a channel."""
        subject, image = self._subject, volumes[channel.id]
        if "n4" in subject.steps:
            truth, reference = self._file("truth"), list[str]()
            if channel.id:
                truth, reference = [], [volumes[""]] if subject.shares_tissue else []
            reads = {"volume": [image], "mask": self._file("n4_mask"), "truth": truth}
            image = self._add_of(channel, "n4", {**reads, "reference": reference})
        if "pyramid" in subject.steps:
            image = self._add_of(channel, "pyramid", {"volume": [image]})
        return image

    def _empty_tasks(self) -> Iterator[PlannedTask]:
        """A task for each image before N4, which is emptied when the tasks that read it have ended.

        An image stays that PYRAMID or nothing reads: it is a result, or shares files with one.
        """
        readers = defaultdict[str, list[PlannedTask]](list)
        for task in self._tasks:
            for name in chain.from_iterable(task.reads.values()):
                readers[name].append(task)
        for maker in self._tasks:
            image = self._data_name(maker.name)
            steps = {task.step for task in readers[image]}
            if maker.step in BEFORE_N4 and steps and steps <= {*BEFORE_N4, "n4"}:
                records = [self._data_name(f"{task.name}_metrics.json") for task in readers[image]]
                reads = {"image": [image], "records": records}
                yield PlannedTask("empty", {"id": self._subject.subject}, reads)

    def _add_of(
        self, channel: ChannelTasks, step: str, reads: Mapping[str, Sequence[str]], **more: str
    ) -> str:
        return self._add(step, channel.flags.get(step, ""), reads, channel=channel.id, **more)

    def _add(self, step: str, flags: str, reads: Mapping[str, Sequence[str]], **more: str) -> str:
        meta: dict[str, str | bool] = {"id": self._subject.subject, **more}
        if self._subject.lead_id:
            # conf/modules.config cannot see a samplesheet's column: the last step is told that its
            # volume is no result, and PYRAMID's gets another name than the joined image.
            if step == "pyramid":
                meta["channel"] = more["channel"] or self._subject.lead_id
            elif step == self._last:
                meta["joined"] = True
        states = self._subject.states
        names = chain.from_iterable(reads.values())
        if fingerprints := [states[name] for name in names if name in states]:
            meta["seen"] = digest(fingerprints)
        task = PlannedTask(step, meta, reads, flags)
        self._tasks.append(task)
        return self._data_name(task.name)

    def _data_name(self, part: str) -> str:
        return f"{self._subject.subject}/{part}"

    def _file(self, parameter: str, more: str = "") -> list[str]:
        return (
            [self._data_name(f"{parameter}{more}")]
            if parameter in self._subject.file_parameters
            else []
        )
