process PREFLIGHT {
    tag 'run'
    label 'process_single'
    // Always, and where Nextflow runs: it sees what changed in the inputs, which Nextflow's cache does not.
    executor 'local'
    cache false
    // No scratch here, so that a missing scratch folder is reported, not created.
    scratch false

    input:
    // Files are read by their own paths, of which a container sees only what is staged.
    path(seen, stageAs: 'seen/?/*')
    // The request comes by stdin, to keep all parameters out of Nextflow's error messages.
    stdin

    output:
    path('plans.json'), emit: plans

    script:
    """
    preflight.py plans.json --request /dev/stdin
    """

    // The request says that it is a stub run, of which only the names of files are read.
    stub:
    """
    preflight.py plans.json --request /dev/stdin
    """
}
