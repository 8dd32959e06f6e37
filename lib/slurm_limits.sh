#!/usr/bin/env bash
# Says which jobs of a run Slurm would keep in its queue for ever, as they ask for more than their partition
# has: a line each. Usage: slurm_limits.sh SESSION PAUSE PARTITION SELECTOR=SECONDS...
#
# At the start, from sinfo: the selectors of the config that ask for more time than the partition (empty:
# the default one) allows. Then, every PAUSE seconds as long as the run lasts, from squeue: jobs that wait
# for a reason that does not pass by itself. Slurm takes such jobs without a word (EnforcePartLimits=NO, its
# default). Nothing is ended: other jobs go on, and an administrator may change a limit.

session=$1 pause=$2 partition=$3 launcher=$PPID
shift 3

limit=$(sinfo --noheader --format='%P %l' | awk -v asked="$partition" '
    BEGIN { count = split(asked, names, ",") }
    {
        mine = asked == "" && $1 ~ /\*$/
        for (i = 1; i <= count; i++) mine = mine || $1 == names[i] || $1 == names[i] "*"
        if (!mine) next
        # Days-hours:minutes:seconds, of which the front may be missing; "infinite" is no limit.
        if ($2 !~ /^[0-9:-]+$/) { most = ""; exit }
        days = index($2, "-") ? substr($2, 1, index($2, "-") - 1) : 0
        parts = split(substr($2, index($2, "-") + 1), part, ":")
        seconds = 0
        for (i = 1; i <= parts; i++) seconds = seconds * 60 + part[i]
        seconds += days * 86400
        if (seconds > most) { most = seconds; text = $2 }
    }
    END { if (most) print most, text }')
for label in "$@"; do
    name=${label#*:} name=${name%=*}
    if [[ $limit && ${label##*=} -gt ${limit% *} ]]; then
        echo "Slurm will not start jobs of ${label%=*}: they ask for $((${label##*=} / 60)) minutes, and partition ${partition:-in use} allows ${limit#* }; set process { ${label%%:*}: '$name' { time = ... } } or resourceLimits = [time: ...] in a -c config, or another --slurm_queue."
    fi
done

lasting='^(Partition(TimeLimit|NodeLimit|Config)|BadConstraints|(QOS|Assoc)Max[A-Za-z]*PerJob.*|Invalid(Account|QOS)|JobHeld(User|Admin))$'
declare -A said
while sleep "$pause" && [[ -d /proc/$launcher ]]; do
    while IFS='|' read -r job reason time cpus memory where mark name; do
        if [[ $mark == "octane:$session" && $reason =~ $lasting && ! ${said[$job]:-} ]]; then
            said[$job]=yes
            echo "Job $job, $name, waits for a reason that does not pass by itself, $reason: it asks for $time of time, $cpus CPUs and $memory of memory in partition $where. Change it with scontrol; or end the run, set less for its label in a -c config (docs/hpc.md), and run again with -resume."
        fi
    done < <(squeue --me --noheader --states=PENDING --format='%i|%r|%l|%C|%m|%P|%k|%j')
done
