// Nextflow that is killed outright cannot cancel its jobs on Slurm. The run that goes on with -resume starts
// their tasks again, in the same folders, where the two would write into each other. Jobs carry their session's
// number, which -resume keeps and which Nextflow locks: whatever has it when a run starts is left over.

def cancelOrphans() {
    def left = workflow.resume && 'slurm' in workflow.profile.tokenize(',') ? jobsOfSession() : []
    if (left) {
        log.warn("${left.size()} jobs were left by this run's last start, which was killed; they are cancelled, and their tasks start again: ${left.join(' ')}")
        (['scancel'] + left).execute().waitFor()
        // Up to a minute: Slurm gives a job half of it to end by itself.
        def ended = (1..60).find { _second -> !jobsOfSession() || sleep(1000) }
        if (!ended) {
            error("The jobs ${left.join(' ')} of this run's last start do not end; see what holds them (squeue), and run again with -resume.")
        }
    }
}

def jobsOfSession() {
    def answer = new StringBuffer()
    def complaint = new StringBuffer()
    def command = ['squeue', '--user', workflow.userName, '--noheader', '--format=%i %k'].execute()
    command.consumeProcessOutput(answer, complaint)
    command.waitForOrKill(20000)
    if (command.exitValue() != 0) {
        error("squeue gives no answer (${complaint.toString().trim() ?: 'none within 20 s'}), so that nobody knows whether jobs of this run's last start still work in its folders; run again with -resume when Slurm answers.")
    }
    def lines = answer.readLines()*.trim().findAll { line -> line.endsWith(" octane:${workflow.sessionId}") }
    return lines.collect { line -> line.tokenize(' ')[0] }
}
