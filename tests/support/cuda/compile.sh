#!/usr/bin/env bash
# Compiles one module, or precompiles kernel.h, which saves half a second per module.
#
#   compile.sh MODULE.ptx MODULE.so [OPTION...]
#   compile.sh kernel.h
#
# Signed zeros, NaN and rounding follow PTX, and no operations are contracted.
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
# The compiler must not use the environment of the emulated process.
unset LD_PRELOAD LD_LIBRARY_PATH PYTHONPATH
flags=(-std=c++17 -O1 -w -fPIC -ffp-contract=off -frounding-math -fno-strict-aliasing -mfma -msse4.1)
if [[ $1 == *.h ]]; then
    exec g++ "${flags[@]}" -x c++-header -o "$1.gch" "$1"
fi
"${EMU_PYTHON:?}" "$here/ptx_to_cpp.py" "$1" "$1.cpp"
g++ "${flags[@]}" "${@:3}" -shared -Wl,-Bsymbolic -I "$here" -o "$1.so" "$1.cpp"
# Processes may compile the same module at once: each renames a complete file.
mv -- "$1.so" "$2"
rm -- "$1" "$1.cpp"
