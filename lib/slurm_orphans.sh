#!/usr/bin/env bash
# Cancels the jobs that a killed run left on Slurm. Usage: slurm_orphans.sh SESSION
#
# A killed Nextflow cannot cancel its jobs, and -resume starts their tasks again in the same folders, where
# both would write. Jobs carry their session's ID, which -resume keeps and Nextflow locks: any job with it
# when a run starts is an orphan.

jobs() {
    timeout 20 squeue --me --noheader --format='%i %k' 2>/dev/null | awk -v mark="octane:$1" '$2 == mark { print $1 }'
}

fail() {
    echo "$1; run again with -resume once that is fixed."
    exit 1
}

set -o pipefail
# No answer does not mean no jobs.
left=$(jobs "$1") || fail "squeue does not answer, so jobs of this run's last start may still be writing in its folders"
[[ $left ]] || exit 0
mapfile -t numbers <<<"$left"
echo "${#numbers[@]} jobs were left by this run's last start, which was killed; they are cancelled and their tasks restarted: ${numbers[*]}"
timeout 20 scancel "${numbers[@]}" 2>/dev/null
# Up to a minute: Slurm gives a job half of it to end before it kills it.
for ((second = 0; second < 60; second++)); do
    left=$(jobs "$1") && [[ ! $left ]] && exit 0
    sleep 1
done
fail "The jobs ${numbers[*]} of this run's last start do not end (squeue shows the reason)"
