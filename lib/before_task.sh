# The first lines of a task's shell. Sourced by the task's wrapper, .command.run, on the node and in the task's folder
# (beforeScript in conf/base.config). Parameters without a value are null. Tasks that never use a GPU give the first two.
#
#   before_task.sh ATTEMPT EXECUTOR [GPU_SLOTS GPU_TIMEOUT CACHE]

# The caller's: with PYTHONSAFEPATH a command would not find octane next to itself. Not in Nextflow's env, which warns of
# empty values.
unset PYTHONPATH PYTHONSAFEPATH

# For the record.
export OCTANE_ATTEMPT=$1

# On this machine.
if [[ $2 == null || $2 == local ]]; then
    . "${BASH_SOURCE[0]%/*}/end_orphans.sh"
fi

# How to wait for a share of a GPU.
[[ ${3:-null} == null ]] || export OCTANE_GPU_SLOTS=$3
[[ ${4:-null} == null ]] || export OCTANE_GPU_TIMEOUT=$4

# Where CuPy keeps compiled kernels, for a container, whose own folders do not last. CuPy executes what it finds there:
# each user gets a private folder.
if [[ ${5:-} ]]; then
    export CUPY_CACHE_DIR=$5/cupy-$UID
    install -d -m 700 "$CUPY_CACHE_DIR"
fi
