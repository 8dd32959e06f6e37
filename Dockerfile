# What octane's tasks need, and none of its code: Nextflow brings the code along, so that the image
# stays the same when it changes. `make image` builds it.
#
#   CUDA=         no GPU (default)
#   CUDA=12, 13   with CuPy and the libraries of that CUDA version; the driver is the node's
FROM python:3.11.11-slim-bookworm

# ps, which Nextflow asks in every task for its trace.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends procps \
    && rm -rf /var/lib/apt/lists/*

ARG CUDA=
COPY requirements/run.txt requirements/cuda12.txt requirements/cuda13.txt /opt/octane/
# Of both the versions and the contents are fixed.
RUN python -m pip install --no-cache-dir --disable-pip-version-check --no-input \
    --only-binary :all: --require-hashes \
    --requirement "/opt/octane/${CUDA:+cuda}${CUDA:-run}.txt"

# NVML, by which GPUs are leased, is a part of "utility".
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility
# Tasks run as the user who started them, who has no home here.
ENV HOME=/tmp
