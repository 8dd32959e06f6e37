process COHORT {
    tag 'samplesheet'
    label 'process_single'
    scratch false

    input:
    path(sheet, stageAs: 'sheet/*')
    // The parameters by stdin, so that a message of Nextflow's does not drown in them.
    stdin
    val code

    output:
    path('cohort.json', emit: cohort)

    script:
    // A container sees only what is staged.
    def unseen = workflow.containerEngine ? '--unseen' : ''
    """
    cohort.py cohort.json --request /dev/stdin --samplesheet ${sheet} ${unseen}
    """

    stub:
    // A sheet is read all the same: the subjects are the wiring's own.
    """
    cohort.py cohort.json --request /dev/stdin --samplesheet ${sheet} --unseen
    """
}
