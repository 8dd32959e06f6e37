"""The tables of docs/benchmarks.md, generated from the records of benchmarks.

The page marks a table with ``<!-- figures: NAME -->``; ``make generate`` replaces what follows up
to the next empty line.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from _common import PROJECT, RESULTS

PAGE = PROJECT / "docs" / "benchmarks.md"
MARKED = re.compile(r"(<!-- figures: (\S+) -->\n)(?:.+\n)*")
MISSING = "not installed"
LOOKS = (1, 4, 16, 0)
"""Looks averaged into each image of a phantom: one column each; 0 is an image without speckle."""

Case = TypeVar("Case")
Table = Callable[[Path], str]
"""Makes a table from the folder of the results."""
Columns = Mapping[str, Callable[[dict], str]]
"""The headings of a table, and the text of a case below each."""


def fill_tables(text: str, results: Path = RESULTS) -> str:
    """Return the page with every marked table replaced; raise for unknown names."""
    return MARKED.sub(lambda mark: mark[1] + TABLES[mark[2]](results), text)


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def table_of_cases(subject: str, part: str, columns: Columns) -> Table:
    """Return the table of a part of a benchmark, with a line per case."""

    def rows(record: dict) -> str:
        lines = ([text(case) for text in columns.values()] for case in record["cases"])
        return markdown_table([*columns], lines)

    return table_of_part(subject, part, rows)


def table_of_part(subject: str, part: str, make: Callable[[dict], str]) -> Table:
    """Return the table of a part of a benchmark; empty without a record."""

    def make_if_measured(results: Path) -> str:
        record = read_parts(results, subject).get(part)
        return make(record) if record else ""

    return make_if_measured


def read_parts(results: Path, subject: str) -> dict[str, dict]:
    """Return the records of a benchmark's parts; empty if it was not run."""
    path = results / f"{subject}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def per_cent(part: float, digits: int = 1) -> str:
    """Return a fraction as a percentage."""
    return f"{100 * part:.{digits}f} %"


def voxels(shape: list[int]) -> str:
    """Return a shape, that of a cube by its edge."""
    return f"{shape[0]}³" if len(set(shape)) == 1 else " x ".join(map(str, shape))


def of_looks(cases: Iterable[dict], looks: int) -> list[dict]:
    """Return the cases of one amount of speckle."""
    return [case for case in cases if case["looks"] == looks]


# N4

DIFFERENCES = ("one_minus_r", "median", "max", "itk_median", "itk_max")


def n4_agreement(record: dict) -> str:
    """Return the bounds of the differences from ITK, and the largest of all cases."""
    cases = record["cases"]
    bounds = [f"{record['bounds'][figure]:.0e}" for figure in DIFFERENCES[:3]]
    largest = [f"{max(abs(case[figure]) for case in cases):.1e}" for figure in DIFFERENCES]
    return markdown_table(
        ("", "1 - r", "median", "maximum", "ITK's own, median", "ITK's own, maximum"),
        [("bound", *bounds, "", ""), (f"largest of {len(cases)} cases", *largest)],
    )


def n4ax_cell(case: dict) -> str:
    """Return the seconds of n4ax's fit, and its median error."""
    peer = case.get("n4ax")
    if peer is None:
        return MISSING
    return f"{peer['warm']:.3f} ({peer['fit_against_simpleitk_but_for_scale']['median']:.0e})"


def fit_cell(case: dict) -> str:
    """Return the seconds of octane's fit, and its median error."""
    error = case["fit_against_simpleitk"]["median"]
    return f"{case['octane_fit']['2']['median']:.3f} ({error:.0e})"


N4_SPEED: Columns = {
    "volume": lambda c: c["name"],
    "voxels fitted": lambda c: str(c["included"]),
    "SimpleITK, s": lambda c: f"{c['simpleitk']['total']:.2f}",
    "octane, s": lambda c: f"{c['octane']['median']:.3f}",
    "ratio": lambda c: f"{c['ratio']:.0f}",
    "the fit alone: octane, s (error)": fit_cell,
    "n4ax, s (error)": n4ax_cell,
}


# RESAMPLE, a whole subject

PROGRAMS = {
    "octane": "octane",
    "linumpy": "linumpy's loop",
    "ngff-zarr": "ngff-zarr, Gaussian, factor 3",
    "tensorstore": "tensorstore, mean, factor 3",
}


