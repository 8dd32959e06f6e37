"""The tables of the documentation, made from the JSON that the benchmarks wrote.

A page marks a table with ``<!-- figures: NAME -->``; what follows up to the next empty line is
replaced by ``make generate``.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from _common import PROJECT
from _lease_tables import LEASE_TABLES
from _performance_tables import PERFORMANCE_TABLES
from _reliability import fault_table
from _report_tables import REPORT_TABLES
from _resample_tables import RESAMPLE_TABLES
from _slurm_tables import SLURM_TABLES
from _staging_tables import STAGING_TABLES
from _table_parts import measured, table, warmup, where

__all__ = ["PAGES", "RESULTS", "TABLES", "filled"]

RESULTS = PROJECT / "benchmarks" / "results"
PAGES = tuple(
    PROJECT / "docs" / name
    for name in (
        "n4.md",
        "resample.md",
        "gpu.md",
        "hpc.md",
        "output.md",
        "reliability.md",
        "usage.md",
    )
)
MARKED = re.compile(r"(<!-- figures: (\S+) -->\n)(?:.+\n)*")


def filled(text: str, results: Path = RESULTS) -> str:
    """The page with every marked table made anew; a name that is not known is an error."""
    return MARKED.sub(lambda found: found[1] + TABLES[found[2]](results), text)


def _durability(record: dict) -> str:
    found = record["seconds"]
    return table(
        ("MB", "files", "left to the system, s", "brought to the disk, s", "ratio"),
        [
            (
                f"{record['bytes'] / 1e6:.0f}",
                str(record["files"]),
                f"{found['left']:.2f}",
                f"{found['flushed']:.2f}",
                f"{record['ratio']:.1f}",
            )
        ],
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
    return table(
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
    return table(
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
    return table(
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


TABLES: dict[str, Callable[[Path], str]] = {
    "phantom": measured("phantom", _phantom),
    "n4-agreement": measured("n4_agreement", _agreement),
    "n4-agreement-where": measured("n4_agreement", where("SimpleITK")),
    "n4-speed": measured("n4_speed", _speed),
    "n4-n4ax": measured("n4_speed", _n4ax),
    "n4-speed-where": measured("n4_speed", where("SimpleITK")),
    "n4-modes": measured("n4_modes", _modes),
    "n4-warmup": measured("warmup", warmup("n4")),
    "n4-memory": measured("n4_memory", _memory),
    "n4-memory-where": measured("n4_memory", where("SimpleITK")),
    "faults": measured("reliability", fault_table),
    "durability": measured("durability", _durability),
    "durability-where": measured("durability", where()),
    **RESAMPLE_TABLES,
    **LEASE_TABLES,
    **PERFORMANCE_TABLES,
    **SLURM_TABLES,
    **STAGING_TABLES,
    **REPORT_TABLES,
}
"""Names that pages mark, and what makes each table."""
