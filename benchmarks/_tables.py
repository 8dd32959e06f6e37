"""The tables of the documentation, made from the records of benchmarks and tests.

A page marks a table with ``<!-- figures: NAME -->``; ``make generate`` replaces what follows up to
the next empty line.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TypeVar

from _common import PROJECT, RESULTS
from reliability import GROUPS, RECORD

PAGES = (PROJECT / "docs" / "benchmarks.md", PROJECT / "docs" / "reliability.md")
MARKED = re.compile(r"(<!-- figures: (\S+) -->\n)(?:.+\n)*")
NOT_MEASURED = "Not measured yet.\n"
MISSING = "not installed"
SHOWN_CASES = 4
"""Cases of the agreement in the table, those of the largest differences."""

Case = TypeVar("Case")
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


def listed(cases: Iterable[Case], columns: Mapping[str, Callable[[Case], str]]) -> str:
    """Return a table with a line per case, from each column's head and the text of a case in it."""
    return table([*columns], [[text(case) for text in columns.values()] for case in cases])


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
    return _against_truth("levels of 50", record["n4_by_fitting_levels"])


def _against_truth(kind: str, cases: Mapping[str, dict]) -> str:
    truths = {name: case["truth"] for name, case in cases.items()}
    before = next(iter(truths.values()))["cv_against_truth_before"]
    return table(
        (kind, "variation over the true tissue", "correlation with the true field"),
        [
            ("(before)", f"{before:.3f}", ""),
            *(
                (name, f"{t['cv_against_truth_after']:.3f}", f"{t['field_correlation']:.3f}")
                for name, t in truths.items()
            ),
        ],
    )


