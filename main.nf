#!/usr/bin/env nextflow

include { RESAMPLE } from './modules/resample'
include { STITCH } from './modules/stitch'
include { STACK } from './modules/stack'
include { N4 } from './modules/n4'
include { PYRAMID } from './modules/pyramid'
include { REPORT ; runRecord } from './modules/report'
include { COHORT_REPORT } from './modules/cohort_report'
include { PREPARE ; SUBJECTS } from './subworkflows/prepare'
include { complete ; lockOutdir } from './subworkflows/completion'
include { watchSlurm } from './subworkflows/slurm'
include { codeVersions ; unchanged ; withOwn } from './lib/functions'
include { switched } from './lib/publishing'

workflow OCTANE {
    take:
    subjects // [meta, input, truth]: a folder of mosaics, one mosaic or one volume; truth may be []

    main:
    code = codeVersions()
    PREPARE(subjects, code.preflight)
    plans = PREPARE.out.plans
    images = PREPARE.out.images.branch { meta, _image ->
        resample: meta.resample
        ready: true
    }
    RESAMPLE(withOwn(images.resample, plans, 'resample'), code.resample)
    resampled = RESAMPLE.out.image.mix(images.ready).branch { meta, _image ->
        mosaic: meta.kind == 'mosaic' && !switched('skip_stitch')
        section: meta.kind != 'volume'
        volume: true
    }
    STITCH(withOwn(resampled.mosaic, plans, 'stitch'), code.stitch)
    sections = STITCH.out.section
        .mix(resampled.section)
        .map { meta, section -> [groupKey(meta.id, meta.count), meta.seen, section] }.groupTuple()
        .map { id, seen, files -> [[id: id.toString(), seen: seen.sort().join(' ').md5()], files.sort { file -> file.name }] }
    STACK(withOwn(sections, plans, 'stack'), code.stack)
    volume = STACK.out.volume.mix(resampled.volume).map { meta, image -> [[id: meta.id, seen: meta.seen], image] }
    records = RESAMPLE.out.record.mix(STITCH.out.record, STACK.out.record)
    results = channel.empty()
    if (!switched('skip_n4')) {
        N4(withOwn(volume, plans, 'n4'), code.n4)
        volume = N4.out.volume
        records = records.mix(N4.out.record)
        results = N4.out.field
    }
    if (!switched('skip_pyramid')) {
        PYRAMID(withOwn(volume, plans, 'pyramid'), code.pyramid)
        volume = PYRAMID.out.volume
        records = records.mix(PYRAMID.out.record)
    }
    report = channel.empty()
    if (!switched('skip_report')) {
        // As soon as a subject's last record is there, in an order that does not depend on which came first.
        noted = records
            .map { meta, files -> [meta.id, files] }
            .combine(plans, by: 0)
            .map { id, files, steps -> [groupKey(id, steps.records), files] }
            .groupTuple(remainder: true)
            .map { id, files -> [[id: id.toString()], files.flatten().sort { file -> file.name }] }
        REPORT(withOwn(noted, plans, 'report'), runRecord(code.toString().md5()), code.report)
        report = REPORT.out.report
        twins = REPORT.out.twin.map { _meta, twin -> twin }.toSortedList { a, b -> a.name <=> b.name }
        COHORT_REPORT(twins.filter { list -> list.size() > 1 }, code.cohort_report)
        results = results.mix(report, COHORT_REPORT.out.report.map { page -> [[id: ''], page] })
    }
    volume = unchanged(volume, PREPARE.out.states)

    emit:
    volume // [meta, image]
    report // [meta, page]
    records // [meta, files]: the steps' metrics
    results = results.mix(volume) // [meta, file]: all that is published
}

workflow {
    if (switched('help')) {
        log.info(file("${projectDir}/lib/help.txt").text)
    }
    else {
        watchSlurm()
        OCTANE(SUBJECTS())
        lock = lockOutdir()
        results = [].asSynchronized()
        OCTANE.out.results.subscribe { item -> results << item }
        workflow.onComplete { complete(results, lock) }
    }
}
