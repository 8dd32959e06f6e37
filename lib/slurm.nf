// What Slurm still runs of a run that was killed.

// Nextflow that is killed (kill -9, a lost login node) cannot cancel its jobs. A run with -resume does
// not wait for them: it starts their tasks anew, in folders of their own.
def nameOrphans() {
    if (!workflow.profile.tokenize(',').contains('slurm') || workflow.stubRun) {
        return
    }
    def told = new StringBuffer()
    try {
        def asked = ['squeue', "--user=${workflow.userName}", '--noheader', '--format=%i %Z'].execute()
        asked.consumeProcessOutputStream(told)
        asked.waitForOrKill(20000)
    }
    catch (IOException _absent) {
        // No squeue: Nextflow itself will say so.
        return
    }
    def jobs = told.readLines()*.trim()*.split(' ', 2).findAll { job -> job.size() == 2 && job[1].startsWith("${workflow.workDir}/") }.collect { job -> job[0] }
    if (jobs) {
        log.warn("${jobs.size()} jobs with folders in ${workflow.workDir} were there before this run, left by one that was killed or of one that goes on. If it was killed, cancel them: scancel ${jobs.join(' ')}")
    }
}
