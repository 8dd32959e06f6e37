#!/usr/bin/env nextflow

include { PHANTOM } from './modules/phantom'
include { PREFLIGHT } from './modules/preflight'
include { RESAMPLE } from './modules/resample'
include { STITCH } from './modules/stitch'
include { STACK } from './modules/stack'
include { N4 } from './modules/n4'
include { PYRAMID } from './modules/pyramid'
include { REPORT } from './modules/report'
include { COHORT_REPORT } from './modules/cohort_report'
include { codeVersion ; ended ; fingerprint ; helpText ; inputOf ; items ; maskOf ; ofMany ; optional ; phantomSettings ; request ; runRecord ; settingsOf ; subjectName ; switched ; together ; wholeSubjects ; withSettings ; withTruth } from './lib/launch'
include { requireProfiler } from './lib/profiling'

workflow OCTANE {
    take:
    subjects // [meta, input, truth]: a folder of mosaics, one mosaic or one volume; truth may be []

    main:
    code = codeVersion()
    positions = optional(params.positions)
    PREFLIGHT(subjects.map { meta, input, _truth -> [meta, input, fingerprint(input)] }, request(), positions, code)
    settings = PREFLIGHT.out.plan.map { meta, plan -> [meta.id, settingsOf(plan)] }
    data = PREFLIGHT.out.plan.join(subjects).flatMap { meta, plan, input, _truth -> items(meta, plan, input) }

    // An input that is not to be resampled, or that is whole already, passes by.
    todo = data.branch { meta, _file ->
        resample: params.resolution != null && !params.skip_resample && meta.kind != 'section'
        as_is: true
    }
    RESAMPLE(withSettings(todo.resample, settings, 'resample'), code)
    resampled = RESAMPLE.out.image.mix(todo.as_is).branch { meta, _file ->
        mosaic: meta.kind == 'mosaic' && !params.skip_stitch
        section: meta.kind != 'volume'
        volume: true
    }
    STITCH(withSettings(resampled.mosaic, settings, 'stitch'), positions, code)
    sections = wholeSubjects(STITCH.out.section.mix(resampled.section))
    STACK(withSettings(sections, settings, 'stack'), code)

    volume = STACK.out.volume.mix(resampled.volume).map { meta, file -> [[id: meta.id], file] }
    records = RESAMPLE.out.record.mix(STITCH.out.record, STACK.out.record)
    if (!params.skip_n4) {
        mask = maskOf()
        N4(withTruth(withSettings(volume, settings, 'n4'), subjects), mask, "${code} ${fingerprint(mask)}")
        volume = N4.out.volume
        records = records.mix(N4.out.record)
    }
    if (!params.skip_pyramid) {
        PYRAMID(withSettings(volume, settings, 'pyramid'), code)
        volume = PYRAMID.out.volume
        records = records.mix(PYRAMID.out.record)
    }
    report = channel.empty()
    if (!params.skip_report) {
        REPORT(withSettings(together(records), settings, 'report'), runRecord(), code)
        report = REPORT.out.report
        COHORT_REPORT(ofMany(REPORT.out.twin), code)
    }

    emit:
    volume
    report
}

workflow {
    main:
    if (switched('help')) {
        log.info(helpText())
    }
    else {
        requireProfiler()
        workflow.onComplete { ended() }
        subjects = channel.of([[id: subjectName()], inputOf(), optional(params.truth)])
        if (switched('phantom')) {
            PHANTOM([id: subjectName()], phantomSettings(), codeVersion())
            subjects = PHANTOM.out.subject
        }
        OCTANE(subjects)
    }
}
