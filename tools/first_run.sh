#!/usr/bin/env bash
# Test and measure octane on a GPU machine with CuPy, NumPy, SciPy and Numba, without a network.
#
#   tools/first_run.sh pack FOLDER [--python 3.12] [--platform x86_64]   make the pack, at most 60 MiB
#   FOLDER/octane/tools/first_run.sh A|B|C|D|all [--quick]               on the machine; under 10 minutes a call
#
# Results go to $OUT, by default ./first_run: gpu.json, in which each part is written as it ends, n4_quick.json with
# SimpleITK's part, again/ with the parts that A repeats, and a log of each part. --quick rehearses with tiny data,
# also on the CUDA that tests/support/cuda emulates.
set -euo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)

MOST=$((60 << 20)) # bytes of a pack
NOT_HERE=3         # exit code of benchmarks/gpu.py without a GPU or a package

say() { printf 'first_run: %s\n' "$*"; }
stop() {
    printf 'first_run: %s\n' "$*" >&2
    exit 1
}

# --- The pack -------------------------------------------------------------------------------------

# fetch PYTHON PLATFORM FOLDER: unpack the wheels of requirements/first-run.txt, so that their libraries can be
# stripped.
fetch() {
    local python=$1 platform=$2 folder=$3 version wheel tags=()
    # pip takes only the tags that it is given, not those of older systems.
    for version in _2_28 _2_27 _2_26 _2_24 _2_17 2014 _2_12 2010 _2_5 1; do
        tags+=(--platform "manylinux${version}_$platform")
    done
    python3 -m pip download --quiet --disable-pip-version-check --no-input --no-deps --only-binary :all: \
        --python-version "$python" --implementation cp "${tags[@]}" \
        --dest "$folder.wheels" --requirement "$root/requirements/first-run.txt" ||
        stop "the packages for Python $python on $platform could not be fetched, see above; check the network, --python and --platform"
    for wheel in "$folder.wheels"/*.whl; do
        python3 -m zipfile -e "$wheel" "$folder"
    done
    find "$folder" -type d -name tests -prune -exec rm -rf {} +
}

# strip_libraries FOLDER: remove the symbols of large libraries, SimpleITK's above all.
strip_libraries() {
    local library kept=0
    while IFS= read -r -d '' library; do
        # Binutils may lack the other platform's format.
        strip --strip-unneeded "$library" 2>/dev/null || kept=$((kept + 1))
    done < <(find "$1" -name '*.so*' -type f -size +1M -print0)
    ((kept == 0)) || say "$kept libraries keep their symbols, because strip does not know their format"
}

pack() {
    local folder='' python=3.12 platform=x86_64 size tool
    while (($#)); do
        case $1 in
            --python | --platform)
                (($# > 1)) || stop "$1 needs a value"
                if [[ $1 == --python ]]; then python=$2; else platform=$2; fi
                shift
                ;;
            -*) stop "$1 is not an option of pack; it has --python and --platform" ;;
            *)
                [[ -z $folder ]] || stop "pack makes one folder, not $folder and $1"
                folder=$1
                ;;
        esac
        shift
    done
    [[ -n $folder ]] || stop "name the folder to make: tools/first_run.sh pack FOLDER"
    [[ ! -e $folder ]] || stop "$folder exists; remove it, or name another folder"
    [[ $python =~ ^3\.1[1-3]$ ]] || stop "--python is '$python'; give 3.11, 3.12 or 3.13"
    [[ $platform == x86_64 || $platform == aarch64 ]] || stop "--platform is '$platform'; give x86_64 or aarch64"
    for tool in git xz strip python3; do
        command -v "$tool" >/dev/null || stop "$tool was not found; install it (Debian: apt-get install git xz-utils binutils python3)"
    done
    git -C "$root" rev-parse --verify --quiet HEAD >/dev/null || stop "$root is not a git checkout; clone octane, and pack from the clone"

    mkdir -p -- "$(dirname -- "$folder")"
    # Next to the folder, so that the folder appears complete or not at all.
    work=$(mktemp -d -- "$folder.XXXXXX")
    trap 'rm -rf -- "$work"' EXIT
    mkdir "$work/pack" "$work/pack/octane" "$work/packages"
    [[ -z $(git -C "$root" status --porcelain --untracked-files=no) ]] ||
        say "uncommitted changes are left out"
    git -C "$root" rev-parse --short HEAD >"$work/pack/commit"
    git -C "$root" archive HEAD | tar -x -C "$work/pack/octane"
    fetch "$python" "$platform" "$work/packages"
    strip_libraries "$work/packages"
    tar -C "$work" -c packages | xz -T0 -6 >"$work/pack/packages-$python-$platform.tar.xz"
    size=$(du -sb -- "$work/pack" | cut -f1)
    ((size <= MOST)) || stop "the pack would take $((size >> 20)) MiB, more than $((MOST >> 20)); shorten requirements/first-run.txt"
    chmod 755 "$work/pack"
    mv -- "$work/pack" "$folder"
    say "$folder has $((size >> 20)) MiB: octane $(<"$folder/commit"), packages for Python $python on $platform"
}

# --- On the GPU machine -----------------------------------------------------------------------------

# Unpack the packages of a pack once, and put them on the PYTHONPATH.
use_packages() {
    local above=${root%/*} here archive found=()
    [[ -f $above/commit ]] || return 0 # not from a pack: the installed packages
    here=$(python3 -c 'import platform, sys; print("%d.%d-" % sys.version_info[:2] + platform.machine())')
    archive=$above/packages-$here.tar.xz
    if [[ ! -f $archive ]]; then
        found=("$above"/packages-*.tar.xz)
        stop "this machine's python3 needs packages-$here.tar.xz, but the pack has ${found[0]##*/}; pack with --python ${here%%-*} --platform ${here#*-}"
    fi
    if [[ ! -d $above/packages ]]; then
        # With Python, because machines may lack xz; under another name until it is complete.
        rm -rf "$above/unpacked"
        python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2], filter="data")' \
            "$archive" "$above/unpacked"
        mv "$above/unpacked/packages" "$above/packages"
        rm -rf "$above/unpacked"
    fi
    export PYTHONPATH=$above/packages${PYTHONPATH:+:$PYTHONPATH}
    OCTANE_COMMIT=${OCTANE_COMMIT:-$(<"$above/commit")}
    export OCTANE_COMMIT
}

