// Functions that the workflow's scripts share. This file includes no other script: Nextflow 25.04 runs one that
// does once for each script that includes it, and then calls its functions "already defined".

// The code that each step runs, as one hash: its parts of bin/octane, which Nextflow does not look at. A test
// compares the parts with the imports.
def codeVersions() {
    def parts = [
        phantom: 'core config store layout pipeline steps/phantom.py',
        preflight: 'core config store gpu layout pipeline resample stitch steps/preflight.py steps/space.py',
        resample: 'core config store gpu layout pipeline resample steps/resample.py',
        stitch: 'core config store gpu layout pipeline resample stitch steps/stitch.py',
        stack: 'core config store gpu layout pipeline resample stitch steps/stack.py',
        n4: 'core config store gpu layout pipeline resample stitch n4 steps/n4.py',
        pyramid: 'core config store gpu layout pipeline resample steps/pyramid.py',
        report: 'core config report steps/report.py',
        cohort_report: 'core config report',
    ]
    def root = file("${moduleDir}/../bin/octane")
    def files = java.nio.file.Files.walk(root).toList().findAll { path -> path.name ==~ /.*\.(cu|j2|py)/ }
    def hashes = files.collectEntries { path -> [root.relativize(path), path.text.md5()] }
    return parts.collectEntries { step, own ->
        def used = hashes.findAll { path, _hash -> own.tokenize(' ').any { part -> path.startsWith(part) } }
        [step, used.collect { path, hash -> "${path} ${hash}" }.sort().join('\n').md5()]
    }
}

// Without -resume: what depends on it is the same then.
def commandLine() {
    return workflow.commandLine.replaceAll(/ -resume( [0-9a-f]{8}-[0-9a-f-]+)?(?= |$)/, '')
}

def outputFolder() {
    return file(params.outdir.toString(), glob: false).toAbsolutePath()
}

// Not JsonSlurper: it fills its maps when they are first read, and several operators read a plan at once.
def read(json) {
    return new groovy.json.JsonSlurperClassic().parseText(json.text)
}

// The first file of a store's metadata, as METADATA in octane/store/chunks.py has them; null without any.
def metadataOf(path) {
    def files = ['zarr.json', '.zattrs', '.zgroup', '.zarray'].collect { name -> path.resolve(name) }
    return files.find { file -> file.exists() }
}

// The file that a MetaImage or NRRD header names for its voxels, in a list; an empty one without. Nextflow follows
// links to the header. What octane/store/itk_files.py refuses is not looked for.
def voxelsOf(input) {
    def isHeader = input && input.name ==~ /(?i).*[.](mha|mhd|nrrd|nhdr)/ && java.nio.file.Files.isRegularFile(input)
    if (!isHeader) { return [] }
    def head = input.withInputStream { stream -> new String(stream.readNBytes(1000000), 'UTF-8') }
    def header = input.name ==~ /(?i).*[.]n[^.]*/ ? head.split(/\r?\n\r?\n/, 2)[0] : head
    def names = (header =~ /(?m)^\s*ElementDataFile\s*[=:](.*)|^(?i:data ?file):(.*)/).collect { _all, meta, nrrd ->
        (meta ?: nrrd).trim() - ~/^[.]\//
    }
    def isName = names && names[0] ==~ /(?!LIST|[.][.])[^\/\\%*?\[\]{}$\x00-\x1f]+/
    def file = isName ? input.toRealPath().resolveSibling(names[0]) : null
    return file && file.isFile() ? [file] : []
}

// The part of an input that is read: of a folder its stores alone, because results, a work directory and
// other files in it may change meanwhile. Names that begin with a dot are no input.
def partsOf(input) {
    // As is_store in octane/store/chunks.py.
    def isStore = { path -> path.name.endsWith('.zarr') || metadataOf(path) }
    return !input.isDirectory() || isStore.call(input)
        ? [input] + voxelsOf(input)
        : input.listFiles().findAll { path -> !path.name.startsWith('.') && isStore.call(path) }
}

// Names, sizes and times of an input's files as one text: Nextflow looks at a folder's own time alone, which a chunk
// edited deep inside leaves. What Macs, Windows and NFS put there is none of it. `lost` takes links to files that are
// gone.
def fingerprint(input, lost = []) {
    def links = java.nio.file.FileVisitOption.FOLLOW_LINKS
    def files = partsOf(input)
        .collectMany { part -> part.isDirectory() ? java.nio.file.Files.walk(part, links).toList() : [part] }
        .findAll { path -> !path.isDirectory() && !(path.name ==~ /[.](?!z).*|Thumbs[.]db|desktop[.]ini/) }
    def (found, gone) = files.split { path -> path.exists() }
    lost.addAll(gone)
    def states = found.collect { path -> "${input.relativize(path)} ${path.size()} ${path.lastModified()}" }
    return states.sort().join('\n').md5()
}

// Each [meta, file] with its subject's part of a step, as stepsOf in subworkflows/prepare.nf gives it.
def withOwn(items, plans, step) {
    return items
        .map { meta, file -> [meta.id, meta, file] }
        .combine(plans, by: 0)
        .map { _id, meta, file, steps -> [meta + steps[step][0], file] + steps[step].drop(1) }
}

// Files of an input that are not what they were at the start: a task that read other chunks than those it is
// cached by would be wrong, in this run alone, with no sign of it.
def changed(states) {
    return states.keySet().findAll { path -> fingerprint(path) != states[path] }*.toString()
}

// A switch. On Nextflow 26.04 every value of the command line is text, and any text would be true, 'no' and
// 'false' as well. Where there is no such parameter, as in another workflow, it is off.
def switched(name) {
    def text = (params.containsKey(name) ? params[name] : false).toString().trim().toLowerCase()
    if (!(text in ['true', 'false'])) { error("--${name} is '${params[name]}': write true or false.") }
    return text == 'true'
}

// The flag of a step's device at its last attempt, after a GPU failed; a backend that the user chose stays.
def deviceOf(task, flags) {
    return task.attempt > 2 && task.previousTrace.exit == 104 && !flags.contains('--backend') ? '--backend cpu' : ''
}
