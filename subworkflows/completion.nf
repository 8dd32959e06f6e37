// The end of a run: where the results are and what they lack, or why it stopped and how to continue. Also the lock that
// keeps a second run out of the same outdir.

include { changed ; metadataOf ; outputFolder ; read ; switched } from '../lib/functions'

// What a subject's results lack when its tasks have ended, or null. `missing` lists planned tasks without a record;
// `changed` is a sentence if the input changed during the run.
def outcomeOf(id, plan, files) {
    def missing = plan.tasks - files*.name.collect { name -> name - '_metrics.json' }
    def other = changed(plan.states)
    def mixed = !other ? '' : "${other.join(', ')} changed while the run read it, so the results mix two states of " +
        'it; run again with -resume, which repeats the affected steps.'
    def sentence = [missing ? lostOf(id, missing) : '', mixed].findAll().join(' ')
    return sentence ? [missing: missing, changed: mixed, sentence: sentence] : null
}

// A sentence on why tasks lack a record. It waits, because Nextflow writes its trace a moment after it drops a task.
def lostOf(id, missing) {
    sleep(1000)
    def ends = endsOf(id).subMap(missing)
    def why = ends.take(3).collect { task, end -> "${wordsOf(task)} ${end}" }
    def more = ends.size() > 3 ? ["${ends.size() - 3} more failed."] : []
    def idle = (missing - ends.keySet()).collect { task -> wordsOf(task) }
    def shown = idle.size() > 6 ? idle.take(5) + ["${idle.size() - 5} more"] : idle
    def listed = shown.size() > 1 ? "${shown.init().join(', ')} and ${shown.last()}" : shown.join()
    def rest = ends ? "Not started: ${listed}." : "${listed} failed or did not start; .nextflow.log has the reason."
    return (why + more + (idle ? [rest] : [])).join(' ')
}

// The name of a task's record, such as section_01_resample or stack, in words.
def wordsOf(task) {
    def (_whole, item, step) = (task =~ /(?:(.+)_)?(.+)/)[0]
    return step.toUpperCase() + (item ? " of ${item}" : '')
}

// How the tasks of a subject failed according to Nextflow's trace, by the names of their records.
def endsOf(id) {
    def trace = outputFolder().resolve('pipeline_info/trace.txt')
    // A run without a trace may find that of an earlier one.
    def isOwn = trace.exists() && trace.lastModified() >= workflow.start.toInstant().toEpochMilli()
    def rows = isOwn ? trace.splitCsv(header: true, sep: '\t') : []
    return rows.findAll { row -> row.status in ['FAILED', 'ABORTED'] }.collectEntries { row ->
        def found = (row.name =~ /(?:.*:)?([A-Z0-9_]+) \(([^:]*):?(.*)\)$/).collect { parts -> parts.drop(1) }
        def (step, subject, item) = found ? found[0] : ['', '', '']
        subject == id ? [[item, step.toLowerCase() - '_others'].findAll().join('_'), reasonOf(row)] : [:]
    }
}

// A task's own error, else the meaning of its exit code.
def reasonOf(row) {
    def said = file(row.workdir).resolve('.command.err')
    def words = said.exists() && said.text.contains('error: ') ? said.text.split('error: ', 2)[1].trim() : null
    def end = row.exit.isInteger() ? endOf(row.exit as Integer) : null
    def reason = words ? "failed: ${words}" : end ?: "failed (exit ${row.exit}), see ${row.workdir}"
    return reason.replaceFirst(/\.?$/, '.')
}

// The meaning of an exit code, for tasks that could not report their error.
def endOf(exit) {
    def memory = "was killed (exit ${exit}), by a user or for lack of memory; give it more, as in docs/hpc.md"
    def outside = "was terminated (exit ${exit}), like a cancelled job; .command.log in its folder may say why"
    def time = 'exceeded its time limit (exit 140); give it more, as in docs/hpc.md'
    def lost = 'lost its GPU or its node (exit 104); .command.log in its folder may say more'
    return [(104): lost, (137): memory, (140): time, (143): outside, (247): memory][exit]
}

// A subject's folder and its subfolders of published files, as in conf/modules.config.
def placesOf(id) {
    def folder = outputFolder().resolve(id)
    return [folder] + ['metrics', 'flat_fields', 'profiles'].collect { name -> folder.resolve(name) }
}

