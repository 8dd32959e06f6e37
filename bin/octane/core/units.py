"""Parsing and formatting of sizes, lengths and counts."""

import math
import re
from collections.abc import Mapping, Sequence

SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(?:([kmgt])(i?)b?|b)\s*$", re.IGNORECASE | re.ASCII)


def plain_number(text: str) -> float:
    """Read a number in digits 0 to 9; a ValueError also for ``1_000``, which Python takes."""
    if "_" in text or not text.strip().isascii():
        raise ValueError(f"{text!r} is not a number in plain digits")
    return float(text)


def bytes_of(size: str) -> int:
    """Parse a size such as ``4GB``, ``500 MB``, ``2GiB`` or Nextflow's ``4 GB`` into bytes.

    Raises
    ------
    ValueError
        If ``size`` is not a number with a unit: a bare 4 could mean anything from bytes to GB.
    """
    match = SIZE.match(size)
    if match is None:
        raise ValueError(f"'{size}' is not a size with a unit; write it like 4GB")
    number, prefix, binary = match.groups()
    base = 1024 if binary else 1000
    return int(float(number) * base ** " kmgt".index((prefix or " ").lower()))


def format_bytes(size: float) -> str:
    """Format bytes with a unit and three digits."""
    unit = min(4, max(1, math.floor(math.log10(max(size, 1)) / 3 + 1e-9)))
    return f"{size / 1000**unit:.3g} {' kMGT'[unit]}B"


def counted(number: int, noun: str) -> str:
    """Format a count with its noun: 1 section, 2 sections."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def format_lengths(micrometres: Sequence[float]) -> str:
    """Format lengths in the unit of the largest, with three digits: ``3.5 x 4 x 4 µm``."""
    units = {1e6: "m", 1e3: "mm", 1.0: "µm", 1e-3: "nm"}
    size = next((size for size in units if max(micrometres) >= size), 1e-3)
    numbers = (float(f"{length / size:.3g}") for length in micrometres)
    return f"{' x '.join(f'{number:g}' for number in numbers)} {units[size]}"


def without_comma(text: str | None) -> str:
    """Write a number with a decimal point in place of its comma; empty for any other text."""
    found = re.fullmatch(r"\s*([+-]?)([0-9]*),([0-9]+)\s*", text or "")
    return f"{found[1]}{found[2] or 0}.{found[3]}" if found else ""


def comma_in(cells: Mapping[str, str]) -> str:
    """Say which cell of a row is a number with a comma; empty if none is."""
    for name, text in cells.items():
        if number := without_comma(text):
            return f"{name} is '{text}', which has a comma; write {number}."
    return ""
