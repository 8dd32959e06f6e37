include { resourcesOf } from '../lib/functions'

process PHANTOM {
    tag "${meta.id}"
    label 'process_medium'

    input:
    val meta
    val code

    output:
    tuple(val(meta), path('subject/mosaics'), path('subject/truth'), emit: subject)

    script:
    // N4 compares with the truth voxel by voxel, so both need the same grid.
    def truth = "${params.resolution}".isNumber() ? "--truth_resolution ${params.resolution}" : ''
    """
    phantom.py subject ${truth} --overwrite ${resourcesOf(task)}
    """

    stub:
    """
    mkdir -p subject/truth subject/mosaics/section_01.ome.zarr subject/mosaics/section_02.ome.zarr
    """
}
