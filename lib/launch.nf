// Functions of the launch: no work on data, only what connects parameters, plans and processes.
//
// It includes no other script: Nextflow 25.04 runs one that does once for each script that includes it,
// and then calls its functions "already defined".

// A switch. Every value of the command line is text to Nextflow 26.04, and any text would be true, 'no' and
// 'false' as well. Where there is no such parameter, as in somebody else's workflow, it is off.
def switched(name) {
    def value = params.containsKey(name) ? params[name] : false
    def text = value.toString().trim().toLowerCase()
    if (!(text in ['true', 'false'])) {
        error("--${name} is '${value}': write true or false.")
    }
    return text == 'true'
}

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
    return linkable(found, 'rename it')
}

// A path that Nextflow can link into a task's folder: it follows links, and keeps the name alone. It does so
// by a shell script, in which it leaves these signs as they are: with study1 beside study[1], the task
// would get the data of study1.
def linkable(path, remedy) {
    def real = path.exists() ? path.toRealPath() : path.toAbsolutePath()
    def signs = ("${real}${path.name}" =~ /[\[\]*?{}\$\p{Cntrl}]/).collect { sign -> sign }
    if (signs) {
        def shown = signs[0] == '\t' ? 'a tab' : signs[0] == '\n' ? 'a line break' : signs[0] < ' ' ? 'a control character' : "a ${signs[0]}"
        error("${real.toString().contains(signs[0]) ? real : path} has ${shown} in its path, which Nextflow cannot hand to tasks; ${remedy}.")
    }
    return path
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
    linkable(workflow.workDir, 'choose another -work-dir')
    if (params.outdir instanceof Number) {
        error("--outdir was read as the number ${params.outdir}, which loses the zeros before it; give it with its folder, such as ./01.")
    }
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
    def name = asWritten('subject') ?: (switched('phantom') ? 'phantom' : file(asWritten('input') ?: 'input', glob: false).simpleName)
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

// What a channel gives, in a list that has all of it when the run ends.
def collected(items) {
    def list = [].asSynchronized()
    items.subscribe { item -> list << item }
    return list
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
                [subject: meta.id, given: meta.given ?: [:], told: meta.told ?: '', table: tables[place] ? number : null, marks: marksOf(subject[1]) + (tables[place] ? marksOf(tables[place]) : [:])]
            }
            def inputs = all.collect { _meta, input, _states -> input }
            data: [asked.collect { subject -> subject.subject }, inputs, all.collect { _meta, input, states -> states[input] }, tables.findAll { table -> table }]
            request: groovy.json.JsonOutput.toJson([parameters: parameters(), subjects: asked])
        }
}

