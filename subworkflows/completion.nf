// The end of a run: where the results are and what is missing in them, or why it stopped and how to go on.
// And the lock that keeps a second run out of the same outdir.

include { changed ; endDrawing ; outputFolder ; read } from '../lib/functions'
include { placeOf ; switched } from '../lib/publishing'

// What a subject's results lack, at the end of its tasks; null: nothing. `missing` are tasks of its plan without a
// record, `changed` says that its input is no longer the one that the run began with.
def outcomeOf(id, steps, files) {
    def missing = steps.tasks - files*.name.collect { name -> name - '_metrics.json' }
    def other = changed(steps.states)
    def mixed = other ? "${other.join(', ')} changed while the run read it, so that the results mix two states of it; run again with -resume, which repeats the steps that it concerns." : ''
    return missing || mixed ? [missing: missing, changed: mixed, sentence: [missing ? lostOf(id, missing) : '', mixed].findAll().join(' ')] : null
}

// Why tasks have no record, in a sentence. Nextflow writes its trace a moment after it has given a task up.
def lostOf(id, missing) {
    sleep(1000)
    def ends = endsOf(id).subMap(missing)
    def why = ends.take(3).collect { task, end -> "${wordsOf(task)} ${end}" }
    def more = ends.size() > 3 ? ["${ends.size() - 3} more failed."] : []
    def idle = (missing - ends.keySet()).collect { task -> wordsOf(task) }
    def listed = idle.size() > 6 ? "${idle.take(5).join(', ')} and ${idle.size() - 5} more" : idle.size() > 1 ? "${idle.init().join(', ')} and ${idle.last()}" : idle.join()
    return (why + more + (!idle ? [] : ends ? ["Not begun: ${listed}."] : ["${listed} failed or did not begin; .nextflow.log has the reason."])).join(' ')
}

// A task as its record is called, section_01_resample or stack, in words.
def wordsOf(task) {
    def (_whole, item, step) = (task =~ /(?:(.+)_)?(.+)/)[0]
    return step.toUpperCase() + (item ? " of ${item}" : '')
}

// How the tasks of a subject failed, by their records' names, as Nextflow's trace has it.
def endsOf(id) {
    def trace = outputFolder().resolve('pipeline_info/trace.txt')
    def rows = switched('trace_report') && trace.exists() ? trace.splitCsv(header: true, sep: '\t') : []
    return rows.findAll { row -> row.status in ['FAILED', 'ABORTED'] }.collectEntries { row ->
        def (step, subject, item) = (row.name =~ /(?:.*:)?([A-Z0-9_]+) \(([^:]*):?(.*)\)$/).collect { found -> found.drop(1) }.flatten() ?: ['', '', '']
        subject == id ? [[item, step.toLowerCase()].findAll().join('_'), reasonOf(row)] : [:]
    }
}

// Its own error, else what its exit code says.
def reasonOf(row) {
    def said = file(row.workdir).resolve('.command.err')
    def (_before, words) = said.exists() && said.text.contains('error: ') ? said.text.split('error: ', 2).toList() : [null, null]
    def end = row.exit.isInteger() ? endOf(row.exit as Integer) : null
    return (words ? "failed: ${words.trim()}" : end ?: "failed (exit ${row.exit}), see ${row.workdir}").replaceFirst(/\.?$/, '.')
}

// `seen` is what the run made known: `plans`, [id: steps] of all subjects, `outcomes`, [id: what is missing] of those
// whose tasks have ended, and `made`, [id, file] of all that is published. `lock` is from lockOutdir.
def complete(seen, lock) {
    endDrawing()
    def outdir = outputFolder()
    // Not an input that all steps passed through. With -resume a task's folder may lie in an earlier work directory.
    def isInput = { id, file -> seen.plans[id]?.states?.keySet()?.any { path -> file.startsWith(path) } }
    def made = seen.made.findAll { id, file -> file.resolveSibling('.command.run').exists() && !isInput.call(id, file) }.collect { id, file -> [id: id, path: outdir.resolve(id).resolve(placeOf(file.name)), task: file.parent] }
    def unreported = seen.plans.keySet().findAll { id -> workflow.success && !switched('skip_report') && !seen.outcomes[id] && seen.plans[id].tasks && !made.any { item -> item.id == id && item.path.name == "${id}_report.html" } }
    seen.outcomes += unreported.collectEntries { id -> [id, [missing: ['report'], changed: '', sentence: lostOf(id, ['report'])]] }
    seen.outcomes.findAll { _id, outcome -> outcome }.each { id, outcome -> setAside(outdir.resolve(id), made.findAll { item -> item.id == id }, outcome) }
    workflow.success ? succeeded(made, seen) : failed(made, seen)
    escapeMarkup()
    lock.close()
}

