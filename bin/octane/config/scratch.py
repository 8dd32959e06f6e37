"""Where tasks run: what ``scratch_dir`` says, and what can be known of the folder beforehand.

The same reading stands once more in ``conf/base.config``, where Nextflow takes it for its tasks and
no function can be called; a test holds the two together.
"""

import os
import re
from pathlib import Path

from octane.core.errors import OctaneError

__all__ = ["known_folder", "read_scratch", "require_scratch"]

OFF = ("false", "no", "off", "0", "null", "none", "")
"""What stands for the work directory where a params file or a shell made text of it."""
ON = ("true", "yes", "on", "1")
"""What stands for the node's TMPDIR."""

VARIABLE = re.compile(r"\$(?:\{\w+\}|\w+)")
SIGNS = re.compile(r"[^\w/.,:+@%=-]")
"""What the shell line that makes the folder would not take as it is."""


def read_scratch(value: object) -> bool | str:
    """Scratch folder that a value of ``scratch_dir`` asks for, however it was written.

    Returns
    -------
    bool or str
        False for the work directory, True for TMPDIR, else a path that may have variables.
    """
    text = str(value).strip()
    if text.lower() in OFF:
        return False
    return True if text.lower() in ON else text


def known_folder(scratch: bool | str) -> Path | None:
    """The folder on this machine; None where there is none, or only a node knows it.

    A folder that is yet to be made stands for the one that is to hold it.
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
    """See that tasks can work in the scratch folder, as far as this machine can tell.

    Nextflow makes what is not there, so that a typing error would go unseen: a folder has to be
    there, or end in ``/`` as the sign that it is to be made.

    Raises
    ------
    OctaneError
        When it is no full path, is not there or cannot be written.
    """
    if isinstance(scratch, bool):
        place = known_folder(scratch)
        if place is not None and not os.access(place, os.W_OK | os.X_OK):
            raise OctaneError(
                f"--scratch_dir true takes TMPDIR, which is {place} here and cannot be written; "
                "set TMPDIR, give a path, or false."
            )
        return
    plain = VARIABLE.sub("", scratch)
    if "$" in plain or SIGNS.search(plain) or not scratch.startswith(("/", "$")):
        raise OctaneError(
            f"--scratch_dir {scratch} is no full path of letters, digits and ._,:+@%=- (with "
            "$NAME or ${NAME} for a variable); give one, true for the node's TMPDIR, or false."
        )
    folder = known_folder(scratch)
    if folder is None:
        return
    wanted = Path(os.path.expandvars(scratch))
    if not wanted.exists():
        if not scratch.endswith("/"):
            raise OctaneError(
                f"--scratch_dir {scratch} does not exist; make it, or end it in / to have tasks "
                f"make it ({scratch}/), or give true for the node's TMPDIR, or false."
            )
        if not folder.is_dir():
            raise OctaneError(
                f"--scratch_dir {scratch} is to be made in {folder}, which does not exist; check "
                "the path."
            )
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise OctaneError(
            f"--scratch_dir {scratch} is no folder that tasks can write to; give another one, true "
            "for the node's TMPDIR, or false."
        )
