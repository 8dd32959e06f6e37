#!/usr/bin/env nextflow

include { MOSAIC } from './modules/mosaic'
include { RESAMPLE } from './modules/resample'
include { N4 } from './modules/n4'
include { PYRAMID } from './modules/pyramid'
include { CHANNELS } from './modules/channels'
include { REPORT ; runRecord } from './modules/report'
include { COHORT_REPORT } from './modules/cohort_report'
include { ASSEMBLE ; ASSEMBLE as ASSEMBLE_OTHERS } from './subworkflows/assemble'
include { EMPTY } from './subworkflows/empty'
include { PREPARE ; SUBJECTS } from './subworkflows/prepare'
include { PROGRESS } from './subworkflows/progress'
include { complete ; escapeMarkup ; forgetIfRefused ; lockOutdir ; outcomeOf } from './subworkflows/completion'
include { watchSlurm } from './subworkflows/slurm'
include { codeVersions ; switched ; withOwn ; withSteps } from './lib/functions'

workflow OCTANE {
    take:
    subjects // [meta, input, truth]: a folder of mosaics or tiles, one mosaic or one volume; truth may be []

    main:
    code = codeVersions()
    PREPARE(subjects, code.preflight)
    plans = PREPARE.out.plans
    given = PREPARE.out.images.branch { meta, _image ->
        tiles: meta.kind == 'tiles'
        image: true
    }
    tiles = withOwn(given.tiles, plans, 'mosaic').map { meta, files, flags, lists ->
        [meta + [kind: 'mosaic'], files, flags, lists[meta.channel][meta.section]]
    }
    MOSAIC(tiles, code.mosaic)
    images = MOSAIC.out.mosaic.mix(given.image).branch { meta, _image ->
        resample: meta.resample
        ready: true
    }
    RESAMPLE(withOwn(images.resample, plans, 'resample'), code.resample)
    resampled = RESAMPLE.out.image.mix(images.ready).branch { meta, _image ->
        volume: meta.kind == 'volume'
        reference: !meta.channel
        other: true
    }
    // The reference channel is measured; the others are placed alike.
    itself = plans.flatMap { id, steps -> steps.items.collect { item -> [id, item, []] } }
    alone = plans.map { id, _steps -> [id, []] }
    ASSEMBLE(resampled.reference, itself, alone, plans, code)
    ASSEMBLE_OTHERS(resampled.other, ASSEMBLE.out.stitched, ASSEMBLE.out.stacked, plans, code)
    volume = resampled.volume
        .map { meta, image -> [meta.subMap('id', 'channel', 'seen'), image] }
        .mix(ASSEMBLE.out.volume, ASSEMBLE_OTHERS.out.volume)
    records = MOSAIC.out.record.mix(RESAMPLE.out.record, ASSEMBLE.out.record, ASSEMBLE_OTHERS.out.record)
    results = ASSEMBLE.out.results.mix(ASSEMBLE_OTHERS.out.results)
    references = volume.filter { meta, _image -> !meta.channel }.map { meta, image -> [meta.id, image] }
    volume = withSteps(volume, plans)
        .filter { meta, _image, steps -> meta.channel in steps.written }
        .map { meta, image, _steps -> [meta, image] }
    before = records
    fitted = channel.empty()
    if (!switched('skip_n4')) {
        masked = withOwn(volume, plans, 'n4').branch { meta, image, flags, mask, truth, usesTissue ->
            other: meta.channel && usesTissue
                return [meta.id, meta, image, flags, mask]
            alone: true
                return [meta, image, flags, mask, meta.channel ? [] : truth, []]
        }
        // They fit the tissue of the reference channel.
        others = masked.other.combine(references, by: 0).map { _id, meta, image, flags, mask, reference ->
            [meta, image, flags, mask, [], reference]
        }
        N4(masked.alone.mix(others), code.n4)
        volume = N4.out.volume
        fitted = N4.out.record
        records = records.mix(fitted)
        results = results.mix(N4.out.field)
    }
    // A workflow that includes this one may lack the parameter.
    if (params.containsKey('keep_intermediates') && !switched('keep_intermediates')) {
        sections = ASSEMBLE.out.sections.mix(ASSEMBLE_OTHERS.out.sections)
        stacked = ASSEMBLE.out.volume.mix(ASSEMBLE_OTHERS.out.volume)
        EMPTY(MOSAIC.out.mosaic, RESAMPLE.out.image, sections, stacked, before, fitted, plans)
    }
    if (!switched('skip_pyramid')) {
        // The joined image has the name that the reference channel's volume would have.
        named = withSteps(volume, plans).map { meta, image, steps ->
            [meta + [channel: meta.channel ?: steps.lead], image]
        }
        PYRAMID(withOwn(named, plans, 'pyramid'), code.pyramid)
        volume = PYRAMID.out.volume
        records = records.mix(PYRAMID.out.record)
    }
    finished = withSteps(volume, plans).branch { _meta, _image, steps ->
        several: steps.joined
        one: true
    }
    joined = finished.several
        .map { meta, image, steps ->
            def place = steps.written.indexOf(meta.channel == steps.lead ? '' : meta.channel)
            [groupKey(meta.id, steps.written.size()), meta.seen, [place, image]]
        }
        .groupTuple()
        .map { id, seen, placed ->
            [[id: id.toString(), seen: seen.unique().sort().join(' ')], placed.sort { own -> own[0] }*.last()]
        }
    CHANNELS(withOwn(joined, plans, 'channels'), code.channels)
    volume = finished.one.map { meta, image, _steps -> [meta, image] }.mix(CHANNELS.out.volume)
    records = records.mix(CHANNELS.out.record)
    // Emitted with a subject's last record, or at the end if a task failed. Sorted, because tasks end in any order.
    outcomes = plans
        .map { id, _steps -> [id, []] }
        .mix(records.map { meta, files -> [meta.id, files] })
        .combine(plans, by: 0)
        .map { id, files, steps -> [groupKey(id, steps.tasks.size() + 1), files] }
        .groupTuple(remainder: true)
        .map { id, files -> [id.toString(), files.flatten().sort { file -> file.name }] }
        .combine(plans, by: 0)
        .map { id, files, steps -> [id, files, outcomeOf(id, steps, files)] }
    results = results.mix(records, volume)
    report = channel.empty()
    if (!switched('skip_report')) {
        noted = outcomes
            .filter { _id, files, outcome -> files || outcome }
            .map { id, files, outcome -> [[id: id, outcome: outcome], files] }
        REPORT(withOwn(noted, plans, 'report'), runRecord(code.toString().md5()), code.report)
        report = REPORT.out.report
        names = plans.map { id, _steps -> id }.toSortedList().filter { list -> list.size() > 1 }
        twins = REPORT.out.twin.map { _meta, twin -> twin }.toSortedList { a, b -> a.name <=> b.name }
        COHORT_REPORT(twins, names, code.report)
        page = COHORT_REPORT.out.report.map { file -> [[id: ''], file] }
        results = results.mix(report, REPORT.out.twin, REPORT.out.previews, REPORT.out.more, page)
    }
    volume = volume
        .map { meta, image -> [meta.id, meta, image] }
        .join(outcomes)
        .filter { _id, _meta, _image, _files, outcome -> !outcome?.changed }
        .map { _id, meta, image, _files, _outcome -> [meta, image] }
    // Only when all else is done, so that other subjects finish; then the run fails.
    results
        .map { _meta, _files -> '' }
        .mix(outcomes.map { _id, _files, outcome -> outcome?.changed ?: '' })
        .unique()
        .toList()
        .subscribe { list -> list.any() ? error(list.findAll().join('\n')) : null }

    emit:
    volume // [meta, image]
    report // [meta, page]
    records // [meta, files]: the steps' metrics
    results // [meta, files]: everything that is published
    plans // [id, steps]
    outcomes // [id, files, outcome]: what the results lack, or null
}

workflow {
    if (switched('help')) {
        log.info(file("${projectDir}/lib/help.txt").text)
    }
    else {
        watchSlurm()
        seen = [plans: [:], outcomes: [:], made: [], refused: false]
        forgetIfRefused(seen)
        OCTANE(SUBJECTS())
        lock = lockOutdir()
        PROGRESS(OCTANE.out.plans, OCTANE.out.records)
        OCTANE.out.plans.subscribe { id, steps -> seen.plans[id] = steps }
        OCTANE.out.outcomes.subscribe { id, _files, outcome -> seen.outcomes[id] = outcome }
        OCTANE.out.results.subscribe { meta, files ->
            seen.made += [files].flatten().collect { file -> [meta.id, file] }
        }
        workflow.onComplete { complete(seen, lock) }
        // After an error outside of a task, Nextflow 26.04 resets errorReport and rewrites its report.html.
        workflow.onError { escapeMarkup() }
    }
}
