// With --keep_intermediates false: the outputs of tasks before N4 are emptied once all tasks that read them have ended.
// Only outputs of processes come here, so the run's inputs stay, even if they lie in the work directory.

include { outputFolder ; stemOf ; switched ; withSteps } from '../lib/functions'

workflow EMPTY {
    take:
    mosaics // [meta, store] of MOSAIC
    resampled // [meta, store]
    sections // [meta, store] of STITCH
    stacked // [meta, store]
    records // [meta, files] of RESAMPLE, STITCH and STACK
    fitted // [meta, files]: records of N4
    plans

    main:
    whole = resampled.branch { meta, _store ->
        volume: meta.kind == 'volume'
        mosaic: true
    }
    // Each with the name of the task that reads it, as in tasksOf.
    made = mosaics
        .map { meta, store -> [meta.id, meta.resample ? stemOf(meta, 'resample') : assembling(meta), store] }
        .mix(whole.mosaic.map { meta, store -> [meta.id, assembling(meta), store] })
        .mix(sections.map { meta, store -> [meta.id, stemOf(meta.subMap('channel'), 'stack'), store] })
        .mix(whole.volume.mix(stacked).map { meta, store -> [meta.id, 'n4', store] })
    ended = records.flatMap { meta, files ->
        [files].flatten().collect { file -> [meta.id, file.name - '_metrics.json'] }
    }
    // All channels may fit the tissue of one.
    last = withSteps(fitted, plans)
        .map { meta, _files, steps -> [groupKey(meta.id, steps.written.size()), ''] }
        .groupTuple()
        .map { id, _all -> [id.toString(), 'n4'] }
    made.combine(ended.mix(last), by: [0, 1]).subscribe { id, _task, store -> empty(id, store) }
}

// The task of ASSEMBLE that reads a mosaic.
def assembling(meta) {
    return switched('skip_stitch') ? stemOf(meta.subMap('channel'), 'stack') : stemOf(meta, 'stitch')
}

// Remove a store's voxels. Its folder keeps its name, size and time, so that the tasks that made and read it stay
// cached. The array's metadata go first: a task that reads what is left fails, and never takes chunks for missing ones.
def empty(id, store) {
    def published = outputFolder().resolve(id).resolve(store.name)
    def isResult = published.exists() && java.nio.file.Files.isSameFile(published, store)
    if (isResult) { return }
    def (array, chunks) = [store.resolve('0/zarr.json'), store.resolve('0/c')]
    try {
        if (array.exists()) { java.nio.file.Files.move(array, store.resolve('0/emptied.json')) }
        def files = chunks.exists() ? java.nio.file.Files.walk(chunks).toList() : []
        files.reverse().each { path -> java.nio.file.Files.delete(path) }
    }
    catch (IOException problem) {
        log.warn("${store} could not be emptied and takes space: ${problem.message}")
    }
}