// `seen` is what the run reported: `plans` [id: plan] of all subjects, `outcomes` [id: outcome] of those whose tasks
// have ended, `made` [id, file] of everything published, and `refused`. `lock` is from lockOutdir.
def complete(seen, lock) {
    // Leaves out inputs that no step changed. With -resume a task's folder may be in an earlier work directory.
    def isInput = { id, file -> seen.plans[id]?.states?.keySet()?.any { path -> file.startsWith(path) } }
    def files = seen.made.findAll { _id, file -> file.resolveSibling('.command.run').exists() }
    def made = files.findAll { id, file -> !isInput.call(id, file) }.collect { id, file ->
        def places = placesOf(id).collect { place -> place.resolve(file.name) }
        [id: id, path: places.find { path -> path.exists() } ?: places[0], task: file.parent]
    }
    def isReported = { id -> made.any { item -> item.id == id && item.path.name == "${id}_report.html" } }
    def isOpen = { id -> seen.plans[id].tasks && !seen.outcomes[id] && !isReported.call(id) }
    def unreported = workflow.success && !switched('skip_report') ? seen.plans.keySet().findAll(isOpen) : []
    seen.outcomes += unreported.collectEntries { id ->
        [id, [missing: ['report'], changed: '', sentence: lostOf(id, ['report'])]]
    }
    // A run that stops may not have published what its last tasks made.
    def unpublished = seen.outcomes
        .findAll { _id, outcome -> workflow.success && !outcome }
        .collectEntries { id, _outcome -> [id, unpublishedOf(id, seen)] }
        .findAll { _id, outcome -> outcome }
    seen.outcomes += unpublished
    removeEmptied(made, seen)
    seen.outcomes.findAll { _id, outcome -> outcome }.each { id, outcome ->
        setAside(id, made.findAll { item -> item.id == id }, outcome)
    }
    workflow.success ? succeeded(made, seen) : failed(made, seen)
    escapeMarkup()
    seen.refused = isRefused(seen)
    // The lock of a refused run ends with the process, after its file is gone.
    if (!seen.refused) { lock.close() }
    // Only here are all results published, and no error changes the exit code any more.
    if (unpublished) { Runtime.runtime.addShutdownHook(new Thread({ Runtime.runtime.halt(1) })) }
}

// What a subject whose tasks succeeded lacks of its planned results in outdir, as from outcomeOf, or null. A file of an
// earlier run does not count: it differs from the one that this run made, or for a store in its metadata.
def unpublishedOf(id, seen) {
    def folder = outputFolder().resolve(id)
    def files = seen.made.findAll { owner, _file -> owner == id }.collectEntries { _owner, file -> [file.name, file] }
    def lost = seen.plans[id].results.findAll { name ->
        def pair = [files[name], folder.resolve(name)].findAll().collect { path -> metadataOf(path) ?: path }
        pair.size() < 2 || !pair[1].isFile() || java.nio.file.Files.mismatch(pair[0], pair[1]) != -1
    }
    def sentence = "${folder} lacks ${lost.join(', ')} of this run, although all tasks succeeded; see that no config " +
        'changes process.publishDir, check the disk, and run again with -resume.'
    return lost ? [missing: [], changed: '', sentence: sentence] : null
}

// Nextflow writes these unescaped into its report.html afterwards.
def escapeMarkup() {
    workflow.errorReport = workflow.errorReport?.replace('<', '&lt;')
    workflow.commandLine = workflow.commandLine.replace('<', '&lt;')
}

// If a task failed because its input was emptied (--keep_intermediates false), remove what is left of all such outputs
// of its subject, so that -resume makes them again.
def removeEmptied(made, seen) {
    def said = "${workflow.errorReport} ${seen.outcomes.values()*.sentence}"
    def isSaid = { store -> said.contains("${store.toRealPath()} was emptied") }
    def own = said.contains(' was emptied ') ? made.groupBy { item -> item.id } : [:]
    own.each { _id, items ->
        def stores = items*.task
            .unique()
            .collectMany { task -> task.listFiles().toList() }
            .findAll { path -> path.resolve('0/emptied.json').exists() }
        if (stores.any(isSaid)) { stores*.deleteDir() }
    }
}

