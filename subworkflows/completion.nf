// The end of a run: where the results are and what is missing in them, or why it stopped and how to go on.
// And the lock that keeps a second run out of the same outdir.

include { endDrawing ; outputFolder ; read } from '../lib/functions'

// `results` is [meta, file] of all that this run made; `lock` is from lockOutdir.
def complete(results, lock) {
    endDrawing()
    workflow.success ? succeeded(results.findAll { _meta, file -> file.startsWith(workflow.workDir) }) : failed()
    lock.close()
}

def succeeded(results) {
    def outdir = outputFolder()
    def found = results.collect { meta, file -> outdir.resolve(meta.id).resolve(file.name) }
    if (!found) { return log.info('Nothing was made.') }
    log.info("Results:\n${(found.size() > 20 ? found*.parent.unique() : found).sort().collect { path -> "  ${path}" }.join('\n')}")
    def shown = { path -> "'${path.toString().replace("'", "'\\''")}'" }
    if (params.publish_dir_mode in ['symlink', 'rellink']) { log.info("They are links into ${workflow.workDir}, which must stay. To make them real files:\n  ${shown.call(workflow.projectDir.resolve('bin/materialize.py'))} ${shown.call(outdir)}") }
    found*.parent.unique().sort().each { folder ->
        // The verdict of the report; without a report, what STACK warns of.
        def records = ["${folder.name}_report.json", 'metrics/stack_metrics.json'].collect { name -> folder.resolve(name) }
        def record = records.findResult { file -> file.exists() && file.size() > 0 ? read(file) : null }
        if (record?.verdict) { log.info("${folder.name}: ${record.verdict}") }
        record?.warnings?.each { text -> log.warn("${folder.name}: ${text}") }
    }
}

// How a task ended that could not report it, by its exit code.
def endOf(exit) {
    def memory = "was killed (exit ${exit}), most likely for its memory; raise --max_memory, or give it more, as docs/hpc.md says"
    def outside = "was ended from outside (exit ${exit}), as a cancelled job is; .command.log in its folder may say why"
    return [(104): outside, (137): memory, (140): 'was out of its time (exit 140); give it more, as docs/hpc.md says', (143): outside, (247): memory][exit]
}

// The cause comes last: Nextflow does not say below it that it ends other tasks. Task and folder are from its report.
def failed() {
    org.slf4j.LoggerFactory.getLogger('nextflow.processor.TaskPollingMonitor').level = ch.qos.logback.classic.Level.ERROR
    def report = workflow.errorReport ?: ''
    def message = workflow.errorMessage ?: report
    def name = report.find(/Error executing process > '(?:[A-Z0-9_]+:)*(.+)'/) { found -> found[1] }
    if (name) {
        def place = report.find(/Work dir:\s+(\S.*)/) { found -> found[1] }
        log.info("${name} failed in ${place}\n  What is done is kept: once the cause is gone, run again with -resume.")
    }
    def unwritten = message =~ /(?:FileSystem|AccessDenied)Exception: (?:.* -> )?([^:\n]+)(?:: (.*))?/
    def cause = message.contains('error: ')
        ? message.split('error: ', 2)[1]
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
    def closed = [workflow.workDir, folder].find { path -> !java.nio.file.Files.isWritable(path) }
    if (closed) { error("${closed} cannot be written; give it space and rights, or choose another ${closed == folder ? '--outdir' : '-work-dir'}.") }
    // Opened once: this program would give the lock up with the closing of a second opening.
    def stream = new RandomAccessFile(folder.resolve('.lock').toFile(), 'rw')
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
