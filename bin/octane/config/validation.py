"""Names of subjects, paths and scratch folders that a person gave."""

import itertools
import os
import re
import shlex
import unicodedata
from pathlib import Path

from octane.core.errors import InputError

OFF = ("false", "no", "off", "0", "null", "none", "")
"""Texts of ``scratch_dir`` for the work directory, as a params file or a shell writes them."""
ON = ("true", "yes", "on", "1")
"""Texts for the node's TMPDIR."""
NEXTFLOW = ("params-file", "preview", "profile", "resume", "stub", "stub-run", "work-dir")
"""Options of Nextflow that are written with one dash."""

VARIABLE = re.compile(r"\$(?:\{\w+\}|\w+)")
SIGNS = re.compile(r"[^\w/.,:+@%=-]")
"""Characters that the shell line that makes the folder would not take literally."""


def further_words(command: str) -> list[str]:
    """Words of the command line of a run that belong to no parameter, as ``b`` in --input a b."""
    words = itertools.dropwhile(lambda word: word != "run", shlex.split(command))
    plain = [
        word
        for before, word in itertools.pairwise(words)
        if not (before.startswith("-") and "=" not in before) and not word.startswith("-")
    ]
    # The first one is the script.
    return plain[1:]


def unfit_name(name: str) -> str | None:
    """Sentence on a name that can be no folder or part of a shell's command; None for any other."""
    signs = all(unicodedata.category(sign)[0] in "LMN" or sign in " ._()-" for sign in name)
    if name and signs and name[0] not in ".-":
        return None
    return (
        f"'{name}' is not a subject name; use letters, digits, blanks and ._()-, with no . or - "
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
            raise InputError(
                f"--scratch_dir {scratch} is not a full path of letters, digits and ._,:+@%=- "
                "(with $NAME or ${NAME} for a variable); give one, true for the node's TMPDIR, or "
                "false."
            )
        if not all(os.environ.get(v.strip("${}")) for v in VARIABLE.findall(scratch)):
            # Only a node knows the folder.
            return
        folder, shown = Path(os.path.expandvars(scratch)), scratch
        if not folder.exists():
            if scratch[-1] != "/":
                raise InputError(
                    f"--scratch_dir {scratch} does not exist; make it, or end it in / to have "
                    f"tasks make it ({scratch}/), or give true for the node's TMPDIR, or false."
                )
            folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(
            f"--scratch_dir {shown} is not a folder that tasks can write to; give another one, "
            "true for the node's TMPDIR, or false."
        )
