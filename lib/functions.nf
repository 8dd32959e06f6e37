// Functions that the workflow's scripts share. This file must not include another script: Nextflow 25.04 would run it
// once per script that includes it, and fail because its functions are "already defined".

// One hash per process of the code that it runs, because Nextflow does not track it: the shared code, its own folder,
// and the doors of other processes. PREFLIGHT may ask all of them. A test compares this rule with the imports.
def codeVersions() {
    def root = file("${moduleDir}/../bin/octane")
    def files = java.nio.file.Files.walk(root).toList().findAll { path -> path.name ==~ /.*\.(cu|j2|py)/ }
    def hashes = files.collectEntries { path -> [root.relativize(path).toString(), path.text.md5()] }
    def shared = hashes.findAll { path, _hash -> !(path ==~ /(processes|tools)\/\w+\/.*/) }
    def flats = hashes.findAll { path, _hash -> path ==~ /processes\/\w+\/.*/ }
    def doors = flats.findAll { path, _hash -> path ==~ /processes\/\w+\/(parameters|record|layout\w*)([.]py|\/.*)/ }
    return flats.groupBy { path, _hash -> path.tokenize('/')[1] }.collectEntries { name, own ->
        def used = shared + doors + (name == 'preflight' ? flats : own)
        [name, used.collect { path, hash -> "${path} ${hash}" }.sort().join('\n').md5()]
    }
}

// The words of a command line, as the shell quotes them.
def quotedWords(command) {
    return command.findAll(/(?:\\.|'[^']*'|[^\s\\'])+/)
}

// A command line without those options of Nextflow that change no result, so that tasks that depend on it stay cached.
def commandLine(command = workflow.commandLine) {
    def alone = ['-bg', '-q', '-quiet', '-resume']
    def pages = ['dag', 'notification', 'report', 'timeline', 'tower', 'trace', 'weblog']
    def named = ['-N', '-ansi-log', '-log', '-name'] + pages.collect { page -> "-with-${page}".toString() }
    def words = quotedWords(command)
    def isIdle = { before, word ->
        word in alone + named
            || before in named && !word.startsWith('-')
            || before == '-resume' && word ==~ /last|[0-9a-f]{8}-[0-9a-f-]+/
    }
    return [[''] + words, words].transpose().findAll { before, word -> !isIdle.call(before, word) }*.last().join(' ')
}

def outputFolder() {
    return file(params.outdir.toString(), glob: false).toAbsolutePath()
}

// Not JsonSlurper, whose lazy maps are not thread-safe: several operators read a plan at once.
def read(json) {
    return new groovy.json.JsonSlurperClassic().parseText(json.text)
}

// The first metadata file of a store, in the order of METADATA in octane/store/chunks.py, or null.
def metadataOf(path) {
    def files = ['zarr.json', '.zattrs', '.zgroup', '.zarray'].collect { name -> path.resolve(name) }
    return files.find { file -> file.exists() }
}

// The file in which a MetaImage or NRRD header says its voxels are, in a list, or an empty list. Nextflow follows links
// to the header. Names that octane/store/formats/itk_files.py rejects are ignored.
def voxelsOf(input) {
    def isHeader = input && input.name ==~ /(?i).*[.](mha|mhd|nrrd|nhdr)/ && java.nio.file.Files.isRegularFile(input)
    if (!isHeader) { return [] }
    def head = input.withInputStream { stream -> new String(stream.readNBytes(1000000), 'UTF-8') }
    def header = input.name ==~ /(?i).*[.]n[^.]*/ ? head.split(/\r?\n\r?\n/, 2)[0] : head
    def named = /(?m)^[ \t\f\x0B]*ElementDataFile\s*[=:](.*)|^(?i:data ?file):(.*)/
    def names = (header =~ named).collect { _all, meta, nrrd ->
        (meta ?: nrrd).trim() - ~/^[.]\//
    }
    def isName = names && names[0] ==~ /(?!LIST|[.][.])[^\/\\%*?\[\]{}$\x00-\x1f]+/
    def file = isName ? input.toRealPath().resolveSibling(names[0]) : null
    return file && file.isFile() ? [file] : []
}

// The parts of an input that are read: only a folder's stores, or else its tiles, because results, a work directory and
// other files in it may change during the run. Names that begin with a dot are ignored.
def partsOf(input) {
    if (!input.isDirectory() || isStore(input)) { return [input] + voxelsOf(input) }
    def stores = input.listFiles().findAll { path -> !path.name.startsWith('.') && isStore(path) }
    return stores ?: tilesIn(input, 0)
}

