// Functions of the launch: no work on data, only what connects parameters, plans and processes.

include { apart ; fingerprint ; outputFolder } from './inputs'

// A hash of all code that tasks import: Nextflow hashes a script of bin/ that a task names, and
// never the package beside it, so that an edited package would leave stale results "cached".
def codeVersion() {
    def root = file("${moduleDir}/../bin")
    def files = []
    root.eachFileRecurse { path -> if (path.name ==~ /.*\.(cu|j2|py)/) { files << path } }
    return files.sort { path -> path.toString() }.collect { path -> "${root.relativize(path)} ${path.text.md5()}" }.join('\n').md5()
}

// A path parameter as a file, or an empty list: what a process takes for an input that is not there.
def optional(path) {
    if (!path) {
        return []
    }
    def found = file(path.toString(), type: 'any', glob: false)
    if (!found.exists()) {
        error("${path} does not exist; check the path.")
    }
    // Nextflow links a task's inputs by a shell script, in which it leaves these two as they are.
    if (found.toAbsolutePath().toString() =~ "[\$\n]") {
        error("${path} has a \$ or a line break in its path, which Nextflow cannot hand to tasks; rename it, or give a link to it.")
    }
    return found
}

// What must be known before any task: where the data come from, and where the results go to.
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
    if (params.outdir instanceof Number) {
        error("--outdir was read as the number ${params.outdir}, which loses the zeros before it; give it with its folder, such as ./01.")
    }
}

// A switch that acts before PREFLIGHT sees it. Any text would be true here, 'no' and 'false' as well.
def switched(name) {
    def value = params[name]
    if (!(value instanceof Boolean)) {
        error("--${name} is '${value}': write true or false.")
    }
    return value
}

// A name or path as it was written: Nextflow makes the number 1 of 01, and only the command line
// still knows; of a params file or a config nothing is left.
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
    def name = asWritten('subject') ?: (params.phantom ? 'phantom' : file(asWritten('input') ?: 'input', glob: false).simpleName)
    if (!(name ==~ /[\p{L}\p{M}\p{N} ._()-]+/) || name ==~ /[.-].*/) {
        error("'${name}' is no name for a subject: use letters, digits, blanks and ._()-, with no . or - first; give another --subject.")
    }
    return name.toString()
}

// The subjects of a run without a samplesheet: one.
def oneSubject() {
    return [[id: subjectName()], apart(optional(asWritten('input'))), optional(params.truth)]
}

// Those of a samplesheet, as COHORT found them; `given` is what is a subject's own and not the run's.
def subjectsOf(cohort) {
    return read(cohort).collect { row ->
        def meta = [id: row.subject, given: row.given, told: row.told]
        [meta, apart(optional(row.given.input)), optional(own(meta, 'truth'))]
    }
}

// The names of this run's subjects, in a list that has them all when the run ends.
def namesOf(subjects) {
    def names = []
    subjects.subscribe { meta, _input, _truth -> names << meta.id }
    return names
}

// A parameter of a subject: its own, else the run's.
def own(meta, name) {
    return (meta.given ?: [:]).getOrDefault(name, params[name])
}

// A mask is a file where it is neither made from the data nor left out.
def maskOf(meta) {
    def mask = own(meta, 'n4_mask')
    return optional(mask.toString().toLowerCase() in ['tissue', 'none', 'null', ''] ? null : mask)
}

