"""tools/first_run.sh: what it refuses, what it needs, and a rehearsal of its calls."""

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_process import PROJECT, printed

from octane.processes.n4.cuda import KERNELS

SCRIPT = PROJECT / "tools" / "first_run.sh"
BENCHMARK = PROJECT / "benchmarks" / "gpu.py"


@pytest.fixture
def stand_in(tmp_path):
    """Make a program that is found before others of its name."""
    (tmp_path / "tools").mkdir()

    def make(name, script):
        (tmp_path / "tools" / name).write_text(f"#!/usr/bin/env bash\n{script}\n")
        (tmp_path / "tools" / name).chmod(0o755)

    return make


@pytest.fixture
def first_run(tmp_path, stand_in):
    """Run the script with results and leases in the test's folder."""
    places = [str(tmp_path / "tools"), str(Path(sys.executable).parent), os.environ["PATH"]]
    environment = {
        **os.environ,
        "PATH": os.pathsep.join(places),
        "OUT": str(tmp_path / "out"),
        "OCTANE_GPU_LOCK_DIR": str(tmp_path / "leases"),
        "OCTANE_COMMIT": "0123abc",
    }

    def run(*words, script=SCRIPT, **variables):
        return subprocess.run(
            [script, *words],
            env=environment | variables,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def recorded(folder):
    record = json.loads((folder / "gpu_quick.json").read_text(encoding="utf-8"))
    for part in record.values():
        assert part["commit"] == "0123abc"
        assert part["device"]["driver"]
        assert part["device"]["link"].keys() >= {"generation", "width"}
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", part["date"])
    return record


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "'' is not a call; give pack FOLDER, A, B, C, D or all"),
        (("E",), "'E' is not a call; give pack FOLDER, A, B, C, D or all"),
        (("A", "--fast"), "--fast is not an option of A; it has --quick"),
        (("pack",), "name the folder to make: tools/first_run.sh pack FOLDER"),
        (("pack", "tools"), "tools exists; remove it, or name another folder"),
        (("pack", "x", "y"), "pack makes one folder, not x and y"),
        (("pack", "x", "--python"), "--python needs a value"),
        (("pack", "x", "--python", "3.9"), "--python is '3.9'; give 3.11, 3.12 or 3.13"),
        (("pack", "x", "--platform", "ppc"), "--platform is 'ppc'; give x86_64 or aarch64"),
        (("pack", "x", "--zip"), "--zip is not an option of pack; it has --python and --platform"),
    ],
)
def test_wrong_words_are_refused_in_one_sentence(first_run, tmp_path, words, sentence):
    done = first_run(*words)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"first_run: {sentence}\n"
    assert not (tmp_path / "x").exists()
    assert not (tmp_path / "out").exists()


