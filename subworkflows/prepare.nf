// Before any work: the subjects of the run, and PREFLIGHT's plan for each.

include { PHANTOM } from '../modules/phantom'
include { PREFLIGHT } from '../modules/preflight'
include { codeVersions ; outputFolder ; quotedWords ; read ; switched ; voxelsOf } from '../lib/functions'

// The subjects of this run: the rows of a samplesheet, the --input, or a phantom that is made first.
workflow SUBJECTS {
    main:
    checkLaunch()
    if (params.samplesheet) {
        subjects = channel.fromList(rowsOf(file(params.samplesheet.toString(), glob: false)))
    }
    else if (switched('phantom')) {
        phantom = [id: (asWritten('subject') ?: 'phantom').toString()]
        code = codeVersions()
        // Of a subject without an input, PREFLIGHT checks the parameters.
        CHECK(channel.of([phantom, [], []]), code.preflight)
        PHANTOM(CHECK.out.plans.map { _list, _plans -> phantom }, code.phantom)
        subjects = PHANTOM.out.subject
    }
    else {
        input = localFile('input', asWritten('input').toString())
        meta = [id: (asWritten('subject') ?: input.simpleName).toString()]
        subjects = channel.of([meta, input, []])
    }

    emit:
    subjects // [meta, input, truth]; meta.given: the subject's own parameters
}

workflow PREPARE {
    take:
    subjects // [meta, input, truth]
    code

    main:
    CHECK(subjects, code)
    planned = CHECK.out.plans
        .flatMap { list, plans -> [list, plans].transpose() }
        .map { subject, plan ->
            def data = dataOf(subject, plan)
            claimFolder(subject, plan, data)
            [subject, plan, data]
        }

    emit:
    data = planned.flatMap { _subject, _plan, data -> data.collect { name, files -> [name, files] } }
    tasks = planned.flatMap { _subject, plan, _data -> plan.tasks }
    plans = planned.map { subject, plan, _data ->
        def states = plan.states.collect { own -> own + [path: subject.files[own.file].toString()] }
        [subject.meta.id, [tasks: plan.records, results: plan.results, states: states]]
    }
}

// One task for all subjects, to report all their problems at once.
workflow CHECK {
    take:
    subjects // [meta, input, truth]
    code

    main:
    sheet = params.samplesheet ? file(params.samplesheet.toString(), glob: false) : []
    all = subjects
        .map { meta, input, truth -> subjectOf(meta, input, truth) }
        .toSortedList { a, b -> a.meta.id <=> b.meta.id }
        .filter { list -> list || sheet }
    staged = all.map { list ->
        def (inputs, others) = list*.files*.entrySet().flatten().split { file -> file.key == 'input' }
        [list, inputs*.value, others*.value, list*.linked.flatten(), sheet]
    }
    PREFLIGHT(staged, all.map { list -> requestOf(list) }, code)

    emit:
    plans = PREFLIGHT.out.plans.map { list, found -> [list, passed(found).plans] } // [subjects, plans]
}

// Check what must be right before any task can run; PREFLIGHT checks the rest.
def checkLaunch() {
    // Nextflow formats modes and numbers in the user's locale: in a Turkish one it cannot find the mode SYMLINK.
    Locale.setDefault(Locale.ENGLISH)
    def outdir = (params.outdir ?: '').toString()
    def place = java.nio.file.Path.of(outdir).toAbsolutePath()
    def closed = (1..<place.nameCount + 1)
        .collect { n -> place.root.resolve(place.subpath(0, n)) }
        .find { path -> path.exists() && !path.isDirectory() }
    def mounts = [outdir: new File(outdir).absolutePath] + params.subMap('scratch_dir')
    def divided = workflow.containerEngine ? mounts.find { _name, path -> "${path}".contains(':') } : null
    def sheet = params.samplesheet ? localFile('samplesheet', params.samplesheet.toString()) : null
    def further = furtherWords(workflow.commandLine)
    def checks = [
        [
            further,
            "'${further[0]}' does not belong to a parameter; put quotes around a value with blanks, and give several " +
                'subjects with --samplesheet.',
        ],
        [params.outdir instanceof Number, "--outdir was read as the number ${outdir}; write a path, such as ./01."],
        [outdir.startsWith('~'), "--outdir is ${outdir}, in which no shell expanded the ~; give the full path."],
        [outdir in ['', 'true'], '--outdir is missing; give a folder for the results, such as ./01.'],
        [closed, "${closed} is a file, not a folder; choose another --outdir."],
        [divided, "--${divided?.key} ${divided?.value} contains a :, which containers cannot mount; give another."],
        [
            sheet && (params.input || params.subject || switched('phantom')),
            '--samplesheet names the subjects and their inputs; leave out --input, --subject and --phantom.',
        ],
        [sheet && !sheet.isFile(), "--samplesheet ${sheet} is not a file; check the path."],
        [
            sheet && sheet.isFile() && hasMore(sheet, 10_000),
            "--samplesheet ${sheet} has more than 10000 lines; check that it is the right file, or divide it.",
        ],
        [
            !sheet && !params.input && !switched('phantom'),
            '--input is missing; give a folder of tiles or mosaics, one mosaic or one volume, or --samplesheet for a ' +
                'cohort, or try -profile test. --help lists all parameters.',
        ],
    ]
    def problem = checks.find { isWrong, _sentence -> isWrong }?.last()
    problem = problem ?: unlinkable(workflow.workDir) ?: unlinkable(sheet) ?: unprintable(sheet)
    return problem ? error(problem) : null
}

