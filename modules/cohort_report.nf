process COHORT_REPORT {
    tag "${subjects.size()} subjects"
    label 'process_single'
    publishDir({ params.outdir }, mode: params.publish_dir_mode, overwrite: true, enabled: params.publish_dir_mode != null)

    input:
    path(reports, stageAs: 'reports/*')
    val subjects // all of the run, also those that have no report
    val code

    output:
    path('cohort_report.html', emit: report)

    script:
    def given = reports ? '--reports reports/*.json' : ''
    """
    cohort_report.py cohort_report.html --overwrite ${given} --subjects ${subjects.collect { name -> "'${name}'" }.join(' ')}
    """

    stub:
    """
    touch cohort_report.html
    """
}
