// A channel's tiles and sections to its volume. Another channel than the reference lies where the records of the
// reference channel's tasks say.

include { STITCH } from '../modules/stitch'
include { STACK } from '../modules/stack'
include { switched ; withOwn ; withSteps } from '../lib/functions'

workflow ASSEMBLE {
    take:
    images // [meta, image]: mosaics or sections
    stitched // [id, section, record]: STITCH of the reference channel; [] for itself
    stacked // [id, record]: STACK of the reference channel; [] for itself
    plans
    code

    main:
    given = images.branch { meta, _image ->
        mosaic: meta.kind == 'mosaic' && !switched('skip_stitch')
        section: true
    }
    mosaics = withOwn(given.mosaic, plans, 'stitch')
        .map { meta, mosaic, flags, tables, flatField ->
            [meta.id, meta.section, meta, mosaic, flags, tables[meta.section], flatField]
        }
        .combine(stitched, by: [0, 1])
        .map { _id, _section, meta, mosaic, flags, table, flatField, record ->
            [meta, mosaic, flags, record ? [] : table, flatField, record]
        }
    STITCH(mosaics, code.stitch)
    sections = STITCH.out.section.mix(given.section)
    grouped = withSteps(sections, plans)
        .map { meta, section, steps ->
            [groupKey("${meta.id}:${meta.channel}", steps.sections), meta.id, meta.channel, meta.seen, section]
        }
        .groupTuple()
        .map { _key, ids, channels, seen, files ->
            def meta = [id: ids[0], channel: channels[0], seen: seen.sort().join(' ').md5()]
            [meta, files.sort { file -> file.name }]
        }
    stacks = withOwn(grouped, plans, 'stack')
        .map { meta, files, flags, displacements -> [meta.id, meta, files, flags, displacements] }
        .combine(stacked, by: 0)
        .map { _id, meta, files, flags, displacements, record ->
            [meta, files, flags, record ? [] : displacements, record]
        }
    STACK(stacks, code.stack)

    emit:
    sections = STITCH.out.section // [meta, section]
    volume = STACK.out.volume // [meta, volume]
    record = STITCH.out.record.mix(STACK.out.record) // [meta, files]
    stitched = STITCH.out.record.map { meta, files -> [meta.id, meta.section, recordIn(files)] }
    stacked = STACK.out.record.map { meta, files -> [meta.id, recordIn(files)] }
    results = STITCH.out.flat_field.mix(STACK.out.displacements)
}

def recordIn(files) {
    return files.find { file -> file.name.endsWith('_metrics.json') }
}
