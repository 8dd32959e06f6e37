"""The tables of the page of outputs that benchmarks/report.py fills."""

from _table_parts import Table, measured, table, where

__all__ = ["REPORT_TABLES"]


def _sizes(record: dict) -> str:
    return table(
        ("sections", "report, MB", "JSON, MB", "trace, MB", "provenance, MB", "previews, MB"),
        [
            (
                count,
                *(
                    f"{size[name] / 1e6:.2f}"
                    for name in (
                        "html_bytes",
                        "json_bytes",
                        "trace_bytes",
                        "crate_bytes",
                        "picture_bytes",
                    )
                ),
            )
            for count, size in record["sections"].items()
        ],
    )


REPORT_TABLES: dict[str, Table] = {
    "report-sizes": measured("report", _sizes),
    "report-where": measured("report", where()),
}
"""Names that the page marks, and what makes each table."""
