#!/usr/bin/env bash
# Runs tests/gpu on this machine's GPU, or without one on the CUDA that tests/support/cuda emulates.
#
#   tools/test_gpu.sh [pytest's options]
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

has_gpu() {
    python -c '
import sys, pynvml
try:
    pynvml.nvmlInit()
    sys.exit(pynvml.nvmlDeviceGetCount() == 0)
except pynvml.NVMLError:
    sys.exit(1)'
}

if has_gpu && ! python -c 'import cupy'; then
    echo "test-gpu: CuPy cannot be loaded, so CUDA is emulated; to test on the GPU: .venv/bin/pip install 'cupy-cuda12x[ctk]' (or cupy-cuda13x[ctk], but not for Volta)"
elif has_gpu; then
    # One process: tests that fill the GPU's memory would disturb the others.
    exec python -m pytest tests/gpu "$@"
fi
code=0
tests/support/cuda/setup.sh || code=$?
if ((code == 3)); then
    echo "SKIPPED: tests/gpu was not run: neither a GPU nor emulated CUDA is available, see above"
    exit 0
fi
((code == 0)) || exit "$code"
exec tests/support/cuda/run python -m pytest -n "${WORKERS:-2}" --dist loadfile tests/gpu "$@"
