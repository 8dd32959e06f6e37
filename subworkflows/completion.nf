// The end of a run: where the results are and what they lack, or why it stopped and how to continue.

include { isOn ; outputFolder } from '../lib/functions'

// The end of each subject: [meta, records, flags, volume], with the last record, or at the end of the run if a task
// failed. `ended` are the tasks of `report`; `meta.outcome` is what the results lack, or null.
def outcomes(ended, plans) {
    // One Python for all subjects.
    def python = startSummary('lost')
    return ended
        .map { meta, files, flags, input, volume -> [meta.id, files, flags, input[0], volume] }
        .combine(plans, by: 0)
        .map { id, files, flags, input, volume, plan ->
            def outcome = outcomeOf(id, plan, files, python)
            def facts = plan.subMap('command', 'decisions') + [input: "${input}".toString()]
            [[id: id, outcome: outcome] + facts, files, flags, volume]
        }
}

// What REPORT gets.
def reportInputs(ended) {
    return ended
        .filter { meta, files, _flags, _volume -> !isOn('skip_report') && (files || meta.outcome) }
        .map { meta, files, flags, _volume -> [meta, files, flags] }
}

// Fail the run if an input changed, but only when all else is done, so that other subjects finish.
def failIfChanged(results, ended) {
    results
        .map { _result -> '' }
        .mix(ended.map { meta, _files, _flags, _volume -> meta.outcome?.changed ?: '' })
        .unique()
        .toList()
        .subscribe { list -> list.any() ? error(list.findAll().join('\n')) : null }
}

// What a subject's results lack when its tasks have ended, or null. `missing` lists planned tasks without a record;
// `changed` is a sentence if the input changed during the run.
def outcomeOf(id, plan, files, python) {
    def missing = plan.tasks - files*.name.collect { name -> name - '_metrics.json' }
    // Nextflow writes its trace a moment after it drops a task.
    if (missing) { sleep(1000) }
    def answer = answerOf(python, [trace: trace(), subject: id, missing: missing, states: plan.states])
    answer.warn?.each { text -> log.warn("${id}: ${text}") }
    def failed = ["${missing.size()} tasks failed or did not start."]
    def why = missing && !answer.missing ? failed : answer.missing ?: []
    def paths = (answer.changed ?: []).join(', ')
    def changed = !paths ? '' : "${paths} changed while the run read it, so the results mix two states of it; run " +
        'again with -resume, which repeats the affected steps.'
    def sentence = (why + [changed]).findAll().join(' ')
    return sentence ? [missing: missing, changed: changed, sentence: sentence] : null
}

// Nextflow's table of tasks, or null. A run without one may find that of an earlier run.
def trace() {
    def table = outputFolder().resolve('pipeline_info/trace.txt')
    def isOfThisRun = table.exists() && table.lastModified() >= workflow.start.toInstant().toEpochMilli()
    return isOfThisRun ? table.toString() : null
}

// bin/summary.py, which answers each line of JSON by one, or null.
def startSummary(word) {
    def script = file("${moduleDir}/../bin/summary.py").toString()
    try {
        // Not with the caller's Python paths.
        def command = new ProcessBuilder(['python3', '-E', '-s', script, word])
        def python = command.redirectError(ProcessBuilder.Redirect.INHERIT).start()
        return [pipe: python.outputStream, lines: python.inputStream.newReader('UTF-8')]
    }
    catch (IOException problem) {
        log.warn("How this run ends is not reported, because python3 could not start: ${problem.message}.")
        return null
    }
}

// Its answer: texts by level. It says what is wrong if Python is missing or fails.
def answerOf(python, question) {
    if (!python) { return [:] }
    try {
        python.pipe.write("${groovy.json.JsonOutput.toJson(question)}\n".getBytes('UTF-8'))
        python.pipe.flush()
        def line = python.lines.readLine() ?: '{"warn": ["bin/summary.py failed, see its error above."]}'
        return new groovy.json.JsonSlurperClassic().parseText(line)
    }
    catch (IOException problem) {
        return [warn: ["bin/summary.py failed: ${problem.message}"]]
    }
}

// Collect what the run reports, and say at its end how it ended.
def closeRun(run, plans, outcomes, results) {
    plans.subscribe { id, plan -> run.plans[id] = plan }
    outcomes.subscribe { id, outcome -> run.outcomes[id] = outcome }
    results.subscribe { meta, files -> run.made += [files].flatten().collect { file -> [meta.id, file] } }
    workflow.onComplete { finishRun(run) }
    // After an error outside of a task, Nextflow 26.04 resets errorReport and rewrites its report.html.
    workflow.onError { escapeMarkup() }
}

// Say how the run ended, and put its files in order.
def finishRun(run) {
    def plans = run.plans.collectEntries { id, plan ->
        [id, plan.subMap('tasks', 'results') + [inputs: plan.states*.path.unique()]]
    }
    def answer = answerOf(startSummary('end'), [
        outdir: outputFolder().toString(),
        work: workflow.workDir.toString(),
        trace: trace(),
        started: workflow.start.format('yyyyMMdd-HHmmss'),
        materialize: workflow.projectDir.resolve('bin/materialize.py').toString(),
        is_successful: workflow.success,
        is_reported: !isOn('skip_report'),
        is_linked: params.publish_dir_mode == 'symlink',
        report: workflow.errorReport ?: '',
        message: workflow.errorMessage ?: '',
        exit: workflow.exitStatus,
        plans: plans,
        outcomes: run.outcomes,
        files: run.made.collect { id, file -> [id, file.toString()] },
    ])
    answer.info?.each { text -> log.info(text) }
    answer.warn?.each { text -> log.warn(text) }
    escapeMarkup()
    run.refused = isRefused(run)
    // The lock of a refused run ends with the process, after its file is gone.
    if (!run.refused) { run.lock.close() }
    // Only here are all results published, and no error changes the exit code any more.
    if (answer.fail) { Runtime.runtime.addShutdownHook(new Thread({ Runtime.runtime.halt(1) })) }
}

// Tell whether PREFLIGHT refused the run: no task failed, but no subject was planned.
def isRefused(run) {
    def isFailed = workflow.errorReport?.contains('Error executing process')
    def isStopped = workflow.errorMessage in ['SIGINT', 'SIGTERM', 'SIGHUP']
    return !workflow.success && !run.plans && !isFailed && !isStopped
}

// Nextflow writes these unescaped into its report.html afterwards, and they quote names of the data: a file called
// <img src=x onerror=...> would run in the browser.
def escapeMarkup() {
    workflow.errorReport = workflow.errorReport?.replace('<', '&lt;')
    workflow.commandLine = workflow.commandLine.replace('<', '&lt;')
}
