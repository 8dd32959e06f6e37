"""Compiled loops, and the machine code cached for later processes."""

import ast
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from python_path import python_path

from octane.core.compiled import _checksum as checksum
from octane.core.compiled import compiled

MODULE = """
from octane.core.compiled import compiled, helper

@helper
def step(x):
    return x + 1

@compiled("float64(float64)")
def twice(x):
    return step(step(x))
"""
COMMANDS = (
    *(f"processes.{name}" for name in ("mosaic", "resample", "stitch", "stack", "n4", "pyramid")),
    *(f"processes.{name}" for name in ("channels", "report", "preflight", "phantom")),
    *("gpu", "tools.new_subject"),
)
SLOW = (
    (("preflight", "report"), ("numba", "llvmlite")),
    (("n4", "stack"), ("numba", "llvmlite", "pynvml")),
    (("pyramid", "resample", "stitch"), ("SimpleITK", "pynvml")),
)
"""What the steps of processes import only when they need it."""
SCRIPT = "from octane.twice import compiled, step, twice; print(twice(0.0))\n"
NO_HOME = "import os, pwd; del os.environ['HOME']; pwd.getpwuid = lambda uid: {}[uid]\n"
FULL_DISK = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"


@pytest.fixture
def code(tmp_path, project):
    """A package with a kernel, not yet compiled."""
    folder = tmp_path / "code" / "octane"
    for name in ("__init__.py", "core/__init__.py", "core/compiled.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(project / "bin" / "octane" / name, folder / name)
    (folder / "twice.py").write_text(MODULE)
    return folder


@pytest.fixture
def start(code, tmp_path):
    """Start a process that runs a kernel of the copy, with its own home."""
    # Root may write to read-only folders unless it drops that capability.
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
                **python_path(code.parent),
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
    """Output of the script: results and warnings."""
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert "Traceback" not in err
    return out, err


def files(folder):
    """Cached files and when they were written."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*.nbc")}


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


@pytest.mark.parametrize("suffix", ["nbc", pytest.param("nbi", marks=pytest.mark.soak)])
def test_a_damaged_file_is_made_again(start, tmp_path, suffix):
    finish(start())
    [file] = tmp_path.rglob(f"*.{suffix}")
    for damage in (b"", b"\0" * 100, file.read_bytes()[:-1]):
        file.write_bytes(damage)
        out, err = finish(start())
        assert out == "2.0\n"
        assert f"compiled code in {file.parents[1]} is damaged" in err
    assert finish(start()) == ("2.0\n", "")


@pytest.mark.slow
@pytest.mark.parametrize("most", [1, pytest.param(3, marks=pytest.mark.soak)])
def test_no_flipped_bit_is_run(start, tmp_path, most):
    finish(start())
    [folder] = {file.parents[1] for file in files(tmp_path)}
    kept = [file for file in folder.rglob("*") if file.is_file()]
    assert {file.suffix for file in kept} == {".nbc", ".nbi", ""}
    before = {file: file.read_bytes() for file in kept}
    for file, content in before.items():
        for at in (len(content) // 3, 0, len(content) - 1)[: min(most, len(content) // 32)]:
            flipped = bytearray(content)
            flipped[at] ^= 128
            file.write_bytes(flipped)
            out, err = finish(start())
            assert out == "2.0\n"
            assert f"compiled code in {folder} is damaged" in err
    assert finish(start()) == ("2.0\n", "")


@pytest.mark.soak
def test_several_processes_make_a_damaged_file_again(start, tmp_path):
    finish(start())
    [data] = files(tmp_path)
    data.write_bytes(b"damaged")
    assert {finish(process)[0] for process in [start() for _ in range(4)]} == {"2.0\n"}
    assert finish(start()) == ("2.0\n", "")
    assert len([*data.parents[2].glob("octane-*")]) == 1


@pytest.mark.parametrize(
    "kind",
    ["data", *(pytest.param(k, marks=pytest.mark.soak) for k in ("folder", "checksum", "another"))],
)
def test_a_fifo_in_the_place_of_code_does_not_block(start, tmp_path, kind):
    finish(start())
    [data] = files(tmp_path)
    folder = data.parents[1]
    names = {"folder": folder, "data": data, "checksum": folder / "sha256"}
    place = names.get(kind, folder / "another")
    if kind == "folder":
        shutil.rmtree(folder)
    else:
        place.unlink(missing_ok=True)
    os.mkfifo(place)
    assert finish(start())[0] == "2.0\n"
    assert finish(start()) == ("2.0\n", "")


@pytest.mark.parametrize("owner", ["mine", "another's"])
def test_code_that_others_may_change_is_not_run(start, tmp_path, owner):
    finish(start())
    [data] = files(tmp_path)
    folder, content = data.parents[1], data.read_bytes()
    assert folder.stat().st_mode & 0o777 == 0o700
    # With its checksum: it would crash if it were run.
    data.write_bytes(content[: len(content) // 2])
    (folder / "sha256").write_bytes(checksum(folder))
    if owner == "mine":
        folder.chmod(0o770)
    elif os.geteuid():
        pytest.skip("only root may give a folder to another user")
    else:
        os.chown(folder, 12345, -1)
    out, err = finish(start())
    assert out == "2.0\n"
    # Another user's folder cannot be replaced.
    assert ("is damaged" in err, "NUMBA_CACHE_DIR" in err) == (True, owner != "mine")
    assert (data.stat().st_size == len(content)) == (owner == "mine")


def test_code_is_kept_next_to_its_source(start, code, tmp_path):
    # Several at once, without interference.
    assert {finish(process) for process in [start() for _ in range(3)]} == {("2.0\n", "")}
    kept = files(tmp_path)
    assert [path.parents[2] for path in kept] == [code / "__pycache__"]
    assert finish(start()) == ("2.0\n", "")
    assert files(tmp_path) == kept


def test_a_folder_for_code_can_be_given(start, tmp_path):
    assert finish(start(NUMBA_CACHE_DIR=str(tmp_path / "given"))) == ("2.0\n", "")
    assert files(tmp_path) == files(tmp_path / "given") != {}


def test_an_installation_that_may_only_be_read_has_its_code_in_the_home(start, code, tmp_path):
    code.chmod(0o555)
    assert finish(start()) == ("2.0\n", "")
    code.chmod(0o755)
    assert files(tmp_path) == files(tmp_path / "home") != {}


def test_each_signature_has_files_of_its_own(start, tmp_path):
    """Otherwise, processes that compile one function at the same time would mix them up."""
    again = "print(compiled('float32(float32)')(twice.py_func)(0.0))"
    assert finish(start(SCRIPT + again)) == ("2.0\n2.0\n", "")
    assert len({path.parent for path in files(tmp_path)}) == len(files(tmp_path)) == 2


def test_a_changed_helper_of_another_helpers_file_is_compiled_again(start, code):
    head, _, kernel = MODULE.split("\n\n")
    (code / "first.py").write_text(MODULE)
    between = "\nfrom octane.first import step\n\n@helper\ndef near(x):\n    return step(x)\n"
    (code / "between.py").write_text(head + between)
    use = kernel.replace("step(step(x))", "near(near(x))")
    (code / "twice.py").write_text(f"{head}\nfrom octane.between import near, step\n\n{use}")
    assert finish(start()) == ("2.0\n", "")
    (code / "first.py").write_text(MODULE.replace("+ 1", "+ 9"))
    assert finish(start()) == ("18.0\n", "")


def test_loops_use_nothing_of_other_folders(project):
    """The key of their machine code is that of their own folder."""
    package = project / "bin" / "octane"
    loops = [f for f in package.rglob("*.py") if "octane.core.compiled import" in f.read_text()]
    assert len(loops) >= 5
    for file in loops:
        used = {
            node.module
            for node in ast.walk(ast.parse(file.read_text()))
            if isinstance(node, ast.ImportFrom) and node.module
        }
        used = {name for name in used if name.startswith("octane.")}
        # Only a type is taken from layout.mosaic.
        used -= {"octane.core.compiled", "octane.layout.mosaic"}
        home = ".".join(file.parent.relative_to(package.parent).parts)
        assert all(name.startswith(f"{home}.") for name in used), file


def test_a_loop_takes_its_own_types_alone():
    loop = compiled("int64(int16[:, ::1])")(lambda values: values.size)
    right = np.zeros((4, 5), np.int16)
    assert loop(right) == 20
    read_only = right.copy()
    read_only.flags.writeable = False
    for wrong in (right[0], right.T, right.astype(">i2"), right.astype(np.uint16), read_only):
        with pytest.raises(TypeError):
            loop(wrong)


@pytest.mark.parametrize(
    ("modules", "slow"),
    [
        *(([f"processes.{name}.step" for name in names], slow) for names, slow in SLOW),
        ([f"{place}.command" for place in COMMANDS], ("zarr", "matplotlib", "numpy")),
    ],
    ids=["nothing compiled", "no NVML either", "no SimpleITK", "commands"],
)
def test_what_is_slow_to_import_is_left_until_it_is_used(run_python, modules, slow):
    # In one process: nothing that is slow was imported after any of them.
    words = "; ".join(
        f"import octane.{name}; print({name!r}, *{{*sys.modules}} & {{*{slow}}})"
        for name in modules
    )
    assert run_python(f"import sys; {words}").splitlines() == modules
