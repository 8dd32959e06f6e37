"""The tables of the documentation, made from the JSON that the benchmarks wrote.

A page marks a table with ``<!-- figures: NAME -->``; what follows up to the next empty line is
replaced by ``make generate``.
"""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from _common import PROJECT

__all__ = ["PAGES", "RESULTS", "TABLES", "filled"]

RESULTS = PROJECT / "benchmarks" / "results"
PAGES = (PROJECT / "docs" / "n4.md", PROJECT / "docs" / "gpu.md")
MARKED = re.compile(r"(<!-- figures: (\S+) -->\n)(?:.+\n)*")


def filled(text: str, results: Path = RESULTS) -> str:
    """The page with every marked table made anew; a name that is not known is an error."""
    return MARKED.sub(lambda found: found[1] + TABLES[found[2]](results), text)


def _read(results: Path, name: str) -> dict | None:
    path = results / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def _from(name: str, make: Callable[[dict], str]) -> Callable[[Path], str]:
    """A table of one benchmark's record, or a line that says that there is none."""

    def table(results: Path) -> str:
        record = _read(results, name)
        return "Not measured yet.\n" if record is None else make(record)

    return table


def _where(record: dict) -> str:
    versions = record["versions"]
    numba = f", numba {versions['numba']}" if "numba" in versions else ""
    return (
        f"Measured on {record['date']} with {record['cores']} cores of {record['processor']}, "
        f"SimpleITK {versions['SimpleITK']}, NumPy {versions['numpy']}{numba}, "
        f"at commit {record['commit']}.\n"
    )


def _phantom(record: dict) -> str:
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
    return _table(
        ("levels of 50", "correlation with the true field", "variation over the true tissue"),
        [("(before)", "", f"{before:.3f}"), *rows],
    )


def _listed(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))


def _agreement(record: dict) -> str:
    bounds = record["bounds"]
    rows = [
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
    for case in record["cases"]:
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
    return _table(
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
    return _table(
        (
            "case",
            "shrink",
            "voxels fitted",
            "iterations",
            "SimpleITK, s",
            "octane, s",
            "ratio",
            "fit, 1 thread, ns",
            "fit, 2 threads, ns",
            "array version, ns",
        ),
        [
            (
                case["name"],
                str(case["shrink"]),
                str(case["included"]),
                _listed(case["iterations"]),
                f"{case['simpleitk']['total']:.2f}",
                f"{case['octane']['median']:.3f}",
                f"{case['ratio']:.0f}",
                *(
                    f"{case['octane_fit'][n]['ns_per_voxel_and_iteration']:.1f}"
                    for n in ("1", "2", "arrays")
                ),
            )
            for case in record["cases"]
        ],
    )


def _n4ax(record: dict) -> str:
    rows = []
    for case in record["cases"]:
        own = case["fit_against_simpleitk"]
        row = [
            case["name"],
            f"{case['simpleitk']['fit']:.2f}",
            f"{case['octane_fit']['2']['median']:.3f}",
            f"{own['median']:.0e}",
        ]
        if "n4ax" in case:
            peer = case["n4ax"]
            against = peer["fit_against_simpleitk_but_for_scale"]
            row[3:3] = [f"{peer['warm']:.3f} (first call {peer['cold']:.1f})"]
            row.append(f"{against['median']:.0e}")
        else:
            row[3:3] = ["not installed"]
            row.append("")
        rows.append(row)
    return _table(
        (
            "case",
            "SimpleITK, s",
            "octane, s",
            "n4ax, s",
            "octane's median error",
            "n4ax's median error",
        ),
        rows,
    )


def _memory(record: dict) -> str:
    return _table(
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
    return _table(
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


def _warmup(record: dict) -> str:
    return _table(
        ("compiled code", "added to the first call, s", "smallest of the repeats, s"),
        [
            (
                name,
                f"{record[key]['added_by_kernels']['median']:.2f}",
                f"{record[key]['added_by_kernels']['smallest']:.2f}",
            )
            for name, key in (("cached", "full_cache"), ("not yet", "empty_cache"))
        ],
    )


def _lease_cost(record: dict) -> str:
    cost, storm = record["uncontended_ms"], record["storm"]
    return _table(
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


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f}"


def _lease_day(record: dict) -> str:
    rows = []
    for name, found in record["day"]["policies"].items():
        waits = found["wait_seconds"].values()
        rows.append(
            (
                name,
                f"{100 * found['idle_with_waiters']:.1f} %",
                f"{found['failed_tries']:.0f}",
                f"{found['given_up']:.1f}",
                *(f"{_minutes(wait['median'])} / {_minutes(wait['p95'])}" for wait in waits),
                _minutes(max(wait["longest"] for wait in waits)),
            )
        )
    jobs = record["day"]["jobs"]
    sizes = (
        f"{kind}, {jobs[kind]['bytes'] / 1e9:.0f} GB, min"
        for kind in record["day"]["policies"]["leases, 1 slot"]["wait_seconds"]
    )
    return _table(
        (
            "policy",
            "GPU empty while somebody waits",
            "starts without memory, a day",
            "jobs lost, a day",
            *sizes,
            "longest wait, min",
        ),
        rows,
    )


TABLES: dict[str, Callable[[Path], str]] = {
    "phantom": _from("phantom", _phantom),
    "n4-agreement": _from("n4_agreement", _agreement),
    "n4-agreement-where": _from("n4_agreement", _where),
    "n4-speed": _from("n4_speed", _speed),
    "n4-n4ax": _from("n4_speed", _n4ax),
    "n4-speed-where": _from("n4_speed", _where),
    "n4-modes": _from("n4_modes", _modes),
    "n4-warmup": _from("warmup", _warmup),
    "n4-memory": _from("n4_memory", _memory),
    "n4-memory-where": _from("n4_memory", _where),
    "lease-cost": _from("leases", _lease_cost),
    "lease-day": _from("leases", _lease_day),
}
"""Names that pages mark, and what makes each table."""
