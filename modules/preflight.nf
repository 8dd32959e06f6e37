process PREFLIGHT {
    // Nextflow writes the tag unescaped into its HTML, before invalid names are rejected.
    tag "${subjects.size() == 1 ? subjects[0].meta.id.replaceAll(/[<>&"]/, '_') : "${subjects.size()} subjects"}"
    label 'process_single'
    // Always, and where Nextflow runs: it sees what changed in the inputs, which Nextflow's cache does not.
    executor 'local'
    cache false
    // No scratch here, so that a missing scratch folder is reported, not created.
    scratch false

    input:
    // Links inside inputs are staged again: a container mounts only the locations of staged files.
    tuple(
        val(subjects),
        path(inputs, stageAs: 'input/?/*'),
        path(beside, stageAs: 'beside/?/*'),
        path(linked, stageAs: 'linked/?/*'),
        path(samplesheet, stageAs: 'sheet/*'),
    )
    // The request comes by stdin, to keep all parameters out of Nextflow's error messages.
    stdin
    val code

    output:
    tuple(val(subjects), path('plans.json'), emit: plans)

    script:
    def sheet = samplesheet ? "--samplesheet ${samplesheet}" : ''
    """
    preflight.py input plans.json --request /dev/stdin --beside beside ${sheet}
    """

    stub:
    """
    preflight.py input plans.json --request /dev/stdin --beside beside --stub
    """
}
