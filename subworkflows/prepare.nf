// Before any work: the subjects of the run, and PREFLIGHT's plan for each.

include { PHANTOM } from '../modules/phantom'
include { PREFLIGHT } from '../modules/preflight'
include { codeVersions ; isOn ; readJson } from '../lib/functions'

// The subjects of this run: the rows of a samplesheet, a phantom that is made first, or the --input.
workflow SUBJECTS {
    main:
    // Nextflow formats modes and numbers in the user's locale: in a Turkish one it cannot find the mode SYMLINK.
    Locale.setDefault(Locale.ENGLISH)
    if (!params.samplesheet && !isOn('phantom')) {
        subjects = channel.of([[:], [], []])
    }
    else {
        CHECK(channel.of([]))
        rows = CHECK.out.answer.flatMap { answer -> answer.subjects }
        if (params.samplesheet) {
            subjects = rows.map { row -> [row, row.input, []] }
        }
        else {
            PHANTOM(rows, codeVersions().phantom)
            subjects = PHANTOM.out.subject
        }
    }

    emit:
    subjects // [meta, input, truth]; meta.given: the subject's own parameters; nothing: those of the run
}

workflow PREPARE {
    take:
    subjects // [meta, input, truth]

    main:
    // One task for all subjects, to report all their problems at once.
    CHECK(subjects.toSortedList { a, b -> a[0].id <=> b[0].id }.filter { list -> list })
    plans = CHECK.out.answer.flatMap { answer -> answer.plans }

    emit:
    tasks = plans.flatMap { plan -> plan.tasks }
    data = plans.flatMap { plan ->
        plan.data.collect { name, paths -> [name, paths.collect { path -> file(path, glob: false) }] }
    }
    plans = plans.map { plan ->
        [plan.id, [tasks: plan.records] + plan.subMap('results', 'states', 'command', 'decisions')]
    }
}

// What must be right before any task can run.
workflow CHECK {
    take:
    subjects // a list of [meta, input, truth]

    main:
    PREFLIGHT(subjects.map { list -> pathsToMount(list) }, subjects.map { list -> requestOf(list) })

    emit:
    answer = PREFLIGHT.out.plans.map { file -> readAnswer(file) }
}

// PREFLIGHT's request as JSON.
def requestOf(list) {
    def asked = list.collect { meta, input, truth ->
        meta.subMap('id', 'given', 'row') + [input: input ? "${input}" : null, truth: truth ? "${truth}" : null]
    }
    def run = [
        parameters: params,
        asked: asked,
        command: workflow.commandLine,
        folder: workflow.launchDir.toString(),
        work: workflow.workDir.toString(),
        is_contained: workflow.containerEngine != null,
        is_resumed: workflow.resume,
        is_stub: workflow.stubRun,
        // Without octane's parameters another workflow includes this one, and publishes in its own way.
        is_published: params.publish_dir_mode != null,
    ]
    return groovy.json.JsonOutput.toJson(run)
}

// Read a check's result, log its notes, and stop on problems.
def readAnswer(file) {
    def answer = readJson(file)
    answer.notes.each { note -> log.info(note) }
    return answer.problems ? error(answer.problems.join('\n')) : answer
}

// What PREFLIGHT's container must mount: the files that parameters name, and where links in them lead, which Docker
// would make if they were not there. Nextflow's shell script could not stage paths with these signs, and PREFLIGHT
// refuses them.
def pathsToMount(list) {
    if (!workflow.containerEngine) { return [] }
    def names = ['samplesheet', 'input', 'positions', 'tile_table', 'displacements'] +
        ['n4_mask', 'stitch_flat_field', 'stitch_gain']
    def given = list.collectMany { meta, input, truth -> [input, truth] + (meta.given ?: [:]).subMap(names).values() }
    // On the command line 01 is still no number.
    def words = names.collect { name -> params[name] } + workflow.commandLine.findAll(/(?<=[=\s])[0-9.]+(?=\s|$)/)
    def paths = (given + words)
        .findAll { text -> text && !("${text}" =~ /[:\[\]*?{}\$\p{Cntrl}]/) }
        .collect { text -> file("${text}", type: 'any') }
        .findAll { path -> path.exists() }
    return (paths + paths*.toRealPath() + paths.collectMany { path -> linksIn(path) }).unique()
}

// Links in a folder of stores or tiles.
def linksIn(folder, depth = 0) {
    def isStore = ['zarr.json', '.zattrs', '.zgroup', '.zarray'].any { name -> folder?.resolve(name)?.exists() }
    def isOpen = folder?.isDirectory() && java.nio.file.Files.isReadable(folder)
    if (isStore || !isOpen || folder.name.endsWith('.zarr')) { return [] }
    def (links, others) = folder.listFiles().toList().split { path -> java.nio.file.Files.isSymbolicLink(path) }
    def deeper = depth < 4 ? others.collectMany { path -> linksIn(path, depth + 1) } : []
    return links.findAll { path -> path.exists() } + deeper
}
