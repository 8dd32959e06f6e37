// What a run reads and no task made: which files belong to it, and whether they have changed; and where
// its results go, which must be elsewhere.

// Whether a folder is a zarr store, as bin/octane/manifests.py tells.
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
    def stores = partsOf(input).findAll { part -> isStore(part) }
    written.each { what, place ->
        def inside = stores.find { part -> place.normalize().startsWith(part.toAbsolutePath().normalize()) }
        if (inside) {
            error("${place} lies inside ${inside}, which the run reads; choose another ${what}.")
        }
    }
    return input
}
