#!/usr/bin/env bash
# Makes a task's scratch folder on the node, and prints its path. Run by the task's wrapper, .command.run, in the task's
# folder (scratch in conf/base.config), where .command.err is taken for the task's own errors. A folder that cannot be
# made counts as a full disk. Usage: scratch_folder.sh PLACE, which is true for TMPDIR, or a path with $NAMEs.

fail() { # CODE WORDS
    echo "error: $2" | tee .command.err >&2
    exit "$1"
}

[[ $1 =~ ^[[:space:]]*(.*[^[:space:]])[[:space:]]*$ ]]
rest=${BASH_REMATCH[1]}
shopt -s nocasematch
# Also in octane/config/validation.py.
case $rest in true | yes | on | 1) rest=${TMPDIR:-/tmp} ;; esac

place=
while [[ $rest =~ ^([^$]*)\$\{?([A-Za-z0-9_]+)\}?(.*)$ ]]; do
    name=${BASH_REMATCH[2]}
    # An empty one would leave / or another folder.
    [[ $name != [0-9]* && ${!name:-} ]] ||
        fail 1 "--scratch_dir names $name, which is not set on $(uname -n); give a path, true for TMPDIR, or false."
    place+=${BASH_REMATCH[1]}${!name}
    rest=${BASH_REMATCH[3]}
done
place+=$rest

mkdir -p "$place" && mktemp -d "$place/nxf.XXXXXXXXXX" ||
    fail 28 "no scratch folder can be made on $(uname -n): its disk is full or read-only."