// Words of a command line without a parameter, such as b in --input a b.
def furtherWords(command) {
    def words = quotedWords(command)
        .collect { word -> word.replaceAll(/'([^']*)'|\\(.)/) { _all, quoted, escaped -> quoted ?: escaped ?: '' } }
        .dropWhile { word -> word != 'run' }
    def plain = [words, words.drop(1)].transpose().findAll { before, word ->
        !(before ==~ /-[^=]*/) && !word.startsWith('-')
    }
    // The first one is the script.
    return plain.drop(1)*.last()
}

// Whether a sheet has more lines below its header. MOST_SUBJECTS in octane/config/sheets.py is the same number. A sheet
// of so few has at most 100 MB; a larger one is not read.
def hasMore(sheet, most) {
    if (sheet.size() > 100_000_000) { return true }
    return java.nio.file.Files.lines(sheet, java.nio.charset.StandardCharsets.ISO_8859_1).withCloseable { lines ->
        lines.skip(most + 1).findFirst().present
    }
}

// Read a check's result and log its notes. On problems, delete the file so that -resume checks again, and stop.
def passed(file) {
    def found = read(file)
    found.notes.each { note -> log.info(note) }
    if (found.problems) { file.delete() }
    return found.problems ? error(found.problems.join('\n')) : found
}

// The rows of a samplesheet as subjects. PREFLIGHT also reads it, and reports errors and where the two differ.
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
        [meta, fileOf(meta, 'input'), []]
    }
}

// An error message for a parameter's file that Nextflow cannot stage, or null.
def problemOf(name, path) {
    def words = [n4_mask: 'tissue', stitch_flat_field: 'estimate'][name]
    return path.exists()
        ? unlinkable(path) ?: (name == 'input' ? null : unprintable(path))
        : "${path} does not exist; check --${name}${words ? ", which accepts a file, ${words} or none" : ''}."
}

// An error message for a path that Nextflow cannot link into a task's folder, or null. Its shell script does not escape
// these characters: for study[1] next to study1, the task would get study1. It follows links, and keeps the name.
// Container engines split a mount at each colon.
def unlinkable(path) {
    if (!path) { return null }
    def real = path.exists() ? path.toRealPath() : path.toAbsolutePath()
    def names = "${real}${path.name}".toString()
    def sign = names.find(/[\[\]*?{}\$\p{Cntrl}]/) ?: (workflow.containerEngine ? names.find(':') : null)
    def shown = real.toString().contains(sign ?: '') ? real : path
    def word = (sign ?: '') < ' ' ? 'a control character' : "a ${sign}"
    return sign ? "${shown} has ${word} in its path, which Nextflow cannot hand to tasks; rename it." : null
}

// An error message for a file whose name Nextflow would write into its pages, unescaped, with the script of a task, or
// null. PREFLIGHT checks the names of and in inputs.
def unprintable(path) {
    def sign = path?.name?.find(/[<>&]/)
    return sign ? "${path} has a ${sign} in its name; rename it." : null
}

// A name or path as it was written: Nextflow converts 01 into the number 1, and only the command line still has 01.
def asWritten(name) {
    def written = (workflow.commandLine =~ "\\s--${name}[=\\s]([0-9.]+)(?=\\s|\$)").collect { found -> found[1] }
    return !(params[name] instanceof Number)
        ? params[name]
        : written
        ? written.last()
        : error("--${name} was read as the number ${params[name]}, which loses leading zeros; " +
            "quote it in the params file or config: ${name}: \"01\".")
}