// Like is_store in octane/store/chunks.py.
def isStore(path) {
    return path.name ==~ /(?s).*[.](zarr|ozx|zarr[.]zip)/ || metadataOf(path) != null
}

// Files and stores that may be tiles, and tables of their places, as octane/processes/mosaic looks for them.
def tilesIn(folder, depth) {
    def closed = [workflow.workDir, outputFolder()]*.toAbsolutePath()
    def ends = /(?i).+[.](tiff?|png|nii|nii[.]gz|mha|mhd|nrrd|nhdr|raw|bin|dat|data|img|txt|xml|csv|tsv)/
    return folder.listFiles()
        .findAll { path -> !path.name.startsWith('.') && !(path.toAbsolutePath() in closed) }
        .collectMany { path ->
            if (isStore(path)) { return [path] }
            if (!path.isDirectory()) { return path.name ==~ ends ? [path] : [] }
            return depth < 4 ? tilesIn(path, depth + 1) : []
        }
}

// Hash of the names, sizes and times of an input's files: Nextflow checks only a folder's own time, which does not
// change when a chunk deep inside is edited. Files that macOS, Windows and NFS leave there are ignored. Dangling links
// are added to `lost`.
def fingerprint(input, lost = []) {
    return fingerprintOf(partsOf(input), input, lost)
}

// The same of some parts of an input.
def fingerprintOf(parts, input, lost = []) {
    def links = java.nio.file.FileVisitOption.FOLLOW_LINKS
    def files = parts
        .collectMany { part -> part.isDirectory() ? java.nio.file.Files.walk(part, links).toList() : [part] }
        .findAll { path -> !path.isDirectory() && !(path.name ==~ /[.](?!z).*|Thumbs[.]db|desktop[.]ini/) }
    def (found, gone) = files.split { path -> path.exists() }
    lost.addAll(gone)
    def states = found.collect { path -> "${input.relativize(path)} ${path.size()} ${path.lastModified()}" }
    return states.sort().join('\n').md5()
}

// The beginning of the names of a task's files: its section, its channel, except the reference, and its step.
def stemOf(meta, step = '') {
    return [meta.section, meta.channel, step].findAll().join('_')
}

// A task's tag, from which completion.nf tells which of the planned tasks failed.
def tagOf(meta) {
    return [meta.id, stemOf(meta)].findAll().join(':')
}

// The name of a volume that a step made of a subject's channel.
def volumeOf(meta, step = '') {
    return "${[meta.id, meta.channel, step].findAll().join('_')}.ome.zarr"
}

// Inputs that changed since the start: a task may have read other chunks than those it is cached by, and its results
// would be silently wrong.
def changed(states) {
    return states.keySet().findAll { path -> fingerprint(path) != states[path] }*.toString()
}

// Value of a switch. On Nextflow 26.04 every command-line value is text, and any text is true, even 'false'. A missing
// parameter, as when another workflow includes this one, is off.
def switched(name) {
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
        def entries = group.properties.findAll { _name, own -> all || !own.hidden }.collect { name, own ->
            def choices = own['enum'] ? " One of ${own['enum'].findAll().join(', ')}." : ''
            def usual = own['default'] in [null, '', false] ? '' : " [default: ${own['default']}]"
            wrapped("  --${name.padRight(23)} ${own.description}${choices}${usual}", 28)
        }
        def title = ['', wrapped("${group.title}. ${group.description}", 0)]
        entries.empty ? entries : title + entries
    }
    def call = 'nextflow run main.nf --input TILES_OR_MOSAICS_OR_VOLUME [--outdir DIR] [parameters]'
    def lists = "Write several numbers as '10 8 8' or '10,8,8', in the stated order, or by name: 'z=10,y=8,x=8'."
    return ([call, wrapped(lists, 0)] + groups + (all ? [] : ['', '--help all shows all parameters.'])).join('\n')
}

// A text in lines of 100 columns, all but the first indented.
def wrapped(text, indent) {
    def lines = text.split(/(?<=\S) (?=\S)/).inject(['']) { list, word ->
        list.last() && list.last().size() + word.size() >= 100
            ? list + ["${' ' * indent}${word}".toString()]
            : list.init() + [list.last() ? "${list.last()} ${word}".toString() : word]
    }
    return lines.join('\n')
}
