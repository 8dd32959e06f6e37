"""Watch a folder: take each section when it is complete, process it, and say what is wrong."""

import fcntl
import json
import logging
import os
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from octane.config.validation import as_ranges
from octane.core.errors import InputError, OctaneError, visible
from octane.core.fingerprint import digest
from octane.core.records import Context
from octane.core.units import counted
from octane.tools.watch.folder import Folder, Look, States, fingerprint_of
from octane.tools.watch.outlook import SILENCE_RATIO, disk_warning, usual_pause
from octane.tools.watch.page import save_pictures, write_page
from octane.tools.watch.runs import RunEnd, Workflow
from octane.tools.watch.sections import (
    Expected,
    OpenSection,
    file_count,
    is_complete,
    largest_pause,
    missing_files,
    newest_time,
    next_in_turn,
    past_sections,
    run_sections,
    section_words,
)
from octane.tools.watch.state import (
    LINES,
    Fault,
    Judgement,
    SectionEntry,
    State,
    append_events,
    read_state,
    recent_alerts,
    save_state,
    tell_alerts,
)

logger = logging.getLogger(__name__)

MOST_RECENT = 2
"""Finished sections, the last ones, that every look includes: late tiles belong to them."""
MOST_IN_TURN = 2
"""Further finished sections in each look: all are looked at again, one after another."""
MOST_NEW = 8
"""Most sections of one run, so that what waits is judged soon."""
LONGEST_WAIT = 600.0
"""Longest wait after failures, in seconds."""
CALL_SECONDS = 60.0
"""Seconds that a user's command may take."""
TILE_KEY_PARTS = 3
"""Parts of a file's key that tell its tile."""
MOST_NAMES = 3
"""Files that a sentence names."""


Judge = Callable[[Mapping[int, str], Collection[int], State], Mapping[int, Judgement]]
"""Judges the new ones of a run's sections; gets the names of all, the new ones, and the state."""


@dataclass(frozen=True)
class Options:
    """What the user asks for.

    Attributes
    ----------
    settle
        Seconds without a change after which a section is complete.
    poll
        Seconds between two looks.
    last
        Number of the last section, None if it is unknown.
    tiles
        Stated number of tiles of a section, None for that of the first section.
    excluded
        Numbers of sections that are left out.
    """

    settle: float
    poll: float
    last: int | None = None
    tiles: int | None = None
    excluded: frozenset[int] = frozenset()