// For incomplete results: move those of an earlier run aside. Delete what this run made of two states of the input, and
// its tasks' folders, or -resume would reuse them as results of the first state.
def setAside(id, made, outcome) {
    def ends = ['.ome.zarr', '_report.html', '_report.json', '_trace.json.gz', '_metrics.json', '_flat_field.tif']
    def tables = ['_positions.csv', '_displacements.csv']
    def isOurs = { path -> path.name == 'previews' || (ends + tables).any { end -> path.name.endsWith(end) } }
    def found = placesOf(id)
        .findAll { place -> place.isDirectory() }
        .collectMany { place -> place.listFiles().toList() }
        .findAll(isOurs)
    def folder = outputFolder().resolve(id)
    def aside = folder.resolve("earlier_${workflow.start.format('yyyyMMdd-HHmmss')}")
    (found - made*.path).each { path ->
        def place = aside.resolve(folder.relativize(path))
        place.parent.mkdirs()
        java.nio.file.Files.move(path, place)
    }
    if (outcome.changed) {
        def tasks = made*.task.unique().findAll { task -> task.list().any { name -> name.endsWith('_metrics.json') } }
        def lost = made.findAll { item -> item.task in tasks }*.path.findAll { path -> found.contains(path) }
        (lost + tasks).unique().each { path ->
            java.nio.file.Files.walk(path).toList().reverse().each { part -> java.nio.file.Files.delete(part) }
        }
    }
}

def succeeded(made, seen) {
    if (!made) { return log.info('Nothing was made.') }
    def found = made*.path.findAll { path -> path.name ==~ /.+\.ome\.zarr|.+_report\.html/ && path.exists() }
    def shown = (found.size() > 20 ? found*.parent.unique() : found).sort().collect { path -> "  ${path}" }
    if (found) { log.info("Results:\n${shown.join('\n')}") }
    if (params.publish_dir_mode == 'symlink') {
        def words = [workflow.projectDir.resolve('bin/materialize.py'), outputFolder()].collect { path ->
            "'${path.toString().replace("'", "'\\''")}'"
        }
        log.info("They are links into ${workflow.workDir}, which must stay. To replace them by real files:")
        log.info("  ${words.join(' ')}")
    }
    return logStates(made, seen)
}

// Log the state of each subject, the worst first; for several, the count of each state; and how to continue if a `task`
// failed.
def logStates(made, seen, task = null) {
    def order = ['incomplete', 'failed', 'unfinished', 'not begun', 'to look at', 'done', 'good']
    def paths = made.groupBy { item -> item.id }.collectEntries { id, items -> [id, items*.path] }
    def states = seen.plans.keySet().sort().collect { id -> stateOf(id, paths[id] ?: [], seen) }
    states.sort { state -> order.indexOf(state.name) }.each { state ->
        log.info("${state.id}: ${state.words}")
        state.warnings.each { text -> log.warn("${state.id}: ${text}") }
    }
    def counts = states.countBy { state -> state.name }.collect { name, count -> "${count} ${name}" }.join(', ')
    if (states.size() > 1) { log.info("${states.size()} subjects: ${counts}.") }
    if (task || workflow.success && states.any { state -> !(state.name in order.drop(4)) }) {
        log.info('Finished work is kept: fix the cause, and run again with -resume.')
    }
}

// The state of a subject with these files: its name, a description, and warnings.
def stateOf(id, files, seen) {
    // The report's verdict; without a report, STACK's warnings.
    def path = ["${id}_report.json".toString(), 'stack_metrics.json'].findResult { name ->
        files.find { file -> file.name == name && file.exists() && file.size() > 0 }
    }
    def record = path ? read(path) : [:]
    def hasEnded = seen.outcomes.containsKey(id)
    def outcome = seen.outcomes[id]
    def failures = hasEnded ? [:] : endsOf(id)
    def recorded = files.count { file -> file.name.endsWith('_metrics.json') }
    def isDone = hasEnded && (switched('skip_report') || files.any { file -> file.name == "${id}_report.json" })
    def (name, words) = outcome
        ? ['incomplete', "Incomplete: ${outcome.sentence}"]
        : record.verdict
        ? [record.state == 'look' ? 'to look at' : record.state, record.verdict]
        : isDone
        ? ['done', 'done']
        : hasEnded
        ? ['unfinished', 'unfinished: all but its report is done']
        : failures
        ? ['failed', "failed: ${failures.keySet().collect { task -> wordsOf(task) }.join(', ')}"]
        : recorded
        ? ['unfinished', "unfinished: ${recorded} of ${seen.plans[id].tasks.size()} tasks are done"]
        : ['not begun', 'not begun']
    return [id: id, name: name, words: words, warnings: outcome ? [] : record.warnings ?: []]
}

