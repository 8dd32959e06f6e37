include { switched } from '../lib/launch'

process RESAMPLE {
    tag "${meta.id}:${meta.section}"
    label 'process_low'
    label 'gpu_slot'
    // A volume is a result where no step follows.
    publishDir { "${params.outdir}/${meta.id}" }, mode: params.publish_dir_mode, failOnError: true, overwrite: true, pattern: '*.ome.zarr', enabled: params.publish_dir_mode != null, saveAs: { name -> meta.kind == 'volume' && switched('skip_n4') && switched('skip_pyramid') ? name : null }
    maxForks(((params.gpu_count ?: 0) as Integer) * ((params.gpu_slots ?: 1) as Integer))
    // Here and not in conf/: a plain value in a config does not see what a -c config sets.
    publishDir { "${params.outdir}/${meta.id}/profiles" }, mode: params.publish_dir_mode, failOnError: true, overwrite: true, enabled: params.publish_dir_mode != null && workflow.profile.contains('profile_gpu'), pattern: '*.nsys-rep'
    publishDir { "${params.outdir}/${meta.id}/metrics" }, mode: params.publish_dir_mode, failOnError: true, overwrite: true, enabled: params.publish_dir_mode != null, pattern: '*_metrics.json'

    input:
    tuple val(meta), path(source, stageAs: 'input/*'), val(settings)
    val code

    output:
    tuple val(meta), path("${meta.section}.ome.zarr"), emit: image
    tuple val(meta), path('*_metrics.json'), emit: record
    path '*.nsys-rep', emit: profile, optional: true
    path 'versions.yml', emit: versions

    script:
    def profiler = task.ext.profiler ? "${task.ext.profiler} --output='${meta.section}_resample'" : ''
    """
    cat > settings.json <<'END_SETTINGS'
    ${settings}
    END_SETTINGS
    ${profiler} resample.py ${source} '${meta.section}.ome.zarr' --settings settings.json \\
        --metrics '${meta.section}_resample_metrics.json' --workers ${task.cpus} --memory '${task.memory}'
    versions.py '${task.process}' > versions.yml
    """

    stub:
    """
    mkdir '${meta.section}.ome.zarr'
    touch '${meta.section}_resample_metrics.json' versions.yml
    """
}
