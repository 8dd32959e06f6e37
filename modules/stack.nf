include { recordsOf ; resourcesOf ; stemOf ; tagOf ; volumeOf } from '../lib/functions'

process STACK {
    tag "${tagOf(meta)}"
    label 'process_medium'

    input:
    tuple(
        val(meta),
        path(sections, stageAs: 'input/*'),
        val(flags),
        path(displacements, stageAs: 'given/*'),
        path(reference, stageAs: 'reference/*'),
    )
    val code

    output:
    tuple(val(meta), path("${volumeOf(meta, 'stack')}"), emit: image)
    tuple(val(meta), path("${meta.id}_displacements.csv"), emit: displacements, optional: true)
    tuple(val(meta), path('*stack_{metrics.json,preview.npz}'), emit: record)

    script:
    def table = displacements ? "--displacements ${displacements}" : ''
    def referenceFlag = reference
        ? "--reference ${reference}"
        : "--save_displacements '${meta.id}_displacements.csv'"
    """
    stack.py '${volumeOf(meta, 'stack')}' input/* ${flags} --overwrite ${table} ${referenceFlag} \\
        ${recordsOf(meta, 'stack')} ${resourcesOf(task)}
    """

    stub:
    def name = stemOf(meta, 'stack')
    """
    mkdir '${volumeOf(meta, 'stack')}'
    touch '${meta.id}_displacements.csv' '${name}_metrics.json' '${name}_preview.npz'
    """
}
