#!/usr/bin/env nextflow

include { MOSAIC } from './modules/mosaic'
include { RESAMPLE } from './modules/resample'
include { STITCH ; STITCH as STITCH_OTHERS } from './modules/stitch'
include { STACK ; STACK as STACK_OTHERS } from './modules/stack'
include { N4 } from './modules/n4'
include { PYRAMID } from './modules/pyramid'
include { CHANNELS } from './modules/channels'
include { REPORT ; runRecord } from './modules/report'
include { COHORT_REPORT } from './modules/cohort_report'
include { PREPARE ; SUBJECTS } from './subworkflows/prepare'
include { PROGRESS } from './subworkflows/progress'
include { openRun } from './subworkflows/outdir'
include { closeRun ; failIfChanged ; outcomes ; reportInputs } from './subworkflows/completion'
include { watchSlurm } from './subworkflows/slurm'
include { dataOf ; empty ; inputsOf } from './lib/plan'
include { codeVersions ; helpText ; isOn } from './lib/functions'

// PREFLIGHT's plan lists every task: its step, its flags, and the names of the data that it reads.
workflow OCTANE {
    take:
    subjects // [meta, input, truth]: a folder of mosaics or tiles, one mosaic or one volume; truth may be []

    main:
    code = codeVersions()
    PREPARE(subjects)
    tasks = PREPARE.out.tasks
    data = PREPARE.out.data

    MOSAIC(inputsOf(tasks, 'mosaic', ['tiles', 'tile_list'], data), code.mosaic)
    data = data.mix(dataOf(MOSAIC.out.image, MOSAIC.out.record, 'mosaic'))
    RESAMPLE(inputsOf(tasks, 'resample', ['image'], data), code.resample)
    data = data.mix(dataOf(RESAMPLE.out.image, RESAMPLE.out.record, 'resample'))
    // The reference channel is measured, and the others lie where its records say: processes of their own, because none
    // can read its own output.
    others = tasks.filter { task -> task.meta.channel }
    reference = tasks.filter { task -> !task.meta.channel }
    mosaics = ['mosaic', 'positions', 'flat_field', 'reference', 'gains']
    STITCH(inputsOf(reference, 'stitch', mosaics, data), code.stitch)
    data = data.mix(dataOf(STITCH.out.image, STITCH.out.record, 'stitch'))
    STITCH_OTHERS(inputsOf(others, 'stitch', mosaics, data), code.stitch)
    data = data.mix(dataOf(STITCH_OTHERS.out.image, STITCH_OTHERS.out.record, 'stitch'))
    STACK(inputsOf(reference, 'stack', ['sections', 'displacements', 'reference'], data), code.stack)
    data = data.mix(dataOf(STACK.out.image, STACK.out.record, 'stack'))
    STACK_OTHERS(inputsOf(others, 'stack', ['sections', 'displacements', 'reference'], data), code.stack)
    data = data.mix(dataOf(STACK_OTHERS.out.image, STACK_OTHERS.out.record, 'stack'))
    N4(inputsOf(tasks, 'n4', ['volume', 'mask', 'truth', 'reference'], data), code.n4)
    data = data.mix(dataOf(N4.out.image, N4.out.record, 'n4'))
    PYRAMID(inputsOf(tasks, 'pyramid', ['volume'], data), code.pyramid)
    data = data.mix(dataOf(PYRAMID.out.image, PYRAMID.out.record, 'pyramid'))
    CHANNELS(inputsOf(tasks, 'channels', ['volumes'], data), code.channels)
    data = data.mix(dataOf(CHANNELS.out.image, CHANNELS.out.record, 'channels'))
    // With --keep_intermediates false, once all readers of an image have ended.
    inputsOf(tasks, 'empty', ['image', 'records'], data)
        .subscribe { meta, files, _flags, _records -> empty(meta.id, files[0]) }

    ended = outcomes(inputsOf(tasks, 'report', ['records', 'input', 'results'], data, true), PREPARE.out.plans)
    REPORT(reportInputs(ended), runRecord(code.toString().md5()), code.report)
    names = PREPARE.out.plans.map { id, _plan -> id }.toSortedList().filter { list -> list.size() > 1 }
    twins = REPORT.out.twin.map { _meta, twin -> twin }.toSortedList { a, b -> a.name <=> b.name }
    COHORT_REPORT(twins, isOn('skip_report') ? channel.empty() : names, code.report)

    records = data
        .filter { name, _files -> name.endsWith('/record') }
        .map { name, files -> [[id: name.tokenize('/')[0]], files] }
    results = records.mix(
        STITCH.out.flat_field, STITCH_OTHERS.out.flat_field, STACK.out.displacements, N4.out.field,
        inputsOf(tasks, 'result', ['results'], data).map { meta, files, _flags -> [meta, files] },
        REPORT.out.report, REPORT.out.twin, REPORT.out.previews, REPORT.out.more,
        COHORT_REPORT.out.report.map { file -> [[id: ''], file] }
    )
    failIfChanged(results, ended)

    emit:
    volume = ended // [meta, image]
        .filter { meta, _files, _flags, volume -> volume && !meta.outcome?.changed }
        .map { meta, _files, _flags, volume -> [[id: meta.id], volume.size() > 1 ? volume : volume[0]] }
    report = REPORT.out.report // [meta, page]
    records // [meta, files]: the steps' metrics
    results // [meta, files]: everything that is published
    plans = PREPARE.out.plans // [id, plan]
    outcomes = ended.map { meta, _files, _flags, _volume -> [meta.id, meta.outcome] } // what results lack, or null
}

workflow {
    if ("${params.help}" != 'false') {
        log.info(helpText("${params.help}" == 'all'))
    }
    else {
        watchSlurm()
        run = openRun()
        OCTANE(SUBJECTS())
        PROGRESS(OCTANE.out.plans, OCTANE.out.records)
        closeRun(run, OCTANE.out.plans, OCTANE.out.outcomes, OCTANE.out.results)
    }
}
