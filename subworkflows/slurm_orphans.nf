// What Slurm still runs of a run that was killed.
//
// Nextflow that is killed outright cannot cancel its jobs. The run that goes on with -resume starts their
// tasks again, in the same folders, where the two would write into each other. Jobs carry their session's
// number, which -resume keeps and which Nextflow locks: whatever has it when a run starts is left over.

def cancelOrphans() {
    if (!workflow.resume || !workflow.profile.tokenize(',').contains('slurm')) {
        return
    }
    def left = jobsOfSession()
    if (left) {
        log.warn("${left.size()} jobs were left by this run's last start, which was killed; they are cancelled, and their tasks start again: ${left.join(' ')}")
        asked(['scancel'] + left)
        // Up to a minute: Slurm gives a job half of it to end by itself.
        def ended = (1..60).find { _second -> !jobsOfSession() || sleep(1000) }
        if (!ended) {
            error("The jobs ${left.join(' ')} of this run's last start do not end; see what holds them (squeue), and run again with -resume.")
        }
    }
}

def jobsOfSession() {
    def mark = "octane:${workflow.sessionId}".toString()
    return asked(['squeue', "--user=${workflow.userName}".toString(), '--noheader', '--format=%i %k']).readLines().findAll { line -> line.trim().endsWith(" ${mark}") }.collect { line -> line.trim().tokenize(' ')[0] }
}

// What a command of Slurm's says; nothing where there is none, as Nextflow itself will tell.
def asked(words) {
    def answer = new StringBuffer()
    def complaint = new StringBuffer()
    def command = null
    try {
        command = words.execute()
        command.consumeProcessOutput(answer, complaint)
        command.waitForOrKill(20000)
    }
    catch (IOException problem) {
        log.warn("Jobs that an earlier start may have left cannot be looked for (${problem.message}).")
        return ''
    }
    // Nobody's answer is not the answer that there is nobody.
    if (words[0] == 'squeue' && command.exitValue() != 0) {
        error("squeue gives no answer (${complaint.toString().trim() ?: 'none within 20 s'}), so that nobody knows whether jobs of this run's last start still work in its folders; run again with -resume when Slurm answers.")
    }
    return answer.toString()
}
