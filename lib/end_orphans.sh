# Ends a local task whose launcher is gone. Sourced by the task's wrapper, .command.run, on the host and
# in the task's folder (lib/before_task.sh). For cluster jobs see lib/slurm_orphans.sh.
#
# Why: after a SIGKILL of Nextflow (by the OOM killer or a shutdown) its local tasks keep their cores and
# GPU for hours, although nothing collects their results, while -resume starts them again. A killed
# wrapper likewise leaves its program and its scratch folder behind.
#
# How: every two seconds a watcher shell checks whether the wrapper still has the parent that started it.
# Only the kernel re-parents a process, when its parent ends, so a reused PID cannot deceive this check.
# Then the wrapper gets SIGTERM, which it passes on to its children, so that they remove half-written
# outputs, and it removes its scratch folder. Processes left after ten seconds are killed.
#
# The watcher ends with the task: every process of the task inherits the other end of the pipe that is its
# standard input, which so closes with the last of them. It keeps no other file open, starts no process
# while it waits, and is outside the process tree that Nextflow measures and kills.

octane_parent_of() { # PROCESS: sets $parent, empty if the process is gone
    local stat=
    parent=
    read -r stat <"/proc/$1/stat" || return 0
    # The name in brackets may itself contain blanks and brackets.
    stat=${stat##*) }
    stat=${stat#* }
    parent=${stat%% *}
}

octane_left() { # SIGNAL: sends it to every process with the task's mark; fails if there was none
    local file pid found=1
    for file in $(grep -lsxzF "OCTANE_TASK=$OCTANE_TASK" /proc/[0-9]*/environ); do
        pid=${file#/proc/}
        kill "-$1" "${pid%/environ}" && found=0
    done
    return $found
}

octane_watch() { # WRAPPER LAUNCHER FOLDER
    local parent waited orphaned=
    set +e
    exec >/dev/null 2>&1
    trap '' HUP INT QUIT TERM USR1 USR2
    while :; do
        waited=0
        read -r -t 2 || waited=$?
        # Not a time-out: the pipe was closed by the task's last process.
        ((waited > 128)) || break
        octane_parent_of $BASHPID
        [[ $parent == "$1" ]] || break
        octane_parent_of "$1"
        [[ $parent == "$2" ]] || { orphaned=1 && break; }
    done
    if [[ $orphaned ]]; then
        kill -TERM "$1"
        read -r -t 10
    elif [[ -e $3/.exitcode ]]; then
        # The task ended normally; processes that it left running on purpose may go on.
        return
    fi
    if octane_left TERM; then
        read -r -t 10
        octane_left KILL
    fi
    # A killed wrapper could not remove it.
    [[ ! ${NXF_SCRATCH:-} ]] || rm -rf -- "$NXF_SCRATCH"
}

# Only Linux has /proc.
if [[ -r /proc/$$/stat ]]; then
    export OCTANE_TASK="$$.$PPID.$RANDOM$RANDOM"
    exec {octane_task}> >(octane_watch $$ $PPID "$PWD")
fi
