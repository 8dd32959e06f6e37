// What the run asks Slurm: whether its last start left jobs, and which jobs can never start.

def watchSlurm() {
    if (!workflow.profile.tokenize(',').contains('slurm')) {
        return
    }
    if (workflow.resume) {
        def orphans = ['bash', "${moduleDir}/../lib/slurm_orphans.sh", workflow.sessionId]*.toString().execute()
        orphans.text.readLines().each { line -> orphans.waitFor() == 0 ? log.warn(line) : error(line) }
    }
    def pause = nextflow.Global.session.config.executor?.queueStatInterval ?: '1 min'
    def limits = ['bash', "${moduleDir}/../lib/slurm_limits.sh", workflow.sessionId, new nextflow.util.Duration(pause.toString()).toSeconds(), params.slurm_queue ?: '']
    def watch = (limits + times().collect { selector, seconds -> "${selector}=${seconds}" })*.toString().execute()
    Thread.startDaemon('slurm-limits') { watch.inputStream.eachLine { line -> log.warn(line) } }
}

// Seconds that the first attempt of each selector of the config's process scope asks for.
def times() {
    def scope = nextflow.Global.session.config.process
    def task = [task: [attempt: 1, executor: 'slurm'], params: params]
    def read = { value -> value instanceof Closure ? value.clone().with { own -> own.delegate = task; own.resolveStrategy = Closure.DELEGATE_FIRST; own.call() } : value }
    def most = read.call(scope.resourceLimits)?.time
    return scope.findAll { _key, value -> value instanceof Map }.collectEntries { selector, settings ->
        def asked = [read.call(settings.time ?: scope.time), most].findAll { time -> time }.collect { time -> new nextflow.util.Duration(time.toString()).toSeconds() }
        [selector, asked.min()]
    }
}
