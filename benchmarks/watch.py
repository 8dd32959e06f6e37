"""Watching a microscope: cost of a section, seconds from a fault to its alert, false alarms.

Stored in benchmarks/results/watch.json. ``--quick`` takes fewer sections, and writes to the scratch
folder (OCTANE_BENCH_DIR, else work/bench) instead.

- ``cost``: a section of 9 tiles among 10 and among 500. The looks at the folder, the state and the
  page are the watcher's own; PREFLIGHT to STITCH are a run of Nextflow on the sections of a window.
- ``faults``: a simulated microscope whose stage slips in section 3, whose laser is off in section 5
  and of which a file of section 6 is cut short.
- ``sound``: sections without a fault, judged one after another.
"""

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from threading import Thread

from _common import PROJECT, command_line, run_parts, scratch_folder
from _processes import run
from microscope import Microscope, laser_off, stage_slip

from octane.processes.stack.parameters import StackParameters
from octane.tools.watch.folder import Folder
from octane.tools.watch.judge import judge_sections
from octane.tools.watch.runs import RunEnd, Workflow
from octane.tools.watch.sections import run_sections
from octane.tools.watch.state import Judgement, SectionEntry, State
from octane.tools.watch.step import Options, Watch

PARTS = ("cost", "faults", "sound")
GRID = 3
"""Rows and columns of tiles of the sections whose cost is measured."""
SETTLE = 2.0
CUT = 30.0
"""Seconds between the simulated sections."""
GIVEN = ("-profile", "test", "--phantom", "false", "--overlap", "0.2")


class Quick(Workflow):
    """A workflow whose runs take no time."""

    def run(self, key: str, number: int, sections: Sequence[int] | None) -> RunEnd:
        """End at once."""
        del key, number, sections
        return RunEnd(0, "")


def sound_judge(names: Mapping[int, str], new: Collection[int], _: State) -> dict[int, Judgement]:
    """Find no fault."""
    return {n: Judgement(names[n], None, None, [], {}) for n in new}


def fresh(name: str) -> Path:
    """An empty folder for a part."""
    folder = scratch_folder() / f"watch_{name}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def phantom(folder: Path, sections: int, seed: int, *words: object) -> Path:
    """Make a phantom, and return the folder of its mosaics."""
    script = [sys.executable, PROJECT / "bin" / "phantom.py", folder]
    given = ("--sections", sections, "--seed", seed, "--tiles", 2, 2, *words)
    run([*map(str, script), *map(str, given)])
    return folder / "mosaics"


def bytes_read() -> int:
    """Bytes that this process has read."""
    lines = Path("/proc/self/io").read_text(encoding="utf-8").splitlines()
    return int(lines[0].split()[1])


def own_cost(places: Sequence[int]) -> list[dict[str, float]]:
    """Seconds and bytes of the watcher itself for some of many sections."""
    logging.getLogger("octane").setLevel(logging.WARNING)
    folder = fresh("own")
    tiles = folder / "tiles"
    tiles.mkdir()
    now, found = 0.0, list[dict[str, float]]()
    workflow = Quick(tiles, folder / "out", (), folder, folder / "log")
    watcher = Watch(
        Options(SETTLE, SETTLE / 4),
        Folder(tiles),
        workflow,
        sound_judge,
        lambda _: None,
        lambda: now,
    )
    watcher.open()
    for number in range(1, max(places) + 1):
        for tile in range(GRID**2):
            name = f"section_{number:03d}_y{tile // GRID}_x{tile % GRID}.tif"
            (tiles / name).write_bytes(b"voxels")
        started, read = time.perf_counter(), bytes_read()
        watcher.poll()
        seconds = time.perf_counter() - started
        now += 2 * SETTLE
        watcher.poll()
        if number in places:
            whole = time.perf_counter() - started
            found.append(
                {
                    "section": number,
                    "look_seconds": seconds,
                    "seconds": whole,
                    "bytes_read": bytes_read() - read,
                    "state_bytes": (folder / "out" / "watch" / "state.json").stat().st_size,
                }
            )
    return found


def run_cost(places: Sequence[int]) -> list[dict[str, float]]:
    """Seconds and bytes of Nextflow and its tasks for a section among others.

    All sections are links to the tiles of one, so that many take no space.
    """
    folder = fresh("run")
    source = phantom(folder / "subject", 1, 1, "--tile_shape", 24, 64, 64)
    found = []
    for count in places:
        tiles = folder / f"tiles_{count}"
        microscope = Microscope(source, tiles)
        microscope.write()
        first = sorted(tiles.iterdir())
        for number in range(2, count + 1):
            for path in first:
                os.link(path, tiles / path.name.replace("section_01", f"section_{number:02d}"))
        workflow = Workflow(tiles, folder / f"out_{count}", GIVEN, folder, folder / "log")
        before = run_sections(range(1, count - 1), [count - 1], [])
        require(workflow.run("cost", count * 10, before))
        started = time.perf_counter()
        require(workflow.run("cost", count * 10 + 1, run_sections(before, [count], [count - 1])))
        seconds = time.perf_counter() - started
        found.append({"sections": count, "seconds": seconds, "bytes_read": tasks_read(workflow)})
    return found


