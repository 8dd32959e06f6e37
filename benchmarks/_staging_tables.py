"""The tables of docs/usage.md."""

from _table_parts import Table, measured, table, where

__all__ = ["STAGING_TABLES"]


def _mb(size: int) -> str:
    return f"{size / 1e6:.1f}"


def _scratch(record: dict) -> str:
    return table(
        ("scratch_dir", "written by the steps, MB", "copied out, MB", "in all, MB"),
        [
            (
                name,
                *(_mb(found[key]) for key in ("written_by_steps", "copied_out", "written_in_all")),
            )
            for name, found in record["scratch"].items()
        ],
    )


def _published(record: dict) -> str:
    return table(
        ("publish_dir_mode", "written in the output, MB"),
        [(mode, _mb(size)) for mode, size in record["published"].items()],
    )


STAGING_TABLES: dict[str, Table] = {
    "staging-scratch": measured("staging", _scratch),
    "staging-published": measured("staging", _published),
    "staging-where": measured("staging", where()),
}
"""Names that the page marks, and what makes each table."""
