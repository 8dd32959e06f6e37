"""Validation of subject names, paths and scratch folders."""

import os
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from octane.core.errors import InputError

OFF = ("false", "no", "off", "0", "null", "none", "")
"""Values of ``scratch_dir`` for the work directory, as a params file or a shell writes them."""
ON = ("true", "yes", "on", "1")
"""Values for the node's TMPDIR."""
NEXTFLOW = ("params-file", "preview", "profile", "resume", "stub", "stub-run", "work-dir")
"""Nextflow options, which start with a single dash."""

MOST_SECTIONS = 10_000
"""Largest range of section numbers: in a wider one, a number is probably a date."""

VARIABLE = re.compile(r"\$(?:\{\w+\}|\w+)")
SHELL_SPECIAL = re.compile(r"[^\w/.,:+@%=-]")
"""Characters that are special to the shell that creates the folder."""


def unfit_name(name: str) -> str | None:
    """Error message for a name unfit for folders and shell commands, or None if it is fit."""
    signs = all(unicodedata.category(sign)[0] in "LMN" or sign in " ._()-" for sign in name)
    if name and signs and name[0] not in ".-":
        return None
    return (
        f"'{name}' is not a subject name; use letters, digits, blanks and ._()-, and do not start "
        "with . or -."
    )


def section_ranges(text: str) -> list[range]:
    """Parse section numbers such as ``7 12-14``; a ValueError says how to write them."""
    found: list[range] = []
    for word in re.split(r"[\s,]+", text.strip(" ,")):
        parts = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", word)
        first, last = (int(part) for part in (parts[1], parts[2] or parts[1])) if parts else (1, 0)
        if not first <= last <= first + MOST_SECTIONS:
            raise ValueError("give section numbers and ascending ranges, such as '7 12-14'")
        found.append(range(first, last + 1))
    return found


def as_ranges(numbers: Iterable[int]) -> str:
    """Write section numbers as :func:`section_ranges` reads them, in order: ``7 12-14``."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return " ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs)


def section_flips(text: str) -> dict[int, str]:
    """Parse ``3: x, 7-9: yx``: axes to flip, in the order y x, by section number.

    A ValueError says how to write them.
    """
    flips: dict[int, str] = {}
    entry = r"(\d+(?:-\d+)?)\s*:\s*(yx?|xy?)"
    if not re.fullmatch(rf"(?:\s*{entry}(?:\s*,|\s|$))+\s*", text, re.IGNORECASE):
        raise ValueError("give section numbers with the axes y, x or yx, such as '3: x, 7-9: yx'")
    for numbers, axes in re.findall(entry, text, re.IGNORECASE):
        for number in section_ranges(numbers)[0]:
            if number in flips:
                raise ValueError(f"section {number} is named twice")
            flips[number] = "".join(sorted(axes.lower(), reverse=True))
    return flips


def as_flips(flips: Mapping[int, str]) -> str:
    """Write flips as :func:`section_flips` reads them, in order: ``3: x, 7-9: yx``."""
    parts: dict[int, str] = {}
    for axes in sorted({*flips.values()}):
        for word in as_ranges(n for n, own in flips.items() if own == axes).split():
            parts[int(word.partition("-")[0])] = f"{word}: {axes}"
    return ", ".join(parts[first] for first in sorted(parts))


def unlinkable(path: Path, *, is_mounted: bool = False) -> str | None:
    """Error message for a path that Nextflow cannot link into a task's folder, or None.

    Nextflow follows links and keeps the last name, and its shell script would expand these
    characters as patterns: for study[1] next to study1, the task would get study1. Where a
    container mounts it, its engine would divide the path at a colon.
    """
    signs = re.findall(r"[\[\]*?{}$\x00-\x1f\x7f\ud800-\udfff]", f"{path.resolve()}{path.name}")
    signs += [sign for sign in f"{path.resolve()}" if is_mounted and sign == ":"]
    if not signs:
        return None
    named = {"\t": "a tab", "\n": "a line break"}.get(signs[0])
    if signs[0] >= "\ud800":
        named = "a byte that is not UTF-8"
    sign = named or (f"a {signs[0]}" if signs[0].isprintable() else "a control character")
    shown = str(path.resolve() if signs[0] in str(path.resolve()) else path).replace("\n", r"\n")
    return f"{shown} has {sign} in its path, which Nextflow cannot hand to tasks; rename it."


def read_scratch(value: object) -> bool | str:
    """Read ``scratch_dir``: False for the work directory, True for TMPDIR, else a path with $NAMEs.

    ``conf/base.config`` and ``lib/scratch_folder.sh`` read the same words; a test compares them.
    """
    text = str(value).strip()
    if text.lower() in OFF:
        return False
    return True if text.lower() in ON else text


def unfit_files(files: Sequence[Path]) -> list[str]:
    """Error messages for names that Nextflow cannot hand to tasks."""
    problems: list[str] = []
    for path in files:
        problems += filter(None, [unlinkable(path)])
        # The name appears in task scripts in single quotes, and in Nextflow's pages unescaped.
        if signs := [sign for sign in "'\"\\<>&" if sign in path.name]:
            problems.append(f"'{path.name}' has a {signs[0]} in its name; rename it.")
    return problems


def require_scratch(scratch: bool | str) -> None:
    """Raise an InputError if tasks cannot use the scratch folder, unless only a node can tell.

    Nextflow would create a missing folder and so hide a typo: the folder must exist, or end in
    ``/`` to have tasks create it.
    """
    if scratch is False:
        return
    if scratch is True:
        folder = Path(os.environ.get("TMPDIR") or "/tmp")
        shown = f"true (TMPDIR, {folder})"
    else:
        plain = VARIABLE.sub("", scratch)
        if "$" in plain or SHELL_SPECIAL.search(plain) or not scratch.startswith(("/", "$")):
            raise InputError(
                f"--scratch_dir {scratch} is not an absolute path of letters, digits and ._,:+@%=- "
                "(with $NAME or ${NAME} for a variable); give one, true for the node's TMPDIR, or "
                "false."
            )
        if not all(os.environ.get(v.strip("${}")) for v in VARIABLE.findall(scratch)):
            # Only the node can resolve the variable.
            return
        folder, shown = Path(os.path.expandvars(scratch)), scratch
        if not folder.exists():
            if scratch[-1] != "/":
                raise InputError(
                    f"--scratch_dir {scratch} does not exist; create it, or end it in / to have "
                    f"tasks create it ({scratch}/), or give true for the node's TMPDIR, or false."
                )
            folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(
            f"--scratch_dir {shown} is not a folder that tasks can write to; give another one, "
            "true for the node's TMPDIR, or false."
        )
