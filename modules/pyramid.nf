process PYRAMID {
    tag "${meta.id}"
    label 'process_medium'
    // Here and not in conf/: a plain value in a config does not see what a -c config sets.
    publishDir { "${params.outdir}/${meta.id}" }, mode: params.publish_dir_mode, failOnError: true, overwrite: true, enabled: params.publish_dir_mode != null, pattern: '*.ome.zarr'
    publishDir { "${params.outdir}/${meta.id}/metrics" }, mode: params.publish_dir_mode, failOnError: true, overwrite: true, enabled: params.publish_dir_mode != null, pattern: '*_metrics.json'

    input:
    tuple val(meta), path(volume, stageAs: 'input/*'), val(settings)
    val code

    output:
    tuple val(meta), path("${meta.id}.ome.zarr"), emit: volume
    tuple val(meta), path('pyramid_{metrics.json,preview.npz}'), emit: record
    path 'versions.yml', emit: versions

    script:
    """
    cat > settings.json <<'END_SETTINGS'
    ${settings}
    END_SETTINGS
    pyramid.py ${volume} '${meta.id}.ome.zarr' --settings settings.json \\
        --metrics pyramid_metrics.json --preview pyramid_preview.npz \\
        --workers ${task.cpus} --memory '${task.memory}'
    versions.py '${task.process}' > versions.yml
    """

    stub:
    """
    mkdir '${meta.id}.ome.zarr'
    touch pyramid_metrics.json pyramid_preview.npz versions.yml
    """
}