// Nextflow writes these into its report.html next, as they are.
def escapeMarkup() {
    workflow.errorReport = workflow.errorReport?.replace('<', '&lt;')
    workflow.commandLine = workflow.commandLine.replace('<', '&lt;')
}

// The folder of a subject whose results are not whole: what an earlier run left there is moved aside. What this run made
// of two states of the input is removed, with its tasks' folders: -resume would take them for those of the first state.
def setAside(folder, made, outcome) {
    def ours = ~/.+\.ome\.zarr|.+_(report\.(html|json)|displacements\.csv|trace\.json\.gz|metrics\.json|flat_field\.tif)|previews|ro-crate-metadata\.json/
    def found = ['.', 'metrics', 'flat_fields'].collect { part -> folder.resolve(part).normalize() }.findAll { place -> place.isDirectory() }.collectMany { place -> place.listFiles().toList() }.findAll { path -> path.name ==~ ours }
    def aside = folder.resolve("earlier_${workflow.start.format('yyyyMMdd-HHmmss')}")
    (found - made*.path).each { path ->
        def place = aside.resolve(folder.relativize(path))
        place.parent.mkdirs()
        if (java.nio.file.Files.isSymbolicLink(path)) {
            // Such as it is, one of --publish_dir_mode rellink would lead nowhere.
            java.nio.file.Files.createSymbolicLink(place, path.parent.resolve(java.nio.file.Files.readSymbolicLink(path)).normalize())
            java.nio.file.Files.delete(path)
        }
        else {
            java.nio.file.Files.move(path, place)
        }
    }
    if (outcome.changed) {
        def tasks = made*.task.unique().findAll { task -> task.list().any { name -> name.endsWith('_metrics.json') } }
        def lost = made.findAll { item -> item.task in tasks }*.path.findAll { path -> found.contains(path) }
        (lost + tasks).unique().each { path -> java.nio.file.Files.walk(path).toList().reverse().each { part -> java.nio.file.Files.delete(part) } }
    }
}

def succeeded(made, seen) {
    def found = made*.path.findAll { path -> path.name ==~ /.+\.ome\.zarr|.+_report\.html/ && path.exists() }
    if (!made) { return log.info('Nothing was made.') }
    if (found) { log.info("Results:\n${(found.size() > 20 ? found*.parent.unique() : found).sort().collect { path -> "  ${path}" }.join('\n')}") }
    def shown = { path -> "'${path.toString().replace("'", "'\\''")}'" }
    if (params.publish_dir_mode in ['symlink', 'rellink']) { log.info("They are links into ${workflow.workDir}, which must stay. To make them real files:\n  ${shown.call(workflow.projectDir.resolve('bin/materialize.py'))} ${shown.call(outputFolder())}") }
    return logStates(made, seen)
}

// The state of each subject, the worst first; of several, how many are in which state; and how to go on,
// where a `task` failed.
def logStates(made, seen, task = null) {
    def states = statesOf(made, seen)
    states.each { id, state ->
        log.info("${id}: ${state.words}")
        state.warnings.each { text -> log.warn("${id}: ${text}") }
    }
    def counts = states.countBy { _id, state -> state.name == 'look' ? 'to look at' : state.name }.collect { name, count -> "${count} ${name}" }.join(', ')
    if (states.size() > 1) { log.info("${states.size()} subjects: ${counts}.") }
    if (task || workflow.success && states.any { _id, state -> !(state.name in ['look', 'done', 'good']) }) { log.info('What is done is kept: once the cause is gone, run again with -resume.') }
}

