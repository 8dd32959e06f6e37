"""Inputs of a subject, opened without reading voxels."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from octane.config.validation import unfit_files, unlinkable
from octane.core.errors import collecting, told_once
from octane.core.progress import Progress
from octane.core.records import Decision
from octane.layout.sections import section_number
from octane.pipeline.workers import run_tiles
from octane.processes.mosaic.checks_before import (
    Acquisition,
    holds_tiles,
    planned_mosaic,
    section_name,
    survey,
)
from octane.processes.preflight.decisions import (
    FIRST_SECTIONS,
    SectionSource,
    decide_flip,
    sections_of_mosaics,
    sections_of_tiles,
)
from octane.processes.preflight.inputs import (
    choose_sections,
    find_inputs,
    kind_of,
    require_target,
)
from octane.processes.preflight.parameters import Settings
from octane.processes.preflight.plan import channel_word, choose_channels, chooses_channels
from octane.processes.preflight.reference import Choice, tile_scores, volume_scores
from octane.store.channels import ALL, is_nearest
from octane.store.image import Image
from octane.store.reading import chosen_channels
from octane.store.stated import Attributes
from octane.store.volumes import Volume, open_volume

READERS = 8
"""Inputs checked at once: network file systems answer slowly."""

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Inputs:
    """Inputs of a subject.

    Attributes
    ----------
    source
        Folder or file that the user gave.
    kind, volumes
        Mosaics, sections or one volume, of the reference channel; of ``tiles`` in files, the
        mosaics that MOSAIC will write.
    files
        Stores or files of the input; empty for tiles.
    sections
        Of tiles in files: their images in the reference channel, which keep what was read.
    settings, decisions
        The user's settings with what the data decided about channels, and about tiles in files.
    left_out, unopened
        Numbers of the sections that the user leaves out, and of all that are not opened.
    """

    source: Path
    kind: str
    volumes: list[Volume]
    settings: Settings
    tiles: Acquisition | None = None
    files: Sequence[Path] = ()
    sections: Sequence[SectionSource] = ()
    decisions: Sequence[Decision] = ()
    left_out: Sequence[int] = ()
    unopened: Collection[int | None] = ()

    @property
    def channels(self) -> Sequence[str]:
        """Labels of all channels."""
        return self.volumes[0].channels if self.tiles is None else self.tiles.channels


def open_inputs(
    source: Path, settings: Settings, other_files: Mapping[str, Path], problems: list[str]
) -> Inputs:
    """Find and open the inputs of a subject; ``other_files`` are by parameter.

    Those that cannot be used are added to ``problems``. Raises an InputError if there are none, or
    if they are of different kinds.
    """
    asked = settings.workflow.input_kind
    if asked in ("auto", "mosaic") and holds_tiles(source, settings.mosaic):
        table, decisions = other_files.get("tile_table"), list[Decision]()
        tiles, left_out = _survey_sections(source, settings, table)
        # One is enough: all names come from the same program.
        problems += [*filter(None, (unlinkable(entry.file) for entry in tiles.grid.entries))][:1]
        if len(tiles.channels) > 1 and _may_choose_channel(settings):
            settings, decision = _choose_by_tiles(tiles, settings)
            decisions.append(decision)
            tiles, _ = _survey_sections(source, settings, table)
        reference = _reference_tiles(tiles, settings)
        sections = sections_of_tiles(reference)
        if "positions" not in other_files and _may_flip(settings) and not problems:
            flip = decide_flip(sections, settings.mosaic)
            if flip is not None:
                settings = settings.model_copy(update={"mosaic": flip[0]})
                decisions.append(flip[1])
                tiles, _ = _survey_sections(source, settings, table)
                reference = _reference_tiles(tiles, settings)
                sections = sections_of_tiles(reference)
        mosaics: list[Volume] = [
            planned_mosaic(section, tiles.folder, settings.input) for section in reference.sections
        ]
        return Inputs(
            *(source, "mosaic", mosaics, settings, tiles, (), sections, decisions),
            *(left_out, left_out),
        )
    files, left_out = choose_sections(source, find_inputs(source), settings.workflow)
    problems += unfit_files(files)
    decisions = []
    if not problems and _may_choose_channel(settings):
        with collecting(problems):
            settings, decisions = _choose_by_stores(files, settings)

    def open_input(path: Path) -> Volume:
        require_target(path)
        return open_volume(path, settings.input)

    volumes = run_in_threads("opening", {path: path for path in files}, open_input, problems)
    kind = kind_of(volumes, asked) if volumes else "volume"
    unopened = {section_number(path.name) for path in {*files} - {v.path for v in volumes}}
    unopened = unopened.union(left_out)
    return Inputs(
        *(source, kind, volumes, settings),
        files=files,
        decisions=decisions,
        left_out=left_out,
        unopened=unopened,
    )


def _may_choose_channel(settings: Settings) -> bool:
    """Tell whether the data may decide which channel is the reference."""
    return settings.input.channel is None and not settings.workflow.as_stated


def _with_reference(
    settings: Settings, choice: Choice, scores: Mapping[str, float]
) -> tuple[Settings, Decision]:
    """Settings with the reference channel, and with those that are written."""
    word, decision = choice.decide(scores)
    reading = settings.input.model_copy(update={"channel": word})
    workflow = settings.workflow.model_copy(
        update={} if choice.result_channels is None else {"channels": choice.result_channels}
    )
    return settings.model_copy(update={"input": reading, "workflow": workflow}), decision


def _reference_choice(
    path: Path,
    labels: Sequence[str],
    settings: Settings,
    attributes: Callable[[str, int], Attributes],
) -> Choice:
    """The channels that can be the reference; ``attributes`` are those of a word and number."""
    chosen = settings.workflow.channels if chooses_channels(settings) else ALL
    numbers = chosen_channels(path, labels, len(labels), str(chosen))
    words = {channel_word(number, labels): number for number in numbers}
    nearest = [word for word, number in words.items() if is_nearest(attributes(word, number))]
    return Choice(words, nearest, chooses_channels(settings))


def _choose_by_tiles(tiles: Acquisition, settings: Settings) -> tuple[Settings, Decision]:
    """Settings with the reference channel of several in files of tiles."""
    channels = tiles.sections[0].channels
    choice = _reference_choice(
        tiles.folder, tiles.channels, settings, lambda _, number: channels[number]
    )
    sections = {word: sections_of_tiles(tiles.of_channel(k)) for word, k in choice.words.items()}
    return _with_reference(settings, choice, tile_scores(sections))


def _choose_by_stores(files: Sequence[Path], settings: Settings) -> tuple[Settings, list[Decision]]:
    """Settings with the reference channel of stores, if they have several."""

    def open_channel(path: Path, word: str) -> Volume:
        return open_volume(path, settings.input.model_copy(update={"channel": word}))

    first: Volume | None = None
    # What hinders is told with the problems of all inputs.
    with collecting([]):
        first = open_channel(files[0], "0")
    if first is None or len(first.channels) == 1:
        return settings, []
    choice = _reference_choice(
        *(files[0], first.channels, settings),
        lambda word, _: open_channel(files[0], word).attributes,
    )
    if kind_of([first], settings.workflow.input_kind) == "mosaic":
        volumes = {
            word: [open_channel(path, word) for path in files[:FIRST_SECTIONS]]
            for word in choice.words
        }
        images = {
            word: [v for v in of_channel if isinstance(v, Image)]
            for word, of_channel in volumes.items()
        }
        scores = tile_scores(
            {word: sections_of_mosaics(of_channel) for word, of_channel in images.items()}
        )
    else:
        middle = files[len(files) // 2]
        scores = volume_scores({word: open_channel(middle, word) for word in choice.words})
    settings, decision = _with_reference(settings, choice, scores)
    return settings, [decision]


def _reference_tiles(tiles: Acquisition, settings: Settings) -> Acquisition:
    """The tiles of the reference channel."""
    channels = choose_channels(tiles.folder, tiles.channels, settings)
    (reference,) = (tiles.of_channel(c.index) for c in channels if c.is_reference)
    return reference


def _may_flip(settings: Settings) -> bool:
    """Tell whether nobody stated how rows and columns run, or that they are right."""
    p, is_kept = settings.mosaic, settings.stitch.check_overlap == "warning"
    return not (p.flip or p.order is not None or is_kept or settings.workflow.as_stated)


def run_in_threads(
    label: str, items: Mapping[Path, Item], work: Callable[[Item], Result], problems: list[str]
) -> list[Result]:
    """Run ``work`` on the items in several threads; return the results of those without problems.

    A problem that several items share is added to ``problems`` once, with the first one's path.
    """
    advance = Progress(f"PREFLIGHT: {label}", len(items), "inputs")
    results: dict[Path, Result] = {}

    def try_item(path: Path) -> list[tuple[Path, str]]:
        item_problems: list[str] = []
        with collecting(item_problems):
            results[path] = work(items[path])
        advance(0)
        return [(path, problem) for problem in item_problems]

    by_item = run_tiles([*items], try_item, workers=READERS, describe=str)
    problems += told_once(problem for item_problems in by_item for problem in item_problems)
    return [results[path] for path in items if path in results]


def _survey_sections(
    folder: Path, settings: Settings, table: Path | None
) -> tuple[Acquisition, list[int]]:
    """Survey a folder of tiles; return also the numbers of the sections that are left out."""
    left_out: list[int] = []

    def choose(numbers: set[int]) -> set[int | None]:
        paths = [folder / section_name(number) for number in sorted(numbers)]
        chosen, others = choose_sections(folder, paths, settings.workflow)
        left_out.extend(others)
        return {section_number(path.name) for path in chosen}

    mosaic = settings.mosaic.model_copy(update={"table": table})
    reading, asked = settings.input, settings.workflow.channels
    acquisition = survey(folder, mosaic, reading, settings.stitch.overlap, choose, channels=asked)
    return acquisition, left_out
