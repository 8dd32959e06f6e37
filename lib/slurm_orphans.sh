#!/usr/bin/env bash
# Ends the jobs that a run left on Slurm. Usage: slurm_orphans.sh SESSION
#
# Nextflow that is killed outright cannot cancel its jobs. The run that goes on with -resume starts their
# tasks again, in the same folders, where the two would write into each other. Jobs carry the number of
# their session, which -resume keeps and which Nextflow locks: what has it when a run starts is left over.

jobs() {
    timeout 20 squeue --me --noheader --format='%i %k' 2>/dev/null | awk -v mark="octane:$1" '$2 == mark { print $1 }'
}

fail() {
    echo "$1; run again with -resume when that is mended."
    exit 1
}

set -o pipefail
# No answer is not the answer that there are none.
left=$(jobs "$1") || fail "squeue gives no answer, so that nobody knows whether jobs of this run's last start still work in its folders"
[[ $left ]] || exit 0
mapfile -t numbers <<<"$left"
echo "${#numbers[@]} jobs were left by this run's last start, which was killed; they are cancelled, and their tasks start again: ${numbers[*]}"
timeout 20 scancel "${numbers[@]}" 2>/dev/null
# Up to a minute: Slurm gives a job half of it to end by itself.
for ((second = 0; second < 60; second++)); do
    left=$(jobs "$1") && [[ ! $left ]] && exit 0
    sleep 1
done
fail "The jobs ${numbers[*]} of this run's last start do not end (squeue says what holds them)"
