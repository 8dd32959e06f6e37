# Ends a task of this machine whose launcher is gone. Sourced by the task's wrapper, .command.run, on
# the host and in the task's folder (beforeScript in conf/base.config); jobs of a cluster: lib/slurm_orphans.sh.
#
# Why: after a SIGKILL of Nextflow (the OOM killer's, a shut-down's) its local tasks carry on with their
# cores and their GPU, for hours, with nobody to take their results, while -resume starts them again. A
# wrapper that is killed leaves its program behind in the same way, and its scratch folder as well.
#
# How: a shell beside the wrapper looks every two seconds whether the wrapper still has the parent that
# started it. A parent is changed by the kernel alone, when it ends: no number of a process is trusted,
# none can be taken by another. Then the wrapper gets SIGTERM, which it hands on to all below it, so that
# half-written outputs go, and then its scratch folder. What is left ten seconds later is killed.
#
# The watcher ends with the task: its standard input is a pipe whose other end every process of the task
# inherits, so that its end comes with the last of them. It keeps nothing else open, starts nothing
# while it waits, and stands above the tree that Nextflow measures and kills.

octane_parent_of() { # PROCESS: sets $parent, to nothing where the process is gone
    local stat=
    parent=
    read -r stat <"/proc/$1/stat" || return 0
    # The name in brackets may hold anything, also blanks and brackets.
    stat=${stat##*) }
    stat=${stat#* }
    parent=${stat%% *}
}

octane_left() { # SIGNAL: sends it to what carries the task's mark, and says whether there was any
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
        # Not by the time-out: nobody is left who holds the pipe.
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
        # The usual end; what a task leaves running on purpose is left alone.
        return
    fi
    if octane_left TERM; then
        read -r -t 10
        octane_left KILL
    fi
    # A wrapper that was killed itself leaves it.
    [[ ! ${NXF_SCRATCH:-} ]] || rm -rf -- "$NXF_SCRATCH"
}

# Elsewhere than on Linux there is no /proc to ask.
if [[ -r /proc/$$/stat ]]; then
    export OCTANE_TASK="$$.$PPID.$RANDOM$RANDOM"
    exec {octane_task}> >(octane_watch $$ $PPID "$PWD")
fi
