// A run's folders: what is wrong with them, the lock that keeps a second run out of the same outdir, and what a refused
// run takes back.

include { outputFolder } from '../lib/functions'

// Take a run's outdir. Returns what the run reports: `plans` [id: plan] of all subjects, `outcomes` [id: outcome] of
// those whose tasks have ended, `made` [id, file] of everything published, and `refused`.
def openRun() {
    def run = [plans: [:], outcomes: [:], made: [], refused: false]
    removeIfRefused(run)
    run.lock = lockOutdir()
    return run
}

// At the end of a run that is refused, before it takes the lock or by PREFLIGHT (`run.refused`), remove what Nextflow
// and the lock leave in outdir, if nothing else is there. Another's lock guards the records of another run.
def removeIfRefused(run) {
    def folder = new File("${params.outdir ?: '.'}/pipeline_info").absoluteFile
    def names = ['trace.txt', 'report.html', 'timeline.html', 'dag.html', '.lock']
    def remove = {
        def isAlone = folder.parentFile.list() as List == ['pipeline_info']
        // These deletions throw nothing, and leave a folder that holds other files.
        if (isAlone && (run.refused || !new File(folder, '.lock').exists())) {
            names.each { name -> new File(folder, name).delete() }
            folder.delete()
        }
    }
    // Nextflow writes some of them last.
    Runtime.runtime.addShutdownHook(new Thread(remove))
}

// Only one run at a time may write to an outdir. The kernel releases the lock when the launcher ends.
def lockOutdir() {
    def refusal = folderProblem()
    if (refusal) { error(refusal) }
    def folder = outputFolder().resolve('pipeline_info').tap { place -> place.mkdirs() }
    def lock = folder.resolve('.lock')
    def places = [workflow.workDir, folder] + (lock.exists() ? [lock] : [])
    def unwritable = places.find { path -> !java.nio.file.Files.isWritable(path) }
    if (unwritable) {
        def flag = unwritable == workflow.workDir ? '-work-dir' : '--outdir'
        error("${unwritable} cannot be written; check its free space and permissions, or choose another ${flag}.")
    }
    // Opened only once: closing a second handle in this process would release the lock.
    def stream = new RandomAccessFile(lock.toFile(), 'rw')
    def isTaken = false
    try {
        isTaken = stream.channel.tryLock() == null
    }
    catch (IOException problem) {
        log.warn("${folder} is on a file system without locks (${problem.message}): " +
            'a second run into this --outdir would not be noticed.')
    }
    if (isTaken) {
        error("${folder.parent} is being written by ${stream.readLine() ?: 'another run'}; " +
            'wait until it ends, or give another --outdir.')
    }
    stream.length = 0
    def pid = ProcessHandle.current().pid()
    stream.writeBytes("the run ${workflow.runName}, process ${pid}, launched in ${workflow.launchDir}")
    return stream
}

// Why a run cannot use its folders, or null.
def folderProblem() {
    def outdir = (params.outdir ?: '').toString()
    def place = new File(outdir).absolutePath
    def folders = ['--outdir': place, '--scratch_dir': params.scratch_dir, '-work-dir': workflow.workDir]
    def withColon = workflow.containerEngine ? folders.find { _name, path -> "${path}".contains(':') } : null
    // octane/config/validation.py says the same of data: Nextflow's shell script does not escape these.
    def sign = workflow.workDir.toString().find(/[\[\]*?{}\$\p{Cntrl}]/)
    return outdir in ['', 'true']
        ? '--outdir is missing; give a folder for the results, such as ./01.'
        : params.outdir instanceof Number
        ? "--outdir was read as the number ${outdir}; write a path, such as ./01."
        : outdir.startsWith('~')
        ? "--outdir is ${outdir}, in which no shell expanded the ~; give the full path."
        : outputFolder().isFile()
        ? "${outputFolder()} is a file, not a folder; choose another --outdir."
        : withColon
        ? "${withColon.key} ${withColon.value} contains a :, which containers cannot mount; give another."
        : sign
        ? "${workflow.workDir} has a ${sign} in its path, which Nextflow cannot hand to tasks; rename it."
        : null
}