// The state of each subject, the worst first: its name, in words, and what is warned of.
def statesOf(made, seen) {
    def order = ['incomplete', 'failed', 'unfinished', 'not begun', 'look', 'done', 'good']
    def failures = seen.plans.keySet().findAll { id -> !seen.outcomes.containsKey(id) }.collectEntries { id -> [id, endsOf(id)] }
    return seen.plans.collectEntries { id, steps ->
        def own = made.findAll { item -> item.id == id }*.path
        // The verdict of the report; without a report, what STACK warns of.
        def record = ["${id}_report.json".toString(), 'stack_metrics.json'].findResult { name -> own.find { path -> path.name == name && path.exists() && path.size() > 0 } }?.with { path -> read(path) }
        def outcome = seen.outcomes[id]
        def recorded = own.count { path -> path.name.endsWith('_metrics.json') }
        def state = outcome ? [name: 'incomplete', words: "Incomplete: ${outcome.sentence}"]
            : record?.verdict ? [name: record.state, words: record.verdict]
            : seen.outcomes.containsKey(id) ? switched('skip_report') || own*.name.contains("${id}_report.json".toString()) ? [name: 'done', words: 'done'] : [name: 'unfinished', words: 'unfinished: all but its report is done']
            : failures[id] ? [name: 'failed', words: "failed: ${failures[id].keySet().collect { task -> wordsOf(task) }.join(', ')}"]
            : recorded ? [name: 'unfinished', words: "unfinished: ${recorded} of ${steps.tasks.size()} tasks are done"] : [name: 'not begun', words: 'not begun']
        [id, state + [warnings: outcome ? [] : record?.warnings ?: []]]
    }.sort { entry -> [order.indexOf(entry.value.name), entry.key].with { at, id -> String.format('%02d', at) + id } }
}

// How a task ended that could not report it, by its exit code.
def endOf(exit) {
    def memory = "was killed (exit ${exit}): out of memory, or by somebody; raise --max_memory, or give it more, as docs/hpc.md says"
    def outside = "was ended from outside (exit ${exit}), as a cancelled job is; .command.log in its folder may say why"
    return [(104): outside, (137): memory, (140): 'was out of its time (exit 140); give it more, as docs/hpc.md says', (143): outside, (247): memory][exit]
}

// The cause comes last: Nextflow does not say below it that it ends other tasks. Task and folder are from its report.
def failed(made, seen) {
    org.slf4j.LoggerFactory.getLogger('nextflow.processor.TaskPollingMonitor').level = ch.qos.logback.classic.Level.ERROR
    def report = workflow.errorReport ?: ''
    def message = workflow.errorMessage ?: report
    def name = report.find(/Error executing process > '(?:[A-Z0-9_]+:)*(.+)'/) { found -> found[1] }
    if (name) {
        def place = report.find(/Work dir:\s+(\S.*)/) { found -> found[1] }
        log.info("${name} failed in ${place}")
    }
    logStates(made, seen, name)
    def unwritten = message =~ /(?:FileSystem|AccessDenied)Exception: (?:.* -> )?([^:\n]+)(?:: (.*))?/
    def cause = message in ['SIGINT', 'SIGTERM', 'SIGHUP']
        ? "interrupted (${message}); run again with -resume to go on."
        : message.contains('error: ')
        ? [name, message.split('error: ', 2)[1]].findAll { part -> part }.join(': ')
        : unwritten
        ? "${unwritten[0][1]} could not be written (${(unwritten[0][2] ?: 'Permission denied').uncapitalize()}), so that the results in ${params.outdir} are not whole; give it space and rights, and run again with -resume, or choose another --outdir or --publish_dir_mode."
        : java.nio.file.Files.getFileStore(workflow.workDir).usableSpace < 1000000
        ? "there is no space left in the work directory ${workflow.workDir}; make some and run again with -resume, or choose another with -work-dir."
        : name && endOf(workflow.exitStatus) ? "${name} ${endOf(workflow.exitStatus)}." : null
    return cause ? log.info("octane stopped: ${cause}") : null
}

// One run at a time writes into an outdir. The kernel's lock on an open file goes when the launcher ends.
def lockOutdir() {
    def folder = outputFolder().resolve('pipeline_info').tap { place -> place.mkdirs() }
    def lock = folder.resolve('.lock')
    def closed = [workflow.workDir, folder, lock].find { path -> (path != lock || lock.exists()) && !java.nio.file.Files.isWritable(path) }
    if (closed) { error("${closed} cannot be written; give it space and rights, or choose another ${closed == workflow.workDir ? '-work-dir' : '--outdir'}.") }
    // Opened once: this program would give the lock up with the closing of a second opening.
    def stream = new RandomAccessFile(lock.toFile(), 'rw')
    def taken = false
    try {
        taken = stream.channel.tryLock() == null
    }
    catch (IOException problem) {
        log.warn("${folder} is on a file system without locks (${problem.message}): a second run into this --outdir would not be noticed.")
    }
    if (taken) { error("${folder.parent} is being written by ${stream.readLine() ?: 'another run'}; wait for its end, or give another --outdir.") }
    stream.length = 0
    stream.writeBytes("the run ${workflow.runName}, process ${ProcessHandle.current().pid()}, launched in ${workflow.launchDir}")
    return stream
}
