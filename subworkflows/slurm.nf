include { isCommand } from '../lib/functions'

// Jobs that the run's last start left on Slurm are cancelled before their tasks start again.
def watchSlurm() {
    if (!workflow.profile.tokenize(',').contains('slurm')) { return }
    if (!isCommand('sbatch')) { error('-profile slurm needs the sbatch command of Slurm, which is not on the PATH; start the run where jobs are submitted, or leave the profile out.') }
    if (workflow.resume) {
        def orphans = ['bash', "${moduleDir}/../lib/slurm_orphans.sh", workflow.sessionId]*.toString().execute()
        def said = orphans.text.readLines()
        orphans.waitFor() == 0 ? said.each { line -> log.warn(line) } : error(said.last())
    }
}
