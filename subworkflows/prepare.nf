// Before any work: the subjects of the run, and PREFLIGHT's plan for each of them.

include { COHORT } from '../modules/cohort'
include { PHANTOM } from '../modules/phantom'
include { PREFLIGHT } from '../modules/preflight'
include { codeVersions ; endDrawing ; fingerprint ; isCommand ; metadataOf ; outputFolder ; partsOf ; read ; voxelsOf } from '../lib/functions'
include { switched } from '../lib/publishing'

// The subjects of this run: the rows of a samplesheet, the one --input, or a phantom that is made first.
workflow SUBJECTS {
    main:
    checkLaunch()
    if (params.samplesheet) {
        COHORT(optional(params.samplesheet, 'samplesheet'), requestOf([]), codeVersions().cohort)
        subjects = COHORT.out.cohort
            .map { cohort -> passed(cohort) }
            .flatMap { found -> found.subjects }
            .map { meta -> [meta, optional(meta.given.input, 'input'), optional(parameterOf(meta, 'truth'), 'truth')] }
    }
    else if (switched('phantom')) {
        PHANTOM([id: (asWritten('subject') ?: 'phantom').toString()], codeVersions().phantom)
        subjects = PHANTOM.out.subject
    }
    else {
        input = optional(asWritten('input'), 'input')
        subjects = channel.of([[id: (asWritten('subject') ?: input.simpleName).toString()], input, optional(params.truth, 'truth')])
    }

    emit:
    subjects // [meta, input, truth]; meta.given: parameters of the subject's own
}

workflow PREPARE {
    take:
    subjects // [meta, input, truth]
    code

    main:
    watched = subjects.map { meta, input, truth -> subjectOf(meta, input, truth) }
    // One task for all subjects, so that all their problems are named at once.
    all = watched.toSortedList { a, b -> a.meta.id <=> b.meta.id }.filter { list -> list }
    requests = all.map { list -> requestOf(list.collect { subject -> subject.meta + [marks: marksOf(subject.input), beside: subject.beside.keySet()] }) }
    PREFLIGHT(all.map { list -> [list, list*.input, list.collectMany { subject -> subject.beside.values() }, list.collectMany { subject -> subject.linked }] }, requests, code)
    planned = PREFLIGHT.out.plans
        .map { list, found -> [list, passed(found).plans] }
        .flatMap { list, plans -> [list, plans].transpose() }
        .map { subject, plan -> claimFolder(subject, plan) }

    emit:
    images = planned.flatMap { subject, plan -> imagesOf(subject, plan) } // [meta, image]
    plans = planned.map { subject, plan -> [subject.meta.id, stepsOf(subject, plan)] } // [id, steps]
}

// The parts of a launch that must be right before any task; the last is where tasks work.
def checkLaunch() {
    // Nextflow writes modes and numbers in the user's language: with Turkish letters it finds no mode SYMLINK.
    Locale.setDefault(Locale.ENGLISH)
    new ProcessBuilder('test', '-t', '1').inheritIO().start().waitFor() == 0 ? null : endDrawing()
    def further = nextflow.Global.session.binding.with { own -> own.hasVariable('args') && !own.args.any { word -> word.startsWith('-') } ? own.args - 'true' : [] }
    def profiled = workflow.profile.contains('profile_gpu') && !workflow.profile.contains('slurm') && !workflow.containerEngine
    def mounts = workflow.containerEngine ? [outdir: new File("${params.outdir}").absolutePath, scratch_dir: params.scratch_dir, gpu_lock_dir: params.gpu_lock_dir] : [:]
    def divided = mounts.find { _name, path -> "${path}".contains(':') }
    def checks = [
        [profiled && !isCommand('nsys'), '-profile profile_gpu needs the nsys command of Nsight Systems, which is not on the PATH; install it, or leave the profile out.'],
        [further, "'${further[0]}' belongs to no parameter; put quotes around a value with blanks, and give several subjects with --samplesheet."],
        [params.outdir instanceof Number, "--outdir is the number ${params.outdir}, without the zeros before it; give a folder for the results, such as ./01."],
        ["${params.outdir}".startsWith('~'), "--outdir is ${params.outdir}, in which no shell has replaced the ~; give the whole path."],
        [!params.outdir || "${params.outdir}" == 'true', '--outdir is missing; give a folder for the results, such as ./01.'],
        [divided, "--${divided?.key} ${divided?.value} has a : in its path, where ${workflow.containerEngine} divides a mount; give another one."],
        [params.samplesheet && (params.input || params.subject || switched('phantom')), '--samplesheet names the subjects and their inputs; leave out --input, --subject and --phantom (with -profile test: --phantom false).'],
        [!params.input && !params.samplesheet && !switched('phantom'), '--input is missing; give a folder of mosaics, one mosaic or one volume, a --samplesheet for a cohort, or try -profile test. --help lists all parameters.'],
    ]
    def problem = problemOf(params) ?: checks.find { wrong, _sentence -> wrong }?.last() ?: unlinkable(workflow.workDir)
    return problem ? error(problem) : requireEngine()
}