@dataclass
class Watch:
    """A watcher of a folder; ``tell`` gets each alert, and ``clock`` is monotonic."""

    options: Options
    folder: Folder
    workflow: Workflow
    judge: Judge
    tell: Callable[[Context], None]
    clock: Callable[[], float] = time.monotonic
    state: State = field(default_factory=State)
    is_done: bool = False
    _seen: dict[int, States] = field(default_factory=dict)
    _since: dict[int, float] = field(default_factory=dict)
    _reopened: set[int] = field(default_factory=set)
    _active: float | None = None
    _away: float | None = None
    _trouble: str = ""
    _failures: int = 0
    _not_before: float = 0.0
    _one_by_one: bool = False
    _turn: int = 0
    _alerts: list[Context] = field(default_factory=list)

    @property
    def outdir(self) -> Path:
        """Folder of the results."""
        return self.workflow.outdir

    @property
    def watch_folder(self) -> Path:
        """Folder of the watcher's own files."""
        return self.outdir / "watch"

    def open(self) -> None:
        """Read what an earlier watcher did, and say what it could not say any more."""
        self.state = read_state(self.watch_folder / "state.json")
        self._alerts = recent_alerts(self.outdir / LINES)
        self.commit()

    def poll(self) -> None:
        """Look once, and do what is to be done; trouble is said once, and tried again later."""
        try:
            trouble = self._poll()
        except InputError as error:
            trouble = str(error)
        except (OctaneError, OSError) as error:
            trouble = f"{error}; tried again from time to time."
            self._back_off()
        if trouble != self._trouble:
            self._trouble = trouble
            if trouble:
                logger.warning("%s", trouble)
            # A full disk may be the trouble.
            with suppress(OctaneError, OSError):
                self.write_page()

    def _poll(self) -> str:
        """Look once; the result says what hinders."""
        now = self.clock()
        look, problem = self._look(now)
        if look is None:
            return problem
        self._note(look, now)
        todo = [n for n in self._open(look) if self._is_complete(n, look, now)]
        self._warn_of_silence(now)
        is_over = self._is_last() and not self._open(look) and not self._waits_for_refused()
        if now < self._not_before:
            return self._trouble
        if (todo or (is_over and not self._is_finished())) and self.workflow.is_busy():
            return f"Another run is writing into {self.outdir}; sections wait until it ends."
        if todo:
            self._take(todo[: 1 if self._one_by_one else MOST_NEW], look)
        elif is_over:
            self._finish()
        return ""

    def _look(self, now: float) -> tuple[Look | None, str]:
        """Look at the folder; None, and why, if it is away or its names say nothing."""
        finished = sorted(self.state.sections.keys() - self._reopened)
        again = (
            {*finished[-MOST_RECENT:], *next_in_turn(finished, self._turn, MOST_IN_TURN)}
            if finished
            else {}
        )
        self._turn += MOST_IN_TURN
        problem = ""
        try:
            look = self.folder.look(finished, again)
            if look.names or not self.state.sections:
                if self._away is not None:
                    logger.info("%s is there again.", self.folder.path)
                    self._active, self._away = now, None
                    self.state.alerts.pop("folder", None)
                return look, ""
            problem = "is empty"
        except InputError as error:
            text = str(error)
        except OSError as error:
            problem = f"cannot be read ({error.strerror})"
        if problem:
            text = f"{self.folder.path} {problem}: it was renamed, or its disk is away. Watching "
            text += "goes on when it is back."
        self._away = now if self._away is None else self._away
        if now - self._away >= self.options.settle and "folder" not in self.state.alerts:
            self._alert("folder", "Folder", text)
            self.commit()
        return None, text

    def _note(self, look: Look, now: float) -> None:
        """Note what changed since the last look."""
        for number, states in look.states.items():
            if self._seen.get(number) != states:
                self._seen[number], self._since[number] = states, now
                self._active = now
        self._active = now if self._active is None else self._active
        for number, entry in self.state.sections.items():
            names, states = look.names.get(number, ()), look.states.get(number)
            if states is None and len(names) > entry.files and not self.folder.are_mosaics:
                self._reopened.add(number)
            elif states is not None and fingerprint_of(states) != entry.fingerprint:
                self._reopen(number, entry, states)
            elif states is not None:
                self._reopened.discard(number)

    def _reopen(self, number: int, entry: SectionEntry, states: States) -> None:
        """Take a section again whose files changed, but not if some are gone."""
        if file_count(states) >= entry.files:
            self._reopened.add(number)
        elif (key := f"{number}:gone") not in self.state.alerts:
            gone = entry.files - file_count(states)
            text = f"Section {number} lacks {counted(gone, 'file')} that it had; restore what is "
            text += "gone."
            self._alert(key, "Files gone", text, number)
            self.commit()

    def _open(self, look: Look) -> list[int]:
        """Numbers of sections that are not taken, or changed since then."""
        closed = self.state.sections.keys() - self._reopened | self.options.excluded
        return [n for n in look.states if n not in closed]

    def _is_complete(self, number: int, look: Look, now: float) -> bool:
        states = look.states[number]
        limit = self._silence_limit()
        is_silent = limit is not None and now - (self._active or now) > limit
        section = OpenSection(
            len(states),
            now - self._since[number],
            number in look.flags,
            number in past_sections(look, is_silent=is_silent),
        )
        expected = Expected(
            self.options.settle, self._expected_files(look), self.folder.flag is not None
        )
        return is_complete(section, expected)

    def _usual_names(self, look: Look) -> Collection[str]:
        """Names of the files of the first section that is as most are."""
        known = sorted(n for n in self.state.usable if n in look.names) or [min(look.names)]
        counts = Counter(len(look.names[number]) for number in known)
        ((count, _),) = counts.most_common(1)
        return next(look.names[n] for n in known if len(look.names[n]) == count)

    def _expected_files(self, look: Look) -> int:
        """Number of files of a section."""
        usual = self._usual_names(look)
        if self.folder.are_mosaics or self.options.tiles is None:
            return len(usual)
        tiles = {self.folder.key_of(name)[:TILE_KEY_PARTS] for name in usual}
        return self.options.tiles * max(1, len(usual) // len(tiles))

    def _silence_limit(self) -> float | None:
        """Seconds after which the microscope is called silent; None while nobody can tell."""
        pause = usual_pause([section for _, section in sorted(self.state.sections.items())])
        return None if pause is None else max(SILENCE_RATIO * pause, 2 * self.options.settle)

    def _warn_of_silence(self, now: float) -> None:
        limit, silent = self._silence_limit(), now - (self._active or now)
        if limit is None or silent <= limit or self._is_last():
            self.state.alerts.pop("silent", None)
        elif "silent" not in self.state.alerts:
            text = f"No file has come for {silent / 60:.1f} min, and the microscope's longest "
            text += f"pause in a section is usually {limit / SILENCE_RATIO / 60:.1f} min."
            self._alert("silent", "Silent microscope", text)
            self.commit()

    def _is_last(self) -> bool:
        """Tell whether the last section was taken."""
        last = self.options.last
        return last is not None and (last in self.state.sections or last in self.options.excluded)

    def _take(self, numbers: Sequence[int], look: Look) -> None:
        """Process and judge sections that are complete."""
        for number in (n for n in numbers if n in self.state.sections):
            logger.info("Section %d changed after it was taken: it is taken again.", number)
        states = {number: look.states[number] for number in numbers}
        # Files of old sections may have been moved away.
        usable = [n for n in self.state.usable if n not in numbers and n in look.names]
        before = [n for n in map(self.state.before, numbers) if n is not None and n in look.names]
        within = run_sections(usable, numbers, before)
        ended = self._run(within)
        if ended.code:
            self._fail(numbers, states, look, ended)
            return
        self._failures, self._one_by_one = 0, False
        self.state.alerts.pop("run", None)
        names = {n: self.folder.name_of(n, look.names[n]) for n in within}
        judgements = self.judge(names, numbers, self.state)
        for number in numbers:
            judgement = judgements[number]
            save_pictures(self.outdir, number, judgement.pictures)
            lacking = self._missing_tiles(number, look)
            self._enter_judgement(number, states[number], judgement, [*lacking, *judgement.faults])
        self._warn_of_disks()
        self.commit()

    def _missing_tiles(self, number: int, look: Look) -> list[Fault]:
        """A fault of a section whose tiles have not all come."""
        names, usual = look.names[number], self._usual_names(look)
        gone = missing_files(names, usual, self.folder.key_of)
        if not gone or self.folder.are_mosaics:
            return []
        first_gone = ", ".join(gone[:MOST_NAMES]) + f" and {len(gone) - MOST_NAMES} more" * (
            len(gone) > MOST_NAMES
        )
        text = f"Section {number} has {len(names)} of {len(usual)} files; it lacks those named "
        return [Fault("Missing tiles", f"{text}like {first_gone} of another section.")]

    def _enter_judgement(
        self, number: int, states: States, judgement: Judgement, faults: Sequence[Fault]
    ) -> None:
        """Enter a section that was judged, with its event and alerts."""
        kinds = [kind for kind, _ in faults]
        entry = self._enter_section(
            number, states, judgement.name, "look" if faults else "good", kinds
        )
        entry.surface, entry.thickness = judgement.surface, judgement.thickness
        again = {"again": entry.again} if entry.again else {}
        self.state.add_event(
            event="section", time=_now(), section=number, state=entry.state, faults=kinds, **again
        )
        for kind, sentence in faults:
            self._alert(f"{number}:{kind}:{entry.fingerprint[:8]}", kind, sentence, number)
        if not faults:
            logger.info("Section %d: good.", number)

    def _enter_section(
        self, number: int, states: States, name: str, word: str, kinds: list[str]
    ) -> SectionEntry:
        before = max((n for n in self.state.sections if n < number), default=None)
        last = None if before is None else self.state.sections[before].last
        earlier = self.state.sections.get(number)
        entry = SectionEntry(
            name=name,
            state=word,
            fingerprint=fingerprint_of(states),
            files=file_count(states),
            size=sum(state.size for state in states.values()),
            last=newest_time(states),
            pause=largest_pause(states, last),
            free=self._free_bytes() if earlier is None else earlier.free,
            faults=kinds,
            again=0 if earlier is None else earlier.again + 1,
        )
        self.state.sections[number] = entry
        self._reopened.discard(number)
        return entry

    def _fail(
        self, numbers: Sequence[int], states: Mapping[int, States], look: Look, ended: RunEnd
    ) -> None:
        """A run failed: by a section that it names, which is left out until it changes, or not."""
        sentence = ended.sentence
        faulty = [n for n in numbers if self._names_section(n, look, sentence)]
        if not faulty and len(numbers) > 1 and not self._one_by_one:
            # One after another, the odd one is found.
            self._one_by_one = True
            return
        for number in faulty:
            kinds = ["Unreadable"]
            entry = self._enter_section(number, states[number], "", "refused", kinds)
            key = f"{number}:Unreadable:{entry.fingerprint[:8]}"
            self.state.add_event(
                event="section", time=_now(), section=number, state="refused", faults=kinds
            )
            self._alert(key, "Unreadable", f"Section {number}: {sentence}", number)
        if not faulty:
            if "run" not in self.state.alerts:
                self._alert("run", "Run failed", f"{section_words(numbers)}: {sentence}")
            # Together they may show what one does not, such as how tiles overlap.
            self._one_by_one = False
            self._back_off()
        self.commit()

    def _names_section(self, number: int, look: Look, sentence: str) -> bool:
        """Tell whether a sentence names a section, or one of its files."""
        stem = f"section_{number:02d}"
        return stem in sentence or any(name in sentence for name in look.names[number])

    def _waits_for_refused(self) -> bool:
        """Tell whether sections could not be processed, without which the whole run waits."""
        used = self.state.sections.keys() - self.options.excluded
        refused = [n for n in used if self.state.sections[n].state == "refused"]
        if not refused:
            self.state.alerts.pop("refused", None)
        elif "refused" not in self.state.alerts:
            text = (
                f"The whole run waits: {section_words(refused)} cannot be processed. Restore the "
            )
            text += f"files, or start again with --exclude_sections '{as_ranges(refused)}'."
            self._alert("refused", "Whole run waits", text)
            self.commit()
        return bool(refused)

    def _is_finished(self) -> bool:
        """Tell whether the whole run has processed all sections as they are."""
        return self.state.whole == self._whole_fingerprint()

    def _whole_fingerprint(self) -> str:
        return digest(
            f"{n} {section.fingerprint}" for n, section in sorted(self.state.sections.items())
        )

    def _finish(self) -> None:
        """Run the whole workflow on all sections, unless that was done; finished tasks are kept."""
        if self._is_finished():
            self.is_done = True
            self.write_page()
            return
        logger.info("All sections are there: the whole run begins.")
        ended = self._run(None)
        if ended.code:
            if "whole" not in self.state.alerts:
                self._alert("whole", "Run failed", f"The whole run: {ended.sentence}")
            self._back_off()
        else:
            self.state.alerts.pop("whole", None)
            self.state.whole = self._whole_fingerprint()
            self.state.add_event(event="done", time=_now())
            self.is_done = True
            for line in ended.output.partition("Results:\n")[2].splitlines():
                logger.info("%s", line)
        self.commit()

    def _run(self, sections: Sequence[int] | None) -> RunEnd:
        self.state.runs += 1
        save_state(self.state, self.watch_folder / "state.json")
        ended = self.workflow.run(self.state.key, self.state.runs, sections)
        return ended

    def _free_bytes(self) -> dict[str, int]:
        """Bytes free on each disk that fills, by the first of its folders."""
        folders: dict[int, Path] = {}
        for folder in (self.folder.path, self.outdir, self.workflow.work):
            with suppress(OSError):
                folders.setdefault(folder.stat().st_dev, folder)
        return {str(folder): shutil.disk_usage(folder).free for folder in folders.values()}

    def _warn_of_disks(self) -> None:
        sections = [section for _, section in sorted(self.state.sections.items())]
        last = self.options.last
        to_come = None if last is None else max(0, last - max(self.state.sections))
        for disk, free in self._free_bytes().items():
            forecast = disk_warning(sections, disk, free, to_come)
            if forecast is None:
                self.state.alerts.pop(f"disk:{disk}", None)
            elif f"disk:{disk}" not in self.state.alerts:
                sections_left, days = forecast
                when = "" if days is None else f", in {days:.1f} days"
                count = counted(sections_left, "more section")
                text = f"The disk of {disk} will be full after {count}"
                more = "" if to_come is None else f", and {to_come} are to come"
                self._alert(f"disk:{disk}", "Disk", f"{text}{when}{more}; free some space.")

    def _alert(self, key: str, kind: str, sentence: str, section: int | None = None) -> None:
        """Raise an alert, unless it holds already."""
        if key in self.state.alerts:
            return
        self.state.alerts[key] = False
        more = {} if section is None else {"section": section}
        self.state.add_event(
            event="alert", key=key, time=_now(), fault=kind, sentence=sentence, **more
        )
        self._alerts.insert(0, self.state.pending[-1])
        logger.warning("%s", sentence)

    def commit(self) -> None:
        """Write what happened, and call the user's command for new alerts.

        The state is written first. A kill after the command leaves an alert that is not marked as
        told: then the command is called twice, and never not at all.
        """
        problem: OctaneError | OSError | None = None
        try:
            save_state(self.state, self.watch_folder / "state.json")
            append_events(self.state, self.outdir / LINES)
        except (OctaneError, OSError) as error:
            # On a full disk the user must be told all the more.
            problem = error
        new_alerts = tell_alerts(self.state, self.tell)
        if problem is not None:
            raise problem
        self.state.pending = []
        if new_alerts:
            save_state(self.state, self.watch_folder / "state.json")
        self.write_page()

    def write_page(self) -> None:
        """Renew the page."""
        last = self.options.last
        write_page(
            *(self.outdir, self.folder.path, self.state, self._alerts),
            self._seen.keys(),
            trouble=self._trouble,
            to_come=None if last is None else max(0, last - max(self.state.sections, default=0)),
            is_done=self.is_done,
        )

    def _back_off(self) -> None:
        """Wait longer after each failure."""
        self._failures += 1
        wait = min(LONGEST_WAIT, self.options.poll * 2**self._failures)
        self._not_before = self.clock() + wait


def alert_command(command: str) -> Callable[[Context], None]:
    """A function that gives an alert to a shell command as JSON; an empty command does nothing."""

    def tell(event: Context) -> None:
        text = json.dumps(event) + "\n"
        try:
            done = subprocess.run(
                ["bash", "-c", command], input=text, text=True, check=False, timeout=CALL_SECONDS
            )
            failed = f"exit code {done.returncode}" if done.returncode else ""
        except (OSError, subprocess.TimeoutExpired) as error:
            failed = str(error)
        if failed:
            logger.warning("--on_alert failed: %s", failed)

    return tell if command else lambda _: None


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@contextmanager
def hold_lock(outdir: Path) -> Generator[None]:
    """Refuse a second watcher of the same results."""
    place = outdir / "watch" / ".lock"
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        stream = place.open("a+", encoding="utf-8")
    except OSError as error:
        raise OctaneError(
            f"{place.parent} cannot be written ({error.strerror}); give another --outdir."
        ) from error
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            stream.seek(0)
            who = visible(stream.read().strip()) or "another process"
            raise OctaneError(
                f"{outdir} is being watched by {who}; end that first, or give another --outdir."
            ) from error
        except OSError as error:
            logger.warning("%s is on a file system without locks (%s).", place, error.strerror)
        stream.truncate(0)
        stream.write(f"process {os.getpid()}")
        stream.flush()
        yield


def watch(watcher: Watch, sleep: Callable[[float], None] = time.sleep) -> None:
    """Watch until the whole run has ended, or for ever if nobody knows the last section."""
    with hold_lock(watcher.outdir):
        watcher.open()
        while not watcher.is_done:
            watcher.poll()
            if not watcher.is_done:
                sleep(watcher.options.poll)
