// Functions that the workflow's scripts share. This file must not include another script: Nextflow 25.04 would run it
// once per script that includes it, and fail because its functions are "already defined".

// One hash per process of the code that it runs, because Nextflow does not track it: the shared code, its own folder,
// and the doors of other processes. A test compares this rule with the imports.
def codeVersions() {
    def root = file("${moduleDir}/../bin/octane")
    def hashes = sourcesIn(root).collectEntries { path -> [root.relativize(path).toString(), path.text.md5()] }
    def shared = hashes.findAll { path, _hash -> !(path ==~ /(processes|tools)\/\w+\/.*/) }
    def processes = hashes.findAll { path, _hash -> path ==~ /processes\/\w+\/.*/ }
    def doors = processes.findAll { path, _hash ->
        path ==~ /processes\/\w+\/(parameters|record|layout\w*)([.]py|\/.*)/
    }
    return processes.groupBy { path, _hash -> path.tokenize('/')[1] }.collectEntries { name, sources ->
        [name, (shared + doors + sources).collect { path, hash -> "${path} ${hash}" }.sort().join('\n').md5()]
    }
}

def outputFolder() {
    return file(params.outdir.toString(), glob: false).toAbsolutePath()
}

// Not JsonSlurper, whose lazy maps are not thread-safe: several operators read a plan at once.
def readJson(json) {
    return new groovy.json.JsonSlurperClassic().parseText(json.text)
}

// The files of code in a folder. Another user's compiled code in it may be closed.
def sourcesIn(folder) {
    def (folders, files) = folder.listFiles().toList().split { path -> path.isDirectory() }
    return files.findAll { path -> path.name ==~ /.*\.(cu|j2|py)/ } +
        folders.findAll { path -> path.name != '__pycache__' }.collectMany { path -> sourcesIn(path) }
}

// The beginning of the names of a task's files: its section, its channel, except the reference, and its step.
def stemOf(meta, step = '') {
    return [meta.section, meta.channel, step].findAll().join('_')
}

// A task's tag, from which bin/summary.py tells which of the planned tasks failed.
def tagOf(meta) {
    return [meta.id, stemOf(meta)].findAll().join(':')
}

// Flags for the cores and the memory that a task has. Without a limit the command uses its default.
def resourcesOf(task) {
    return "--workers ${task.cpus}${task.memory ? " --memory '${task.memory}'" : ''}"
}

// Flags for a step's record and preview.
def recordsOf(meta, step) {
    return "--metrics '${stemOf(meta, step)}_metrics.json' --preview '${stemOf(meta, step)}_preview.npz'"
}

// The name of a volume that a step made of a subject's channel.
def volumeOf(meta, step = '') {
    return "${[meta.id, meta.channel, step].findAll().join('_')}.ome.zarr"
}

// Value of a switch. On Nextflow 26.04 every command-line value is text, and any text is true, even 'false'. A missing
// parameter, as when another workflow includes this one, is off.
def isOn(name) {
    def text = (params.containsKey(name) ? params[name] : false).toString().trim().toLowerCase()
    if (!(text in ['true', 'false'])) { error("--${name} is '${params[name]}': write true or false.") }
    return text == 'true'
}

// The flag that moves a step to the CPU for its last attempt, after a GPU failed, unless the user chose a backend.
def deviceOf(task, flags) {
    return task.attempt > 2 && task.previousTrace.exit == 104 && !flags.contains('--backend') ? '--backend cpu' : ''
}

// The parameters that nextflow_schema.json does not hide, or all of them, in lines of 100 columns.
def helpText(all) {
    def schema = new groovy.json.JsonSlurper().parseText(file("${moduleDir}/../nextflow_schema.json").text)
    def groups = schema['$defs'].values().collectMany { group ->
        def entries = group.properties.findAll { _name, entry -> all || !entry.hidden }.collect { name, entry ->
            def choices = entry['enum'] ? " One of ${entry['enum'].findAll().join(', ')}." : ''
            def usual = entry['default'] in [null, '', false] ? '' : " [default: ${entry['default']}]"
            wrap("  --${name.padRight(23)} ${entry.description}${choices}${usual}", 28)
        }
        def title = ['', wrap("${group.title}. ${group.description}", 0)]
        entries.empty ? entries : title + entries
    }
    def usage = 'nextflow run main.nf --input TILES_OR_MOSAICS_OR_VOLUME [--outdir DIR] [parameters]'
    def lists = "Write several numbers as '10 8 8' or '10,8,8', in the stated order, or by name: 'z=10,y=8,x=8'."
    return ([usage, wrap(lists, 0)] + groups + (all ? [] : ['', '--help all shows all parameters.'])).join('\n')
}

// A text in lines of 100 columns, all but the first indented.
def wrap(text, indent) {
    def lines = text.split(/(?<=\S) (?=\S)/).inject(['']) { list, word ->
        list.last() && list.last().size() + word.size() >= 100
            ? list + ["${' ' * indent}${word}".toString()]
            : list.init() + [list.last() ? "${list.last()} ${word}".toString() : word]
    }
    return lines.join('\n')
}
