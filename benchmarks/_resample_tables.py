"""The tables of docs/resample.md."""

from pathlib import Path

from _resample_goals import goals
from _table_parts import NOT_MEASURED, Table, measured, record_of, table, warmup, where

__all__ = ["RESAMPLE_TABLES"]

METHODS = {
    "octane": "octane",
    "octane, arrays": "octane's array version",
    "zoom": "scipy: Gaussian, zoom (linumpy's)",
    "affine": "scipy: Gaussian, affine, pixel-centred",
    "skimage": "scikit-image: resize, anti-aliased",
    "sum": "reading the tile once (sum)",
}

PROGRAMS = {
    "octane": "octane",
    "linumpy": "linumpy's loop",
    "scipy-workers": "the same, one tile a core",
    "dask-image": "dask-image, Gaussian and affine",
    "ngff-zarr": "ngff-zarr, Gaussian, factor 3",
    "tensorstore": "tensorstore, mean, factor 3",
}

READERS = ("octane", "octane, streamed", "zarr-python", "zarrs", "tensorstore")

MISSING = "not installed"


def _size(voxels: list[int]) -> str:
    return f"{voxels[0]}³" if len(set(voxels)) == 1 else " x ".join(map(str, voxels))


def _mosaic(case: dict) -> str:
    return f"{case['store']}, {case['tiles']} tiles of {_size(case['tile'])}"


def _goals(results: Path) -> str:
    found = goals(results)
    if not any(goal.measured for goal in found):
        return NOT_MEASURED
    return table(
        ("figure", "measured", "goal", "holds"),
        [(goal.name, goal.range, goal.wanted, goal.verdict) for goal in found],
    )


def _kernel(record: dict) -> str:
    cases = record["cases"]
    rows = []
    for method, name in METHODS.items():
        row = [name]
        for case in cases:
            found = case["methods"].get(method)
            if found is None:
                row += [MISSING, "", ""]
                continue
            error = found["error"]
            row += [
                f"{found['seconds'] * 1e3:.1f}",
                f"{found['octane_times_faster']:.1f}",
                "" if error is None else f"{error:.0e}",
            ]
        rows.append(row)
    header = ["method"]
    for case in cases:
        header += [f"{_size(case['tile'])}, ms", "times octane's", "largest error"]
    return table(header, rows)


def _read(record: dict) -> str:
    rows = []
    for case in record["cases"]:
        for threads in ("1", "2"):
            row = [case["store"], f"{case['compression_ratio']:.2f}", threads]
            for reader in READERS:
                found = case["ms_per_tile"].get(reader)
                row.append(MISSING if found is None else f"{found[threads]:.0f}")
            rows.append(row)
    return table(("store", "compression", "threads", *READERS), rows)


def _end_to_end(record: dict) -> str:
    rows = []
    for case in record["cases"]:
        own = case["programs"]["octane"]
        for name, title in PROGRAMS.items():
            found = case["programs"].get(name)
            if found is not None:
                rows.append(
                    (
                        _mosaic(case),
                        title,
                        f"{found['seconds']:.2f}",
                        f"{found['seconds'] / own['seconds']:.1f}",
                        f"{found['command_seconds']:.2f}",
                        f"{found['command_seconds'] / own['command_seconds']:.1f}",
                        f"{found['peak_bytes'] / 1e6:.0f}",
                    )
                )
    return table(
        (
            "mosaic",
            "program",
            "s",
            "times octane's",
            "whole command, s",
            "times octane's",
            "peak, MB",
        ),
        rows,
    )


def _stages(record: dict) -> str:
    rows = []
    for case in record["cases"]:
        stages = case["stages"]
        seconds = stages["seconds"]
        apart = [seconds[name] for name in ("read", "compute", "write")]
        rows.append(
            (
                _mosaic(case),
                *(f"{spent:.3f}" for spent in (*apart, sum(apart), seconds["total"])),
                f"{stages['total_over_sum']:.2f}",
                f"{stages['total_over_read']:.2f}",
            )
        )
    return table(
        (
            "mosaic",
            "read and decode, s",
            "compute, s",
            "encode and write, s",
            "their sum, s",
            "end to end, s",
            "over the sum",
            "over reading",
        ),
        rows,
    )


