#!/usr/bin/env nextflow

include { PREFLIGHT } from './modules/preflight'
include { RESAMPLE } from './modules/resample'
include { STITCH } from './modules/stitch'
include { STACK } from './modules/stack'
include { N4 } from './modules/n4'
include { PYRAMID } from './modules/pyramid'
include { REPORT } from './modules/report'
include { COHORT_REPORT } from './modules/cohort_report'
include { ended } from './lib/ending'
include { allOf ; codeVersion ; collected ; fingerprint ; helpText ; inOwnFolders ; inStep ; items ; maskOf ; ofMany ; optional ; own ; ownFolders ; plansOf ; recordsOf ; runRecord ; statesOf ; switched ; together ; told ; unchanged ; wholeSubjects ; withSettings ; withTruth } from './lib/launch'
include { released ; taken } from './lib/outdir'
include { SUBJECTS } from './lib/subjects'

workflow OCTANE {
    take:
    subjects // [meta, input, truth]: a folder of mosaics, one mosaic or one volume; truth may be []; meta.given: parameters of its own

    main:
    code = codeVersion()
    watched = ownFolders(subjects.map { meta, input, truth -> [meta, input, statesOf(meta, input, truth)] })
    all = allOf(watched)
    PREFLIGHT(all.data, all.request, code)
    PREFLIGHT.out.plans.subscribe { ids, found -> told(ids, found) }
    plans = inOwnFolders(PREFLIGHT.out.plans.flatMap { ids, found -> plansOf(ids, found) }, watched)
    settings = plans.map { id, plan -> [id, plan.settings] }
    known = subjects.map { meta, input, _truth -> [meta.id, meta, input] }
    data = plans.join(known).flatMap { _id, plan, meta, input -> items(meta, plan, input) }

    todo = data.branch { meta, _file ->
        resample: meta.resample
        as_is: true
    }
    RESAMPLE(withSettings(todo.resample, settings, 'resample'), code)
    resampled = RESAMPLE.out.image.mix(todo.as_is).branch { meta, _file ->
        mosaic: meta.kind == 'mosaic' && !switched('skip_stitch')
        section: meta.kind != 'volume'
        volume: true
    }
    tables = known.map { id, meta, _input -> [id, optional(own(meta, 'positions'))] }
    mosaics = inStep(withSettings(resampled.mosaic, settings, 'stitch'), tables)
    STITCH(mosaics.data, mosaics.file, code)
    sections = wholeSubjects(STITCH.out.section.mix(resampled.section))
    STACK(withSettings(sections, settings, 'stack'), code)

    volume = STACK.out.volume.mix(resampled.volume).map { meta, file -> [[id: meta.id], file] }
    records = RESAMPLE.out.record.mix(STITCH.out.record, STACK.out.record)
    results = channel.empty()
    if (!switched('skip_n4')) {
        masks = known.map { id, meta, _input -> [id, maskOf(meta)] }
        masked = inStep(withTruth(withSettings(volume, settings, 'n4'), subjects), masks)
        N4(masked.data, masked.file, masked.file.map { mask -> "${code} ${fingerprint(mask)}" })
        volume = N4.out.volume
        records = records.mix(N4.out.record)
        results = results.mix(N4.out.field)
    }
    if (!switched('skip_pyramid')) {
        PYRAMID(withSettings(volume, settings, 'pyramid'), code)
        volume = PYRAMID.out.volume
        records = records.mix(PYRAMID.out.record)
    }
    report = channel.empty()
    if (!switched('skip_report')) {
        counts = plans.join(known).map { id, plan, meta, _input -> [id, recordsOf(meta, plan)] }
        REPORT(withSettings(together(records, counts), settings, 'report'), runRecord(), code)
        report = REPORT.out.report
        COHORT_REPORT(ofMany(REPORT.out.twin), code)
        results = results.mix(report, COHORT_REPORT.out.report.map { page -> [[:], page] })
    }
    volume = unchanged(volume, watched)

    emit:
    volume
    report
    records // [meta, files]: what the steps noted
    results = results.mix(volume) // [meta, file]: all of it, the bias field and the reports
}

workflow {
    main:
    if (switched('help')) {
        log.info(helpText())
    }
    else {
        subjects = SUBJECTS()
        outdir = taken()
        OCTANE(subjects)
        names = collected(subjects.map { meta, _input, _truth -> meta.id })
        records = collected(OCTANE.out.records)
        results = collected(OCTANE.out.results)
        workflow.onComplete {
            ended(names, records, results)
            released(outdir)
        }
    }
}