// Whether a parameter of the run has a value; 0 is one.
def isGiven(name) {
    return params[name] != null && params[name].toString().trim() != ''
}

// A parameter of a subject: its own, else the run's.
def parameterOf(meta, name) {
    return (meta.given ?: [:]).getOrDefault(name, params[name])
}

// The file that a subject's parameter names, or null. Paths in a samplesheet are relative to its folder.
def fileOf(meta, name) {
    def word = [n4_mask: 'tissue', stitch_flat_field: 'estimate'][name]
    def path = parameterOf(meta, name)?.toString()
    def folder = meta.given?.get(name) ? meta.folder : null
    return !path || path.toLowerCase() in [word, 'none', 'null']
        ? null
        : localFile(name, path, folder ?: '')
}

// The file at a path, which may be relative to a folder. Refuses an address, which tasks could not read.
def localFile(name, path, folder = '') {
    if (path ==~ '(?i)(?!file:)[a-z][a-z0-9+.-]*://.*') {
        error("--${name} ${path} is an address, but octane reads and writes files only: mount or copy it, as in " +
            'docs/faq.md#remote.')
    }
    return file(folder ? java.nio.file.Path.of(folder).resolve(path).toString() : path, type: 'any', glob: false)
}

// A subject's files by parameter, and error messages for those that cannot be staged.
def subjectOf(meta, input, truth) {
    def named = [
        input: input,
        positions: fileOf(meta, 'positions'),
        tile_table: fileOf(meta, 'tile_table'),
        displacements: fileOf(meta, 'displacements'),
        n4_mask: switched('skip_n4') ? null : fileOf(meta, 'n4_mask'),
        truth: truth,
        stitch_flat_field: fileOf(meta, 'stitch_flat_field'),
    ].findAll { _name, path -> path }
    def problems = named.collectEntries { name, path -> [name, problemOf(name, path)] }.findAll { _name, text -> text }
    def files = named.findAll { name, _path -> !problems[name] }
    if (workflow.stubRun && problems) { error(problems.values().join('\n')) }
    return [
        meta: meta,
        files: files,
        problems: problems.values(),
        linked: workflow.containerEngine
            ? linksIn(files.input) + voxelsOf(files.input) + voxelsOf(files.n4_mask)
            : [],
    ]
}

// Links in a folder of stores or tiles, whose places a container must mount; Docker would make one that is not there.
def linksIn(folder, depth = 0) {
    def isStore = ['zarr.json', '.zattrs', '.zgroup', '.zarray'].any { name -> folder?.resolve(name)?.exists() }
    def isOpen = folder?.isDirectory() && java.nio.file.Files.isReadable(folder)
    if (isStore || !isOpen || folder.name.endsWith('.zarr')) { return [] }
    def (links, others) = folder.listFiles().toList().split { path -> java.nio.file.Files.isSymbolicLink(path) }
    def deeper = depth < 4 ? others.collectMany { path -> linksIn(path, depth + 1) } : []
    return links.findAll { path -> path.exists() } + deeper
}

// PREFLIGHT's request as JSON: the subjects, and all parameters except those that name a single subject. Paths are
// absolute, because a task checks them.
def requestOf(list) {
    def sheet = params.samplesheet ? file(params.samplesheet.toString(), glob: false).toAbsolutePath().toString() : null
    def parameters = [:] + params + [outdir: outputFolder().toString(), samplesheet: sheet, input: null, subject: null]
    def subjects = list.collect { subject ->
        subject.meta.subMap('id', 'given') + [staged: subject.files.keySet(), problems: subject.problems]
    }
    return groovy.json.JsonOutput.toJson([parameters: parameters, subjects: subjects, resumed: workflow.resume])
}

