// Before any work: the subjects of the run, and PREFLIGHT's plan for each of them.

include { PHANTOM } from '../modules/phantom'
include { PREFLIGHT } from '../modules/preflight'
include { codeVersions ; commandLine ; fingerprint ; metadataOf ; outputFolder } from '../lib/functions'
include { partsOf ; read ; switched ; voxelsOf } from '../lib/functions'

// The subjects of this run: the rows of a samplesheet, the one --input, or a phantom that is made first.
workflow SUBJECTS {
    main:
    checkLaunch()
    if (params.samplesheet) {
        subjects = channel.fromList(rowsOf(file(params.samplesheet.toString(), glob: false)))
    }
    else if (switched('phantom')) {
        PHANTOM([id: (asWritten('subject') ?: 'phantom').toString()], codeVersions().phantom)
        subjects = PHANTOM.out.subject
    }
    else {
        input = file(asWritten('input').toString(), type: 'any', glob: false)
        meta = [id: (asWritten('subject') ?: input.simpleName).toString()]
        subjects = channel.of([meta, input, fileOf(meta, 'truth') ?: []])
    }

    emit:
    subjects // [meta, input, truth]; meta.given: parameters of the subject's own
}

workflow PREPARE {
    take:
    subjects // [meta, input, truth]
    code

    main:
    sheet = params.samplesheet ? file(params.samplesheet.toString(), glob: false) : []
    // One task for all subjects, so that all their problems are named at once.
    all = subjects
        .map { meta, input, truth -> subjectOf(meta, input, truth) }
        .toSortedList { a, b -> a.meta.id <=> b.meta.id }
        .filter { list -> list || sheet }
    staged = all.map { list ->
        def (inputs, others) = list*.files*.entrySet().flatten().split { file -> file.key == 'input' }
        [list, inputs*.value, others*.value, list*.linked.flatten(), sheet]
    }
    PREFLIGHT(staged, all.map { list -> requestOf(list) }, code)
    planned = PREFLIGHT.out.plans
        .map { list, found -> [list, passed(found).plans] }
        .flatMap { list, plans -> [list, plans].transpose() }
        .map { subject, plan -> claimFolder(subject, plan) }

    emit:
    images = planned.flatMap { subject, plan -> imagesOf(subject, plan) } // [meta, image]
    plans = planned.map { subject, plan -> [subject.meta.id, stepsOf(subject, plan)] } // [id, steps]
}

// What must be right before any task can run; PREFLIGHT checks all else.
def checkLaunch() {
    // Nextflow writes modes and numbers in the user's language: with Turkish letters it finds no mode SYMLINK.
    Locale.setDefault(Locale.ENGLISH)
    def outdir = (params.outdir ?: '').toString()
    def mounts = [outdir: new File(outdir).absolutePath] + params.subMap('scratch_dir', 'gpu_lock_dir')
    def divided = workflow.containerEngine ? mounts.find { _name, path -> "${path}".contains(':') } : null
    def sheet = params.samplesheet ? file(params.samplesheet.toString(), glob: false) : null
    def checks = [
        [params.outdir instanceof Number, "--outdir is the number ${outdir}, without the zeros before it; write ./01."],
        [outdir.startsWith('~'), "--outdir is ${outdir}, in which no shell has replaced the ~; give the whole path."],
        [outdir in ['', 'true'], '--outdir is missing; give a folder for the results, such as ./01.'],
        [divided, "--${divided?.key} ${divided?.value} has a : in its path, which divides a mount; give another one."],
        [
            sheet && (params.input || params.subject || switched('phantom')),
            '--samplesheet names the subjects and their inputs; leave out --input, --subject and --phantom.',
        ],
        [sheet && !sheet.isFile(), "--samplesheet ${sheet} is not a file; check the path."],
        [
            !sheet && !params.input && !switched('phantom'),
            '--input is missing; give a folder of mosaics, one mosaic or one volume, or --samplesheet for a cohort, ' +
                'or try -profile test. --help lists all parameters.',
        ],
    ]
    def problem = checks.find { isWrong, _sentence -> isWrong }?.last()
    problem = problem ?: unlinkable(workflow.workDir) ?: unlinkable(sheet)
    return problem ? error(problem) : null
}

// What a check found: notes are logged. Problems end the run, and their file goes, so that -resume checks again.
def passed(file) {
    def found = read(file)
    found.notes.each { note -> log.info(note) }
    if (found.problems) { file.delete() }
    return found.problems ? error(found.problems.join('\n')) : found
}

