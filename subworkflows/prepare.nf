// Before any work: the subjects of the run, and PREFLIGHT's plan for each of them.

include { COHORT } from '../modules/cohort'
include { PHANTOM } from '../modules/phantom'
include { PREFLIGHT } from '../modules/preflight'
include { codeVersion ; fingerprint ; metadataOf ; outputFolder ; partsOf ; read ; switched } from '../lib/functions'

// The subjects of this run: the rows of a samplesheet, the one --input, or a phantom that is made first.
workflow SUBJECTS {
    main:
    checkLaunch()
    if (params.samplesheet) {
        COHORT(optional(asWritten('samplesheet')), groovy.json.JsonOutput.toJson(parameters()), codeVersion('cohort'))
        subjects = COHORT.out.cohort.flatMap { cohort -> subjectsOf(cohort) }
    }
    else if (switched('phantom')) {
        PHANTOM([id: subjectName()], codeVersion('phantom'))
        subjects = PHANTOM.out.subject
    }
    else {
        subjects = channel.of([[id: subjectName()], optional(asWritten('input')), optional(params.truth)])
    }

    emit:
    subjects // [meta, input, truth]; meta.given: parameters of the subject's own
}

workflow PREPARE {
    take:
    subjects // [meta, input, truth]

    main:
    watched = subjects.map { meta, input, truth -> requireOwnFolder(meta, input, truth, statesOf(meta, input, truth)) }
    all = watched.toSortedList { a, b -> a[0].id <=> b[0].id }.filter { list -> list }.map { list -> requestOf(list) }
    PREFLIGHT(all.map { parts -> parts.init() }, all.map { parts -> parts.last() }, codeVersion('preflight'))
    PREFLIGHT.out.plans.subscribe { _ids, found -> announce(read(found)) }
    plans = PREFLIGHT.out.plans
        .flatMap { ids, found -> [ids, read(found).plans].transpose() }
        .join(watched.map { meta, input, truth, states -> [meta.id, meta, input, truth, states] })
        .map { _id, plan, meta, input, truth, states ->
            markFolder(meta, sourceOf(input, states))
            [meta, plan, input, truth, states]
        }
    // For each step [id, more meta, flags, file...]: the subject's own part of its tasks.
    own = plans.multiMap { meta, plan, _input, truth, states ->
        def mask = maskOf(meta)
        // Stubs have none.
        def flags = plan.flags.withDefault { _step -> '' }
        resample: [meta.id, [:], flags.resample]
        stitch: [meta.id, [:], flags.stitch, optional(parameterOf(meta, 'positions'))]
        stack: [meta.id, [:], flags.stack]
        n4: [meta.id, [beside: [mask, truth].collect { file -> states[file] ?: '' }.join()], flags.n4, mask, truth]
        pyramid: [meta.id, [:], flags.pyramid]
        report: [meta.id, [records: recordsOf(meta, plan)], flags.report]
    }

    emit:
    images = plans.flatMap { meta, plan, input, _truth, states -> itemsOf(meta, plan, input, states) } // [meta, image]
    resample = own.resample
    stitch = own.stitch
    stack = own.stack
    n4 = own.n4
    pyramid = own.pyramid
    report = own.report
    states = watched.map { meta, _input, _truth, states -> [meta.id, states] }
}

// A path parameter as a file, or an empty list: the value of a process's input that is not there.
def optional(path) {
    if (!path) {
        return []
    }
    def found = file(path.toString(), type: 'any', glob: false)
    if (!found.exists()) {
        error("${path} does not exist; check the path.")
    }
    return linkable(found, 'rename it')
}

// A path that Nextflow can link into a task's folder: it follows links, and keeps the name alone. It does so
// by a shell script, in which it leaves these signs as they are: with study1 beside study[1], the task
// would get the data of study1. Errors are raised in this file and not in a closure that a closure calls:
// Nextflow would report an InvocationTargetException.
def linkable(path, remedy) {
    def problem = unlinkable(path)
    if (problem) {
        error("${problem}; ${remedy}.")
    }
    return path
}

def unlinkable(path) {
    def real = path.exists() ? path.toRealPath() : path.toAbsolutePath()
    def sign = ("${real}${path.name}" =~ /[\[\]*?{}\$\p{Cntrl}]/).collect { found -> found }.find { true }
    def shown = sign == '\t' ? 'a tab' : sign == '\n' ? 'a line break' : sign && sign < ' ' ? 'a control character' : "a ${sign}"
    return sign ? "${real.toString().contains(sign) ? real : path} has ${shown} in its path, which Nextflow cannot hand to tasks" : null
}

