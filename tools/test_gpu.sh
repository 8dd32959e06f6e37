#!/usr/bin/env bash
# Runs tests/gpu on this machine's GPU, or, where there is none, on the CUDA that
# tests/support/cuda emulates.
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

if has_gpu; then
    python -c 'import cupy' 2>/dev/null || {
        echo "test-gpu: CuPy is not installed; run: .venv/bin/pip install 'cupy-cuda12x[ctk]' (or cupy-cuda13x[ctk])" >&2
        exit 1
    }
    # One process: tests that fill the GPU's memory would disturb others.
    exec python -m pytest tests/gpu "$@"
elif [[ $(uname -sm) == "Linux x86_64" ]]; then
    tests/support/cuda/setup.sh
    exec tests/support/cuda/run python -m pytest -n "${WORKERS:-2}" --dist loadfile tests/gpu "$@"
fi
echo "SKIPPED: there is no NVIDIA GPU, and CUDA is emulated on Linux on x86-64 alone; tests/gpu was not run"
