# The dependencies of octane's tasks, without its code: Nextflow mounts the code, so that changing it does
# not require a new image. `make image` builds it.
#
#   CUDA=         without GPU support (default)
#   CUDA=12, 13   with CuPy and the libraries of that CUDA version; the node provides the driver
FROM debian:bookworm-slim AS system

# Nextflow's trace calls ps in every task.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends procps python3 \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/*

FROM system AS packages

RUN apt-get update && apt-get install --yes --no-install-recommends binutils python3-pip
ARG CUDA=
COPY requirements/run.txt requirements/cuda12.txt requirements/cuda13.txt /requirements/
# Versions and contents are pinned. The secrets are optional: settings of pip, such as a mirror, and the
# certificates of a proxy. Only this step sees them.
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    --mount=type=secret,id=certificates,target=/etc/ssl/certs/ca-certificates.crt \
    python3 -m venv --without-pip /opt/octane \
    && python3 -m pip --python /opt/octane/bin/python install --no-cache-dir --disable-pip-version-check --no-input \
        --only-binary :all: --require-hashes \
        --requirement "/requirements/${CUDA:+cuda}${CUDA:-run}.txt"
# Tasks need neither the packages' tests nor symbols for debuggers. Not in all packages: libraries that
# their wheels have edited, such as NumPy's OpenBLAS, cannot be stripped.
RUN cd /opt/octane/lib/python3*/site-packages \
    && find . -type d -name tests -prune -exec rm -r {} + \
    && find imagecodecs llvmlite numcodecs zstandard -name '*.so' -exec strip --strip-unneeded {} +

FROM system

COPY --from=packages /opt/octane /opt/octane
ENV PATH=/opt/octane/bin:$PATH
# "utility" includes NVML, which the GPU leases need.
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility
# Tasks run as the user who started them, who does not have a home in the image.
ENV HOME=/tmp
# `make image` states it.
ARG VERSION=
LABEL org.opencontainers.image.title=octane org.opencontainers.image.version=$VERSION
