"""Scratch folder of tasks: the values of ``scratch_dir``, and checks of the folder before a run.

``conf/base.config`` reads the parameter in the same way, in a closure that can call no function;
a test compares the two.
"""

import os
import re
from pathlib import Path

from octane.core.errors import OctaneError

OFF = ("false", "no", "off", "0", "null", "none", "")
"""Texts for the work directory, as a params file or a shell writes them."""
ON = ("true", "yes", "on", "1")
"""Texts for the node's TMPDIR."""

VARIABLE = re.compile(r"\$(?:\{\w+\}|\w+)")
SIGNS = re.compile(r"[^\w/.,:+@%=-]")
"""Characters that the shell line that makes the folder would not take literally."""


def read_scratch(value: object) -> bool | str:
    """Read a value: False for the work directory, True for TMPDIR, else a path with variables."""
    text = str(value).strip()
    if text.lower() in OFF:
        return False
    return True if text.lower() in ON else text


def known_folder(scratch: bool | str) -> Path | None:
    """Find the folder on this machine; None where there is none, or only a node knows it.

    A folder that does not exist yet is represented by its parent.
    """
    if scratch is False:
        return None
    if scratch is True:
        return Path(os.environ.get("TMPDIR") or "/tmp")
    unset = [v for v in VARIABLE.findall(scratch) if not os.environ.get(v.strip("${}"))]
    if unset:
        return None
    folder = Path(os.path.expandvars(scratch))
    return folder if folder.exists() else folder.parent


def require_scratch(scratch: bool | str) -> None:
    """Raise an OctaneError where tasks cannot work in the scratch folder, as far as is known here.

    Nextflow makes a missing folder, which would hide a typing error: a folder must exist, or end in
    ``/`` as the sign that tasks make it.
    """
    if isinstance(scratch, str):
        plain = VARIABLE.sub("", scratch)
        if "$" in plain or SIGNS.search(plain) or not scratch.startswith(("/", "$")):
            raise OctaneError(
                f"--scratch_dir {scratch} is no full path of letters, digits and ._,:+@%=- (with "
                "$NAME or ${NAME} for a variable); give one, true for the node's TMPDIR, or false."
            )
    folder = known_folder(scratch)
    if folder is None:
        return
    shown = f"true (TMPDIR, {folder})" if scratch is True else str(scratch)
    if scratch is not True and shown[-1] != "/" and not Path(os.path.expandvars(shown)).exists():
        raise OctaneError(
            f"--scratch_dir {shown} does not exist; make it, or end it in / to have tasks make it "
            f"({shown}/), or give true for the node's TMPDIR, or false."
        )
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise OctaneError(
            f"--scratch_dir {shown} is no folder that tasks can write to; give another one, true "
            "for the node's TMPDIR, or false."
        )
