// Functions of the launch: no work on data, only what connects parameters, plans and processes.

// A hash of all code that tasks import: Nextflow hashes a script of bin/ that a task names, and
// never the package beside it, so that an edited package would leave stale results "cached".
def codeVersion() {
    def root = file("${moduleDir}/../bin")
    def files = []
    root.eachFileRecurse { path -> if (path.name ==~ /.*\.(cu|j2|py)/) { files << path } }
    return files.sort { path -> path.toString() }.collect { path -> "${root.relativize(path)} ${path.text.md5()}" }.join('\n').md5()
}

// Names, sizes and times of all files below a path: Nextflow looks at a folder's own time alone,
// which an edited chunk deep inside leaves as it was.
def fingerprint(input) {
    def found = []
    if (!input) {
        return ''
    }
    def root = input.toRealPath()
    if (root.isDirectory()) {
        root.eachFileRecurse { path -> if (!path.isDirectory()) { found << "${root.relativize(path)} ${path.size()} ${path.lastModified()}" } }
    }
    else {
        found << "${root.name} ${root.size()} ${root.lastModified()}"
    }
    return found.sort().join('\n').md5()
}

// A path parameter as a file, or an empty list: what a process takes for an input that is not there.
def optional(path) {
    if (!path) {
        return []
    }
    def found = file(path.toString(), type: 'any')
    if (!found.exists()) {
        error("${path} does not exist; check the path.")
    }
    return found
}

// The run's input; what PREFLIGHT cannot look at is looked at here.
def inputOf() {
    if (!params.input && !params.phantom) {
        error('--input is missing; give a folder of mosaics, one mosaic or one volume, or try -profile test. --help lists all parameters.')
    }
    if (!params.outdir) {
        error('--outdir is missing; give a folder for the results.')
    }
    return optional(params.input)
}

// A switch that acts before PREFLIGHT sees it. Any text would be true here, 'no' and 'false' as well.
def switched(name) {
    def value = params[name]
    if (!(value instanceof Boolean)) {
        error("--${name} is '${value}': write true or false.")
    }
    return value
}

// --subject as it was written: Nextflow makes the number 1 of 01, and only the command line still
// knows; of a params file or a config nothing is left.
def subjectGiven() {
    def given = params.subject
    if (given == null || given instanceof CharSequence) {
        return given
    }
    def written = (workflow.commandLine =~ /\s--subject[=\s]([0-9.]+)(?=\s|$)/).collect { found -> found[1] }
    if (given instanceof Number && written && written.last().isNumber() && written.last().toBigDecimal() == given.toString().toBigDecimal()) {
        return written.last()
    }
    return error("--subject was read as ${given} and not as text, which loses the zeros before a number; put quotes around it in the params file or config: subject: \"01\".")
}

// It becomes a folder and a part of file names, also in task scripts.
def subjectName() {
    def name = subjectGiven() ?: (params.phantom ? 'phantom' : file(params.input ?: 'input').simpleName)
    if (!(name ==~ /[\p{L}\p{M}\p{N} ._()-]+/) || name ==~ /[.-].*/) {
        error("'${name}' is no name for a subject: use letters, digits, blanks and ._()-, with no . or - first; give another --subject.")
    }
    return name.toString()
}

// A mask is a file where it is neither made from the data nor left out.
def maskOf() {
    return optional(params.n4_mask.toString().toLowerCase() in ['tissue', 'none', 'null', ''] ? null : params.n4_mask)
}

// All parameters as JSON, paths made absolute: PREFLIGHT checks them from its own work directory.
def request() {
    // Nextflow keeps a second spelling (someName for some-name) of every parameter with a dash.
    def given = params.findAll { key, _value -> !(key.contains('-') && params.containsKey(key.replaceAll(/-(.)/) { all -> all[1].toUpperCase() })) }
    def outdir = params.outdir ? file(params.outdir.toString()).toAbsolutePath().toString() : null
    return groovy.json.JsonOutput.toJson(given + [outdir: outdir, subject: subjectGiven()])
}

// The phantom's parameters under its command's own names. N4 compares with the truth voxel by voxel,
// so that the truth has the run's resolution where that is one number.
def phantomSettings() {
    def own = params.findAll { key, _value -> key.startsWith('phantom_') }
    def asked = [params.resolution].flatten().findAll { value -> value != null }.join(' ').tokenize(' ,').unique()
    def one = asked.size() == 1 && asked[0].isNumber() && asked[0].toBigDecimal() > 0
    def truth = one ? [truth_resolution: asked[0].toBigDecimal()] : [:]
    return groovy.json.JsonOutput.toJson(own.collectEntries { key, value -> [key.substring('phantom_'.length()), value] } + truth)
}

