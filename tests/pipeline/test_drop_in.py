"""RESAMPLE and N4, or all of octane, included in somebody else's workflow."""

import zarr

MAIN = """
include { RESAMPLE } from './octane/modules/resample'
include { N4 } from './octane/modules/n4'

workflow {
    main:
    volume = channel.of([[id: 'brain', section: 'whole', kind: 'volume'], file(params.volume)])
    RESAMPLE(volume.map { meta, image -> [meta, image, '--resolution 20 --layout volume'] }, '')
    flags = '--shrink-factor 2 --iterations 3'
    N4(RESAMPLE.out.image.map { meta, image -> [meta, image, flags, [], []] }, '')
    N4.out.volume.view { _meta, image -> "CORRECTED ${image}" }
}
"""

CONFIG = """
params.volume = null
env.PATH = "${projectDir}/octane/bin:${System.getenv('PATH')}"
process {
    cpus = 1
    memory = 2.GB
}
trace {
    enabled = true
    file = 'out/pipeline_info/trace.txt'
}
"""


def shape_of(path) -> tuple[int, ...]:
    """Voxels of a store's finest level."""
    return zarr.open_array(path, path="0", mode="r").shape


def test_two_steps_in_a_workflow_of_their_own(nextflow, project, phantom, tmp_path):
    host = tmp_path / "host"
    host.mkdir()
    (host / "octane").symlink_to(project)
    (host / "main.nf").write_text(MAIN, encoding="utf-8")
    (host / "nextflow.config").write_text(CONFIG, encoding="utf-8")
    run = nextflow(
        tmp_path,
        *("--volume", phantom / "truth" / "tissue.ome.zarr"),
        code=host,
        give_outdir=False,
    )
    assert run.code == 0, run.output
    assert run.tasks("COMPLETED") == ["N4 (brain)", "RESAMPLE (brain:whole)"]
    corrected = run.output.split("CORRECTED ")[1].splitlines()[0]
    before = shape_of(phantom / "truth" / "tissue.ome.zarr")
    assert shape_of(corrected) == tuple(round(n / 2) for n in before)
    # A workflow that has none of octane's parameters publishes in its own way.
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

WHOLE_CONFIG = """
includeConfig 'octane/nextflow.config'
env.PATH = "${projectDir}/octane/bin:${System.getenv('PATH')}"
"""


def test_the_whole_workflow_in_another(nextflow, project, phantom, tmp_path):
    host = tmp_path / "host"
    host.mkdir()
    (host / "octane").symlink_to(project)
    (host / "main.nf").write_text(WHOLE, encoding="utf-8")
    (host / "nextflow.config").write_text(WHOLE_CONFIG, encoding="utf-8")
    run = nextflow(tmp_path, "-stub", "--input", phantom / "mosaics", code=host)
    assert run.code == 0, run.output
    steps = {"PREFLIGHT", "RESAMPLE", "STITCH", "STACK", "N4", "PYRAMID", "REPORT"}
    assert run.processes("COMPLETED") == steps - {"RESAMPLE"}
    assert run.output.split("VOLUME ")[1].splitlines()[0].endswith("/brain.ome.zarr")
