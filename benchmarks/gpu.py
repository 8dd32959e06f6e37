"""A GPU: its copies and kernels, N4 and RESAMPLE on it, and checks of their correctness.

Each part is stored in benchmarks/results/gpu.json, from which `make generate` writes the tables of
docs/benchmarks.md. ``--only`` chooses parts. ``--quick`` uses tiny data, which only show that all
parts run, and writes to the scratch folder (OCTANE_BENCH_DIR, else work/bench) instead. Without a
GPU or a package, or if a full run finds an emulated GPU, it says so in one sentence, writes nothing
and exits with 3. If a check fails, it exits with 1.

The lower bounds are measured in the same run: a copy from page-locked memory for the bytes that
cross PCIe, and reading and decoding alone for a store. The full run needs 10 GB of scratch space
and as much page cache. tools/first_run.sh runs it in parts, each with a time limit.
"""

import logging
import sys
from importlib.util import find_spec

PACKAGES = {
    "cupy": "CuPy",
    "google_crc32c": "google-crc32c",
    "numba": "numba",
    "numcodecs": "numcodecs",
    "numpy": "numpy",
    "pydantic": "pydantic",
    "pynvml": "nvidia-ml-py",
    "scipy": "scipy",
    "SimpleITK": "simpleitk",
    "zarr": "zarr",
    "zstandard": "zstandard",
}
"""Packages that the parts need, by the modules imported from them."""

PARTS = (
    *("device", "transfers", "kernels", "cold_start", "n4", "resample"),
    *("tests", "sanitizer", "leases", "counters"),
)
NOT_HERE = 3
"""Exit code by which `make bench` tells a skipped benchmark from one that failed."""

logger = logging.getLogger("gpu")


def main() -> None:
    """Run the chosen parts; exit with :data:`NOT_HERE` without a GPU or a package."""
    missing = [package for module, package in PACKAGES.items() if find_spec(module) is None]
    if missing:
        sys.stderr.write(
            f"gpu was not measured: {', '.join(missing)} cannot be imported; install them (CuPy as "
            "in docs/gpu.md), or name their folder in PYTHONPATH\n"
        )
        sys.exit(NOT_HERE)
    # Only now, because all of them import these packages.
    from _common import command_line, run_parts
    from _gpu_checks import counters, leases, sanitizer, tests
    from _gpu_commands import FULL, QUICK, cold_start, n4_part, resample_part
    from _gpu_device import described, device_part, transfers
    from _gpu_kernels import kernels
    from device import NoDeviceError, cupy_with_device

    chosen = command_line(__doc__, PARTS).parse_args()
    quick = chosen.quick
    sizes = QUICK if quick else FULL
    try:
        xp = cupy_with_device()
        device = {"device": described(xp)}
        if not quick and "Emulated" in str(device["device"]["device"]):
            raise NoDeviceError("CUDA is emulated, which only --quick supports")
    except NoDeviceError as error:
        logger.error("gpu was not measured: %s", error)
        sys.exit(NOT_HERE)
    parts = {
        "device": lambda: device_part(xp, quick),
        "transfers": lambda: transfers(xp, sizes.copies),
        "kernels": lambda: kernels(xp, quick),
        "cold_start": lambda: cold_start(sizes),
        "n4": lambda: n4_part(xp, sizes),
        "resample": lambda: resample_part(xp, sizes),
        "tests": lambda: tests(quick),
        "sanitizer": lambda: sanitizer(quick),
        "leases": lambda: leases(xp, quick),
        "counters": lambda: counters(quick),
    }
    named = {name: lambda part=part: device | part() for name, part in parts.items()}
    found = run_parts("gpu", named, chosen)
    failed = [name for name in chosen.only if found[name].get("passed") is False]
    if failed:
        sys.exit(f"{', '.join(failed)} failed: see above")


if __name__ == "__main__":
    main()
