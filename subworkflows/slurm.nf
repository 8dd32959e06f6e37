// On Slurm: cancel the jobs that a killed run left before -resume starts their tasks again, and warn of jobs that would
// stay pending.
def watchSlurm() {
    if (!workflow.profile.tokenize(',').contains('slurm')) { return }
    if (workflow.resume) {
        def orphans = ['bash', "${moduleDir}/../lib/slurm_orphans.sh", workflow.sessionId]*.toString().execute()
        def lines = orphans.text.readLines()
        orphans.waitFor() == 0 ? lines.each { line -> log.warn(line) } : error(lines.last())
    }
    def pending = ['bash', "${moduleDir}/../lib/slurm_pending.sh", workflow.sessionId]*.toString().execute()
    Thread.startDaemon { pending.inputStream.eachLine { line -> log.warn(line) } }
    workflow.onComplete { pending.destroy() }
}
