"""The tables of the documentation, generated from the records of benchmarks.

A page marks a table with ``<!-- figures: NAME -->``; ``make generate`` replaces what follows up to
the next empty line.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import median
from typing import TypeVar

from _common import PROJECT, RESULTS

PAGE = PROJECT / "docs" / "benchmarks.md"
MARKED = re.compile(r"(<!-- figures: (\S+) -->\n)(?:.+\n)*")
MISSING = "not installed"
SHOWN_CASES = 4
"""Number of cases in the table of agreement: those with the largest differences."""

Case = TypeVar("Case")
Key = TypeVar("Key")
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

READERS = ("octane, streamed", "octane", "zarrs", "tensorstore", "zarr")


def filled(text: str, results: Path = RESULTS) -> str:
    """Return the page with every marked table replaced; raise for unknown names."""
    return MARKED.sub(lambda found: found[1] + TABLES[found[2]](results), text)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def listed(cases: Iterable[Case], columns: Mapping[str, Callable[[Case], str]]) -> str:
    """Return a table with a line per case, from each column's heading and function of a case."""
    return table([*columns], [[text(case) for text in columns.values()] for case in cases])


def of_cases(
    subject: str, part: str, columns: Mapping[str, Callable[[dict], str]], cases: str = "cases"
) -> Table:
    """Return the table of a part with a line per case."""
    return of_part(subject, part, lambda record: listed(record[cases], columns))


def of_part(subject: str, part: str, make: Callable[[dict], str]) -> Table:
    """Return the table of one part of a benchmark; empty without a record."""
    return of_parts((subject, part), make=make)


def of_parts(*parts: tuple[str, str], make: Callable[..., str]) -> Table:
    """Return the table of several parts, each given as names of a benchmark and its part."""

    def made(results: Path) -> str:
        records = [_parts(results, subject).get(part) for subject, part in parts]
        return make(*records) if all(records) else ""

    return made


def _parts(results: Path, subject: str) -> dict[str, dict]:
    """Return the records of a benchmark's parts; empty if it was not run."""
    path = results / f"{subject}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def grouped(cases: Iterable[Case], key: Callable[[Case], Key]) -> dict[Key, list[Case]]:
    """Return the cases of each key, in their order."""
    groups: dict[Key, list[Case]] = {}
    for case in cases:
        groups.setdefault(key(case), []).append(case)
    return groups


def _range(values: Iterable[float], digits: int = 0) -> str:
    """Return the smallest and the largest of some values."""
    found = sorted(values)
    return " to ".join(dict.fromkeys(f"{v:.{digits}f}" for v in (*found[:1], *found[-1:])))


def _where(results: Path) -> str:
    rows: dict[tuple[str, str], list[str]] = {}
    versions: set[str] = set()
    for path in sorted(results.glob("*.json")):
        for part, record in _parts(results, path.stem).items():
            device = record.get("device")
            gpu = f", {device['device']}, driver {device['driver']}" if device else ""
            machine = f"{record['cores']} cores of {record['processor']}{gpu}"
            made = f"{part} {record['date']} {record['commit']}"
            rows.setdefault((f"`{path.stem}.py`", machine), []).append(made)
            versions |= {f"{name} {number}" for name, number in record["versions"].items()}
    lines = [(*origin, ", ".join(parts)) for origin, parts in rows.items()]
    return table(
        ("script", "machine", "parts, each with its date and commit"),
        [*lines, ("versions", "", ", ".join(sorted(versions)))],
    )


def _truth(case: dict) -> tuple[str, str]:
    """Return the variation over the true tissue, and the correlation with the true field."""
    truth = case["truth"]
    return f"{truth['cv_against_truth_after']:.3f}", f"{truth['field_correlation']:.3f}"


def _before(cases: Mapping[str, dict]) -> str:
    return f"{next(iter(cases.values()))['truth']['cv_against_truth_before']:.3f}"


def _modes(record: dict) -> str:
    """Return a line for each mode, and a column for each treatment before the fit."""
    cells = {
        tuple(name.partition(", ")[::2]): " / ".join(_truth(case))
        for name, case in record["cases"].items()
    }
    modes, treatments = ([*dict.fromkeys(names)] for names in zip(*cells, strict=True))
    return table(
        (f"before: {_before(record['cases'])}", *(name or "N4 alone" for name in treatments)),
        [[mode, *(cells.get((mode, name), "") for name in treatments)] for mode in modes],
    )


def _levels(record: dict) -> str:
    cases = record["n4_by_fitting_levels"]
    return table(
        ("levels of 50", "variation over the true tissue", "correlation with the true field"),
        [("(before)", _before(cases), ""), *((name, *_truth(c)) for name, c in cases.items())],
    )


def _joined(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))


DIFFERENCES = ("one_minus_r", "median", "max", "itk_median", "itk_max")


