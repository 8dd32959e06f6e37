// One run at a time writes into an outdir.
//
// The lock is the kernel's, on an open file: it goes with the launcher, whatever ends that, and asks
// neither clocks nor numbers of processes. The file's content is for people alone.

include { outputFolder } from './launch'

// Takes the outdir for this run. What it gives is to be kept until the run is over: the lock goes with it.
def taken() {
    def folder = outputFolder().resolve('pipeline_info')
    if (!java.nio.file.Files.isWritable(workflow.workDir)) {
        error("${workflow.workDir} cannot be written, and tasks work there; choose another -work-dir.")
    }
    def mine = "the run ${workflow.runName}, process ${ProcessHandle.current().pid()} on ${hostname()}, launched in ${workflow.launchDir}".toString()
    try {
        java.nio.file.Files.createDirectories(folder)
        // Opened once: this program would give the lock up with the closing of a second opening.
        def stream = java.nio.channels.FileChannel.open(folder.resolve('.lock'), java.nio.file.StandardOpenOption.CREATE, java.nio.file.StandardOpenOption.READ, java.nio.file.StandardOpenOption.WRITE)
        if (locked(stream, folder)) {
            stream.truncate(0)
            stream.write(java.nio.ByteBuffer.wrap(mine.bytes), 0)
            return stream
        }
        def there = java.nio.ByteBuffer.allocate(4096)
        def size = Math.max(stream.read(there, 0), 0)
        stream.close()
        error("${folder.parent} is being written by ${new String(there.array(), 0, size) ?: 'another run'}; wait for its end, or give another --outdir.")
    }
    catch (IOException problem) {
        error("${folder} cannot be written (${reason(problem)}); give it space and rights, or choose another --outdir.")
    }
}

// Gives the outdir back, and says what a run stopped for where its tasks cannot: a result that could not
// be copied is named by Nextflow in its log alone, and on a full disk a task's own words are lost.
def released(lock) {
    def told = workflow.success ? '' : workflow.errorMessage ?: workflow.errorReport ?: ''
    def copied = told =~ /^java\S+FileSystemException: .* -> (.*): (.*)/
    if (copied) {
        log.error("octane stopped: ${copied[0][1]} could not be written (${copied[0][2].uncapitalize()}), so that the results in ${params.outdir} are not whole; give it space and rights, and run again with -resume, or choose another --outdir.")
    }
    else if (!workflow.success && !told.contains('error: ') && full(workflow.workDir)) {
        log.error("octane stopped: there is no space left in the work directory ${workflow.workDir}; make some and run again with -resume, or choose another with -work-dir.")
    }
    lock.close()
}

def full(folder) {
    return java.nio.file.Files.getFileStore(folder).usableSpace < 1000000
}

def locked(stream, folder) {
    try {
        return stream.tryLock() != null
    }
    catch (IOException problem) {
        log.warn("${folder} is on a file system without locks (${reason(problem)}): a second run into this --outdir would not be noticed.")
        return true
    }
}

// What the system says, without the path that Java writes before it.
def reason(problem) {
    return problem instanceof java.nio.file.AccessDeniedException ? 'permission denied' : problem instanceof java.nio.file.FileSystemException && problem.reason ? problem.reason.uncapitalize() : problem.message
}

def hostname() {
    def told = file('/proc/sys/kernel/hostname')
    return told.exists() ? told.text.trim() : 'this host'
}
