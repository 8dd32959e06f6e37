"""The record of a step: what it did, as JSON that holds nothing but plain values."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octane.core.metrics import Metrics, peak_memory, write_json
from octane.core.records import ResolutionFigures


def test_a_record_holds_what_the_report_needs():
    metrics = Metrics("n4", settings={"strength": 1.0})
    metrics.figures["cv"] = 0.5
    record = dict[str, Any](metrics.record())
    assert record["step"] == "n4"
    assert record["settings"] == {"strength": 1.0}
    assert record["figures"] == {"cv": 0.5}
    assert record["device"] == {"backend": "cpu"}
    assert record["warnings"] == []
    assert record["versions"]["numpy"] == np.__version__
    assert record["seconds"]["total"] >= 0
    # Python alone takes more than 10 MB.
    assert record["peak_memory_bytes"] > 10_000_000
    assert record["host"]["cores"] >= 1


def test_the_command_is_noted_without_its_folder(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/somewhere/bin/n4.py", "a", "--strength", "0.5"])
    assert Metrics("n4").record()["command"] == ["n4.py", "a", "--strength", "0.5"]


def test_the_originals_of_staged_inputs_are_noted(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    store = tmp_path / "data" / "a.ome.zarr"
    store.mkdir(parents=True)
    mask = tmp_path / "data" / "mask.npy"
    mask.touch()
    (tmp_path / "input").mkdir()
    (tmp_path / "input" / "a.ome.zarr").symlink_to(store)
    (tmp_path / "input" / "copied").mkdir()
    (tmp_path / "input" / "lost").symlink_to(tmp_path / "nowhere")
    (tmp_path / "here").mkdir()
    (tmp_path / "mask.npy").symlink_to(mask)
    given = ["input/a.ome.zarr", "input/copied", "input/lost", "here", "out"]
    given += ["--mask", "mask.npy", "--text", "x" * 5000]
    monkeypatch.setattr(sys, "argv", ["n4.py", *given])
    assert Metrics("n4").record()["inputs"] == {
        "input/a.ome.zarr": {"path": str(store)},
        "input/copied": {"path": str(tmp_path / "input" / "copied")},
        "input/lost": {"path": str(tmp_path / "nowhere")},
        "mask.npy": {"path": str(mask)},
    }


def test_a_task_that_is_tried_again_says_so(monkeypatch):
    monkeypatch.delenv("OCTANE_ATTEMPT", raising=False)
    assert Metrics("n4").record()["attempt"] == 1
    monkeypatch.setenv("OCTANE_ATTEMPT", "2")
    assert Metrics("n4").record()["attempt"] == 2


def test_seconds_and_bytes_add_up_over_threads():
    metrics = Metrics("x")

    def work(_):
        with metrics.timed("read"):
            metrics.count("read", 3)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(1000)))
    assert metrics.bytes == {"read": 3000}
    assert metrics.seconds["read"] > 0


def test_the_record_names_what_bounds_the_step():
    metrics = Metrics("x", device={"backend": "gpu"})
    assert metrics.record()["bound"] is None
    metrics.timeline.track("main").seconds.update(fit=3.0, read=1.0)
    record = metrics.record()
    assert record["wall_seconds"] == {"fit": 3.0, "read": 1.0}
    bound = dict[str, Any](record["bound"])  # ty: ignore[no-matching-overload]
    assert (bound["stage"], bound["by"]) == ("fit", "GPU")


def test_figures_of_a_model_are_noted_by_the_names_that_records_have():
    metrics = Metrics("x", figures={"own": 1})
    metrics.note(ResolutionFigures(voxel_size=(1.0, 2.0, 3.0), shape=(1, 2, 3), size=5))
    shown = {"voxel_size": [1.0, 2.0, 3.0], "shape": [1, 2, 3], "bytes": 5}
    assert metrics.figures == {"own": 1} | shown


def test_time_counts_when_the_work_fails():
    metrics = Metrics("x")
    with pytest.raises(RuntimeError), metrics.timed("fit"):
        raise RuntimeError
    assert set(metrics.seconds) == {"fit"}


def test_a_warning_is_logged_and_kept(caplog):
    metrics = Metrics("x")
    metrics.warn("Sections 3 are missing.")
    assert caplog.messages == ["Sections 3 are missing."]
    assert metrics.record()["warnings"] == ["Sections 3 are missing."]


def test_the_record_and_the_previews_are_files(tmp_path):
    metrics = Metrics("x", figures={"f": np.float32(0.5), "n": np.int64(3), "v": np.arange(2)})
    metrics.figures["path"] = Path("a/b")
    metrics.previews["slice"] = np.eye(3, dtype=np.float32)
    for _ in range(2):
        metrics.save(tmp_path / "m.json", tmp_path / "p.npz")
    assert json.loads((tmp_path / "m.json").read_text())["figures"] == {
        "f": 0.5,
        "n": 3,
        "v": [0, 1],
        "path": "a/b",
    }
    with np.load(tmp_path / "p.npz", allow_pickle=False) as stored:
        np.testing.assert_array_equal(stored["slice"], np.eye(3))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.json", "p.npz"]


def test_nothing_is_written_where_nothing_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Metrics("x").save(None, None)
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_json_is_refused_and_leaves_nothing(tmp_path):
    with pytest.raises(TypeError, match="no place in JSON"):
        write_json(tmp_path / "m.json", {"a": object()})
    assert list(tmp_path.iterdir()) == []


def test_nan_and_inf_become_null(tmp_path):
    write_json(tmp_path / "a.json", {"a": [np.nan, np.float32("inf"), 1.5], "b": np.arange(2)})
    assert json.loads((tmp_path / "a.json").read_text()) == {"a": [None, None, 1.5], "b": [0, 1]}


def test_the_peak_is_the_own_one_and_not_that_of_who_started_the_process(project):
    ballast = np.ones(60_000_000)  # 480 MB
    code = "from octane.core.metrics import peak_memory; print(peak_memory())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(project / "bin")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert 10e6 < int(done.stdout) < 400e6 < peak_memory()
    assert ballast.nbytes == 480e6
