"""What a person gave: errors of pydantic as sentences, names, paths and scratch folders."""

import os
import re
import unicodedata
from collections.abc import Collection
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ValidationError

from octane.core.errors import OctaneError

Style = Literal["flag", "parameter"]
"""Names as a command's flags, or as the workflow's parameters."""
OFF = ("false", "no", "off", "0", "null", "none", "")
"""Texts of ``scratch_dir`` for the work directory, as a params file or a shell writes them."""
ON = ("true", "yes", "on", "1")
"""Texts for the node's TMPDIR."""

VARIABLE = re.compile(r"\$(?:\{\w+\}|\w+)")
SIGNS = re.compile(r"[^\w/.,:+@%=-]")
"""Characters that the shell line that makes the folder would not take literally."""


def _written(name: str, style: Style) -> str:
    return f"--{name.replace('_', '-') if style == 'flag' else name}"


def misspelt(given: str, names: Collection[str]) -> str:
    """Sentence on an unknown name, with the nearest of those that there are as a suggestion."""
    import difflib

    near = difflib.get_close_matches(given, names, n=1)
    hint = f"did you mean {near[0]}?" if near else "see --help for all."
    return f"Unknown parameter {given}; {hint}"


def sentences(error: ValidationError, model: type[BaseModel], style: Style = "flag") -> list[str]:
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
            unit = _unit(model, name)
            if "%" in str(shown) or problem.get("ctx") == {"lt": 1}:
                words = "give a fraction below 1, such as 0.2 for 20 %"
            elif unit and re.fullmatch(r"[\d.,\s]*\d\s*[A-Za-z\u00b5\u03bc]+", str(shown)):
                words = f"give the number of {unit}s alone, without a unit"
            lines.append(f"{flag} is {shown!r}: {words}.")
    # Each wrong member of a list is a separate problem with the same words.
    return list(dict.fromkeys(lines))


def _unit(model: type[BaseModel], name: str) -> str:
    """Unit of a field, as it is spelled in prose; empty where it has none."""
    extra = model.model_fields[name].json_schema_extra if name in model.model_fields else None
    unit = extra.get("unit") if isinstance(extra, dict) else None
    return str(unit or "").replace("meter", "metre")


def unfit_name(name: str) -> str | None:
    """Sentence on a name that can be no folder or part of a shell's command; None for any other."""
    signs = all(unicodedata.category(sign)[0] in "LMN" or sign in " ._()-" for sign in name)
    if name and signs and name[0] not in ".-":
        return None
    return (
        f"'{name}' is no name for a subject; use letters, digits, blanks and ._()-, with no . or - "
        "first."
    )


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


def read_scratch(value: object) -> bool | str:
    """Read ``scratch_dir``: False for the work directory, True for TMPDIR, else a path with $NAMEs.

    ``conf/base.config`` reads it in the same way, in a closure that can call no function; a test
    compares the two.
    """
    text = str(value).strip()
    if text.lower() in OFF:
        return False
    return True if text.lower() in ON else text


def require_scratch(scratch: bool | str) -> None:
    """Raise an OctaneError where tasks cannot work in the scratch folder, as far as is known here.

    Nextflow makes a missing folder, which would hide a typing error: a folder must exist, or end in
    ``/`` as the sign that tasks make it.
    """
    if scratch is False:
        return
    if scratch is True:
        folder = Path(os.environ.get("TMPDIR") or "/tmp")
        shown = f"true (TMPDIR, {folder})"
    else:
        plain = VARIABLE.sub("", scratch)
        if "$" in plain or SIGNS.search(plain) or not scratch.startswith(("/", "$")):
            raise OctaneError(
                f"--scratch_dir {scratch} is no full path of letters, digits and ._,:+@%=- (with "
                "$NAME or ${NAME} for a variable); give one, true for the node's TMPDIR, or false."
            )
        if not all(os.environ.get(v.strip("${}")) for v in VARIABLE.findall(scratch)):
            # Only a node knows the folder.
            return
        folder, shown = Path(os.path.expandvars(scratch)), scratch
        if not folder.exists():
            if scratch[-1] != "/":
                raise OctaneError(
                    f"--scratch_dir {scratch} does not exist; make it, or end it in / to have "
                    f"tasks make it ({scratch}/), or give true for the node's TMPDIR, or false."
                )
            folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise OctaneError(
            f"--scratch_dir {shown} is no folder that tasks can write to; give another one, true "
            "for the node's TMPDIR, or false."
        )
