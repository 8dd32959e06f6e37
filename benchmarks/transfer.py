"""Copies between host and GPU: GB/s from pageable and from page-locked memory.

By size, in each direction alone and in both at once, each copy waited for or all of them; and what
the link carries at most. Writes benchmarks/results/transfer.json.
``--quick`` takes three sizes. Without a GPU it says so, writes nothing and exits with 3.
"""

import argparse
import itertools
import logging

from _common import save
from _gpu import DIRECTIONS, copy_rate, device_or_exit

from octane.gpu.device import describe

logger = logging.getLogger("transfer")

SIZES = tuple(1 << k for k in range(20, 29))
LANE_RATES = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
"""Bytes a second that one lane carries in either direction, by the generation of PCIe."""

QUICK_SIZES = (1 << 20, 1 << 24, 1 << 28)


def main() -> None:
    """Run on a GPU, or say that there is none."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="three sizes alone")
    quick = parser.parse_args().quick
    xp = device_or_exit("transfer")
    cases = []
    device = describe(xp)
    generation, width = device["pcie_generation"], device["pcie_width"]
    # Where the driver does not know the link there is no limit to hold the rates against.
    known = isinstance(generation, int) and isinstance(width, int)
    limit = LANE_RATES[generation] * width if known else None
    sizes = QUICK_SIZES if quick else SIZES
    for size, pinned, waited in itertools.product(sizes, (False, True), (True, False)):
        rates = {
            name: copy_rate(xp, size, directions, pinned=pinned, waited=waited) / 1e9
            for name, directions in {
                "to_device": DIRECTIONS[:1],
                "to_host": DIRECTIONS[1:],
                "both_at_once": DIRECTIONS,
            }.items()
        }
        case = {
            "bytes": size,
            "memory": "pinned" if pinned else "pageable",
            "waited": waited,
            "GB_per_s": rates,
            # Of one direction; both at once have the link twice.
            "share_of_link": None
            if limit is None
            else {way: rates[way] * 1e9 / limit for way in DIRECTIONS},
        }
        cases.append(case)
        logger.info("%s", case)
    save("transfer", {"device": device, "link_bytes_per_s": limit, "cases": cases}, quick=quick)


if __name__ == "__main__":
    main()