// The rows of a samplesheet as subjects. PREFLIGHT reads it too, and says what is wrong and where the two differ.
def rowsOf(sheet) {
    def lines = []
    try {
        def first = sheet.readLines('UTF-8').find { line -> line.trim() } ?: ''
        def separator = [',', ';', '\t'].max { sign -> first.count(sign) }
        lines = sheet.splitCsv(sep: separator, quote: '"', strip: true, charset: 'UTF-8')
    }
    catch (IOException | IllegalStateException problem) {
        log.debug("${sheet}: ${problem.message}")
    }
    def rows = lines.drop(1).collect { cells ->
        [lines[0], cells].transpose().collectEntries().findAll { name, cell -> name && cell }
    }
    return rows.findAll().collect { given ->
        def meta = [id: given.subject ?: '', given: given, folder: sheet.toAbsolutePath().parent.toString()]
        [meta, fileOf(meta, 'input'), fileOf(meta, 'truth')]
    }
}

// A sentence on a file that a parameter names, and that Nextflow cannot stage; null on any other.
def problemOf(name, path) {
    def words = [n4_mask: 'tissue', stitch_flat_field: 'estimate'][name]
    return path.exists()
        ? unlinkable(path)
        : "${path} does not exist; check --${name}${words ? ", which takes a file, ${words} or none" : ''}."
}

// Nextflow links a path into a task's folder by a shell script, in which it leaves these signs as they are:
// with study1 beside study[1], the task would get the data of study1. It follows links, and keeps the name.
// Engines of containers divide a mount at each colon.
def unlinkable(path) {
    if (!path) { return null }
    def real = path.exists() ? path.toRealPath() : path.toAbsolutePath()
    def names = "${real}${path.name}".toString()
    def sign = names.find(/[\[\]*?{}\$\p{Cntrl}]/) ?: (workflow.containerEngine ? names.find(':') : null)
    def shown = real.toString().contains(sign ?: '') ? real : path
    def word = (sign ?: '') < ' ' ? 'a control character' : "a ${sign}"
    return sign ? "${shown} has ${word} in its path, which Nextflow cannot hand to tasks; rename it." : null
}

// A name or path as it was written: Nextflow makes the number 1 of 01, and only the command line still has it.
def asWritten(name) {
    def written = (workflow.commandLine =~ "\\s--${name}[=\\s]([0-9.]+)(?=\\s|\$)").collect { found -> found[1] }
    return !(params[name] instanceof Number)
        ? params[name]
        : written
        ? written.last()
        : error("--${name} was read as ${params[name]} and not as text, which loses the zeros before a number; " +
            "put quotes around it in the params file or config: ${name}: \"01\".")
}

// A parameter of a subject: its own, else the run's.
def parameterOf(meta, name) {
    return (meta.given ?: [:]).getOrDefault(name, params[name])
}

// The file that a parameter of a subject names; null where it names none. Paths of a samplesheet start from its folder.
def fileOf(meta, name) {
    def word = [n4_mask: 'tissue', stitch_flat_field: 'estimate'][name]
    def path = parameterOf(meta, name)?.toString()
    def folder = meta.given?.get(name) ? meta.folder : null
    return !path || path.toLowerCase() in [word, 'none', 'null']
        ? null
        : file(folder ? java.nio.file.Path.of(folder).resolve(path).toString() : path, type: 'any', glob: false)
}

// A subject's files by their parameters, the fingerprint of each, and sentences on those that cannot be staged.
def subjectOf(meta, input, truth) {
    def named = [
        input: input,
        positions: fileOf(meta, 'positions'),
        n4_mask: switched('skip_n4') ? null : fileOf(meta, 'n4_mask'),
        truth: truth,
        stitch_flat_field: switched('skip_stitch') ? null : fileOf(meta, 'stitch_flat_field'),
    ].findAll { _name, path -> path }
    def states = [:]
    def problems = named.collect { name, path -> problemOf(name, path) ?: lookAt(path, states) }
    def files = named.findAll { _name, path -> path in states.keySet() }
    if (workflow.stubRun && problems.any()) { error(problems.findAll().join('\n')) }
    return [
        meta: meta,
        files: files,
        problems: problems.findAll(),
        states: states,
        linked: linksOf(files.input) + voxelsOf(files.input) + voxelsOf(files.n4_mask),
        isResampled: parameterOf(meta, 'resolution') != null && !switched('skip_resample'),
    ]
}

def linksOf(input) {
    return input ? partsOf(input).findAll { part -> java.nio.file.Files.isSymbolicLink(part) } : []
}

// Add the fingerprint of a file to `states`; a sentence where it cannot be read whole.
def lookAt(path, states) {
    def lost = []
    try {
        def state = fingerprint(path, lost)
        if (!lost) { states[path] = state }
        return lost ? "${lost[0]} is a link to a file that does not exist; restore that, or remove the link." : null
    }
    catch (IOException | UncheckedIOException problem) {
        return "${(problem.cause ?: problem).message} cannot be read; check your rights and the disk."
    }
}

