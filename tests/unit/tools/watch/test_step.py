"""Sections are taken once, when they are complete; what is wrong is said once."""

import json
import shutil
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise

import pytest
from refusals import refused

from octane.core.errors import NoSpaceError
from octane.tools.watch.runs import RunEnd
from octane.tools.watch.step import LONGEST_WAIT, hold_lock, watch

SECTIONS = range(1, 7)


def events(bench):
    """Events of the file, of which each has its own number."""
    lines = (bench.root / "out" / "watch.jsonl").read_text(encoding="utf-8").splitlines()
    found = [json.loads(line) for line in lines]
    assert [own["number"] for own in found] == [*range(1, len(found) + 1)]
    return found


def taken(bench):
    return [own["section"] for own in events(bench) if own["event"] == "section"]


def test_each_section_is_taken_once_and_the_whole_run_follows_the_last(bench):
    bench.options = replace(bench.options, last=6)
    watcher = bench.begin()
    for number in SECTIONS:
        bench.write(number)
        bench.wait(watcher)
    watcher.poll()
    assert taken(bench) == [*SECTIONS]
    # The first four, the last two: as many for the 500th section.
    assert bench.workflow.runs == [
        *([1], [1, 2], [1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6], None)
    ]
    assert watcher.is_done
    assert not bench.told
    again = bench.begin()
    again.poll()
    assert again.is_done
    assert len(bench.workflow.runs) == 7


def test_a_section_waits_for_its_tiles_and_for_files_at_rest(bench):
    watcher = bench.begin()
    bench.write(1)
    bench.wait(watcher)
    bench.write(2, ["y0_x0", "y0_x1", "y1_x0"])
    bench.wait(watcher, 100)
    assert bench.workflow.runs == [[1]]
    bench.write(2, ["y1_x1"], "vox")
    bench.wait(watcher, 5)
    bench.write(2, ["y1_x1"], "voxels")
    bench.wait(watcher, 9)
    assert bench.workflow.runs == [[1]]
    bench.wait(watcher, 2)
    assert bench.workflow.runs == [[1], [1, 2]]


def test_tiles_that_do_not_come_are_missed_once_the_next_section_begins(bench):
    watcher = bench.begin()
    bench.write(1)
    bench.write(2, ["y0_x0", "y0_x1", "y1_x1"])
    bench.write(3, ["y0_x0"])
    bench.wait(watcher)
    (told,) = bench.told
    assert (told["section"], told["fault"]) == (2, "Missing tiles")
    assert "section_01_y1_x0.tif" in told["sentence"]
    # It comes after all.
    bench.write(2, ["y1_x0"])
    bench.wait(watcher)
    assert taken(bench) == [1, 2, 2]
    assert events(bench)[-1]["again"] == 1
    assert len(bench.told) == 1


def test_a_file_that_is_replaced_later_is_seen_in_turn(bench):
    watcher = bench.begin()
    for number in range(1, 10):
        bench.write(number)
    bench.wait(watcher)
    bench.wait(watcher)
    bench.write(3, ["y0_x0"], "other voxels")
    for _ in range(10):
        bench.wait(watcher)
    assert taken(bench) == [*range(1, 10), 3]


def test_the_microscopes_own_flag(bench):
    from octane.processes.mosaic.names import NamePattern

    watcher = bench.begin(flag=NamePattern.of("done_{section}.txt"))
    bench.write(1)
    bench.wait(watcher)
    assert bench.workflow.runs == []
    (bench.tiles / "done_1.txt").touch()
    watcher.poll()
    assert bench.workflow.runs == [[1]]


def test_faults_are_told_once_also_after_a_kill(bench, odd):
    bench.faults = {1: [odd]}
    watcher = bench.begin()
    bench.write(1)
    bench.wait(watcher)
    assert [own["fault"] for own in bench.told] == [odd.kind]
    bench.wait(bench.begin(), 100)
    assert len(bench.told) == 1
    assert taken(bench) == [1]


