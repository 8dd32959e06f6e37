include { deviceOf } from '../lib/functions'

process N4 {
    tag "${meta.id}"
    label 'process_high'
    label 'gpu_slot'
    // Nextflow evaluates this before PREFLIGHT rejects values that are not integers.
    maxForks(
        [params.gpu_count ?: 0, params.gpu_slots ?: 1].inject(1) { product, count ->
            product * ("${count}".isInteger() ? count as Integer : 0)
        }
    )

    input:
    tuple val(meta), path(volume, stageAs: 'input/*'), val(flags), path(mask, stageAs: 'mask/*'), path(truth)
    val code

    output:
    tuple(val(meta), path("${meta.id}_n4.ome.zarr"), emit: volume)
    tuple(val(meta), path("${meta.id}_bias.ome.zarr"), emit: field, optional: true)
    tuple(val(meta), path('n4_{metrics.json,preview.npz}'), emit: record)
    path('*.nsys-rep', emit: profile, optional: true)

    script:
    // A header is staged before the file with its voxels.
    def image = [volume].flatten()[0]
    def args = task.ext.args ?: ''
    def profiler = task.ext.profiler ? "${task.ext.profiler} --output='${meta.id}_n4'" : ''
    def masked = mask ? "--n4_mask ${[mask].flatten()[0]}" : ''
    def compared = truth ? "--truth ${truth}" : ''
    // Without a limit the command uses its default.
    def memory = task.memory ? "--memory '${task.memory}'" : ''
    """
    ${profiler} n4.py ${image} '${meta.id}_n4.ome.zarr' ${flags} ${deviceOf(task, flags)} --overwrite \\
        ${masked} ${compared} ${args} --workers ${task.cpus} ${memory} \\
        --metrics n4_metrics.json --preview n4_preview.npz
    """

    stub:
    """
    mkdir '${meta.id}_n4.ome.zarr'
    touch n4_metrics.json n4_preview.npz
    """
}
