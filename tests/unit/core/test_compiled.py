"""Where compiled code is kept, in processes of their own: each finds numba and octane afresh."""

import logging
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from octane.core import compiled as module
from octane.core.compiled import Kernel, compiled, inlined

SCRIPT = """
import sys
import numpy as np
from octane.core.compiled import cache_folder
from octane.n4.kernels import follow

p = np.random.default_rng(0).normal(1, 0.01, 1000).astype(np.float32)
print(cache_folder(), *follow(p))
"""


@pytest.fixture
def bound_by_modes():
    """What a command is started with so that folders it may not write to bind it, root or not."""
    if os.geteuid() != 0:
        return []
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("as root, setpriv (util-linux) is needed to make folders read-only")
    return [setpriv, "--bounding-set=-dac_override,-dac_read_search"]


@pytest.fixture
def code(tmp_path, project):
    """A copy of the code, without anything compiled."""
    folder = tmp_path / "code"
    shutil.copytree(
        project / "bin" / "octane", folder / "octane", ignore=shutil.ignore_patterns("__pycache__")
    )
    return folder


@pytest.fixture
def start(code, tmp_path, bound_by_modes):
    """Start a process that runs a kernel with a home, a temporary folder and a code of its own."""
    for name in ("home", "temporary"):
        (tmp_path / name).mkdir()

    def run(script=SCRIPT, **more):
        environment = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith("NUMBA_") and k != "XDG_CACHE_HOME"
        }
        environment |= {
            "PYTHONPATH": str(code),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HOME": str(tmp_path / "home"),
            "TMPDIR": str(tmp_path / "temporary"),
            **more,
        }
        return subprocess.Popen(
            [*bound_by_modes, sys.executable, "-c", script],
            env=environment,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return run


def finish(process):
    """The folder that was used, and the kernel's result."""
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    folder, *values = out.split()
    return Path(folder), values, err


@pytest.fixture
def read_only():
    """Make folders read-only until the test ends."""
    changed = []

    def change(folder):
        changed.append(folder)
        folder.chmod(0o555)

    yield change
    for folder in changed:
        folder.chmod(0o755)


def files(folder):
    return sorted(path for path in folder.rglob("*.nb?"))


def test_compiled_code_is_kept_beside_the_code(start, code, tmp_path):
    folder, first, _ = finish(start())
    assert folder.parent == code / "octane" / "__pycache__"
    kept = files(folder)
    assert len(kept) == 2
    stamps = [path.stat().st_mtime_ns for path in kept]
    assert finish(start())[1] == first
    assert [path.stat().st_mtime_ns for path in files(folder)] == stamps
    assert not list((tmp_path / "home").iterdir())
    assert not list((tmp_path / "temporary").rglob("*.nb?"))


def test_numbas_own_setting_is_respected(start, code, tmp_path):
    folder, *_ = finish(start(NUMBA_CACHE_DIR=str(tmp_path / "asked")))
    assert folder.parent == tmp_path / "asked"
    assert files(folder)
    assert not (code / "octane" / "__pycache__").exists()


def test_read_only_code_has_its_cache_in_the_home(start, code, tmp_path, read_only):
    read_only(code / "octane")
    folder, first, _ = finish(start())
    assert folder.parent == tmp_path / "home" / ".cache" / "octane"
    assert files(folder)
    assert finish(start())[:2] == (folder, first)
    elsewhere = tmp_path / "elsewhere"
    assert finish(start(XDG_CACHE_HOME=str(elsewhere)))[0].parent == elsewhere / "octane"


def test_without_a_home_the_cache_is_in_a_folder_of_the_users(start, code, tmp_path, read_only):
    read_only(code / "octane")
    read_only(tmp_path / "home")
    folder, *_ = finish(start())
    assert folder.parent == tmp_path / "temporary" / f"octane-{os.getuid()}"
    assert folder.parent.stat().st_mode & 0o777 == 0o700
    assert files(folder)


def test_where_nothing_can_be_written_it_is_compiled_every_time(start, code, tmp_path, read_only):
    others = tmp_path / "temporary" / f"octane-{os.getuid()}"
    others.mkdir(mode=0o777)
    others.chmod(0o777)
    read_only(code / "octane")
    read_only(tmp_path / "home")
    folder, values, err = finish(start())
    assert str(folder) == "None"
    assert len(values) == 2
    assert err.count("NUMBA_CACHE_DIR") == 1
    assert not list(others.iterdir())


def test_first_runs_at_once_do_not_disturb_each_other(start):
    processes = [start() for _ in range(4)]
    results = [finish(process) for process in processes]
    assert len({tuple(values) for _, values, _ in results}) == 1
    assert finish(start())[1] == results[0][1]


@pytest.mark.parametrize("kind", ["*.nbi", "*.nbc"])
def test_a_file_that_was_cut_short_is_written_again(start, kind):
    folder, first, _ = finish(start())
    [file] = folder.rglob(kind)
    whole = file.stat().st_size
    for size in (0, whole // 2):
        os.truncate(file, size)
        assert finish(start())[1] == first
        assert file.stat().st_size >= whole // 2 + 1


def test_processors_that_share_a_folder_keep_their_code_apart(start):
    own, first, _ = finish(start())
    plain, second, _ = finish(start(NUMBA_CPU_NAME="generic", NUMBA_CPU_FEATURES=""))
    assert own != plain
    assert own.parent == plain.parent
    np.testing.assert_allclose([float(v) for v in second], [float(v) for v in first], rtol=1e-6)
    assert files(own)
    assert files(plain)


def test_a_link_of_somebody_elses_in_the_temporary_folder_is_not_followed(tmp_path, monkeypatch):
    target = tmp_path / "target"
    target.mkdir(mode=0o700)
    (tmp_path / f"octane-{os.getuid()}").symlink_to(target)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert all(place.parent != tmp_path for place in module._places())


def test_a_cache_that_cannot_be_written_after_all_is_done_without(monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(module, "cache_folder", lambda: tmp_path / "file" / "folder")
    (tmp_path / "file").touch()

    def work(p):
        return p[0] + p[1]

    # numba finds no place of its own for a function that is made here; what is tested is the way on
    monkeypatch.setattr(Kernel, "_compile", failing_with_a_folder(Kernel._compile))
    with caplog.at_level(logging.WARNING):
        assert compiled("float64(float64[::1])")(work)(np.array([1.0, 2.0])) == 3
    assert "cannot be kept" in caplog.text


def failing_with_a_folder(compile_):
    def run(self, folder):
        if folder is not None:
            raise OSError("No space left on device")
        return compile_(self, folder)

    return run


def test_a_changed_helper_in_another_file_is_compiled_anew(start, code):
    (code / "octane" / "one.py").write_text(
        "from octane.core.compiled import inlined\n@inlined()\ndef step(x):\n    return x + 1\n"
    )
    (code / "octane" / "two.py").write_text(
        "from octane.core.compiled import compiled\nfrom octane.one import step\n"
        "@compiled('float64(float64)')\ndef twice(x):\n    return step(step(x))\n"
    )
    script = "from octane.two import twice; print(twice(0.0))"
    assert finish(start(script=script))[0] == Path("2.0")
    text = (code / "octane" / "one.py").read_text()
    (code / "octane" / "one.py").write_text(text.replace("+ 1", "+ 10"))
    assert finish(start(script=script))[0] == Path("20.0")


def test_commands_without_kernels_do_not_import_numba(project):
    found = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from octane.steps import n4, preflight, report, stack;"
            "print('numba' in sys.modules or 'llvmlite' in sys.modules)",
        ],
        env={**os.environ, "PYTHONPATH": str(project / "bin")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == "False"


def test_numbas_setting_is_left_as_it_was():
    import numba

    before = vars(numba.config).copy()
    kernel = compiled("float64(float64)")(lambda x: x + 1)
    assert kernel(1.0) == 2
    assert vars(numba.config) == before


@inlined()
def twice(x):
    return 2 * x


@inlined(reorder=True)
def total(x):
    s = np.float32(0)
    for i in range(len(x)):
        s += x[i]
    return s


@compiled("float32(float32[::1])")
def twice_the_total(x):
    return twice(total(x))


def test_helpers_are_compiled_into_kernels_and_stay_functions():
    x = np.arange(100, dtype=np.float32)
    assert twice_the_total(x) == twice(total(x)) == 9900
