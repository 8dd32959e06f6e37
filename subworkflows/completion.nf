// The end of a run: where the results are, what is missing in them, what was tried again, and how to go on
// after a failure. And the lock that keeps a second run out of the same outdir.

include { outputFolder ; read ; switched } from '../lib/functions'

// More subjects than this are listed by their folders.
def few() {
    return 5
}

// The end of a task that could not report it, by its exit code.
def ends() {
    return [
        '104': 'ended from outside (exit 104), as by its machine going down',
        '137': 'killed (exit 137), most likely for its memory',
        '140': 'out of its time (exit 140)',
        '143': 'ended from outside (exit 143), as a cancelled job is',
        '247': 'killed (exit 247), most likely for its memory',
        '-': 'lost: it left no exit code',
    ]
}

// Why a task that left this exit code was tried again.
def reason(exit) {
    return ends()[exit] ?: (exit in ['1', '28'] ? "without space in its scratch folder (exit ${exit})" : "ended with exit code ${exit}")
}

// What to do about such an end, after these tries.
def remedy(tries, exit, place) {
    def had = { field -> tries.collect { task -> task[field] }.join(', then ') }
    if (exit in ['137', '247']) {
        // A task that may have more is tried three times.
        return ["  It had ${had.call('memory')} of memory${tries.size() < 3 ? ', and more is not to be had: raise --max_memory or take a larger machine.' : ': give it more, as docs/hpc.md says.'}"]
    }
    if (exit == '140') {
        return ["  It took ${had.call('realtime')}: give it more time, as docs/hpc.md says."]
    }
    return ends()[exit] ? ["  ${place}/.command.log may say why."] : []
}

// Nextflow's record of this run's tasks, with the name of the process alone; none where it is off.
def tasksOfRun() {
    def trace = params.outdir && switched('trace_report') ? outputFolder().resolve('pipeline_info/trace.txt') : null
    def lines = trace?.exists() ? trace.readLines().collect { line -> line.split('\t') as List } : []
    return lines.drop(1).collect { cells ->
        def task = [lines[0], cells].transpose().collectEntries { pair -> [pair[0], pair[1]] }
        task + [name: task.name.replaceFirst(/^([A-Z0-9_]+:)+/, '')]
    }
}

// `results` are what this run made: an earlier one into the same folder may have left others there.
def succeeded(subjects, records, results, tasks) {
    def outdir = outputFolder()
    def found = subjects.size() > few()
        ? subjects.sort().collect { id -> outdir.resolve(id) }
        : results.findAll { meta, file -> meta.id && file.startsWith(workflow.workDir) }.collect { meta, file -> outdir.resolve(meta.id).resolve(file.name) }.sort()
    def cohort = results.findAll { meta, _file -> !meta.id }.collect { _meta, file -> outdir.resolve(file.name) }
    log.info("Results:\n${(found + cohort).findAll { path -> path.exists() }.collect { path -> "  ${path}" }.join('\n')}")
    if (params.publish_dir_mode in ['symlink', 'rellink']) {
        log.info("They are links into ${workflow.workDir}, which must stay. To make them real files:\n  ${workflow.projectDir}/bin/materialize.py '${outdir}'")
    }
    records.collectMany { meta, files -> [files].flatten().collect { file -> [meta.id, file] } }.findAll { _id, file -> file.name == 'stack_metrics.json' && file.size() > 0 }.sort { pair -> pair[0] }.each { id, file ->
        def missing = read(file).figures?.missing_sections
        if (missing) {
            log.warn("${id} lacks section ${missing.join(', ')}: blank slabs stand there, as --allow_missing_sections permits.")
        }
    }
    def again = tasks.findAll { task -> task.status == 'FAILED' && tasks.any { other -> other.name == task.name && other.status == 'COMPLETED' } }
    if (again) {
        log.info("Tried again, and then done:\n${again.collect { task -> "  ${task.name}: ${reason(task.exit)}" }.join('\n')}")
    }
}

