"""What a person gave: errors of pydantic as sentences, names and paths that cannot be used."""

import re
import unicodedata
from collections.abc import Collection
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ValidationError

Style = Literal["flag", "parameter"]
"""Names as a command's flags, or as the workflow's parameters."""


def _written(name: str, style: Style) -> str:
    return f"--{name.replace('_', '-') if style == 'flag' else name}"


def misspelt(given: str, names: Collection[str]) -> str:
    """Sentence on an unknown name, with the nearest of those that there are as a suggestion."""
    import difflib

    near = difflib.get_close_matches(given, names, n=1)
    hint = f"did you mean {near[0]}?" if near else "see --help for all."
    return f"Unknown parameter {given}; {hint}"


def spelled(error: ValidationError, model: type[BaseModel], style: Style = "flag") -> list[str]:
    """Write one sentence for each problem.

    An unknown name gets the nearest field of the model as a suggestion.
    """
    lines = []
    for problem in error.errors(include_url=False):
        name = str(problem["loc"][0]) if problem["loc"] else "parameters"
        flag = _written(name, style)
        if problem["type"] == "extra_forbidden":
            lines.append(misspelt(flag, [_written(field, style) for field in model.model_fields]))
        else:
            message = problem["msg"].removeprefix("Value error, ")
            words = f"{message[0].lower()}{message[1:]}".rstrip(".")
            given = problem["input"]
            shown = " ".join(map(str, given)) if isinstance(given, list | tuple) else given
            lines.append(f"{flag} is {shown!r}: {words}.")
    # Each wrong member of a list is a separate problem with the same words.
    return list(dict.fromkeys(lines))


def unfit_name(name: str) -> str | None:
    """Sentence on a name that can be no folder or part of a shell's command; None for any other."""
    signs = all(unicodedata.category(sign)[0] in "LMN" or sign in " ._()-" for sign in name)
    if name and signs and name[0] not in ".-":
        return None
    return (
        f"'{name}' is no name for a subject; use letters, digits, blanks and ._()-, with no . or - "
        "first."
    )


def place_of(error: ValidationError) -> str:
    """Place of the first problem, names joined by dots."""
    return ".".join(map(str, error.errors()[0]["loc"])) or "the whole"


def unlinkable(path: Path) -> str | None:
    """Sentence on a path that Nextflow cannot link into a task's folder; None for any other.

    As ``unlinkable`` in subworkflows/prepare.nf: Nextflow follows links and keeps the last name,
    and a shell reads these signs as a pattern.
    """
    signs = re.findall(r"[\[\]*?{}$\x00-\x1f\x7f]", f"{path.resolve()}{path.name}")
    if not signs:
        return None
    named = {"\t": "a tab", "\n": "a line break"}.get(signs[0])
    sign = named or (f"a {signs[0]}" if signs[0].isprintable() else "a control character")
    shown = path.resolve() if signs[0] in str(path.resolve()) else path
    return f"{shown} has {sign} in its path, which Nextflow cannot hand to tasks; rename it."
