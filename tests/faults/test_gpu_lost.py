"""A GPU that fails during a task, simulated by the exit code of its command."""

import pytest
from runs import checksums, last_words

pytestmark = pytest.mark.fault

FAILED = 'echo "error: The GPU GPU-1 failed; run again." > .command.err; exit 104'


def commands(run):
    """Command scripts of N4's attempts, in their order."""
    found = [(run.folder / "work").glob(f"{digest}*") for _, digest in run.tries("N4", "hash")]
    return [(next(folders) / ".command.sh").read_text(encoding="utf-8") for folders in found]


@pytest.mark.soak
@pytest.mark.parametrize("backend", ["auto", "gpu"])
def test_a_gpu_fails_under_a_task(nextflow, volume, undisturbed, tmp_path, backend):
    # Without a GPU here, the third attempt with --backend gpu would fail for lack of one.
    failing = "true" if backend == "gpu" else "task.attempt < 3"
    (tmp_path / "fault.config").write_text(
        f"process {{ withName: N4 {{ beforeScript = {{ {failing} ? '{FAILED}' : '' }} }} }}\n",
        encoding="utf-8",
    )
    run = nextflow(tmp_path, *volume, "-c", "fault.config", "--backend", backend)
    ends = [status for (status,) in run.tries("N4")]
    if backend == "auto":
        assert run.code == 0, run.output
        assert ends == ["FAILED", "FAILED", "COMPLETED"]
        assert ["--backend cpu" in text for text in commands(run)] == [False, False, True]
        assert checksums(run.outdir) == undisturbed.sums
    else:
        assert run.code == 1
        assert ends == ["FAILED"] * 3
        assert ["--backend cpu" in text for text in commands(run)] == [False] * 3
        assert "The GPU GPU-1 failed" in last_words(run.output)
        assert checksums(run.outdir) == {}