def program_cell(program: str) -> Callable[[dict], str]:
    """Return the text of a program's seconds and peak memory."""

    def text(case: dict) -> str:
        cost = case["programs"].get(program)
        if cost is None:
            return ""
        return f"{cost['command_seconds']:.2f} / {cost['peak_bytes'] / 1e6:.0f}"

    return text


RESAMPLE: Columns = {
    "mosaic": lambda c: f"{c['store']}, {c['tiles']} tiles of {voxels(c['tile'])}",
    **{title: program_cell(program) for program, title in PROGRAMS.items()},
}


def whole_subject(record: dict) -> str:
    """Return a line per process, the whole run, and a copy of the input."""
    run = record["new"]

    def seconds(cost: dict) -> tuple[str, str]:
        return f"{cost['seconds']:.1f}", f"{cost['cpu_seconds']:.1f}"

    rows = [
        (
            *(f"{name} x {cost['tasks']}", *seconds(cost)),
            f"{cost['read_bytes'] / 1e9:.2f} / {cost['written_bytes'] / 1e9:.2f}",
            f"{cost['peak_bytes'] / 1e9:.2f}",
        )
        for name, cost in run["processes"].items()
    ]
    rows += [
        ("*whole*", *seconds(run), "", ""),
        ("*`cp -r` of the mosaics*", *seconds(record["copy"]), "", ""),
    ]
    return markdown_table(("process x tasks", "s", "CPU s", "GB read / written", "peak, GB"), rows)


# What is measured in the data


def sets_in_place(rows: list[dict]) -> str:
    """Return how many sets of tiles, of which nothing was stated, are right, and their error."""
    right = [row["unstated"]["error"] for row in rows if row["outcome"] == "fine"]
    return f"{len(right)} of {len(rows)} sets, up to {max(right):.2f}"


def accuracy(results: Path) -> str:
    """Return the errors of what STITCH, STACK and N4 measure, by speckle, and what that costs."""
    stitch, light = read_parts(results, "stitch"), read_parts(results, "light")
    unstated = sets_in_place(read_parts(results, "unstated")["subjects"]["rows"])
    levels = next(case for case in light["levels"]["cases"] if case["score"] == CHOSEN_LEVELS_SCORE)
    cost = {part: record["cost"] for part, record in stitch.items() if "cost" in record}
    stated = stitch["refinement"]["rows"][0]["error"]["stated"]["median"]
    shading = stitch["flat_field"]["rows"][0]["put_in"]
    rows = [
        ("places of tiles, nothing stated: voxels", "", unstated, "", "", ""),
        (
            f"`--stitch_refine`: median px, stated {stated:.2f}",
            *(refined_tiles(of_looks(stitch["refinement"]["rows"], looks)) for looks in LOOKS),
            "",
        ),
        (
            "tiles moved along z: named / wrongly named",
            *(tiles_along_z(of_looks(stitch["planes"]["rows"], looks)) for looks in LOOKS),
            share(part_cost(cost["planes"], "planes"), both_steps(cost["planes"])),
        ),
        (
            "`--section_surface`: depth, voxels / tilt, °",
            *(surface_error(of_looks(stitch["surface"]["rows"], looks)) for looks in LOOKS),
            share(part_cost(cost["surface"], "surface"), both_steps(cost["surface"])),
        ),
        (
            "`--section_thickness auto`: planes (pairs)",
            *(thickness_error(of_name(stitch["thickness"]["rows"], looks)) for looks in LOOKS),
            share(
                cost["thickness"]["auto"] - cost["thickness"]["stack"],
                both_steps(cost["thickness"]),
            ),
        ),
        *(
            (
                f"{title}: voxels / °",
                *(
                    displacement_error(of_name(stitch["alignment"]["rows"], looks), program)
                    for looks in LOOKS
                ),
                alignment_cost(cost["alignment"][-1]) if program == "octane" else "",
            )
            for program, title in ALIGNERS.items()
        ),
        *(
            (
                f"{title}: rms of {per_cent(shading)}",
                *(
                    rms_left(of_looks(stitch["flat_field"]["rows"], looks), program)
                    for looks in LOOKS
                ),
                added_cost(cost["flat_field"], "estimate") if program == "octane" else "",
            )
            for program, title in FLAT_FIELDS.items()
        ),
        (
            "`--stitch_gain estimate`, gains of 0.7 to 1.4: rms",
            *(gain_error(of_looks(light["gains"]["rows"], looks)) for looks in LOOKS),
            "",
        ),
        (
            "`--stitch_attenuation compensate`: rms log error, without → with",
            *(attenuation_error(of_looks(stitch["attenuation"]["rows"], looks)) for looks in LOOKS),
            added_cost(cost["attenuation"], "compensate"),
        ),
        (
            "`--n4_levels auto`: best number of levels",
            *(per_cent(levels[f"right_{looks or 'no'}_looks"], 0) for looks in LOOKS),
            "",
        ),
    ]
    looks = (f"{n} look{'s' if n > 1 else ''}" if n else "no speckle" for n in LOOKS)
    return markdown_table(("measured", *looks, "more CPU time"), rows)


