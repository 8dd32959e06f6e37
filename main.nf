#!/usr/bin/env nextflow

include { PHANTOM } from './modules/phantom'
include { PREFLIGHT } from './modules/preflight'
include { RESAMPLE } from './modules/resample'
include { STITCH } from './modules/stitch'
include { STACK } from './modules/stack'
include { N4 } from './modules/n4'
include { PYRAMID } from './modules/pyramid'
include { REPORT } from './modules/report'
include { codeVersion ; ended ; fingerprint ; helpText ; items ; optional ; phantomSettings ; request ; runRecord ; settingsOf ; withSettings } from './modules/launch'

workflow OCTANE {
    take:
    subjects // [meta, input, truth]: a folder of mosaics, one mosaic or one volume; truth may be []

    main:
    code = codeVersion()
    positions = optional(params.positions)
    PREFLIGHT(subjects.map { meta, input, _truth -> [meta, input, request(), fingerprint(input)] }, positions, code)
    settings = PREFLIGHT.out.plan.map { meta, plan, _input -> [meta.id, settingsOf(plan)] }
    data = PREFLIGHT.out.plan.flatMap { meta, plan, input -> items(meta, plan, input) }
    records = channel.empty()

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
    sections = STITCH.out.section
        .mix(resampled.section)
        .map { meta, file -> [groupKey([id: meta.id], meta.count), file] }
        .groupTuple(sort: { a, b -> a.name <=> b.name })
        .map { key, files -> [key.target, files] }
    STACK(withSettings(sections, settings, 'stack'), code)

    volume = STACK.out.volume.mix(resampled.volume.map { meta, file -> [[id: meta.id], file] })
    records = records.mix(RESAMPLE.out.record, STITCH.out.record, STACK.out.record)
    if (!params.skip_n4) {
        truths = subjects.map { meta, _input, truth -> [[id: meta.id], truth] }
        N4(withSettings(volume, settings, 'n4').join(truths), optional(params.n4_mask == 'tissue' ? null : params.n4_mask), code)
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
        told = records.map { meta, files -> [[id: meta.id], files] }.groupTuple().map { meta, files -> [meta, files.flatten().sort { file -> file.name }] }
        REPORT(withSettings(told, settings, 'report'), runRecord(), code)
        report = REPORT.out.report
    }

    emit:
    volume
    report
}

workflow {
    main:
    if (params.help) {
        log.info(helpText())
    }
    else {
        workflow.onComplete { ended() }
        name = params.subject ?: (params.phantom ? 'phantom' : file(params.input ?: 'input').simpleName)
        subjects = channel.of([[id: name], optional(params.input), optional(params.truth)])
        if (params.phantom) {
            PHANTOM([id: name], phantomSettings(), codeVersion())
            subjects = PHANTOM.out.subject
        }
        OCTANE(subjects)
    }
}
