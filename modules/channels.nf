include { recordsOf ; volumeOf } from '../lib/functions'

process CHANNELS {
    tag "${meta.id}"
    label 'process_low'

    input:
    tuple val(meta), path(volumes, stageAs: 'input/?/*'), val(flags)
    val code

    output:
    tuple(val(meta), path("${volumeOf(meta)}"), emit: image)
    tuple(val(meta), path('channels_{metrics.json,preview.npz}'), emit: record)

    script:
    """
    channels.py '${volumeOf(meta)}' ${volumes} ${flags} --overwrite ${recordsOf(meta, 'channels')}
    """

    stub:
    """
    mkdir '${volumeOf(meta)}'
    touch channels_metrics.json channels_preview.npz
    """
}
