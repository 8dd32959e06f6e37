process COHORT {
    tag "${sheet ? 'samplesheet' : 'parameters'}"
    label 'process_single'
    scratch false

    input:
    path sheet, stageAs: 'sheet/*'
    // By stdin, so that a message of Nextflow's does not drown in all parameters.
    stdin
    val code

    output:
    path 'cohort.json', emit: cohort

    script:
    def table = sheet ? "--samplesheet ${sheet}" : ''
    // A container sees only what is staged.
    def unseen = workflow.containerEngine ? '--unseen' : ''
    """
    cohort.py cohort.json --request /dev/stdin ${table} ${unseen}
    """

    stub:
    // A sheet is read all the same: who the subjects are is the wiring's own.
    def table = sheet ? "cohort.py cohort.json --request /dev/stdin --samplesheet ${sheet} --unseen" : 'echo "[]" > cohort.json'
    """
    ${table}
    """
}
