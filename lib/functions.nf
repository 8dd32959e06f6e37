// Functions that the workflow's scripts share. This file includes no other script: Nextflow 25.04 runs one that
// does once for each script that includes it, and then calls its functions "already defined".

// The code that each step runs, as one hash: its parts of bin/octane, which Nextflow does not look at. A test
// compares the parts with the imports.
def codeVersions() {
    def parts = [
        cohort: 'core config steps/cohort.py',
        phantom: 'core config store layout pipeline steps/phantom.py',
        preflight: 'core config store gpu layout pipeline resample stitch steps/preflight.py steps/space.py steps/stitch.py',
        resample: 'core config store gpu layout pipeline resample steps/resample.py',
        stitch: 'core config store gpu layout pipeline resample stitch steps/stitch.py',
        stack: 'core config store gpu layout pipeline resample stitch steps/stack.py',
        n4: 'core config store gpu layout pipeline resample stitch n4 steps/n4.py',
        pyramid: 'core config store gpu layout pipeline resample steps/pyramid.py',
        report: 'core config report steps/report.py',
        cohort_report: 'core config report',
    ]
    def root = file("${moduleDir}/../bin/octane")
    def files = java.nio.file.Files.walk(root).toList().findAll { path -> path.name ==~ /.*\.(cu|j2|py)/ }.collect { path -> [root.relativize(path), path.text.md5()] }
    return parts.collectEntries { step, own ->
        [step, files.findAll { file -> own.tokenize(' ').any { part -> file[0].startsWith(part) } }.collect { file -> file.join(' ') }.sort().join('\n').md5()]
    }
}

// End Nextflow's drawing of the processes, which a pipe or file does not show: further words stand below it. The
// end of a run that fails is interrupted: neither this wait nor the records that are written next may break off.
def endDrawing() {
    def drawing = nextflow.Global.session.with { run -> run.hasProperty('logObserver') ? run.logObserver : run.ansiLogObserver }
    java.util.concurrent.CompletableFuture.runAsync { drawing?.onFlowComplete() }.join()
    Thread.interrupted()
}

def isCommand(name) {
    return System.getenv('PATH').tokenize(':').any { folder -> new File(folder, name).with { file -> file.isFile() && file.canExecute() } }
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
    return ['zarr.json', '.zattrs', '.zgroup', '.zarray'].collect { name -> path.resolve(name) }.find { file -> file.exists() }
}

// The file that a MetaImage or NRRD header names for its voxels, in a list; an empty one without. Nextflow follows links
// to the header. What octane/store/itk_files.py refuses is not looked for.
def voxelsOf(input) {
    if (!input || !java.nio.file.Files.isRegularFile(input) || !(input.name ==~ /(?i).*[.](mha|mhd|nrrd|nhdr)/)) { return [] }
    def head = input.withInputStream { stream -> new String(stream.readNBytes(1000000), 'UTF-8') }
    def header = input.name ==~ /(?i).*[.]n[^.]*/ ? head.split(/\r?\n\r?\n/, 2)[0] : head
    def found = (header =~ /(?m)^\s*ElementDataFile\s*[=:](.*)|^(?i:data ?file):(.*)/).collect { _all, meta, nrrd -> (meta ?: nrrd).trim() - ~/^[.]\// }
    def file = found && found[0] ==~ /(?!LIST|[.][.])[^\/\\%*?\[\]{}$\x00-\x1f]+/ ? input.toRealPath().resolveSibling(found[0]) : null
    return file && file.isFile() ? [file] : []
}

// The part of an input that is read: of a folder its stores alone, because results, a work directory and
// other files in it may change meanwhile. Names that begin with a dot are no input.
def partsOf(input) {
    // As is_store in octane/store/chunks.py.
    def isStore = { path -> path.name.endsWith('.zarr') || metadataOf(path) }
    return !input.isDirectory() || isStore.call(input) ? [input] + voxelsOf(input) : input.listFiles().findAll { path -> !path.name.startsWith('.') && isStore.call(path) }
}

// Names, sizes and times of an input's files as one text: Nextflow looks at a folder's own time alone, which a chunk edited
// deep inside leaves. What Macs, Windows and NFS put there is none of it. `lost` takes links to files that are gone.
def fingerprint(input, lost = []) {
    def files = []
    partsOf(input).each { part -> part.isDirectory() ? part.eachFileRecurse { path -> files << path } : files << part }
    def (found, gone) = files.findAll { path -> !path.isDirectory() && !(path.name ==~ /[.](?!z).*|Thumbs[.]db|desktop[.]ini/) }.split { path -> path.exists() }
    lost.addAll(gone)
    return found.collect { path -> "${input.relativize(path)} ${path.size()} ${path.lastModified()}" }.sort().join('\n').md5()
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
