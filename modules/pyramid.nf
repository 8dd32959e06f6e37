include { recordsOf ; resourcesOf ; stemOf ; tagOf ; volumeOf } from '../lib/functions'

process PYRAMID {
    tag "${tagOf(meta)}"
    label 'process_medium'

    input:
    tuple val(meta), path(volume, stageAs: 'input/*'), val(flags)
    val code

    output:
    tuple(val(meta), path("${volumeOf(meta)}"), emit: image)
    tuple(val(meta), path('*pyramid_{metrics.json,preview.npz}'), emit: record)

    script:
    // A header is staged before the file with its voxels.
    def image = [volume].flatten()[0]
    """
    pyramid.py ${image} '${volumeOf(meta)}' ${flags} --overwrite ${recordsOf(meta, 'pyramid')} ${resourcesOf(task)}
    """

    stub:
    def name = stemOf(meta, 'pyramid')
    """
    mkdir '${volumeOf(meta)}'
    touch '${name}_metrics.json' '${name}_preview.npz'
    """
}