// On Slurm the nodes must have it, of which the launch knows nothing.
def requireEngine() {
    def engine = workflow.containerEngine
    if (!(engine in ['docker', 'apptainer', 'singularity']) || workflow.profile.tokenize(',').contains('slurm')) { return }
    if (!isCommand(engine)) { error("-profile ${engine} needs the ${engine} command, which is not on the PATH; install it, or leave the profile out.") }
    if (engine == 'docker') {
        def asked = new ProcessBuilder('docker', 'version').redirectErrorStream(true).start()
        def said = asked.inputStream.text.trim().readLines()
        if (asked.waitFor() != 0) { error("-profile docker: Docker's daemon does not answer (${said ? said.last() : 'no reason given'}); start it, get the right to use it, or leave the profile out.") }
    }
}

// What is wrong with names, and with values that Nextflow reads before any task and would refuse in Java's words.
def problemOf(given) {
    def names = read(file("${moduleDir}/../nextflow_schema.json"))['$defs'].collectMany { _name, group -> group.properties.keySet() }
    // Nextflow keeps a second spelling of a name with a dash or a capital. An unknown one may be a flag of a step.
    def unknown = given.keySet().findAll { name -> !(name in names) }.sort { name -> workflow.commandLine.contains("--${name}") ? 0 : 1 }
    if (unknown) {
        def single = unknown[0] ==~ /resume|profile|work-dir|params-file|stub|stub-run|preview|ansi-log|with-.*/ ? "did you mean -${unknown[0]}, with one dash?" : null
        def near = unknown[0].replaceAll(/-|(?=[A-Z])/, '_').toLowerCase().with { word -> names.closest(word) ?: names.findAll { name -> name.endsWith("_${word - ~/^no_/}") } }
        return "Unknown parameter --${unknown[0]}; ${single ?: near ? "did you mean --${near[0]}?" : 'see --help for all.'}"
    }
    def forms = [max_memory: ['(?=.*[1-9])[0-9]+([.][0-9]+)? *[KMGT]B?', "a size such as '32 GB'"], publish_dir_mode: ['symlink|rellink|link|copy', 'symlink, rellink, link or copy'], trace_report: ['(?i)true|false', 'true or false'], keep_going: ['(?i)true|false', 'true or false']]
    def counts = [max_cpus: 1, gpu_count: 0, gpu_slots: 1].collectEntries { name, least -> [name, ["0*[${least}-9][0-9]{0,3}", "a whole number from ${least} to 9999"]] }
    def wrong = (forms + counts).find { name, form -> given[name] != null && !(given[name].toString() ==~ form[0]) }
    return wrong ? "--${wrong.key} is '${given[wrong.key]}'; give ${wrong.value[1]}." : null
}

// What a check found; it says its notes. Problems end the run, and are removed, so that -resume looks again.
def passed(file) {
    def found = read(file)
    found.notes.each { note -> log.info(note) }
    if (found.problems) { file.delete() }
    return found.problems ? error(found.problems.join('\n')) : found
}

// A path parameter as a file, or an empty list: the value of a process's input that is not there. `word` is what
// may stand there for a file.
def optional(path, name, word = null) {
    def found = path ? file(path.toString(), type: 'any', glob: false) : []
    def words = word ? ", which takes a file, ${word} or none" : ''
    def problem = !path ? null : found.exists() ? unlinkable(found) : "${path} does not exist; check --${name}${words}."
    return problem ? error(problem) : found
}

