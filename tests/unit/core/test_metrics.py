"""The record of a step, as JSON of plain values only."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octane.core.metrics import Metrics, peak_memory, write_json
from octane.processes.pyramid.record import ResolutionFigures


def test_a_record_holds_what_the_report_needs(monkeypatch, caplog):
    monkeypatch.setattr(sys, "argv", ["/somewhere/bin/n4.py", "a", "--n4_strength", "0.5"])
    monkeypatch.setenv("OCTANE_ATTEMPT", "2")
    metrics = Metrics("n4", settings={"strength": 1.0}, figures={"cv": 0.5})
    metrics.device = {"backend": "gpu"}
    metrics.timeline.track("main").seconds.update(fit=3.0, read=1.0)
    metrics.add_figures(ResolutionFigures(voxel_size=(1.0, 2.0, 3.0), shape=(1, 2, 3), size=5))
    metrics.warn("Sections 3 are missing.")
    record = dict[str, Any](metrics.record())
    known = {
        "step": "n4",
        "attempt": 2,
        "command": ["n4.py", "a", "--n4_strength", "0.5"],
        "settings": {"strength": 1.0},
        "figures": {"cv": 0.5, "voxel_size": [1.0, 2.0, 3.0], "shape": [1, 2, 3], "bytes": 5},
        "device": {"backend": "gpu"},
        "warnings": ["Sections 3 are missing."],
    }
    assert {name: record[name] for name in known} == known
    assert caplog.messages == known["warnings"]
    assert record["versions"]["numpy"] == np.__version__
    assert record["seconds"]["total"] >= 0
    assert record["host"]["cores"] >= 1
    assert record["wall_seconds"] == {"fit": 3.0, "read": 1.0}
    assert Metrics("n4").record()["device"] == {"backend": "cpu"}


def test_the_originals_of_staged_inputs_are_noted(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for folder in ("data/a.ome.zarr", "input/copied", "here"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "data" / "mask.npy").touch()
    staged = {
        "input/a.ome.zarr": "data/a.ome.zarr",
        "input/copied": "input/copied",
        "input/lost": "nowhere",
        "mask.npy": "data/mask.npy",
    }
    for name, original in staged.items():
        if name != original:
            (tmp_path / name).symlink_to(tmp_path / original)
    given = [*staged, "here", "out", "--text", "x" * 5000]
    monkeypatch.setattr(sys, "argv", ["n4.py", *given])
    expected = {name: {"path": str(tmp_path / path)} for name, path in staged.items()}
    assert Metrics("n4").record()["inputs"] == expected


def test_the_record_and_the_previews_are_files(tmp_path):
    values = np.array([0, np.nan, np.inf])
    metrics = Metrics("x")
    metrics.figures.update(f=np.float32(0.5), n=np.int64(3), v=values, path=Path("a/b"))
    metrics.previews["slice"] = np.eye(3, dtype=np.float32)
    for _ in range(2):
        metrics.save(tmp_path / "m.json", tmp_path / "p.npz")
    found = json.loads((tmp_path / "m.json").read_text())["figures"]
    assert found == {"f": 0.5, "n": 3, "v": [0, None, None], "path": "a/b"}
    with np.load(tmp_path / "p.npz", allow_pickle=False) as stored:
        np.testing.assert_array_equal(stored["slice"], np.eye(3))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.json", "p.npz"]


def test_what_is_no_json_is_refused_and_leaves_nothing(tmp_path):
    Metrics("x").save(None, None)
    with pytest.raises(TypeError):
        write_json(tmp_path / "m.json", {"a": object()})
    assert list(tmp_path.iterdir()) == []


def test_the_peak_is_the_own_one_and_not_that_of_who_started_the_process(run_python):
    ballast = np.ones(60_000_000)  # 480 MB
    found = run_python("from octane.core.metrics import peak_memory; print(peak_memory())")
    assert 10e6 < int(found) < 400e6 < peak_memory()
    assert ballast.nbytes == 480e6
