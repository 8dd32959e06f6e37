"""Exceptions for faults of the input, a parameter or the machine, not of the code.

* OctaneError
  + InputError: data, a file or a parameter
    - ChunkError
      · MissingChunkError
      · CorruptChunkError
      · UnreadableChunkError
  + GpuLostError
  + NoGpuError
  + NoSpaceError
"""

import errno
from collections.abc import Generator
from contextlib import contextmanager

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
"""A full disk and a full quota."""


class OctaneError(Exception):
    """One sentence for the person at the terminal: names the file or parameter and the remedy."""

    code = 1
    """Exit code of the command."""


class InputError(OctaneError):
    """Data, a file or a parameter that was given cannot be used as it is."""


class ChunkError(InputError):
    """A chunk cannot be had.

    ``key`` is its place in the store, ``reason`` the end of a sentence. ``sentence`` names the
    store and the remedy, where these are known.
    """

    def __init__(self, key: str, reason: str, sentence: str = "") -> None:
        super().__init__(sentence or f"chunk {key} {reason}")
        self.key = key
        self.reason = reason


class MissingChunkError(ChunkError):
    """The store does not hold the chunk."""


class CorruptChunkError(ChunkError):
    """The chunk cannot be decoded."""


class UnreadableChunkError(ChunkError):
    """The system does not give the chunk: for lack of rights, or of a disk or a server."""


class GpuLostError(OctaneError):
    """A GPU failed: CUDA does no work in this process until it ends, another one may succeed."""

    # The workflow tries it again, in the end on the CPU.
    code = 104


class NoGpuError(OctaneError):
    """No GPU can be used, and the CPU is not allowed in its place."""


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


def unreadable(error: OSError) -> InputError:
    """Make the error for a file or folder that exists and cannot be read."""
    return InputError(
        f"{error.filename} cannot be read ({error.strerror or error}); check your rights, the disk "
        "and the network, and run again (a workflow with -resume)."
    )
