# Source this (bash or zsh): then the Tab key completes the flags of octane's commands, the values
# that are words, and otherwise the names of files.
#
#   source tools/env.sh         does it, in a clone
#   source octane-completion    after pip install

_octane() {
    local word=${COMP_WORDS[COMP_CWORD]} flag=${COMP_WORDS[COMP_CWORD - 1]} found=''
    COMPREPLY=()
    # Another project's script may have the same name.
    grep -q octane -- "$(command -v -- "$1")" 2>/dev/null || return 0
    if [[ $word == -* ]]; then
        found=$("$1" --help 2>/dev/null | sed -nE 's/^  (-h, )?(--[a-z0-9_]+).*/\2/p')
    elif [[ $flag == --* ]]; then
        # Such as --backend auto|gpu|cpu, --overwrite [true|false], or --section_surface FLOAT|auto.
        found=$("$1" --help 2>/dev/null | sed -nE "s/^  $flag \[?([A-Za-z0-9_-]*(\|[A-Za-z0-9_-]+)+).*/\1/p")
        found=${found//FLOAT/}
    fi
    COMPREPLY=($(compgen -W "${found//|/ }" -- "$word"))
}

if [ -n "${ZSH_VERSION:-}" ]; then
    whence compdef >/dev/null || { autoload -U compinit && compinit -u; }
    autoload -U bashcompinit && bashcompinit
fi
for _octane_name in channels cohort_report export gpu_slot materialize mosaic n4 new_subject phantom preflight \
    pyramid report resample stack stitch view watch; do
    complete -o default -F _octane "$_octane_name.py" "octane-${_octane_name//_/-}"
done
unset _octane_name
