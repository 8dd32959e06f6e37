"""Who a process is: number and start, its parents, and what /proc does not tell."""

import os
import subprocess
import sys

import pytest

from octane.gpu import processes
from octane.gpu.processes import Identity, boot_id, identity, lineage

# A name that no parser by blanks survives.
STAT = "{pid} (a) b (c) S {parent} 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 {start} 1 1 1\n"


@pytest.fixture
def proc(tmp_path, monkeypatch):
    def add(pid, parent, start, namespaces=None):
        folder = tmp_path / str(pid)
        folder.mkdir()
        (folder / "stat").write_text(STAT.format(pid=pid, parent=parent, start=start))
        inner = "" if namespaces is None else f"NSpid:\t{namespaces}\n"
        (folder / "status").write_text(f"Name:\ta\n{inner}Threads:\t1\n")

    monkeypatch.setattr(processes, "PROC", tmp_path)
    return add


def test_a_process_knows_itself_and_its_parent():
    own = lineage(os.getpid())
    assert own[0] == identity()
    assert own[0].pid == os.getpid()
    assert own[0].start > 0
    assert own[1].start <= own[0].start


def test_a_child_is_found_below_its_parent():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert lineage(child.pid)[1] == identity()
    finally:
        child.communicate(b"\n")


def test_a_process_that_is_gone_has_no_lineage():
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert lineage(child.pid) == ()


def test_a_process_in_a_container_is_known_by_its_number_there(proc):
    proc(4000, 1, 77, "4000\t12\t5")
    proc(1, 0, 1, "1")
    assert lineage(4000) == (Identity(5, 77), Identity(1, 1))


def test_a_kernel_without_namespaces_gives_the_plain_number(proc):
    proc(50, 0, 9)
    assert lineage(50) == (Identity(50, 9),)


def test_a_chain_that_goes_in_a_circle_ends(proc):
    proc(2, 3, 5)
    proc(3, 2, 5)
    assert len(lineage(2)) == processes.DEEPEST


def test_without_proc_the_answers_are_empty(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "PROC", tmp_path / "none")
    assert identity() == Identity(os.getpid(), 0)
    boot_id.cache_clear()
    assert boot_id() == ""
    boot_id.cache_clear()