@pytest.mark.parametrize("step", range(1, 15))
def test_a_kill_at_any_write_loses_and_repeats_nothing(bench, odd, step, monkeypatch):
    import octane.tools.watch.step as module

    class Killed(BaseException):
        pass

    count = 0

    def deadly(function):
        def call(*arguments, **options):
            nonlocal count
            count += 1
            if count == step:
                raise Killed
            result = function(*arguments, **options)
            count += 1
            if count == step:
                raise Killed
            return result

        return call

    bench.faults = {1: [odd], 2: [odd]}
    bench.write(1)
    bench.write(2)
    watcher = bench.begin()
    with monkeypatch.context() as patch:
        for name in ("save_state", "append_events", "write_page"):
            patch.setattr(module, name, deadly(getattr(module, name)))
        watcher.tell = deadly(watcher.tell)
        with suppress(Killed):
            bench.wait(watcher)
    bench.wait(bench.begin())
    assert taken(bench) == [1, 2]
    keys = [own["key"] for own in bench.told]
    assert sorted({*keys}) == sorted(own["key"] for own in events(bench) if "key" in own)
    assert {key[0] for key in keys} == {"1", "2"}


def test_a_section_that_cannot_be_read_is_left_out_until_it_changes(bench):
    watcher = bench.begin()
    bench.write(1)
    bench.wait(watcher)
    broken = f"Launching\n{bench.tiles}/section_02_y0_x1.tif is truncated; restore it.\n"
    bench.workflow.answers = [RunEnd(1, broken)]
    bench.write(2)
    bench.wait(watcher)
    assert [(own["section"], own["fault"]) for own in bench.told] == [(2, "Unreadable")]
    bench.write(3)
    bench.wait(watcher)
    assert bench.workflow.runs[-1] == [1, 3]
    bench.write(2, content="restored")
    bench.wait(watcher)
    assert bench.workflow.runs[-1] == [1, 2, 3]
    assert taken(bench) == [1, 2, 3, 2]


def test_of_several_sections_the_broken_one_is_found(bench):
    bench.write(1)
    bench.write(2)
    broken = RunEnd(1, "Launching\nN4 lacks memory\n")
    bench.workflow.answers = [
        broken,
        RunEnd(0, ""),
        RunEnd(1, "octane stopped: MOSAIC (x:section_02): bad"),
    ]
    watcher = bench.begin()
    bench.wait(watcher)
    bench.wait(watcher)
    assert [(own["section"], own["fault"]) for own in bench.told] == [(2, "Unreadable")]
    assert taken(bench) == [1, 2]


def test_a_run_that_fails_is_tried_again_ever_more_seldom(bench):
    bench.workflow.answers = [RunEnd(1, "octane stopped: no space is left in x")] * 10
    bench.write(1)
    watcher = bench.begin()
    times = []
    for _ in range(9000):
        before = len(bench.workflow.runs)
        watcher.poll()
        times += [bench.now] * (len(bench.workflow.runs) - before)
        bench.now += 1
        if not bench.workflow.answers:
            break
    waits = [b - a for a, b in pairwise(times)]
    assert waits == sorted(waits)
    assert waits[-1] <= LONGEST_WAIT + 1
    assert [own["fault"] for own in bench.told] == ["Run failed"]
    bench.now += LONGEST_WAIT
    bench.wait(watcher)
    assert taken(bench) == [1]


def test_a_folder_that_is_away_changes_nothing(bench):
    watcher = bench.begin()
    for number in (1, 2):
        bench.write(number)
        bench.wait(watcher)
    kept = shutil.move(bench.tiles, bench.root / "renamed")
    bench.wait(watcher, 3600)
    bench.tiles.mkdir()
    bench.wait(watcher, 3600)
    assert [own["fault"] for own in bench.told] == ["Folder"]
    bench.tiles.rmdir()
    shutil.move(kept, bench.tiles)
    bench.write(3)
    bench.wait(watcher)
    assert taken(bench) == [1, 2, 3]
    assert len(bench.told) == 1


def test_a_microscope_that_is_silent_for_long(bench):
    import os

    watcher = bench.begin()
    for number in range(1, 7):
        bench.write(number)
        for place, path in enumerate(sorted(bench.tiles.glob(f"section_{number:02d}_*"))):
            os.utime(path, (0, 1000 * number + 10 * place))
        bench.wait(watcher)
    assert not bench.told
    bench.wait(watcher, 2800)
    assert not bench.told
    bench.wait(watcher, 100)
    assert [own["fault"] for own in bench.told] == ["Silent microscope"]
    bench.write(7)
    bench.wait(watcher)
    bench.wait(watcher, 4000)
    assert [own["fault"] for own in bench.told] == ["Silent microscope"] * 2