// Log the failed task and its folder from Nextflow's report, the states, and last the cause.
def failed(made, seen) {
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
        ? [name, message.split('error: ', 2)[1]].findAll().join(': ')
        : unwritten
        ? "${unwritten[0][1]} could not be written (${(unwritten[0][2] ?: 'Permission denied').uncapitalize()}), " +
            "so the results in ${params.outdir} are incomplete; check its free space and permissions, and run again " +
            'with -resume, or choose another --outdir or --publish_dir_mode.'
        : java.nio.file.Files.getFileStore(workflow.workDir).usableSpace < 1000000
        ? "no space is left in the work directory ${workflow.workDir}; free some and run again with -resume, or " +
            'choose another with -work-dir.'
        : name && endOf(workflow.exitStatus)
        ? "${name} ${endOf(workflow.exitStatus)}."
        : name
        ? "${name}: ${causeIn(report)}"
        : null
    return cause ? log.info("octane stopped: ${cause}") : null
}

// The line of Nextflow's report on a task that names the cause: of its stderr the end of a traceback, or the first line
// that is neither a warning nor a note on progress; else what Nextflow says.
def causeIn(report) {
    def said = report.find(/(?s)Command error:\n(.*?)(?:\n\n|$)/) { found -> found[1] } ?: ''
    def lines = said.readLines().findAll { line -> line ==~ /  \S.*/ && !(line =~ /(?i:warn(?:ing)?\b)|\bINFO\b/) }
    def isTraced = said.contains('Traceback (most recent call last)')
    def other = report.find(/Caused by:\s+(\S.*)/) { found -> found[1] } ?: 'see .nextflow.log.'
    return lines ? (isTraced ? lines.last() : lines[0]).trim() : other
}

// At the end of a run that is refused, before it takes the lock or by PREFLIGHT (`seen.refused`), remove what Nextflow
// and the lock leave in outdir, if nothing else is there. Another's lock guards the records of another run.
def forgetIfRefused(seen) {
    def folder = new File("${params.outdir ?: '.'}/pipeline_info").absoluteFile
    def names = ['trace.txt', 'report.html', 'timeline.html', 'dag.html', '.lock']
    def forget = {
        def isAlone = folder.parentFile.list() as List == ['pipeline_info']
        // These deletions throw nothing, and leave a folder that holds other files.
        if (isAlone && (seen.refused || !new File(folder, '.lock').exists())) {
            names.each { name -> new File(folder, name).delete() }
            folder.delete()
        }
    }
    // Nextflow writes some of them last.
    Runtime.runtime.addShutdownHook(new Thread(forget))
}

// Tell whether PREFLIGHT refused the run: no task failed, but no subject was planned.
def isRefused(seen) {
    def isFailed = workflow.errorReport?.contains('Error executing process')
    def isStopped = workflow.errorMessage in ['SIGINT', 'SIGTERM', 'SIGHUP']
    return !workflow.success && !seen.plans && !isFailed && !isStopped
}

// Only one run at a time may write to an outdir. The kernel releases the lock when the launcher ends.
def lockOutdir() {
    def folder = outputFolder().resolve('pipeline_info').tap { place -> place.mkdirs() }
    def lock = folder.resolve('.lock')
    def places = [workflow.workDir, folder] + (lock.exists() ? [lock] : [])
    def closed = places.find { path -> !java.nio.file.Files.isWritable(path) }
    if (closed) {
        def other = closed == workflow.workDir ? '-work-dir' : '--outdir'
        error("${closed} cannot be written; check its free space and permissions, or choose another ${other}.")
    }
    // Opened only once: closing a second handle in this process would release the lock.
    def stream = new RandomAccessFile(lock.toFile(), 'rw')
    def taken = false
    try {
        taken = stream.channel.tryLock() == null
    }
    catch (IOException problem) {
        log.warn("${folder} is on a file system without locks (${problem.message}): " +
            'a second run into this --outdir would not be noticed.')
    }
    if (taken) {
        error("${folder.parent} is being written by ${stream.readLine() ?: 'another run'}; " +
            'wait until it ends, or give another --outdir.')
    }
    stream.length = 0
    def pid = ProcessHandle.current().pid()
    stream.writeBytes("the run ${workflow.runName}, process ${pid}, launched in ${workflow.launchDir}")
    return stream
}
