"""Two checkouts of octane measured alternately: seconds, their ratio, and whether bits are equal.

As a script, ``python _against.py REQUEST`` measures calls in memory with the octane of PYTHONPATH;
the request is JSON with ``call`` (n4, resample), ``array`` (.npy), ``workers`` and ``runs``.
"""

import hashlib
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING

import numpy as np
from _timing import median_ratio, timed

if TYPE_CHECKING:
    from collections.abc import Sequence


Measure = Callable[[Path], tuple[float, str]]
"""Measures one checkout: seconds, and a checksum of the result."""


def compared(other: Path, cases: Mapping[str, Measure], rounds: int) -> dict[str, object]:
    """Measure every case with both checkouts alternately, after a round that is not counted.

    Parameters
    ----------
    other
        The old checkout; the new one is this project.
    cases
        Measurements by name.
    rounds
        Rounds that are counted.
    """
    from _common import PROJECT

    checkouts = {"old": other.resolve(), "new": PROJECT}
    found: dict[str, object] = {}
    for name, measure in cases.items():
        seconds: dict[str, list[float]] = {"old": [], "new": []}
        checksums = set()
        for number in range(1 + rounds):
            # Alternate which one comes first.
            for label in sorted(checkouts, reverse=number % 2 == 0):
                spent, checksum = measure(checkouts[label])
                checksums.add(checksum)
                if number:
                    seconds[label].append(spent)
        found[name] = {
            "old_over_new": median_ratio(seconds["old"], seconds["new"]),
            "same_bits": len(checksums) == 1,
            "seconds": seconds,
        }
        sys.stdout.write(f"{name}: {json.dumps(found[name])}\n")
    return found


def call(name: str, array: Path, *, workers: int, runs: int) -> Measure:
    """Return a measurement of a function of octane on an array in memory."""
    from _processes import run_script

    request = {"call": name, "array": str(array), "workers": workers, "runs": runs}

    def measure(checkout: Path) -> tuple[float, str]:
        figures, _ = run_script("_against.py", request, checkout=checkout, cores=workers)
        return figures["median"], figures["checksum"]

    return measure


def command(name: str, source: Path, folder: Path, words: "Sequence[str]") -> Measure:
    """Return a measurement of a command of ``bin/`` from store to store, including Python's start.

    Parameters
    ----------
    name
        ``n4`` or ``resample``.
    source
        The OME-Zarr store.
    folder
        Folder for the result, which is removed.
    words
        Flags.
    """
    from _processes import run

    def measure(checkout: Path) -> tuple[float, str]:
        destination = folder / "result.ome.zarr"
        done = run([sys.executable, checkout / "bin" / f"{name}.py", source, destination, *words])
        checksum = checksum_of(destination)
        rmtree(destination)
        return done.seconds, checksum

    return measure


def checksum_of(path: Path) -> str:
    """Return a checksum of all voxels of the finest level."""
    import zarr

    return hashlib.sha256(
        np.asarray(zarr.open_array(path / "0", mode="r")[:]).tobytes()
    ).hexdigest()


def n4_call(array: np.ndarray, workers: int) -> Callable[[], np.ndarray]:
    """Return a call of N4 with a fixed number of iterations."""
    from octane.processes.n4.fit import n4_bias_field_correction

    return lambda: n4_bias_field_correction(
        array,
        shrink_factor=(4, 4, 4),
        iterations=(40, 40, 40),
        convergence_threshold=0.0,
        workers=workers,
    )[0]


def resample_call(array: np.ndarray, _workers: int) -> Callable[[], np.ndarray]:
    """Return a call of the resampling of one tile from 3.5 to 10 micrometres."""
    from octane.resample.operator import resampler
    from octane.resample.resampler import resample

    operators = [resampler(n, 3.5, 10.0) for n in array.shape]
    return lambda: resample(array, operators)


def main() -> None:
    """Measure the requested call."""
    request = json.loads(sys.argv[1])
    work = {"n4": n4_call, "resample": resample_call}[request["call"]]
    result, seconds = timed(work(np.load(request["array"]), request["workers"]), request["runs"])
    checksum = hashlib.sha256(np.asarray(result).tobytes()).hexdigest()
    sys.stdout.write(json.dumps({**seconds, "checksum": checksum}) + "\n")


if __name__ == "__main__":
    main()
