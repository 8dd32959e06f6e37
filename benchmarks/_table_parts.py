"""What the tables of the documentation are put together from."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

__all__ = ["NOT_MEASURED", "Table", "measured", "record_of", "table", "warmup", "where"]

Table = Callable[[Path], str]
"""Makes a table from the folder of the results."""

NOT_MEASURED = "Not measured yet.\n"


def record_of(results: Path, name: str) -> dict | None:
    """What a benchmark wrote, if it did."""
    path = results / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def measured(name: str, make: Callable[[dict], str]) -> Table:
    """A table of one benchmark's record, or a line that says that there is none."""

    def made(results: Path) -> str:
        record = record_of(results, name)
        return NOT_MEASURED if record is None else make(record)

    return made


def where(*packages: str) -> Callable[[dict], str]:
    """A line that says when and where a record was made, and with which versions of these."""

    def line(record: dict) -> str:
        versions = record["versions"]
        names = {**{name: name for name in packages}, "NumPy": "numpy", "numba": "numba"}
        listed = [f"{name} {versions[key]}" for name, key in names.items() if key in versions]
        return (
            f"Measured on {record['date']} with {record['cores']} cores of {record['processor']}, "
            f"{', '.join(listed)}, at commit {record['commit']}.\n"
        )

    return line


def warmup(part: str) -> Callable[[dict], str]:
    """What compiled loops add to the first call of a part of octane."""

    def make(record: dict) -> str:
        return table(
            ("compiled code", "added to the first call, s", "smallest of the repeats, s"),
            [
                (
                    name,
                    *(
                        f"{record[part][key]['added_by_kernels'][figure]:.2f}"
                        for figure in ("median", "smallest")
                    ),
                )
                for name, key in (("cached", "full_cache"), ("not yet", "empty_cache"))
            ],
        )

    return make
