// What a run says at its end: where the results are, what is missing in them, what was tried again, and
// what to do after a failure.

include { read } from './launch'
include { stepTable } from './steps'

// More subjects than so are listed by their folders.
def few() {
    return 5
}

// Why a task that left this exit code was tried again.
def reason(exit) {
    def known = [
        '1': 'no space in its scratch folder',
        '28': 'no space in its scratch folder',
        '104': 'terminated',
        '137': 'killed, most likely for its memory',
        '140': 'out of its time',
        '143': 'terminated',
        '247': 'killed, most likely for its memory',
        '-': 'lost: it left no exit code',
    ]
    return known[exit] ? "${known[exit]}${exit == '-' ? '' : " (exit ${exit})"}" : "exit ${exit}"
}

// Nextflow's record of this run's tasks, with the name of the process alone; none where it is off.
def tasksOfRun() {
    def trace = params.outdir ? file("${params.outdir}/pipeline_info/trace.txt") : null
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

// Which steps this run has done for a subject: what an earlier run into the same folder left there is not
// its result. Everything is taken for done where Nextflow's record is off.
def done(tasks, subject, step) {
    return !tasks || tasks.any { task -> task.status in ['COMPLETED', 'CACHED'] && (task.name == "${step} (${subject})" || task.name.startsWith("${step} (${subject}:")) }
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
    def outdir = file(params.outdir.toString()).toAbsolutePath()
    def folders = subjects.unique().sort().collect { name -> outdir.resolve(name) }
    def found = folders.size() > few() ? folders.findAll { folder -> folder.exists() } : folders.collectMany { folder -> resultsOf(folder, tasks) }
    def table = stepTable(folders, { folder, record -> done(tasks, folder.name, record.step.toUpperCase()) })
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
            log.warn("${folder.name} lacks section ${missing.join(', ')}: blank slabs stand there, as --allow_missing_sections ${params.allow_missing_sections} permits.")
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
    def killed = workflow.exitStatus in [137, 247]
    if (told.contains('error: ')) {
        log.error("octane stopped: ${told.substring(told.indexOf('error: ') + 'error: '.length())}")
    }
    else if (name && killed) {
        log.error("octane stopped: ${name} was killed (exit ${workflow.exitStatus}), most likely for its memory.")
    }
    if (!name) {
        return
    }
    def memory = killed && own ? ["  It had ${own.collect { task -> task.memory }.join(', then ')} of memory, and more is not to be had: raise --max_memory or take a larger machine."] : []
    def tries = own.size() > 1 && !killed ? ["  Tried ${own.size()} times, before: ${own.init().collect { task -> reason(task.exit) }.join('; ')}."] : []
    def again = workflow.commandLine.contains(' -resume') ? workflow.commandLine : "${workflow.commandLine} -resume"
    log.info((["${name} failed in ${place}"] + memory + tries + ["  What is done is kept. Once the cause is gone, go on with:", "  ${again}"]).join('\n'))
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
