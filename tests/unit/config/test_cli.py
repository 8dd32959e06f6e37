"""Commands as a user calls them: flags, and errors of one sentence."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from python_path import python_path

from octane.config import cli
from octane.core.errors import NoSpaceError, OctaneError
from octane.pipeline.workers import cores

WRAPPED = RuntimeError("compilation failed")
WRAPPED.__cause__ = MemoryError()  # of a library


@pytest.fixture
def launched(own_signals, monkeypatch, capsys):
    """Launch a command that raises; returns the exit code and standard error."""
    monkeypatch.setattr(sys, "argv", ["n4.py"])
    monkeypatch.delenv("OCTANE_DEBUG", raising=False)

    def launch(error):
        def main():
            raise error

        with pytest.raises(SystemExit) as caught:
            cli.run(main)
        return caught.value.code, capsys.readouterr().err

    return launch


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (OctaneError("a.zarr is torn; mend it."), 1, "a.zarr is torn; mend it."),
        (
            OSError(28, "No space left on device", "/scratch/a"),
            28,
            "/scratch/a: No space left on device; check the disk, its free space and your "
            "permissions.",
        ),
        (NoSpaceError("a: there is no space."), 28, "a: there is no space."),
        (PermissionError(13, "Permission denied", "/b"), 1, "/b: Permission denied; check the"),
        (KeyboardInterrupt(), 130, "Interrupted"),
        # The exit code of a process killed for its memory, which the workflow retries.
        (MemoryError(), 137, "Not enough memory"),
        (OSError(12, "Cannot allocate memory"), 137, "Not enough memory"),
        (RuntimeError("can't start new thread"), 137, "Not enough memory or threads"),
        (ImportError("a.so: failed to map segment from shared object"), 137, "Not enough memory"),
        (WRAPPED, 137, "Not enough memory"),
    ],
)
def test_an_error_is_one_sentence(launched, error, code, words):
    exit_code, written = launched(error)
    assert exit_code == code
    assert written.startswith(f"error: {words}")
    assert written.count("\n") == 1


LOST = """
import sys
from octane.config import cli
from octane.core.errors import GpuLostError

class Held:
    def __del__(self):
        print("freed", flush=True)

def main():
    held = Held()
    print("done so far")
    raise GpuLostError("The GPU failed; run again.")

cli.run(main)
"""


def test_a_process_whose_gpu_is_lost_ends_without_freeing_anything():
    path = Path(cli.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", LOST],
        env={**os.environ, **python_path(path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 104
    assert (done.stdout, done.stderr) == ("done so far\n", "error: The GPU failed; run again.\n")


@pytest.mark.parametrize("is_task", [True, False])
def test_an_input_of_a_task_is_named_by_its_own_place(monkeypatch, tmp_path, capsys, is_task):
    monkeypatch.chdir(tmp_path)
    if is_task:
        monkeypatch.setenv("OCTANE_ATTEMPT", "1")
    else:
        monkeypatch.delenv("OCTANE_ATTEMPT", raising=False)
    Path("input").mkdir()
    for name, target in (("a.zarr", "/data/a.zarr"), ("own.zarr", "/data/other.zarr")):
        Path("input", name).symlink_to(target)
    monkeypatch.setattr(sys, "argv", ["n4.py", "input/a.zarr", "input/own.zarr", "a.zarr"])
    for said, expected in (
        ("input/a.zarr: chunk of input/a.zarr/0 and a.zarr", "/data/a.zarr: chunk of {}/0 and {}"),
        ("input/a.zarr-old is torn.", "input/a.zarr-old is torn."),
        # The user's own link.
        ("input/own.zarr is torn.", "input/own.zarr is torn."),
    ):
        with pytest.raises(SystemExit):
            cli._fail(said, OctaneError(said))
        # A published result, too, is a link to one of its name.
        words = expected.format("/data/a.zarr", "a.zarr") if is_task else said
        assert capsys.readouterr().err == f"error: {words}\n"


def test_a_traceback_is_shown_of_a_fault_of_the_code_and_on_demand(launched, monkeypatch):
    for fault in (ZeroDivisionError, RuntimeError):
        with pytest.raises(fault):
            launched(fault())
    monkeypatch.setenv("OCTANE_DEBUG", "1")
    with pytest.raises(OctaneError):
        launched(OctaneError("torn"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_removes_what_was_half_written(project, tmp_path, number):
    # Far more than can be written before the signal, which often arrives as an array is created.
    arguments = ["p", "--sections", "500", "--tile_shape", "32", "256", "256", "--backend", "cpu"]
    process = subprocess.Popen(
        [sys.executable, project / "bin" / "phantom.py", *arguments],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OCTANE_DEBUG": ""},
        # Tests run in the background, and their children, ignore SIGINT.
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    )
    try:
        waiting = threading.Event()
        while not list(tmp_path.glob(".partial-*/mosaics/*")):
            assert process.poll() is None, process.communicate()[1]
            waiting.wait(0.02)
        process.send_signal(number)
        _, written = process.communicate(timeout=120)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == (143 if number == signal.SIGTERM else 130)
    assert list(tmp_path.iterdir()) == []
    assert "Traceback" not in written


@pytest.mark.parametrize(("given", "code"), [((), 0), (("--tiles", "0", "0"), 1)])
def test_a_closed_standard_error_does_not_stop_a_command(project, tmp_path, given, code):
    words = [sys.executable, str(project / "bin" / "phantom.py"), "p", *given]
    small = ["--sections", "1", "--tile_shape", "8", "16", "16"]
    closed = ["sh", "-c", 'exec "$@" 2>&-', "sh", *words, *small]
    done = subprocess.run(closed, cwd=tmp_path, check=False, env={**os.environ, "OCTANE_DEBUG": ""})
    assert done.returncode == code
    assert (tmp_path / "p" / "mosaics" / "section_01.ome.zarr" / "zarr.json").exists() == (not code)


def test_a_python_without_the_packages_is_named_with_the_remedy(project):
    command = [sys.executable, "-S", project / "bin" / "preflight.py", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    remedy = "source tools/env.sh first."
    assert done.stderr == f"error: pydantic is missing in {sys.executable}; {remedy}\n"


@pytest.mark.skipif(
    not sys.platform.startswith("linux") or cores() < 2, reason="needs /proc and two cores"
)
@pytest.mark.parametrize(("given", "threads"), [(None, 1), ("2", 2)])
def test_openblas_starts_threads_only_on_demand(run_python, monkeypatch, given, threads):
    code = """
import os
from octane.config.cli import run
def main():
    import numpy
    print(len(os.listdir("/proc/self/task")))
run(main)
"""
    for name in [name for name in os.environ if "_NUM_THREADS" in name]:
        monkeypatch.delenv(name)
    own = {} if given is None else {"OPENBLAS_NUM_THREADS": given}
    assert int(run_python(code, **own)) == threads