// Size and time, in seconds, of an input's files or of its stores' metadata, by name: PREFLIGHT sees by them
// that a task is given the data that the launch meant, and a node has the same behind a path.
def marksOf(input) {
    return partsOf(input).collectEntries { part ->
        def names = ['zarr.json', '.zattrs', '.zgroup', '.zarray']
        def file = names.collect { name -> part.resolve(name) }.find { path -> path.exists() } ?: part
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
    return own(meta, 'resolution') != null && !switched('skip_resample') && plan.kind != 'section'
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
    def each = (isResampled(meta, plan) ? 1 : 0) + (plan.kind == 'mosaic' && !switched('skip_stitch') ? 1 : 0)
    return inputs * each + [plan.kind != 'volume', !switched('skip_n4'), !switched('skip_pyramid')].count { step -> step }
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
    def given = [input, truth, optional(own(meta, 'positions')), switched('skip_n4') ? [] : maskOf(meta)]
    def lost = []
    def states = given.flatten().collectEntries { path -> [path, fingerprint(path, lost)] }
    // Not in a closure that a closure calls: Nextflow would tell of an InvocationTargetException.
    if (lost) {
        error("${lost[0]} is a link to what is not there; restore that, or remove the link.")
    }
    return states
}

// What a subject's results are made of, as its folder keeps it. What a task made has no place of its own.
def originOf(input, state) {
    return input.startsWith(workflow.workDir) ? [input: 'made by the run', fingerprint: ''] : [input: input.toRealPath().toString(), fingerprint: state]
}

// The input that the results in a subject's folder are of; nothing where there are none.
def earlierOrigin(id) {
    def record = outputFolder().resolve(id).resolve('input.json')
    return record.exists() && record.size() > 0 ? read(record) : [:]
}

// Another input: elsewhere, and with other files. One that was moved or corrected is the same.
def isOther(earlier, origin) {
    return earlier && earlier.input != origin.input && earlier.fingerprint != origin.fingerprint
}

// Each [meta, input, states], unless its subject's folder has the results of another input.
def ownFolders(watched) {
    return watched.map { meta, input, states ->
        def earlier = params.publish_dir_mode == null ? [:] : earlierOrigin(meta.id)
        if (isOther(earlier, originOf(input, states[input])) && !switched('overwrite_subject')) {
            error("${outputFolder().resolve(meta.id)} has the results of another input, ${earlier.input}; give this one a name of its own with --subject, or another --outdir, or replace them with --overwrite_subject.")
        }
        [meta, input, states]
    }
}

// Each [id, plan], once its subject's folder says whose results come into it.
def inOwnFolders(plans, watched) {
    return plans
        .join(watched.map { meta, input, states -> [meta.id, originOf(input, states[input])] })
        .map { id, plan, origin ->
            if (params.publish_dir_mode != null) {
                def folder = outputFolder().resolve(id)
                if (isOther(earlierOrigin(id), origin)) {
                    log.warn("${folder} is emptied: it had the results of another input, ${earlierOrigin(id).input}.")
                    emptied(folder.toRealPath())
                }
                folder.mkdirs()
                folder.resolve('input.json').text = groovy.json.JsonOutput.prettyPrint(groovy.json.JsonOutput.toJson(origin)) + '\n'
            }
            [id, plan]
        }
}

// Results are links into the work directory, and what they lead to stays.
def emptied(folder) {
    java.nio.file.Files.walk(folder).toList().reverse().findAll { path -> path != folder }.each { path -> java.nio.file.Files.delete(path) }
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

// Whether a folder is a zarr store, as bin/octane/core/manifests.py tells.
def isStore(folder) {
    return folder.name.endsWith('.zarr') || ['zarr.json', '.zgroup', '.zattrs', '.zarray'].any { name -> folder.resolve(name).exists() }
}

// What is read of an input: of a folder its stores alone, because results, a work directory and what
// else there is in it may change meanwhile. What begins with a dot is no input either.
def partsOf(input) {
    if (!input.isDirectory() || isStore(input)) {
        return [input]
    }
    return input.listFiles().findAll { path -> !path.name.startsWith('.') && isStore(path) }
}

// Names, sizes and times of all files of an input, as one text: Nextflow looks at a folder's own time
// alone, which an edited chunk deep inside leaves as it was. `lost` takes links to what is not there.
def fingerprint(input, lost = []) {
    if (!input) {
        return ''
    }
    def found = []
    partsOf(input).findAll { part -> part.exists() || !lost.add(part) }.each { part ->
        def root = part.toRealPath()
        if (!root.isDirectory()) {
            found << "${part.name} ${root.size()} ${root.lastModified()}"
            return
        }
        root.eachFileRecurse { path ->
            if (!path.exists()) {
                lost << path
            }
            else if (!path.isDirectory()) {
                found << "${part.name} ${root.relativize(path)} ${path.size()} ${path.lastModified()}"
            }
        }
    }
    return found.sort().join('\n').md5()
}

// With no sign in it read as a pattern: [1] is a name.
def outputFolder() {
    return file(params.outdir.toString(), glob: false).toAbsolutePath()
}

// An input that the run does not write into: that would be taken for a part of its stores.
def apart(input) {
    def written = ['--outdir': outputFolder(), '-work-dir': workflow.workDir, 'folder to start it in': workflow.launchDir]
    def stores = partsOf(input).findAll { part -> isStore(linkable(part, 'rename it')) }
    written.each { what, place ->
        def inside = stores.find { part -> place.normalize().startsWith(part.toAbsolutePath().normalize()) }
        if (inside) {
            error("${place} lies inside ${inside}, which the run reads; choose another ${what}.")
        }
    }
    return input
}
