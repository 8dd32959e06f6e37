"""A killed step leaves its output as it was, and the next run of it clears up."""

import subprocess
import sys
import time

import pytest
from runs import checksums, partial_files, waited


@pytest.mark.fault
def test_a_step_is_killed_while_it_writes_an_output_again(project, phantom, tmp_path):
    given = [sys.executable, project / "bin" / "pyramid.py", phantom / "truth" / "tissue.ome.zarr"]
    given += [tmp_path / "out" / "a.ome.zarr", "--overwrite"]
    subprocess.run(given, check=True, capture_output=True)
    before = checksums(tmp_path)

    def killed() -> bool:
        """Kill the step as it writes; False where it was done before that was seen."""
        old = {*partial_files(tmp_path)}
        with subprocess.Popen(given, stderr=subprocess.DEVNULL) as step:
            while step.poll() is None and {*partial_files(tmp_path)} <= old:
                time.sleep(0.001)
            step.kill()
        return not {*partial_files(tmp_path)} <= old

    for _ in range(2):
        waited(killed, "an unfinished output of a killed step")
        assert checksums(tmp_path) == before
    subprocess.run(given, check=True, capture_output=True)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a.ome.zarr"]
    assert checksums(tmp_path) == before
