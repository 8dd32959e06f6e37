process PHANTOM {
    // Escaped as in PREFLIGHT.
    tag "${meta.id.replaceAll(/[<>&"]/, '_')}"
    label 'process_medium'
    // PREFLIGHT, which checks the scratch folder, runs later.
    scratch false

    input:
    val meta
    val code

    output:
    tuple(val(meta), path('subject/mosaics'), path('subject/truth'), emit: subject)

    script:
    // N4 compares with the truth voxel by voxel, so both need the same grid.
    def truth = "${params.resolution}".isNumber() ? "--truth_resolution ${params.resolution}" : ''
    // PREFLIGHT refuses any other, and Nextflow would write it unescaped into its report.html.
    def seed = "${params.phantom_seed ?: 1}".isNumber() ? params.phantom_seed ?: 1 : 1
    """
    phantom.py subject --phantom_seed ${seed} ${truth} --overwrite \\
        --workers ${task.cpus} --memory '${task.memory}'
    """

    stub:
    """
    mkdir -p subject/truth subject/mosaics/section_01.ome.zarr subject/mosaics/section_02.ome.zarr
    """
}
