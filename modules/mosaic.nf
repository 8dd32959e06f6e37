include { resourcesOf ; stemOf ; tagOf } from '../lib/functions'

process MOSAIC {
    tag "${tagOf(meta)}"
    label 'process_low'

    input:
    // The list names the files as they are staged.
    tuple(val(meta), path(tiles, stageAs: 'tiles/?/*'), val(flags), path(list, stageAs: 'list/*'))
    val code

    output:
    tuple(val(meta), path("${meta.section}.ome.zarr"), emit: image)
    tuple(val(meta), path('*_metrics.json'), emit: record)

    script:
    """
    mosaic.py tiles . --tile_list ${list} ${flags} --overwrite \\
        --metrics '${stemOf(meta, 'mosaic')}_metrics.json' ${resourcesOf(task)}
    """

    stub:
    """
    mkdir '${meta.section}.ome.zarr'
    touch '${stemOf(meta, 'mosaic')}_metrics.json'
    """
}
