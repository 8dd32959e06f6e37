"""The watcher as a user starts it: with the workflow, and with the report's checks as its judge."""

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from octane.config.validation import section_ranges
from octane.core.errors import InputError, OctaneError
from octane.processes.mosaic.names import NamePattern
from octane.processes.preflight.schema import settings_of
from octane.processes.stack.parameters import StackParameters
from octane.tools.watch.command import WatchOptions
from octane.tools.watch.faults import (
    StitchedSection,
    compare_sections,
    draw,
    faults_of,
    thickness_of,
)
from octane.tools.watch.folder import Folder
from octane.tools.watch.runs import Workflow, read_parameters
from octane.tools.watch.state import INCOMPARABLE, Judgement, State
from octane.tools.watch.step import Options, Watch, alert_command

LEAST_POLL, MOST_POLL = 0.2, 10.0
"""Least and most seconds between two looks."""
LOOKS = 4
"""Looks in the time for which a complete section must be at rest."""
ALIGNMENT_FAULT = "Section alignment"
"""Fault that --stack_align mends."""
MOST_SURFACES = 10
"""Sections whose surfaces tell where the next one's lies."""


def begin(folder: Path, outdir: Path, words: Sequence[str], options: WatchOptions) -> Watch:
    """Make a watcher of a folder; ``words`` go to the workflow.

    Raises an InputError for words that the workflow would refuse.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; give the one that the microscope writes to.")
    given = read_parameters(words)
    settings = settings_of({**given, "subject": given.get("subject", "subject")})
    mosaic = settings.mosaic
    flag = None if options.complete is None else NamePattern.of(options.complete)
    if flag is not None and "section" not in flag.fields:
        raise InputError(f"--complete is '{options.complete}', without {{section}}; write it.")
    pattern = None if mosaic.pattern is None else NamePattern.of(mosaic.pattern)
    here = Path.cwd()
    folder, outdir = Path(os.path.abspath(folder)), Path(os.path.abspath(outdir))  # noqa: PTH100 - links stay
    watched = Folder(folder, pattern, flag, mosaic.raw_shape is not None, outdir)
    tiles = mosaic.rows and mosaic.columns and mosaic.rows * mosaic.columns
    workflow = Workflow(folder, outdir, words, here, outdir / "watch" / "run.log")
    poll = min(MOST_POLL, max(LEAST_POLL, options.settle / LOOKS))
    left_out = settings.workflow.exclude_sections
    ranges = section_ranges(left_out) if left_out else []
    excluded = frozenset(number for numbers in ranges for number in numbers)
    asked = Options(options.settle, poll, options.last, tiles or None, excluded)
    scratch = outdir / "watch"

    def judge(
        names: Mapping[int, str], new: Collection[int], state: State
    ) -> Mapping[int, Judgement]:
        return judge_sections(
            workflow.stitch_folders(), names, new, state, (settings.stack, scratch)
        )

    return Watch(asked, watched, workflow, judge, alert_command(options.on_alert))


def judge_sections(
    tasks: Mapping[str, Path],
    names: Mapping[int, str],
    new: Collection[int],
    state: State,
    stack: tuple[StackParameters, Path],
) -> Mapping[int, Judgement]:
    """Judge the ``new`` sections of a run by what its ``tasks`` left, by the sections' names."""
    lacking = [names[n] for n in new if names[n] not in tasks]
    if lacking:
        raise OctaneError(f"Nextflow's trace lacks STITCH of {lacking[0]}; see watch/run.log.")
    sections = {
        n: StitchedSection.read(n, name, tasks[name]) for n, name in names.items() if name in tasks
    }
    judgements = {}
    sound = {
        n for n in sections.keys() - {*new} if not {*INCOMPARABLE} & {*state.sections[n].faults}
    }
    for number in sorted(new):
        section, earlier = sections[number], [n for n in sections if n < number]
        before = max([n for n in earlier if n in sound] or earlier, default=None)
        pair = None if before is None else compare_sections(sections[before], section, *stack)
        entries = [state.sections[n] for n in sorted(state.sections) if n < number][-MOST_SURFACES:]
        faults = faults_of(section, [*sections.values()], pair, entries)
        if stack[0].align in ("translation", "rigid"):
            faults = [fault for fault in faults if fault.kind != ALIGNMENT_FAULT]
        if not {*INCOMPARABLE} & {fault.kind for fault in faults}:
            sound.add(number)
        judgements[number] = Judgement(
            names[number], section.surface, thickness_of(pair), faults, draw(section)
        )
    return judgements
