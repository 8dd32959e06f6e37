process PHANTOM {
    tag "${meta.id}"
    label 'process_medium'
    // PREFLIGHT, which looks whether there is a scratch folder, comes after it.
    scratch false

    input:
    val meta
    val settings
    val code

    output:
    tuple val(meta), path('subject/mosaics'), path('subject/truth'), emit: subject
    path 'versions.yml', emit: versions

    script:
    """
    cat > settings.json <<'END_SETTINGS'
    ${settings}
    END_SETTINGS
    phantom.py subject --settings settings.json --workers ${task.cpus} --memory '${task.memory}'
    versions.py '${task.process}' > versions.yml
    """

    stub:
    """
    mkdir -p subject/truth subject/mosaics/section_01.ome.zarr subject/mosaics/section_02.ome.zarr
    touch versions.yml
    """
}
