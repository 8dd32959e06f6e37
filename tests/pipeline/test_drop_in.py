"""Two steps, all of octane, or its cohort page in another workflow."""

import json

import pytest
from runs import voxels

STEPS = """
include { RESAMPLE } from './octane/modules/resample'
include { N4 } from './octane/modules/n4'

workflow {
    main:
    volume = channel.of([[id: 'brain', section: 'whole', kind: 'volume'], file(params.volume)])
    RESAMPLE(volume.map { meta, image -> [meta, image, '--resolution 20 --layout volume'] }, '')
    flags = '--n4_shrink_factor 2 --n4_iterations 3'
    N4(RESAMPLE.out.image.map { meta, image -> [meta, image, flags, [], [], []] }, '')
    N4.out.image.view { _meta, image -> "CORRECTED ${image}" }
}
"""

OWN = """
params.volume = null
params.twins = null
process.cpus = 1
trace {
    enabled = true
    overwrite = true
    file = 'out/pipeline_info/trace.txt'
}
"""


def test_two_steps_in_a_workflow_of_their_own(succeeding, host, phantom, tmp_path):
    tissue = phantom / "truth" / "tissue.ome.zarr"
    code = host(STEPS, OWN)
    run = succeeding(tmp_path, "--volume", tissue, code=code, give_outdir=False)
    assert run.tasks("COMPLETED") == ["N4 (brain:whole)", "RESAMPLE (brain:whole)"]
    corrected = run.output.split("CORRECTED ")[1].splitlines()[0]
    assert voxels(corrected).shape == tuple(round(n / 2) for n in voxels(tissue).shape)
    # octane publishes nothing in a workflow without its parameters.
    assert sorted(path.name for path in run.outdir.iterdir()) == ["pipeline_info"]
    assert not (tmp_path / "null").exists()


WHOLE = """
include { OCTANE } from './octane/main'

workflow {
    main:
    OCTANE(channel.of([[id: 'brain'], file(params.input), []]))
    OCTANE.out.volume.view { _meta, image -> "VOLUME ${image}" }
}
"""


def test_the_whole_workflow_in_another(succeeding, host, phantom, tmp_path):
    code = host(WHOLE, "includeConfig 'octane/nextflow.config'\n")
    run = succeeding(tmp_path, "-stub", "--input", phantom / "mosaics", code=code)
    steps = {"PREFLIGHT", "STITCH", "STACK", "N4", "PYRAMID", "REPORT"}
    assert run.processes("COMPLETED") == steps
    assert run.output.split("VOLUME ")[1].splitlines()[0].endswith("/brain.ome.zarr")


PUBLISHED = """
params.outdir = null
params.publish_dir_mode = 'symlink'
includeConfig 'octane/conf/modules.config'
"""

COHORT = """
include { COHORT_REPORT } from './octane/modules/cohort_report'

workflow {
    main:
    twins = channel.fromPath("${params.twins}/*.json").toSortedList { a, b -> a.name <=> b.name }
    COHORT_REPORT(twins, ['01', 'the second'], '')
}
"""


@pytest.mark.soak
def test_the_page_of_a_cohort_is_made_again_when_a_subject_changed(succeeding, host, tmp_path):
    code = host(COHORT, OWN + PUBLISHED)
    twins = tmp_path / "twins"
    twins.mkdir()
    page = tmp_path / "out" / "cohort_report.html"
    for seconds, shown in ((60.0, "1 min"), (7200.0, "2 h 0 min")):
        for subject in ("01", "the second"):
            told = {"subject": subject, "state": "good", "verdict": "Good."}
            told["summary"] = {"sections": 3, "seconds": seconds}
            (twins / f"{subject}_report.json").write_text(json.dumps(told), encoding="utf-8")
        run = succeeding(tmp_path, "--twins", twins, "-resume", code=code)
        assert run.tasks("COMPLETED") == ["COHORT_REPORT (2 subjects)"]
        assert 'href="the%20second/the%20second_report.html"' in page.read_text(encoding="utf-8")
        assert shown in page.read_text(encoding="utf-8")
