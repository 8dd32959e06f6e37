"""A microscope is watched: each section is judged at once, and the result is that of one run."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from threading import Thread

import pytest
from microscope import Microscope, laser_off
from runs import Run, checksums, waited

SHORT = (
    *("-profile", "test", "--phantom", "false", "--save_bias_field", "false"),
    *("--stitch_flat_field", "none", "--overlap", "0.2", "--n4_iterations", "3"),
)


@pytest.fixture
def start(project, environment, tmp_path):
    """Start a watcher of a folder; its output goes to a file."""
    begun = []

    def begin(folder, *words):
        folder.mkdir(exist_ok=True)
        script = [
            sys.executable,
            project / "bin" / "watch.py",
            folder,
            "--outdir",
            tmp_path / "out",
        ]
        with (tmp_path / "watch.log").open("ab") as log:
            process = subprocess.Popen(
                [*map(str, script), "--settle", "1", *words, *SHORT],
                cwd=tmp_path,
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )
        begun.append(process)
        return process

    yield begin
    for process in begun:
        process.kill()
        process.wait()


def events(tmp_path):
    lines = (tmp_path / "out" / "watch.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def test_a_dark_section_is_told_at_once_and_the_whole_run_repeats_nothing(start, phantom, tmp_path):
    microscope = Microscope(phantom / "mosaics", tmp_path / "tiles", faults={2: laser_off})
    microscope.write()
    told = tmp_path / "told.jsonl"
    skipped = ("--skip_n4", "--skip_pyramid", "--skip_report", "--resolution", "none")
    watcher = start(tmp_path / "tiles", "--last", "2", "--on_alert", f"cat >> {told}", *skipped)
    watcher.wait(timeout=240)
    log = (tmp_path / "watch.log").read_text(encoding="utf-8")
    assert watcher.returncode == 0, log
    alerts = [json.loads(line) for line in told.read_text(encoding="utf-8").splitlines()]
    assert {own["section"] for own in alerts} == {2}
    assert "Section brightness" in {own["fault"] for own in alerts}
    last = Run(tmp_path, tmp_path / "out", 0, log)
    assert {task.split(" ")[0] for task in last.tasks("CACHED")} == {"MOSAIC", "STITCH"}
    assert checksums(tmp_path / "out")
    page = (tmp_path / "out" / "live.html").read_text(encoding="utf-8")
    assert 'class="state done"' in page
    assert "<script" not in page


def test_an_interrupt_says_how_to_go_on(start, tmp_path):
    watcher = start(tmp_path / "tiles")
    waited((tmp_path / "out" / "live.html").exists, "the page")
    watcher.send_signal(signal.SIGINT)
    assert watcher.wait(timeout=60) == 130
    assert f"watch.py {tmp_path}/tiles" in (tmp_path / "watch.log").read_text(encoding="utf-8")


@pytest.mark.soak
@pytest.mark.parametrize("are_stores", [False, True], ids=["tiles", "stores"])
@pytest.mark.parametrize("seed", range(1, 6))
def test_killed_at_random_the_result_is_that_of_one_run(
    start, succeeding, command, tmp_path, seed, are_stores
):
    rng = random.Random(seed)
    made = command(
        *("phantom", tmp_path / "subject", "--sections", 4, "--tiles", 2, 2, "--seed", seed),
        *("--tile_shape", "24", "64", "64", "--section_thickness", "70"),
    )
    assert made.returncode == 0, made.stderr
    tiles = tmp_path / "tiles"
    microscope = Microscope(
        *(tmp_path / "subject" / "mosaics", tiles, are_stores, 0.1, 8.0),
        late=frozenset({2}),
        rng=rng,
    )
    thread = Thread(target=microscope.write)
    thread.start()
    kills = 3
    while True:
        watcher = start(tiles, "--last", "4")
        try:
            watcher.wait(timeout=rng.uniform(3, 30) if kills else 400)
            break
        except subprocess.TimeoutExpired:
            assert kills
            kills -= 1
            os.kill(watcher.pid, signal.SIGKILL)
            watcher.wait()
            time.sleep(rng.random())
    thread.join()
    assert watcher.returncode == 0, (tmp_path / "watch.log").read_text(encoding="utf-8")
    found = events(tmp_path)
    assert [own["number"] for own in found] == [*range(1, len(found) + 1)]
    taken = Counter(own["section"] for own in found if own["event"] == "section")
    repeated = {own["section"] for own in found if "again" in own}
    assert taken.keys() == {1, 2, 3, 4}
    assert all(count == 1 for number, count in taken.items() if number not in repeated)
    batch = succeeding(tmp_path / "batch", "--input", tiles, *SHORT)
    assert checksums(batch.outdir) == checksums(tmp_path / "out")