def test_a_pack_that_cannot_be_made_leaves_nothing(first_run, tmp_path):
    # Without an index, as without a network.
    done = first_run("pack", "x", PIP_NO_INDEX="1")
    assert done.returncode == 1
    assert done.stderr.endswith(
        "first_run: the packages for Python 3.12 on x86_64 could not be fetched, see above; check "
        "the network, --python and --platform\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["tools"]


def test_a_pack_for_another_python_is_refused(first_run, tmp_path):
    folder = tmp_path / "octane" / "tools"
    folder.mkdir(parents=True)
    shutil.copy(SCRIPT, folder)
    (tmp_path / "commit").write_text("0123abc\n")
    (tmp_path / "packages-3.9-sparc.tar.xz").touch()
    done = first_run("A", script=folder / SCRIPT.name)
    assert done.returncode == 1
    here = f"3.{sys.version_info.minor}"
    assert f"needs packages-{here}-" in done.stderr
    assert f"but the pack has packages-3.9-sparc.tar.xz; pack with --python {here} " in done.stderr


def test_missing_packages_are_named_without_a_traceback(first_run, stand_in):
    stand_in("python3", f'exec {sys.executable} -I -S "$@"')
    done = first_run("A")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("first_run: gpu was not measured: CuPy, ")
    for package in ("numba", "pydantic", "zarr"):
        assert package in line
    assert line.endswith("or name their folder in PYTHONPATH")


def test_a_repetition_that_fails_is_named(first_run, stand_in, tmp_path):
    stand_in("python3", "[[ $OCTANE_BENCH_RESULTS != */again ]] || exit 9")
    done = first_run("A")
    assert done.returncode == 1
    logs = [tmp_path / "out" / "again" / f"{name}.log" for name in ("device", "kernels")]
    named = "; ".join(f"{log.stem} (exit code 9, see {log})" for log in logs)
    assert done.stderr == f"first_run: failed: {named}; the others are in {tmp_path / 'out'}\n"


def test_the_calls_contain_every_part():
    parts = runpy.run_path(str(BENCHMARK))["PARTS"]
    text = SCRIPT.read_text(encoding="utf-8")
    assert sorted(re.findall(r"(?m)^    part (\w+)", text)) == sorted(parts)
    for call in re.findall(r"(?ms)^call_\w\(\) \{\n(.*?)^}", text):
        limits = re.findall(r"(?:part|again|run) \w+ (\d+)", call)
        assert 0 < sum(map(int, limits)) < 600


@pytest.mark.emulated
def test_a_full_run_refuses_an_emulated_gpu(first_run, tmp_path):
    done = first_run("D")
    assert done.returncode == 1
    assert "gpu was not measured: CUDA is emulated, which only --quick supports" in done.stderr
    assert not (tmp_path / "out" / "gpu.json").exists()


@pytest.mark.slow
@pytest.mark.emulated
def test_call_a_measures_the_device_and_every_kernel_twice(first_run, tmp_path):
    done = first_run("A", "--quick")
    assert done.returncode == 0, done.stdout + done.stderr
    record = recorded(tmp_path / "out")
    assert record.keys() == {"device", "kernels", "transfers"}
    assert recorded(tmp_path / "out" / "again").keys() == {"device", "kernels"}
    device, found = record["device"], record["kernels"]
    assert device["context"]["bytes_of_process"] > 0
    assert device["page_locking"]["locked"]
    assert len(device["small_copies_ms"]["behind_large"]) > 1
    for name in ("n4", "n4_masked", "n4_half_constant"):
        assert [level["lattice"][0] for level in found[name]] == [4, 5, 7]
        for level in found[name]:
            iteration = set(KERNELS) - {"change", "running_mean", "scatter"}
            assert level["kernels_us"].keys() == iteration
            assert all(us > 0 for us in level["kernels_us"].values())
    assert found["apply"]["ms"] > 0
    for tile in found["resample"]:
        assert tile["passes_ms"].keys() == set("zyx")
        assert tile["same_bits"]
    assert found["cupyx_zoom_ms"] > 0


@pytest.mark.slow
@pytest.mark.emulated
@pytest.mark.soak
def test_calls_b_and_d_run_the_checks(first_run, stand_in, tmp_path):
    # The tools of CUDA, without what they find out: they run the Python command in their arguments.
    run = 'until [[ $1 == *python* && -x $1 ]]; do shift; done; exec "$@"'
    stand_in("compute-sanitizer", run)
    stand_in("ncu", f"[[ $1 != --import ]] || exec echo table; {run}")
    for call in "BD":
        done = first_run(call, "--quick")
        assert done.returncode == 0, done.stdout + done.stderr
    record = recorded(tmp_path / "out")
    assert record.keys() == {"tests", "sanitizer", "leases", "counters"}
    assert all(part["passed"] for part in record.values())
    assert re.search(r"\d+ passed", record["tests"]["runs"]["gpu"]["last_line"])
    # Each selection of tests has some.
    for tool in record["sanitizer"]["runs"].values():
        assert re.match(r"[1-9]\d*(/\d+)? tests collected", tool["last_line"])
    assert len(record["leases"]["holders"]) == 3
    assert (tmp_path / "out" / "ncu.csv").read_text() == "table\n"


@pytest.mark.slow
@pytest.mark.emulated
def test_a_check_that_fails_or_cannot_be_made_is_named(first_run, stand_in, tmp_path):
    stand_in("ncu", "echo no permission; exit 1")
    done = first_run("D", "--quick")
    assert done.returncode == 1
    assert "failed: counters (exit code 1, see " in done.stderr
    record = recorded(tmp_path / "out")
    assert record["leases"]["passed"]
    assert record["counters"]["last_line"] == "no permission"


def test_packages_on_the_caller_s_path_reach_every_process(monkeypatch, tmp_path):
    (tmp_path / "carried.py").write_text("here = 'carried'\n")
    script = tmp_path / "script.py"
    script.write_text("import carried, json\nprint(json.dumps({'found': carried.here}))\n")
    before = [os.environ["PYTHONPATH"]] if "PYTHONPATH" in os.environ else []
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *before]))
    monkeypatch.syspath_prepend(PROJECT / "benchmarks")
    from _processes import run_script

    assert printed(tmp_path, "import carried; print(carried.here)") == ["carried"]
    assert run_script(str(script), {}, cores=1)[0] == {"found": "carried"}
