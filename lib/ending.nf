// What a run says at its end: where the results are, what is missing in them, what was tried again, and
// what to do after a failure.

include { outputFolder } from './inputs'
include { read } from './launch'
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
    if (params.trace_report != true || !trace?.exists()) {
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

// Whether this run has done a task, or found it done: what an earlier run into the same folder left there is
// not its result. Everything is taken for done where Nextflow's record is off.
def ran(tasks, name) {
    return !tasks || tasks.any { task -> task.status in ['COMPLETED', 'CACHED'] && task.name == name }
}

def done(tasks, subject, step) {
    return tasks.any { task -> task.name.startsWith("${step} (${subject}:") && ran(tasks, task.name) } || ran(tasks, "${step} (${subject})".toString())
}

// The numbers of a subject's sections that STACK did not get.
def missingOf(folder, tasks) {
    def record = folder.resolve('metrics/stack_metrics.json')
    return done(tasks, folder.name, 'STACK') && record.exists() && record.size() > 0 ? read(record).figures?.missing_sections ?: [] : []
}

// The step that makes a result, by its name.
def makerOf(folder, name) {
    def subject = folder.name
    def makers = ["${subject}.ome.zarr": 'PYRAMID', "${subject}_n4.ome.zarr": 'N4', "${subject}_bias.ome.zarr": 'N4', "${subject}_stack.ome.zarr": 'STACK', "${subject}_report.html": 'REPORT'].collectEntries { file, step -> [file.toString(), step] }
    return makers[name] ?: 'RESAMPLE'
}

def resultsOf(folder, tasks) {
    def found = []
    if (folder.exists()) {
        folder.eachFile { path -> if ((path.name.endsWith('.ome.zarr') || path.name.endsWith('report.html')) && done(tasks, folder.name, makerOf(folder, path.name))) { found << path } }
    }
    return found.sort()
}

def succeeded(subjects, tasks) {
    def outdir = outputFolder()
    def folders = subjects.unique().sort().collect { name -> outdir.resolve(name) }
    def found = folders.size() > few() ? folders.findAll { folder -> folder.exists() } : folders.collectMany { folder -> resultsOf(folder, tasks) }
    def table = stepTable(folders, { name -> ran(tasks, name) })
    if (table) {
        log.info("Time is summed over tasks, bytes are of voxels:\n${table.collect { line -> "  ${line}" }.join('\n')}")
    }
    def cohort = outdir.resolve('cohort_report.html')
    // One of an earlier run into the same folder is not this run's.
    if (folders.size() > 1 && cohort.exists() && (!tasks || tasks.any { task -> task.status in ['COMPLETED', 'CACHED'] && task.name.startsWith('COHORT_REPORT') })) {
        found << cohort
    }
    log.info("Results:\n${found.collect { path -> "  ${path}" }.join('\n')}")
    if (params.publish_dir_mode in ['symlink', 'rellink']) {
        log.info("They are links into ${workflow.workDir}, which must stay. To make them real files:\n  ${workflow.projectDir}/bin/materialize.py '${outdir}'")
    }
    folders.each { folder ->
        def missing = missingOf(folder, tasks)
        if (missing) {
            log.warn("${folder.name} lacks section ${missing.join(', ')}: blank slabs stand there, as --allow_missing_sections permits.")
        }
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

// `subjects` are the names of this run's subjects; others may have results in the same folder.
def ended(subjects) {
    def tasks = tasksOfRun()
    if (workflow.success) {
        succeeded(subjects, tasks)
        retried(tasks)
    }
    else {
        failed(tasks)
    }
}
