"""The tables of the documentation, made from the records of benchmarks and tests.

A page marks a table with ``<!-- figures: NAME -->``; ``make generate`` replaces what follows up to
the next empty line.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median

from _common import PROJECT, RESULTS
from reliability import GROUPS, RECORD

PAGES = (PROJECT / "docs" / "benchmarks.md", PROJECT / "docs" / "reliability.md")
MARKED = re.compile(r"(<!-- figures: (\S+) -->\n)(?:.+\n)*")
NOT_MEASURED = "Not measured yet.\n"
MISSING = "not installed"
SHOWN_CASES = 4
"""Cases of the agreement in the table, those of the largest differences."""

Table = Callable[[Path], str]
"""Makes a table from the folder of the results."""

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

GPU_CHECKS = ("tests", "memcheck", "racecheck")

READERS = ("octane", "octane, streamed", "zarr-python", "zarrs", "tensorstore")


def filled(text: str, results: Path = RESULTS) -> str:
    """Return the page with every marked table replaced; an unknown name is an error."""
    return MARKED.sub(lambda found: found[1] + TABLES[found[2]](results), text)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def of_part(subject: str, part: str, make: Callable[[dict], str]) -> Table:
    """Return the table of one part of a benchmark, which says so where there is no record."""

    def made(results: Path) -> str:
        path = results / f"{subject}.json"
        records = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        return make(records[part]) if part in records else NOT_MEASURED

    return made


def of_file(path: Path, make: Callable[[dict], str]) -> Table:
    """Return the table of a record that tests write."""
    return lambda _: make(json.loads(path.read_text(encoding="utf-8")))


def _where(results: Path) -> str:
    rows: dict[tuple[str, ...], list[str]] = {}
    for path in sorted(results.glob("*.json")):
        for part, record in json.loads(path.read_text(encoding="utf-8")).items():
            origin = (f"`{path.stem}.py`", *_origin(record))
            rows.setdefault(origin, []).append(f"{part} {record['commit']}")
    return table(
        ("script", "date", "machine", "versions", "parts, each with its commit"),
        [(*origin, ", ".join(parts)) for origin, parts in rows.items()],
    )


def _origin(record: dict) -> tuple[str, ...]:
    """Return date, machine and the versions of the packages that matter."""
    names = ("numpy", "numba", "scipy", "zarr", "numcodecs", "SimpleITK")
    versions = ((name, record["versions"].get(name)) for name in names)
    return (
        record["date"],
        f"{record['cores']} cores of {record['processor']}" + _gpu(record.get("device")),
        ", ".join(f"{name} {number}" for name, number in versions if number),
    )


def _gpu(device: dict | None) -> str:
    return "" if device is None else f", {device['device']}, driver {device['driver']}"


def _levels(record: dict) -> str:
    levels = record["n4_by_fitting_levels"]
    before = levels["1"]["truth"]["cv_against_truth_before"]
    rows = [
        (
            level,
            f"{figures['truth']['field_correlation']:.3f}",
            f"{figures['truth']['cv_against_truth_after']:.3f}",
        )
        for level, figures in levels.items()
    ]
    return table(
        ("levels of 50", "correlation with the true field", "variation over the true tissue"),
        [("(before)", "", f"{before:.3f}"), *rows],
    )


def _listed(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))


def _agreement(record: dict) -> str:
    bounds = record["bounds"]
    rows: list[tuple[str, ...]] = [
        (
            "*bound*",
            "",
            "equal",
            *(f"{bounds[figure]:.0e}" for figure in ("one_minus_r", "median", "max")),
            "",
            "",
            "",
        )
    ]
    cases = sorted(record["cases"], key=lambda case: -case["max"])
    worst = [
        max(abs(case[figure]) for case in cases) for figure in ("one_minus_r", "median", "max")
    ]
    itk_worst = [max(case[figure] for case in cases) for figure in ("itk_median", "itk_max")]
    rows.append(
        (
            f"*all {len(cases)} cases, largest*",
            "",
            "",
            *(f"{figure:.1e}" for figure in (*worst, *itk_worst)),
            "yes" if all(case["holds"] for case in cases) else "**no**",
        )
    )
    for case in cases[:SHOWN_CASES]:
        itk = case["itk_iterations"][str(case["nearest_threads"])]
        done = _listed(case["iterations"])
        rows.append(
            (
                case["name"],
                f"{' x '.join(map(str, case['fit_shape']))} ({case['included']})",
                done if itk == case["iterations"] else f"{done} (ITK {_listed(itk)})",
                f"{abs(case['one_minus_r']):.0e}",
                f"{case['median']:.1e}",
                f"{case['max']:.1e}",
                f"{case['itk_median']:.1e}",
                f"{case['itk_max']:.1e}",
                "yes" if case["holds"] else "**no**",
            )
        )
    return table(
        (
            "case",
            "grid of the fit (voxels fitted)",
            "iterations by level",
            "1 - r",
            "median",
            "maximum",
            "ITK itself, median",
            "ITK itself, maximum",
            "holds",
        ),
        rows,
    )


def _speed(record: dict) -> str:
    rows = []
    for case in record["cases"]:
        peer, errors = MISSING, f"{case['fit_against_simpleitk']['median']:.0e}"
        if "n4ax" in case:
            found = case["n4ax"]
            peer = f"{found['warm']:.3f} (first call {found['cold']:.1f})"
            errors += f" / {found['fit_against_simpleitk_but_for_scale']['median']:.0e}"
        rows.append(
            (
                case["name"],
                str(case["shrink"]),
                str(case["included"]),
                _listed(case["iterations"]),
                f"{case['simpleitk']['total']:.2f}",
                f"{case['octane']['median']:.3f}",
                f"{case['ratio']:.0f}",
                f"{case['simpleitk']['fit']:.2f}",
                f"{case['octane_fit']['2']['median']:.3f}",
                peer,
                errors,
                *(f"{case['octane_fit'][n]['ns_per_voxel_and_iteration']:.1f}" for n in ("1", "2")),
            )
        )
    return table(
        (
            *("case", "shrink", "voxels fitted", "iterations"),
            *("SimpleITK, s", "octane, s", "ratio"),
            *("fit: SimpleITK, s", "octane, s", "n4ax, s", "median error, octane / n4ax"),
            *("octane, 1 thread, ns", "2 threads, ns"),
        ),
        rows,
    )


def _memory(record: dict) -> str:
    return table(
        (
            "volume, GB",
            "voxels fitted",
            "predicted, GB",
            "peak, GB",
            "peak over predicted",
            "seconds",
            "ns per voxel",
        ),
        [
            (
                f"{case['bytes'] / 1e9:.1f}",
                " x ".join(map(str, case["fit_shape"])),
                f"{case['predicted_bytes'] / 1e9:.2f}",
                f"{case['peak_bytes'] / 1e9:.2f}",
                f"{case['peak_over_predicted']:.2f}",
                f"{case['seconds']:.0f}",
                f"{case['ns_per_voxel']:.0f}",
            )
            for case in record["cases"]
        ],
    )


def _modes(record: dict) -> str:
    cases = record["cases"]
    before = cases["global"]["truth"]["cv_against_truth_before"]
    return table(
        ("mode", "variation over the true tissue", "correlation with the true field"),
        [
            ("(before)", f"{before:.3f}", ""),
            *(
                (
                    name,
                    f"{case['truth']['cv_against_truth_after']:.3f}",
                    f"{case['truth']['field_correlation']:.3f}",
                )
                for name, case in cases.items()
            ),
        ],
    )


def _size(voxels: list[int]) -> str:
    return f"{voxels[0]}³" if len(set(voxels)) == 1 else " x ".join(map(str, voxels))


def _mosaic(case: dict) -> str:
    return f"{case['store']}, {case['tiles']} tiles of {_size(case['tile'])}"


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
        row = [case["store"], f"{case['compression_ratio']:.2f}"]
        for reader in READERS:
            found = case["ms_per_tile"].get(reader)
            row.append(MISSING if found is None else f"{found['1']:.0f} / {found['2']:.0f}")
        rows.append(row)
    return table(("store", "compression", *READERS), rows)


def _end_to_end(record: dict) -> str:
    rows = []
    for case in record["cases"]:
        row = [_mosaic(case), f"{case['stages']['seconds']['read']:.2f}"]
        for name in PROGRAMS:
            found = case["programs"].get(name)
            row.append(
                ""
                if found is None
                else f"{found['seconds']:.2f} / {found['command_seconds']:.2f} / "
                f"{found['peak_bytes'] / 1e6:.0f}"
            )
        rows.append(row)
    return table(("mosaic", "reading alone", *PROGRAMS.values()), rows)


def _resample_memory(record: dict) -> str:
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


def _transfers(record: dict) -> str:
    ways = ("to_device", "to_host", "both_at_once")
    return table(
        ("MiB", "host memory", "to the GPU, GB/s", "back, GB/s", "both, GB/s"),
        [
            (
                str(case["bytes"] >> 20),
                case["memory"],
                *(f"{case['GB_per_s'][way]:.1f}" for way in ways),
            )
            for case in record["cases"]
        ],
    )


def _gpu_n4(record: dict) -> str:
    return table(
        (
            *("volume", "fit: GPU, s", "CPU, s", "host to host: GPU, s", "estimated, s"),
            *("command: GPU, s", "CPU, s"),
        ),
        [
            (
                _size(case["shape"]),
                *(f"{case['fit'][device]['median']:.3f}" for device in ("gpu", "cpu")),
                f"{case['host_to_host']['median']:.3f}",
                f"{case['estimate']['seconds']['total']:.3f}",
                *(f"{case['command'][device]['command_seconds']:.1f}" for device in ("gpu", "cpu")),
            )
            for case in record["cases"]
        ],
    )


def _gpu_resample(record: dict) -> str:
    names = ("pcie_floor", "read_and_decode", "gpu", "cpu")
    return table(
        ("store", "PCIe, ms a tile", "read and decode, ms a tile", "GPU", "CPU"),
        [
            (case["store"], *(f"{case['ms_per_tile'][name]:.1f}" for name in names))
            for case in record["end_to_end"]
        ],
    )


def _cold_start(record: dict) -> str:
    return table(
        ("command", "kernels not compiled yet, s", "compiled, s"),
        [
            (f"`bin/{name}.py`", *(f"{median(found[state]):.1f}" for state in ("empty", "warm")))
            for name, found in record["command_seconds"].items()
        ],
    )


def _check(record: dict) -> str:
    passed = "passed" if record["passed"] else "**failed**"
    return table(("result", "what was said"), [(passed, record["summary"])])


def _startup(record: dict) -> str:
    return table(
        ("compiled code", "part", "added to the first call, s", "smallest of the repeats, s"),
        [
            (
                name,
                part,
                *(
                    f"{record[key][cache]['added_by_kernels'][figure]:.2f}"
                    for figure in ("median", "smallest")
                ),
            )
            for part, key in (("N4", "n4"), ("RESAMPLE", "resample"))
            for name, cache in (("cached", "full_cache"), ("not yet", "empty_cache"))
        ],
    )


def _commands(record: dict) -> str:
    found = record.get("commands")
    if found is None:
        return NOT_MEASURED
    rows = [(f"`bin/{name}.py --help`", f"{seconds:.2f}") for name, seconds in found.items()]
    return table(("command", "seconds"), rows)


def _demo(record: dict) -> str:
    found = record["seconds_of_run"]
    return table(
        ("tasks", "first run, s", "`-resume`, s"),
        [(str(record["tasks"]), f"{found['first']:.0f}", f"{found['resumed']:.0f}")],
    )


def _tasks(record: dict) -> str:
    rows = []
    for case in record["cases"]:
        first, work = case["first"], case["work"]
        rows.append(
            (
                f"{case['subjects']} x {case['sections']}",
                str(case["tasks"]),
                str(case["queueSize"]),
                case["pollInterval"],
                "on" if case["trace_report"] else "off",
                f"{first['seconds'] / 60:.1f}",
                f"{case['ms_per_task']:.0f}",
                f"{1000 * first['cpu_seconds'] / case['tasks']:.0f}",
                f"{first['java_peak_bytes'] / 1e6:.0f}",
                f"{work['files'] + work['folders'] + work.get('links', 0)}",
                f"{work['bytes'] / 1e6:.0f}",
                f"{case['resumed']['seconds']:.0f}",
            )
        )
    return table(
        (
            "subjects x sections",
            "tasks",
            "at once",
            "asked every",
            "`trace_report`",
            "minutes",
            "ms a task",
            "ms of a core a task",
            "Java, MB",
            "files, folders and links in work",
            "MB in work",
            "`-resume`, s",
        ),
        rows,
    )


def _steps(record: dict) -> str:
    rows = []
    for name, found in record["steps"].items():
        whole = record["subject"][name]
        rows.append(
            (
                name.upper(),
                f"{found['bytes'] / 1e6:.0f}",
                f"{found['seconds']:.1f}",
                f"{found['bytes'] / found['seconds'] / 1e6:.0f}",
                f"{found['peak_bytes'] / 1e9:.2f}",
                f"{whole['bytes'] / 1e9:.0f}",
                f"{whole['computing_seconds'] / 60:.0f}",
                f"{whole['moving_seconds'] / 60:.0f}",
                f"{whole['asked_hours']:.1f}",
            )
        )
    return table(
        (
            "step",
            "input, MB",
            "seconds",
            "MB/s",
            "peak, GB",
            "80 GB subject: one task's input, GB",
            "at the measured rate, min",
            "at 100 MB/s in and out, min",
            "4 x the longer, h",
        ),
        rows,
    )


def _leases(record: dict) -> str:
    cost, storm = record["uncontended_ms"], record["storm"]
    return table(
        ("figure", "measured"),
        [
            ("take and give back, nobody else there: median", f"{cost['median']:.2f} ms"),
            ("the same, 99 of 100 are faster than", f"{cost['p99']:.2f} ms"),
            (f"processes killed by SIGKILL among {storm['takers']}", f"{storm['kills']}"),
            ("of them while they held a share", f"{storm['kills_while_holding']}"),
            ("shares granted meanwhile", f"{storm['grants']}"),
            ("shares that were not given back", f"{storm['leaks']}"),
            ("shares given twice", f"{storm['double_grants']}"),
            ("moments with more holders than slots", f"{storm['over_slots']}"),
            ("moments with more memory promised than there is", f"{storm['over_memory']}"),
        ],
    )


def _verdict(record: dict) -> str:
    rows = record["rows"]
    header = [f"{row['tile']} px, looks: {row['looks']}" for row in rows]
    lines = [
        [fault, *(f"{row['found'][fault]} of {row['of']}" for row in rows)]
        for fault in rows[0]["found"]
    ]
    false = [f"{sum(row['other'].values())} of {row['of'] * len(row['other'])}" for row in rows]
    passed = [f"{sum(row['passed'].values())} of {row['of'] * len(row['passed'])}" for row in rows]
    lines += [
        ["called good by its check", *passed],
        ["another check finds what is not there", *false],
    ]
    return table(["fault", *header], lines)


def _flat_field(record: dict) -> str:
    rows = []
    for case in record["rows"]:
        others = (case["left"].get(name) for name in ("BaSiCPy", "mean"))
        rows.append(
            (
                *(case["size"], str(case["looks"] or "none"), _percent(case["put_in"])),
                *(_percent(case["left"]["octane"]), _percent(case["left_99"])),
                *("" if own is None else _percent(own) for own in others),
                *(_percent(case["even"]), _percent(case["measured_in_even"])),
            )
        )
    names = ("tiles", "looks", "put in", "left", "left, 99 % of pixels", "BaSiCPy", "mean of tiles")
    return table((*names, "even light: put in", "even light: measured"), rows)


def _flat_field_cost(record: dict) -> str:
    cost = record["cost"]
    return table(
        ("STITCH", "seconds", "peak, MB"),
        [
            (f"`--flat-field {name}`", f"{own['seconds']:.2f}", f"{own['peak_bytes'] / 1e6:.0f}")
            for name, own in ((name, cost[name]) for name in ("none", "estimate"))
        ],
    )


def _percent(part: float) -> str:
    return f"{100 * part:.1f} %"


def _faults(record: Mapping[str, Mapping[str, Mapping[str, str]]]) -> str:
    kept = record["rows"]
    found = sorted(kept, key=lambda test: (GROUPS.index(kept[test]["group"]), test))
    return table(
        ("fault", "what octane does", "result", "what was observed", "shown by", "at commit"),
        [
            (
                *(kept[test][name] for name in ("fault", "does", "result")),
                kept[test]["observed"].replace("|", "\\|"),
                f"`{test}`" + (f" ({kept[test]['soak']})" if "soak" in kept[test] else ""),
                kept[test]["commit"],
            )
            for test in found
        ],
    )


TABLES: dict[str, Table] = {
    "faults": of_file(RECORD, _faults),
    "where": _where,
    "n4-agreement": of_part("n4", "agreement", _agreement),
    "n4-speed": of_part("n4", "speed", _speed),
    "n4-memory": of_part("n4", "memory", _memory),
    "n4-modes": of_part("n4", "modes", _modes),
    "n4-levels": of_part("n4", "levels", _levels),
    "resample-kernel": of_part("resample", "kernel", _kernel),
    "resample-read": of_part("resample", "read", _read),
    "resample-end-to-end": of_part("resample", "end_to_end", _end_to_end),
    "resample-memory": of_part("resample", "memory", _resample_memory),
    **{f"gpu-{part}": of_part("gpu", part, _check) for part in GPU_CHECKS},
    "gpu-cold-start": of_part("gpu", "cold_start", _cold_start),
    "gpu-transfers": of_part("gpu", "transfers", _transfers),
    "gpu-n4": of_part("gpu", "n4", _gpu_n4),
    "gpu-resample": of_part("gpu", "resample", _gpu_resample),
    "demo": of_part("workflow", "demo", _demo),
    "startup": of_part("workflow", "startup", _startup),
    "commands": of_part("workflow", "startup", _commands),
    "tasks": of_part("workflow", "tasks", _tasks),
    "steps": of_part("workflow", "steps", _steps),
    "leases": of_part("workflow", "leases", _leases),
    "flat-field": of_part("stitch", "flat_field", _flat_field),
    "flat-field-cost": of_part("stitch", "flat_field", _flat_field_cost),
    "verdict": of_part("workflow", "verdict", _verdict),
}
"""Names that pages mark, and the makers of the tables."""
