#!/usr/bin/env bash
# Compiles the C++ of one module, or kernel.h ahead of all of them: half a second less for each.
#
#   compile.sh MODULE.ptx MODULE.so [OPTION...]
#   compile.sh kernel.h
#
# Signed zeros, NaN and rounding are kept as PTX has them, and nothing is contracted.
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
# What the emulated process was given does not concern the compiler.
unset LD_PRELOAD LD_LIBRARY_PATH PYTHONPATH
flags=(-std=c++17 -O1 -w -fPIC -ffp-contract=off -frounding-math -fno-strict-aliasing -mfma -msse4.1)
if [[ $1 == *.h ]]; then
    exec g++ "${flags[@]}" -x c++-header -o "$1.gch" "$1"
fi
"${EMU_PYTHON:?}" "$here/ptx_to_cpp.py" "$1" "$1.cpp"
g++ "${flags[@]}" "${@:3}" -shared -Wl,-Bsymbolic -I "$here" -o "$1.so" "$1.cpp"
# Processes may compile the same module at once: each renames one that is whole.
mv -- "$1.so" "$2"
rm -- "$1" "$1.cpp"