def _joined(values: Sequence[int]) -> str:
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
        done = _joined(case["iterations"])
        rows.append(
            (
                case["name"],
                f"{' x '.join(map(str, case['fit_shape']))} ({case['included']})",
                done if itk == case["iterations"] else f"{done} (ITK {_joined(itk)})",
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
    def peer(case: dict) -> str:
        found = case.get("n4ax")
        return f"{found['warm']:.3f} (first call {found['cold']:.1f})" if found else MISSING

    def errors(case: dict) -> str:
        own, found = case["fit_against_simpleitk"]["median"], case.get("n4ax")
        other = found["fit_against_simpleitk_but_for_scale"]["median"] if found else None
        return f"{own:.0e}" if other is None else f"{own:.0e} / {other:.0e}"

    return listed(
        record["cases"],
        {
            "case": lambda c: c["name"],
            "shrink": lambda c: str(c["shrink"]),
            "voxels fitted": lambda c: str(c["included"]),
            "iterations": lambda c: _joined(c["iterations"]),
            "SimpleITK, s": lambda c: f"{c['simpleitk']['total']:.2f}",
            "octane, s": lambda c: f"{c['octane']['median']:.3f}",
            "ratio": lambda c: f"{c['ratio']:.0f}",
            "fit: SimpleITK, s": lambda c: f"{c['simpleitk']['fit']:.2f}",
            "fit: octane, s": lambda c: f"{c['octane_fit']['2']['median']:.3f}",
            "n4ax, s": peer,
            "median error, octane / n4ax": errors,
            "octane, 1 thread, ns": lambda c: _rate(c, "1"),
            "2 threads, ns": lambda c: _rate(c, "2"),
        },
    )


def _rate(case: dict, threads: str) -> str:
    return f"{case['octane_fit'][threads]['ns_per_voxel_and_iteration']:.1f}"


def _memory(record: dict) -> str:
    return listed(
        record["cases"],
        {
            "volume, GB": lambda c: f"{c['bytes'] / 1e9:.1f}",
            "voxels fitted": lambda c: " x ".join(map(str, c["fit_shape"])),
            "predicted, GB": lambda c: f"{c['predicted_bytes'] / 1e9:.2f}",
            "peak, GB": lambda c: f"{c['peak_bytes'] / 1e9:.2f}",
            "peak over predicted": lambda c: f"{c['peak_over_predicted']:.2f}",
            "seconds": lambda c: f"{c['seconds']:.0f}",
            "ns per voxel": lambda c: f"{c['ns_per_voxel']:.0f}",
        },
    )


def _modes(record: dict) -> str:
    return _against_truth("mode", record["cases"])


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
    return listed(
        record["cases"],
        {
            "tile": lambda c: _size(c["tile"]),
            "tiles": lambda c: str(c["tiles"]),
            "mosaic, MB": lambda c: f"{c['bytes'] / 1e6:.0f}",
            "workers": lambda c: str(c["workers"]),
            "predicted, MB": lambda c: f"{c['predicted_bytes'] / 1e6:.0f}",
            "peak, MB": lambda c: f"{c['peak_bytes'] / 1e6:.0f}",
            "ratio": lambda c: f"{c['peak_bytes'] / c['predicted_bytes']:.2f}",
        },
    )


def _transfers(record: dict) -> str:
    return listed(
        record["cases"],
        {
            "MiB": lambda c: str(c["bytes"] >> 20),
            "host memory": lambda c: c["memory"],
            "to the GPU, GB/s": lambda c: f"{c['GB_per_s']['to_device']:.1f}",
            "back, GB/s": lambda c: f"{c['GB_per_s']['to_host']:.1f}",
            "both, GB/s": lambda c: f"{c['GB_per_s']['both_at_once']:.1f}",
        },
    )


def _gpu_n4(record: dict) -> str:
    return listed(
        record["cases"],
        {
            "volume": lambda c: _size(c["shape"]),
            "fit: GPU, s": lambda c: f"{c['fit']['gpu']['median']:.3f}",
            "fit: CPU, s": lambda c: f"{c['fit']['cpu']['median']:.3f}",
            "host to host: GPU, s": lambda c: f"{c['host_to_host']['median']:.3f}",
            "estimated, s": lambda c: f"{c['estimate']['seconds']['total']:.3f}",
            "command: GPU, s": lambda c: f"{c['command']['gpu']['command_seconds']:.1f}",
            "command: CPU, s": lambda c: f"{c['command']['cpu']['command_seconds']:.1f}",
        },
    )


def _gpu_resample(record: dict) -> str:
    return listed(
        record["end_to_end"],
        {
            "store": lambda c: c["store"],
            "PCIe, ms a tile": lambda c: f"{c['ms_per_tile']['pcie_floor']:.1f}",
            "read and decode, ms a tile": lambda c: f"{c['ms_per_tile']['read_and_decode']:.1f}",
            "GPU": lambda c: f"{c['ms_per_tile']['gpu']:.1f}",
            "CPU": lambda c: f"{c['ms_per_tile']['cpu']:.1f}",
        },
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
        ("compiled code", "part", "CPU seconds added to the first call", "smallest of the repeats"),
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
    found = record["commands"]
    base = next(iter(found.values()))["new"]
    return listed(
        found.items(),
        {
            "command": lambda c: f"`{c[0]}`",
            "before": lambda c: f"{c[1]['old']:.2f}" if "old" in c[1] else "",
            "CPU seconds": lambda c: f"{c[1]['new']:.2f}",
            "over the first": lambda c: f"{c[1]['new'] / base:.1f}",
        },
    )


def _demo(record: dict) -> str:
    """The run of each checkout: when its steps began and ended."""
    labels = [label for label in ("old", "new") if label in record]
    names = {"old": "before", "new": "now"}
    rows = [
        [
            step,
            str(own["tasks"] or ""),
            *(
                f"{found['begin']:.1f} to {found['end']:.1f} ({found['work']:.1f})"
                for found in (record[label]["profile"][step] for label in labels)
            ),
        ]
        for step, own in record["new"]["profile"].items()
    ]
    for name, key in (("whole", "first"), ("`-resume`", "resumed")):
        rows.append([name, "", *(f"{record[label]['seconds'][key]:.1f}" for label in labels)])
    return table(["step", "tasks", *(f"{names[label]}, s" for label in labels)], rows)


def _tasks(record: dict) -> str:
    return listed(
        record["cases"],
        {
            "subjects x sections": lambda c: f"{c['subjects']} x {c['sections']}",
            "tasks": lambda c: str(c["tasks"]),
            "at once": lambda c: str(c["queueSize"]),
            "asked every": lambda c: c["pollInterval"],
            "`trace_report`": lambda c: "on" if c["trace_report"] else "off",
            "minutes": lambda c: f"{c['first']['seconds'] / 60:.1f}",
            "ms a task": lambda c: f"{c['ms_per_task']:.0f}",
            "ms of a core a task": lambda c: f"{1000 * c['first']['cpu_seconds'] / c['tasks']:.0f}",
            "Java, MB": lambda c: f"{c['first']['java_peak_bytes'] / 1e6:.0f}",
            "files, folders and links in work": lambda c: str(
                sum(c["work"].get(kind, 0) for kind in ("files", "folders", "links"))
            ),
            "MB in work": lambda c: f"{c['work']['bytes'] / 1e6:.0f}",
            "`-resume`, s": lambda c: f"{c['resumed']['seconds']:.0f}",
        },
    )


def _steps(record: dict) -> str:
    subject = record["subject"]
    return listed(
        record["steps"].items(),
        {
            "step": lambda s: s[0].upper(),
            "input, MB": lambda s: f"{s[1]['bytes'] / 1e6:.0f}",
            "seconds": lambda s: f"{s[1]['seconds']:.1f}",
            "MB/s": lambda s: f"{s[1]['bytes'] / s[1]['seconds'] / 1e6:.0f}",
            "peak, GB": lambda s: f"{s[1]['peak_bytes'] / 1e9:.2f}",
            "80 GB subject: one task's input, GB": lambda s: f"{subject[s[0]]['bytes'] / 1e9:.0f}",
            "at the measured rate, min": lambda s: f"{subject[s[0]]['computing_seconds'] / 60:.0f}",
            "at 100 MB/s in and out, min": lambda s: f"{subject[s[0]]['moving_seconds'] / 60:.0f}",
            "4 x the longer, h": lambda s: f"{subject[s[0]]['asked_hours']:.1f}",
        },
    )


def _nifti(record: dict) -> str:
    n4, copied = record["n4"], record["read_and_write"]
    return table(
        ("command on 128 x 256 x 256 voxels, float32, uncompressed NIfTI", "s", "ratio"),
        [
            ("octane's N4", f"{n4:.2f}", f"{n4 / copied:.1f}"),
            ("SimpleITK's ReadImage and WriteImage in Python", f"{copied:.2f}", "1"),
        ],
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


ALIGNERS = ("octane", "SimpleITK", "scikit-image")


def _alignment(record: dict) -> str:
    rows = []
    for case in record["rows"]:
        line = [case["name"], str(case["pairs"])]
        for program in ALIGNERS:
            found = case["programs"].get(program)
            line.append(
                MISSING
                if found is None
                else f"{found['shift']:.2f} / {found['rotation']:.2f} / {found['seconds']:.2f}"
            )
        rows.append(line)
    return table(("sections", "pairs", *ALIGNERS), rows)


def _alignment_cost(record: dict) -> str:
    cost = record["cost"]
    least = cost["ways"]["none"]["cpu_seconds"]
    return table(
        ("`--align`", "voxels", "seconds of cores", "more than none", "peak, GB"),
        [
            (
                way,
                _size(cost["shape"]),
                f"{found['cpu_seconds']:.1f}",
                f"{found['cpu_seconds'] / least - 1:.0%}",
                f"{found['peak_bytes'] / 1e9:.2f}",
            )
            for way, found in cost["ways"].items()
        ],
    )


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
    rows = []
    for way in ("none", "estimate"):
        own, name = record["cost"][way], f"`--flat-field {way}`"
        rows.append((name, f"{own['cpu_seconds']:.2f}", f"{own['peak_bytes'] / 1e6:.0f}"))
    return table(("STITCH", "CPU seconds", "peak, MB"), rows)


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
    "alignment": of_part("stitch", "alignment", _alignment),
    "alignment-cost": of_part("stitch", "alignment", _alignment_cost),
    "demo": of_part("workflow", "demo", _demo),
    "startup": of_part("workflow", "startup", _startup),
    "commands": of_part("workflow", "startup", _commands),
    "tasks": of_part("workflow", "tasks", _tasks),
    "steps": of_part("workflow", "steps", _steps),
    "nifti": of_part("workflow", "nifti", _nifti),
    "leases": of_part("workflow", "leases", _leases),
    "flat-field": of_part("stitch", "flat_field", _flat_field),
    "flat-field-cost": of_part("stitch", "flat_field", _flat_field_cost),
    "verdict": of_part("workflow", "verdict", _verdict),
}
"""Names that pages mark, and the makers of the tables."""