def _agreement(record: dict) -> str:
    cases = sorted(record["cases"], key=lambda case: -case["max"])
    bounds = [f"{record['bounds'][figure]:.0e}" for figure in DIFFERENCES[:3]]
    largest = [f"{max(abs(case[figure]) for case in cases):.1e}" for figure in DIFFERENCES]

    def line(case: dict) -> Sequence[str]:
        return (
            case["name"],
            f"{' x '.join(map(str, case['fit_shape']))} ({case['included']})",
            _joined(case["iterations"]),
            f"{abs(case['one_minus_r']):.0e}",
            *(f"{case[figure]:.1e}" for figure in DIFFERENCES[1:]),
        )

    return table(
        (
            *("case", "grid of the fit (voxels fitted)", "iterations by level", "1 - r", "median"),
            *("maximum", "ITK itself, median", "ITK itself, maximum"),
        ),
        [
            ("*bound*", "", "equal", *bounds, "", ""),
            (f"*all {len(cases)} cases, largest*", "", "", *largest),
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
        figures = (found["seconds"] * 1e3, found["octane_times_faster"])
        return *(f"{figure:.1f}" for figure in figures), f"{found['error']:.0e}"

    cases = record["cases"]
    heads = ([f"{_size(c['tile'])}, ms", "times octane's", "largest error"] for c in cases)
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


def _reading(record: dict) -> str:
    def cell(case: dict, reader: str) -> str:
        found = case["readers"].get(reader)
        if found is None:
            return MISSING
        return f"{found['cpu_seconds']:.2f} / {found['peak_bytes'] / 1e6:.0f}"

    rows = [(c["store"], *(cell(c, name) for name in READERS)) for c in record["cases"]]
    return table(("store", *READERS), rows)


def _commands(record: dict) -> str:
    """Return CPU seconds of commands, and the overhead of compiled loops in the first call."""
    found = record["commands"]
    base = next(iter(found.values()))["new"]
    helps = [c for name, c in found.items() if name.endswith(" --help")]
    lines = {f"`{name}`": [c] for name, c in found.items() if c not in helps}
    lines[f"`--help` of {len(helps)} commands"] = helps
    for part in ("N4", "RESAMPLE"):
        for state, cache in (("cached", "full_cache"), ("not yet compiled", "empty_cache")):
            added = record[part.lower()][cache]["added_by_kernels"]["median"]
            lines[f"added to the first call of {part}, loops {state}"] = [{"new": added}]
    return listed(
        lines.items(),
        {
            "command": lambda line: line[0],
            "before": lambda line: _range((c["old"] for c in line[1] if "old" in c), 2),
            "CPU seconds": lambda line: _range((c["new"] for c in line[1]), 2),
            "over the first": lambda line: _range((c["new"] / base for c in line[1]), 1),
        },
    )


def _demo(record: dict) -> str:
    """The run of each checkout: when its steps began and ended."""
    labels = {key: name for key, name in (("old", "before"), ("new", "now")) if key in record}
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
    return table(["step", "tasks", *(f"{name}, s" for name in labels.values())], rows)


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


def _subject(record: dict) -> str:
    """The processes of each checkout, its whole run, and the copy."""

    def seconds(found: dict) -> tuple[str, str]:
        return f"{found['seconds']:.1f}", f"{found['cpu_seconds']:.1f}"

    def line(name: str, own: dict) -> Sequence[str]:
        read, written, made_from = (own[f"{k}_bytes"] for k in ("read", "written", "input"))
        return (
            *(f"{name} x {own['tasks']}", *seconds(own)),
            f"{read / 1e9:.2f} / {written / 1e9:.2f}",
            # PREFLIGHT reads the input where it is.
            f"{read / made_from:.2f}" if made_from else "",
            f"{own['peak_bytes'] / 1e9:.2f}",
        )

    rows: list[Sequence[str]] = []
    for label, text in (("old", "before"), ("new", "now")):
        if found := record.get(label):
            before = f"{text}: " if "old" in record else ""
            rows += [line(f"{before}{name}", own) for name, own in found["processes"].items()]
            rows.append((f"{before}no task running", f"{found['idle_seconds']:.1f}", *[""] * 4))
            rows.append((f"{before}*whole*", *seconds(found), *[""] * 3))
    rows.append(("*`cp -r` of the mosaics*", *seconds(record["copy"]), *[""] * 3))
    return table(
        (
            *("process x tasks", "s", "CPU s", "GB read / written"),
            *("read, of its input", "peak, GB"),
        ),
        rows,
    )


def _channels(record: dict) -> str:
    subjects = record["subjects"]
    most = subjects[max(subjects, key=int)]["channels"]
    (reference, own), *others = most.items()
    return listed(
        [*own, "channels"],
        {
            "step": str.upper,
            f"{reference} (measured), CPU s": lambda step: _cpu(own, step),
            **{f"{name}, CPU s": partial(_cpu, costs) for name, costs in others},
            **{
                f"peak, MB; channels: {count}": partial(_peak, subject)
                for count, subject in subjects.items()
            },
        },
    )


def _cpu(costs: dict, step: str) -> str:
    return f"{costs[step]['cpu_seconds']:.1f}" if step in costs else ""


def _peak(subject: dict, step: str) -> str:
    parts = (*subject["channels"].values(), subject["joining"])
    peaks = [costs[step]["peak_bytes"] for costs in parts if step in costs]
    return f"{max(peaks) / 1e6:.0f}" if peaks else ""


def _channels_total(record: dict) -> str:
    totals = {
        int(count): sum(
            step["cpu_seconds"]
            for costs in (*subject["channels"].values(), subject["joining"])
            for step in costs.values()
        )
        for count, subject in record["subjects"].items()
    }
    return listed(
        totals.items(),
        {
            "channels": lambda t: str(t[0]),
            "CPU s": lambda t: f"{t[1]:.1f}",
            "over one channel": lambda t: f"{t[1] / totals[1]:.2f}",
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
    header = [f"{row['tile']} px, looks: {row['looks'] or 'none'}" for row in rows]

    alike = grouped(
        rows[0]["found"], lambda fault: tuple(f"{r['found'][fault]} of {r['of']}" for r in rows)
    )
    lines = [["; ".join(faults), *found] for found, faults in alike.items()]
    false = [f"{sum(row['other'].values())} of {row['of'] * len(row['other'])}" for row in rows]
    passed = [f"{sum(row['passed'].values())} of {row['of'] * len(row['passed'])}" for row in rows]
    wrong = [fault for fault in rows[0]["found"] if fault.startswith("overlap wrong")]
    kinds = {"a wrong overlap gives seams": wrong, "a right one gives seams": ["none"]}
    seams = [
        [name, *(f"{sum(r['seams'][f] for f in own)} of {r['of'] * len(own)}" for r in rows)]
        for name, own in kinds.items()
    ]
    lines += [
        ["called good by its check", *passed],
        ["another check finds what is not there", *false],
        *seams,
        ["jump at section boundaries without bands", *(f"{row['jump']:.1f} %" for row in rows)],
    ]
    return table(["fault", *header], lines)


ALIGNERS = ("octane", "SimpleITK", "scikit-image")


def _alignment(record: dict) -> str:
    def cell(case: dict, program: str) -> str:
        found = case["programs"].get(program)
        if found is None:
            return MISSING
        return f"{found['shift']:.2f} / {found['rotation']:.2f} / {found['seconds']:.2f}"

    pairs = _range(c["pairs"] for c in record["rows"])
    rows = [(c["name"], *(cell(c, name) for name in ALIGNERS)) for c in record["rows"]]
    return table((f"sections ({pairs} pairs)", *ALIGNERS), rows)


def _levelling(record: dict) -> str:
    """Return a line for each size and amount of speckle, and the cost of each way for STACK."""
    rows = [
        (
            f"2 x 2 tiles of {own['size']} px, {own['looks']} looks",
            *(_percent(error) for error in own["error"].values()),
            f"{own['best']} of {own['subjects']}",
        )
        for own in record["rows"]
    ]
    spent = [f"{own['cpu_seconds']:.1f} s" for own in record["cost"]["ways"].values()]
    last = [f"CPU seconds of STACK, {_size(record['cost']['shape'])} voxels", *spent, ""]
    return table(("sections", *record["rows"][0]["error"], "levelled is best"), [*rows, last])


def _surface(record: dict) -> str:
    def cell(value: float | None, digits: int) -> str:
        return "" if value is None else f"{value:.{digits}f}"

    rows = [
        (
            *(case["name"], str(case["looks"]), f"{case['found']} of {case['sections']}"),
            *(cell(case[name], 3) for name in ("depth", "tilt")),
            f"{case['false']} of {case['sections']}",
        )
        for case in record["rows"]
    ]
    columns = ("section", "looks", "found", "depth, voxels", "tilt, °", "found where none is")
    return table(columns, rows)


def _share_of(part: str) -> Callable[[dict], str]:
    """Return the maker of a table of what a part of STITCH adds, with the columns that it needs."""

    def made(record: dict) -> str:
        own = record["cost"]
        names = ("stitch", "stack", "columns", part)
        rest = own["stitch"] + own["stack"] - own["columns"] - own[part]
        share = (own["columns"] + own[part]) / rest
        columns = ("section", "STITCH, CPU s", "STACK", "columns", part, "more than without")
        row = (f"{_size(own['shape'])} voxels", *(f"{own[name]:.2f}" for name in names))
        return table(columns, [(*row, f"{share:.0%}")])

    return made


def _planes(record: dict) -> str:
    """Return how many rolled tiles are named, by size within a cell."""
    cases: dict[tuple[bool, int], list[dict]] = {}
    for row in record["rows"]:
        cases.setdefault((row["water"], row["looks"]), []).append(row)
    lines = []
    for (water, looks), rows in cases.items():
        named, right, near = (
            sum(sum(row[name].values()) for row in rows) for name in ("found", "exact", "near")
        )
        lines.append(
            (
                *("water" if water else "nothing", str(looks or "none")),
                *(" / ".join(str(row["found"][n]) for row in rows) for n in rows[0]["found"]),
                f"{right} + {near} of {named}",
                str(sum(row["others"] for row in rows)),
                f"{sum(row['alarms'] for row in rows)} of {sum(row['good'] for row in rows)}",
                " + ".join(str(sum(row[name] for row in rows)) for name in ("right", "nearer")),
                str(sum(row["wrong"] + row["wrong_good"] for row in rows)),
            )
        )
    shifts = (f"{n} plane{'s' if n != '1' else ''}" for n in record["rows"][0]["found"])
    last = ("right + within one plane", "other tiles", "good ones", "moved", "wrongly")
    return table(("above", "looks", *shifts, *last), lines)


def _refinement(record: dict) -> str:
    """Return the errors of tiles as stated, at the highest peaks and as refined."""
    lines = [
        (
            *(str(row["tile"]), str(row["looks"] or "none")),
            *(f"{own['median']:.2f} / {own['max']:.2f}" for own in row["error"].values()),
            f"{row['refined']} of {row['of']}",
        )
        for row in record["rows"]
    ]
    columns = ("tile, px", "looks", "as stated", "at every highest peak", "`--stitch_refine`")
    return table((*columns, "sections refined"), lines)


BLENDED = {
    "not blended": "plain",
    "blended": "blended",
    "with gain": "plain_gain",
    "blended, with gain": "blended_gain",
}
"""Columns of the table of blending, and what the record calls them."""


def _blend(record: dict) -> str:
    """Return errors and jumps at borders by attenuation and looks, over all sizes."""
    cases: dict[tuple[float, float], list[dict]] = {}
    for row in record["rows"]:
        cases.setdefault((row["attenuation"], row["looks"]), []).append(row)

    def cell(rows: list[dict], name: str) -> str:
        kinds = ("rms", "jump")
        return " / ".join(_range((100 * r[f"{kind}_{name}"] for r in rows), 1) for kind in kinds)

    lines = []
    for (attenuation, looks), rows in cases.items():
        seeds = sum(row["seeds"] for row in rows)
        lower = " / ".join(f"{sum(r[k] for r in rows)}" for k in ("lower", "lower_gain"))
        elsewhere = f"{max(row['changed_elsewhere'] for row in rows)}"
        cells = [cell(rows, name) for name in BLENDED.values()]
        own = [f"{attenuation:g}", f"{looks:g}", *cells, f"{lower} of {seeds}", elsewhere]
        lines.append(own)
    header = ["1/mm", "looks", *BLENDED, "error fell", "other planes changed"]
    return table(header, lines)


def _blend_cost(record: dict) -> str:
    cost = record["cost"]
    least = cost["stack"][0]["cpu_seconds"]
    rows = [
        (
            f"`--stack_blend {own['blend']}`",
            f"{own['cpu_seconds']:.1f}",
            f"{(own['cpu_seconds'] - least) / least:.0%}",
            f"{(own['cpu_seconds'] - least) / (least + cost['stitch']):.0%}",
        )
        for own in cost["stack"]
    ]
    return table(("option", "CPU seconds", "more than 0", "of STITCH and STACK"), rows)


def _thickness(record: dict) -> str:
    rows = [
        (
            *(case["name"], f"{case['measured']} of {case['pairs']}", f"{case['replaced']}"),
            *("" if case[n] is None else f"{case[n]:.2f}" for n in ("error_95", "largest")),
            f"{case['seconds']:.2f}",
        )
        for case in record["rows"]
    ]
    columns = ("sections", "measured", "replaced", "error, 95 %", "largest", "seconds per pair")
    return table(columns, rows)


def _thickness_cost(record: dict) -> str:
    cost = record["cost"]
    both = cost["stitch"] + cost["stack"]
    rows = [
        (name, f"{seconds:.1f}", f"{(seconds - cost['stack']) / both:.0%}")
        for name, seconds in (("unset", cost["stack"]), ("`auto`", cost["auto"]))
    ]
    return table(("`--section_thickness`", "CPU seconds of STACK", "of STITCH and STACK"), rows)


def _stitch_cost(flat_field: dict, alignment: dict) -> str:
    """Return the cost of a flat field for STITCH, and of alignment for STACK and both steps."""
    flat = flat_field["cost"]
    ways = {way: flat[way] for way in ("none", "estimate")}
    costs = [("--stitch_flat_field", f"{flat['bytes'] / 1e6:.0f} MB of tiles", ways, None)]
    for own in alignment["cost"]:
        both = own["stitch"]["cpu_seconds"] + own["ways"]["none"]["cpu_seconds"]
        costs.append(("--stack_align", f"{_size(own['shape'])} voxels", own["ways"], both))
    rows = []
    for flag, data, ways, both in costs:
        least = ways["none"]["cpu_seconds"]
        for way, found in ways.items():
            more = found["cpu_seconds"] - least
            parts = f"{more / least:.0%}", "" if both is None else f"{more / both:.0%}"
            peak = f"{found['peak_bytes'] / 1e9:.2f}"
            rows.append((f"`{flag} {way}`", data, f"{found['cpu_seconds']:.1f}", *parts, peak))
    columns = ("option", "data", "CPU seconds", "more than none", "of STITCH and STACK", "peak, GB")
    return table(columns, rows)


def _flat_field(record: dict) -> str:
    """Return a line for each size of the mosaic, and a column for each amount of speckle."""
    sizes = grouped(record["rows"], lambda case: case["size"])
    looks = (f"left, looks: {c['looks']}" for c in next(iter(sizes.values())))
    even = ("even light: put in", "even light: measured")
    rows = [
        (
            *(size, _percent(cases[0]["put_in"])),
            *(f"{_percent(c['left']['octane'])} / {_percent(c['left_99'])}" for c in cases),
            *(
                _range((100 * c["left"][name] for c in cases if name in c["left"]), 1)
                for name in ("BaSiCPy", "mean")
            ),
            *(_percent(max(c[figure] for c in cases)) for figure in ("even", "measured_in_even")),
        )
        for size, cases in sizes.items()
    ]
    return table(("tiles", "put in", *looks, "BaSiCPy, %", "mean of tiles, %", *even), rows)


WAYS = ("none", "N4", "gain", "compensate", "compensate, gain")


def _attenuation(record: dict) -> str:
    """Return a line for each kind of sections."""

    def name(case: dict) -> str:
        if (case["size"], case["looks"]) == (96, 4):
            return case["name"]
        return f"{case['name']}, {case['size']} x {3 * case['size'] // 2}, {case['looks']} looks"

    def coefficient(case: dict) -> str:
        if case["coefficient"] is None:
            return ""
        low, middle, high = case["coefficient"]
        return f"{middle:.2f} ({low:.2f} to {high:.2f})"

    rows = [
        (
            *(name(case), f"{case['depth']:g} / {case['thickness']:g}"),
            *(f"{own['error']:.2f} / {own['border']:.2f}" for own in map(case["ways"].get, WAYS)),
            *(coefficient(case), f"{case['steady']:.0%}"),
        )
        for case in record["rows"]
    ]
    return table(("sections", "imaged / thick, µm", *WAYS, "coefficient", "steady"), rows)


def _attenuation_cost(record: dict) -> str:
    rows = []
    for way in ("none", "compensate"):
        own, least = record["cost"][way], record["cost"]["none"]["cpu_seconds"]
        seconds, peak = own["cpu_seconds"], f"{own['peak_bytes'] / 1e9:.2f}"
        option = f"`--stitch_attenuation {way}`"
        rows.append((option, f"{seconds:.1f}", f"{seconds / least - 1:.0%}", peak))
    return table(("option", "CPU seconds", "more than none", "peak, GB"), rows)


def _percent(part: float) -> str:
    return f"{100 * part:.1f} %"


def _memory(n4: dict, resample: dict) -> str:
    """Return the predicted and the true peaks; cases with similar tiles share a line."""

    def name(case: dict) -> str:
        if "tile" in case:
            return f"RESAMPLE: tiles of {_size(case['tile'])}"
        return f"N4: {_size(case['fit_shape'])} voxels fitted"

    return listed(
        grouped([*n4["cases"], *resample["cases"]], name).items(),
        {
            "step": lambda g: g[0],
            "data, MB": lambda g: _range(c["bytes"] / 1e6 for c in g[1]),
            "predicted, MB": lambda g: _range(c["predicted_bytes"] / 1e6 for c in g[1]),
            "peak, MB": lambda g: _range(c["peak_bytes"] / 1e6 for c in g[1]),
            "peak over predicted": lambda g: _range(
                (c["peak_bytes"] / c["predicted_bytes"] for c in g[1]), 2
            ),
        },
    )


COLD_START = {
    "command": lambda c: f"`bin/{c[0]}.py`",
    "kernels not compiled yet, s": lambda c: f"{median(c[1]['empty']):.1f}",
    "compiled, s": lambda c: f"{median(c[1]['warm']):.1f}",
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
    "in memory: GPU, s": lambda c: f"{c['in_memory']['gpu']['median']:.3f}",
    "page-locked: GPU, s": lambda c: f"{c['in_memory']['gpu_page_locked']['median']:.3f}",
    "in memory: CPU, s": lambda c: f"{c['in_memory']['cpu']['median']:.3f}",
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

SHOWN_GENERATION = 90
SHOWN_COUNTS = ("instructions", "loads", "integer_divisions")


def _kernels(record: dict) -> str:
    """Return a line per kernel; counts of its code are those of one compiler and one GPU."""
    compilers = grouped(record["cases"], lambda case: case["cuda"])
    named, shown = next(
        (f"CUDA {case['cuda']}, sm_{case['generation']}", case)
        for case in record["cases"]
        if case["generation"] == SHOWN_GENERATION
    )

    def change(kernel: str, count: str) -> str:
        values = [shown[label][kernel][count] for label in ("old", "new") if label in shown]
        return " → ".join(map(str, dict.fromkeys(values)))

    def registers(kernel: str, cases: Iterable[dict]) -> str:
        return _joined([case["new"][kernel]["registers"] for case in cases])

    generations = _joined(sorted({case["generation"] for case in record["cases"]}))
    return table(
        (
            "kernel",
            *(f"registers, CUDA {cuda}, sm_{generations}" for cuda in compilers),
            "bytes spilled, at most",
            *(f"{count.replace('_', ' ')}, {named}" for count in SHOWN_COUNTS),
        ),
        [
            (
                f"`{kernel}`",
                *(registers(kernel, cases) for cases in compilers.values()),
                str(max(case["new"][kernel]["spilled"] for case in record["cases"])),
                *(change(kernel, count) for count in SHOWN_COUNTS),
            )
            for kernel in shown["new"]
        ],
    )


def _atomics(record: dict) -> str:
    counts = ("1", str(record["copies"]))
    return listed(
        record["cases"],
        {
            f"volume, {record['bins']} bins": lambda c: c["volume"],
            **{
                f"lanes in the fullest {place}, copies: {n}": lambda c, n=n, place=place: (
                    f"{c[n][place]:.1f}"
                )
                for place in ("word", "bank")
                for n in counts
            },
        },
    )


TASKS = {
    "subjects x sections": lambda c: f"{c['subjects']} x {c['sections']}",
    "tasks": lambda c: str(c["tasks"]),
    "at once": lambda c: str(c["queueSize"]),
    "asked every": lambda c: c["pollInterval"],
    "trace and pages": lambda c: "on" if c["records"] else "off",
    "minutes": lambda c: f"{c['first']['seconds'] / 60:.1f}",
    "ms a task": lambda c: f"{c['ms_per_task']:.0f}",
    "ms of a core a task": lambda c: f"{1000 * c['first']['cpu_seconds'] / c['tasks']:.0f}",
    "Java, MB": lambda c: f"{c['first']['java_peak_bytes'] / 1e6:.0f}",
    "files, folders, links in work": lambda c: str(sum(c["work"].values()) - c["work"]["bytes"]),
    "MB in work": lambda c: f"{c['work']['bytes'] / 1e6:.0f}",
    "`-resume`, s": lambda c: f"{c['resumed']['seconds']:.0f}",
}

COPYING = {
    "TIFF tiles": lambda c: c["tiles"],
    "copying the files, MB/s": lambda c: _rate(c, "copy"),
    "`mosaic.py`, MB/s": lambda c: _rate(c, "work"),
    "ratio": lambda c: f"{c['speed_over_copy']:.2f}",
    "peak, MB": lambda c: f"{c['peak_bytes'] / 1e6:.0f}",
}


EXPORTS = {
    "format": lambda c: c["format"],
    "CPU s": lambda c: f"{c['cpu_seconds']:.1f}",
    "file, MB": lambda c: f"{c['file_bytes'] / 1e6:.0f}",
    "peak, MB": lambda c: f"{c['peak_bytes'] / 1e6:.0f}",
}


def _unstated(record: dict, *, cut: bool) -> str:
    """Return a line for each subject of which nothing was stated, cut out of one block or not."""

    def error(run: dict) -> str:
        return "refused" if run["error"] is None else f"{run['error']:.2f}"

    def flags(names: Sequence[str]) -> str:
        return ", ".join(f"`{name}`" for name in names)

    return listed(
        [row for row in record["rows"] if row["cut"] == cut],
        {
            "sections" if cut else "tiles": lambda c: c["name"],
            "asked for": lambda c: flags([f"--{name}" for name in c["unstated"]["asked"]]),
            "decided": lambda c: flags(c["unstated"]["decided"]),
            **({"moved": lambda c: str(c["unstated"]["moved"])} if cut else {}),
            "error": lambda c: error(c["unstated"]),
            "error, all stated": lambda c: error(c["stated"]),
            "": lambda c: c["outcome"],
        },
    )


def _sound(row: dict) -> str:
    """Say how sections of phantoms lie."""
    kind = "displaced" if row["displaced"] else "in place"
    depth = "depth shared" if row["shared"] else "no depth shared"
    return f"{kind}, {depth}, thickness {'measured' if row['measured'] else 'given'}"


SOUND = {
    "sections": _sound,
    "phantoms": lambda c: str(c["phantoms"]),
    "moved": lambda c: str(c["moved"]),
    "worse than imaged": lambda c: str(len(c["worse_seeds"])),
    "thickness wrong": lambda c: str(len(c["misled_seeds"])),
    "apart as imaged": lambda c: f"{c['imaged']:.2f}",
    "apart in the volume": lambda c: f"{c['left']:.2f}",
    "usually": lambda c: f"{c['left_median']:.2f}",
}


def _rate(case: dict, name: str) -> str:
    """Voxels as MB/s."""
    return f"{case['voxel_bytes'] / case['seconds'][name] / 1e6:.0f}"


LIGHT_LEVELS = {
    "chosen by": lambda c: c["score"],
    **{
        title: lambda c, name=name: _percent(c[name])
        for title, name in {
            "right": "right",
            "with bias": "right_with_bias",
            "without": "right_without_bias",
            "without, N4 left out": "left_out_without_bias",
            "smooth": "right_smooth",
            "fine": "right_fine",
            "nuclei": "right_nuclei",
            "layered": "right_layered",
            "worse": "worse_than_four",
        }.items()
    },
    "mean error": lambda c: f"{100 * c['mean_error']:.1f} %",
}

LIGHT_GAINS = {
    "overlap": lambda c: f"{c['overlap']:g}",
    "shading": lambda c: _percent(c["shading"]),
    "tilt": lambda c: _percent(c["tilt"]),
    "looks": lambda c: f"{c['looks']}",
    "gains, error": lambda c: f"{100 * c['error']:.2f} %",
    "flat field, error": lambda c: f"{100 * c['flat']:.2f} %",
    "alone": lambda c: f"{100 * c['flat_alone']:.2f} %",
    "helped": lambda c: f"{c['helped']:.0f}",
    "sound tiles: helped": lambda c: f"{c['sound_helped']:.0f}",
}

LIGHT_REAL_GAINS = {
    "tiles": lambda c: c["image"],
    "`--stitch_flat_field`": lambda c: f"`{c['flat_field']}`",
    "error": lambda c: f"{100 * c['error']:.2f} %",
    "without a trend": lambda c: f"{100 * c['without_trend']:.2f} %",
    "OpenCV": lambda c: f"{100 * c['opencv_error']:.1f} %" if "opencv_error" in c else "",
    "seams": lambda c: f"{_percent(c['before'])} → {_percent(c['after'])}",
    "helped": lambda c: f"{c['helped']:.0f}",
    "sound tiles: helped": lambda c: f"{c['sound_helped']:d}",
    "measured": lambda c: _percent(c["sound_measured"]),
    "changed by": lambda c: _percent(c["sound_change"]),
}


def _of_both(figures: Mapping[str, float], *names: str) -> str:
    """Return percentages of those methods that have one."""
    return " / ".join(_percent(figures[name]) for name in names if name in figures)


LIGHT_REAL_FIELDS = {
    "tiles": lambda c: c["image"],
    "put in": lambda c: _percent(c["put_in"]),
    "left: octane / BaSiCPy": lambda c: _of_both(
        {name: rms for name, (rms, _) in c["left"].items()}, "octane", "BaSiCPy"
    ),
    "seams: before": lambda c: _percent(c["seams"]["none"]),
    "octane / BaSiCPy": lambda c: _of_both(c["seams"], "octane", "BaSiCPy"),
    "helped": lambda c: "yes" if c["helped"] else "no",
}


def _light_real_levels(record: dict) -> str:
    """Return a line for each image, mesh and width, with the error of each number of levels."""
    cases = record["levels"]
    counts = range(max((len(c["errors"]) for c in cases), default=0))
    return listed(
        cases,
        {
            "volume": lambda c: c["image"],
            "`--n4_iterations`": lambda c: f"`{c['iterations']}`",
            "width": lambda c: f"{c['width']:g}" if c["width"] else "no bias",
            **{
                f"levels: {n}" if n == 0 else f"{n}": lambda c, n=n: (
                    f"{100 * c['errors'][n]:.1f} %" if n < len(c["errors"]) else ""
                )
                for n in counts
            },
            "auto": lambda c: f"{100 * c['error']:.1f} %",
            "its levels": lambda c: _joined(c["levels"]),
            "right": lambda c: f"{c['right'] * c['trials']:.0f} of {c['trials']}",
        },
    )


LAYERS = {
    "part of the image": lambda c: c["part"],
    "MB": lambda c: f"{c['bytes'] / 1e6:.0f}",
}

WATCH_OWN = {
    "section": lambda c: f"{c['section']}",
    "a look, ms": lambda c: f"{1000 * c['look_seconds']:.0f}",
    "two looks, state and page, ms": lambda c: f"{1000 * c['seconds']:.0f}",
    "bytes read, kB": lambda c: f"{c['bytes_read'] / 1e3:.0f}",
    "state, kB": lambda c: f"{c['state_bytes'] / 1e3:.0f}",
}

WATCH_RUN = {
    "sections in the folder": lambda c: f"{c['sections']}",
    "PREFLIGHT to STITCH of the last one, s": lambda c: f"{c['seconds']:.1f}",
    "read by the tasks, MB": lambda c: f"{c['bytes_read'] / 1e6:.0f}",
}

WATCH_FAULTS = {
    "section": lambda c: f"{c['section']}",
    "alert": lambda c: c["fault"],
    "seconds from the last byte": lambda c: f"{c['seconds']:.0f}",
    "before the next section was complete": lambda c: "yes" if c["before_next"] else "no",
}


def _watch_sound(record: dict) -> str:
    return table(
        ["sections without a fault", "alarms"],
        [[f"{record['sections']}", f"{len(record['alarms'])}"]],
    )


TABLES: dict[str, Table] = {
    "where": _where,
    "n4-agreement": of_part("n4", "agreement", _agreement),
    "n4-speed": of_part("n4", "speed", _speed),
    "n4-speed-xeon": of_part("n4", "speed_xeon", _speed),
    "n4-modes": of_part("n4", "modes", _modes),
    "n4-levels": of_part("n4", "levels", _levels),
    "light-levels": of_cases("light", "levels", LIGHT_LEVELS),
    "light-gains": of_cases("light", "gains", LIGHT_GAINS, "rows"),
    "light-real-gains": of_cases("light", "real", LIGHT_REAL_GAINS, "gains"),
    "light-real-flat-field": of_cases("light", "real", LIGHT_REAL_FIELDS, "fields"),
    "light-real-levels": of_part("light", "real", _light_real_levels),
    "resample-kernel": of_part("resample", "kernel", _kernel),
    "resample-end-to-end": of_part("resample", "end_to_end", _end_to_end),
    "resample-reading": of_part("resample", "reading", _reading),
    "memory": of_parts(("n4", "memory"), ("resample", "memory"), make=_memory),
    "gpu-cold-start": of_part(
        "gpu", "cold_start", lambda r: listed(r["command_seconds"].items(), COLD_START)
    ),
    "gpu-transfers": of_cases("gpu", "transfers", TRANSFERS),
    "gpu-n4": of_cases("gpu", "n4", GPU_N4),
    "gpu-resample": of_cases("gpu", "resample", GPU_RESAMPLE, "end_to_end"),
    "watch-own": of_cases("watch", "cost", WATCH_OWN, "own"),
    "watch-run": of_cases("watch", "cost", WATCH_RUN, "run"),
    "watch-faults": of_cases("watch", "faults", WATCH_FAULTS, "alerts"),
    "watch-sound": of_part("watch", "sound", _watch_sound),
    "mosaic": of_cases("mosaic", "copying", COPYING),
    "export": of_cases("export", "formats", EXPORTS),
    "kernels": of_part("kernels", "code", _kernels),
    "kernels-atomics": of_part("kernels", "atomics", _atomics),
    "alignment": of_part("stitch", "alignment", _alignment),
    "levelling": of_part("stitch", "levelling", _levelling),
    "surface": of_part("stitch", "surface", _surface),
    "surface-cost": of_part("stitch", "surface", _share_of("surface")),
    "refinement": of_part("stitch", "refinement", _refinement),
    "planes": of_part("stitch", "planes", _planes),
    "planes-cost": of_part("stitch", "planes", _share_of("planes")),
    "thickness": of_part("stitch", "thickness", _thickness),
    "thickness-cost": of_part("stitch", "thickness", _thickness_cost),
    "blend": of_part("stitch", "blend", _blend),
    "blend-cost": of_part("stitch", "blend", _blend_cost),
    "attenuation": of_part("stitch", "attenuation", _attenuation),
    "attenuation-cost": of_part("stitch", "attenuation", _attenuation_cost),
    "stitch-cost": of_parts(("stitch", "flat_field"), ("stitch", "alignment"), make=_stitch_cost),
    "demo": of_part("workflow", "demo", _demo),
    "commands": of_part("workflow", "startup", _commands),
    "subject": of_part("subject", "whole", _subject),
    "tasks": of_cases("workflow", "tasks", TASKS),
    "steps": of_part("workflow", "steps", _steps),
    "channels": of_part("workflow", "channels", _channels),
    "channels-total": of_part("workflow", "channels", _channels_total),
    "image": of_cases("image", "layers", LAYERS),
    "nifti": of_part("workflow", "nifti", _nifti),
    "flat-field": of_part("stitch", "flat_field", _flat_field),
    "verdict": of_part("workflow", "verdict", _verdict),
    "unstated": of_part("unstated", "subjects", partial(_unstated, cut=False)),
    "unstated-cuts": of_part("unstated", "subjects", partial(_unstated, cut=True)),
    "unstated-sound": of_cases("unstated", "sound", SOUND, "rows"),
}
"""Names that pages mark, and the makers of the tables."""
