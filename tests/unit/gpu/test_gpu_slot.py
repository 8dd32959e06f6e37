"""bin/gpu_slot.py as a person meets it, on made-up GPUs with real locks and processes."""

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import ExitStack

import pytest

from octane.gpu.lease_folder import LeaseFolder
from octane.gpu.simulated import VARIABLE, simulated_uuid

FIRST, SECOND = simulated_uuid(0), simulated_uuid(1)


@pytest.fixture
def slot(project, tmp_path):
    """Start gpu_slot.py; all that is left of it is killed in the end."""
    environment = {
        **os.environ,
        VARIABLE: "2x40GB",
        "OCTANE_GPU_LOCK_DIR": str(tmp_path / "leases"),
        "PYTHONUNBUFFERED": "1",
    }
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    with ExitStack() as stack:

        def start(*arguments, **changed):
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, project / "bin" / "gpu_slot.py", *map(str, arguments)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    env={**environment, **changed},
                    # Whoever runs the tests in the background has them ignore it.
                    preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
                )
            )
            stack.callback(process.kill)
            return process

        yield start


@pytest.fixture
def ended(slot):
    """Exit code, standard output and standard error of a call."""

    def run(*arguments, **changed):
        process = slot(*arguments, **changed)
        out, err = process.communicate(timeout=120)
        return process.returncode, out, err

    return run


def held(tmp_path):
    with LeaseFolder(tmp_path / "leases") as folder, folder.mutex():
        return [name for kind in (FIRST, SECOND) for name, _ in folder.held(kind)]


def test_a_command_runs_with_the_gpu_and_its_exit_code_is_passed_on(ended, tmp_path):
    code, out, err = ended(
        "--memory", "4GB", "--backend", "auto", "--timeout", "60", "--",
        "sh", "-c", "echo $CUDA_VISIBLE_DEVICES $0 $1; exit 7", "--memory", "x",
    )  # fmt: skip
    assert (code, out) == (7, f"{FIRST} --memory x\n")
    assert "These GPUs are simulated" in err
    assert held(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL, signal.SIGUSR1])
def test_a_signal_is_the_commands_own(slot, tmp_path, number):
    process = slot("--memory", "4GB", "--", "sh", "-c", "echo there; read x")
    assert process.stdout.readline() == "there\n"
    assert held(tmp_path) == [f"{FIRST}.0"]
    process.send_signal(number)
    assert process.wait(60) == -number
    assert held(tmp_path) == []


def test_a_broken_pipe_ends_the_command_as_it_would_without(ended):
    code, _, _ = ended("--memory", "4GB", "--", "sh", "-c", "kill -PIPE $$; echo survived")
    assert code == -signal.SIGPIPE


def test_what_a_killed_command_left_running_keeps_the_slot(slot, tmp_path):
    process = slot("--memory", "4GB", "--", "sh", "-c", "sh -c 'echo there; read x'; :")
    assert process.stdout.readline() == "there\n"
    process.kill()
    process.wait(60)
    assert held(tmp_path) == [f"{FIRST}.0"]
    process.stdin.close()
    assert process.stdout.read() == ""
    assert held(tmp_path) == []


def test_a_command_under_a_slot_does_not_wait_for_itself(ended, project):
    inner = [sys.executable, project / "bin" / "gpu_slot.py", "--memory", "30GB", "--timeout", "0"]
    code, out, _ = ended(
        "--memory", "30GB", "--", *inner, "--backend", "gpu", "--",
        "sh", "-c", "echo $CUDA_VISIBLE_DEVICES $OCTANE_GPU_LEASE",
    )  # fmt: skip
    assert code == 0
    assert re.fullmatch(rf"{FIRST} {FIRST}\.0@[0-9.]+,{FIRST}\.1@[0-9.]+\n", out)


