// In a plain log, such as that of a batch job: now and then a line with the finished tasks of each step. A terminal has
// Nextflow's own display.

workflow PROGRESS {
    take:
    plans // [id, steps]
    records // [meta, files]: the steps' metrics; a cached task has them too

    main:
    if (isPlain()) {
        finished = [done: [:], since: System.nanoTime()]
        // All plans at once: no task may be counted before it is planned.
        planned = plans
            .map { _id, steps -> steps.tasks }
            .toList()
            .map { lists -> lists.flatten().countBy { task -> task.tokenize('_').last() } }
        records.combine(planned).subscribe { _meta, files, counts -> countTask(finished, stepOf(files), counts) }
    }
}

// Whether Nextflow's display is off. Its own launcher draws it into a file, unless it is told not to.
def isPlain() {
    def flag = workflow.commandLine.find(/ -ansi-log[= ](\w+)/) { _all, value -> value }
    def given = flag ?: System.getenv('NXF_ANSI_LOG')
    return given ? given == 'false' : workflow.commandLine.contains(' -bg ') || !isTerminal()
}

def isTerminal() {
    return new ProcessBuilder('bash', '-c', '[ -t 1 ]').inheritIO().start().waitFor() == 0
}

// The step whose task wrote a record, such as section_01_resample_metrics.json.
def stepOf(files) {
    def record = [files].flatten().find { file -> file.name.endsWith('_metrics.json') }
    return (record.name - '_metrics.json').tokenize('_').last()
}

// Count a task, and log the counts of all steps if its step is complete, or after a minute.
def countTask(finished, step, planned) {
    finished.done[step] = (finished.done[step] ?: 0) + 1
    def now = System.nanoTime()
    def isDone = finished.done[step] == planned[step]
    if (isDone || now - finished.since >= 60_000_000_000) {
        finished.since = now
        def counts = planned.collect { name, total -> "${name.toUpperCase()} ${finished.done[name] ?: 0}/${total}" }
        log.info(counts.join(', '))
    }
}
