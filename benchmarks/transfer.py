"""Copies between host and GPU: GB/s from pageable and from page-locked memory.

By size, in each direction alone and in both at once. Writes benchmarks/results/transfer.json.
``--quick`` takes three sizes. Without a GPU it says so, writes nothing and exits with 1.
"""

import argparse
import logging

from _common import save
from _gpu import DIRECTIONS, copy_rate, device_or_exit

from octane import backend

logger = logging.getLogger("transfer")

SIZES = tuple(1 << k for k in range(20, 29))
QUICK_SIZES = (1 << 20, 1 << 24, 1 << 28)


def main() -> None:
    """Run on a GPU, or say that there is none."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="three sizes alone")
    quick = parser.parse_args().quick
    xp = device_or_exit("transfer")
    cases = []
    for size in QUICK_SIZES if quick else SIZES:
        for memory in ("pageable", "pinned"):
            rates = {
                name: copy_rate(xp, size, directions, pinned=memory == "pinned") / 1e9
                for name, directions in {
                    "to_device": DIRECTIONS[:1],
                    "to_host": DIRECTIONS[1:],
                    "both_at_once": DIRECTIONS,
                }.items()
            }
            cases.append({"bytes": size, "memory": memory, "GB_per_s": rates})
            logger.info("%d bytes, %s, GB/s: %s", size, memory, rates)
    save("transfer", {"device": backend.describe(xp), "cases": cases}, quick=quick)


if __name__ == "__main__":
    main()
