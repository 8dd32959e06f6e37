include { isCommand } from '../lib/functions'

// What the run asks Slurm: whether its last start left jobs, and which jobs can never start.
def watchSlurm() {
    if (!workflow.profile.tokenize(',').contains('slurm')) { return }
    if (!isCommand('sbatch')) { error('-profile slurm needs the sbatch command of Slurm, which is not on the PATH; start the run where jobs are submitted, or leave the profile out.') }
    if (workflow.resume) {
        def orphans = ['bash', "${moduleDir}/../lib/slurm_orphans.sh", workflow.sessionId]*.toString().execute()
        def said = orphans.text.readLines()
        orphans.waitFor() == 0 ? said.each { line -> log.warn(line) } : error(said.last())
    }
    def config = nextflow.Global.session.config
    def pause = new nextflow.util.Duration((config.executor?.queueStatInterval ?: '1 min').toString()).toSeconds()
    def queue = config.process.queue instanceof CharSequence ? config.process.queue : params.slurm_queue ?: ''
    def compared = { key -> key ==~ /with(Label|Name):.*/ && !(params.slurm_gpu_queue && key.contains('gpu_slot')) }
    def times = config.process.keySet().findAll(compared).collect { key -> "${key}=${secondsOf(config.process[key], config.process) ?: 0}" }
    def watch = (['bash', "${moduleDir}/../lib/slurm_limits.sh", workflow.sessionId, pause, queue] + times)*.toString().execute()
    Thread.startDaemon('slurm-limits') { watch.inputStream.eachLine { line -> log.warn(line) } }
}

// Time that the first attempt of a selector's tasks asks for; null where its closure needs a task's inputs.
def secondsOf(settings, scope) {
    def read = { value -> value instanceof Closure ? value.clone().with { own -> own.delegate = [task: [attempt: 1, executor: 'slurm'], params: params]; own.resolveStrategy = Closure.DELEGATE_FIRST; own.call() } : value }
    try {
        def asked = [read.call(settings.time ?: scope.time), read.call(scope.resourceLimits)?.time]
        return asked.findAll { time -> time }.collect { time -> new nextflow.util.Duration(time.toString()).toSeconds() }.min()
    }
    catch (Exception _problem) {
        return null
    }
}