// Claim a subject's folder in outdir for its input, named in input.json; an input that was moved or corrected counts as
// the same one. Results of another input are deleted first. Refuses if the run would replace data that it reads.
def claimFolder(subject, plan, data) {
    // Without octane's parameters another workflow includes this one, and publishes in its own way.
    if (params.publish_dir_mode == null) { return }
    def input = subject.files.input
    def isMade = input.startsWith(workflow.workDir)
    def source = [
        input: isMade ? 'made by the run' : input.toRealPath().toString(),
        fingerprint: isMade ? '' : plan.fingerprint,
        stub: workflow.stubRun,
    ]
    def folder = outputFolder().resolve(subject.meta.id).tap { place -> place.mkdirs() }
    def record = folder.resolve('input.json')
    def earlier = record.exists() && record.size() > 0 ? read(record) : source
    def isOther = earlier.input != source.input && earlier.fingerprint != source.fingerprint
    def isWithin = { path, place -> path.toRealPath().startsWith(place.toRealPath()) }
    def places = isOther ? subject.files.values() + [workflow.workDir] : [input]
    def around = plan.inputs.keySet().collectMany { name -> data[name] }.find { part -> isWithin.call(folder, part) }
    def lost = places.find { path -> isWithin.call(path, folder) } ?: around
    // Such a table is a link to an earlier task's result, which must not be edited there, and is replaced at the end.
    def table = subject.files.subMap('positions', 'displacements').values().find { path ->
        path.name ==~ /.*_(positions|displacements)[.]csv/ && path.parent.toRealPath() == folder.toRealPath()
    }
    def closed = [folder, record, folder.resolve('metrics')].find { path ->
        path.exists() && !java.nio.file.Files.isWritable(path)
    }
    def problem = closed
        ? "${closed} cannot be written; ask its owner for permission, or give another --outdir or --subject."
        : table
        ? "${table} is a result, which this run replaces; copy it to another folder, and give the copy."
        : lost
        ? "Results would replace data in ${folder}, but the run reads ${lost}, which is inside or around that " +
            'folder; give another --outdir or --subject.'
        : workflow.stubRun && record.exists() && !earlier.stub
        ? "${folder} has results, which -stub-run would replace by empty files; give another --outdir."
        : isOther && !switched('overwrite_subject')
        ? "${folder} has the results of another input, ${earlier.input}; give this one its own name with " +
            '--subject, or another --outdir, or replace them with --overwrite_subject.'
        : null
    if (problem) { error(problem) }
    if (isOther) {
        def real = folder.toRealPath()
        def old = java.nio.file.Files.walk(real).toList().drop(1)
        def foreign = old.find { path -> !isResult(real.relativize(path).toString()) }
        if (foreign) {
            error("${foreign} is not a result of octane, and --overwrite_subject would delete it; move it, or give " +
                'another --outdir or --subject.')
        }
        log.warn("${folder} is emptied: it has the results of another input, ${earlier.input}.")
        old.reverse().each { path -> java.nio.file.Files.delete(path) }
    }
    record.text = groovy.json.JsonOutput.prettyPrint(groovy.json.JsonOutput.toJson(source)) + '\n'
}

// Tell whether a path in a subject's folder is one that a run writes, now or before.
def isResult(path) {
    def store = '[^/]+[.]ome[.]zarr(/(zarr[.]json|[0-9]+(/(zarr[.]json|c(/[0-9]+)*))?))?'
    def files = '[^/]+_((positions|displacements)[.]csv|report[.](html|json)|trace[.]json[.]gz)'
    def fixed = 'input[.]json|(metrics|flat_fields|profiles|previews)'
    def inner = 'metrics/[^/]+[.]json|flat_fields/[^/]+[.]tif|profiles/[^/]+|previews/[^/]+[.](png|svg)'
    return path ==~ "(earlier_[-0-9]+/)?(${store}|${files}|${fixed}|${inner})|earlier_[-0-9]+"
}

// What tasks read and no task makes, as files by name. A header comes before the file with its voxels.
def dataOf(subject, plan) {
    def id = subject.meta.id
    def input = subject.files.input
    def parts = plan.inputs.collectEntries { name, names ->
        [name, names.collect { part -> part ? input.resolve(part) : input }]
    }
    def whole = parts.findAll { name, _paths -> !name.startsWith("${id}/tiles/") }
    whole += subject.files.collectEntries { name, path -> ["${id}/${name}".toString(), [path]] }
    def tables = plan.tables.collectEntries { name, text -> [name, [tableOf(text)]] }
    return parts + whole.collectEntries { name, paths -> [name, withVoxels(paths)] } + tables
}

def withVoxels(paths) {
    return (paths + paths.collectMany { path -> voxelsOf(path) }).unique()
}

// A file of a section's tile positions or list of tiles. The same content keeps its name and time, which Nextflow's
// cache compares.
def tableOf(text) {
    def table = workflow.workDir.resolve("tables/${text.md5()}.csv")
    table.parent.mkdirs()
    if (!table.exists()) { table.text = text }
    return table
}
