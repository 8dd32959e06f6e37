process STACK {
    tag "${meta.id}"
    label 'process_medium'

    input:
    tuple val(meta), path(sections, stageAs: 'input/*'), val(flags), path(displacements, stageAs: 'given/*')
    val code

    output:
    tuple(val(meta), path("${meta.id}_stack.ome.zarr"), emit: volume)
    tuple(val(meta), path("${meta.id}_displacements.csv"), emit: displacements)
    tuple(val(meta), path('stack_{metrics.json,preview.npz}'), emit: record)

    script:
    def table = displacements ? "--displacements ${displacements}" : ''
    """
    stack.py '${meta.id}_stack.ome.zarr' input/* ${flags} --overwrite ${table} \\
        --metrics stack_metrics.json --preview stack_preview.npz \\
        --save_displacements '${meta.id}_displacements.csv' --workers ${task.cpus} --memory '${task.memory}'
    """

    stub:
    """
    mkdir '${meta.id}_stack.ome.zarr'
    touch '${meta.id}_displacements.csv' stack_metrics.json stack_preview.npz
    """
}
