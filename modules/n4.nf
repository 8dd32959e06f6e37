include { deviceOf ; recordsOf ; resourcesOf ; stemOf ; tagOf ; volumeOf } from '../lib/functions'

process N4 {
    tag "${tagOf(meta)}"
    label 'process_high'
    label 'gpu_slot'
    // Nextflow evaluates this before PREFLIGHT rejects values that are not integers.
    maxForks(
        ["${params.gpu_count}", "${params.gpu_slots}"].every { text -> text.isInteger() }
            ? (params.gpu_count as int) * (params.gpu_slots as int)
            : 0
    )

    input:
    tuple(
        val(meta),
        path(volume, stageAs: 'input/*'),
        val(flags),
        path(mask, stageAs: 'mask/*'),
        path(truth),
        path(reference, stageAs: 'reference/*'),
    )
    val code

    output:
    tuple(val(meta), path("${volumeOf(meta, 'n4')}"), emit: image)
    tuple(val(meta), path('*_bias.ome.zarr'), emit: field, optional: true)
    tuple(val(meta), path('*n4_{metrics.json,preview.npz}'), emit: record)
    path('*.nsys-rep', emit: profile, optional: true)

    script:
    // A header is staged before the file with its voxels.
    def image = [volume].flatten()[0]
    def args = task.ext.args ?: ''
    def profiler = task.ext.profiler ? "${task.ext.profiler} --output='${meta.id}_${stemOf(meta, 'n4')}'" : ''
    def maskFlag = mask ? "--n4_mask ${[mask].flatten()[0]}" : ''
    def truthFlag = truth ? "--truth ${truth}" : ''
    def referenceFlag = reference ? "--reference ${[reference].flatten()[0]}" : ''
    """
    ${profiler} n4.py ${image} '${volumeOf(meta, 'n4')}' ${flags} ${deviceOf(task, flags)} --overwrite \\
        ${maskFlag} ${truthFlag} ${referenceFlag} ${args} ${recordsOf(meta, 'n4')} ${resourcesOf(task)}
    """

    stub:
    def name = stemOf(meta, 'n4')
    """
    mkdir '${volumeOf(meta, 'n4')}'
    touch '${name}_metrics.json' '${name}_preview.npz'
    """
}
