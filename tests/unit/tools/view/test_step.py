"""Results found and served: addresses on the terminal, volumes and reports behind them."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from archives import pack
from python_path import python_path
from refusals import refused

from octane.core.errors import InputError
from octane.tools.view.server import ResultsServer
from octane.tools.view.step import _show_subject, find_subjects, forwarding_lines


@pytest.fixture
def outdir(tmp_path, write_image):
    """Two subjects, published as links, an unfinished store, and files of the run."""
    task = tmp_path / "work" / "ab" / "0123456789abcdef0123456789abcd"
    task.mkdir(parents=True)
    names = ("sub-01", "sub-01_bias", "sub-02_n4", "sub-02_bias")
    for name in names:
        voxels = np.ones((4, 4, 4), np.float32)
        write_image(f"{name}.ome.zarr", voxels).rename(task / f"{name}.ome.zarr")
    (task / "sub-01_report.html").write_text("<p>good")
    folder = tmp_path / "results"
    for name in (*(f"{name}.ome.zarr" for name in names), "sub-01_report.html"):
        subject = folder / name[:6]
        subject.mkdir(parents=True, exist_ok=True)
        (subject / name).symlink_to(task / name)
    (folder / "sub-01" / ".partial-1.ome.zarr").mkdir()
    (folder / "sub-01" / "metrics").mkdir()
    (folder / "pipeline_info").mkdir()
    (folder / "secret").write_text("secret")
    return folder


def test_subjects_are_found_with_their_finished_volume_first(outdir, monkeypatch):
    def found(results):
        return [(s.name, [path.name for path in s.images]) for s in find_subjects(results)]

    one = ("sub-01", ["sub-01.ome.zarr", "sub-01_bias.ome.zarr"])
    two = ("sub-02", ["sub-02_n4.ome.zarr", "sub-02_bias.ome.zarr"])
    assert found(outdir) == [one, two]
    assert found(outdir / "sub-02") == [two]
    volume = outdir / "sub-02" / "sub-02_n4.ome.zarr"
    assert found(volume) == [("sub-02_n4", two[1][:1])]
    assert found(pack(volume)) == [("sub-02_n4", ["sub-02_n4.ozx"])]
    (outdir / "sub-02" / "sub-02_n4.ozx").unlink()
    monkeypatch.chdir(outdir / "sub-01")
    assert found(Path()) == [one]
    assert find_subjects(outdir)[0].reports == [outdir / "sub-01" / "sub-01_report.html"]


def test_what_cannot_be_viewed_is_named(outdir):
    for path, message in (
        (outdir / "none", "is neither a folder nor a store"),
        (outdir / "secret", "is neither a folder nor a store"),
        (outdir / "pipeline_info", "does not hold a store"),
    ):
        with refused(path, message, "--outdir", error=InputError):
            find_subjects(path)
    (outdir / "sub-02" / "sub-02_bias.ome.zarr").resolve().rename(outdir.parent / "moved")
    with refused("sub-02_bias.ome.zarr", error=InputError):
        find_subjects(outdir)


def test_through_ssh_the_ports_are_forwarded():
    addresses = ["http://localhost:81/t", "http://localhost:82/v/a/", "http://localhost:82/v/b/"]
    assert forwarding_lines("", addresses) == []
    (line,) = forwarding_lines("10.0.0.1 5 10.0.0.2 22", addresses)
    assert " ssh -N -L 81:localhost:81 -L 82:localhost:82 " in line
    assert line.endswith("@10.0.0.2")
    assert "-p 2222" in forwarding_lines("10.0.0.1 5 10.0.0.2 2222", addresses)[0]


def test_the_command_serves_until_it_is_interrupted(outdir, project):
    shown = subprocess.Popen(
        [sys.executable, project / "bin" / "view.py", outdir],
        env={**os.environ, **python_path(), "SSH_CONNECTION": "10.0.0.1 5 10.0.0.2 22"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Tests run in the background, and their children, ignore SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert shown.stdout is not None
    try:
        lines = []
        while not lines or lines[-1] != "Press Ctrl-C to stop.\n":
            lines.append(shown.stdout.readline())
            assert lines[-1], lines
        words = dict(line.rstrip().split(": ", 1) for line in lines if ": " in line)
        assert words.keys() >= {"sub-01", "report", "sub-02", "First, on your own computer"}
        with urllib.request.urlopen(words["report"]) as page:
            assert page.read() == b"<p>good"
        with urllib.request.urlopen(f"{words['sub-01']}/sub-01.ome.zarr/zarr.json") as group:
            assert "multiscales" in json.load(group)["attributes"]["ome"]
    finally:
        shown.send_signal(signal.SIGINT)
        _, errors = shown.communicate(timeout=60)
    assert (shown.returncode, errors) == (0, "")


def test_a_version_that_neuroglancer_does_not_show_is_noted(outdir):
    group = outdir / "sub-01" / "sub-01.ome.zarr" / "zarr.json"
    stated = json.loads(group.read_text())
    axes = stated["attributes"]["ome"]["multiscales"][0].pop("axes")
    stated["attributes"]["ome"]["version"] = "0.6"
    system = {"name": "own", "axes": axes}
    stated["attributes"]["ome"]["multiscales"][0]["coordinateSystems"] = [system]
    for dataset in stated["attributes"]["ome"]["multiscales"][0]["datasets"]:
        for part in dataset["coordinateTransformations"]:
            part |= {"input": {"path": dataset["path"]}, "output": {"name": "own"}}
        dataset["coordinateTransformations"] = dataset["coordinateTransformations"][:1]
    group.write_text(json.dumps(stated))
    (subject, _) = find_subjects(outdir)
    with ResultsServer(subject.files_by_name, 0) as server:
        *_, note = _show_subject(subject, None, server)
    assert note.startswith("sub-01.ome.zarr is OME-Zarr 0.6, which neuroglancer 2.41 does not show")