// Nextflow links a path into a task's folder by a shell script, in which it leaves these signs as they are:
// with study1 beside study[1], the task would get the data of study1. It follows links, and keeps the name.
// Engines of containers divide a mount at each colon.
def unlinkable(path) {
    def real = path.exists() ? path.toRealPath() : path.toAbsolutePath()
    def names = "${real}${path.name}".toString()
    def sign = names.find(/[\[\]*?{}\$\p{Cntrl}]/) ?: (workflow.containerEngine ? names.find(':') : null)
    return sign ? "${real.toString().contains(sign) ? real : path} has ${sign < ' ' ? 'a control character' : "a ${sign}"} in its path, which Nextflow cannot hand to tasks; rename it." : null
}

// A name or path as it was written: Nextflow makes the number 1 of 01, and only the command line still has it.
def asWritten(name) {
    def written = (workflow.commandLine =~ "\\s--${name}[=\\s]([0-9.]+)(?=\\s|\$)").collect { found -> found[1] }
    return params[name] instanceof Number
        ? written ? written.last() : error("--${name} was read as ${params[name]} and not as text, which loses the zeros before a number; put quotes around it in the params file or config: ${name}: \"01\".")
        : params[name]
}

// A parameter of a subject: its own, else the run's.
def parameterOf(meta, name) {
    return (meta.given ?: [:]).getOrDefault(name, params[name])
}

// A subject's files, and the fingerprint of each. Errors are raised here and not in a closure of a function,
// where Nextflow would report an InvocationTargetException.
def subjectOf(meta, input, truth) {
    // Else it is made from the data, or left out.
    def fileOf = { name, skip, word -> optional(switched(skip) || parameterOf(meta, name).toString().toLowerCase() in [word, 'none', 'null', ''] ? null : parameterOf(meta, name), name, word) }
    def files = [input: input, truth: truth, positions: optional(parameterOf(meta, 'positions'), 'positions'), mask: fileOf.call('n4_mask', 'skip_n4', 'tissue'), flat_field: fileOf.call('stitch_flat_field', 'skip_stitch', 'estimate')]
    def lost = []
    def states = [:]
    try {
        states = files.values().flatten().collectEntries { path -> [path, fingerprint(path, lost)] }
    }
    catch (IOException | java.lang.reflect.InvocationTargetException problem) {
        error("${org.codehaus.groovy.runtime.StackTraceUtils.extractRootCause(problem).message} cannot be read; check your rights and the disk.")
    }
    if (lost) { error("${lost[0]} is a link to a file that is not there; restore that, or remove the link.") }
    def linked = partsOf(input).findAll { part -> java.nio.file.Files.isSymbolicLink(part) } + voxelsOf(input) + voxelsOf(files.mask)
    return files + [meta: meta, states: states, linked: linked, isResampled: parameterOf(meta, 'resolution') != null && !switched('skip_resample'), beside: files.subMap('positions', 'mask', 'truth', 'flat_field').findAll { _name, file -> file }]
}

// PREFLIGHT's and COHORT's request: all parameters, except those that name the one subject, as JSON. Paths
// are made absolute, because a task checks them.
def requestOf(subjects) {
    def parameters = [:] + params + [outdir: outputFolder().toString(), samplesheet: params.samplesheet ? optional(params.samplesheet, 'samplesheet').toAbsolutePath().toString() : null, input: null, subject: null]
    return groovy.json.JsonOutput.toJson([parameters: parameters, subjects: subjects])
}

// Size and time of each part of an input, of a store those of its metadata: a node may have other data behind
// the same path. In seconds, as not all file systems keep more.
def marksOf(input) {
    def parts = partsOf(input)
    // It takes a while, and a task shows nothing meanwhile.
    if (parts.size() > 1000) { log.info("PREFLIGHT looks at ${parts.size()} stores in ${input}; .command.log in its folder says how far it is.") }
    return parts.collectEntries { part ->
        def file = metadataOf(part) ?: part
        [part.name, file.isDirectory() ? null : [file.size(), file.lastModified().intdiv(1000)]]
    }
}

