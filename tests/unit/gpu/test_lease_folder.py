"""Locked files that all users of a node share: what holds them, and what is refused."""

import errno
import fcntl
import os
import stat
import subprocess
import sys
import textwrap
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from octane.core.errors import OctaneError
from octane.gpu import lease_folder
from octane.gpu.lease_folder import (
    RECORD_SIZE,
    Identity,
    LeaseFolder,
    LeaseRecord,
    boot_id,
    identity,
    own_identity,
)

NOBODY = 65534
PROJECT = Path(__file__).resolve().parents[3]


def record(**other):
    return replace(LeaseRecord(10, 1, 1.0), **other)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "leases"


@pytest.fixture
def folder(path):
    with LeaseFolder(path) as opened:
        yield opened


def names(folder, kind="GPU-0"):
    with folder.mutex():
        return [name for name, _ in folder.held(kind)]


def test_the_folder_and_its_files_are_for_all_users_whatever_the_umask(path):
    before = os.umask(0o077)
    try:
        with LeaseFolder(path) as folder, folder.mutex():
            folder.take("GPU-0", record()).release()
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o1777
    assert sorted(p.name for p in path.iterdir()) == ["GPU-0.0", "mutex"]
    assert {stat.S_IMODE(p.stat().st_mode) for p in path.iterdir()} == {0o666}
    assert list(path.parent.iterdir()) == [path]


def test_a_slot_is_held_until_it_is_released(folder):
    with folder.mutex():
        one, two = folder.take("GPU-0", record()), folder.take("GPU-0", record())
    assert names(folder) == ["GPU-0.0", "GPU-0.1"]
    one.release()
    one.release()
    assert names(folder) == ["GPU-0.1"]
    with folder.mutex():
        assert folder.take("GPU-0", record()).name == "GPU-0.0"
    two.release()


def test_kinds_with_a_common_beginning_are_apart(folder):
    with folder.mutex():
        held = [folder.take(kind, record()) for kind in ("GPU-1", "GPU-11", "GPU-1.1")]
    assert names(folder, "GPU-1") == ["GPU-1.0"]
    for slot in held:
        slot.release()


def test_what_a_holder_says_is_read_and_counts_only_while_it_holds(folder):
    with folder.mutex():
        slot = folder.take("GPU-0", record(subject="sub-01"))
        assert folder.held("GPU-0")[0][1] == record(subject="sub-01")
    slot.release()
    with folder.mutex():
        assert folder.held("GPU-0") == []


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * RECORD_SIZE,
        b"[1]",
        b'"text"',
        b"[" * RECORD_SIZE,
        record(boot="another").packed(),
        record(required=-1).packed(),
        record(slots=0).packed(),
        record(since=float("nan")).packed(),
        record(uid=-1).packed(),
        record().packed().replace(b'"required": 10', b'"required": {}'),
        record().packed().replace(b'"required": 10', b'"required": 1e999'),
    ],
    ids=range(12),
)
def test_what_is_no_record_of_this_boot_is_not_believed(content):
    assert LeaseRecord.unpacked(content) is None


def test_a_record_that_is_sound_is_believed():
    assert LeaseRecord.unpacked(record().packed()) == record()
    assert record().boot == boot_id()
    assert len(record(uuids=("MIG-" + "0" * 36,) * 100).packed()) == RECORD_SIZE
    with pytest.raises(ValueError, match="a record of"):
        record(subject="x" * RECORD_SIZE).packed()


def test_a_subject_cannot_steer_a_terminal():
    found = LeaseRecord.unpacked(record(subject="a\x1b[2Jb\n").packed())
    assert found is not None
    assert found.subject == "a?[2Jb?"


def test_an_unknown_user_is_shown_as_a_number():
    assert record(uid=4_000_000_000).user == "4000000000"


@pytest.fixture
def run_python():
    """Start Python with some code; all that is left of it is killed in the end."""
    with ExitStack() as stack:

        def run(code, *arguments, **options):
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env={**os.environ, "PYTHONPATH": str(PROJECT / "bin")},
                    **options,
                )
            )
            stack.callback(process.kill)
            return process

        yield run


HOLD = """
import os, sys
from pathlib import Path
from octane.gpu.lease_folder import LeaseFolder, LeaseRecord
if len(sys.argv) > 2:
    os.setgroups([]); os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))
folder = LeaseFolder(Path(sys.argv[1]))
with folder.mutex():
    slot = folder.take("GPU-0", LeaseRecord(10, 1, 1.0))
print(slot.name, flush=True)
"""


def test_a_killed_holder_leaves_nothing(folder, run_python):
    holder = run_python(HOLD + "input()", folder.path)
    assert holder.stdout.readline() == "GPU-0.0\n"
    assert names(folder) == ["GPU-0.0"]
    holder.kill()
    holder.communicate()
    assert names(folder) == []