def require(ended: RunEnd) -> None:
    """Stop if a run failed."""
    if ended.code:
        raise SystemExit(ended.sentence)


def tasks_read(workflow: Workflow) -> float:
    """Bytes that the tasks of the last run read, in Nextflow's units."""
    table = workflow.outdir / "pipeline_info" / "trace.txt"
    header, *rows = [line.split("\t") for line in table.read_text(encoding="utf-8").splitlines()]
    status, read = header.index("status"), header.index("rchar")
    return sum(plain(row[read]) for row in rows if row[status] == "COMPLETED")


def plain(text: str) -> float:
    """Bytes such as 2.5 MB."""
    number, _, unit = text.partition(" ")
    return float(number) * 1024 ** ("B", "KB", "MB", "GB").index(unit or "B")


def cost(quick: bool) -> dict[str, object]:
    """Cost of a section among few and among many."""
    places = [10, 50] if quick else [10, 100, 500]
    return {"own": own_cost(places), "run": run_cost([places[0], places[-1]])}


def faults(quick: bool) -> dict[str, object]:
    """Seconds from the last byte of a section to its alert."""
    del quick
    folder = fresh("faults")
    microscope = Microscope(
        phantom(folder / "subject", 7, 1, "--section_thickness", 70),
        folder / "tiles",
        pause=0.05,
        cut=CUT,
        faults={3: stage_slip(8), 5: laser_off},
        short=frozenset({6}),
    )
    microscope.folder.mkdir()
    thread = Thread(target=microscope.write)
    thread.start()
    told = folder / "told.jsonl"
    script = [sys.executable, PROJECT / "bin" / "watch.py", microscope.folder]
    call = f'cat | sed "s/^{{/{{\\"at\\": $(date +%s.%N), /" >> {told}'
    given = (
        "--outdir",
        folder / "out",
        "--settle",
        SETTLE,
        "--last",
        7,
        "--on_alert",
        call,
        *GIVEN,
    )
    watcher = subprocess.Popen([*map(str, (*script, *given))], cwd=folder)
    thread.join()
    deadline = time.monotonic() + 3 * CUT
    while time.monotonic() < deadline and "Whole run" not in told.read_text(encoding="utf-8"):
        time.sleep(1)
    watcher.send_signal(signal.SIGINT)
    watcher.wait()
    alerts = [json.loads(line) for line in told.read_text(encoding="utf-8").splitlines()]
    ended = microscope.ended
    return {
        "cut_seconds": CUT,
        "settle_seconds": SETTLE,
        "alerts": [
            {
                "section": own["section"],
                "fault": own["fault"],
                "sentence": own["sentence"].replace(str(folder), ""),
                "seconds": own["at"] - ended[own["section"]],
                "before_next": own["at"] < ended.get(own["section"] + 1, float("inf")),
            }
            for own in alerts
            if "section" in own
        ],
        "sound": [n for n in ended if n not in {own.get("section") for own in alerts}],
    }


def sound(quick: bool) -> dict[str, object]:
    """Alarms in sections without a fault."""
    folder, count, alarms, every = fresh("sound"), 6 if quick else 26, list[object](), 0
    for seed in range(1, 2 if quick else 5):
        thickness = (70, 150)[seed % 2]
        own = folder / str(seed)
        source = phantom(own, count, seed, "--section_thickness", thickness)
        workflow = Workflow(source, own / "out", GIVEN, own, own / "log")
        require(workflow.run("sound", 1, [*range(1, count + 1)]))
        tasks = workflow.stitch_folders()
        names = {int(name[8:]): name for name in tasks}
        state = State()
        for number in sorted(names):
            within = run_sections(state.usable, [number], filter(None, [state.before(number)]))
            few = {n: names[n] for n in within}
            given = (tasks, few, [number], state, (StackParameters(), own))
            found = judge_sections(*given)[number]
            kinds = [fault.kind for fault in found.faults]
            alarms += [{"seed": seed, "section": number, "fault": kind} for kind in kinds]
            state.sections[number] = remembered(found, kinds)
            every += 1
    return {"sections": every, "alarms": alarms}


def remembered(found: Judgement, kinds: list[str]) -> SectionEntry:
    """A section that was judged, as a watcher remembers it."""
    return SectionEntry(
        name=found.name,
        state="look" if kinds else "good",
        fingerprint="",
        files=1,
        size=1,
        faults=kinds,
        surface=found.surface,
        thickness=found.thickness,
    )


def main() -> None:
    """Measure the parts chosen on the command line."""
    chosen = command_line(__doc__, PARTS).parse_args()
    parts = {
        "cost": lambda: cost(chosen.quick),
        "faults": lambda: faults(chosen.quick),
        "sound": lambda: sound(chosen.quick),
    }
    run_parts("watch", parts, chosen)


if __name__ == "__main__":
    main()