// The task that failed and its folder are read from Nextflow's own report.
def failed(tasks) {
    def message = workflow.errorMessage ?: ''
    def report = workflow.errorReport ?: ''
    def name = (report =~ /Error executing process > '(?:[A-Z0-9_]+:)*(.+)'/).collect { match -> match[1] }.find { true }
    def place = (report =~ /Work dir:\s+(\S.*)/).collect { match -> match[1] }.find { true }
    def tries = tasks.findAll { task -> task.name == name && task.status == 'FAILED' }
    def exit = tries ? tries.last().exit : workflow.exitStatus?.toString()
    def spoke = message.contains('error: ')
    def unwritten = (message ?: report) =~ /^java\S+FileSystemException: .* -> (.*): (.*)/
    if (spoke) {
        log.error("octane stopped: ${message.substring(message.indexOf('error: ') + 'error: '.length())}")
    }
    else if (unwritten) {
        log.error("octane stopped: ${unwritten[0][1]} could not be written (${unwritten[0][2].uncapitalize()}), so that the results in ${params.outdir} are not whole; give it space and rights, and run again with -resume, or choose another --outdir.")
    }
    else if (java.nio.file.Files.getFileStore(workflow.workDir).usableSpace < 1000000) {
        log.error("octane stopped: there is no space left in the work directory ${workflow.workDir}; make some and run again with -resume, or choose another with -work-dir.")
    }
    else if (name && ends()[exit]) {
        log.error("octane stopped: ${name} was ${ends()[exit]}.")
    }
    if (name) {
        def advice = spoke || !tries ? [] : remedy(tries, exit, place)
        def before = tries.size() > 1 ? ["  Tried ${tries.size()} times, before: ${tries.init().collect { task -> reason(task.exit) }.join('; ')}."] : []
        def again = workflow.commandLine.contains(' -resume') ? workflow.commandLine : "${workflow.commandLine} -resume"
        log.info((["${name} failed in ${place}"] + advice + before + ["  What is done is kept. Once the cause is gone, go on with:", "  ${again}"]).join('\n'))
    }
}

// `subjects` are names, `records` and `results` [meta, files] of this run; `lock` is from lockOutdir.
def complete(subjects, records, results, lock) {
    def tasks = tasksOfRun()
    workflow.success ? succeeded(subjects, records, results, tasks) : failed(tasks)
    lock.close()
}

// One run at a time writes into an outdir. The lock is the kernel's, on an open file: it goes with the
// launcher, however that ends. The file's content is for people alone.
def lockOutdir() {
    def folder = outputFolder().resolve('pipeline_info')
    if (!java.nio.file.Files.isWritable(workflow.workDir)) {
        error("${workflow.workDir} cannot be written, and tasks work there; choose another -work-dir.")
    }
    def host = file('/proc/sys/kernel/hostname')
    def mine = "the run ${workflow.runName}, process ${ProcessHandle.current().pid()} on ${host.exists() ? host.text.trim() : 'this host'}, launched in ${workflow.launchDir}".toString()
    try {
        java.nio.file.Files.createDirectories(folder)
        // Opened once: this program would give the lock up with the closing of a second opening.
        def stream = java.nio.channels.FileChannel.open(folder.resolve('.lock'), java.nio.file.StandardOpenOption.CREATE, java.nio.file.StandardOpenOption.READ, java.nio.file.StandardOpenOption.WRITE)
        if (isLocked(stream, folder)) {
            stream.truncate(0)
            stream.write(java.nio.ByteBuffer.wrap(mine.bytes), 0)
            return stream
        }
        stream.close()
        error("${folder.parent} is being written by ${folder.resolve('.lock').text ?: 'another run'}; wait for its end, or give another --outdir.")
    }
    catch (IOException problem) {
        error("${folder} cannot be written (${cause(problem)}); give it space and rights, or choose another --outdir.")
    }
}

def isLocked(stream, folder) {
    try {
        return stream.tryLock() != null
    }
    catch (IOException problem) {
        log.warn("${folder} is on a file system without locks (${cause(problem)}): a second run into this --outdir would not be noticed.")
        return true
    }
}

// The system's words, without the path that Java writes before them.
def cause(problem) {
    return problem instanceof java.nio.file.AccessDeniedException ? 'permission denied' : problem instanceof java.nio.file.FileSystemException && problem.reason ? problem.reason.uncapitalize() : problem.message
}
