"""bin/gpu_slot.py as users run it, on simulated GPUs with real locks and processes."""

import getpass
import os
import resource
import signal
import subprocess
import sys
from contextlib import ExitStack

import pytest

from octane.gpu import status
from octane.gpu.inventory import VARIABLE, Gpu, simulated_uuid
from octane.gpu.lease_folder import LeaseFolder

FIRST, SECOND = simulated_uuid(0), simulated_uuid(1)
WAIT = ("sh", "-c", "echo there; read x")


@pytest.fixture
def slot(project, tmp_path, monkeypatch):
    """Start gpu_slot.py; remaining processes are killed at the end."""
    monkeypatch.setenv(VARIABLE, "2x40GB")
    monkeypatch.setenv("OCTANE_GPU_LOCK_DIR", str(tmp_path / "leases"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with ExitStack() as stack:

        def start(*arguments, command=(), most=None, **changed):
            command = ("--", *command) if command else ()

            def prepare():
                # A shell's background job ignores it, and so do the processes that it starts.
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                if most is not None:
                    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

            process = subprocess.Popen(
                [sys.executable, project / "bin" / "gpu_slot.py", *arguments, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, **changed},
                preexec_fn=prepare,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield start


@pytest.fixture
def there(slot):
    """Start gpu_slot.py with a command that reports when it runs."""

    def start(*arguments, command=WAIT, **changed):
        process = slot(*arguments, command=command, **changed)
        assert process.stdout.readline() == "there\n"
        return process

    return start


@pytest.fixture
def ended(slot):
    """Exit code, standard output and standard error of a call."""

    def run(*arguments, **more):
        process = slot(*arguments, **more)
        out, err = process.communicate(timeout=120)
        return process.returncode, out, err

    return run


def held(tmp_path):
    with LeaseFolder(tmp_path / "leases") as folder:
        return [held.name for kind in (FIRST, SECOND) for held in folder.held(kind)]


def test_a_command_runs_with_the_gpu_and_its_exit_code_is_passed_on(ended, tmp_path):
    code, out, _ = ended(
        *("--memory", "4GB", "--backend", "auto", "--gpu_timeout", "60"),
        command=("sh", "-c", "echo $CUDA_VISIBLE_DEVICES $0 $1; exit 7", "--memory", "x"),
    )
    assert (code, out) == (7, f"{FIRST} --memory x\n")
    assert held(tmp_path) == []


def test_a_command_has_the_environment_of_its_caller_and_the_lease(ended, monkeypatch):
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    words = ended("--memory", "4GB", command=("env", "-0"))[1].rstrip("\0").split("\0")
    found = dict(word.split("=", 1) for word in words)
    assert found == {**os.environ, "CUDA_VISIBLE_DEVICES": FIRST}


def test_a_script_that_numbers_its_own_files_keeps_the_lease(there, tmp_path):
    numbered = " ".join(f"{number}>&1" for number in range(3, 10))
    there("--memory", "4GB", command=("sh", "-c", f"exec {numbered}; echo there; read x"))
    assert held(tmp_path) == [f"{FIRST}.0"]


def test_few_open_files_are_enough(ended):
    # macOS allows 256.
    for most in (256, 64):
        inner = ("sh", "-c", "echo $CUDA_VISIBLE_DEVICES; ulimit -n")
        code, out, err = ended("--memory", "4GB", command=inner, most=most)
        assert (code, out) == (0, f"{FIRST}\n{most}\n"), err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_the_commands_own(there, tmp_path, number):
    process = there("--memory", "4GB")
    assert held(tmp_path) == [f"{FIRST}.0"]
    process.send_signal(number)
    assert process.wait(60) == -number
    assert held(tmp_path) == []


def test_a_command_that_a_signal_ends_ends_as_it_would_without(ended):
    number = signal.SIGPIPE
    command = ("sh", "-c", f"kill -{number.value} $$; echo survived")
    assert ended("--memory", "4GB", command=command)[:2] == (-number, "")


def test_a_waiting_user_sees_why_and_others_see_who_waits(slot, there, ended):
    one = there("--memory", "30GB", "--subject", "sub-01")
    there("--memory", "20GB")
    large = slot("--memory", "35GB", "--backend", "gpu", command=WAIT)
    for line in large.stderr:
        if "waiting for 35.0 GB of a GPU" in line:
            assert "GPU 0: 1 of 1 slots taken; GPU 1: 1 of 1 slots taken" in line
            break
    shown = ended("--status")[1]
    assert "sub-01  30.0 GB" in shown
    assert f"waiting 1  {getpass.getuser()}  pid {large.pid}  sh  35.0 GB" in shown
    assert shown.count("  slot 0  ") == 2
    assert "waiting 2" not in shown
    one.communicate("\n")
    assert large.stdout.readline() == "there\n"


def test_without_a_gpu_in_time_the_command_runs_with_none(there, ended):
    for _ in range(2):
        there("--memory", "4GB")
    shown = {"command": ("sh", "-c", "echo [$CUDA_VISIBLE_DEVICES]")}
    code, out, err = ended("--memory", "4GB", "--gpu_timeout", "0.1", **shown)
    assert (code, out) == (0, "[]\n")
    assert "no GPU came free within 0.1 s" in err
    code, out, err = ended("--memory", "4GB", "--backend", "gpu", "--gpu_timeout", "0", **shown)
    assert (code, out) == (1, "")
    assert "error: backend is gpu, but no GPU came free" in err
    assert ended("--memory", "4GB", "--backend", "cpu", **shown)[1] == "[]\n"


@pytest.mark.parametrize(
    ("arguments", "command", "code", "words"),
    [
        ([], ["true"], 1, "--memory is missing"),
        (["--memory", "much"], ["true"], 1, "'much' is not a size"),
        (["--memory", "4GB"], [], 1, "The command is missing"),
        (["--memory", "4GB"], ["no-such"], 127, "no-such cannot be run (No such file"),
        (["--memory", "4GB"], ["/"], 126, "/ cannot be run (Permission denied)"),
        (["--memory", "4GB", "--gpu_slots", "0"], ["true"], 1, "--gpu_slots is '0'"),
    ],
)
def test_a_mistake_is_one_sentence(ended, tmp_path, arguments, command, code, words):
    found, out, err = ended(*arguments, command=command)
    assert (found, out) == (code, "")
    (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert words in line
    assert "Traceback" not in err
    if (tmp_path / "leases").exists():
        assert held(tmp_path) == []


def test_a_machine_without_gpus_says_so(ended):
    none = {VARIABLE: "0x1GB"}
    assert ended("--status", **none)[1] == "No GPU can be leased, because no GPU was found.\n"


def test_the_state_of_gpus_is_shown(tmp_path, monkeypatch):
    gpus = (
        Gpu(0, FIRST, "A40", 40 * 10**9, 10**10, utilisation=97),
        Gpu(1, SECOND, "A40", 0, 0, fault="GPU is lost"),
    )
    monkeypatch.setattr(status, "read_gpus", lambda: gpus)
    shown = status.status()
    assert "10.0 GB of 40.0 GB free, 10.0 GB available, 97 % busy" in shown
    assert "NVML reports: GPU is lost" in shown