# run NAME SECONDS COMMAND...: run a part with a time limit and a log; stop if the GPU or a package is missing.
run() {
    local name=$1 limit=$2 log=$OUT/$1.log start=$SECONDS code=0
    # An emulated GPU is slow, above all where its kernels have not been compiled yet.
    [[ -z $quick ]] || limit=$((10 * limit))
    timeout --kill-after=10 "$limit" "${@:3}" >"$log" 2>&1 || code=$?
    if ((code == NOT_HERE)); then
        stop "$(tail -n 1 "$log")"
    elif ((code == 124 || code == 137)); then
        failed+=("$name (over its limit of $limit s)")
    elif ((code)); then
        failed+=("$name (exit code $code, see $log)")
    fi
    say "$name: exit code $code after $((SECONDS - start)) s"
}

# part NAME SECONDS: run a part of benchmarks/gpu.py, into gpu.json.
part() { run "$1" "$2" python3 "$root/benchmarks/gpu.py" --only "$1" ${quick:+--quick}; }

# again NAME SECONDS: repeat a part in another process, into again/, for the spread.
again() {
    local OUT=$OUT/again
    local -x OCTANE_BENCH_RESULTS=$OUT
    [[ -z $quick ]] || local -x OCTANE_BENCH_DIR=$OUT
    mkdir -p "$OUT"
    part "$@"
}

# The GPU, its link and each kernel.
call_A() {
    part device 60
    part kernels 150
    again device 60
    again kernels 150
    part transfers 120
}

# Correctness: the tests, then memory and races.
call_B() {
    part tests 330
    part sanitizer 240
}

# N4 and RESAMPLE as a whole, the most useful parts first.
call_C() {
    part n4 220
    part cold_start 90
    part resample 200
}

# Leases with the real NVML, hardware counters, and SimpleITK on the same machine.
call_D() {
    part leases 120
    part counters 250
    if [[ -n $quick ]]; then
        say "simpleitk: left out of a rehearsal, because it takes minutes"
    else
        # Its quick form, which has the sizes of the full one, writes to the scratch folder.
        run simpleitk 200 env OCTANE_BENCH_DIR="$OUT" python3 "$root/benchmarks/n4.py" --only speed --quick
    fi
}

measure() {
    local call=$1 tool
    shift
    quick=
    while (($#)); do
        [[ $1 == --quick ]] || stop "$1 is not an option of $call; it has --quick"
        quick=yes
        shift
    done
    for tool in python3 timeout; do
        command -v "$tool" >/dev/null || stop "$tool was not found; install it"
    done
    OUT=$(mkdir -p "${OUT:-first_run}" && cd "${OUT:-first_run}" && pwd)
    use_packages
    scratch=$(mktemp -d)
    trap 'rm -rf -- "$scratch"' EXIT
    export OCTANE_BENCH_DIR=$scratch OCTANE_BENCH_RESULTS=$OUT
    # Where a quick run writes its results.
    [[ -z $quick ]] || OCTANE_BENCH_DIR=$OUT
    failed=()
    if [[ $call == all ]]; then
        for call in A B C D; do "call_$call"; done
    else
        "call_$call"
    fi
    ((${#failed[@]} == 0)) || stop "failed: $(printf '%s; ' "${failed[@]}")the others are in $OUT"
    say "done, into $OUT"
}

case ${1:-} in
    pack) pack "${@:2}" ;;
    A | B | C | D | all) measure "$@" ;;
    *) stop "'${1:-}' is not a call; give pack FOLDER, A, B, C, D or all" ;;
esac