def test_a_forked_child_that_outlives_a_killed_parent_keeps_the_slot(folder, run_python):
    code = """
    child = os.fork()
    if child:
        print(child, flush=True)
        os.kill(os.getpid(), 9)
    sys.stdin.readline()
    """
    holder = run_python(HOLD + textwrap.dedent(code), folder.path)
    assert holder.stdout.readline() == "GPU-0.0\n"
    assert int(holder.stdout.readline()) > 0
    assert holder.wait() == -9
    assert names(folder) == ["GPU-0.0"]
    holder.stdin.write("\n")
    holder.stdin.close()
    assert holder.stdout.read() == ""  # the child has ended, and with it its descriptors
    assert names(folder) == []


def test_a_parent_that_releases_does_so_for_its_forked_children(folder, run_python):
    code = """
    if os.fork() == 0:
        sys.stdin.readline()
        os._exit(0)
    slot.release()
    print("released", flush=True)
    os._exit(0)
    """
    holder = run_python(HOLD + textwrap.dedent(code), folder.path)
    assert holder.stdout.readline() == "GPU-0.0\n"
    assert holder.stdout.readline() == "released\n"
    assert names(folder) == []
    holder.communicate("\n")


def test_a_forked_child_does_not_release_its_parents_slot(folder):
    with folder.mutex():
        slot = folder.take("GPU-0", record())
    # A child that runs into the end of its parent's block.
    child = lease_folder.Locked(slot.name, os.dup(slot.fd), owner=slot.owner + 1)
    child.release()
    assert names(folder) == ["GPU-0.0"]
    slot.release()


def test_a_program_that_is_started_does_not_inherit_the_slot(folder, run_python):
    with folder.mutex():
        slot = folder.take("GPU-0", record())
    assert not os.get_inheritable(slot.fd)
    other = run_python("input()", close_fds=False)
    slot.release()
    assert names(folder) == []
    other.communicate("\n")


def test_a_mutex_that_is_never_given_back_is_one_clear_sentence(folder, monkeypatch):
    monkeypatch.setattr(lease_folder, "MUTEX_PATIENCE", 0.05)
    with (
        folder.mutex(),
        LeaseFolder(folder.path) as other,
        pytest.raises(OctaneError, match=r"stopped or hangs.*fuser"),
        other.mutex(),
    ):
        pass


def test_a_slot_that_is_locked_without_the_mutex_is_passed_over(folder):
    with folder.mutex():
        folder.take("GPU-0", record()).release()
        with (folder.path / "GPU-0.0").open() as stranger:
            fcntl.flock(stranger, fcntl.LOCK_EX)
            slot = folder.take("GPU-0", record())
            assert slot.name == "GPU-0.1"
            slot.release()


def test_a_slot_that_was_removed_is_made_anew(folder):
    with folder.mutex():
        folder.take("GPU-0", record()).release()
        slot = folder.take("GPU-0", record())
        (folder.path / "GPU-0.0").unlink()
        assert folder.held("GPU-0") == []
        slot.release()
        folder.take("GPU-0", record()).release()


def test_a_file_whose_maker_was_killed_before_it_gave_rights_to_all_serves(folder):
    (folder.path / "GPU-0.0").touch(0o600)
    with folder.mutex():
        slot = folder.take("GPU-0", record())
        assert slot.name == "GPU-0.0"
        slot.release()
    assert stat.S_IMODE((folder.path / "GPU-0.0").stat().st_mode) == 0o666


def test_a_file_that_another_makes_between_the_two_calls_is_opened(folder, monkeypatch):
    made = folder._made

    def late(name):
        (folder.path / name).touch(0o666)
        return made(name)

    monkeypatch.setattr(folder, "_made", late)
    with folder.mutex():
        assert folder.take("GPU-0", record()).name == "GPU-0.0"


@pytest.mark.parametrize("kind", ["link", "dangling link", "second name", "fifo", "folder"])
def test_a_trick_in_place_of_a_file_is_refused_and_what_it_aims_at_stays(folder, tmp_path, kind):
    victim, bait = tmp_path / "victim", folder.path / "GPU-0.0"
    victim.write_text("precious")
    match kind:
        case "link":
            bait.symlink_to(victim)
        case "dangling link":
            bait.symlink_to(tmp_path / "made")
        case "second name":
            bait.hardlink_to(victim)
        case "fifo":
            os.mkfifo(bait)
        case "folder":
            bait.mkdir()
    with folder.mutex(), pytest.raises(OctaneError, match=r"GPU-0\.0 is not a plain file"):
        folder.take("GPU-0", record())
    assert victim.read_text() == "precious"
    assert not (tmp_path / "made").exists()


def test_a_link_in_place_of_the_mutex_is_refused(path, tmp_path):
    LeaseFolder(path).close()
    (path / "mutex").unlink()
    (path / "mutex").symlink_to(tmp_path / "made")
    with (
        LeaseFolder(path) as folder,
        pytest.raises(OctaneError, match="mutex is not a plain"),
        folder.mutex(),
    ):
        pass


def test_a_link_in_place_of_the_folder_is_refused(path, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OctaneError, match="must be a folder"):
        LeaseFolder(path)


def test_a_file_in_place_of_the_folder_is_refused(path):
    path.write_text("")
    with pytest.raises(OctaneError, match="must be a folder"):
        LeaseFolder(path)


