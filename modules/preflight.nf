process PREFLIGHT {
    // Nextflow writes the tag unescaped into its HTML, before invalid names are rejected.
    tag "${subjects.size() == 1 ? subjects[0].meta.id.replaceAll(/[<>&"]/, '_') : "${subjects.size()} subjects"}"
    label 'process_single'
    // No scratch here, so that a missing scratch folder is reported, not created.
    scratch false

    input:
    // Links inside inputs are staged again: a container mounts only the locations of staged files.
    tuple(
        val(subjects),
        path(inputs, stageAs: 'input/?/*'),
        path(beside, stageAs: 'beside/?/*'),
        path(linked, stageAs: 'linked/?/*'),
        path(samplesheet, stageAs: 'sheet/*'),
    )
    // The request comes by stdin, to keep all parameters out of Nextflow's error messages.
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
        for store in input/\$place/*/*.{zarr,zarr.zip,ozx}; do
            [ -e "\$store" ] || continue
            name=\$(basename "\$store")
            id=\${name%.ozx}
            id=\${id%.zip}
            stores="\$stores\${stores:+,}{\\"id\\":\\"\${id%.ome.zarr}\\",\\"file\\":\\"\$name\\"}"
        done
        kind=mosaic
        if [ -z "\$stores" ]; then kind=volume; stores='{"id":"volume","file":""}'; fi
        channel="{\\"id\\":\\"\\",\\"written\\":true,\\"items\\":[\$stores],\\"flags\\":{}}"
        echo "{\\"kind\\":\\"\$kind\\",\\"channels\\":[\$channel],\\"joined\\":false,\\"flags\\":{}}"
    done | paste -sd, - | sed 's/.*/{"plans":[&],"notes":[]}/' > plans.json
    """
}
