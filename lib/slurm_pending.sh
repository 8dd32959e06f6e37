#!/usr/bin/env bash
# Prints a line for each reason for which jobs of a run stay pending on Slurm until somebody changes something. Ends
# with the process that started it. Usage: slurm_pending.sh SESSION

declare -A told
pause=5
while sleep "$pause" && kill -0 "$PPID" 2>/dev/null; do
    ((pause < 60 && (pause *= 2)))
    # Limits of the jobs that a user or an account may run at a time end with other jobs.
    while read -r job reason; do
        [[ ${told[$reason]} ]] && continue
        told[$reason]=1
        case $reason in
            JobHeld*) why="it is held. Release it: scontrol release $job" ;;
            *Grp*Minutes*) why='the budget of its account is used up. Stop the run, and run it again with -resume and another' \
                why+=' --account in --slurm_options, or once there is a new budget.' ;;
            *) why='it asks for more than its partition or account allows. Stop the run, lower process.resourceLimits or' \
                why+=' choose another --slurm_queue, as in docs/hpc.md, and run again with -resume.' ;;
        esac
        echo "The job $job stays pending ($reason): $why"
    done < <(
        timeout 20 squeue --me --noheader --states=PENDING --format='%i %r %k' 2>/dev/null | awk -v mark="octane:$1" '
            $3 == mark && $2 !~ /Jobs|Submit|PerUser|PerAcc/ &&
            $2 ~ /^(Partition(Time|Node)Limit|MaxMemPerLimit|BadConstraints|(QOS|Assoc)(Max|Min|Grp[A-Za-z]*Minutes)|JobHeld|AccountNotAllowed|Invalid(Account|QOS)|QOSNotAllowed)/ {
                print $1, $2
            }'
    )
done