// A subject's folder belongs to one input, which input.json in it names; one that was moved or corrected is
// the same. Results of another go first, and each takes the place of what has its name: not of what is read.
def claimFolder(subject, plan) {
    // Another workflow, which has none of octane's parameters, publishes in its own way.
    if (params.publish_dir_mode == null) { return [subject, plan] }
    def made = subject.input.startsWith(workflow.workDir)
    def source = [input: made ? 'made by the run' : subject.input.toRealPath().toString(), fingerprint: made ? '' : subject.states[subject.input], stub: workflow.stubRun]
    def folder = outputFolder().resolve(subject.meta.id).tap { place -> place.mkdirs() }
    def record = folder.resolve('input.json')
    def earlier = record.exists() && record.size() > 0 ? read(record) : source
    def other = earlier.input != source.input && earlier.fingerprint != source.fingerprint
    def within = { path, place -> path.toRealPath().startsWith(place.toRealPath()) }
    def lost = (other ? subject.states.keySet() + [workflow.workDir] : [subject.input]).find { path -> within.call(path, folder) } ?: partsOf(subject.input).find { part -> within.call(folder, part) }
    def closed = [folder, record, folder.resolve('metrics')].find { path -> path.exists() && !java.nio.file.Files.isWritable(path) }
    def problem = closed ? "${closed} cannot be written; get rights to it from its owner, or give another --outdir or --subject."
        : lost ? "Results go to ${folder} and replace what is there, so that ${lost}, which the run reads, must lie neither in it nor around it; give another --outdir or --subject."
        : workflow.stubRun && record.exists() && !earlier.stub ? "${folder} has results, which a run with -stub-run would replace by empty files; give another --outdir."
        : other && !switched('overwrite_subject') ? "${folder} has the results of another input, ${earlier.input}; give this one a name of its own with --subject, or another --outdir, or replace them with --overwrite_subject." : null
    if (problem) { error(problem) }
    if (other) {
        log.warn("${folder} is emptied: it had the results of another input, ${earlier.input}.")
        java.nio.file.Files.walk(folder.toRealPath()).toList().drop(1).reverse().each { path -> java.nio.file.Files.delete(path) }
    }
    record.text = groovy.json.JsonOutput.prettyPrint(groovy.json.JsonOutput.toJson(source)) + '\n'
    return [subject, plan]
}

// One [meta, image] for each input of a plan. `seen` stands for the image's content, which Nextflow does not
// look at.
def imagesOf(subject, plan) {
    return plan.items.collect { item ->
        def image = item.file ? subject.input.resolve(item.file) : subject.input
        def voxels = voxelsOf(image)
        def seen = item.file ? fingerprint(image) : subject.states[image]
        [[id: subject.meta.id, section: item.id, kind: plan.kind, resample: subject.isResampled && plan.kind != 'section', seen: seen], voxels ? [image] + voxels : image]
    }
}

// A file of a section's tile positions, of the same name and time for the same content: Nextflow looks at these.
def tableOf(text) {
    def table = workflow.workDir.resolve("positions/${text.md5()}.csv")
    table.parent.mkdirs()
    if (!table.exists()) { table.text = text }
    return table
}

// The subject's own part of each step's tasks, [more meta, flags, file...], the number of its sections, and the tasks
// whose records its report expects: section_01_resample, stack.
def stepsOf(subject, plan) {
    def flags = plan.flags.withDefault { _step -> '' }
    def each = [resample: subject.isResampled && plan.kind != 'section', stitch: plan.kind == 'mosaic' && !switched('skip_stitch')]
    def once = [stack: plan.kind != 'volume', n4: !switched('skip_n4'), pyramid: !switched('skip_pyramid')]
    def used = { steps -> steps.findAll { _step, isUsed -> isUsed }.keySet() }
    def tasks = used.call(each).collectMany { step -> plan.items.collect { item -> "${item.id}_${step}".toString() } } + used.call(once)
    return ['resample', 'stack', 'pyramid'].collectEntries { step -> [step, [[:], flags[step]]] } + [
        stitch: [[:], flags.stitch, plan.items.collectEntries { item -> [item.id, item.positions ? tableOf(item.positions) : subject.positions] }, subject.flat_field],
        n4: [[beside: [subject.mask, subject.truth].collect { file -> subject.states[file] }], flags.n4, subject.mask ? [subject.mask] + voxelsOf(subject.mask) : [], subject.truth],
        report: [[input: subject.input.toString()], flags.report],
        sections: plan.items.size(),
        tasks: tasks,
        states: subject.states,
    ]
}
