process PYRAMID {
    tag "${meta.id}"
    label 'process_medium'

    input:
    tuple val(meta), path(volume, stageAs: 'input/*'), val(flags)
    val code

    output:
    tuple(val(meta), path("${meta.id}.ome.zarr"), emit: volume)
    tuple(val(meta), path('pyramid_{metrics.json,preview.npz}'), emit: record)

    script:
    // A header is staged before the file with its voxels.
    def image = [volume].flatten()[0]
    """
    pyramid.py ${image} '${meta.id}.ome.zarr' ${flags} --overwrite \\
        --metrics pyramid_metrics.json --preview pyramid_preview.npz \\
        --workers ${task.cpus} --memory '${task.memory}'
    """

    stub:
    """
    mkdir '${meta.id}.ome.zarr'
    touch pyramid_metrics.json pyramid_preview.npz
    """
}
