// Cancel the jobs that a killed run left on Slurm before -resume starts their tasks again.
def watchSlurm() {
    if (workflow.resume && workflow.profile.tokenize(',').contains('slurm')) {
        def orphans = ['bash', "${moduleDir}/../lib/slurm_orphans.sh", workflow.sessionId]*.toString().execute()
        def said = orphans.text.readLines()
        orphans.waitFor() == 0 ? said.each { line -> log.warn(line) } : error(said.last())
    }
}
