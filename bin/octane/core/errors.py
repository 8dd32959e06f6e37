"""The exceptions that mean: the input, a parameter or the machine is at fault, not the code."""

import errno

__all__ = ["NO_SPACE", "NoSpaceError", "OctaneError", "unreadable"]

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
"""A full disk and a full quota."""


class OctaneError(Exception):
    """One sentence for the person at the terminal: names the file or parameter and the remedy.

    Attributes
    ----------
    code
        What the command exits with.
    """

    code = 1


class NoSpaceError(OctaneError):
    """There is no space left: the same command may succeed elsewhere, or when some is freed."""

    # The error's own number, by which the workflow tells it from an error in the data.
    code = errno.ENOSPC


def unreadable(error: OSError) -> OctaneError:
    """The error for a file or folder that is there and that the system does not give to be read."""
    return OctaneError(
        f"{error.filename} cannot be read ({error.strerror or error}); check your rights, the disk "
        "and the network, and run again (a workflow with -resume)."
    )