// PREFLIGHT's request as JSON: all parameters, except those that name the one subject, and the subjects. Paths are made
// absolute, because a task checks them.
def requestOf(list) {
    def sheet = params.samplesheet ? file(params.samplesheet.toString(), glob: false).toAbsolutePath().toString() : null
    def parameters = [:] + params + [outdir: outputFolder().toString(), samplesheet: sheet, input: null, subject: null]
    def subjects = list.collect { subject ->
        def marks = subject.files.input ? marksOf(subject.files.input) : [:]
        subject.meta.subMap('id', 'given') + [marks: marks, staged: subject.files.keySet(), problems: subject.problems]
    }
    return groovy.json.JsonOutput.toJson([parameters: parameters, subjects: subjects, command: commandLine()])
}

// Size and time of each part of an input, of a store those of its metadata: a node may have other data behind
// the same path. In seconds, as not all file systems keep more.
def marksOf(input) {
    def parts = partsOf(input)
    // It takes a while, and a task shows nothing meanwhile.
    if (parts.size() > 1000) {
        log.info("PREFLIGHT looks at ${parts.size()} stores in ${input}; its .command.log says how far it is.")
    }
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
    def input = subject.files.input
    def isMade = input.startsWith(workflow.workDir)
    def source = [
        input: isMade ? 'made by the run' : input.toRealPath().toString(),
        fingerprint: isMade ? '' : subject.states[input],
        stub: workflow.stubRun,
    ]
    def folder = outputFolder().resolve(subject.meta.id).tap { place -> place.mkdirs() }
    def record = folder.resolve('input.json')
    def earlier = record.exists() && record.size() > 0 ? read(record) : source
    def isOther = earlier.input != source.input && earlier.fingerprint != source.fingerprint
    def isWithin = { path, place -> path.toRealPath().startsWith(place.toRealPath()) }
    def places = isOther ? subject.states.keySet() + [workflow.workDir] : [input]
    def around = partsOf(input).find { part -> isWithin.call(folder, part) }
    def lost = places.find { path -> isWithin.call(path, folder) } ?: around
    def closed = [folder, record, folder.resolve('metrics')].find { path ->
        path.exists() && !java.nio.file.Files.isWritable(path)
    }
    def problem = closed
        ? "${closed} cannot be written; get rights to it from its owner, or give another --outdir or --subject."
        : lost
        ? "Results go to ${folder} and replace what is there, so that ${lost}, which the run reads, " +
            'must lie neither in it nor around it; give another --outdir or --subject.'
        : workflow.stubRun && record.exists() && !earlier.stub
        ? "${folder} has results, which a run with -stub-run would replace by empty files; give another --outdir."
        : isOther && !switched('overwrite_subject')
        ? "${folder} has the results of another input, ${earlier.input}; give this one a name of its own with " +
            '--subject, or another --outdir, or replace them with --overwrite_subject.'
        : null
    if (problem) { error(problem) }
    if (isOther) {
        log.warn("${folder} is emptied: it had the results of another input, ${earlier.input}.")
        def old = java.nio.file.Files.walk(folder.toRealPath()).toList().drop(1)
        old.reverse().each { path -> java.nio.file.Files.delete(path) }
    }
    record.text = groovy.json.JsonOutput.prettyPrint(groovy.json.JsonOutput.toJson(source)) + '\n'
    return [subject, plan]
}

// One [meta, image] for each input of a plan. `seen` stands for the image's content, which Nextflow does not
// look at.
def imagesOf(subject, plan) {
    def resample = subject.isResampled && plan.kind != 'section'
    return plan.items.collect { item ->
        def image = item.file ? subject.files.input.resolve(item.file) : subject.files.input
        def seen = item.file ? fingerprint(image) : subject.states[image]
        def meta = [id: subject.meta.id, section: item.id, kind: plan.kind, resample: resample, seen: seen]
        [meta, voxelsOf(image) ? [image] + voxelsOf(image) : image]
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
    def isMosaic = plan.kind == 'mosaic' && !switched('skip_stitch')
    def each = [resample: subject.isResampled && plan.kind != 'section', stitch: isMosaic]
    def once = [stack: plan.kind != 'volume', n4: !switched('skip_n4'), pyramid: !switched('skip_pyramid')]
    def used = { steps -> steps.findAll { _step, isUsed -> isUsed }.keySet() }
    def ofItems = used.call(each).collectMany { step -> plan.items.collect { item -> "${item.id}_${step}".toString() } }
    def files = subject.files
    def tables = plan.items.collectEntries { item ->
        [item.id, item.positions ? tableOf(item.positions) : files.positions ?: []]
    }
    def mask = files.n4_mask ? [files.n4_mask] + voxelsOf(files.n4_mask) : []
    def seen = [files.n4_mask, files.truth].collect { file -> subject.states[file] }
    return [
        resample: [[:], flags.resample],
        stitch: [[:], flags.stitch, tables, files.stitch_flat_field ?: []],
        stack: [[:], flags.stack],
        n4: [[beside: seen], flags.n4, mask, files.truth ?: []],
        pyramid: [[:], flags.pyramid],
        report: [[input: files.input.toString()], flags.report],
        sections: plan.items.size(),
        tasks: ofItems + used.call(once),
        states: subject.states,
    ]
}
