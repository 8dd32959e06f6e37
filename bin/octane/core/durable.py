"""Results that are on the disk when their step says so, and not only in Linux's memory.

A rename makes an output whole for all who look, but a loss of power can still take what was written
in the last half minute. For what only the next step reads that is cheap: it is noticed and made
again. Results are what nobody makes again. The disk has to take their bytes in any case; for 1 GB,
waiting for it took as long as not waiting (benchmarks/results/durability.json). On network file
systems it is also when errors of earlier writes, a full quota for one, are told.
"""

import errno
import os
from pathlib import Path

from octane.core.errors import OctaneError

__all__ = ["bring_to_disk"]

UNKNOWN_HERE = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)
"""What file systems answer that have nothing to bring anywhere."""


def bring_to_disk(result: Path) -> None:
    """Wait until a file, or a folder with all that is in it, is on the disk under its name.

    Raises
    ------
    OctaneError
        When the disk could not take it.
    """
    inside = [Path(p) / name for p, _, names in os.walk(result) for name in ("", *names)]
    for path in (*inside, result, result.parent):
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        except OSError as error:
            if error.errno not in UNKNOWN_HERE:
                raise OctaneError(
                    f"{path} could not be brought to the disk ({error.strerror}); remove "
                    f"{result}, see that the disk has space and is sound, and run again."
                ) from error
        finally:
            os.close(fd)