def read(json) {
    return new groovy.json.JsonSlurper().parseText(json.text)
}

def settingsOf(plan) {
    return read(plan).settings
}

// One [meta, file] for each input of a plan.
def items(meta, plan, input) {
    def read_plan = read(plan)
    return read_plan.items.collect { item ->
        [[id: meta.id, section: item.id, kind: read_plan.kind, count: read_plan.items.size()], item.file ? input.resolve(item.file) : input]
    }
}

// The fingerprints of files that no task made; they stand in a task's meta, and so in its hash.
def seen(files) {
    def inputs = [files].flatten().findAll { file -> !file.startsWith(workflow.workDir) }
    return inputs ? [seen: inputs.collect { file -> fingerprint(file) }.join(' ').md5()] : [:]
}

// Where RESAMPLE keeps finished tiles: they outlive a task, so that a second attempt, and the run after
// a kill, go on from them. With a scratch folder they would have to be written twice. As text, because
// a process that names workflow.workDir itself is never cached: a path is hashed with its time.
def resumed() {
    return params.scratch_dir.toString().toLowerCase() in ['false', 'no', 'null', '0', ''] ? [resume: true, resume_dir: "${workflow.workDir}/resume".toString()] : [:]
}

// Each file with the settings of one step as JSON. Only these enter the task's hash, so that a
// changed parameter re-runs the steps that it concerns and those after them. Steps without the label
// gpu_slot are never given a GPU, and so they are not to look for one.
def withSettings(files, settings, step) {
    def device = step in ['resample', 'n4'] ? [:] : [backend: 'cpu']
    def kept = step == 'resample' ? resumed() : [:]
    return files
        .map { meta, file -> [meta.id, meta + seen(file), file] }
        .combine(settings, by: 0)
        .map { _id, meta, file, all -> [meta, file, groovy.json.JsonOutput.toJson(all.input + all.execution + device + all[step] + kept)] }
}

// All sections of a subject in one list, given as soon as the last of them is there.
def wholeSubjects(sections) {
    return sections
        .map { meta, file -> [groupKey([id: meta.id], meta.count), file] }
        .groupTuple(sort: { a, b -> a.name <=> b.name })
        .map { key, files -> [key.target, files] }
}

// All records of a subject in one list, in an order that does not depend on who was ready first.
def together(records) {
    return records
        .map { meta, files -> [[id: meta.id], files] }
        .groupTuple()
        .map { meta, files -> [meta, files.flatten().sort { file -> file.name }] }
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

// What the report says of the run. Nothing in it may change when nothing else does, or the report
// would never be cached: no run name, no time.
def runRecord() {
    return groovy.json.JsonOutput.toJson(
        [
            'Nextflow': nextflow.version.toString(),
            'octane': workflow.manifest.version,
            'revision': workflow.commitId ?: '',
            'profile': workflow.profile,
            'repository': workflow.repository ?: '',
            'script': workflow.scriptFile.toString(),
            'container': workflow.containerEngine ?: '',
            'image': workflow.container ? workflow.container.toString() : '',
        ].findAll { _key, value -> value }
    )
}

def helpText() {
    def schema = read(file("${moduleDir}/../nextflow_schema.json"))
    def groups = schema['$defs'].collect { _name, group ->
        def lines = group.properties.collect { name, p ->
            def shown = p.containsKey('default') ? " [default: ${p.default}]" : ''
            "  --${name.padRight(28)} ${p.description}${shown}"
        }
        "${group.title}\n${lines.join('\n')}"
    }
    return "nextflow run main.nf --input MOSAICS_OR_VOLUME --outdir DIR [parameters]\n\n${groups.join('\n\n')}"
}

// The last words of a run: what stopped it, or where the results are and whether they are links.
def ended() {
    if (!workflow.success) {
        def told = workflow.errorMessage ?: ''
        if (told.contains('error: ')) {
            log.error("octane stopped: ${told.substring(told.indexOf('error: ') + 'error: '.length())}")
        }
        return
    }
    def outdir = file(params.outdir.toString()).toAbsolutePath()
    def results = outdir.resolve(subjectName())
    def found = []
    if (results.exists()) {
        results.eachFile { path -> if (path.name.endsWith('.ome.zarr') || path.name.endsWith('report.html')) { found << path } }
    }
    log.info("Results:\n${found.sort().collect { path -> "  ${path}" }.join('\n')}")
    if (params.publish_dir_mode in ['symlink', 'rellink']) {
        log.info("They are links into ${workflow.workDir}, which must stay. To have them as files: cp -rL '${outdir}' NEW_FOLDER")
    }
}
