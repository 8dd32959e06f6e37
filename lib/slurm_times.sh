#!/usr/bin/env bash
# Prints the longest time of a job in each of Slurm's partitions, as "PARTITION SECONDS"; the default one also as *.

timeout 20 sinfo --noheader --format='%P %l' 2>/dev/null | awk '
    {
        seconds = 0
        split($2, parts, /[-:]/)
        for (k = 1; k in parts; k++)
            seconds = seconds * (k == 2 && $2 ~ /-/ ? 24 : 60) + parts[k]
        # "infinite"
        if ($2 !~ /^[-:0-9]+$/) seconds = 10 * 365 * 24 * 3600
        if (sub(/[*]$/, "", $1)) print "*", seconds
        print $1, seconds
    }'
exit 0
