"""The CUDA context of a new process: its seconds, and its memory according to NVML.

A script, because a process creates its context only once.
"""

import json
import os
import sys
import time

from octane.gpu import nvml
from octane.gpu.inventory import Gpu, visible


def gpu() -> Gpu:
    """Return the state of the GPU that CUDA lists first."""
    return visible(nvml.read(), os.environ.get("CUDA_VISIBLE_DEVICES"))[0]


def main() -> None:
    """Create a context, with the memory of the device before and after."""
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    before = gpu()
    start = time.perf_counter()
    import cupy

    imported = time.perf_counter()
    cupy.zeros(1).get()
    created = time.perf_counter()
    after = gpu()
    # NVML in a container may hide its processes, or list them under other IDs.
    own = [process.used for process in after.processes or () if process.pid == os.getpid()]
    figures = {
        "import_seconds": imported - start,
        "seconds": created - imported,
        "bytes_of_process": own[0] if own else None,
        "bytes_less_free": before.free - after.free,
    }
    sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
