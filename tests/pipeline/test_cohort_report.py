"""The page over all subjects of a run: made of several, made anew when one of them changed."""

import json

import pytest

pytestmark = pytest.mark.slow

MAIN = """
include { COHORT_REPORT } from './octane/modules/cohort_report'
include { codeVersion } from './octane/lib/functions'

workflow {
    main:
    twins = channel.fromPath("${params.twins}/*.json").map { file -> [[id: file.simpleName], file] }
    pages = twins.map { _meta, twin -> twin }.toSortedList { a, b -> a.name <=> b.name }
    COHORT_REPORT(pages.filter { all -> all.size() > 1 }, codeVersion('cohort_report'))
}
"""

CONFIG = """
params.twins = null
params.outdir = null
params.publish_dir_mode = 'symlink'
env.PATH = "${projectDir}/octane/bin:${System.getenv('PATH')}"
trace {
    enabled = true
    overwrite = true
    file = 'out/pipeline_info/trace.txt'
}
"""


def test_the_page_of_a_cohort(nextflow, project, tmp_path):
    host, twins = tmp_path / "host", tmp_path / "twins"
    host.mkdir()
    twins.mkdir()
    (host / "octane").symlink_to(project)
    (host / "main.nf").write_text(MAIN, encoding="utf-8")
    (host / "nextflow.config").write_text(CONFIG, encoding="utf-8")

    def write(subject, seconds):
        told = {"subject": subject, "summary": {"sections": 3, "seconds": seconds}}
        (twins / f"{subject}_report.json").write_text(json.dumps(told), encoding="utf-8")

    def run():
        done = nextflow(tmp_path, "--twins", twins, "-resume", code=host)
        assert done.code == 0, done.output
        return done

    write("01", 60.0)
    assert run().tasks() == []
    assert not (tmp_path / "out" / "cohort_report.html").exists()
    write("the second", 120.0)
    assert run().tasks("COMPLETED") == ["COHORT_REPORT (2 subjects)"]
    page = tmp_path / "out" / "cohort_report.html"
    assert 'href="the%20second/the%20second_report.html"' in page.read_text(encoding="utf-8")
    assert run().tasks("CACHED") == ["COHORT_REPORT (2 subjects)"]
    write("the second", 7200.0)
    assert run().tasks("COMPLETED") == ["COHORT_REPORT (2 subjects)"]
    assert "2 h 0 min" in page.read_text(encoding="utf-8")


WHOLE = """
include { OCTANE } from './octane/main'

workflow {
    main:
    mosaics = file(params.input)
    OCTANE(channel.of([[id: '01'], mosaics, []], [[id: 'the second'], mosaics, []]))
}
"""


def test_all_of_octane_on_two_subjects_ends_with_their_page(nextflow, project, phantom, tmp_path):
    host = tmp_path / "host"
    host.mkdir()
    (host / "octane").symlink_to(project)
    (host / "main.nf").write_text(WHOLE, encoding="utf-8")
    included = f"includeConfig '{project}/nextflow.config'\n"
    (host / "nextflow.config").write_text(included, encoding="utf-8")
    run = nextflow(tmp_path, "-stub", "--input", phantom / "mosaics", code=host)
    assert run.code == 0, run.output
    assert len([task for task in run.tasks() if task.startswith("REPORT")]) == 2
    assert "COHORT_REPORT (2 subjects)" in run.tasks()
    assert (run.outdir / "cohort_report.html").exists()
