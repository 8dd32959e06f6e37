"""GPU leases: what one costs, what a storm of kills leaves, and a day with and without them.

Needs no GPU: GPUs are made up, the locks, processes and kills are real. The day is simulated with
the real rules.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _common import PROJECT, save
from _lease_day import GPUS, KINDS, OTHERS, TOTAL, Policy, by_forks, by_leases, day

from octane.gpu.lease import lease
from octane.gpu.simulated import SimulatedGpus

POLICIES: dict[str, tuple[Policy, int]] = {
    "leases, 2 slots": (by_leases, 2),
    "leases, 1 slot": (by_leases, 1),
    "maxForks, 2 a GPU": (by_forks, 2),
    "maxForks, 1 a GPU": (by_forks, 1),
}


def uncontended(repeats: int) -> dict[str, float]:
    """Taking and giving back with nobody else there, milliseconds."""
    source = SimulatedGpus("2x40GB")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as scratch:
        folder = Path(scratch) / "leases"
        times = []
        for _ in range(repeats + 1):
            start = time.perf_counter()
            with lease("4GB", source=source, folder=folder):
                pass
            times.append(1000 * (time.perf_counter() - start))
    # The first makes the folder.
    first, *rest = times
    return {
        "first": round(first, 3),
        "median": round(statistics.median(rest), 3),
        "smallest": round(min(rest), 3),
        "p99": round(statistics.quantiles(rest, n=100, method="inclusive")[98], 3),
    }


def storm(kills: int, takers: int) -> dict[str, object]:
    """Kills among takers, in a process of their own."""
    script = PROJECT / "benchmarks" / "_lease_storm.py"
    done = subprocess.run(
        [sys.executable, script, str(kills), str(takers), "1"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def days(seeds: int) -> dict[str, dict[str, object]]:
    """Each policy on the same days."""
    found: dict[str, dict[str, object]] = {}
    for name, (policy, slots) in POLICIES.items():
        runs = [day(policy, slots, seed) for seed in range(seeds)]
        waits = {kind: [wait for run in runs for wait in run.waits[kind]] for kind in KINDS}
        found[name] = {
            "idle_with_waiters": round(statistics.mean(run.idle_with_waiters for run in runs), 4),
            "used": round(statistics.mean(run.used for run in runs), 4),
            "failed_tries": statistics.mean(run.failed_tries for run in runs),
            "given_up": statistics.mean(run.given_up for run in runs),
            "hours": round(statistics.mean(run.hours for run in runs), 2),
            "wait_seconds": {
                kind: {
                    "median": round(statistics.median(values)),
                    "p95": round(statistics.quantiles(values, n=20, method="inclusive")[18]),
                    "longest": round(max(values)),
                }
                for kind, values in waits.items()
            },
        }
    return found


def main() -> None:
    """Measure and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer repeats, kills and days")
    quick = parser.parse_args().quick
    seeds = 1 if quick else 10
    save(
        "leases",
        {
            "uncontended_ms": uncontended(50 if quick else 2000),
            "storm": storm(50 if quick else 1000, 8),
            "day": {
                "gpus": GPUS,
                "gpu_bytes": TOTAL,
                "days": seeds,
                "jobs": {
                    name: dict(zip(("bytes", "seconds", "busy", "a_day"), kind, strict=True))
                    for name, kind in {**KINDS, "without a lease": OTHERS}.items()
                },
                "policies": days(seeds),
            },
        },
        quick=quick,
    )


if __name__ == "__main__":
    main()
