"""Two runs at the same time into one output."""

import pytest
from runs import last_words

pytestmark = pytest.mark.fault


def test_into_one_output(start_nextflow, nextflow, volume, tmp_path):
    out = tmp_path / "out"
    run = start_nextflow(tmp_path / "first", *volume, "-stub", outdir=out)
    run.says("Submitted process")
    with run.paused():
        second = nextflow(tmp_path / "second", *volume, outdir=out)
    assert second.code == 1
    words = last_words(second.output)
    assert f"{out} is being written by the run" in words
    assert f"launched in {tmp_path / 'first'}" in words
    assert "--outdir" in words
    assert "Submitted" not in second.output
    assert run.wait().code == 0, run.output
    # The records are those of the first run, from their first line on.
    trace = (out / "pipeline_info" / "trace.txt").read_text(encoding="utf-8")
    assert trace.startswith("task_id\t")
    assert trace.count("COMPLETED") == 3
    # Its name, process and host change from run to run.
