process PREFLIGHT {
    tag "${meta.id}"
    label 'process_single'
    // So that a scratch folder that is not there is seen and not made.
    scratch false

    input:
    tuple val(meta), path(input), val(fingerprint)
    // By stdin, so that a message of Nextflow's does not drown in all parameters.
    stdin
    path positions
    val code

    output:
    tuple val(meta), path('plan.json'), emit: plan

    script:
    // No quotes around files here and elsewhere: Nextflow itself escapes their names.
    def table = positions ? "--positions ${positions}" : ''
    """
    preflight.py ${input} plan.json --request /dev/stdin ${table}
    """

    stub:
    """
    stores=\$(find -L ${input} -mindepth 1 -maxdepth 1 -name '*.zarr' -printf '{"id":"%f","file":"%f"}\\n' | sed 's/\\.ome\\.zarr","file/","file/' | sort | paste -sd,)
    kind=mosaic
    if [ -z "\$stores" ]; then kind=volume; stores='{"id":"volume","file":""}'; fi
    s='{"input":{},"execution":{},"resample":{},"stitch":{},"stack":{},"n4":{},"pyramid":{},"report":{}}'
    echo "{\\"kind\\":\\"\$kind\\",\\"items\\":[\$stores],\\"settings\\":\$s}" > plan.json
    """
}
