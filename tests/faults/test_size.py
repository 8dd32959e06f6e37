"""A run of more subjects than any study has."""

import pytest

pytestmark = pytest.mark.fault

SUBJECTS = 2000


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_cohort_of_2000_subjects(start_nextflow, tmp_path):
    rows = ["subject,input"]
    for number in range(SUBJECTS):
        store = tmp_path / "data" / f"sub-{number:04}.ome.zarr"
        store.mkdir(parents=True)
        (store / "zarr.json").write_text("{}", encoding="utf-8")
        rows.append(f"sub-{number:04},{store}")
    (tmp_path / "cohort.csv").write_text("\n".join(rows), encoding="utf-8")
    (tmp_path / "small.config").write_text(
        "executor { cpus = 16; memory = 1.TB }\nprocess { cpus = 1; memory = 1.MB }\n"
        + "".join(f"{name}.enabled = false\n" for name in ("trace", "timeline", "report", "dag")),
        encoding="utf-8",
    )
    run = start_nextflow(
        *(tmp_path, "-stub", "-c", "small.config", "--samplesheet", "cohort.csv"),
    )
    assert run.process.wait(3500) == 0, run.output
    # One PREFLIGHT task checks all subjects, and one page shows all.
    assert "PREFLIGHT (run)" in run.output
    assert "COHORT_REPORT (2000 subjects)" in run.output
    assert len(list(run.outdir.glob("*/*_report.html"))) == SUBJECTS
    assert len(list(run.outdir.glob("*/sub-*.ome.zarr"))) == SUBJECTS
