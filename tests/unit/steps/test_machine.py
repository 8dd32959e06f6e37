"""What a machine offers: the allocation's own, and a reason where there is no GPU."""

import os
from pathlib import Path

import pytest

from octane.gpu.inventory import Gpu, GpusUnavailableError
from octane.steps.machine import Place, look_at_machine


class Source:
    """GPUs as a test wants them."""

    simulated = True

    def __init__(self, found):
        self.found = found

    def read(self):
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


def gpu(index, fault=None):
    return Gpu(index, f"GPU-{index}", "card", 8, 8, fault=fault)


def test_only_gpus_that_work_and_that_an_allocation_lets_us_use(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,2")
    machine = look_at_machine(Source((gpu(0), gpu(1), gpu(2, "lost"))))
    assert [g.index for g in machine.gpus] == [1]
    assert machine.no_gpu == ""


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ((), "there is no GPU"),
        ((gpu(0, "fallen off the bus"),), "none of them works (fallen off the bus)"),
        (GpusUnavailableError("the driver is too old"), "the driver is too old"),
    ],
)
def test_where_there_is_no_gpu_the_reason_is_told(monkeypatch, found, reason):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    machine = look_at_machine(Source(found))
    assert (machine.gpus, machine.no_gpu) == ((), reason)
    assert machine.cores >= 1
    assert machine.memory > 1e8


def test_a_place_that_is_not_there_yet_is_on_the_file_system_above_it(tmp_path):
    place = Place.of(tmp_path / "a" / "b")
    assert place.folder == tmp_path
    assert place.device == tmp_path.stat().st_dev
    assert place.free <= os.statvfs(tmp_path).f_blocks * os.statvfs(tmp_path).f_frsize


def test_the_longest_mount_point_above_a_folder_is_its_own(monkeypatch, tmp_path):
    mounts = tmp_path / "mounts"
    mounts.write_text(
        f"/dev/a / ext4 rw 0 0\nserver:/x {tmp_path} nfs4 rw 0 0\n"
        f"/dev/b {tmp_path}/the\\040scratch xfs rw 0 0\n",
        encoding="utf-8",
    )
    (tmp_path / "the scratch").mkdir()
    monkeypatch.setattr("octane.steps.machine.MOUNTS", mounts)
    shared, local = Place.of(tmp_path / "data"), Place.of(tmp_path / "the scratch")
    assert (shared.kind, shared.shared) == ("nfs4", True)
    assert (local.kind, local.shared) == ("xfs", False)
    monkeypatch.setattr("octane.steps.machine.MOUNTS", Path("/nowhere"))
    assert Place.of(tmp_path).kind == ""


@pytest.mark.parametrize(("text", "limited"), [("123456789\n", True), ("max\n", False)])
def test_a_containers_limit_counts_where_there_is_one(monkeypatch, tmp_path, text, limited):
    (tmp_path / "memory.max").write_text(text, encoding="ascii")
    monkeypatch.setattr("octane.steps.machine.LIMITS", (tmp_path / "memory.max", tmp_path / "none"))
    assert (look_at_machine(Source(())).memory == 123456789) is limited
