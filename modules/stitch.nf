process STITCH {
    tag "${meta.id}:${meta.section}"
    label 'process_low'

    input:
    tuple(
        val(meta),
        path(mosaic, stageAs: 'input/*'),
        val(flags),
        path(positions),
        path(flatField, stageAs: 'flat_field/*'),
    )
    val code

    output:
    tuple(val(meta), path("${meta.section}.ome.zarr"), emit: section)
    tuple(val(meta), path('*_{metrics.json,preview.npz}'), emit: record)
    tuple(val(meta), path('*_flat_field.tif'), emit: flat_field, optional: true)

    script:
    def flat = flatField ? "--stitch_flat_field ${flatField}" : ''
    def table = positions ? "--positions ${positions}" : ''
    """
    stitch.py ${mosaic} '${meta.section}.ome.zarr' ${flags} --overwrite ${table} ${flat} \\
        --metrics '${meta.section}_stitch_metrics.json' --preview '${meta.section}_stitch_preview.npz' \\
        --save_flat_field '${meta.section}_flat_field.tif' --workers ${task.cpus} --memory '${task.memory}'
    """

    stub:
    """
    mkdir '${meta.section}.ome.zarr'
    touch '${meta.section}_stitch_metrics.json' '${meta.section}_stitch_preview.npz'
    """
}
