# The dependencies of octane's tasks, without its code: Nextflow mounts the code, so that changing it does
# not require a new image. `make image` builds it.
#
#   CUDA=         without GPU support (default)
#   CUDA=12, 13   with CuPy and the libraries of that CUDA version; the node provides the driver
FROM python:3.11.11-slim-bookworm

# Nextflow's trace calls ps in every task.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends procps \
    && rm -rf /var/lib/apt/lists/*

ARG CUDA=
COPY requirements/run.txt requirements/cuda12.txt requirements/cuda13.txt /opt/octane/
# Versions and contents are pinned.
RUN python -m pip install --no-cache-dir --disable-pip-version-check --no-input \
    --only-binary :all: --require-hashes \
    --requirement "/opt/octane/${CUDA:+cuda}${CUDA:-run}.txt"

# "utility" includes NVML, which the GPU leases need.
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility
# Tasks run as the user who started them, who does not have a home in the image.
ENV HOME=/tmp
