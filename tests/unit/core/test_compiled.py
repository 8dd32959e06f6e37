"""Kernels, and the machine code that is kept for later processes."""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from octane.core.compiled import LANES, blend, compiled, exchange, fetch_add, give_way

MODULE = """
from octane.core.compiled import compiled, inlined

@inlined()
def step(x):
    return x + 1

@compiled("float64(float64)")
def twice(x):
    return step(step(x))
"""
COMMANDS = (
    *("resample", "stitch", "stack", "n4", "pyramid", "report", "preflight", "phantom"),
    *("gpu_slot", "new_subject"),
)
SCRIPT = "from octane.twice import compiled, step, twice; print(twice(0.0))\n"
NO_HOME = "import os, pwd; del os.environ['HOME']; pwd.getpwuid = lambda uid: {}[uid]\n"
OTHER_NUMBA = "from octane.core import versions; versions.versions = lambda: {'numba': '0.1'}\n"
OTHER_SYSTEM = """
import llvmlite.binding as llvm
kind, _, rest = llvm.get_process_triple().split("-", 2)
llvm.get_process_triple = lambda: f"{kind}-other-{rest}"
"""
FULL_DISK = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"


@pytest.fixture
def code(tmp_path, project):
    """A package with a kernel, without anything compiled."""
    folder = tmp_path / "code" / "octane"
    for name in (
        "__init__.py",
        "core/__init__.py",
        "core/compiled.py",
        "core/files.py",
        "core/errors.py",
        "core/versions.py",
    ):
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
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*.o")}


@pytest.mark.parametrize("before", ["", NO_HOME, FULL_DISK], ids=["nowhere", "no home", "full"])
def test_code_that_cannot_be_kept_is_compiled_again_with_one_warning(start, code, tmp_path, before):
    folders = [] if before == FULL_DISK else [code, tmp_path / "home"]
    for folder in folders:
        folder.chmod(0o555)
    second = "print(compiled('float32(float32)')(step)(1.0))"
    out, err = finish(start(script=before + SCRIPT + second))
    for folder in folders:
        folder.chmod(0o755)
    assert out == "2.0\n2.0\n"
    assert err.count("NUMBA_CACHE_DIR") == 1
    assert files(tmp_path) == {}
    assert not list((tmp_path / "run").iterdir())


def test_a_damaged_file_is_made_again(start, tmp_path):
    finish(start())
    [file] = files(tmp_path)
    for damage in (b"", b"\0" * 100, file.read_bytes()[:-1]):
        file.write_bytes(damage)
        out, err = finish(start())
        assert out == "2.0\n"
        assert "Cached code of octane.twice.twice is damaged" in err
    assert finish(start()) == ("2.0\n", "")


@pytest.mark.timeout(120)
def test_a_fifo_in_the_place_of_code_is_passed_over(start, tmp_path):
    finish(start())
    [file] = files(tmp_path)
    file.unlink()
    os.mkfifo(file)
    assert finish(start()) == ("2.0\n", "")


def test_code_is_kept_beside_its_source_for_each_processor(start, code, tmp_path):
    other = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    # Three at once, which do not disturb each other.
    first, again, second = start(), start(), start(**other)
    assert {finish(process) for process in (first, again, second)} == {("2.0\n", "")}
    kept = files(tmp_path)
    assert [path.parent for path in kept] == [code / "__pycache__"] * 2
    assert finish(start()) == finish(start(**other)) == ("2.0\n", "")
    assert files(tmp_path) == kept


def test_code_that_is_kept_runs_without_numba(start, code):
    script = SCRIPT + "import sys; print('numba' in sys.modules)"
    assert finish(start(script=script))[0] == "2.0\nTrue\n"
    # An installation that others may only read.
    (code / "__pycache__").chmod(0o555)
    assert finish(start(script=script))[0] == "2.0\nFalse\n"


@pytest.mark.parametrize("other", [OTHER_NUMBA, OTHER_SYSTEM], ids=["numba", "system"])
def test_code_of_another_numba_or_system_is_made_again(start, tmp_path, other):
    finish(start())
    kept = files(tmp_path)
    assert finish(start(script=other + SCRIPT)) == ("2.0\n", "")
    assert len(files(tmp_path)) == len(kept) + 1 == 2


