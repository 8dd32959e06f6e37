"""A killed step leaves its output as it was, and the next run of it clears up."""

import signal
import subprocess
import sys

import pytest
from runs import checksums, partial_files, waited


@pytest.mark.fault
def test_a_step_is_killed_while_it_writes_an_output_again(observed, project, phantom, tmp_path):
    given = [sys.executable, project / "bin" / "pyramid.py", phantom / "truth" / "tissue.ome.zarr"]
    given += [tmp_path / "out" / "a.ome.zarr", "--overwrite"]
    subprocess.run(given, check=True, capture_output=True)
    before = checksums(tmp_path)
    for _ in range(2):
        with subprocess.Popen(given, stderr=subprocess.DEVNULL) as step:
            waited(lambda: partial_files(tmp_path), "an unfinished output")
            step.send_signal(signal.SIGKILL)
        assert len(partial_files(tmp_path / "out")) > 0
        assert checksums(tmp_path) == before
    subprocess.run(given, check=True, capture_output=True)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a.ome.zarr"]
    assert checksums(tmp_path) == before
    observed("killed twice; the old output stayed whole, and the third run left nothing beside it")
