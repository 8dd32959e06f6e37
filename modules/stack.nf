process STACK {
    tag "${meta.id}"
    label 'process_medium'

    input:
    tuple val(meta), path(sections, stageAs: 'input/*'), val(flags)
    val code

    output:
    tuple(val(meta), path("${meta.id}_stack.ome.zarr"), emit: volume)
    tuple(val(meta), path("${meta.id}_displacements.csv"), emit: displacements)
    tuple(val(meta), path('stack_{metrics.json,preview.npz}'), emit: record)

    script:
    """
    stack.py '${meta.id}_stack.ome.zarr' input/* ${flags} --overwrite \\
        --metrics stack_metrics.json --preview stack_preview.npz \\
        --displacements '${meta.id}_displacements.csv' --workers ${task.cpus} --memory '${task.memory}'
    """

    stub:
    """
    mkdir '${meta.id}_stack.ome.zarr'
    touch '${meta.id}_displacements.csv' stack_metrics.json stack_preview.npz
    """
}