def test_a_folder_where_others_could_remove_locks_is_refused(path):
    path.mkdir()
    path.chmod(0o777)
    with pytest.raises(OctaneError, match=r"no sticky bit.*chmod 1777"):
        LeaseFolder(path)


def test_a_folder_of_ones_own_is_taken_as_it_is(path):
    path.mkdir(mode=0o700)
    with LeaseFolder(path) as folder:
        assert names(folder) == []
    assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_two_that_make_the_folder_at_once_use_the_same(path, monkeypatch):
    first = LeaseFolder(path)
    try:
        with first.mutex():
            slot = first.take("GPU-0", record())
        second = LeaseFolder.__new__(LeaseFolder)
        second.path = path
        second._make()  # comes too late: the name is taken
        assert list(path.parent.iterdir()) == [path]
        assert names(first) == ["GPU-0.0"]
        slot.release()
    finally:
        first.close()


@pytest.mark.parametrize(
    ("code", "words"),
    [(errno.ENOSPC, "No space left.*free some"), (errno.EROFS, "it is read-only")],
)
def test_a_full_or_read_only_folder_is_one_clear_sentence(folder, monkeypatch, code, words):
    def refuse(*_, **__):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(lease_folder.os, "pwrite", refuse)
    with folder.mutex(), pytest.raises(OctaneError, match=words) as caught:
        folder.take("GPU-0", record())
    assert str(folder.path) in str(caught.value)
    assert "--gpu-lock-dir" in str(caught.value)
    assert names(folder) == []


def test_a_disk_that_fills_up_later_does_not_matter(folder):
    with folder.mutex():
        folder.take("GPU-0", record()).release()
    # Written whole when it was made, and over itself ever since.
    assert (folder.path / "GPU-0.0").stat().st_size == RECORD_SIZE


@pytest.mark.skipif(os.getuid() != 0, reason="becoming another user needs root")
@pytest.mark.parametrize("first", [0, NOBODY])
def test_two_users_share_a_folder_and_cannot_remove_each_others_files(tmp_path, first, run_python):
    second = NOBODY if first == 0 else 1
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    for parent in [tmp_path, *tmp_path.parents]:
        if not parent.stat().st_mode & stat.S_IXOTH:
            parent.chmod(0o711)
    path = shared / "leases"
    one = run_python(HOLD + "input()", path, first)
    assert one.stdout.readline() == "GPU-0.0\n"
    rest = """
    try:
        os.unlink(Path(sys.argv[1]) / "GPU-0.0")
    except PermissionError:
        print("kept", flush=True)
    input()
    """
    two = run_python(HOLD + textwrap.dedent(rest), path, second)
    assert two.stdout.readline() == "GPU-0.1\n"
    assert two.stdout.readline() == "kept\n"
    with LeaseFolder(path) as folder:
        with folder.mutex():
            held = folder.held("GPU-0")
        assert [found and found.uid for _, found in held] == [first, second]
        one.communicate("\n")
        assert names(folder) == ["GPU-0.1"]
        two.communicate("\n")
    three = run_python(HOLD, path, second)
    assert three.communicate()[0] == "GPU-0.0\n"


@pytest.mark.skipif(os.getuid() != 0, reason="becoming another user needs root")
def test_a_file_with_rights_for_its_owner_alone_is_one_clear_sentence(tmp_path, run_python):
    code = """
    import os, sys
    from pathlib import Path
    from octane.core.errors import OctaneError
    from octane.gpu.lease_folder import LeaseFolder
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
    try:
        with LeaseFolder(Path(sys.argv[1])) as folder, folder.mutex():
            pass
    except OctaneError as error:
        print(error)
    """
    for parent in [tmp_path, *tmp_path.parents]:
        if not parent.stat().st_mode & stat.S_IXOTH:
            parent.chmod(0o711)
    path = tmp_path / "leases"
    LeaseFolder(path).close()
    (path / "mutex").chmod(0o600)
    said = run_python(code, path).communicate()[0]
    assert f"chmod 666 {path}/mutex" in said
    path.chmod(0o755)
    (path / "mutex").unlink()
    said = run_python(code, path).communicate()[0]
    assert f"chmod 1777 {path}" in said


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

    monkeypatch.setattr(lease_folder, "PROC", tmp_path)
    return add


def test_a_process_knows_itself():
    assert identity(os.getpid()) == own_identity()
    assert own_identity().pid == os.getpid()
    assert own_identity().start > 0


def test_a_process_that_is_gone_has_no_identity():
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert identity(child.pid) is None


@pytest.mark.parametrize(("namespaces", "pid"), [("4000\t12\t5", 5), ("4000", 4000), (None, 4000)])
def test_a_process_in_a_container_is_known_by_its_number_there(proc, namespaces, pid):
    proc(4000, 1, 77, namespaces)
    assert identity(4000) == Identity(pid, 77)


def test_without_proc_the_answers_are_empty(tmp_path, monkeypatch):
    monkeypatch.setattr(lease_folder, "PROC", tmp_path / "none")
    assert own_identity() == Identity(os.getpid(), 0)
    boot_id.cache_clear()
    assert boot_id() == ""
    boot_id.cache_clear()
