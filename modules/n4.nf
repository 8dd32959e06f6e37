include { switched } from '../lib/launch'

process N4 {
    tag "${meta.id}"
    label 'process_high'
    label 'gpu_slot'
    maxForks(((params.gpu_count ?: 0) as Integer) * ((params.gpu_slots ?: 1) as Integer))
    // Here and not in conf/: a plain value in a config does not see what a -c config sets.
    publishDir { "${params.outdir}/${meta.id}" }, mode: params.publish_dir_mode, failOnError: true, overwrite: true, enabled: params.publish_dir_mode != null, pattern: '*.ome.zarr', saveAs: { name -> switched('skip_pyramid') || name.endsWith('_bias.ome.zarr') ? name : null }
    publishDir { "${params.outdir}/${meta.id}/profiles" }, mode: params.publish_dir_mode, failOnError: true, overwrite: true, enabled: params.publish_dir_mode != null && workflow.profile.contains('profile_gpu'), pattern: '*.nsys-rep'
    publishDir { "${params.outdir}/${meta.id}/metrics" }, mode: params.publish_dir_mode, failOnError: true, overwrite: true, enabled: params.publish_dir_mode != null, pattern: '*_metrics.json'

    input:
    tuple val(meta), path(volume, stageAs: 'input/*'), val(settings), path(truth)
    path mask, stageAs: 'mask/*'
    val code

    output:
    tuple val(meta), path("${meta.id}_n4.ome.zarr"), emit: volume
    tuple val(meta), path("${meta.id}_bias.ome.zarr"), emit: field, optional: true
    tuple val(meta), path('n4_{metrics.json,preview.npz}'), emit: record
    path '*.nsys-rep', emit: profile, optional: true
    path 'versions.yml', emit: versions

    script:
    def args = task.ext.args ?: ''
    def profiler = task.ext.profiler ? "${task.ext.profiler} --output='${meta.id}_n4'" : ''
    def field = switched('save_bias_field') ? "--save-bias-field '${meta.id}_bias.ome.zarr'" : ''
    def masked = mask ? "--mask ${mask}" : ''
    def known = truth ? "--truth ${truth}" : ''
    """
    cat > settings.json <<'END_SETTINGS'
    ${settings}
    END_SETTINGS
    ${profiler} n4.py ${volume} '${meta.id}_n4.ome.zarr' --settings settings.json ${masked} ${known} ${field} ${args} \\
        --metrics n4_metrics.json --preview n4_preview.npz --workers ${task.cpus} --memory '${task.memory}'
    versions.py '${task.process}' > versions.yml
    """

    stub:
    """
    mkdir '${meta.id}_n4.ome.zarr'
    touch n4_metrics.json n4_preview.npz versions.yml
    """
}