CHOSEN_LEVELS_SCORE = "fitted relative entropy, averages"
"""The score by which ``--n4_levels auto`` chooses."""

ALIGNERS = {"octane": "`--stack_align rigid`", "SimpleITK": "the same pairs, SimpleITK"}
FLAT_FIELDS = {
    "octane": "`--stitch_flat_field estimate`",
    "BaSiCPy": "the same tiles, BaSiCPy, made for many more",
}


def of_name(cases: Iterable[dict], looks: int) -> list[dict]:
    """Return the cases of one amount of speckle, as their names say, without the special ones."""
    return [case for case in cases if case["name"].endswith(f", {looks} looks") and plain(case)]


def plain(case: dict) -> bool:
    """Say whether a case is one of those that differ only in size and speckle."""
    return case["name"].count(",") == 1


def share(added: float, whole: float) -> str:
    """Return an added cost as a part of that of STITCH and STACK."""
    return f"{added / whole:.0%}"


def both_steps(cost: dict) -> float:
    return cost["stitch"] + cost["stack"]


def part_cost(cost: dict, part: str) -> float:
    """Return the CPU seconds of a part of STITCH, with the columns that it needs."""
    return cost["columns"] + cost[part]


def alignment_cost(cost: dict) -> str:
    """Return what alignment adds to STITCH and STACK."""
    still = cost["ways"]["none"]["cpu_seconds"]
    return share(
        cost["ways"]["rigid"]["cpu_seconds"] - still, cost["stitch"]["cpu_seconds"] + still
    )


def added_cost(cost: dict, way: str) -> str:
    """Return what an option adds to STITCH."""
    least = cost["none"]["cpu_seconds"]
    return f"{share(cost[way]['cpu_seconds'] - least, least)} of STITCH"


def refined_tiles(rows: list[dict]) -> str:
    medians = [row["error"]["refined"]["median"] for row in rows]
    refined, sections = (sum(row[name] for row in rows) for name in ("refined", "of"))
    return f"{max(medians):.2f} ({refined} of {sections} sections)"


def tiles_along_z(rows: list[dict]) -> str:
    """Return how many of the tiles that were moved under water are named, and how many others."""
    under_water = [row for row in rows if row["water"]]
    named = sum(sum(row["found"].values()) for row in under_water)
    moved = sum(row["of"] * len(row["found"]) for row in under_water)
    return f"{named} of {moved} / {sum(row['others'] + row['alarms'] for row in rows)}"


def surface_error(rows: list[dict]) -> str:
    depth, tilt = (max(row[name] for row in rows) for name in ("depth", "tilt"))
    return f"{depth:.2f} / {tilt:.2f}"


def thickness_error(rows: list[dict]) -> str:
    measured, pairs = (sum(row[name] for row in rows) for name in ("measured", "pairs"))
    return f"{max(row['error_95'] for row in rows):.2f} ({measured} of {pairs})"


def displacement_error(rows: list[dict], program: str) -> str:
    costs = [row["programs"][program] for row in rows]
    shift, turn = (max(cost[name] for cost in costs) for name in ("shift", "rotation"))
    return f"{shift:.2f} / {turn:.2f}"


def rms_left(rows: list[dict], program: str) -> str:
    left = [row["left"][program] for row in rows if program in row["left"]]
    return f"{per_cent(min(left))} to {per_cent(max(left))}"


def gain_error(rows: list[dict]) -> str:
    return per_cent(max(row["error"] for row in rows if row["tilt"] == 0), 2)


