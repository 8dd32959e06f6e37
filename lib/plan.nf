// The tasks of a plan, and the data that they read: an input's part, a table, an image or a record, as [name, files].

include { outputFolder ; stemOf } from './functions'

// The tasks of a step with the data that they read, as its process takes them: [meta, files, flags, more files...], in
// the order of `inputs`, their names in the plan. A task is emitted once all of its data are there; with `partial`, at
// the end, with those that are.
def inputsOf(tasks, step, inputs, data, partial = false) {
    def ofStep = tasks.filter { task -> task.step == step }
    return ofStep
        .flatMap { task ->
            if (task.reads.keySet() != inputs.toSet()) { error("${step} reads ${task.reads.keySet()}, not ${inputs}.") }
            def names = task.reads.values().flatten().unique()
            names.collect { name -> [name, groupKey("${task.meta.id}/${task.name}/${names[0]}", names.size()), task] }
        }
        .combine(data, by: 0)
        .map { name, key, task, files -> [key, task, [name, files]] }
        .groupTuple(remainder: partial)
        .map { _key, list, pairs ->
            def filesOf = pairs.collectEntries()
            def files = inputs.collect { input -> list[0].reads[input].collectMany { name -> filesOf[name] ?: [] } }
            [list[0].meta, files[0], list[0].flags] + files.drop(1)
        }
}

// What a step made, by name: each image, each record, and each record with its preview.
def dataOf(image, record, step) {
    def images = image.map { meta, store -> ["${meta.id}/${stemOf(meta, step)}".toString(), [store]] }
    def records = record.flatMap { meta, files ->
        def name = "${meta.id}/${stemOf(meta, step)}".toString()
        def json = [files].flatten().find { file -> file.name.endsWith('_metrics.json') }
        [["${name}_metrics.json".toString(), [json]], ["${name}/record".toString(), [files].flatten()]]
    }
    return images.mix(records)
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
