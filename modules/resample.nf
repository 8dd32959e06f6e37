include { deviceOf ; resourcesOf ; stemOf ; tagOf } from '../lib/functions'

process RESAMPLE {
    tag "${tagOf(meta)}"
    label 'process_low'
    label 'gpu_slot'
    // Nextflow evaluates this before PREFLIGHT rejects values that are not integers.
    maxForks(
        ["${params.gpu_count}", "${params.gpu_slots}"].every { text -> text.isInteger() }
            ? (params.gpu_count as int) * (params.gpu_slots as int)
            : 0
    )

    input:
    tuple val(meta), path(source, stageAs: 'input/*'), val(flags)
    val code

    output:
    tuple(val(meta), path("${meta.section}.ome.zarr"), emit: image)
    tuple(val(meta), path('*_{metrics.json,preview.npz}'), emit: record)
    path('*.nsys-rep', emit: profile, optional: true)

    script:
    // A header is staged before the file with its voxels.
    def image = [source].flatten()[0]
    def preview = meta.kind == 'volume' ? "--preview '${stemOf(meta, 'resample')}_preview.npz'" : ''
    def profiler = task.ext.profiler ? "${task.ext.profiler} --output='${stemOf(meta, 'resample')}'" : ''
    """
    ${profiler} resample.py ${image} '${meta.section}.ome.zarr' ${flags} ${deviceOf(task, flags)} --overwrite \\
        --metrics '${stemOf(meta, 'resample')}_metrics.json' ${preview} ${resourcesOf(task)}
    """

    stub:
    """
    mkdir '${meta.section}.ome.zarr'
    touch '${stemOf(meta, 'resample')}_metrics.json'
    """
}
