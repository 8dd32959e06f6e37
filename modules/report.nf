process REPORT {
    tag "${meta.id}"
    label 'process_single'

    input:
    tuple val(meta), path(records, stageAs: 'records/*'), val(flags)
    val run
    val code

    output:
    tuple(val(meta), path("${meta.id}_report.html"), emit: report)
    tuple(val(meta), path('previews'), emit: previews)
    tuple(val(meta), path("${meta.id}_report.json"), emit: twin)
    tuple(val(meta), path('{*_trace.json.gz,*_positions.csv,*_gains.csv}'), emit: more, optional: true)

    script:
    // Only the task knows its image: workflow.container is set before the parameters.
    def image = run.container ? [image: task.container.toString()] : [:]
    def facts = run + meta.subMap('input', 'command', 'outcome', 'decisions').findAll { _key, value -> value } + image
    def recordsFlag = records ? '--records records/*.json' : ''
    // Nextflow writes the script unescaped into its report.html.
    def json = groovy.json.JsonOutput.toJson(facts)
    json = json.replace('<', '\\u003c').replace('>', '\\u003e').replace('&', '\\u0026')
    def hasPreviews = [records].flatten().any { record -> record.name.endsWith('.npz') }
    def previewsFlag = hasPreviews ? '--previews records/*.npz' : ''
    """
    cat > run.json <<'END_RUN'
    ${json}
    END_RUN
    report.py '${meta.id}_report.html' --subject '${meta.id}' ${flags} --overwrite --run run.json \\
        ${recordsFlag} ${previewsFlag}
    """

    stub:
    """
    mkdir previews
    touch '${meta.id}_report.html' '${meta.id}_report.json'
    """
}

// Description of the run for the report, with the commit of a checkout, marked if it has changes. Contains nothing
// that differs between identical runs (run name, time, -resume), or the report would never be cached.
def runRecord(code) {
    def describe = 'git -C "$0" describe --always --dirty --exclude "*" 2>/dev/null'
    def checkout = !workflow.commitId && workflow.projectDir.resolve('.git').exists()
    return [
        Nextflow: nextflow.version.toString(),
        octane: workflow.manifest.version,
        revision: checkout
            ? ['bash', '-c', describe, workflow.projectDir.toString()].execute().text.trim()
            : workflow.commitId,
        code: code.take(12),
        profile: workflow.profile,
        repository: workflow.repository ?: '',
        script: workflow.scriptFile.toString(),
        container: workflow.containerEngine ?: '',
    ].findAll { _key, value -> value }
}
