process STITCH {
    tag "${meta.id}:${meta.section}"
    label 'process_low'
    // Here and not in conf/: a plain value in a config does not see what a -c config sets.
    publishDir { "${params.outdir}/${meta.id}/metrics" }, mode: params.publish_dir_mode, failOnError: true, overwrite: true, enabled: params.publish_dir_mode != null, pattern: '*_metrics.json'

    input:
    tuple val(meta), path(mosaic, stageAs: 'input/*'), val(settings)
    path positions
    val code

    output:
    tuple val(meta), path("${meta.section}.ome.zarr"), emit: section
    tuple val(meta), path('*_{metrics.json,preview.npz}'), emit: record
    path 'versions.yml', emit: versions

    script:
    def table = positions ? "--positions ${positions}" : ''
    """
    cat > settings.json <<'END_SETTINGS'
    ${settings}
    END_SETTINGS
    stitch.py ${mosaic} '${meta.section}.ome.zarr' --settings settings.json ${table} \\
        --metrics '${meta.section}_stitch_metrics.json' --preview '${meta.section}_stitch_preview.npz' \\
        --workers ${task.cpus} --memory '${task.memory}'
    versions.py '${task.process}' > versions.yml
    """

    stub:
    """
    mkdir '${meta.section}.ome.zarr'
    touch '${meta.section}_stitch_metrics.json' '${meta.section}_stitch_preview.npz' versions.yml
    """
}