def attenuation_error(rows: list[dict]) -> str:
    """Return the errors of the sections that differ only in size and speckle."""
    alike = [row for row in rows if (row["name"], row["depth"]) == ("scattering 5 / mm", 300)]
    before, after = (
        max(row["ways"][way]["error"] for row in alike) for way in ("none", "compensate")
    )
    return f"{before:.2f} → {after:.2f}"


# The report's checks


def report_checks(record: dict) -> str:
    """Return how often each fault is found, by speckle; those always found share a line."""
    looks = list(dict.fromkeys(row["looks"] for row in record["rows"]))
    groups = [of_looks(record["rows"], n) for n in looks]
    of = sum(row["of"] for row in groups[0])
    found: dict[str, list[int]] = {
        fault: [sum(row["found"][fault] for row in rows) for rows in groups]
        for fault in record["rows"][0]["found"]
    }
    missed: dict[tuple[int, ...], list[str]] = {}
    for fault, counts in found.items():
        if min(counts) < of:
            missed.setdefault(tuple(counts), []).append(fault)

    def totals(name: str) -> list[str]:
        sums = [[sum(row[name].values()) for row in rows] for rows in groups]
        return [f"{sum(n)} of {of * len(groups[0][0][name])}" for n in sums]

    rows = [
        *(
            ["; ".join(faults), *(f"{n} of {of}" for n in counts)]
            for counts, faults in missed.items()
        ),
        [
            f"each of {sum(min(counts) == of for counts in found.values())} other faults",
            *[f"{of} of {of}"] * len(groups),
        ],
        ["called good by its own check", *totals("passed")],
        ["other checks that find what is not there", *totals("other")],
    ]
    header = ["fault", *(f"looks: {n or 'no speckle'}" for n in looks)]
    return markdown_table(header, rows)


# Where and when


def machines(results: Path) -> str:
    """Return on which machine each script last measured, and when."""
    dates: dict[tuple[str, str], list[str]] = {}
    versions: set[str] = set()
    for path in sorted(results.glob("*.json")):
        for record in read_parts(results, path.stem).values():
            device = record.get("device")
            gpu = f", {device['device']}, driver {device['driver']}" if device else ""
            machine = f"{record['cores']} cores of {record['processor']}{gpu}"
            dates.setdefault((machine, f"`{path.stem}.py`"), []).append(record["date"])
            versions |= {f"{name} {number}" for name, number in record["versions"].items()}
    scripts: dict[str, list[str]] = {}
    for (machine, script), days in dates.items():
        scripts.setdefault(machine, []).append(f"{script} {max(days)}")
    rows = [(machine, ", ".join(parts)) for machine, parts in scripts.items()]
    return markdown_table(
        ("machine", "scripts, with the last date of each"),
        [*rows, ("versions", ", ".join(sorted(versions)))],
    )


# GPU

N4_WAYS = {
    "fit": "median",
    "in_memory": "median",
    "command": "command_seconds",
}
"""How N4 was timed, and the figure of each."""


def gpu_and_cpu(results: Path) -> str:
    """Return the times of N4 and RESAMPLE on both devices; empty without a GPU's record."""
    parts = read_parts(results, "gpu")
    if not parts:
        return ""
    rows = [
        (f"N4, {voxels(case['shape'])}: {way.replace('_', ' ')}, s", case[way], figure)
        for case in parts["n4"]["cases"]
        for way, figure in N4_WAYS.items()
    ]
    lines = [
        (name, f"{times['gpu'][figure]:.3f}", f"{times['cpu'][figure]:.3f}")
        for name, times, figure in rows
    ]
    lines += [
        (f"RESAMPLE, {case['store']}: ms a tile", f"{times['gpu']:.1f}", f"{times['cpu']:.1f}")
        for case in parts["resample"]["end_to_end"]
        for times in (case["ms_per_tile"],)
    ]
    return markdown_table(("", "GPU", "CPU"), lines)


TABLES: dict[str, Table] = {
    "n4-agreement": table_of_part("n4", "agreement", n4_agreement),
    "n4-speed": table_of_cases("n4", "speed", N4_SPEED),
    "resample": table_of_cases("resample", "end_to_end", RESAMPLE),
    "subject": table_of_part("subject", "whole", whole_subject),
    "accuracy": accuracy,
    "checks": table_of_part("workflow", "verdict", report_checks),
    "gpu": gpu_and_cpu,
    "machines": machines,
}
"""Names that the page marks, and the makers of the tables."""
