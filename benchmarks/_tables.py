"""The tables of the documentation, made from the records of benchmarks.

A page marks a table with ``<!-- figures: NAME -->``; ``make generate`` replaces what follows up to
the next empty line.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from statistics import median
from typing import TypeVar

from _common import PROJECT, RESULTS

PAGE = PROJECT / "docs" / "benchmarks.md"
MARKED = re.compile(r"(<!-- figures: (\S+) -->\n)(?:.+\n)*")
MISSING = "not installed"
SHOWN_CASES = 4
"""Cases of the agreement in the table, those of the largest differences."""

Case = TypeVar("Case")
Table = Callable[[Path], str]
"""Makes a table from the folder of the results."""

METHODS = {
    "octane": "octane",
    "zoom": "scipy: Gaussian, zoom (linumpy's)",
    "affine": "scipy: Gaussian, affine, pixel-centred",
    "skimage": "scikit-image: resize, anti-aliased",
}

PROGRAMS = {
    "octane": "octane",
    "linumpy": "linumpy's loop",
    "ngff-zarr": "ngff-zarr, Gaussian, factor 3",
    "tensorstore": "tensorstore, mean, factor 3",
}


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


def of_cases(
    subject: str, part: str, columns: Mapping[str, Callable[[dict], str]], cases: str = "cases"
) -> Table:
    """Return the table of a part with a line per case."""
    return of_part(subject, part, lambda record: listed(record[cases], columns))


def of_part(subject: str, part: str, make: Callable[[dict], str]) -> Table:
    """Return the table of one part of a benchmark, which says so where there is no record."""

    def made(results: Path) -> str:
        path = results / f"{subject}.json"
        records = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        return make(records[part]) if part in records else "Not measured yet.\n"

    return made


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
    device = record.get("device")
    gpu = f", {device['device']}, driver {device['driver']}" if device else ""
    return (
        record["date"],
        f"{record['cores']} cores of {record['processor']}{gpu}",
        ", ".join(f"{name} {number}" for name, number in versions if number),
    )


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


DIFFERENCES = ("one_minus_r", "median", "max", "itk_median", "itk_max")


def _agreement(record: dict) -> str:
    cases = sorted(record["cases"], key=lambda case: -case["max"])
    bounds = [f"{record['bounds'][figure]:.0e}" for figure in DIFFERENCES[:3]]
    largest = [f"{max(abs(case[figure]) for case in cases):.1e}" for figure in DIFFERENCES]

    def holds(some: Sequence[dict]) -> str:
        return "yes" if all(case["holds"] for case in some) else "**no**"

    def line(case: dict) -> Sequence[str]:
        itk = case["itk_iterations"][str(case["nearest_threads"])]
        done = _joined(case["iterations"])
        return (
            case["name"],
            f"{' x '.join(map(str, case['fit_shape']))} ({case['included']})",
            done if itk == case["iterations"] else f"{done} (ITK {_joined(itk)})",
            f"{abs(case['one_minus_r']):.0e}",
            *(f"{case[figure]:.1e}" for figure in DIFFERENCES[1:]),
            holds([case]),
        )

    return table(
        (
            *("case", "grid of the fit (voxels fitted)", "iterations by level", "1 - r", "median"),
            *("maximum", "ITK itself, median", "ITK itself, maximum", "holds"),
        ),
        [
            ("*bound*", "", "equal", *bounds, "", "", ""),
            (f"*all {len(cases)} cases, largest*", "", "", *largest, holds(cases)),
            *map(line, cases[:SHOWN_CASES]),
        ],
    )


def _speed(record: dict) -> str:
    def peer(case: dict) -> str:
        found = case.get("n4ax")
        return f"{found['warm']:.3f} (first call {found['cold']:.1f})" if found else MISSING

    def rate(case: dict, threads: str) -> str:
        return f"{case['octane_fit'][threads]['ns_per_voxel_and_iteration']:.1f}"

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
            "octane, 1 thread, ns": lambda c: rate(c, "1"),
            "2 threads, ns": lambda c: rate(c, "2"),
        },
    )


def _size(voxels: list[int]) -> str:
    return f"{voxels[0]}³" if len(set(voxels)) == 1 else " x ".join(map(str, voxels))


def _kernel(record: dict) -> str:
    def cells(case: dict, method: str) -> Sequence[str]:
        found = case["methods"].get(method)
        if found is None:
            return MISSING, "", ""
        times = f"{found['octane_times_faster']:.1f}"
        return f"{found['seconds'] * 1e3:.1f}", times, f"{found['error']:.0e}"

    cases = record["cases"]
    heads = ([f"{_size(case['tile'])}, ms", "times octane's", "largest error"] for case in cases)
    return table(
        ["method", *chain(*heads)],
        [[name, *chain(*(cells(c, method) for c in cases))] for method, name in METHODS.items()],
    )


def _end_to_end(record: dict) -> str:
    def cell(case: dict, program: str) -> str:
        found = case["programs"].get(program)
        if found is None:
            return ""
        seconds = f"{found['seconds']:.2f} / {found['command_seconds']:.2f}"
        return f"{seconds} / {found['peak_bytes'] / 1e6:.0f}"

    rows = [
        (
            f"{c['store']}, {c['tiles']} tiles of {_size(c['tile'])}",
            f"{c['stages']['seconds']['read']:.2f}",
            *(cell(c, name) for name in PROGRAMS),
        )
        for c in record["cases"]
    ]
    return table(("mosaic", "reading alone", *PROGRAMS.values()), rows)


def _cold_start(record: dict) -> str:
    return table(
        ("command", "kernels not compiled yet, s", "compiled, s"),
        [
            (f"`bin/{name}.py`", *(f"{median(found[state]):.1f}" for state in ("empty", "warm")))
            for name, found in record["command_seconds"].items()
        ],
    )


def _startup(record: dict) -> str:
    def row(state: str, cache: str, part: str) -> Sequence[str]:
        added = record[part.lower()][cache]["added_by_kernels"]
        return state, part, f"{added['median']:.2f}", f"{added['smallest']:.2f}"

    states = (("cached", "full_cache"), ("not yet", "empty_cache"))
    return table(
        ("compiled code", "part", "CPU seconds added to the first call", "smallest of the repeats"),
        [row(*state, part) for part in ("N4", "RESAMPLE") for state in states],
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
    def cell(case: dict, program: str) -> str:
        found = case["programs"].get(program)
        if found is None:
            return MISSING
        return f"{found['shift']:.2f} / {found['rotation']:.2f} / {found['seconds']:.2f}"

    rows = [
        (c["name"], str(c["pairs"]), *(cell(c, name) for name in ALIGNERS)) for c in record["rows"]
    ]
    return table(("sections", "pairs", *ALIGNERS), rows)


def _alignment_cost(record: dict) -> str:
    return table(
        ("`--align`", "voxels", "seconds of cores", "more than none", "peak, GB"),
        [
            (
                way,
                _size(cost["shape"]),
                f"{found['cpu_seconds']:.1f}",
                f"{found['cpu_seconds'] / cost['ways']['none']['cpu_seconds'] - 1:.0%}",
                f"{found['peak_bytes'] / 1e9:.2f}",
            )
            for cost in record["cost"]
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


MEMORY = {
    "volume, GB": lambda c: f"{c['bytes'] / 1e9:.1f}",
    "voxels fitted": lambda c: " x ".join(map(str, c["fit_shape"])),
    "predicted, GB": lambda c: f"{c['predicted_bytes'] / 1e9:.2f}",
    "peak, GB": lambda c: f"{c['peak_bytes'] / 1e9:.2f}",
    "peak over predicted": lambda c: f"{c['peak_over_predicted']:.2f}",
    "seconds": lambda c: f"{c['seconds']:.0f}",
    "ns per voxel": lambda c: f"{c['ns_per_voxel']:.0f}",
}

RESAMPLE_MEMORY = {
    "tile": lambda c: _size(c["tile"]),
    "tiles": lambda c: str(c["tiles"]),
    "mosaic, MB": lambda c: f"{c['bytes'] / 1e6:.0f}",
    "workers": lambda c: str(c["workers"]),
    "predicted, MB": lambda c: f"{c['predicted_bytes'] / 1e6:.0f}",
    "peak, MB": lambda c: f"{c['peak_bytes'] / 1e6:.0f}",
    "ratio": lambda c: f"{c['peak_bytes'] / c['predicted_bytes']:.2f}",
}

TRANSFERS = {
    "MiB": lambda c: str(c["bytes"] >> 20),
    "host memory": lambda c: c["memory"],
    "to the GPU, GB/s": lambda c: f"{c['GB_per_s']['to_device']:.1f}",
    "back, GB/s": lambda c: f"{c['GB_per_s']['to_host']:.1f}",
    "both, GB/s": lambda c: f"{c['GB_per_s']['both_at_once']:.1f}",
}

GPU_N4 = {
    "volume": lambda c: _size(c["shape"]),
    "fit: GPU, s": lambda c: f"{c['fit']['gpu']['median']:.3f}",
    "fit: CPU, s": lambda c: f"{c['fit']['cpu']['median']:.3f}",
    "host to host: GPU, s": lambda c: f"{c['host_to_host']['median']:.3f}",
    "command: GPU, s": lambda c: f"{c['command']['gpu']['command_seconds']:.1f}",
    "command: CPU, s": lambda c: f"{c['command']['cpu']['command_seconds']:.1f}",
}

GPU_RESAMPLE = {
    "store": lambda c: c["store"],
    "PCIe, ms a tile": lambda c: f"{c['ms_per_tile']['pcie_floor']:.1f}",
    "read and decode, ms a tile": lambda c: f"{c['ms_per_tile']['read_and_decode']:.1f}",
    "GPU": lambda c: f"{c['ms_per_tile']['gpu']:.1f}",
    "CPU": lambda c: f"{c['ms_per_tile']['cpu']:.1f}",
}

TASKS = {
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
}


TABLES: dict[str, Table] = {
    "where": _where,
    "n4-agreement": of_part("n4", "agreement", _agreement),
    "n4-speed": of_part("n4", "speed", _speed),
    "n4-speed-xeon": of_part("n4", "speed_xeon", _speed),
    "n4-memory": of_cases("n4", "memory", MEMORY),
    "n4-modes": of_part("n4", "modes", lambda r: _against_truth("mode", r["cases"])),
    "n4-levels": of_part(
        "n4", "levels", lambda r: _against_truth("levels of 50", r["n4_by_fitting_levels"])
    ),
    "resample-kernel": of_part("resample", "kernel", _kernel),
    "resample-end-to-end": of_part("resample", "end_to_end", _end_to_end),
    "resample-memory": of_cases("resample", "memory", RESAMPLE_MEMORY),
    "gpu-cold-start": of_part("gpu", "cold_start", _cold_start),
    "gpu-transfers": of_cases("gpu", "transfers", TRANSFERS),
    "gpu-n4": of_cases("gpu", "n4", GPU_N4),
    "gpu-resample": of_cases("gpu", "resample", GPU_RESAMPLE, "end_to_end"),
    "alignment": of_part("stitch", "alignment", _alignment),
    "alignment-cost": of_part("stitch", "alignment", _alignment_cost),
    "demo": of_part("workflow", "demo", _demo),
    "startup": of_part("workflow", "startup", _startup),
    "commands": of_part("workflow", "startup", _commands),
    "tasks": of_cases("workflow", "tasks", TASKS),
    "steps": of_part("workflow", "steps", _steps),
    "nifti": of_part("workflow", "nifti", _nifti),
    "flat-field": of_part("stitch", "flat_field", _flat_field),
    "flat-field-cost": of_part("stitch", "flat_field", _flat_field_cost),
    "verdict": of_part("workflow", "verdict", _verdict),
}
"""Names that pages mark, and the makers of the tables."""
