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
    FIRST,
    SectionSource,
    decided_flip,
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
from octane.processes.preflight.plan import choose_channels, is_chosen, word_for
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
    left_out, closed
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
    closed: Collection[int | None] = ()

    @property
    def channels(self) -> Sequence[str]:
        """Labels of all channels."""
        return self.volumes[0].channels if self.tiles is None else self.tiles.channels


def open_inputs(
    source: Path, settings: Settings, beside: Mapping[str, Path], problems: list[str]
) -> Inputs:
    """Find and open the inputs of a subject; ``beside`` are its other files by parameter.

    Those that cannot be used are added to ``problems``. Raises an InputError if there are none, or
    if they are of different kinds.
    """
    asked = settings.workflow.input_kind
    if asked in ("auto", "mosaic") and holds_tiles(source, settings.mosaic):
        table, decisions = beside.get("tile_table"), list[Decision]()
        tiles, left_out = _survey(source, settings, table)
        # One is enough: all names come from the same program.
        problems += [*filter(None, (unlinkable(entry.file) for entry in tiles.grid.entries))][:1]
        if len(tiles.channels) > 1 and _is_undecided(settings):
            settings, decision = _of_tiles(tiles, settings)
            decisions.append(decision)
            tiles, _ = _survey(source, settings, table)
        reference = _reference(tiles, settings)
        sections = sections_of_tiles(reference)
        if "positions" not in beside and _is_open(settings) and not problems:
            decided = decided_flip(sections, settings.mosaic)
            if decided is not None:
                settings = settings.model_copy(update={"mosaic": decided[0]})
                decisions.append(decided[1])
                tiles, _ = _survey(source, settings, table)
                reference = _reference(tiles, settings)
                sections = sections_of_tiles(reference)
        planned: list[Volume] = [
            planned_mosaic(section, tiles.folder, settings.input) for section in reference.sections
        ]
        return Inputs(
            *(source, "mosaic", planned, settings, tiles, (), sections, decisions),
            *(left_out, left_out),
        )
    files, left_out = choose_sections(source, find_inputs(source), settings.workflow)
    problems += unfit_files(files)
    decisions = []
    if not problems and _is_undecided(settings):
        with collecting(problems):
            settings, decisions = _of_stores(files, settings)

    def look(path: Path) -> Volume:
        require_target(path)
        return open_volume(path, settings.input)

    volumes = side_by_side("opening", {path: path for path in files}, look, problems)
    kind = kind_of(volumes, asked) if volumes else "volume"
    closed = {section_number(path.name) for path in {*files} - {v.path for v in volumes}}
    closed = closed.union(left_out)
    return Inputs(
        *(source, kind, volumes, settings),
        files=files,
        decisions=decisions,
        left_out=left_out,
        closed=closed,
    )


def _is_undecided(settings: Settings) -> bool:
    """Tell whether the data may decide which channel is the reference."""
    return settings.input.channel is None and not settings.workflow.as_stated


def _with_reference(
    settings: Settings, choice: Choice, scores: Mapping[str, float]
) -> tuple[Settings, Decision]:
    """Settings with the reference channel, and with those that are written."""
    word, decision = choice.decided(scores)
    reading = settings.input.model_copy(update={"channel": word})
    workflow = settings.workflow.model_copy(
        update={} if choice.written is None else {"channels": choice.written}
    )
    return settings.model_copy(update={"input": reading, "workflow": workflow}), decision


def _choice(
    path: Path,
    labels: Sequence[str],
    settings: Settings,
    attributes: Callable[[str, int], Attributes],
) -> Choice:
    """The channels that can be the reference; ``attributes`` are those of a word and number."""
    chosen = settings.workflow.channels if is_chosen(settings) else ALL
    numbers = chosen_channels(path, labels, len(labels), str(chosen))
    words = {word_for(number, labels): number for number in numbers}
    nearest = [word for word, number in words.items() if is_nearest(attributes(word, number))]
    return Choice(words, nearest, is_chosen(settings))


def _of_tiles(tiles: Acquisition, settings: Settings) -> tuple[Settings, Decision]:
    """Settings with the reference channel of several in files of tiles."""
    noted = tiles.sections[0].channels
    choice = _choice(tiles.folder, tiles.channels, settings, lambda _, number: noted[number])
    of = {word: sections_of_tiles(tiles.of_channel(k)) for word, k in choice.words.items()}
    return _with_reference(settings, choice, tile_scores(of))


def _of_stores(files: Sequence[Path], settings: Settings) -> tuple[Settings, list[Decision]]:
    """Settings with the reference channel of stores, if they have several."""

    def opened(path: Path, word: str) -> Volume:
        return open_volume(path, settings.input.model_copy(update={"channel": word}))

    first: Volume | None = None
    # What hinders is told with the problems of all inputs.
    with collecting([]):
        first = opened(files[0], "0")
    if first is None or len(first.channels) == 1:
        return settings, []
    choice = _choice(
        *(files[0], first.channels, settings),
        lambda word, _: opened(files[0], word).attributes,
    )
    if kind_of([first], settings.workflow.input_kind) == "mosaic":
        some = {word: [opened(path, word) for path in files[:FIRST]] for word in choice.words}
        images = {word: [v for v in own if isinstance(v, Image)] for word, own in some.items()}
        scores = tile_scores({word: sections_of_mosaics(own) for word, own in images.items()})
    else:
        middle = files[len(files) // 2]
        scores = volume_scores({word: opened(middle, word) for word in choice.words})
    settings, decision = _with_reference(settings, choice, scores)
    return settings, [decision]


def _reference(tiles: Acquisition, settings: Settings) -> Acquisition:
    """The tiles of the reference channel."""
    channels = choose_channels(tiles.folder, tiles.channels, settings)
    (reference,) = (tiles.of_channel(c.index) for c in channels if c.is_reference)
    return reference


def _is_open(settings: Settings) -> bool:
    """Tell whether nobody stated how rows and columns run, or that they are right."""
    p, is_kept = settings.mosaic, settings.stitch.check_overlap == "warning"
    return not (p.flip or p.order is not None or is_kept or settings.workflow.as_stated)


def side_by_side(
    label: str, items: Mapping[Path, Item], work: Callable[[Item], Result], problems: list[str]
) -> list[Result]:
    """Run ``work`` on the items in several threads; return the results of those without problems.

    A problem that several items share is added to ``problems`` once, with the first one's path.
    """
    advance = Progress(f"PREFLIGHT: {label}", len(items), "inputs")
    results: dict[Path, Result] = {}

    def look(path: Path) -> list[tuple[Path, str]]:
        own: list[str] = []
        with collecting(own):
            results[path] = work(items[path])
        advance(0)
        return [(path, problem) for problem in own]

    found = run_tiles([*items], look, workers=READERS, describe=str)
    problems += told_once(problem for own in found for problem in own)
    return [results[path] for path in items if path in results]


def _survey(folder: Path, settings: Settings, table: Path | None) -> tuple[Acquisition, list[int]]:
    """Survey a folder of tiles; return also the numbers of the sections that are left out."""
    left_out: list[int] = []

    def choose(numbers: set[int]) -> set[int | None]:
        paths = [folder / section_name(number) for number in sorted(numbers)]
        chosen, others = choose_sections(folder, paths, settings.workflow)
        left_out.extend(others)
        return {section_number(path.name) for path in chosen}

    mosaic = settings.mosaic.model_copy(update={"table": table})
    reading, asked = settings.input, settings.workflow.channels
    found = survey(folder, mosaic, reading, settings.stitch.overlap, choose, channels=asked)
    return found, left_out
