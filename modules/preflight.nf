process PREFLIGHT {
    tag "${meta.id}"
    label 'process_single'

    input:
    tuple val(meta), path(input), val(request), val(fingerprint)
    path positions
    val code

    output:
    tuple val(meta), path('plan.json'), path(input, includeInputs: true), emit: plan

    script:
    def table = positions ? "--positions '${positions}'" : ''
    """
    cat > request.json <<'END_REQUEST'
    ${request}
    END_REQUEST
    preflight.py '${input}' plan.json --request request.json ${table}
    """

    stub:
    """
    stores=\$(find -L '${input}' -mindepth 1 -maxdepth 1 -name '*.zarr' -printf '{"id":"%f","file":"%f"}\\n' | sed 's/\\.ome\\.zarr","file/","file/' | sort | paste -sd,)
    kind=mosaic
    if [ -z "\$stores" ]; then kind=volume; stores='{"id":"volume","file":""}'; fi
    s='{"input":{},"execution":{},"resample":{},"stitch":{},"stack":{},"n4":{},"pyramid":{},"report":{}}'
    echo "{\\"kind\\":\\"\$kind\\",\\"items\\":[\$stores],\\"settings\\":\$s}" > plan.json
    """
}