def _memory(record: dict) -> str:
    rows = []
    for case in record["cases"]:
        predicted = case["predicted_bytes"]
        rows.append(
            (
                _size(case["tile"]),
                str(case["tiles"]),
                f"{case['bytes'] / 1e6:.0f}",
                str(case["workers"]),
                "" if predicted is None else f"{predicted / 1e6:.0f}",
                f"{case['peak_bytes'] / 1e6:.0f}",
                "" if predicted is None else f"{case['peak_bytes'] / predicted:.2f}",
            )
        )
    return table(
        ("tile", "tiles", "mosaic, MB", "workers", "predicted, MB", "peak, MB", "ratio"), rows
    )


def _scaling(record: dict) -> str:
    efficiencies = {
        "one worker": "",
        "two workers": f"{record['thread_efficiency']:.2f}",
        "two processes": f"{record['process_efficiency']:.2f}",
    }
    return table(
        (
            "",
            "seconds",
            "read and decode, s a worker",
            "compute, s a worker",
            "encode and write, s a worker",
            "bound by",
            "efficiency",
        ),
        [
            (
                name,
                f"{case['seconds']:.2f}",
                *(f"{case[stage]:.2f}" for stage in ("read", "compute", "write")),
                case["bound_by"],
                efficiencies[name],
            )
            for name, case in record["cases"].items()
        ],
    )


def _codecs(record: dict) -> str:
    tiles = record["tiles"]
    return table(
        (
            "codec",
            "pipeline, s",
            "encode and write, ms a tile",
            "read again, ms a tile",
            "MB a tile",
        ),
        [
            (
                codec,
                f"{found['seconds']:.2f}",
                f"{found['write_seconds'] / tiles * 1e3:.1f}",
                f"{found['read_seconds'] / tiles * 1e3:.1f}",
                f"{found['bytes'] / tiles / 1e6:.2f}",
            )
            for codec, found in record["codecs"].items()
        ],
    )


def _gpu(results: Path) -> str:
    """What a device that computes in no time would gain, by counting."""
    reading, computing = (record_of(results, f"resample_{part}") for part in ("read", "kernel"))
    if reading is None or computing is None:
        return NOT_MEASURED
    (kernel,) = (
        case["methods"]["octane"]["seconds"] * 1e3
        for case in computing["cases"]
        if case["tile"] == reading["tile"]
    )
    rows = []
    for case in reading["cases"]:
        decode = case["ms_per_tile"]["octane"]["1"]
        gain = (decode + kernel) / decode
        rows.append((case["store"], f"{decode:.0f}", f"{kernel:.1f}", f"{gain:.2f}"))
    return table(
        ("store", "read and decode, ms a tile", "kernel, ms a tile", "gain at most, times"), rows
    )


_where = where("scipy", "zarr", "numcodecs")

RESAMPLE_TABLES: dict[str, Table] = {
    "resample-goals": _goals,
    "resample-kernel": measured("resample_kernel", _kernel),
    "resample-kernel-where": measured("resample_kernel", _where),
    "resample-read": measured("resample_read", _read),
    "resample-read-where": measured("resample_read", _where),
    "resample-end-to-end": measured("resample_end_to_end", _end_to_end),
    "resample-end-to-end-where": measured("resample_end_to_end", _where),
    "resample-stages": measured("resample_end_to_end", _stages),
    "resample-memory": measured("resample_memory", _memory),
    "resample-memory-where": measured("resample_memory", _where),
    "resample-scaling": measured("resample_scaling", _scaling),
    "resample-scaling-where": measured("resample_scaling", _where),
    "resample-gpu": _gpu,
    "resample-codecs": measured("resample_codecs", _codecs),
    "resample-warmup": measured("warmup", warmup("resample")),
}
"""Names that the page marks, and what makes each table."""