// The parts of a launch that must be right before any task.
def checkLaunch() {
    def sources = ['input', 'samplesheet'].findAll { name -> params[name] } + (switched('phantom') ? ['phantom'] : [])
    if (!sources) {
        error('--input is missing; give a folder of mosaics, one mosaic or one volume, a --samplesheet for a cohort, or try -profile test. --help lists all parameters.')
    }
    def beside = (params.subject != null ? ['subject'] : []) + sources - 'samplesheet'
    if (params.samplesheet && beside) {
        error("--samplesheet names the subjects and their inputs; leave out ${beside.collect { name -> "--${name}" }.join(' and ')}${'phantom' in beside ? ' (with -profile test: --phantom false)' : ''}.")
    }
    if (!params.outdir) {
        error('--outdir is missing; give a folder for the results.')
    }
    linkable(workflow.workDir, 'choose another -work-dir')
    if (workflow.profile.contains('profile_gpu') && !workflow.profile.contains('slurm') && !workflow.containerEngine && !System.getenv('PATH').tokenize(':').any { folder -> file("${folder}/nsys").exists() }) {
        error('-profile profile_gpu needs the nsys command of Nsight Systems, which is not on the PATH; install it, or leave the profile out.')
    }
    if (params.outdir instanceof Number) {
        error("--outdir was read as the number ${params.outdir}, which loses the zeros before it; give it with its folder, such as ./01.")
    }
}

// A name or path as it was written: Nextflow makes the number 1 of 01, and only the command line
// still has the text; of a params file or a config nothing is left.
def asWritten(name) {
    def given = params[name]
    if (given == null || given instanceof CharSequence) {
        return given
    }
    def written = (workflow.commandLine =~ "\\s--${name}[=\\s]([0-9.]+)(?=\\s|\$)").collect { found -> found[1] }
    if (given instanceof Number && written && written.last().isNumber() && written.last().toBigDecimal() == given.toString().toBigDecimal()) {
        return written.last()
    }
    return error("--${name} was read as ${given} and not as text, which loses the zeros before a number; put quotes around it in the params file or config: ${name}: \"01\".")
}

// It becomes a folder and a part of file names, also in task scripts.
def subjectName() {
    def name = asWritten('subject') ?: (switched('phantom') ? 'phantom' : file(asWritten('input') ?: 'input', glob: false).simpleName)
    if (!(name ==~ /[\p{L}\p{M}\p{N} ._()-]+/) || name ==~ /[.-].*/) {
        error("'${name}' is no name for a subject: use letters, digits, blanks and ._()-, with no . or - first; give another --subject.")
    }
    return name.toString()
}

def subjectsOf(cohort) {
    return read(cohort).collect { row ->
        def meta = [id: row.subject, given: row.given, row: row.row]
        [meta, optional(row.given.input), optional(parameterOf(meta, 'truth'))]
    }
}

// A parameter of a subject: its own, else the run's.
def parameterOf(meta, name) {
    return (meta.given ?: [:]).getOrDefault(name, params[name])
}

// A mask is a file where it is neither made from the data nor left out.
def maskOf(meta) {
    def mask = parameterOf(meta, 'n4_mask')
    return optional(switched('skip_n4') || mask.toString().toLowerCase() in ['tissue', 'none', 'null', ''] ? null : mask)
}

// Each file and folder of a subject that the run reads, with its fingerprint.
def statesOf(meta, input, truth) {
    def odd = partsOf(input).find { part -> unlinkable(part) }
    if (odd) {
        error("${unlinkable(odd)}; rename it.")
    }
    def given = [input, truth, optional(parameterOf(meta, 'positions')), maskOf(meta)]
    def lost = []
    def states = given.flatten().collectEntries { path -> [path, fingerprint(path, lost)] }
    if (lost) {
        error("${lost[0]} is a link to a file that is not there; restore that, or remove the link.")
    }
    return states
}

// The input of a subject's results, as input.json beside them says. What a task made has no lasting place.
def sourceOf(input, states) {
    return input.startsWith(workflow.workDir) ? [input: 'made by the run', fingerprint: ''] : [input: input.toRealPath().toString(), fingerprint: states[input]]
}

// The other input that the results in a subject's folder are of; null where there is none. It lies elsewhere
// and has other files: one that was moved or corrected is the same.
def otherSource(meta, source) {
    def record = params.publish_dir_mode == null ? null : outputFolder().resolve(meta.id).resolve('input.json')
    def earlier = record?.exists() ? read(record) : source
    return earlier.input != source.input && earlier.fingerprint != source.fingerprint ? earlier.input : null
}