def test_a_full_disk_stops_no_alert(bench, odd, monkeypatch):
    import octane.tools.watch.step as module

    bench.faults = {1: [odd]}
    watcher = bench.begin()
    bench.write(1)

    def full(*_):
        raise NoSpaceError("no space")

    with monkeypatch.context() as patch:
        patch.setattr(module, "append_events", full)
        bench.wait(watcher)
    assert len(bench.told) == 1
    bench.now += LONGEST_WAIT
    bench.wait(watcher)
    watcher.commit()
    assert len(bench.told) == 1
    assert taken(bench) == [1]


def test_the_whole_run_waits_for_a_section_that_cannot_be_read(bench):
    bench.options = replace(bench.options, last=2)
    bench.write(1)
    bench.write(2)
    bench.workflow.answers = [RunEnd(1, "octane stopped: MOSAIC (x:section_02): bad")]
    watcher = bench.begin()
    bench.wait(watcher)
    bench.wait(watcher)
    assert bench.told[-1]["fault"] == "Whole run waits"
    bench.options = replace(bench.options, excluded=frozenset({2}))
    again = bench.begin()
    bench.wait(again)
    bench.wait(again)
    assert bench.workflow.runs[-1] is None
    assert again.is_done


def test_a_second_watcher_is_refused(bench):
    watcher = bench.begin()
    with hold_lock(watcher.outdir), refused(watcher.outdir):
        watch(bench.begin())


def test_another_run_into_the_same_results_is_awaited(bench):
    watcher, bench.workflow.held = bench.begin(), True
    bench.write(1)
    bench.wait(watcher)
    assert bench.workflow.runs == []
    bench.workflow.held = False
    watcher.poll()
    assert bench.workflow.runs == [[1]]


def test_a_section_is_compared_with_what_most_have(bench):
    watcher = bench.begin()
    bench.write(1, ["y0_x0"])
    bench.wait(watcher)
    for number in (2, 3, 4):
        bench.write(number)
        bench.wait(watcher)
    bench.write(5, ["y0_x0", "y1_x0"])
    bench.wait(watcher)
    assert taken(bench) == [1, 2, 3, 4]
    bench.write(6)
    bench.wait(watcher)
    assert [(own["section"], own["fault"]) for own in bench.told] == [(5, "Missing tiles")]
    assert taken(bench) == [1, 2, 3, 4, 5, 6]


def test_a_name_that_says_nothing_is_an_alert_if_it_stays(bench):
    watcher = bench.begin()
    bench.write(1)
    bench.wait(watcher)
    (bench.tiles / "odd.tif").touch()
    bench.wait(watcher, 9)
    assert not bench.told
    bench.wait(watcher)
    (told,) = bench.told
    assert "odd.tif" in told["sentence"]
    (bench.tiles / "odd.tif").unlink()
    bench.write(2)
    bench.wait(watcher)
    assert taken(bench) == [1, 2]


def test_the_page_shows_the_state(bench, odd):
    page = bench.root / "out" / "live.html"
    bench.faults = {2: [odd]}
    watcher = bench.begin()
    assert 'class="state waiting"' in page.read_text(encoding="utf-8")
    for number, colour in ((1, "good"), (2, "look"), (3, "good")):
        bench.write(number)
        bench.wait(watcher)
        text = page.read_text(encoding="utf-8")
        assert f'class="state {colour}"' in text
    assert odd.sentence in text
    assert "<script" not in text


def test_sections_that_fail_alone_are_tried_together_again(bench):
    bench.write(1)
    bench.write(2)
    doubt = RunEnd(1, "octane stopped: it is not certain how tiles overlap")
    bench.workflow.answers = [doubt, doubt]
    watcher = bench.begin()
    for _ in range(4):
        bench.wait(watcher)
    assert bench.workflow.runs == [[1, 2], [1], [1, 2]]
