process PREFLIGHT {
    // Nextflow writes it into its pages as it is, before a name is refused.
    tag "${subjects.size() == 1 ? subjects[0].meta.id.replaceAll(/[<>&"]/, '_') : "${subjects.size()} subjects"}"
    label 'process_single'
    // So that a missing scratch folder is reported, not created.
    scratch false

    input:
    // The parts of inputs that are links are staged once more: a container sees the places of staged files alone.
    tuple(
        val(subjects),
        path(inputs, stageAs: 'input/?/*'),
        path(beside, stageAs: 'beside/?/*'),
        path(linked, stageAs: 'linked/?/*'),
        path(samplesheet, stageAs: 'sheet/*'),
    )
    // The request by stdin, so that a message of Nextflow's does not drown in all parameters.
    stdin
    val code

    output:
    tuple(val(subjects), path('plans.json'), emit: plans)

    script:
    def sheet = samplesheet ? "--samplesheet ${samplesheet}" : ''
    """
    preflight.py input plans.json --request /dev/stdin --beside beside ${sheet}
    """

    stub:
    """
    for place in \$(seq ${subjects.size()}); do
        stores=
        for store in input/\$place/*/*.zarr; do
            [ -e "\$store" ] || continue
            name=\$(basename "\$store")
            stores="\$stores\${stores:+,}{\\"id\\":\\"\${name%.ome.zarr}\\",\\"file\\":\\"\$name\\"}"
        done
        kind=mosaic
        if [ -z "\$stores" ]; then kind=volume; stores='{"id":"volume","file":""}'; fi
        echo "{\\"kind\\":\\"\$kind\\",\\"items\\":[\$stores],\\"flags\\":{}}"
    done | paste -sd, - | sed 's/.*/{"plans":[&],"notes":[]}/' > plans.json
    """
}
