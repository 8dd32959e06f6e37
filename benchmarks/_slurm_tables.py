"""The tables of docs/hpc.md."""

from _table_parts import Table, measured, table

__all__ = ["SLURM_TABLES"]


def _shown(record: dict) -> str:
    return table(
        ("what was done", "what happened"),
        [(row["case"], row["outcome"]) for row in record["shown"]],
    )


def _shown_where(record: dict) -> str:
    commits = sorted({row["commit"] for row in record["shown"]})
    return (
        f"Shown on {record['date']} with Slurm {record['slurm']} on {record['cores']} cores, at "
        f"{'commits' if len(commits) > 1 else 'commit'} {', '.join(commits)}.\n"
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


def _steps_where(record: dict) -> str:
    return (
        f"Measured on {record['date']} with {record['cores']} cores of {record['processor']}, at "
        f"commit {record['commit']} (`benchmarks/steps.py`).\n"
    )


SLURM_TABLES: dict[str, Table] = {
    "slurm-shown": measured("slurm", _shown),
    "slurm-shown-where": measured("slurm", _shown_where),
    "steps": measured("steps", _steps),
    "steps-where": measured("steps", _steps_where),
}
"""Names that the page marks, and what makes each table."""
