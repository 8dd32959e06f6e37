include { recordsOf ; resourcesOf ; stemOf ; tagOf } from '../lib/functions'

process STITCH {
    tag "${tagOf(meta)}"
    label 'process_low'

    input:
    tuple(
        val(meta),
        path(mosaic, stageAs: 'input/*'),
        val(flags),
        path(positions),
        path(flatField, stageAs: 'flat_field/*'),
        path(reference, stageAs: 'reference/*'),
        path(gains, stageAs: 'gains/*'),
    )
    val code

    output:
    tuple(val(meta), path("${meta.section}.ome.zarr"), emit: image)
    tuple(val(meta), path('*_{metrics.json,preview.npz}'), emit: record)
    tuple(val(meta), path('*_flat_field.tif'), emit: flat_field, optional: true)

    script:
    def flatFieldFlag = flatField ? "--stitch_flat_field ${flatField}" : ''
    def gainFlag = gains ? "--stitch_gain ${gains}" : ''
    def positionsFlag = positions ? "--positions ${positions}" : ''
    def referenceFlag = reference ? "--reference ${reference}" : ''
    """
    stitch.py ${mosaic} '${meta.section}.ome.zarr' ${flags} --overwrite \\
        ${positionsFlag} ${flatFieldFlag} ${gainFlag} ${referenceFlag} \\
        --save_flat_field '${stemOf(meta)}_flat_field.tif' ${recordsOf(meta, 'stitch')} ${resourcesOf(task)}
    """

    stub:
    """
    mkdir '${meta.section}.ome.zarr'
    touch '${stemOf(meta, 'stitch')}_metrics.json' '${stemOf(meta, 'stitch')}_preview.npz'
    """
}
