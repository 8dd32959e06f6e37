include { switched } from '../lib/launch'

process STACK {
    tag "${meta.id}"
    label 'process_medium'
    // A result only where no step follows.
    publishDir { "${params.outdir}/${meta.id}" }, mode: params.publish_dir_mode, failOnError: true, overwrite: true, pattern: '*.ome.zarr', enabled: params.publish_dir_mode != null, saveAs: { name -> switched('skip_n4') && switched('skip_pyramid') ? name : null }
    // Here and not in conf/: a plain value in a config does not see what a -c config sets.
    publishDir { "${params.outdir}/${meta.id}/metrics" }, mode: params.publish_dir_mode, failOnError: true, overwrite: true, enabled: params.publish_dir_mode != null, pattern: '*_metrics.json'

    input:
    tuple val(meta), path(sections, stageAs: 'input/*'), val(settings)
    val code

    output:
    tuple val(meta), path("${meta.id}_stack.ome.zarr"), emit: volume
    tuple val(meta), path('*_metrics.json'), emit: record
    path 'versions.yml', emit: versions

    script:
    """
    cat > settings.json <<'END_SETTINGS'
    ${settings}
    END_SETTINGS
    stack.py '${meta.id}_stack.ome.zarr' input/* --settings settings.json \\
        --metrics stack_metrics.json --workers ${task.cpus} --memory '${task.memory}'
    versions.py '${task.process}' > versions.yml
    """

    stub:
    """
    mkdir '${meta.id}_stack.ome.zarr'
    touch stack_metrics.json versions.yml
    """
}