// All subjects at once, as PREFLIGHT takes them: their data, and what is asked for them.
def allOf(watched) {
    return watched
        .toSortedList { a, b -> a[0].id <=> b[0].id }
        .filter { all -> all.size() > 0 }
        .multiMap { all ->
            def tables = all.collect { meta, _input, _states -> optional(own(meta, 'positions')) }
            def asked = all.withIndex().collect { subject, place ->
                def meta = subject[0]
                def number = tables.take(place + 1).count { table -> table }
                [subject: meta.id, given: meta.given ?: [:], told: meta.told ?: '', table: tables[place] ? number : null]
            }
            def inputs = all.collect { _meta, input, _states -> input }
            data: [asked.collect { subject -> subject.subject }, inputs, all.collect { _meta, input, states -> states[input] }, tables.findAll { table -> table }]
            request: groovy.json.JsonOutput.toJson([parameters: parameters(), subjects: asked])
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

def request() {
    return groovy.json.JsonOutput.toJson(parameters())
}

// The phantom's parameters under its command's own names. N4 compares with the truth voxel by voxel,
// so that the truth has the run's resolution where that is one number and no other was asked for.
def phantomSettings() {
    def own = params.findAll { key, _value -> key.startsWith('phantom_') }
    def asked = [params.resolution].flatten().findAll { value -> value != null }.join(' ').tokenize(' ,').unique()
    def one = asked.size() == 1 && asked[0].isNumber() && asked[0].toBigDecimal() > 0
    def truth = one && params.phantom_truth_resolution == 'auto' ? [truth_resolution: asked[0].toBigDecimal()] : [:]
    return groovy.json.JsonOutput.toJson(own.collectEntries { key, value -> [key.substring('phantom_'.length()), value] } + truth + [overwrite: true])
}

// Not JsonSlurper, whose maps are filled when they are first looked at: several operators look at a
// plan at the same time, and one of them then finds it half filled.
def read(json) {
    return new groovy.json.JsonSlurperClassic().parseText(json.text)
}

// [id, plan] of each subject; PREFLIGHT keeps their order.
def plansOf(ids, plans) {
    return [ids, read(plans).plans].transpose()
}

// What PREFLIGHT found that concerns a user before hours of work; stubs find nothing.
def told(ids, plans) {
    def space = read(plans).space
    if (space) {
        log.info("${ids.size() == 1 ? ids[0] : "${ids.size()} subjects"} ${space.summary}")
        space.warnings.each { line -> log.warn(line) }
    }
}

def isResampled(meta, plan) {
    return own(meta, 'resolution') != null && !params.skip_resample && plan.kind != 'section'
}

// One [meta, file] for each input of a plan. An input that is not to be resampled, or that is whole
// already, passes by.
def items(meta, plan, input) {
    def resample = isResampled(meta, plan)
    return plan.items.collect { item ->
        [[id: meta.id, section: item.id, kind: plan.kind, count: plan.items.size(), resample: resample], item.file ? input.resolve(item.file) : input]
    }
}

// The fingerprints of files that no task made; they stand in a task's meta, and so in its hash.
def seen(files) {
    def inputs = [files].flatten().findAll { file -> !file.startsWith(workflow.workDir) }
    return inputs ? [seen: inputs.collect { file -> fingerprint(file) }.join(' ').md5()] : [:]
}

// Each file with the settings of one step as JSON. Only these enter the task's hash, so that a
// changed parameter re-runs the steps that it concerns and those after them. Steps without the label
// gpu_slot are never given a GPU, and so they are not to look for one. What is in a task's folder already
// is of a run that was killed there: Nextflow uses the folder again.
def withSettings(files, settings, step) {
    def device = step in ['resample', 'n4'] ? [:] : [backend: 'cpu']
    return files
        .map { meta, file -> [meta.id, meta + seen(file), file] }
        .combine(settings, by: 0)
        .map { _id, meta, file, all -> [meta, file, groovy.json.JsonOutput.toJson(all.input + all.execution + [overwrite: true] + device + all[step])] }
}

// All sections of a subject in one list, given as soon as the last of them is there.
def wholeSubjects(sections) {
    return sections
        .map { meta, file -> [groupKey([id: meta.id], meta.count), file] }
        .groupTuple(sort: { a, b -> a.name <=> b.name })
        .map { key, files -> [key.target, files] }
}

// How many records the steps of a subject will leave.
def recordsOf(meta, plan) {
    def inputs = plan.items.size()
    def each = (isResampled(meta, plan) ? 1 : 0) + (plan.kind == 'mosaic' && !params.skip_stitch ? 1 : 0)
    return inputs * each + [plan.kind != 'volume', !params.skip_n4, !params.skip_pyramid].count { step -> step }
}

// All records of a subject in one list, given as soon as the last of them is there, in an order that
// does not depend on who was ready first.
def together(records, counts) {
    return records
        .map { meta, files -> [meta.id, files] }
        .combine(counts, by: 0)
        .map { id, files, count -> [groupKey([id: id], count), files] }
        .groupTuple(remainder: true)
        .map { key, files -> [key.target, files.flatten().sort { file -> file.name }] }
}

// All subjects' files in one list, in the order of their names; nothing where there is one subject.
def ofMany(files) {
    return files
        .map { _meta, file -> file }
        .toSortedList { a, b -> a.name <=> b.name }
        .filter { all -> all.size() > 1 }
}

// Each [meta, file, settings] with its subject's truth, or [] where there is none. As with `seen`,
// what no task made shows in the meta.
def withTruth(prepared, subjects) {
    return prepared
        .map { meta, file, settings -> [meta.id, meta, file, settings] }
        .combine(subjects.map { meta, _input, truth -> [meta.id, truth] }, by: 0)
        .map { _id, meta, file, settings, truth -> [meta + [truth: seen(truth).seen], file, settings, truth] }
}

// Prepared tuples beside a file of their subject's own, or []: two channels in step, for processes
// that take the file apart.
def inStep(prepared, files) {
    return prepared
        .map { tuple -> [tuple[0].id, tuple] }
        .combine(files, by: 0)
        .multiMap { _id, tuple, file ->
            data: tuple
            file: file
        }
}

// Each file and folder of a subject's that the run reads, with its fingerprint.
def statesOf(meta, input, truth) {
    def given = [input, truth, optional(own(meta, 'positions')), params.skip_n4 ? [] : maskOf(meta)]
    def lost = []
    def states = given.flatten().collectEntries { path -> [path, fingerprint(path, lost)] }
    // Not in a closure that a closure calls: Nextflow would tell of an InvocationTargetException.
    if (lost) {
        error("${lost[0]} is a link to what is not there; restore that, or remove the link.")
    }
    return states
}

// Each [meta, file], once all that it was made of is seen to be what it was at the start: a task that
// read other chunks than those it is cached by would be wrong, in this run alone, with no sign of it.
def unchanged(volume, watched) {
    return volume
        .map { meta, file -> [meta.id, meta, file] }
        .join(watched.map { meta, _input, states -> [meta.id, states] })
        .map { _id, meta, file, states ->
            def changed = states.keySet().findAll { path -> !path.exists() || fingerprint(path) != states[path] }
            if (changed) {
                error("${changed.join(', ')} changed while the run read it, so that the results mix two states of it; run again with -resume, which makes anew what changed.")
            }
            [meta, file]
        }
}

// The commit of a checkout, marked where it has changes; nothing where there is no repository or no git.
def commitOf(folder) {
    if (!folder.resolve('.git').exists()) {
        return ''
    }
    try {
        def git = ['git', '-C', folder.toString(), 'describe', '--always', '--dirty', '--exclude', '*'].execute()
        def told = git.text.trim()
        return git.waitFor() == 0 ? told : ''
    }
    catch (IOException _no_git) {
        return ''
    }
}

// What the report says of the run. Nothing in it may change when nothing else does, or the report
// would never be cached: no run name, no time.
def runRecord() {
    return [
        'Nextflow': nextflow.version.toString(),
        'octane': workflow.manifest.version,
        'revision': workflow.commitId ?: commitOf(workflow.projectDir),
        'code': codeVersion().take(12),
        'profile': workflow.profile,
        'repository': workflow.repository ?: '',
        'script': workflow.scriptFile.toString(),
        'container': workflow.containerEngine ?: '',
    ].findAll { _key, value -> value }
}

def helpText() {
    // In the order of the file.
    def schema = new groovy.json.JsonSlurper().parseText(file("${moduleDir}/../nextflow_schema.json").text)
    def groups = schema['$defs'].collect { _name, group ->
        def lines = group.properties.collect { name, p ->
            def shown = p.containsKey('default') ? " [default: ${p.default}]" : ''
            "  --${name.padRight(28)} ${p.description}${shown}"
        }
        "${group.title}\n${lines.join('\n')}"
    }
    return "nextflow run main.nf --input MOSAICS_OR_VOLUME [--outdir DIR] [parameters]\n\n${groups.join('\n\n')}"
}
