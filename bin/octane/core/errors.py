"""Exceptions for faults of the input, a parameter or the machine, not of the code."""

import errno
from collections.abc import Generator
from contextlib import contextmanager

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
"""A full disk and a full quota."""


class OctaneError(Exception):
    """One sentence for the person at the terminal: names the file or parameter and the remedy."""

    code = 1
    """Exit code of the command."""


class NoSpaceError(OctaneError):
    """No space is left: the command may succeed elsewhere, or when some is freed."""

    # The system's error number: the workflow distinguishes it from an error in the data.
    code = errno.ENOSPC


@contextmanager
def collecting(problems: list[str]) -> Generator[None]:
    """Add what is wrong to the problems, a sentence a line, and go on."""
    try:
        yield
    except OctaneError as error:
        problems += str(error).splitlines()


def unreadable(error: OSError) -> OctaneError:
    """Make the error for a file or folder that exists and cannot be read."""
    return OctaneError(
        f"{error.filename} cannot be read ({error.strerror or error}); check your rights, the disk "
        "and the network, and run again (a workflow with -resume)."
    )