def test_a_changed_helper_of_another_helpers_file_is_compiled_again(start, code):
    head, _, kernel = MODULE.split("\n\n")
    (code / "first.py").write_text(MODULE)
    between = "\nfrom octane.first import step\n\n@inlined()\ndef near(x):\n    return step(x)\n"
    (code / "between.py").write_text(head + between)
    use = kernel.replace("step(step(x))", "near(near(x))")
    (code / "twice.py").write_text(f"{head}\nfrom octane.between import near, step\n\n{use}")
    assert finish(start()) == ("2.0\n", "")
    (code / "first.py").write_text(MODULE.replace("+ 1", "+ 9"))
    assert finish(start()) == ("18.0\n", "")


def fill(values, start, step):
    """Write start, start + step, ... by way of an array of the kernel's own."""
    line = np.empty(values.shape[1], np.float32)
    for row in range(len(values)):
        for i in range(len(line)):
            line[i] = start + step * (row * len(line) + i)
        for i in range(len(line)):
            values[row, i] = line[i]
    return values.size, start


def test_a_kernel_takes_and_gives_numbers_and_arrays(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    arguments = "(int16[:, ::1], int64, float64)"
    kernel = compiled(f"UniTuple(int64, 2){arguments}")(fill)
    many = np.zeros((3, 4, 5), np.int16)
    # Checked once, and run again.
    run = kernel.bound(many[1], 7, 2.0)
    for call in (lambda: kernel(many[1], 7, 2.0), run, run):
        many[...] = 0
        assert call() == (20, 7)
        assert many[1].tolist() == np.arange(7, 47, 2).reshape(4, 5).tolist()
        assert not many[[0, 2]].any()
    read_only = np.zeros((4, 5), np.int16)
    read_only.flags.writeable = False
    for wrong in (many, many[0].T, many[0].astype(">i2"), many[0].astype(np.uint16), read_only):
        with pytest.raises(TypeError, match=r"takes UniTuple.*; see argument 0"):
            kernel(wrong, 7, 2.0)
    assert not read_only.any()
    assert compiled(f"void{arguments}")(lambda v, a, b: None)(many[0], 1, 1.0) is None


def test_memory_that_a_kernel_lacks_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    allocate = compiled("int64(int64)")(lambda n: np.zeros(n)[n - 1] + 2 * n)
    # Functions of one name stay two.
    one = compiled("int64(int64)")(lambda n: n)
    assert (allocate(3), one(3)) == (6, 3)
    with pytest.raises(MemoryError):
        allocate(1 << 55)


@pytest.mark.parametrize(
    ("script", "slow"),
    [
        ("from octane.steps import preflight, report", ("numba", "llvmlite")),
        (
            "from octane.steps import n4, stack",
            ("numba", "llvmlite", "pynvml", "numcodecs.registry"),
        ),
        (
            "from octane.steps import pyramid, resample, stitch",
            ("SimpleITK", "pynvml", "numcodecs.registry"),
        ),
        *((f"import {command}", ("zarr", "matplotlib", "numpy")) for command in COMMANDS),
    ],
)
def test_what_is_slow_to_import_is_left_until_it_is_used(run_python, script, slow):
    found = run_python(f"{script}; import sys; print({{*sys.modules}} & {{*{slow}}})")
    assert found == "set()"


@compiled("int64(int64[::1], int64)")
def raised(cells, times):
    for _ in range(times):
        fetch_add(cells, 1, 3)
        give_way()
    return exchange(cells, 0, times)


def sum_of_rows(weights, first, rows, start, step, out, at):
    blend(weights, first, rows, start, step, out, at)


def test_threads_that_add_to_a_cell_lose_nothing():
    cells = np.array([7, 0], np.int64)
    assert raised(cells, 50_000) == 7
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(raised, [cells] * 4, [50_000] * 4)) == [50_000] * 4
    assert cells.tolist() == [50_000, 5 * 50_000 * 3]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_vector_of_four_rows_has_the_bits_of_single_values(dtype):
    rng = np.random.default_rng(0)
    weights, rows = rng.normal(size=9).astype(dtype), rng.normal(size=(7, 23)).astype(dtype)
    kernel = compiled(
        f"void({dtype}[::1], int64, {dtype}[:, ::1], int64, int64, float32[::1], int64)"
    )(sum_of_rows)
    found = np.zeros(40, np.float32)
    kernel(weights, 3, rows, 25, 23, found, 5)
    lanes = LANES * 4 // rows.itemsize
    flat = rows.reshape(-1)
    total = sum(weights[3 + k] * flat[25 + 23 * k :][:lanes] for k in range(4))
    np.testing.assert_array_equal(found[5 : 5 + lanes], total.astype(np.float32))
    assert not found[:5].any()
    assert not found[5 + lanes :].any()
