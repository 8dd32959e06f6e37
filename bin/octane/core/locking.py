"""A file or folder that one process has for itself, for as long as it lives and has it open."""

import fcntl
import logging
from pathlib import Path

__all__ = ["locked"]

logger = logging.getLogger(__name__)


def locked(descriptor: int, path: Path, *, posix: bool = False) -> bool:
    """Lock what is open; gives False where another process has it.

    Parameters
    ----------
    descriptor
        Of the open file or folder.
    path
        What it is called in the log.
    posix
        Lock as Java does; neither kind of lock sees the other.
    """
    # POSIX leaves open which of the two it is.
    taken = (BlockingIOError, PermissionError) if posix else (BlockingIOError,)
    try:
        (fcntl.lockf if posix else fcntl.flock)(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except taken:
        return False
    except OSError as error:
        # Some network file systems have no locks; only then two processes would go unnoticed.
        logger.warning("%s cannot be locked (%s)", path, error.strerror)
    return True
