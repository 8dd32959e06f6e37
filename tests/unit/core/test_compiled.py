"""numba's cache of compiled code, in processes of their own, which import numba again."""

import os
import shutil
import subprocess
import sys
from types import FunctionType

import pytest

from octane.core.compiled import Kernel, compiled, extensions
from octane.n4 import kernels as n4_kernels
from octane.resample import kernels as resample_kernels

MODULE = """
from octane.core.compiled import compiled, inlined

@inlined()
def step(x):
    return x + 1

@compiled("float64(float64)")
def twice(x):
    return step(step(x))
"""
COMMANDS = ("resample", "stitch", "stack", "n4", "pyramid", "report", "preflight", "phantom")
SCRIPT = "from octane.twice import compiled, step, twice; print(twice(0.0))\n"
NO_HOME = "import os, pwd; del os.environ['HOME']; pwd.getpwuid = lambda uid: {}[uid]\n"
FULL_DISK = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"


@pytest.fixture
def code(tmp_path, project):
    """A package with a kernel, without anything compiled."""
    folder = tmp_path / "code" / "octane"
    for name in ("__init__.py", "core/__init__.py", "core/compiled.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(project / "bin" / "octane" / name, folder / name)
    (folder / "twice.py").write_text(MODULE)
    return folder


@pytest.fixture
def start(code, tmp_path):
    """Start a process that runs a kernel of the copy, with a home of its own."""
    # Root may write to read-only folders unless it gives up the right to.
    bound = []
    if os.geteuid() == 0:
        setpriv = shutil.which("setpriv")
        if setpriv is None:
            pytest.skip("as root, setpriv (util-linux) is needed to make folders read-only")
        bound = [setpriv, "--bounding-set=-dac_override,-dac_read_search"]
    for name in ("home", "run"):
        (tmp_path / name).mkdir()
    plain = {
        k: v for k, v in os.environ.items() if not k.startswith("NUMBA_") and k != "XDG_CACHE_HOME"
    }

    def run(script=SCRIPT, **more):
        return subprocess.Popen(
            [*bound, sys.executable, "-c", script],
            env={
                **plain,
                "PYTHONPATH": str(code.parent),
                "PYTHONDONTWRITEBYTECODE": "1",
                "HOME": str(tmp_path / "home"),
                **more,
            },
            cwd=tmp_path / "run",
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return run


def finish(process):
    """What the script wrote: results and warnings."""
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert "Traceback" not in err
    return out, err


def files(folder):
    """Cached files and when they were written."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*.nb?")}


@pytest.mark.parametrize("before", ["", NO_HOME, FULL_DISK], ids=["nowhere", "no home", "full"])
def test_code_that_cannot_be_kept_is_compiled_again_with_one_warning(start, code, tmp_path, before):
    folders = [] if before == FULL_DISK else [code, tmp_path / "home"]
    for folder in folders:
        folder.chmod(0o555)
    second = "print(compiled('f4(f4)')(step)(1.0))"
    out, err = finish(start(script=before + SCRIPT + second))
    for folder in folders:
        folder.chmod(0o755)
    assert out == "2.0\n2.0\n"
    assert err.count("NUMBA_CACHE_DIR") == 1
    assert files(tmp_path) == {}
    assert not list((tmp_path / "run").iterdir())


def test_a_damaged_file_is_made_again(start, tmp_path):
    finish(start())
    for kind, damage in (("*.nbi", b""), ("*.nbc", b"\0" * 100)):
        [file] = tmp_path.rglob(kind)
        file.write_bytes(damage)
        out, err = finish(start())
        assert out == "2.0\n"
        assert "Cached code of twice is damaged" in err
    assert finish(start()) == ("2.0\n", "")


def test_code_is_kept_beside_its_source_for_each_processor(start, code, tmp_path):
    other = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    # Three at once, which do not disturb each other.
    first, again, second = start(), start(), start(**other)
    assert {finish(process) for process in (first, again, second)} == {("2.0\n", "")}
    kept = files(tmp_path)
    assert len(kept) == 4
    assert {path.parent for path in kept} == {code / "__pycache__"}
    # One name each: numba would number both in one list, in which they can take the same number.
    assert len({path.name for path in kept if path.suffix == ".nbi"}) == 2
    assert finish(start()) == finish(start(**other)) == ("2.0\n", "")
    assert files(tmp_path) == kept


def test_code_that_is_kept_runs_without_what_numba_compiles_with(start):
    script = (
        SCRIPT
        + "import sys; print('numba.np.linalg' in sys.modules, 'scipy.linalg' in sys.modules)"
    )
    assert finish(start(script=script))[0] == "2.0\nTrue True\n"
    assert finish(start(script=script))[0] == "2.0\nFalse False\n"


def test_a_changed_helper_is_compiled_again(start, code):
    assert finish(start()) == ("2.0\n", "")
    (code / "twice.py").write_text(MODULE.replace("+ 1", "+ 9"))
    assert finish(start()) == ("18.0\n", "")


@pytest.mark.parametrize("module", [n4_kernels, resample_kernels], ids=lambda m: m.__name__)
def test_kernels_and_their_helpers_are_in_one_file(module):
    """Whether code has changed is seen from the kernel's file, and from those of `extensions`."""
    named = [f.function if isinstance(f, Kernel) else f for f in vars(module).values()]
    used = [
        vars(module).get(name)
        for f in named
        if isinstance(f, FunctionType) and f.__module__ == module.__name__
        for name in f.__code__.co_names
    ]
    helpers = [f for f in used if isinstance(f, FunctionType) and f is not compiled]
    assert helpers
    assert {f.__module__ for f in helpers} - set(extensions) == {module.__name__}


@pytest.mark.parametrize(
    ("script", "slow"),
    [
        ("from octane.steps import n4, preflight, report, stack", ("numba", "llvmlite")),
        ("from octane.steps import pyramid, resample, stitch", ("SimpleITK", "scipy")),
        *((f"import {command}", ("zarr", "scipy", "matplotlib")) for command in COMMANDS),
        # Every task asks for versions.
        ("import octane.core.versions", ("numpy", "zarr", "pydantic")),
    ],
)
def test_what_is_slow_to_import_is_left_until_it_is_used(run_python, script, slow):
    found = run_python(f"{script}; import sys; print({{*sys.modules}} & {{*{slow}}})")
    assert found == "set()"
