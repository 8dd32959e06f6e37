"""What is on each GPU: who holds, what of it is allocated, and who has no lease."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from octane.gpu.account import HELD, QUEUE, slot_kind, survey
from octane.gpu.inventory import Gpu, GpuProcess
from octane.gpu.lease_folder import LeaseFolder
from octane.gpu.lease_records import Record
from octane.gpu.processes import Identity, lineage

PROJECT = Path(__file__).resolve().parents[3]
ME = Identity(os.getpid(), 1)
PARENT = Identity(2, 1)


def gpu(*processes):
    return Gpu(0, "GPU-0", "A40", 100, 50, processes=tuple(GpuProcess(*p) for p in processes))


def held_by(pid, start=1, required=30, since=1.0, slots=3):
    return Record(required, slots, since, pid=pid, start=start)


@pytest.fixture
def account(tmp_path):
    """Survey with slots and waiters; parents are looked up in a table."""
    taken = []

    def look(gpu, *records, waiters=(), parents=None):
        families = {os.getpid(): (ME, PARENT), **(parents or {})}
        with LeaseFolder(tmp_path / "leases") as folder, folder.mutex():
            taken.extend(folder.take("GPU-0", record) for record in records)
            taken.extend(folder.take(QUEUE, record) for record in waiters)
            return survey(folder, [gpu], lambda pid: families.get(pid, (Identity(pid, 1),)))

    yield look
    for slot in taken:
        slot.release()


def test_a_holders_memory_is_found_by_its_process(account):
    (load,) = account(gpu((50, 10)), held_by(50)).loads
    assert [holder.allocated for holder in load.holders] == [10]
    assert (load.others, load.available) == (0, 30)


def test_memory_of_a_holders_children_is_the_holders(account):
    seen = account(
        gpu((60, 10), (61, 5)),
        held_by(50),
        parents={n: (Identity(n, 7), Identity(50, 1), Identity(1, 0)) for n in (60, 61)},
    )
    assert seen.loads[0].holders[0].allocated == 15


def test_a_number_that_is_used_again_is_not_the_holder(account):
    seen = account(gpu((50, 10)), held_by(50, start=0))
    assert seen.loads[0].holders[0].allocated is None
    assert seen.others["GPU-0"] == (50,)
    assert seen.loads[0].available == 20


def test_memory_beyond_the_reservation_is_no_credit_to_another(account):
    (load,) = account(gpu((50, 45)), held_by(50), held_by(51)).loads
    assert [holder.allocated for holder in load.holders] == [30, None]
    assert load.available == 20


def test_one_process_with_two_leases_fills_them_one_after_another(account):
    (load,) = account(gpu((50, 40)), held_by(50), held_by(50)).loads
    assert [holder.allocated for holder in load.holders] == [30, 10]


def test_memory_that_nvml_does_not_tell_counts_as_not_allocated(account):
    (load,) = account(gpu((50, None)), held_by(50)).loads
    assert load.holders[0].allocated is None
    assert (load.available, load.others) == (20, 0)


def test_processes_without_a_lease_are_counted_but_not_oneself(account):
    seen = account(gpu((70, 1), (71, 1), (os.getpid(), 1)))
    assert seen.loads[0].others == 2
    assert seen.others["GPU-0"] == (70, 71)


def test_where_nvml_lists_no_processes_there_are_none(account):
    (load,) = account(Gpu(0, "GPU-0", "A40", 100, 50, processes=None)).loads
    assert load.others == 0


def test_a_slot_without_a_readable_record_is_closed_to_others(account):
    (load,) = account(gpu(), Record(30, 3, 1.0, boot="another")).loads
    assert [holder.slots for holder in load.holders] == [1]


@pytest.mark.parametrize("holder", [ME, PARENT])
def test_the_lease_that_a_command_runs_under_does_not_stand_in_its_way(
    account, monkeypatch, holder
):
    # gpu_slot.py becomes its command: the same process. What that starts is below it.
    assert len(account(gpu(), held_by(holder.pid), held_by(50)).loads[0].holders) == 2
    monkeypatch.setenv(HELD, "GPU-0.0")
    seen = account(gpu())
    assert len(seen.loads[0].holders) == 1
    assert len(seen.held["GPU-0"]) == 2


def test_a_variable_that_names_anothers_lease_gives_nothing(account, monkeypatch):
    monkeypatch.setenv(HELD, "GPU-0.0")
    assert len(account(gpu(), held_by(50)).loads[0].holders) == 1


def test_waiters_come_in_the_order_of_their_arrival(account):
    seen = account(gpu(), waiters=[held_by(5, since=3.0), held_by(6, since=1.0)])
    assert [record.pid for _, record in seen.waiters] == [6, 5]


def test_a_uuid_with_slashes_makes_no_folders():
    assert "/" not in slot_kind("MIG-GPU-1/2/0")


LAST = Path("/proc/sys/kernel/ns_last_pid")


def started_as(pid):
    """A process with a number of our choice, or None: others start processes as well."""
    for _ in range(50):
        try:
            LAST.write_text(str(pid - 1))
        except OSError as error:
            pytest.skip(f"the next process's number cannot be chosen ({error.strerror})")
        process = subprocess.Popen(["sleep", "60"])
        if process.pid == pid:
            return process
        process.kill()
        process.wait()
    return None


def test_a_process_that_gets_a_dead_holders_number_is_a_stranger(tmp_path):
    # The parent is killed, its forked child keeps the slot, and the number is used again.
    code = """
    import os, sys
    from pathlib import Path
    from octane.gpu.lease_folder import LeaseFolder
    from octane.gpu.lease_records import Record
    folder = LeaseFolder(Path(sys.argv[1]))
    with folder.mutex():
        slot = folder.take("GPU-0", Record(30, 3, 1.0))
    if os.fork() == 0:
        sys.stdin.read()
        os._exit(0)
    print("held", flush=True)
    input()
    """
    holder = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), tmp_path / "leases"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(PROJECT / "bin")},
    )
    with holder, LeaseFolder(tmp_path / "leases") as folder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        shown = gpu((holder.pid, 10))
        with folder.mutex():
            assert survey(folder, [shown]).loads[0].holders[0].allocated == 10
        holder.kill()
        holder.wait()
        again = started_as(holder.pid)
        if again is None:
            pytest.skip("another process was quicker to take the number")
        with again, folder.mutex():
            # It is a child of this test, whose own processes would not count as others.
            seen = survey(folder, [shown], lambda pid: lineage(pid)[:1])
            again.kill()
        assert seen.loads[0].holders[0].allocated is None
        assert seen.others["GPU-0"] == (holder.pid,)
    with LeaseFolder(tmp_path / "leases") as folder:
        assert holder.stdin is not None
        # Its end of the pipe is closed by now, so that the child has come to its end.
        while True:
            with folder.mutex():
                if not folder.held("GPU-0"):
                    break
