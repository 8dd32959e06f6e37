"""A command that is started with another Python finds the project's own, or says how to get it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from octane.config import environment


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A project whose environment is there."""
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    monkeypatch.setattr(environment, "PROJECT", tmp_path)
    return python


def test_the_command_is_started_again_with_the_projects_python(elsewhere, monkeypatch):
    started = []
    monkeypatch.setattr(os, "execv", lambda *given: started.append(given))
    monkeypatch.setattr(sys, "argv", ["bin/n4.py", "a b", "--strength", "1"])
    with pytest.raises(SystemExit):
        environment.enter("cyclopts")
    assert started == [(elsewhere, [str(elsewhere), "bin/n4.py", "a b", "--strength", "1"])]


def test_the_projects_own_python_is_not_started_again(elsewhere, monkeypatch, capsys):
    monkeypatch.setattr(os, "execv", lambda *_: pytest.fail("would go round for ever"))
    monkeypatch.setattr(sys, "prefix", str(elsewhere.parents[1]))
    with pytest.raises(SystemExit) as caught:
        environment.enter("cyclopts")
    assert caught.value.code == 1
    assert "no package cyclopts" in capsys.readouterr().err


def test_without_an_environment_it_says_how_to_get_one(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(environment, "PROJECT", tmp_path)
    with pytest.raises(SystemExit) as caught:
        environment.enter("zarr")
    assert caught.value.code == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert "no package zarr" in line
    assert "make setup" in line


def test_any_python_will_do_to_start_a_command(project):
    if not (project / ".venv/bin/python").exists():
        pytest.skip("the project's .venv is not there: tools/setup.sh was not run")
    # The interpreter below the environment, without any packages of its own.
    bare = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"
    done = subprocess.run(
        [bare, "-S", project / "bin" / "resample.py", "--version"],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": os.defpath},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == "0.1.0"