def test_a_waiting_user_sees_why_and_others_see_who_waits(slot, ended, tmp_path):
    hold = ("--", "sh", "-c", "echo there; read x")
    one = slot("--memory", "30GB", "--subject", "sub-01", *hold)
    two = slot("--memory", "20GB", *hold)
    for process in (one, two):
        assert process.stdout.readline() == "there\n"
    large = slot("--memory", "35GB", "--backend", "gpu", *hold)
    for line in large.stderr:
        if "waiting for 35.0 GB of a GPU" in line:
            assert "GPU 0: 1 of 1 slots taken; GPU 1: 1 of 1 slots taken" in line
            break
    _, shown, _ = ended("--status")
    assert "sub-01  30.0 GB" in shown
    assert f"waiting 1  {_me()}  pid {large.pid}  sh  35.0 GB" in shown
    _, found, _ = ended("--status", "--json")
    record = json.loads(found)
    assert record["simulated"] is True
    assert {h["pid"] for gpu in record["gpus"] for h in gpu["holders"]} == {one.pid, two.pid}
    assert [waiter["pid"] for waiter in record["waiters"]] == [large.pid]
    code, lines, _ = ended("--dry-run", "--memory", "4GB")
    assert code == 1
    assert lines == "GPU 0: 1 of 1 slots taken\nGPU 1: 1 of 1 slots taken\n"
    one.communicate("\n")
    assert large.stdout.readline() == "there\n"


def _me():
    import pwd

    return pwd.getpwuid(os.getuid()).pw_name


def test_a_dry_run_names_the_gpu_and_takes_nothing(ended, tmp_path):
    code, out, _ = ended("--dry-run", "--memory", "4GB", CUDA_VISIBLE_DEVICES="1")
    assert code == 0
    assert out == f"GPU 0: hidden by CUDA_VISIBLE_DEVICES\nGPU 1: would be taken ({SECOND})\n"
    assert held(tmp_path) == []


def test_without_a_gpu_in_time_the_command_runs_with_none(slot, ended):
    holders = [slot("--memory", "4GB", "--", "sh", "-c", "echo there; read x") for _ in range(2)]
    for holder in holders:
        assert holder.stdout.readline() == "there\n"
    command = ("--", "sh", "-c", "echo [$CUDA_VISIBLE_DEVICES]")
    code, out, err = ended("--memory", "4GB", "--auto-timeout", "0.1", *command)
    assert (code, out) == (0, "[]\n")
    assert "no GPU came free within 0.1 s" in err
    code, out, err = ended("--memory", "4GB", "--backend", "gpu", "--gpu-timeout", "0", *command)
    assert (code, out) == (1, "")
    assert "error: backend is gpu, but no GPU came free" in err
    assert ended("--memory", "4GB", "--backend", "cpu", *command)[1] == "[]\n"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--", "true"], 1, "--memory is missing"),
        (["--memory", "much", "--", "true"], 1, "'much' is not a size"),
        (["--memory", "4GB"], 1, "There is no command"),
        (["--memory", "4GB", "--", "no-such-command"], 127, "no-such-command was not found"),
        (["--memory", "4GB", "--", "/"], 126, "/ cannot be run"),
        (["--memory", "4GB", "--gpu-slots", "0", "--", "true"], 1, "--gpu-slots is '0'"),
    ],
)
def test_what_is_wrong_is_one_sentence(ended, tmp_path, arguments, code, words):
    found, out, err = ended(*arguments)
    assert (found, out) == (code, "")
    (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert words in line
    if (tmp_path / "leases").exists():
        assert held(tmp_path) == []


def test_a_machine_without_gpus_says_so(ended):
    description = {VARIABLE: "0x1GB"}
    assert ended("--status", **description)[1] == (
        "No GPU can be leased, because there is no GPU.\n"
    )
    assert json.loads(ended("--status", "--json", **description)[1])["gpus"] == []
    code, out, _ = ended("--dry-run", "--memory", "4GB", **description)
    assert (code, out) == (1, "No GPU, because there is no GPU.\n")


def test_foreign_processes_and_faults_are_shown(ended, tmp_path):
    gpus = tmp_path / "gpus.json"
    gpus.write_text(
        json.dumps(
            [
                {"total": 40 * 10**9, "free": 10**10, "processes": [[1, 3 * 10**10]],
                 "utilisation": 97},
                {"total": 40 * 10**9, "fault": "GPU is lost"},
            ]
        )
    )  # fmt: skip
    shown = ended("--status", **{VARIABLE: str(gpus)})[1]
    assert "10.0 GB of 40.0 GB free, 10.0 GB to give, 97 % busy" in shown
    assert "other   pid 1  30.0 GB" in shown
    assert "NVML reports: GPU is lost" in shown
    lines = ended("--dry-run", "--memory", "4GB", **{VARIABLE: str(gpus)})[1]
    assert lines == (
        "GPU 0: 97 % busy, and another process is there\nGPU 1: NVML reports: GPU is lost\n"
    )
