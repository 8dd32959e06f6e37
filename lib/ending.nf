// What a run says at its end: where the results are, what is missing in them, what was tried again, and
// what to do after a failure.

include { outputFolder ; read ; switched } from './launch'
include { stepTable } from './steps'

// More subjects than so are listed by their folders.
def few() {
    return 5
}

// What ended a task that could not say so itself, by the exit code it left.
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

def had(tasks, field) {
    return tasks.collect { task -> task[field] }.join(', then ')
}

// What to do about such ends, where there is more than to go on.
def remedy(own, exit, place) {
    if (exit in ['137', '247']) {
        // A task that may have more is tried three times.
        return ["  It had ${had(own, 'memory')} of memory${own.size() < 3 ? ', and more is not to be had: raise --max_memory or take a larger machine.' : ': let it have more, as docs/hpc.md says.'}"]
    }
    if (exit == '140') {
        return ["  It took ${had(own, 'realtime')}: let it have more time, as docs/hpc.md says."]
    }
    return ends()[exit] ? ["  ${place}/.command.log may say why."] : []
}

// Nextflow's record of this run's tasks, with the name of the process alone; none where it is off.
def tasksOfRun() {
    def trace = params.outdir ? outputFolder().resolve('pipeline_info/trace.txt') : null
    if (!switched('trace_report') || !trace?.exists()) {
        return []
    }
    def lines = trace.readLines().collect { line -> line.split('\t') as List }
    return lines.drop(1).collect { cells -> [lines[0], cells].transpose().collectEntries { pair -> [pair[0], pair[1]] } }.collect { task -> task + [name: task.name.tokenize(':').size() > 1 ? task.name.replaceFirst(/^([A-Z0-9_]+:)+/, '') : task.name] }
}

def retried(tasks) {
    def again = tasks.findAll { task -> task.status == 'FAILED' && tasks.any { other -> other.name == task.name && other.status == 'COMPLETED' } }
    if (again) {
        log.info("Tried again, and then done:\n${again.collect { task -> "  ${task.name}: ${reason(task.exit)}" }.join('\n')}")
    }
}

// The numbers of a subject's sections that STACK did not get.
def missingOf(record) {
    return record.step == 'stack' ? record.figures?.missing_sections ?: [] : []
}

// What this run itself made: an earlier one into the same folder may have left other results there.
def succeeded(subjects, records, results) {
    def outdir = outputFolder()
    def ids = subjects.sort()
    def found = ids.size() > few()
        ? ids.collect { id -> outdir.resolve(id) }
        : results.findAll { meta, file -> meta.id && file.startsWith(workflow.workDir) }.collect { meta, file -> outdir.resolve(meta.id).resolve(file.name) }.sort()
    def cohort = results.findAll { meta, _file -> !meta.id }.collect { _meta, file -> outdir.resolve(file.name) }
    def notes = records.collectMany { meta, files -> [files].flatten().findAll { file -> file.name.endsWith('_metrics.json') && file.size() > 0 }.collect { file -> [id: meta.id] + read(file) } }
    def table = stepTable(notes)
    if (table) {
        log.info("Time is summed over tasks, bytes are of voxels:\n${table.collect { line -> "  ${line}" }.join('\n')}")
    }
    log.info("Results:\n${(found + cohort).findAll { path -> path.exists() }.collect { path -> "  ${path}" }.join('\n')}")
    if (params.publish_dir_mode in ['symlink', 'rellink']) {
        log.info("They are links into ${workflow.workDir}, which must stay. To make them real files:\n  ${workflow.projectDir}/bin/materialize.py '${outdir}'")
    }
    notes.findAll { note -> missingOf(note) }.sort { note -> note.id }.each { note ->
        log.warn("${note.id} lacks section ${missingOf(note).join(', ')}: blank slabs stand there, as --allow_missing_sections permits.")
    }
}

// Which task it was and where it worked, from Nextflow's own report, in which both have stood for years.
def failed(tasks) {
    def told = workflow.errorMessage ?: ''
    def report = workflow.errorReport ?: ''
    def name = (report =~ /Error executing process > '(?:[A-Z0-9_]+:)*(.+)'/).collect { match -> match[1] }.find { true }
    def place = (report =~ /Work dir:\s+(\S.*)/).collect { match -> match[1] }.find { true }
    def own = tasks.findAll { task -> task.name == name && task.status == 'FAILED' }
    def exit = own ? own.last().exit : workflow.exitStatus?.toString()
    def spoke = told.contains('error: ')
    if (spoke) {
        log.error("octane stopped: ${told.substring(told.indexOf('error: ') + 'error: '.length())}")
    }
    else if (name && ends()[exit]) {
        log.error("octane stopped: ${name} was ${ends()[exit]}.")
    }
    if (!name) {
        return
    }
    def what = spoke || !own ? [] : remedy(own, exit, place)
    def tries = own.size() > 1 ? ["  Tried ${own.size()} times, before: ${own.init().collect { task -> reason(task.exit) }.join('; ')}."] : []
    def again = workflow.commandLine.contains(' -resume') ? workflow.commandLine : "${workflow.commandLine} -resume"
    log.info((["${name} failed in ${place}"] + what + tries + ["  What is done is kept. Once the cause is gone, go on with:", "  ${again}"]).join('\n'))
}

// `subjects` are the names of this run's subjects, `records` and `results` what it made: others may have
// results in the same folder.
def ended(subjects, records, results) {
    def tasks = tasksOfRun()
    if (workflow.success) {
        succeeded(subjects, records, results)
        retried(tasks)
    }
    else {
        failed(tasks)
    }
}
