process COHORT_REPORT {
    tag "${subjects.size()} subjects"
    label 'process_single'

    input:
    path(reports, stageAs: 'reports/*')
    val subjects // all of the run, including those without a report
    val code

    output:
    path('cohort_report.html', emit: report)

    script:
    def reportsFlag = reports ? '--reports reports/*.json' : ''
    def names = subjects.collect { name -> "'${name}'" }.join(' ')
    """
    cohort_report.py cohort_report.html --overwrite ${reportsFlag} --subjects ${names}
    """

    stub:
    """
    touch cohort_report.html
    """
}
