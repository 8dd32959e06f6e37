#!/usr/bin/env bash
# Builds the emulated CUDA, and a CuPy that uses it, in .tools/cuda (or $OCTANE_EMULATED_CUDA).
# See README.md. Safe to repeat. Exit code 3: this machine lacks a requirement.
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
root=$(cd -- "$here/../../.." && pwd)
folder=${OCTANE_EMULATED_CUDA:-$root/.tools/cuda}
python=$root/.venv/bin/python
wheels=$root/requirements/emulated-cuda.txt source=$root/requirements/emulated-cuda-source.txt

say() { printf 'emulated CUDA: %s\n' "$*"; }
stop() {
    say "$*" >&2
    exit 1
}
# Stop because this machine lacks a requirement.
lack() {
    say "$*" >&2
    exit 3
}

mkdir -p "$folder"
folder=$(cd -- "$folder" && pwd)
# Two terminals may start this at once.
exec 9>"$folder/setup.lock"
flock 9

sum() { cat -- "$@" | sha256sum | cut -d ' ' -f 1; }
wanted="$folder $(sum "$here"/* "$wheels" "$source") $("$python" -V)"
if [[ -f $folder/built && $(<"$folder/built") == "$wanted" ]]; then
    exit 0
fi
[[ $(uname -sm) == "Linux x86_64" ]] || lack "runs only on Linux on x86-64, not on $(uname -sm)"
for tool in g++ nm tar; do
    command -v "$tool" >/dev/null ||
        lack "$tool was not found; install it (Debian: apt-get install g++ binutils tar)"
done
echo 'int main() { return (int)(_Float16)0; }' | g++ -x c++ -fsyntax-only - 2>/dev/null ||
    lack "g++ $(g++ -dumpversion) lacks _Float16; install g++ 12 or later"
headers=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
[[ -f $headers/Python.h ]] ||
    lack "Python.h of $("$python" -V) was not found; install it (Debian: apt-get install python3-dev)"

log=$folder/setup.log
step() { # MESSAGE COMMAND...
    say "$1"
    "${@:2}" >>"$log" 2>&1 || {
        tail -n 20 "$log" >&2
        stop "failed, see above; the complete output is in $log"
    }
}
work=$(mktemp -d "$folder/work.XXXXXX")
trap 'rm -rf -- "$work"' EXIT
: >"$log"
rm -rf "$folder"/{built,modules,lib,source}
mkdir -p "$folder"/{modules,lib,source}

pip=("$python" -m pip --disable-pip-version-check --no-input --no-cache-dir)
if [[ ! -f $folder/site/from || $(<"$folder/site/from") != $(sum "$wheels") ]]; then
    rm -rf "$folder/site"
    step "installing CuPy and CUDA's headers" "${pip[@]}" install --no-deps --require-hashes \
        --only-binary :all: --target "$folder/site" --requirement "$wheels"
    # Only nvcc needs these 95 MB.
    rm -rf "$folder"/site/nvidia/cuda_nvcc/{bin,nvvm}
    sum "$wheels" >"$folder/site/from"
fi
site=$folder/site
# With the stub, pip can read the metadata of the sources without CUDA.
step "fetching CuPy's sources and Cython" env CUPY_INSTALL_USE_STUB=1 "${pip[@]}" download --no-deps \
    --require-hashes --no-binary cupy --dest "$work" --requirement "$source"

cd "$work"
tar -xzf cupy-*.tar.gz
for wheel in *.whl; do
    "$python" -m zipfile -e "$wheel" tools
done
cd cupy-*/
PYTHONPATH=$work/tools step "translating CuPy's runtime.pyx" "$python" "$here/build_runtime.py"
include=(-I .)
for part in cuda_runtime cuda_nvcc cuda_profiler_api; do
    include+=(-I "$site/nvidia/$part/include")
done
flags=(-std=c++17 -O1 -fPIC -w)
step "compiling CuPy's runtime module" g++ "${flags[@]}" -c \
    -I "$headers" "${include[@]}" -o runtime.o \
    cupy_backends/cuda/api/runtime.cpp

# stubs OBJECT PREFIX STATUS SOURCES...: entry points that an object needs and the sources lack.
stubs() {
    local object=$1 prefix=$2 status=$3
    g++ "${flags[@]}" "${include[@]}" -shared -o draft.so "${@:4}"
    echo '#include <cstdio>'
    comm -23 <({ nm --undefined-only "$object" || nm -D --undefined-only "$object"; } 2>/dev/null |
        grep -o "\b$prefix[A-Z]\w*" | sort -u) \
        <(nm -D --defined-only draft.so | grep -o "\b$prefix[A-Z]\w*" | sort -u) |
        sed "s/.*/extern \"C\" int &() { fprintf(stderr, \"emulated CUDA: & is not emulated\\\\n\"); return $status; }/"
}
cuda=("$here"/{devices,cuda_runtime,cuda_driver,nvml}.cpp)
stubs runtime.o cuda 801 "${cuda[@]}" >cuda_stubs.cpp
stubs "$site"/cupy_backends/cuda/libs/cublas.*.so cublas 15 "$here/cublas.cpp" >cublas_stubs.cpp
lib=$folder/lib
step "compiling the emulated CUDA" g++ "${flags[@]}" "${include[@]}" -shared \
    -Wl,-soname,libcuda.so.1 -o "$lib/libcuda.so.1" "${cuda[@]}" cuda_stubs.cpp -ldl
ln -s libcuda.so.1 "$lib/libnvidia-ml.so.1"
# NVIDIA's library has versioned symbols.
echo 'libcublas.so.12 { global: *; };' >cublas.map
step "compiling the emulated cuBLAS" g++ "${flags[@]}" -O2 -shared -Wl,-soname,libcublas.so.12 \
    -Wl,--version-script=cublas.map -o "$lib/libcublas.so.12" \
    "$here/cublas.cpp" cublas_stubs.cpp "$lib/libcuda.so.1"
ln -s libcublas.so.12 "$lib/libcublasLt.so.12"
module=$(echo "$site"/cupy_backends/cuda/api/runtime.*.so)
step "linking CuPy's runtime module" g++ -shared -o "$module" runtime.o "$lib/libcuda.so.1"
step "compiling preload.c" gcc -O1 -fPIC -shared -o "$lib/preload.so" "$here/preload.c"

# Files that translate and compile a new kernel.
cp "$here"/{ptx_to_cpp.py,compile.sh,kernel.h,kernel_table.h} "$folder/source"
step "compiling kernel.h" "$folder/source/compile.sh" "$folder/source/kernel.h"
echo "$wanted" >"$folder/built"
say "built in $folder"