def requireOwnFolder(meta, input, truth, states) {
    def other = otherSource(meta, sourceOf(input, states))
    if (other && !switched('overwrite_subject')) {
        error("${outputFolder().resolve(meta.id)} has the results of another input, ${other}; give this one a name of its own with --subject, or another --outdir, or replace them with --overwrite_subject.")
    }
    return [meta, input, truth, states]
}

// With --overwrite_subject the results of another input go first: links into the work directory, whose
// targets stay.
def markFolder(meta, source) {
    if (params.publish_dir_mode == null) {
        return
    }
    def folder = outputFolder().resolve(meta.id)
    def other = otherSource(meta, source)
    if (other) {
        log.warn("${folder} is emptied: it had the results of another input, ${other}.")
        def root = folder.toRealPath()
        java.nio.file.Files.walk(root).toList().reverse().findAll { path -> path != root }.each { path -> java.nio.file.Files.delete(path) }
    }
    folder.mkdirs()
    folder.resolve('input.json').text = groovy.json.JsonOutput.prettyPrint(groovy.json.JsonOutput.toJson(source)) + '\n'
}

// PREFLIGHT's input: [ids, inputs, fingerprints, tables of positions, request as JSON].
def requestOf(all) {
    def tables = []
    def subjects = all.collect { meta, input, _truth, _states ->
        def table = optional(parameterOf(meta, 'positions'))
        // Not `tables += table`: a path is a list of its names to Groovy.
        if (table) {
            tables << table
        }
        [subject: meta.id, given: meta.given ?: [:], row: meta.row ?: '', table: table ? tables.size() : null, marks: marksOf(input) + (table ? marksOf(table) : [:])]
    }
    def request = groovy.json.JsonOutput.toJson([parameters: parameters(), written: [outputFolder(), workflow.workDir, workflow.launchDir]*.toString(), subjects: subjects])
    return [subjects*.subject, all*.get(1), all.collect { _meta, input, _truth, states -> states[input] }, tables, request]
}

// Size and time, in seconds, of an input's files or of its stores' metadata, by name: PREFLIGHT checks by them
// that a task is given the data that the launch meant, and that a node has the same behind a path.
def marksOf(input) {
    return partsOf(input).collectEntries { part ->
        def file = metadataOf(part) ?: part
        [part.name, file.isDirectory() ? null : [file.size(), file.lastModified().intdiv(1000)]]
    }
}

// All parameters, paths made absolute: they are checked in a work directory.
def parameters() {
    // Nextflow keeps a second spelling (someName for some-name) of every parameter with a dash.
    def given = params.findAll { key, _value -> !(key.contains('-') && params.containsKey(key.replaceAll(/-(.)/) { all -> all[1].toUpperCase() })) }
    def outdir = params.outdir ? outputFolder().toString() : null
    def sheet = params.samplesheet ? optional(asWritten('samplesheet')).toAbsolutePath().toString() : null
    return given + [outdir: outdir, samplesheet: sheet, input: asWritten('input')?.toString(), subject: null]
}

// PREFLIGHT's findings on space, before hours of work.
def announce(found) {
    if (found.space) {
        log.info("${found.plans.size() == 1 ? found.plans[0].subject : "${found.plans.size()} subjects"} ${found.space.summary}")
        found.space.warnings.each { line -> log.warn(line) }
    }
}

def isResampled(meta, plan) {
    return parameterOf(meta, 'resolution') != null && !switched('skip_resample') && plan.kind != 'section'
}

// One [meta, image] for each input of a plan. `seen` stands for the image's content, which Nextflow does not
// look at.
def itemsOf(meta, plan, input, states) {
    return plan.items.collect { item ->
        def image = item.file ? input.resolve(item.file) : input
        [[id: meta.id, section: item.id, kind: plan.kind, count: plan.items.size(), resample: isResampled(meta, plan), seen: item.file ? fingerprint(image) : states[input]], image]
    }
}

// The number of records that the steps of a subject will leave.
def recordsOf(meta, plan) {
    def each = (isResampled(meta, plan) ? 1 : 0) + (plan.kind == 'mosaic' && !switched('skip_stitch') ? 1 : 0)
    return plan.items.size() * each + [plan.kind != 'volume', !switched('skip_n4'), !switched('skip_pyramid')].count { step -> step }
}
